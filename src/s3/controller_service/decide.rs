//! What a volume is in S3: the bucket's name, its size, its context. Pure.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use crate::api::names::hex;

/// How the names of our buckets begin; upstream's begin so too.
const BUCKET_PREFIX: &str = "csi-s3-";
/// The longest name of a bucket.
const BUCKET_NAME_MAX: usize = 63;
/// What a volume is said to hold when nobody says how much. A bucket has no size.
const DEFAULT_CAPACITY: i64 = 1 << 30;

/// Keys of the volume context.
pub(super) const BUCKET_NAME: &str = "bucketName";
const DYNAMIC_PROVISIONING: &str = "dynamicProvisioning";
const AUTHENTICATION_SOURCE: &str = "authenticationSource";

/// What becomes of a volume that is deleted while there are objects in its bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum NonEmptyBucket {
    /// The PersistentVolume goes, the bucket stays, as in the Scality driver.
    #[default]
    Keep,
    /// The PersistentVolume stays too, with an Event, until somebody has emptied the bucket.
    Refuse,
}

/// Whose credentials a volume is used with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// Those in a Secret that the StorageClass names.
    Secret,
    /// The driver's own.
    Driver,
}

/// The bucket of the volume that is asked for under this name: always the same, so that no attempt makes a second one.
pub(super) fn bucket_name(volume: &str) -> String {
    let plain = format!("{BUCKET_PREFIX}{volume}");
    if is_plain(&plain) {
        return plain;
    }
    format!("{BUCKET_PREFIX}{}", hex(&Sha256::digest(volume), 20))
}

/// Whether a volume's handle can be a bucket of ours. No other bucket is ever deleted.
pub(super) fn is_ours(handle: &str) -> bool {
    handle.starts_with(BUCKET_PREFIX) && is_plain(handle)
}

/// Fits into a path and a host name, as S3 asks for it. Dots are left out: certificates do not match names with them.
fn is_plain(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    name.len() <= BUCKET_NAME_MAX && name.bytes().all(inner) && !name.ends_with('-')
}

/// Whether this can be the name of a bucket that somebody else made.
pub(super) fn is_bucket_name(name: &str) -> bool {
    let edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    (3..=BUCKET_NAME_MAX).contains(&name.len())
        && name.bytes().all(|byte| byte == b'.' || byte == b'-' || edge(Some(byte)))
        && edge(name.bytes().next())
        && edge(name.bytes().next_back())
}

/// The size of a volume for which at least `required` and at most `limit` bytes are asked for; 0 is unsaid.
pub(super) fn capacity(required: i64, limit: i64) -> Result<i64, String> {
    if required < 0 || limit < 0 || (limit > 0 && required > limit) {
        return Err(format!("the capacity is asked for from {required} to {limit} bytes, which is no range"));
    }
    Ok(match (required, limit) {
        (0, 0) => DEFAULT_CAPACITY,
        (0, limit) => limit.min(DEFAULT_CAPACITY),
        (required, _) => required,
    })
}

/// What the node service reads.
pub(super) fn volume_context(bucket: &str, source: Source) -> BTreeMap<String, String> {
    let source = match source {
        Source::Secret => "secret",
        Source::Driver => "driver",
    };
    [(BUCKET_NAME, bucket), (DYNAMIC_PROVISIONING, "true"), (AUTHENTICATION_SOURCE, source)]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_provisioners_names_stay_readable() {
        let name = "pvc-3f2a5c1e-9d44-4c58-8f0e-0d6a2b7c9e11";
        assert_eq!(bucket_name(name), format!("csi-s3-{name}"));
        assert!(is_ours(&bucket_name(name)));
    }

    #[test]
    fn sizes_are_within_what_is_asked() {
        assert_eq!(capacity(0, 0), Ok(1 << 30));
        assert_eq!(capacity(5, 0), Ok(5));
        assert_eq!(capacity(5, 9), Ok(5));
        assert_eq!(capacity(0, 9), Ok(9));
        assert_eq!(capacity(0, i64::MAX), Ok(1 << 30));
        assert!(capacity(9, 5).is_err() && capacity(-1, 0).is_err());
    }

    #[test]
    fn only_buckets_of_ours_are_deleted() {
        for handle in ["", "csi-s3-", "data", "csi-s3-../x", "csi-s3-a/b", "csi-s3-A", "csi-s3-a?x", "csi-s3-a.b"] {
            assert!(!is_ours(handle), "{handle}");
        }
    }

    #[test]
    fn names_of_buckets_are_told_from_others() {
        for name in ["abc", "a.b-c", "csi-s3-x", "0-9"] {
            assert!(is_bucket_name(name), "{name}");
        }
        for name in ["", "ab", "-ab", "ab.", "a/b", "aBc", "a b", &"a".repeat(64)] {
            assert!(!is_bucket_name(name), "{name}");
        }
    }

    proptest! {
        #[test]
        fn any_name_becomes_a_bucket_of_its_own(one in ".{1,80}", other in ".{1,80}") {
            let bucket = bucket_name(&one);
            prop_assert!(is_ours(&bucket) && is_bucket_name(&bucket), "{bucket}");
            prop_assert_eq!(&bucket, &bucket_name(&one));
            prop_assert_eq!(bucket == bucket_name(&other), one == other);
        }
    }
}
