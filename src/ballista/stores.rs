//! Object stores of a cluster's tables: each machine opens the store of a URL by itself, with the settings of its environment.

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

/// The stores that plans of clients may reach on a machine of a cluster: the allowed ones, or all if none was named. Addresses of the
/// machine's own network segment, and of a cloud's metadata service, are never reached, because they give its credentials away.
#[derive(Debug, Clone, Default)]
pub struct StoreLimits {
    allowed: Option<Arc<[Url]>>,
}

impl StoreLimits {
    /// Limits to these stores only: `s3://bucket`, `http://host:port` or `https://host`, and `file:///` for local files.
    pub fn only(allowed: impl IntoIterator<Item = Url>) -> Self {
        Self {
            allowed: Some(allowed.into_iter().collect()),
        }
    }

    /// Checks that plans may reach the store of a URL.
    ///
    /// # Errors
    /// A planning error that names the store and the allowed ones.
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

/// Stores by URL, as far as limits allow: `s3://` with region, endpoint and credentials of the environment (`AWS_*`, or the machine's
/// role), `http://` and `https://`, and local files. A registered store is preferred.
#[derive(Debug, Default)]
pub(super) struct EnvironmentStores {
    known: DefaultObjectStoreRegistry,
    limits: StoreLimits,
}

impl EnvironmentStores {
    /// Stores within these limits.
    pub(super) fn within(limits: StoreLimits) -> Self {
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

/// Names of metadata services, which a proxy would resolve itself.
const METADATA_NAMES: [&str; 2] = ["metadata", "metadata.google.internal"];

/// The reason why no plan may reach a URL; `None` if plans may.
fn forbidden(url: &Url) -> Option<String> {
    match url.host()? {
        // The host of other schemes is the name of a bucket.
        _ if !matches!(url.scheme(), "http" | "https") => None,
        Host::Ipv4(address) => is_forbidden(address.into()).then(|| not_reached(address.into())),
        Host::Ipv6(address) => is_forbidden(address.into()).then(|| not_reached(address.into())),
        Host::Domain(name) => METADATA_NAMES
            .contains(&name.trim_end_matches('.'))
            .then(|| format!("{name} is a metadata service")),
    }
}

/// The reason why no plan may reach an address.
fn not_reached(address: IpAddr) -> String {
    format!("{address} is a link-local address, or a metadata service")
}

/// IPv4 addresses of metadata services that are not link-local: those of Alibaba, Azure and Oracle.
const METADATA_V4: [Ipv4Addr; 3] = [
    Ipv4Addr::new(100, 100, 100, 200),
    Ipv4Addr::new(168, 63, 129, 16),
    Ipv4Addr::new(192, 0, 0, 192),
];

/// IPv6 addresses of the metadata services of AWS and Google.
const METADATA_V6: [Ipv6Addr; 2] = [
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
];

/// Whether an address is link-local, where most clouds have their metadata service, or is another address of such a service.
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

/// The IPv4 address that packets to an IPv6 address may reach: mapped (`::ffff:0:0/96`), compatible (`::/96`), translated
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

/// The connector that refuses forbidden addresses, also where a name resolves to one or a server redirects to one.
#[derive(Debug)]
struct CheckedConnector;

impl HttpConnector for CheckedConnector {
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
            .dns_resolver(Arc::new(CheckedNames))
            .build();
        let client = client.map_err(|error| object_store::Error::Generic {
            store: "HTTP",
            source: Box::new(error),
        })?;
        Ok(HttpClient::new(client))
    }
}

/// Time limit for a connection, as `object_store` has it for its own.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for a request, as `object_store` has it for its own.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Most redirects of a request.
const MOST_REDIRECTS: usize = 10;

/// The resolver of names, which refuses a name if any of its addresses is forbidden.
#[derive(Debug)]
struct CheckedNames;

impl Resolve for CheckedNames {
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

/// A new store for a URL, with the settings of the environment.
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
                .with_http_connector(CheckedConnector);
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
        let found = CheckedNames.resolve("169.254.1.1".parse().unwrap()).await;
        assert!(found.err().unwrap().to_string().contains("link-local"));
    }
}
