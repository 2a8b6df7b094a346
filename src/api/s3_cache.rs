//! How large mount-s3's cache on a limited emptyDir may grow. Without an argument it leaves 5 % of the *node's* disk free, so it
//! outgrows the limit, and the kubelet evicts the Mountpoint Pod with all that it serves. Pure.

use super::quantity::bytes;

/// Attribute of a volume: what the limit of the emptyDir is.
const SIZE_LIMIT: &str = "cacheEmptyDirSizeLimit";
const OPTION: &str = "max-cache-size";
/// Files take more room than their bytes: so much of a hundred is left to the cache, as in the AWS driver.
const SHARE: u128 = 95;

/// The most that the cache may hold, in MiB; `None` where nothing limits it. On memory the emptyDir is a file system of its
/// own, whose end mount-s3 sees. `attribute` gives the volume's attribute of a name.
///
/// # Errors
///
/// What to correct in the attributes of the volume.
pub fn most<'a>(attribute: impl Fn(&str) -> Option<&'a str>) -> Result<Option<u64>, String> {
    let text = |name: &str| attribute(name).map(str::trim).filter(|value| !value.is_empty());
    let is_on_disk = text("cache") == Some("emptyDir") && text("cacheEmptyDirMedium").is_none();
    let Some(limit) = text(SIZE_LIMIT).filter(|_| is_on_disk) else { return Ok(None) };
    let most = bytes(limit).map(|bytes| (bytes.saturating_mul(SHARE) / 100) >> 20);
    let most = most.and_then(|most| u64::try_from(most).ok()).filter(|most| *most > 0);
    most.map(Some).ok_or_else(|| format!("the attribute {SIZE_LIMIT} is {limit:?}: give 2Mi or more, such as 10Gi"))
}

/// Whether the mount options ask for no larger cache than `most`.
///
/// # Errors
///
/// What to correct in the mount options of the volume.
pub fn check<'a>(most: Option<u64>, options: impl IntoIterator<Item = &'a str>) -> Result<(), String> {
    match (most, given(options)) {
        (Some(most), Some(asked)) => fits(most, asked),
        _ => Ok(()),
    }
}

/// Whether a cache of the size that was asked for stays below `most`.
///
/// # Errors
///
/// What to correct.
pub fn fits(most: u64, asked: &str) -> Result<(), String> {
    if asked.parse().is_ok_and(|asked: u64| asked <= most) {
        return Ok(());
    }
    Err(format!(
        "the mount option {OPTION} is {asked:?}: give at most {most} (MiB), 95 % of {SIZE_LIMIT}, or leave it out"
    ))
}

/// What the mount options say. Of one that is given twice the last counts.
fn given<'a>(options: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let pairs = options.into_iter().map(|option| {
        let option = option.trim().trim_start_matches('-');
        option.split_once([' ', '=']).map_or((option, ""), |(name, value)| (name, value.trim()))
    });
    pairs.filter(|(name, _)| *name == OPTION).map(|(_, value)| value).last()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn limited(limit: &str, more: &[(&str, &str)]) -> Result<Option<u64>, String> {
        let mut all = vec![("cache", "emptyDir"), (SIZE_LIMIT, limit)];
        all.extend_from_slice(more);
        most(|name| all.iter().rev().find(|(key, _)| *key == name).map(|(_, value)| *value))
    }

    #[test]
    fn the_cache_stays_below_the_limit() {
        for (limit, expected) in
            [("10Gi", 9728), ("1Gi", 972), ("1.5Gi", 1459), ("2Mi", 1), ("10G", 9059), ("100Mi", 95)]
        {
            assert_eq!(limited(limit, &[]), Ok(Some(expected)), "{limit}");
        }
    }

    #[test]
    fn where_nothing_limits_it_nothing_is_said() {
        assert_eq!(limited("1Gi", &[("cacheEmptyDirMedium", "Memory")]), Ok(None));
        assert_eq!(limited("1Gi", &[("cache", "ephemeral")]), Ok(None));
        assert_eq!(limited("", &[]), Ok(None));
        assert_eq!(check(None, ["max-cache-size=99999999"]), Ok(()));
    }

    #[test]
    fn a_smaller_one_stands_and_a_larger_one_is_refused() {
        for option in ["max-cache-size=972", "--max-cache-size 100", "max-cache-size=0"] {
            assert_eq!(check(Some(972), ["region=x", option]), Ok(()), "{option}");
        }
        for option in ["max-cache-size=973", "--max-cache-size 1000", "max-cache-size", "max-cache-size=1G"] {
            let error = check(Some(972), [option]).unwrap_err();
            assert!(error.contains("at most 972 (MiB)"), "{option}: {error}");
        }
    }

    #[test]
    fn what_is_no_size_is_named() {
        for limit in ["much", "1 Gi", "-1Gi", "1Mi", "100m", "1e999", "9".repeat(60).as_str()] {
            assert!(limited(limit, &[]).unwrap_err().contains(SIZE_LIMIT), "{limit}");
        }
    }

    proptest! {
        #[test]
        fn no_text_is_too_odd(limit in ".{0,30}", option in ".{0,30}") {
            drop(limited(&limit, &[]));
            drop(check(Some(9), [option.as_str()]));
        }
    }
}
