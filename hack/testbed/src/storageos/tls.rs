//! TLS with a certificate that an authority of its own signed.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::serve::Listener;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// How long a client may take to shake hands.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// A certificate for 127.0.0.1, and who vouches for it.
#[derive(Clone, Debug)]
pub struct Tls {
    authority: String,
    certificate: String,
    key: String,
}

impl Tls {
    /// Makes an authority, and a certificate that it signed.
    ///
    /// # Errors
    /// When no key can be made.
    pub fn create() -> Result<Self, rcgen::Error> {
        let authority_key = KeyPair::generate()?;
        let mut authority = CertificateParams::new(Vec::new())?;
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = authority.self_signed(&authority_key)?;
        let issuer = Issuer::new(authority, authority_key);
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(Vec::new())?;
        params.subject_alt_names.push(SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        let certificate = params.signed_by(&key, &issuer)?;
        Ok(Self { authority: root.pem(), certificate: certificate.pem(), key: key.serialize_pem() })
    }

    /// The authority's certificate in PEM form, for `spec.caBundle`.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    pub(super) fn listener(&self, tcp: TcpListener) -> io::Result<TlsListener> {
        let invalid = |error: &dyn std::fmt::Display| io::Error::new(io::ErrorKind::InvalidData, error.to_string());
        let certificate =
            CertificateDer::from_pem_slice(self.certificate.as_bytes()).map_err(|error| invalid(&error))?;
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).map_err(|error| invalid(&error))?;
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| invalid(&error))?
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .map_err(|error| invalid(&error))?;
        Ok(TlsListener { tcp, acceptor: TlsAcceptor::from(Arc::new(config)) })
    }
}

/// Accepts connections that shake hands.
pub(super) struct TlsListener {
    tcp: TcpListener,
    acceptor: TlsAcceptor,
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let Ok((stream, address)) = self.tcp.accept().await else { continue };
            // A client that does not trust us hangs up.
            if let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE, self.acceptor.accept(stream)).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}
