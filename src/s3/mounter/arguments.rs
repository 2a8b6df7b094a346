//! The command line of mount-s3. Pure.

use std::path::Path;

/// The FUSE descriptor, as mount-s3 sees it.
pub const FUSE_DESCRIPTOR: i32 = 3;

/// Mount option that asks for a cache on a disk.
const CACHE: &str = "--cache";
/// mount-s3 ends when its work ends, not before.
const FOREGROUND: &str = "--foreground";

/// Why mount-s3 cannot be run like this.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArgumentsError {
    /// It would be read as an option.
    #[error("{0:?} is no name of a bucket: correct bucketName in the volume attributes of the PersistentVolume")]
    Bucket(String),
}

/// Whether the mount options ask for a cache.
pub fn want_cache(args: &[String]) -> bool {
    args.iter().any(|argument| is_cache(argument))
}

/// Arguments of mount-s3: bucket, mount point, and the sorted options. `cache` is where its cache is to be, whatever place the
/// mount options named: that would be one of the container, whose root cannot be written.
pub fn arguments(bucket: &str, args: &[String], cache: Option<&Path>) -> Result<Vec<String>, ArgumentsError> {
    if bucket.is_empty() || bucket.starts_with('-') {
        return Err(ArgumentsError::Bucket(bucket.to_owned()));
    }
    let mut options: Vec<String> = args.iter().filter(|argument| !is_cache(argument)).cloned().collect();
    options.push(FOREGROUND.to_owned());
    options.extend(cache.map(|folder| format!("{CACHE}={}", folder.display())));
    options.sort();
    options.dedup();
    let mut all = vec![bucket.to_owned(), format!("/dev/fd/{FUSE_DESCRIPTOR}")];
    all.append(&mut options);
    Ok(all)
}

fn is_cache(argument: &str) -> bool {
    argument.split('=').next() == Some(CACHE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(list: &[&str]) -> Vec<String> {
        list.iter().map(|item| (*item).to_owned()).collect()
    }

    #[test]
    fn bucket_and_descriptor_come_first_then_the_sorted_options() {
        let args = owned(&["--uid=1000", "--allow-delete", "--foreground"]);
        let expected = owned(&["b", "/dev/fd/3", "--allow-delete", "--foreground", "--uid=1000"]);
        assert_eq!(arguments("b", &args, None), Ok(expected));
        assert!(!want_cache(&args));
    }

    #[test]
    fn the_cache_is_where_the_pod_has_room_for_it() {
        let args = owned(&["--cache=/tmp/mine", "--cache-xz=other", "--max-cache-size=9"]);
        let expected = owned(&[
            "b",
            "/dev/fd/3",
            "--cache-xz=other",
            "--cache=/local-cache",
            "--foreground",
            "--max-cache-size=9",
        ]);
        assert_eq!(arguments("b", &args, Some(Path::new("/local-cache"))), Ok(expected));
        assert!(want_cache(&args));
        assert!(!want_cache(&owned(&["--cache-xz=other"])));
    }

    #[test]
    fn a_bucket_is_not_an_option() {
        for bucket in ["", "--help", "-h"] {
            assert_eq!(arguments(bucket, &[], None), Err(ArgumentsError::Bucket(bucket.to_owned())));
        }
    }
}
