//! HTTP to the endpoints of a control plane: addresses, TLS, and one request.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use http::header::{AUTHORIZATION, CONTENT_TYPE, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request, Uri};
use hyper_rustls::{ConfigBuilderExt as _, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use k8s_openapi::ByteString;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use crate::api::shared_volume_provider::Transport;

use super::error::CallError;
use super::session::Settings;
use super::wire::Refusal;

/// Port of the API where a URL names none.
const DEFAULT_PORT: u16 = 5705;
/// More than the volumes of any namespace take.
const ANSWER_MAX: usize = 64 << 20;
/// What is told of an error's words.
const WORDS: usize = 200;
const AGENT: &str = concat!("bulkhead/", env!("CARGO_PKG_VERSION"));

/// What one request asks for.
pub(super) struct Call<'a> {
    /// In words.
    pub name: &'static str,
    pub method: Method,
    /// Below the base URL, such as `/v2/namespaces`.
    pub path: &'a str,
    /// JSON, or nothing.
    pub body: Vec<u8>,
}

/// A good answer.
pub(super) struct Answer {
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// Base URL of an endpoint as it is asked: scheme, host and port.
///
/// # Errors
/// When it is no such URL. The schema sees to it that it is.
pub(super) fn base(url: &str) -> Result<String, CallError> {
    let wrong = || {
        CallError::Settings(format!(
            "{url:?} cannot be used: give scheme, host and perhaps port, such as https://storageos:5705"
        ))
    };
    let parts = url.parse::<Uri>().map_err(|_| wrong())?.into_parts();
    let scheme = parts.scheme.filter(|scheme| ["http", "https"].contains(&scheme.as_str())).ok_or_else(wrong)?;
    let authority = parts.authority.filter(|authority| !authority.as_str().contains('@')).ok_or_else(wrong)?;
    if parts.path_and_query.is_some_and(|path| path != "/") {
        return Err(wrong());
    }
    let port = authority.port_u16().unwrap_or(DEFAULT_PORT);
    Ok(format!("{scheme}://{}:{port}", authority.host()))
}

/// A client of all endpoints of one control plane.
pub(super) struct Http {
    client: Client<HttpsConnector<HttpConnector>, Body>,
    limit: Duration,
}

impl Http {
    /// Nothing is connected yet.
    ///
    /// # Errors
    /// When TLS cannot be set up; the text says what to do.
    pub fn new(settings: &Settings) -> Result<Self, CallError> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_connect_timeout(Some(settings.request_timeout));
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls(settings)?)
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        Ok(Self { client: Client::builder(TokioExecutor::new()).build(connector), limit: settings.request_timeout })
    }

    /// Asks the endpoint at `base`. The status comes with every answer, good or not.
    pub async fn ask(
        &self,
        base: &str,
        call: &Call<'_>,
        bearer: Option<&str>,
    ) -> (Option<u16>, Result<Answer, CallError>) {
        match tokio::time::timeout(self.limit, self.exchange(base, call, bearer)).await {
            Ok(answered) => answered,
            Err(_) => (None, Err(CallError::Timeout { endpoint: base.to_owned(), limit: self.limit })),
        }
    }

    async fn exchange(
        &self,
        base: &str,
        call: &Call<'_>,
        bearer: Option<&str>,
    ) -> (Option<u16>, Result<Answer, CallError>) {
        let request = match request(base, call, bearer) {
            Ok(request) => request,
            Err(error) => return (None, Err(error)),
        };
        let answer = match self.client.request(request).await {
            Ok(answer) => answer,
            Err(error) => return (None, Err(CallError::on_the_way(base, &error))),
        };
        let (parts, body) = answer.into_parts();
        let status = parts.status.as_u16();
        let body = match to_bytes(Body::new(body), ANSWER_MAX).await {
            Ok(body) => body,
            Err(error) => return (Some(status), Err(CallError::on_the_way(base, &error))),
        };
        let answer = if parts.status.is_success() {
            Ok(Answer { headers: parts.headers, body })
        } else {
            Err(CallError::Status { call: call.name, status, words: words(&body) })
        };
        (Some(status), answer)
    }
}

fn request(base: &str, call: &Call<'_>, bearer: Option<&str>) -> Result<Request<Body>, CallError> {
    let malformed = |error: http::Error| CallError::Malformed { call: call.name, why: error.to_string() };
    let mut request = Request::builder().method(call.method.clone()).uri(format!("{base}{}", call.path));
    request = request.header(USER_AGENT, AGENT);
    if !call.body.is_empty() {
        request = request.header(CONTENT_TYPE, "application/json");
    }
    if let Some(bearer) = bearer {
        let mut value = HeaderValue::try_from(format!("Bearer {bearer}")).map_err(|error| malformed(error.into()))?;
        value.set_sensitive(true);
        request = request.header(AUTHORIZATION, value);
    }
    request.body(Body::from(call.body.clone())).map_err(malformed)
}

/// The server's words, or their beginning.
fn words(body: &[u8]) -> String {
    let text = match serde_json::from_slice::<Refusal>(body) {
        Ok(refusal) => refusal.error,
        Err(_) => String::from_utf8_lossy(body.get(..WORDS).unwrap_or(body)).into_owned(),
    };
    text.chars().filter(|c| !c.is_control()).take(WORDS).collect()
}

fn tls(settings: &Settings) -> Result<ClientConfig, CallError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| CallError::Settings(format!("TLS: {error}")))?;
    let builder = match (settings.transport, &settings.ca_bundle) {
        (Transport::Plaintext, _) => builder.with_root_certificates(RootCertStore::empty()),
        (Transport::TLSWithoutVerification, _) => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(Unverified(provider)))
        }
        (Transport::TLS, Some(bundle)) => builder.with_root_certificates(roots(bundle).ok_or_else(|| {
            CallError::Settings(
                "spec.caBundle has no certificate: give the base64 of certificates in PEM form".to_owned(),
            )
        })?),
        (Transport::TLS, None) => builder.with_native_roots().map_err(|error| {
            CallError::Settings(format!("no certificate authority in this image ({error}): give one in spec.caBundle"))
        })?,
    };
    Ok(builder.with_no_client_auth())
}

/// None without any certificate, or with one that is broken.
fn roots(bundle: &str) -> Option<RootCertStore> {
    let ByteString(pem) = serde_json::from_value(bundle.into()).ok()?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        roots.add(certificate.ok()?).ok()?;
    }
    (!roots.is_empty()).then_some(roots)
}

/// Takes every certificate, for `transport: TLSWithoutVerification`.
#[derive(Debug)]
struct Unverified(Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_without_a_port_has_the_default_one() {
        for (url, expected) in [
            ("https://storageos.storageos.svc", "https://storageos.storageos.svc:5705"),
            ("http://10.0.9.4:80/", "http://10.0.9.4:80"),
            ("https://[fd00::b]", "https://[fd00::b]:5705"),
        ] {
            assert_eq!(base(url).unwrap(), expected);
        }
        for url in ["storageos", "ftp://storageos", "https://storageos/v2", "https://user:word@storageos"] {
            assert_eq!(base(url).unwrap_err().reason(), "CertificateInvalid", "{url}");
        }
    }

    #[test]
    fn the_words_of_an_error_are_short_and_on_one_line() {
        assert_eq!(words(br#"{"error":"stale\nwrite"}"#), "stalewrite");
        assert_eq!(words("x".repeat(5000).as_bytes()).len(), WORDS);
    }

    #[test]
    fn a_bundle_without_certificates_is_told() {
        let settings = Settings { ca_bundle: Some("bm90aGluZw==".into()), ..Settings::default() };
        assert!(tls(&settings).unwrap_err().to_string().contains("spec.caBundle"));
    }
}
