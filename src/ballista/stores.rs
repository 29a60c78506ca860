//! Where the files of a cluster's tables are: each machine finds the store of a URL by itself, from its environment.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use datafusion::common::{DataFusionError, Result, plan_err};
use datafusion::execution::object_store::{DefaultObjectStoreRegistry, ObjectStoreRegistry};
use object_store::aws::AmazonS3Builder;
use object_store::client::{HttpClient, HttpConnector};
use object_store::http::HttpBuilder;
use object_store::{ClientOptions, ObjectStore};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::Policy;
use url::{Host, Url};

/// Which stores the plans of clients may reach on a machine of a cluster: those that were allowed, all if none was named, and never
/// addresses of the machine's own network segment or of a cloud's metadata service, which give its credentials away.
#[derive(Debug, Clone, Default)]
pub struct StoreLimits {
    allowed: Option<Arc<[Url]>>,
}

impl StoreLimits {
    /// These stores only: `s3://bucket`, `http://host:port` or `https://host`, and `file:///` for local files.
    pub fn only(allowed: impl IntoIterator<Item = Url>) -> Self {
        Self {
            allowed: Some(allowed.into_iter().collect()),
        }
    }

    /// # Errors
    /// A planning error that names the store and what is allowed.
    fn check(&self, url: &Url) -> Result<()> {
        if let Some(reason) = forbidden(url) {
            return plan_err!("{url} is not reached from here: {reason}");
        }
        let Some(allowed) = &self.allowed else {
            return Ok(());
        };
        let root = |url: &Url| {
            let host = url.host_str().map(str::to_owned);
            (url.scheme().to_owned(), host, url.port_or_known_default())
        };
        if allowed.iter().any(|own| root(own) == root(url)) {
            Ok(())
        } else {
            let names: Vec<_> = allowed.iter().map(Url::as_str).collect();
            plan_err!(
                "{url} is in no store that this machine allows: {} (--allow-store)",
                names.join(", ")
            )
        }
    }
}

/// Stores by URL: `s3://` with region, endpoint and credentials of the environment (`AWS_*`, or the machine's role),
/// `http://` and `https://`, and local files, as far as limits allow. A store that was registered comes first.
#[derive(Debug, Default)]
pub struct EnvironmentStores {
    known: DefaultObjectStoreRegistry,
    limits: StoreLimits,
}

impl EnvironmentStores {
    /// Within these limits.
    pub fn within(limits: StoreLimits) -> Self {
        Self {
            known: DefaultObjectStoreRegistry::default(),
            limits,
        }
    }
}

impl ObjectStoreRegistry for EnvironmentStores {
    fn register_store(&self, url: &Url, store: Arc<dyn ObjectStore>) -> Option<Arc<dyn ObjectStore>> {
        self.known.register_store(url, store)
    }

    fn deregister_store(&self, url: &Url) -> Result<Arc<dyn ObjectStore>> {
        self.known.deregister_store(url)
    }

    fn get_store(&self, url: &Url) -> Result<Arc<dyn ObjectStore>> {
        self.limits.check(url)?;
        if let Ok(store) = self.known.get_store(url) {
            return Ok(store);
        }
        let store = store_for(url)?;
        self.known.register_store(url, Arc::clone(&store));
        Ok(store)
    }
}

/// Names of metadata services, which a proxy would resolve elsewhere.
const METADATA_NAMES: [&str; 2] = ["metadata", "metadata.google.internal"];

/// Why a URL is not reached by any plan; `None`: it may be.
fn forbidden(url: &Url) -> Option<String> {
    match url.host()? {
        // Buckets have names of all kinds.
        _ if !matches!(url.scheme(), "http" | "https") => None,
        Host::Ipv4(address) => is_forbidden(address.into()).then(|| not_reached(address.into())),
        Host::Ipv6(address) => is_forbidden(address.into()).then(|| not_reached(address.into())),
        Host::Domain(name) => METADATA_NAMES
            .contains(&name.trim_end_matches('.'))
            .then(|| format!("{name} is a metadata service")),
    }
}

fn not_reached(address: IpAddr) -> String {
    format!("{address} is a link-local address, or a metadata service")
}

/// Services of clouds that give away credentials and are not link-local: those of Alibaba, Azure and Oracle.
const METADATA_V4: [Ipv4Addr; 3] = [
    Ipv4Addr::new(100, 100, 100, 200),
    Ipv4Addr::new(168, 63, 129, 16),
    Ipv4Addr::new(192, 0, 0, 192),
];

/// Those of AWS and Google.
const METADATA_V6: [Ipv6Addr; 2] = [
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
];

/// Whether an address is link-local, where most clouds have their metadata service, or another one of theirs.
fn is_forbidden(address: IpAddr) -> bool {
    let is_forbidden_v4 = |address: Ipv4Addr| address.is_link_local() || METADATA_V4.contains(&address);
    match address {
        IpAddr::V4(address) => is_forbidden_v4(address),
        IpAddr::V6(address) => {
            address.is_unicast_link_local()
                || METADATA_V6.contains(&address)
                || reached_by(address).is_some_and(is_forbidden_v4)
        }
    }
}

/// The IPv4 address that packets to an IPv6 address may come to: mapped (`::ffff:0:0/96`), compatible (`::/96`), translated
/// (`64:ff9b::/96`, and `64:ff9b:1::/48` with the shortest suffix; RFC 6052, RFC 8215), or by 6to4 (`2002::/16`, RFC 3056).
fn reached_by(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let v4 = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match address.segments() {
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0x64, 0xff9b, 1, _, _, _, high, low]
        | [0x2002, high, low, ..] => Some(v4(high, low)),
        _ => None,
    }
}

/// Connects to what no rule forbids, whatever a name means at that time and wherever a server redirects.
#[derive(Debug)]
struct Guarded;

impl HttpConnector for Guarded {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        let redirect = Policy::custom(|attempt| match forbidden(attempt.url()) {
            Some(reason) => attempt.error(reason),
            None if attempt.previous().len() > MOST_REDIRECTS => attempt.error("too many redirects"),
            None => attempt.follow(),
        });
        let client = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(TIMEOUT)
            .redirect(redirect)
            .dns_resolver(Arc::new(GuardedNames))
            .build();
        let client = client.map_err(|error| object_store::Error::Generic {
            store: "HTTP",
            source: Box::new(error),
        })?;
        Ok(HttpClient::new(client))
    }
}

/// The times that `object_store` takes for its own connections.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(30);
const MOST_REDIRECTS: usize = 10;

/// Addresses of names, of which none may be forbidden.
#[derive(Debug)]
struct GuardedNames;

impl Resolve for GuardedNames {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            match found.iter().find(|found| is_forbidden(found.ip())) {
                Some(found) => Err(format!("{}: {}", name.as_str(), not_reached(found.ip())).into()),
                None => Ok(Box::new(found.into_iter()) as Addrs),
            }
        })
    }
}

fn store_for(url: &Url) -> Result<Arc<dyn ObjectStore>> {
    let failed = |error| DataFusionError::ObjectStore(Box::new(error));
    match (url.scheme(), url.host_str()) {
        ("s3" | "s3a", Some(bucket)) => {
            let builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
            Ok(Arc::new(builder.build().map_err(failed)?))
        }
        ("http" | "https", Some(_)) => {
            let options = ClientOptions::new().with_allow_http(true);
            let builder = HttpBuilder::new()
                .with_client_options(options)
                .with_http_connector(Guarded);
            let store = builder.with_url(url.origin().ascii_serialization()).build();
            Ok(Arc::new(store.map_err(failed)?))
        }
        _ => plan_err!(
            "no store for {url}: allowed are s3://bucket/, http:// and https:// with a host, and local files"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(stores: &EnvironmentStores, url: &str) -> Option<String> {
        let found = stores.get_store(&Url::parse(url).unwrap());
        found.err().map(|error| error.strip_backtrace())
    }

    #[test]
    fn metadata_services_are_never_reached() {
        for limits in [
            StoreLimits::default(),
            StoreLimits::only([Url::parse("http://169.254.169.254").unwrap()]),
        ] {
            let stores = EnvironmentStores::within(limits);
            for url in [
                "http://169.254.169.254/latest/meta-data/",
                "http://2852039166/",
                "https://[fe80::1]/x",
                "http://[::ffff:169.254.169.254]/",
                "http://[::169.254.169.254]/",
                "http://[64:ff9b::169.254.169.254]/",
                "http://[64:ff9b:1::169.254.169.254]/",
                "http://[2002:a9fe:a9fe::1]/",
                "http://168.63.129.16/",
                "http://192.0.0.192/",
                "http://[fd00:ec2::254]/",
                "http://metadata.google.internal/",
                "http://100.100.100.200/",
            ] {
                let error = refused(&stores, url).unwrap_or_default();
                assert!(error.contains("is not reached from here"), "{url}: {error}");
            }
        }
        let stores = EnvironmentStores::default();
        for url in [
            "http://127.0.0.1:9/x",
            "http://[::1]/x",
            "http://[64:ff9b::8.8.8.8]/x",
            "https://example.com/x",
            "file:///tmp",
        ] {
            assert_eq!(refused(&stores, url), None, "{url}");
        }
    }

    #[test]
    fn stores_that_are_not_allowed_are_named() {
        let allowed = ["https://example.com", "s3://mine"].map(|url| Url::parse(url).unwrap());
        let stores = EnvironmentStores::within(StoreLimits::only(allowed));
        assert_eq!(refused(&stores, "https://example.com/a/b.parquet"), None);
        for url in [
            "http://example.com/",
            "https://example.com:444/",
            "file:///etc",
            "s3://other/x",
        ] {
            let error = refused(&stores, url).unwrap_or_default();
            assert!(
                error.contains("s3://mine") && error.contains("--allow-store"),
                "{url}: {error}"
            );
        }
        let files = EnvironmentStores::within(StoreLimits::only([Url::parse("file:///").unwrap()]));
        assert_eq!(refused(&files, "file:///etc"), None);
    }

    /// A name that means a forbidden address, and a server that redirects to one.
    #[tokio::test]
    async fn neither_names_nor_redirects_lead_to_metadata_services() {
        use object_store::ObjectStoreExt;
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = [0; 4096];
                let _ = stream.read(&mut request).await;
                let answer =
                    "HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/x\r\nContent-Length: 0\r\n\r\n";
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        let url = Url::parse(&format!("http://{address}/")).unwrap();
        let store = EnvironmentStores::default().get_store(&url).unwrap();
        let error = store.get(&"x".into()).await.unwrap_err();
        assert!(format!("{error:?}").contains("link-local"), "{error:?}");
        let found = GuardedNames.resolve("169.254.1.1".parse().unwrap()).await;
        assert!(found.err().unwrap().to_string().contains("link-local"));
    }
}
