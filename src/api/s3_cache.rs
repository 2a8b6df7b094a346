//! How large mount-s3's cache on a limited emptyDir may grow. Without an argument it leaves 5 % of the *node's* disk free, so it
//! outgrows the limit, and the kubelet evicts the Mountpoint Pod with all that it serves. Pure.

use std::collections::BTreeMap;

/// Attribute of a volume: what the limit of the emptyDir is.
const SIZE_LIMIT: &str = "cacheEmptyDirSizeLimit";
const OPTION: &str = "max-cache-size";
/// Files take more room than their bytes: so much of a hundred is left to the cache, as in the AWS driver.
const SHARE: u128 = 95;

/// The argument that keeps the cache below the limit; `None` where nothing limits it, or a mount option keeps it smaller.
/// On memory the emptyDir is a file system of its own, whose end mount-s3 sees.
///
/// # Errors
///
/// What to correct in the attributes or mount options of the volume.
pub fn argument<'a>(
    attributes: &BTreeMap<String, String>,
    options: impl IntoIterator<Item = &'a str>,
) -> Result<Option<String>, String> {
    let text = |name: &str| attributes.get(name).map(|value| value.trim()).filter(|value| !value.is_empty());
    let is_on_disk = text("cache") == Some("emptyDir") && text("cacheEmptyDirMedium").is_none();
    let Some(limit) = text(SIZE_LIMIT).filter(|_| is_on_disk) else { return Ok(None) };
    let bytes =
        bytes(limit).ok_or_else(|| format!("the attribute {SIZE_LIMIT} is {limit:?}: give an amount such as 2Gi"))?;
    let most = (bytes.saturating_mul(SHARE) / 100) >> 20;
    if most == 0 {
        return Err(format!("the attribute {SIZE_LIMIT} is {limit:?}: give at least 2Mi"));
    }
    match given(options) {
        None => Ok(Some(format!("--{OPTION}={most}"))),
        Some(size) if size.parse::<u128>().is_ok_and(|size| size <= most) => Ok(None),
        Some(size) => Err(format!(
            "the mount option {OPTION} is {size:?}, and the cache is limited to {limit}: give at most {most} MiB, or leave it out"
        )),
    }
}

/// What the mount options say. Of one that is given twice the last counts.
fn given<'a>(options: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let pairs = options.into_iter().map(|option| {
        let option = option.trim().trim_start_matches('-');
        option.split_once([' ', '=']).map_or((option, ""), |(name, value)| (name, value.trim()))
    });
    pairs.filter(|(name, _)| *name == OPTION).map(|(_, value)| value).last()
}

/// A quantity of Kubernetes in whole bytes.
fn bytes(quantity: &str) -> Option<u128> {
    let quantity = quantity.strip_prefix('+').unwrap_or(quantity);
    let end = quantity.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(quantity.len());
    let (number, suffix) = quantity.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    let (times, parts) = scale(suffix)?;
    let parts = parts.checked_mul(10u128.checked_pow(u32::try_from(fraction.len()).ok()?)?)?;
    Some(digits.checked_mul(times)? / parts)
}

/// What a suffix multiplies by, and divides by.
fn scale(suffix: &str) -> Option<(u128, u128)> {
    let thousands = |power: u32| Some((1000u128.pow(power), 1));
    let binary = |power: u32| Some((1024u128.pow(power), 1));
    match suffix {
        "" => Some((1, 1)),
        "n" => Some((1, 1_000_000_000)),
        "u" => Some((1, 1_000_000)),
        "m" => Some((1, 1000)),
        "k" => thousands(1),
        "M" => thousands(2),
        "G" => thousands(3),
        "T" => thousands(4),
        "P" => thousands(5),
        "E" => thousands(6),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        other => {
            let power: i32 = other.strip_prefix(['e', 'E'])?.parse().ok()?;
            let factor = 10u128.checked_pow(power.unsigned_abs())?;
            Some(if power < 0 { (1, factor) } else { (factor, 1) })
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn limited(limit: &str, more: &[(&str, &str)], options: &[&str]) -> Result<Option<String>, String> {
        let pairs = [("cache", "emptyDir"), (SIZE_LIMIT, limit)];
        let pairs = pairs.iter().chain(more).map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        argument(&pairs.collect(), options.iter().copied())
    }

    #[test]
    fn the_cache_stays_below_the_limit() {
        for (limit, most) in [
            ("10Gi", 9728),
            ("1Gi", 972),
            ("1.5Gi", 1459),
            ("2Mi", 1),
            ("10G", 9059),
            ("1e10", 9059),
            ("+100M", 90),
            ("1073741824", 972),
            ("1073741824000m", 972),
        ] {
            assert_eq!(limited(limit, &[], &[]).unwrap(), Some(format!("--max-cache-size={most}")), "{limit}");
        }
    }

    #[test]
    fn where_nothing_limits_it_nothing_is_said() {
        assert_eq!(limited("1Gi", &[("cacheEmptyDirMedium", "Memory")], &[]), Ok(None));
        assert_eq!(limited("1Gi", &[("cache", "ephemeral")], &[]), Ok(None));
        assert_eq!(limited("", &[], &["max-cache-size=99999999"]), Ok(None));
        assert_eq!(argument(&BTreeMap::new(), []), Ok(None));
    }

    #[test]
    fn a_smaller_one_stands_and_a_larger_one_is_refused() {
        for option in ["max-cache-size=972", "--max-cache-size 100", "max-cache-size=0"] {
            assert_eq!(limited("1Gi", &[], &["region=x", option]), Ok(None), "{option}");
        }
        for option in ["max-cache-size=973", "--max-cache-size 1000", "max-cache-size", "max-cache-size=1G"] {
            let error = limited("1Gi", &[], &[option]).unwrap_err();
            assert!(error.contains("at most 972 MiB"), "{option}: {error}");
        }
    }

    #[test]
    fn what_is_no_size_is_named() {
        for limit in ["much", "1.2.3Gi", "1 Gi", "-1Gi", ".", "1Mi", "100m", "1e999", "9".repeat(60).as_str()] {
            assert!(limited(limit, &[], &[]).unwrap_err().contains(SIZE_LIMIT), "{limit}");
        }
    }

    proptest! {
        #[test]
        fn no_text_is_too_odd(limit in ".{0,30}", option in ".{0,30}") {
            drop(limited(&limit, &[], &[&option]));
        }
    }
}
