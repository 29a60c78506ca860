//! The verifier of servers' certificates that all have one name, whatever the address of the machine.

use std::sync::Arc;

use datafusion::common::{Result, config_datafusion_err};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, Error, SignatureScheme};

/// The verifier of servers' certificates. They must have the name `name`; if it is `None`, the name that the client connects to.
#[derive(Debug)]
pub(super) struct NamedServers {
    servers: Arc<WebPkiServerVerifier>,
    name: Option<ServerName<'static>>,
}

impl NamedServers {
    pub(super) fn new(servers: Arc<WebPkiServerVerifier>, name: Option<&'static str>) -> Result<Self> {
        let name = name.map(ServerName::try_from).transpose();
        let name = name.map_err(|error| config_datafusion_err!("the name of certificates: {error}"))?;
        Ok(Self { servers, name })
    }
}

impl ServerCertVerifier for NamedServers {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        asked: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let name = self.name.as_ref().unwrap_or(asked);
        self.servers
            .verify_server_cert(certificate, intermediates, name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.servers
            .verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.servers
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.servers.supported_verify_schemes()
    }
}
