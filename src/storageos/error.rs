//! What may become of a call. The texts are for people and carry no credentials; labels of metrics and reasons of conditions
//! come from [`CallError::reason`], which is bounded.

use std::error::Error;
use std::io;
use std::time::Duration;

use crate::api::text::causes;

use super::providers::PublishError;

/// Why a call has no good answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// Nothing came back.
    #[error("{endpoint} does not answer within {limit:?}")]
    Timeout {
        /// Where it was asked.
        endpoint: String,
        /// For how long it was waited.
        limit: Duration,
    },
    /// Nobody listens, the name is unknown, or the connection broke.
    #[error("no connection to {endpoint}: {why}")]
    NoConnection {
        /// Where it was asked.
        endpoint: String,
        /// What went wrong on the way.
        why: String,
    },
    /// It cannot be told whether it is the right server.
    #[error("certificate of {endpoint}: {why}")]
    Certificate {
        /// Where it was asked.
        endpoint: String,
        /// What is wrong with it.
        why: String,
    },
    /// The settings cannot be used; somebody has to change them.
    #[error("{0}")]
    Settings(String),
    /// A login was refused.
    #[error("{0} refuses user name and password: correct them in the Secret")]
    CredentialsRefused(String),
    /// An answer that is an error.
    #[error("{call} is answered with {status}: {words}")]
    Status {
        /// What was asked for.
        call: &'static str,
        /// HTTP status.
        status: u16,
        /// The server's own words.
        words: String,
    },
    /// An answer that is none.
    #[error("the answer to {call} cannot be read: {why}")]
    Malformed {
        /// What was asked for.
        call: &'static str,
        /// Why not.
        why: String,
    },
}

impl CallError {
    /// The error as a bounded CamelCase word.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Timeout { .. } => "Timeout",
            Self::NoConnection { .. } => "ConnectionRefused",
            Self::Certificate { .. } | Self::Settings(_) => "CertificateInvalid",
            Self::CredentialsRefused(_) => "CredentialsRefused",
            Self::Status { status, .. } => match status {
                401 => "Unauthorized",
                403 => "Forbidden",
                404 => "NotFound",
                409 => "Conflict",
                412 => "StaleWrite",
                503 => "Unavailable",
                500.. => "ServerError",
                _ => "Rejected",
            },
            Self::Malformed { .. } => "Malformed",
        }
    }

    /// HTTP status of the answer, if there was one.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Status { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// Whether there was no answer.
    pub fn is_silence(&self) -> bool {
        matches!(self, Self::Timeout { .. } | Self::NoConnection { .. } | Self::Certificate { .. })
    }

    /// Whether another endpoint may give a better answer: there was none, or only that of a proxy or of a node that has nobody
    /// behind it.
    pub fn is_of_endpoint(&self) -> bool {
        self.is_silence() || matches!(self.status(), Some(502..=504))
    }

    /// What went wrong on the way to a server.
    pub(super) fn on_the_way(endpoint: &str, error: &(dyn Error + 'static)) -> Self {
        let endpoint = endpoint.to_owned();
        match certificate(error) {
            Some(why) => Self::Certificate { endpoint, why },
            None => Self::NoConnection { endpoint, why: causes(error) },
        }
    }
}

impl From<CallError> for PublishError {
    fn from(error: CallError) -> Self {
        match error.status() {
            Some(404) => Self::VolumeGone,
            Some(409 | 412) => Self::VersionConflict,
            Some(500..) => Self::Unreachable(error.to_string()),
            Some(_) => Self::Refused(error.to_string()),
            None if matches!(error, CallError::CredentialsRefused(_) | CallError::Settings(_)) => Self::NotConnected,
            None => Self::Unreachable(error.to_string()),
        }
    }
}

/// What TLS has against a certificate, or against how the other side speaks.
fn certificate(error: &(dyn Error + 'static)) -> Option<String> {
    if let Some(error) = error.downcast_ref::<rustls::Error>() {
        return Some(error.to_string());
    }
    // Such an error does not tell what it wraps as its source.
    let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    let wrapped = wrapped.and_then(|inner| certificate(inner));
    wrapped.or_else(|| error.source().and_then(certificate))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_found_however_deep() {
        let inner = io::Error::new(io::ErrorKind::InvalidData, rustls::Error::DecryptError);
        let error = io::Error::other(io::Error::other(inner));
        let reason = CallError::on_the_way("https://s", &error).reason();
        assert_eq!(reason, "CertificateInvalid");
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        assert_eq!(CallError::on_the_way("http://s", &refused).reason(), "ConnectionRefused");
    }

    #[test]
    fn another_endpoint_is_asked_only_where_it_may_help() {
        let helps = |status| CallError::Status { call: "list", status, words: String::new() }.is_of_endpoint();
        assert_eq!([500, 501, 502, 503, 504, 505].map(helps), [false, false, true, true, true, false]);
        assert!(![401, 403, 404, 409, 412].into_iter().any(helps));
        assert!(CallError::NoConnection { endpoint: "s".into(), why: String::new() }.is_of_endpoint());
    }

    #[test]
    fn who_publishes_hears_what_to_do_about_it() {
        let status = |status| PublishError::from(CallError::Status { call: "publish", status, words: "no".into() });
        assert_eq!(status(404), PublishError::VolumeGone);
        assert_eq!(status(412), PublishError::VersionConflict);
        assert!(matches!(status(403), PublishError::Refused(words) if words.contains("403")));
        assert!(matches!(status(503), PublishError::Unreachable(_)));
        assert_eq!(PublishError::from(CallError::CredentialsRefused("s".into())), PublishError::NotConnected);
    }
}
