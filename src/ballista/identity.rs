//! Identities of a cluster's members: certificates, or a token that certificates are made from.

use std::fmt;
use std::sync::Arc;

use ballista_core::extension::{EndpointOverrideFn, SessionConfigExt};
use ballista_core::utils::{GrpcClientConfig, create_grpc_client_endpoint};
use datafusion::common::{Result, config_datafusion_err, config_err};
use datafusion::prelude::SessionConfig;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::client::WebPkiServerVerifier;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use sha2::{Digest, Sha256};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};

use super::named::NamedServers;

/// The name in every certificate that is made from a token, whatever its machine.
const MEMBER: &str = "datafusion-quantiles-cluster";

/// Fewest characters of a token: 32 hexadecimal digits hold 128 random bits.
const SHORTEST_TOKEN: usize = 32;

/// Prefix of the token in the hash that gives the authority's key. It keeps the key different from any other hash of the token.
const LABEL: &[u8] = b"datafusion-quantiles: authority of a cluster, version 1\n";

/// First bytes of an Ed25519 key of 32 bytes in PKCS#8 (RFC 8410, section 7).
const ED25519: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// A certificate with its key, and the authority that has signed the certificates of all members of the cluster.
///
/// A process with an identity speaks only TLS, and only with processes that show a certificate of the same authority.
#[derive(Clone)]
pub struct Identity {
    pem: Arc<Pem>,
    server: Arc<ServerConfig>,
    client: ClientConfig,
}

/// The certificates and the key of an [`Identity`], in PEM.
struct Pem {
    certificate: Vec<u8>,
    key: Vec<u8>,
    authority: Vec<u8>,
    /// The name in all certificates; `None` where each has the name of its machine.
    name: Option<&'static str>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The key stays secret.
        f.debug_struct("Identity")
            .field("name", &self.pem.name)
            .finish_non_exhaustive()
    }
}

impl Identity {
    /// The identity of a certificate (with the certificates between it and the authority, if any), its key, and the authority's
    /// certificate, all in PEM. Certificates name the host or address of their machine, and are for use by servers and by clients.
    ///
    /// # Errors
    /// A configuration error for text that is no certificate or key, and for a certificate that does not fit the key or is not signed by
    /// the authority.
    pub fn from_pem(certificate: &[u8], key: &[u8], authority: &[u8]) -> Result<Self> {
        Self::new(Pem {
            certificate: certificate.to_vec(),
            key: key.to_vec(),
            authority: authority.to_vec(),
            name: None,
        })
    }

    /// The identity of all processes that know a token: at least 32 random characters. White space around them does not count.
    ///
    /// The token gives the key of an authority, with which each process signs a certificate of its own. The token never leaves the
    /// process. An attacker who records connections, or answers in place of a machine, can only guess it; so it must be random.
    ///
    /// # Errors
    /// A configuration error for a shorter token.
    pub fn from_token(token: &str) -> Result<Self> {
        let token = token.trim();
        if token.chars().count() < SHORTEST_TOKEN {
            return config_err!(
                "a token of {} characters can be guessed: at least {SHORTEST_TOKEN} are allowed, drawn at random, such \
                 as those of 'openssl rand -hex 32'",
                token.chars().count()
            );
        }
        Self::new(
            of_token(token).map_err(|error| config_datafusion_err!("no certificate by a token: {error}"))?,
        )
    }

    fn new(pem: Pem) -> Result<Self> {
        let provider = Arc::new(ring::default_provider());
        let authority = authority(&pem.authority)?;
        let chain = certificates(&pem.certificate, "certificate")?;
        let key = PrivateKeyDer::from_pem_slice(&pem.key)
            .map_err(|error| config_datafusion_err!("no private key in PEM: {error}"))?;
        let clients = clients_of(&authority, &provider)?;
        let own = clients.verify_client_cert(&chain[0], &chain[1..], UnixTime::now());
        own.map_err(|error| {
            config_datafusion_err!(
                "the certificate is none of the authority's, or none to be shown by clients: {error}"
            )
        })?;
        let unfit = |error| config_datafusion_err!("the certificate and its key: {error}");
        let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(unfit)?
            .with_client_cert_verifier(clients)
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(unfit)?;
        server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let servers = WebPkiServerVerifier::builder_with_provider(authority, Arc::clone(&provider)).build();
        let servers = servers.map_err(|error| config_datafusion_err!("the authority: {error}"))?;
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(unfit)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(NamedServers::new(servers, pem.name)?))
            .with_client_auth_cert(chain, key)
            .map_err(unfit)?;
        Ok(Self {
            pem: Arc::new(pem),
            server: Arc::new(server),
            client,
        })
    }

    /// The TLS configuration of a server of the cluster. A caller without a certificate is not refused here: the server tells it so. A
    /// caller with a certificate of another authority is refused.
    pub(super) fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.server)
    }

    /// The TLS configuration of a client of the cluster's HTTP services.
    pub(super) fn client(&self) -> ClientConfig {
        self.client.clone()
    }

    /// An endpoint of a gRPC service, over TLS and with this identity instead of plain text.
    pub(super) fn secured(
        &self,
        plain: &Endpoint,
        config: &GrpcClientConfig,
    ) -> Result<Endpoint, tonic::transport::Error> {
        let url = plain.uri().to_string().replacen("http://", "https://", 1);
        let host = plain.uri().host().unwrap_or_default().trim_matches(['[', ']']);
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(&self.pem.authority))
            .identity(tonic::transport::Identity::from_pem(
                &self.pem.certificate,
                &self.pem.key,
            ))
            .domain_name(self.pem.name.unwrap_or(host));
        // The address of an endpoint cannot be changed, so a new one is made. Only endpoints of the scheduler have time limits.
        let endpoint = match plain.get_connect_timeout() {
            Some(_) => create_grpc_client_endpoint(url, Some(config))?,
            None => create_grpc_client_endpoint(url, None)?
                .initial_connection_window_size(Some(config.initial_connection_window_size))
                .initial_stream_window_size(Some(config.initial_stream_window_size)),
        };
        endpoint.tls_config(tls)
    }

    /// The function that Ballista applies to every endpoint before it connects.
    pub(super) fn endpoints(&self, config: &SessionConfig) -> EndpointOverrideFn {
        let (identity, config) = (self.clone(), GrpcClientConfig::from(&config.ballista_config()));
        Arc::new(move |plain| Ok(identity.secured(&plain, &config)?))
    }

    /// The identity that connections of a session show; `None` if they show none.
    pub(super) fn of(config: &SessionConfig) -> Option<Arc<Self>> {
        config.get_extension()
    }
}

/// The configuration with an identity, which all connections of its sessions then show.
pub fn with_identity(config: SessionConfig, identity: &Identity) -> SessionConfig {
    let endpoints = identity.endpoints(&config);
    config
        .with_ballista_override_create_grpc_client_endpoint(endpoints)
        .with_extension(Arc::new(identity.clone()))
}

/// The certificates of a PEM text, at least one.
fn certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => config_err!("no {what} in PEM: expected '-----BEGIN CERTIFICATE-----'"),
        Err(error) => config_err!("no {what} in PEM: {error}"),
    }
}

/// The authority's certificates of a PEM text, at least one.
fn authority(pem: &[u8]) -> Result<Arc<RootCertStore>> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem, "certificate of an authority")? {
        let added = roots.add(certificate);
        added.map_err(|error| config_datafusion_err!("the certificate of the authority: {error}"))?;
    }
    Ok(Arc::new(roots))
}

/// The verifier of clients' certificates. It also lets in clients without a certificate.
fn clients_of(
    authority: &Arc<RootCertStore>,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>> {
    let checked = WebPkiClientVerifier::builder_with_provider(Arc::clone(authority), Arc::clone(provider))
        .allow_unauthenticated()
        .build();
    checked.map_err(|error| config_datafusion_err!("the authority: {error}"))
}

/// A new certificate, signed by the authority whose key the token gives.
fn of_token(token: &str) -> Result<Pem, rcgen::Error> {
    let seed = Sha256::new().chain_update(LABEL).chain_update(token).finalize();
    let key = PrivatePkcs8KeyDer::from([ED25519.as_slice(), seed.as_slice()].concat());
    let authority_key = KeyPair::from_pkcs8_der_and_sign_algo(&key, &rcgen::PKCS_ED25519)?;
    let mut authority = CertificateParams::new(Vec::new())?;
    authority.distinguished_name.push(DnType::CommonName, MEMBER);
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let mut member = CertificateParams::new(vec![MEMBER.to_owned()])?;
    member.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    let member_key = KeyPair::generate()?;
    let pem = authority.self_signed(&authority_key)?.pem();
    let member = member.signed_by(&member_key, &Issuer::from_params(&authority, &authority_key))?;
    Ok(Pem {
        certificate: member.pem().into_bytes(),
        key: member_key.serialize_pem().into_bytes(),
        authority: pem.into_bytes(),
        name: Some(MEMBER),
    })
}

#[cfg(test)]
mod tests {
    use rcgen::{Certificate as Signed, SanType};

    use super::*;

    /// An authority: its parameters, key, and certificate.
    struct Authority(CertificateParams, KeyPair, Signed);

    impl Authority {
        fn new() -> Self {
            let mut params = CertificateParams::new(Vec::new()).unwrap();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let key = KeyPair::generate().unwrap();
            let signed = params.self_signed(&key).unwrap();
            Self(params, key, signed)
        }

        /// A certificate for these uses with its key, in PEM.
        fn member(&self, uses: &[ExtendedKeyUsagePurpose]) -> (String, String) {
            let mut params = CertificateParams::new(Vec::new()).unwrap();
            params.subject_alt_names = vec![SanType::IpAddress([127, 0, 0, 1].into())];
            params.extended_key_usages = uses.to_vec();
            let key = KeyPair::generate().unwrap();
            let signed = params
                .signed_by(&key, &Issuer::from_params(&self.0, &self.1))
                .unwrap();
            (signed.pem(), key.serialize_pem())
        }
    }

    fn error(certificate: &str, key: &str, authority: &str) -> String {
        let made = Identity::from_pem(certificate.as_bytes(), key.as_bytes(), authority.as_bytes());
        made.unwrap_err().strip_backtrace()
    }

    #[test]
    fn certificates_fit_their_key_and_authority() {
        let both = [
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let (own, other) = (Authority::new(), Authority::new());
        let (certificate, key) = own.member(&both);
        let made = Identity::from_pem(certificate.as_bytes(), key.as_bytes(), own.2.pem().as_bytes());
        assert!(!format!("{:?}", made.unwrap()).contains("PRIVATE"));
        assert!(error(&certificate, &key, &other.2.pem()).contains("none of the authority's"));
        let (_, other_key) = own.member(&both);
        assert!(error(&certificate, &other_key, &own.2.pem()).contains("its key"));
        let (server, server_key) = own.member(&both[..1]);
        assert!(error(&server, &server_key, &own.2.pem()).contains("shown by clients"));
        assert!(error("", &key, &own.2.pem()).contains("no certificate in PEM"));
        assert!(error(&certificate, &certificate, &own.2.pem()).contains("no private key in PEM"));
        assert!(error(&certificate, &key, &key).contains("no certificate of an authority in PEM"));
    }

    #[test]
    fn short_tokens_are_refused_and_white_space_does_not_count() {
        let short = Identity::from_token(&format!(" {}\n", "a".repeat(31))).unwrap_err();
        assert!(short.to_string().contains("a token of 31 characters"), "{short}");
        let token = "0123456789abcdef0123456789abcdef";
        let authority = |token: &str| Identity::from_token(token).unwrap().pem.authority.clone();
        let key = |pem: &[u8]| {
            let roots = super::authority(pem).unwrap();
            (
                roots.roots[0].subject.clone(),
                roots.roots[0].subject_public_key_info.clone(),
            )
        };
        assert_eq!(key(&authority(token)), key(&authority(&format!("{token}\n"))));
        assert_ne!(key(&authority(token)), key(&authority(&token.replace('0', "1"))));
    }
}
