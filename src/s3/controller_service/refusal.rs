//! What an error of S3 means to the provisioner, and what the person who reads its Event is to do.

use tonic::{Code, Status};

use super::client::S3Error;
use super::decide::Source;

/// The status of a call that S3 refused; `doing` says what was tried, such as `bucket a cannot be made`.
pub(super) fn status(doing: &str, error: &S3Error, source: Source) -> Status {
    let (code, remedy) = meaning(error, source);
    let separator = if remedy.is_empty() { "" } else { "; " };
    Status::new(code, format!("{doing}: {error}{separator}{remedy}"))
}

fn meaning(error: &S3Error, source: Source) -> (Code, String) {
    let S3Error::Refused { status, code, .. } = error else {
        return match error {
            S3Error::Unsigned => (Code::Internal, String::new()),
            S3Error::Untrusted { .. } => (Code::FailedPrecondition, String::new()),
            _ => (
                Code::Unavailable,
                "it is tried again; see whether AWS_ENDPOINT_URL is right and can be reached".into(),
            ),
        };
    };
    match (code.as_str(), status.as_u16()) {
        ("RequestTimeTooSkewed", _) => (Code::FailedPrecondition, "set the clock of this node or of S3 right".into()),
        ("BucketAlreadyExists", _) => {
            (Code::AlreadyExists, "it belongs to another account of S3; delete the claim and make it anew".into())
        }
        ("TooManyBuckets", _) => {
            (Code::ResourceExhausted, "delete buckets that are not needed, or have the account's limit raised".into())
        }
        (
            "PermanentRedirect"
            | "AuthorizationHeaderMalformed"
            | "InvalidLocationConstraint"
            | "IllegalLocationConstraintException",
            _,
        )
        | ("", 301 | 307) => {
            (Code::FailedPrecondition, "set AWS_REGION and AWS_ENDPOINT_URL to those of one region of this S3".into())
        }
        ("InvalidAccessKeyId" | "SignatureDoesNotMatch" | "ExpiredToken" | "InvalidToken" | "NotSignedUp", _)
        | (_, 401) => (Code::Unauthenticated, format!("put valid keys into {}", place(source))),
        (_, 403) => {
            let remedy = "allow s3:CreateBucket, s3:ListBucket and s3:DeleteBucket to the keys in";
            (Code::PermissionDenied, format!("{remedy} {}", place(source)))
        }
        (_, 429 | 500..) | ("SlowDown", _) => (Code::Unavailable, "it is tried again".into()),
        _ => (Code::Internal, String::new()),
    }
}

/// Where the keys are that were used.
pub(super) fn place(source: Source) -> &'static str {
    match source {
        Source::Secret => {
            "the Secret that the StorageClass names in csi.storage.k8s.io/provisioner-secret-name and -namespace"
        }
        Source::Driver => "the driver's own Secret, s3-secret, and restart the controller",
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;

    fn of(status: u16, code: &str) -> Code {
        let status = StatusCode::from_u16(status).expect("a status");
        let error = S3Error::Refused { endpoint: "s3:9000".to_owned(), status, code: code.to_owned() };
        super::status("bucket b cannot be made", &error, Source::Driver).code()
    }

    #[test]
    fn errors_of_s3_have_codes_that_tell_what_to_do() {
        let cases = [
            (503, "SlowDown", Code::Unavailable),
            (500, "InternalError", Code::Unavailable),
            (502, "", Code::Unavailable),
            (429, "", Code::Unavailable),
            (403, "AccessDenied", Code::PermissionDenied),
            (403, "", Code::PermissionDenied),
            (403, "InvalidAccessKeyId", Code::Unauthenticated),
            (403, "SignatureDoesNotMatch", Code::Unauthenticated),
            (401, "", Code::Unauthenticated),
            (403, "RequestTimeTooSkewed", Code::FailedPrecondition),
            (301, "PermanentRedirect", Code::FailedPrecondition),
            (400, "AuthorizationHeaderMalformed", Code::FailedPrecondition),
            (409, "BucketAlreadyExists", Code::AlreadyExists),
            (400, "TooManyBuckets", Code::ResourceExhausted),
            (400, "InvalidBucketName", Code::Internal),
        ];
        for (status, code, expected) in cases {
            assert_eq!(of(status, code), expected, "{status} {code}");
        }
    }

    #[test]
    fn a_refusal_says_where_the_keys_are() {
        let error = S3Error::Refused {
            endpoint: "s3".into(),
            status: StatusCode::FORBIDDEN,
            code: "InvalidAccessKeyId".into(),
        };
        let refused = status("bucket b cannot be made", &error, Source::Secret);
        assert_eq!(
            refused.message(),
            "bucket b cannot be made: S3 at s3 answers 403 Forbidden InvalidAccessKeyId; put valid keys into the Secret \
             that the StorageClass names in csi.storage.k8s.io/provisioner-secret-name and -namespace"
        );
    }
}
