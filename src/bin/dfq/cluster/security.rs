//! Who may reach a process of the cluster, and who may read its files.

use std::fs::DirBuilder;
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use datafusion_quantiles::ballista::StoreLimits;
use url::Url;

use crate::console::End;

/// Read, write and enter for the owner, nothing for anybody else.
pub(super) const OWNER_ONLY: u32 = 0o700;

/// Refuses to listen where other machines can reach a service that does not ask who they are.
///
/// # Errors
/// For an address that is not of the loopback interface, unless `insecure`.
pub(super) fn check_bind_host(host: &str, insecure: bool) -> Result<(), End> {
    if insecure || is_loopback(host) {
        return Ok(());
    }
    Err(End::error(format!(
        "--bind-host {host} opens this process to other machines, and it asks nobody who they are: whoever reaches it \
         reads and writes files with your rights. Bind it to 127.0.0.1, or give --insecure if the network lets only \
         trusted users through"
    )))
}

fn is_loopback(host: &str) -> bool {
    host.trim_matches(['[', ']'])
        .parse::<IpAddr>()
        .is_ok_and(|address| address.to_canonical().is_loopback())
}

/// The URL of a store that `--allow-store` names.
///
/// # Errors
/// A text that says what is wrong with the store, and which forms are allowed.
pub(super) fn parse_store(text: &str) -> Result<Url, String> {
    let allowed = "expected s3://bucket, http://host, https://host:port or file:///";
    let url = Url::parse(text).map_err(|error| format!("{error}: {allowed}"))?;
    let is_root = matches!(url.path(), "" | "/");
    match (url.scheme(), url.host_str()) {
        ("file", None) | ("s3" | "s3a" | "http" | "https", Some(_)) if is_root => Ok(url),
        _ if !is_root => Err(format!("a path is no limit: {allowed}")),
        _ => Err(allowed.to_string()),
    }
}

/// The stores that were allowed; all, if none was named.
pub(super) fn store_limits(allowed: Vec<Url>) -> StoreLimits {
    match allowed.is_empty() {
        true => StoreLimits::default(),
        false => StoreLimits::only(allowed),
    }
}

/// Makes a folder, and those around it that are missing, for the owner alone. One that exists keeps its permissions.
pub(super) fn make_private_folder(folder: &Path) -> Result<(), End> {
    let made = DirBuilder::new().recursive(true).mode(OWNER_ONLY).create(folder);
    made.map_err(|error| End::error(format!("cannot make the folder '{}': {error}", folder.display())))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_loopback_is_bound_without_being_told_that_it_is_insecure() {
        for host in ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "::ffff:127.0.0.1"] {
            assert!(check_bind_host(host, false).is_ok(), "{host}");
        }
        for host in [
            "0.0.0.0",
            "::",
            "192.168.1.4",
            "[::]",
            "::ffff:10.0.0.1",
            "localhost.example",
        ] {
            assert!(check_bind_host(host, false).is_err(), "{host}");
            assert!(check_bind_host(host, true).is_ok(), "{host}");
        }
    }

    #[test]
    fn stores_to_allow_are_roots() {
        for text in [
            "s3://bucket",
            "s3://bucket/",
            "https://host:444",
            "http://host",
            "file:///",
        ] {
            assert!(parse_store(text).is_ok(), "{text}");
        }
        for text in [
            "bucket",
            "s3://bucket/path",
            "file:///data",
            "ftp://host",
            "https://",
        ] {
            assert!(
                parse_store(text).unwrap_err().contains("expected s3://bucket"),
                "{text}"
            );
        }
    }

    #[test]
    fn work_folders_are_the_owners_alone() {
        let mode = |folder: &Path| folder.metadata().unwrap().permissions().mode() & 0o777;
        let root = tempfile::tempdir().unwrap();
        let new = root.path().join("work/executor-1");
        make_private_folder(&new).unwrap();
        assert_eq!((mode(&new), mode(&root.path().join("work"))), (0o700, 0o700));
        std::fs::set_permissions(&new, Permissions::from_mode(0o755)).unwrap();
        make_private_folder(&new).unwrap();
        assert_eq!(mode(&new), 0o755);
    }
}
