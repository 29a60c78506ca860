//! Where a scheduler's services are, and clients of them.

use std::time::Duration;

use ballista_core::utils::{GrpcClientConfig, create_grpc_client_endpoint};
use datafusion::common::{Result, config_datafusion_err};
use url::Url;

use super::identity::Identity;

/// A scheduler's port, unless its address names one.
const PORT: u16 = 50050;

/// How long a scheduler may take to answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Where a scheduler's services are, from its address, for callers with this identity.
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

/// A client of a cluster's HTTP services, which gives up after 10 seconds.
///
/// # Errors
/// A configuration error, if there can be none.
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
/// A configuration error for an address that is none.
pub fn endpoint(url: &str, identity: Option<&Identity>) -> Result<tonic::transport::Endpoint> {
    let config = GrpcClientConfig::default();
    let wrong = |error: tonic::transport::Error| config_datafusion_err!("'{url}': {}", innermost(&error));
    let plain = create_grpc_client_endpoint(address(url, None), Some(&config)).map_err(wrong)?;
    match identity {
        Some(identity) => identity.secured(&plain, &config).map_err(wrong),
        None => Ok(plain),
    }
}

/// The cause that says most: those around it name the request.
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
