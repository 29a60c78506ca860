//! Who may reach a process of the cluster, and who may read its files.

use std::fs::DirBuilder;
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use datafusion::common::{Result, config_datafusion_err};
use datafusion_quantiles::ballista::{Access, Identity, StoreLimits};
use url::Url;

use crate::console::End;

/// Read, write and enter for the owner, nothing for anybody else.
pub(super) const OWNER_ONLY: u32 = 0o700;

/// How the processes of a cluster know each other: the same options for all of its commands.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct CredentialArgs {
    /// Certificate of this process in PEM, by the authority of --tls-ca, for use by servers and by clients; connections are TLS
    #[arg(long, value_name = "FILE", requires_all = ["tls_key", "tls_ca"], conflicts_with = "token_file")]
    tls_cert: Option<PathBuf>,

    /// Private key of --tls-cert in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// Certificate in PEM of the authority whose certificates all processes of the cluster and its clients show
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_ca: Option<PathBuf>,

    /// File with a secret that all processes of the cluster and its clients know, such as one by 'openssl rand -hex 32', in
    /// the place of certificates: connections are TLS too
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl CredentialArgs {
    /// Whether there are any.
    pub(crate) fn are_given(&self) -> bool {
        self.tls_cert.is_some() || self.token_file.is_some()
    }

    /// What the process shows to others and asks of them.
    ///
    /// # Errors
    /// Files that cannot be read, or are not what their options say.
    pub(crate) fn identity(&self) -> Result<Option<Identity>> {
        let wrong = |option: &str, file: &Path, error: &dyn std::fmt::Display| {
            config_datafusion_err!("{option} '{}': {error}", file.display())
        };
        let read =
            |option: &str, file: &PathBuf| std::fs::read(file).map_err(|error| wrong(option, file, &error));
        if let Some(file) = &self.token_file {
            let token = String::from_utf8(read("--token-file", file)?)
                .map_err(|error| wrong("--token-file", file, &error))?;
            return Ok(Some(Identity::from_token(&token).map_err(|error| {
                wrong("--token-file", file, &error.strip_backtrace())
            })?));
        }
        match (&self.tls_cert, &self.tls_key, &self.tls_ca) {
            (Some(certificate), Some(key), Some(authority)) => Ok(Some(Identity::from_pem(
                &read("--tls-cert", certificate)?,
                &read("--tls-key", key)?,
                &read("--tls-ca", authority)?,
            )?)),
            _ => Ok(None),
        }
    }

    /// The credentials as command-line options, for a process that is started with the same ones.
    pub(super) fn to_args(&self) -> Vec<String> {
        let options = [
            ("--tls-cert", &self.tls_cert),
            ("--tls-key", &self.tls_key),
            ("--tls-ca", &self.tls_ca),
            ("--token-file", &self.token_file),
        ];
        let given = options
            .into_iter()
            .filter_map(|(option, file)| Some((option, file.as_ref()?)));
        given
            .flat_map(|(option, file)| [option.to_owned(), file.to_string_lossy().into_owned()])
            .collect()
    }
}

/// Whom the processes of a cluster serve, and what their plans may reach: the options of all commands that start some.
#[derive(Debug, clap::Args)]
pub(crate) struct AccessArgs {
    /// A store that plans may reach, such as s3://bucket, https://host or file:/// (local files); several times if you like. Link-local
    /// addresses and metadata services are never reached [default: all that the environment gives access to]
    #[arg(long, value_name = "URL", value_parser = parse_store)]
    allow_store: Vec<Url>,

    #[command(flatten)]
    pub(super) credentials: CredentialArgs,
}

impl AccessArgs {
    /// The access of a process that listens on `bind_host`: all stores if none was allowed.
    ///
    /// # Errors
    /// Those of [`CredentialArgs::identity`]; for an address that is not of the loopback interface without credentials, unless
    /// `insecure`.
    pub(super) fn access(self, bind_host: &str, insecure: bool) -> Result<Access, End> {
        let identity = self.credentials.identity()?;
        if identity.is_none() {
            check_bind_host(bind_host, insecure)?;
        }
        let stores = match self.allow_store.is_empty() {
            true => StoreLimits::default(),
            false => StoreLimits::only(self.allow_store),
        };
        Ok(Access { stores, identity })
    }

    /// The access as command-line options, for a process that is started with the same one.
    pub(super) fn to_args(&self) -> Vec<String> {
        let stores = self.allow_store.iter();
        let stores = stores.flat_map(|store| ["--allow-store".to_string(), store.to_string()]);
        stores.chain(self.credentials.to_args()).collect()
    }
}

/// Refuses to listen where other machines can reach a service that does not ask who they are.
///
/// # Errors
/// For an address that is not of the loopback interface, unless `insecure`.
fn check_bind_host(host: &str, insecure: bool) -> Result<(), End> {
    if insecure || is_loopback(host) {
        return Ok(());
    }
    Err(End::error(format!(
        "--bind-host {host} opens this process to other machines, and it asks nobody who they are: whoever reaches it \
         reads and writes files with your rights. Give it a --token-file, or --tls-cert, --tls-key and --tls-ca; bind it \
         to 127.0.0.1; or give --insecure if the network lets only trusted users through"
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
