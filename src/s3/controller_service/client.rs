//! The three things that S3 is asked for, each one signed request.
//!
//! The answers' own words are not passed on: some servers put keys and what was signed into them.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_sigv4::http_request::{
    PayloadChecksumKind, PercentEncodingMode, SignableBody, SignableRequest, SigningSettings, UriPathNormalizationMode,
    sign,
};
use aws_sigv4::sign::v4;
use axum::body::{Body, to_bytes};
use http::{Method, Request, StatusCode, Uri};
use hyper_rustls::{ConfigBuilderExt, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use crate::api::text::causes;
use crate::s3::keys::Keys;

/// The external-provisioner gives a call 10 s. Our own end comes before, so that the Event says what was tried.
const DEADLINE: Duration = Duration::from_secs(8);
/// More than any error of S3 has.
const ERROR_MAX: usize = 64 << 10;
/// Where buckets are made without saying where.
const DEFAULT_REGION: &str = "us-east-1";
const USER_AGENT: &str = concat!("s3-csi-driver/", env!("CARGO_PKG_VERSION"), " controller");

/// Where S3 is.
#[derive(Clone, Debug)]
pub struct Endpoint {
    scheme: String,
    authority: String,
    region: String,
    /// Those of the system without it.
    authorities: Option<RootCertStore>,
}

impl Endpoint {
    /// An S3 server at `url`, of which the certificate is signed by one of `authorities` (PEM) or of the system's.
    ///
    /// # Errors
    /// When the URL or the region is none, or an authority cannot be read.
    pub fn new(url: &str, region: &str, authorities: Option<Vec<u8>>) -> Result<Self, String> {
        // Without the URL itself: somebody may have put a password into it.
        let wrong = || {
            "AWS_ENDPOINT_URL cannot be used: give scheme, host and perhaps port and nothing else, such as \
             https://s3.example.com:8443"
                .to_owned()
        };
        let parts = url.trim().parse::<Uri>().map_err(|_| wrong())?.into_parts();
        let scheme = parts.scheme.filter(|scheme| ["http", "https"].contains(&scheme.as_str())).ok_or_else(wrong)?;
        let authority = parts.authority.filter(|authority| !authority.as_str().contains('@')).ok_or_else(wrong)?;
        if parts.path_and_query.is_some_and(|path| path != "/") {
            return Err(wrong());
        }
        if region.is_empty() || !region.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
            return Err(format!("AWS_REGION is {region:?}: give a region such as {DEFAULT_REGION}"));
        }
        let authorities = authorities.as_deref().map(roots).transpose()?;
        let (scheme, authority) = (scheme.to_string(), authority.to_string());
        Ok(Self { scheme, authority, region: region.to_owned(), authorities })
    }

    /// What TLS trusts. Nothing without TLS: an image without certificates will do then.
    fn trusted(&self) -> Result<ClientConfig, String> {
        let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("TLS: {error}"))?;
        let config = match &self.authorities {
            None if self.scheme == "http" => config.with_root_certificates(RootCertStore::empty()),
            // Its own words are in the log; they are a dump of structs.
            None => config.with_native_roots().map_err(|_| {
                "no certificate authority in this image: name a file with that of the S3 server in AWS_CA_BUNDLE, and \
                 restart the controller"
            })?,
            Some(authorities) => config.with_root_certificates(authorities.clone()),
        };
        Ok(config.with_no_client_auth())
    }
}

/// The certificates in a file; each must be whole.
fn roots(pem: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let added = certificate
            .map_err(|error| error.to_string())
            .and_then(|certificate| roots.add(certificate).map_err(|error| error.to_string()));
        added
            .map_err(|error| format!("the file that AWS_CA_BUNDLE names has a certificate that is broken: {error}"))?;
    }
    if roots.is_empty() {
        return Err(
            "the file that AWS_CA_BUNDLE names has no certificate in PEM form: give that of the authority which \
                    signed the S3 server's"
                .to_owned(),
        );
    }
    Ok(roots)
}

/// What became of a bucket that was to be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// It is gone.
    Done,
    /// There was none.
    Missing,
    /// It stays: there are objects in it, old versions of some, or parts of an upload.
    NotEmpty,
}

/// Why S3 did not do what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum S3Error {
    /// No answer.
    #[error("S3 at {endpoint} does not answer: {why}")]
    Silent {
        /// Where it was asked.
        endpoint: String,
        /// What went wrong on the way.
        why: String,
    },
    /// It cannot be asked.
    #[error("S3 at {endpoint} is not asked: {why}")]
    Untrusted {
        /// Where it is.
        endpoint: String,
        /// What TLS lacks, and what to do.
        why: String,
    },
    /// An answer that is an error.
    #[error("S3 at {endpoint} answers {status} {code}")]
    Refused {
        /// Where it was asked.
        endpoint: String,
        /// HTTP status.
        status: StatusCode,
        /// S3's name of the error; empty where there is none.
        code: String,
    },
    /// The request could not be signed.
    #[error("the request to S3 cannot be signed")]
    Unsigned,
}

impl S3Error {
    /// S3's name of the error; empty where there is none.
    pub(super) fn code(&self) -> &str {
        match self {
            Self::Refused { code, .. } => code,
            _ => "",
        }
    }
}

/// A client of one S3 server. Cheap to clone.
#[derive(Clone)]
pub struct S3 {
    endpoint: Endpoint,
    /// Why there is none is told to whoever asks for a bucket, and so in an Event: the log of a plugin that does not start is
    /// read by few.
    http: Result<Client<HttpsConnector<HttpConnector>, Body>, String>,
}

impl S3 {
    /// Nothing is connected yet.
    pub fn new(endpoint: Endpoint) -> Self {
        let http = endpoint.trusted().map(|trusted| {
            let connector =
                HttpsConnectorBuilder::new().with_tls_config(trusted).https_or_http().enable_http1().build();
            Client::builder(TokioExecutor::new()).build(connector)
        });
        if let Err(why) = &http {
            tracing::warn!(endpoint = endpoint.authority, "S3 cannot be asked: {why}");
        }
        Self { endpoint, http }
    }

    /// Makes a bucket; one that was made with these keys earlier will do.
    ///
    /// # Errors
    /// When S3 does not, or the bucket is somebody else's.
    pub async fn create_bucket(&self, bucket: &str, keys: &Keys) -> Result<(), S3Error> {
        match self.ask(Method::PUT, bucket, self.location(), keys).await {
            Err(error) if error.code() == "BucketAlreadyOwnedByYou" => Ok(()),
            done => done,
        }
    }

    /// Whether there is such a bucket, and the keys may use it.
    ///
    /// # Errors
    /// When S3 does not say.
    pub async fn has_bucket(&self, bucket: &str, keys: &Keys) -> Result<bool, S3Error> {
        match self.ask(Method::HEAD, bucket, String::new(), keys).await {
            Ok(()) => Ok(true),
            Err(S3Error::Refused { status: StatusCode::NOT_FOUND, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Deletes a bucket if it is empty.
    ///
    /// # Errors
    /// When S3 does not, for another reason than that there are objects in it.
    pub async fn delete_bucket(&self, bucket: &str, keys: &Keys) -> Result<Deletion, S3Error> {
        match self.ask(Method::DELETE, bucket, String::new(), keys).await {
            Ok(()) => Ok(Deletion::Done),
            Err(error) if error.code() == "NoSuchBucket" => Ok(Deletion::Missing),
            Err(error) if error.code() == "BucketNotEmpty" => Ok(Deletion::NotEmpty),
            Err(error) => Err(error),
        }
    }

    /// The default region must not be named, any other must.
    fn location(&self) -> String {
        match self.endpoint.region.as_str() {
            DEFAULT_REGION => String::new(),
            region => format!(
                "<CreateBucketConfiguration xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
                 <LocationConstraint>{region}</LocationConstraint></CreateBucketConfiguration>"
            ),
        }
    }

    async fn ask(&self, method: Method, bucket: &str, body: String, keys: &Keys) -> Result<(), S3Error> {
        let request = self.signed(method, bucket, body, keys).ok_or(S3Error::Unsigned)?;
        match tokio::time::timeout(DEADLINE, self.answer(request)).await {
            Ok(answered) => answered,
            Err(_) => Err(self.silent(format!("nothing within {} s", DEADLINE.as_secs()))),
        }
    }

    async fn answer(&self, request: Request<Body>) -> Result<(), S3Error> {
        let http = self.http.as_ref().map_err(|why| self.untrusted(why))?;
        let answer = http.request(request).await.map_err(|error| self.silent(causes(&error)))?;
        let status = answer.status();
        if status.is_success() {
            return Ok(());
        }
        let text = to_bytes(Body::new(answer.into_body()), ERROR_MAX).await.unwrap_or_default();
        let code = error_code(&String::from_utf8_lossy(&text)).unwrap_or_default().to_owned();
        Err(S3Error::Refused { endpoint: self.endpoint.authority.clone(), status, code })
    }

    fn untrusted(&self, why: &str) -> S3Error {
        S3Error::Untrusted { endpoint: self.endpoint.authority.clone(), why: why.to_owned() }
    }

    fn silent(&self, why: String) -> S3Error {
        S3Error::Silent { endpoint: self.endpoint.authority.clone(), why }
    }

    fn signed(&self, method: Method, bucket: &str, body: String, keys: &Keys) -> Option<Request<Body>> {
        let Endpoint { scheme, authority, region, .. } = &self.endpoint;
        let mut settings = SigningSettings::default();
        settings.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
        settings.percent_encoding_mode = PercentEncodingMode::Single;
        settings.uri_path_normalization_mode = UriPathNormalizationMode::Disabled;
        let identity = aws_credential_types::Credentials::new(
            keys.id(),
            keys.secret(),
            keys.token().map(str::to_owned),
            None,
            "bulkhead",
        )
        .into();
        let parameters = v4::SigningParams::builder()
            .identity(&identity)
            .region(region)
            .name("s3")
            .time(SystemTime::now())
            .settings(settings)
            .build()
            .ok()?
            .into();
        let uri = format!("{scheme}://{authority}/{bucket}");
        let headers = std::iter::empty();
        let signable =
            SignableRequest::new(method.as_str(), &uri, headers, SignableBody::Bytes(body.as_bytes())).ok()?;
        let (instructions, _) = sign(signable, &parameters).ok()?.into_parts();
        let request = Request::builder().method(method).uri(&uri).header(http::header::USER_AGENT, USER_AGENT);
        let mut request = request.body(Body::from(body)).ok()?;
        instructions.apply_to_request_http1x(&mut request);
        Some(request)
    }
}

/// The code in S3's `<Error><Code>NoSuchBucket</Code>…`: a word, if it is one.
pub fn error_code(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("<Code>")?;
    let (code, _) = rest.split_once("</Code>")?;
    (code.len() <= 64 && code.bytes().all(|byte| byte.is_ascii_alphanumeric())).then_some(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_scheme_and_a_host() {
        for url in ["https://s3.example.com", "http://127.0.0.1:9000/", " https://[::1]:8443 "] {
            assert!(Endpoint::new(url, "us-east-1", None).is_ok(), "{url}");
        }
        for url in ["", "s3.example.com", "ftp://s3", "https://s3/buckets", "https://key:secret@s3", "https://s3?x"] {
            let wrong = Endpoint::new(url, "us-east-1", None).expect_err(url);
            assert!(wrong.contains("AWS_ENDPOINT_URL") && !wrong.contains("secret"), "{wrong}");
        }
        assert!(Endpoint::new("https://s3", "<x>", None).expect_err("region").contains("AWS_REGION"));
    }

    #[test]
    fn a_file_without_certificates_is_told() {
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for (text, said) in [("nothing", "no certificate"), (broken, "broken")] {
            let wrong = Endpoint::new("https://s3", "us-east-1", Some(text.into())).expect_err(said);
            assert!(wrong.contains("AWS_CA_BUNDLE") && wrong.contains(said), "{wrong}");
        }
    }

    #[tokio::test]
    async fn without_authorities_each_call_says_what_to_do() {
        let endpoint = Endpoint::new("https://s3:8443", "us-east-1", None).expect("endpoint");
        let s3 = S3 { endpoint, http: Err("no certificate authority: set AWS_CA_BUNDLE".to_owned()) };
        let keys = Keys::new("KEY", "secret", None).expect("keys");
        let refused = s3.create_bucket("bucket", &keys).await.expect_err("nobody is trusted");
        assert_eq!(refused.to_string(), "S3 at s3:8443 is not asked: no certificate authority: set AWS_CA_BUNDLE");
    }

    #[test]
    fn only_a_word_is_taken_from_an_error() {
        let answer = "<Error><Code>SignatureDoesNotMatch</Code><StringToSign>hunter2</StringToSign></Error>";
        assert_eq!(error_code(answer), Some("SignatureDoesNotMatch"));
        assert_eq!(error_code("<Code>a b</Code>"), None);
        assert_eq!(error_code("<html>"), None);
    }

    #[test]
    fn a_region_is_named_where_it_is_not_the_default() {
        let s3 = |region| S3::new(Endpoint::new("http://s3", region, None).expect("endpoint"));
        assert_eq!(s3("us-east-1").location(), "");
        assert!(s3("eu-west-3").location().contains("<LocationConstraint>eu-west-3<"));
    }
}
