//! Addresses of a scheduler's services, and clients for them.

use std::time::Duration;

use ballista_core::utils::{GrpcClientConfig, create_grpc_client_endpoint};
use datafusion::common::{Result, config_datafusion_err};
use url::Url;

use super::identity::Identity;

/// The port of a scheduler whose address names none.
const PORT: u16 = 50050;

/// Time limit for an answer of a scheduler.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// The URL of a scheduler's services by its address, for callers with this identity.
pub(super) fn address(url: &str, identity: Option<&Identity>) -> String {
    let scheme = identity.map_or("http://", |_| "https://");
    let host = url.replacen("df://", scheme, 1);
    let host = host.trim_end_matches('/');
    if Url::parse(url).is_ok_and(|url| url.port().is_none()) {
        format!("{host}:{PORT}")
    } else {
        host.to_string()
    }
}

/// A client for a cluster's HTTP services, with a time limit of 10 seconds for each request.
///
/// # Errors
/// A configuration error if the client cannot be built.
pub fn http_client(identity: Option<&Identity>) -> Result<reqwest::Client> {
    let client = reqwest::Client::builder().timeout(PATIENCE).no_proxy();
    let client = match identity {
        Some(identity) => client.use_preconfigured_tls(identity.client()),
        None => client,
    };
    let client = client.build();
    client.map_err(|error| config_datafusion_err!("no client for HTTP: {}", innermost(&error)))
}

/// The endpoint of the gRPC services at an address, `df://host:port`, not yet connected.
///
/// # Errors
/// A configuration error for text that is no address.
pub fn endpoint(url: &str, identity: Option<&Identity>) -> Result<tonic::transport::Endpoint> {
    let config = GrpcClientConfig::default();
    let wrong = |error: tonic::transport::Error| config_datafusion_err!("'{url}': {}", innermost(&error));
    let plain = create_grpc_client_endpoint(address(url, None), Some(&config)).map_err(wrong)?;
    match identity {
        Some(identity) => identity.secured(&plain, &config).map_err(wrong),
        None => Ok(plain),
    }
}

/// The text of an error's innermost cause: the errors around it only name the request.
pub(super) fn innermost(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => innermost(source),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_at_the_port_of_the_address_or_at_that_of_schedulers() {
        for (url, expected) in [
            ("df://localhost", "http://localhost:50050"),
            ("df://localhost/", "http://localhost:50050"),
            ("df://10.0.0.7:80", "http://10.0.0.7:80"),
            ("df://[::1]", "http://[::1]:50050"),
            ("df://[::1]:7", "http://[::1]:7"),
        ] {
            assert_eq!(address(url, None), expected);
        }
    }
}
