//! The one error type of the library. What went wrong decides how soon we look again and which
//! metric label it counts under; texts go to logs and conditions, never into labels.

use std::{fmt, time::Duration};

use prometheus_client::encoding::EncodeLabelValue;

/// Result with our [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can stop a step.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The Kubernetes API refused a request or could not be reached.
    #[error("Kubernetes API: {}", Api(.0))]
    Api(#[source] Box<kube::Error>),
    /// A `test` in a JSON patch failed: the object is no longer what the patch was decided on.
    #[error("the object changed since it was read; it is read again")]
    Stale,
    /// A CSI driver answered with a gRPC error.
    #[error("CSI driver: {code:?}: {message}")]
    Csi {
        /// The gRPC code.
        code: tonic::Code,
        /// The driver's own words.
        message: String,
    },
    /// An object or a setting cannot be used as it is; it has to be changed by someone.
    #[error("invalid: {0}")]
    Invalid(String),
    /// A step did not finish in the time it was given. Its outcome is unknown.
    #[error("no result within {0:?}; it is tried again")]
    Deadline(Duration),
    /// A reconcile panicked. This is a defect of ours; other keys are not affected.
    #[error("panic in a reconcile: {0}; please report it")]
    Panic(String),
    /// This replica does not hold the Lease, so it writes nothing.
    #[error("not the leader; the replica that holds the Lease does this")]
    NotLeader,
    /// A file, socket or address that the process needs cannot be used.
    #[error("{context}: {source}")]
    Io {
        /// What was tried, and with which path or address.
        context: String,
        /// Why it failed.
        source: std::io::Error,
    },
}

/// The kind of an [`Error`]: a bounded set, used as metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum ErrorClass {
    /// 409 or [`Error::Stale`]: the object changed or exists already; look again.
    Conflict,
    /// 404: the object or its kind is gone.
    NotFound,
    /// 401 or 403: RBAC or credentials are missing.
    Forbidden,
    /// 429: the server asks for patience.
    Throttled,
    /// Any other 4xx: the request is wrong, for instance refused by a schema.
    Rejected,
    /// 5xx: the server failed.
    Server,
    /// No answer: connection, TLS, decoding, client timeout.
    Transport,
    /// A CSI driver's gRPC error.
    Csi,
    /// See [`Error::Invalid`].
    Invalid,
    /// See [`Error::Deadline`].
    Deadline,
    /// See [`Error::Panic`].
    Panic,
    /// See [`Error::NotLeader`].
    NotLeader,
    /// See [`Error::Io`].
    Io,
}

impl Error {
    /// The bounded kind of this error.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Api(error) => match api_code(error) {
                Some(409) => ErrorClass::Conflict,
                Some(404) => ErrorClass::NotFound,
                Some(401 | 403) => ErrorClass::Forbidden,
                Some(429) => ErrorClass::Throttled,
                Some(500..) => ErrorClass::Server,
                Some(_) => ErrorClass::Rejected,
                None => ErrorClass::Transport,
            },
            Self::Stale => ErrorClass::Conflict,
            Self::Csi { .. } => ErrorClass::Csi,
            Self::Invalid(_) => ErrorClass::Invalid,
            Self::Deadline(_) => ErrorClass::Deadline,
            Self::Panic(_) => ErrorClass::Panic,
            Self::NotLeader => ErrorClass::NotLeader,
            Self::Io { .. } => ErrorClass::Io,
        }
    }

    /// How long to wait before the first retry; repeated failures multiply it.
    pub fn retry_after(&self) -> Duration {
        if let Some(asked) = self.server_asked() {
            return asked;
        }
        match self.class() {
            ErrorClass::Conflict => Duration::from_millis(200),
            ErrorClass::Transport | ErrorClass::Server | ErrorClass::Csi | ErrorClass::Deadline => {
                Duration::from_millis(500)
            }
            ErrorClass::NotFound | ErrorClass::Throttled | ErrorClass::NotLeader | ErrorClass::Io => {
                Duration::from_secs(1)
            }
            ErrorClass::Panic | ErrorClass::Forbidden | ErrorClass::Rejected => Duration::from_secs(5),
            ErrorClass::Invalid => Duration::from_secs(30),
        }
    }

    /// The object changed since it was read, or exists already.
    pub fn is_conflict(&self) -> bool {
        self.class() == ErrorClass::Conflict
    }

    /// The object does not exist (HTTP 404).
    pub fn is_not_found(&self) -> bool {
        self.class() == ErrorClass::NotFound
    }

    /// `retryAfterSeconds` of the answer (API priority and fairness sets it on 429).
    fn server_asked(&self) -> Option<Duration> {
        let Self::Api(error) = self else { return None };
        let kube::Error::Api(status) = error.as_ref() else {
            return None;
        };
        let seconds = status.details.as_ref()?.retry_after_seconds;
        (seconds > 0).then(|| Duration::from_secs(u64::from(seconds)))
    }
}

/// The HTTP code of an API answer; `None` when there was no answer.
pub fn api_code(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

impl From<kube::Error> for Error {
    fn from(error: kube::Error) -> Self {
        Self::Api(Box::new(error))
    }
}

impl From<tonic::Status> for Error {
    fn from(status: tonic::Status) -> Self {
        Self::Csi { code: status.code(), message: status.message().to_owned() }
    }
}

/// Prints an API error by the server's words; kube's own text repeats them in `Debug` form.
struct Api<'a>(&'a kube::Error);

impl fmt::Display for Api<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            kube::Error::Api(status) => {
                write!(f, "{} ({} {})", status.message, status.code, status.reason)
            }
            other => other.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;

    fn api(code: u16) -> Error {
        kube::Error::Api(Status::failure("words", "Reason").with_code(code).boxed()).into()
    }

    #[test]
    fn http_codes_map_to_classes() {
        let cases = [
            (409, ErrorClass::Conflict),
            (404, ErrorClass::NotFound),
            (403, ErrorClass::Forbidden),
            (429, ErrorClass::Throttled),
            (422, ErrorClass::Rejected),
            (503, ErrorClass::Server),
        ];
        for (code, class) in cases {
            assert_eq!(api(code).class(), class, "{code}");
        }
        assert!(api(409).is_conflict() && api(404).is_not_found() && !api(404).is_conflict());
    }

    #[test]
    fn an_error_without_an_answer_is_transport() {
        let error = Error::from(kube::Error::Service("connection refused".into()));
        assert_eq!(error.class(), ErrorClass::Transport);
    }

    #[test]
    fn the_server_decides_how_long_to_wait() {
        let mut status = Status::failure("slow down", "TooManyRequests").with_code(429);
        let details = serde_json::json!({ "retryAfterSeconds": 7 });
        status.details = Some(serde_json::from_value(details).unwrap());
        let error = Error::from(kube::Error::Api(status.boxed()));
        assert_eq!(error.retry_after(), Duration::from_secs(7));
    }

    #[test]
    fn texts_carry_the_servers_words_once() {
        assert_eq!(api(404).to_string(), "Kubernetes API: words (404 Reason)");
    }
}
