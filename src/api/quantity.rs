//! Amounts as Kubernetes writes them (`1.5Gi`). Pure.

/// A quantity in whole bytes: digits, perhaps a fraction, and a suffix. `None` for what is none, or is too large for it.
pub fn bytes(quantity: &str) -> Option<u128> {
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
    use super::*;

    #[test]
    fn amounts_are_read_as_kubernetes_writes_them() {
        for (text, expected) in [
            ("1Gi", Some(1 << 30)),
            ("1.5Gi", Some(3 << 29)),
            ("+100M", Some(100_000_000)),
            ("1e10", Some(10_000_000_000)),
            ("1073741824000m", Some(1 << 30)),
            ("5G", Some(5_000_000_000)),
            ("1.5Ki", Some(1536)),
            ("12E2", Some(1200)),
            ("1Ei", Some(1 << 60)),
            ("1000m", Some(1)),
            ("much", None),
            ("1.2.3Gi", None),
            ("1 Gi", None),
            ("-1Gi", None),
            (".", None),
            ("", None),
            ("1e999", None),
        ] {
            assert_eq!(bytes(text), expected, "{text}");
        }
    }
}
