//! Who may connect: passwords, certificates, and the addresses that are listened on.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::common::config_datafusion_err;
use datafusion::error::Result;
use pgwire::api::auth::sasl::scram::{SCRAM_ITERATIONS, ScramAuth, gen_salted_password};
use pgwire::api::auth::{AuthSource, LoginInfo, Password};
use pgwire::error::PgWireResult;
use pgwire::tokio::TlsAcceptor;
use pgwire::tokio::tokio_rustls::rustls::ServerConfig;
use pgwire::tokio::tokio_rustls::rustls::crypto::ring;
use pgwire::tokio::tokio_rustls::rustls::pki_types::pem::PemObject;
use pgwire::tokio::tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Who may connect, and from where.
#[derive(Debug, clap::Args)]
pub(crate) struct AccessArgs {
    /// Address to listen on; one that other machines reach needs --password-file and --tls-cert, or --insecure
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    bind_host: IpAddr,

    /// Port to listen on; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 5432)]
    bind_port: u16,

    /// File of lines 'user:password', which only its owner may read; without one everybody who reaches the address is let in
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,

    /// Certificate of this server in PEM, with those of the authorities in between; clients without TLS are refused
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// Private key of --tls-cert in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// Listens on addresses that other machines reach, although passwords or TLS are missing
    #[arg(long)]
    insecure: bool,

    /// Address and port at which /metrics (Prometheus' text) and /healthz answer over HTTP, such as 127.0.0.1:9187 [default: none]
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics_bind: Option<SocketAddr>,
}

impl AccessArgs {
    pub(super) fn address(&self) -> SocketAddr {
        SocketAddr::new(self.bind_host, self.bind_port)
    }

    pub(super) fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics_bind
    }

    /// Whom the server lets in.
    ///
    /// # Errors
    /// Files that cannot be read or are not what their options say, and an address that needs more of them.
    pub(super) fn access(&self) -> Result<Access> {
        self.check_addresses()?;
        let passwords = self.password_file.as_deref().map(Passwords::read).transpose()?;
        let tls = match (&self.tls_cert, &self.tls_key) {
            (Some(certificate), Some(key)) => Some(Tls::read(certificate, key)?),
            _ => None,
        };
        Ok(Access {
            passwords: passwords.map(Arc::new),
            tls,
        })
    }

    fn check_addresses(&self) -> Result<()> {
        let is_open = |address: IpAddr| !self.insecure && !address.to_canonical().is_loopback();
        let missing = match (&self.password_file, &self.tls_cert) {
            (None, None) => "--password-file, --tls-cert and --tls-key",
            (None, Some(_)) => "--password-file",
            (Some(_), None) => "--tls-cert and --tls-key",
            (Some(_), Some(_)) => "",
        };
        if is_open(self.bind_host) && !missing.is_empty() {
            return Err(config_datafusion_err!(
                "--bind-host {} opens this process to other machines: give it {missing} too; bind it to 127.0.0.1; or give \
                 --insecure if the network lets only trusted users through",
                self.bind_host
            ));
        }
        match self.metrics_bind {
            Some(address) if is_open(address.ip()) => Err(config_datafusion_err!(
                "--metrics-bind {address} opens the metrics to other machines, and asks nobody who they are: bind them to \
                 127.0.0.1, or give --insecure if the network lets only trusted users through"
            )),
            _ => Ok(()),
        }
    }
}

/// Whom the server lets in.
#[derive(Debug, Clone)]
pub(super) struct Access {
    /// `None`: everybody.
    pub(super) passwords: Option<Arc<Passwords>>,
    /// `None`: connections are in the clear.
    pub(super) tls: Option<Tls>,
}

/// The certificate that the server shows.
#[derive(Clone)]
pub(super) struct Tls {
    pub(super) acceptor: TlsAcceptor,
    certificate: Arc<[u8]>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

impl Tls {
    fn read(certificate: &Path, key: &Path) -> Result<Self> {
        let wrong = |option: &str, file: &Path, error: &dyn fmt::Display| {
            config_datafusion_err!("{option} '{}': {error}", file.display())
        };
        let of_certificate = |error: &dyn fmt::Display| wrong("--tls-cert", certificate, error);
        let of_key = |error: &dyn fmt::Display| wrong("--tls-key", key, error);
        let pem = std::fs::read(certificate).map_err(|error| of_certificate(&error))?;
        let chain: Vec<_> = CertificateDer::pem_slice_iter(&pem)
            .collect::<Result<_, _>>()
            .map_err(|error| of_certificate(&error))?;
        if chain.is_empty() {
            return Err(of_certificate(&"there is no certificate in it"));
        }
        let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| of_key(&error))?;
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| of_certificate(&error))?
            .with_no_client_auth()
            .with_single_cert(chain, secret)
            .map_err(|error| of_key(&error))?;
        config.alpn_protocols = vec![b"postgresql".to_vec()];
        Ok(Self {
            acceptor: TlsAcceptor::from(Arc::new(config)),
            certificate: pem.into(),
        })
    }
}

/// What the server knows of the users' passwords: salts, and passwords hashed with them.
pub(super) struct Passwords {
    salted: HashMap<String, Password>,
    /// Stands in for the salt of a user that does not exist: as long as the server runs a name has one salt.
    secret: [u8; 32],
}

impl fmt::Debug for Passwords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Passwords")
            .field("users", &self.salted.len())
            .finish_non_exhaustive()
    }
}

impl Passwords {
    /// Reads lines `user:password`. Empty lines and those that start with `#` are skipped; a password may hold colons.
    fn read(file: &Path) -> Result<Self> {
        let wrong = |error: &dyn fmt::Display| {
            config_datafusion_err!("--password-file '{}': {error}", file.display())
        };
        let mode = std::fs::metadata(file)
            .map_err(|error| wrong(&error))?
            .permissions()
            .mode();
        if mode & 0o077 != 0 {
            let message = format!(
                "others than its owner may use it (mode {:o}); run chmod 600",
                mode & 0o777
            );
            return Err(wrong(&message));
        }
        let text = std::fs::read_to_string(file).map_err(|error| wrong(&error))?;
        Self::parse(&text).map_err(|message| wrong(&message))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut salted = HashMap::new();
        for (number, line) in text.lines().enumerate() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let number = number + 1;
            let (user, password) = match line.split_once(':') {
                Some((user, password)) if !user.is_empty() && !password.is_empty() => (user, password),
                _ => return Err(format!("line {number} is not 'user:password'")),
            };
            let salt: [u8; 16] = rand::random();
            let hash = gen_salted_password(password, &salt, SCRAM_ITERATIONS);
            if salted
                .insert(user.to_string(), Password::new(Some(salt.to_vec()), hash))
                .is_some()
            {
                return Err(format!(
                    "line {number} has a second password of the user '{user}'"
                ));
            }
        }
        match salted.is_empty() {
            true => Err("there is no user in it".to_string()),
            false => Ok(Self {
                salted,
                secret: rand::random(),
            }),
        }
    }

    /// How a connection proves that it knows a password. One over TLS is bound to the server's certificate, if the client can.
    pub(super) fn scram(self: &Arc<Self>, tls: Option<&Tls>) -> ScramAuth {
        let mut scram = ScramAuth::new(Arc::clone(self) as Arc<dyn AuthSource>);
        if let Some(tls) = tls
            && let Err(error) = scram.configure_certificate(&tls.certificate)
        {
            log::debug!("connections are not bound to the certificate: {error}");
        }
        scram
    }
}

#[async_trait]
impl AuthSource for Passwords {
    /// A user that does not exist has a password that nobody knows, so that its connection fails as one with a wrong password.
    async fn get_password(&self, login: &LoginInfo) -> PgWireResult<Password> {
        let user = login.user().unwrap_or_default();
        Ok(self.salted.get(user).cloned().unwrap_or_else(|| {
            let mut salt = gen_salted_password(user, &self.secret, 1);
            salt.truncate(16);
            let unknown: [u8; 32] = rand::random();
            Password::new(Some(salt), unknown.to_vec())
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        access: AccessArgs,
    }

    fn access(options: &[&str]) -> AccessArgs {
        let line = ["serve"].into_iter().chain(options.iter().copied());
        <Line as clap::Parser>::try_parse_from(line).unwrap().access
    }

    #[test]
    fn other_machines_need_passwords_and_tls() {
        let with = |options: &[&str]| {
            access(options)
                .check_addresses()
                .map_err(|error| error.to_string())
        };
        assert!(with(&[]).is_ok());
        assert!(with(&["--bind-host", "::1"]).is_ok());
        assert!(with(&["--metrics-bind", "127.0.0.1:1"]).is_ok());
        let open = ["--bind-host", "0.0.0.0"];
        let error = with(&open).unwrap_err();
        assert!(
            error.contains("give it --password-file, --tls-cert and --tls-key too"),
            "{error}"
        );
        let error = with(&[&open[..], &["--password-file", "p"]].concat()).unwrap_err();
        assert!(error.contains("give it --tls-cert and --tls-key too"), "{error}");
        let error = with(&[&open[..], &["--tls-cert", "c", "--tls-key", "k"]].concat()).unwrap_err();
        assert!(error.contains("give it --password-file too"), "{error}");
        assert!(with(&[&open[..], &["--insecure"]].concat()).is_ok());
        let all = ["--password-file", "p", "--tls-cert", "c", "--tls-key", "k"];
        assert!(with(&[&open[..], &all].concat()).is_ok());
        let error = with(&["--metrics-bind", "10.0.0.1:1"]).unwrap_err();
        assert!(error.contains("opens the metrics to other machines"), "{error}");
    }

    #[test]
    fn passwords_are_lines_of_a_file_that_only_its_owner_reads() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("passwords");
        for (text, mode, expected) in [
            ("ann:a:b\n# bob:x\n\nbob:c\n", 0o600, None),
            (
                "ann:a\n",
                0o640,
                Some("others than its owner may use it (mode 640)"),
            ),
            (
                "ann:a\nann:b\n",
                0o600,
                Some("line 2 has a second password of the user 'ann'"),
            ),
            ("ann\n", 0o600, Some("line 1 is not 'user:password'")),
            (":a\n", 0o600, Some("line 1 is not 'user:password'")),
            ("# nobody\n", 0o600, Some("there is no user in it")),
        ] {
            std::fs::write(&file, text).unwrap();
            std::fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            let read = Passwords::read(&file).map_err(|error| error.to_string());
            match expected {
                None => assert_eq!(read.unwrap().salted.len(), 2),
                Some(expected) => {
                    let error = read.unwrap_err();
                    assert!(error.contains(expected), "{error}");
                }
            }
        }
    }
}
