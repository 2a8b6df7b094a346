//! A block of IP addresses, as `10.0.3.0/24`; one without a prefix is a single address.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// A block of addresses, without what its prefix leaves open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cidr {
    address: IpAddr,
    prefix: u8,
}

impl Cidr {
    /// Whether both have an address in common.
    pub fn overlaps(self, other: Self) -> bool {
        let prefix = self.prefix.min(other.prefix);
        match (self.address, other.address) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                kept(a.to_bits().into(), prefix, 32) == kept(b.to_bits().into(), prefix, 32)
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => kept(a.to_bits(), prefix, 128) == kept(b.to_bits(), prefix, 128),
            _ => false,
        }
    }

    /// Whether it may be one client: a single address that is not of this host, of nobody or of many.
    pub fn is_client(self) -> bool {
        let whole = if self.address.is_ipv4() { 32 } else { 128 };
        let address = self.address;
        self.prefix == whole && !address.is_loopback() && !address.is_unspecified() && !address.is_multicast()
    }
}

/// Those of these texts that are an address or a block of them; what is neither is passed over.
pub fn readable<T: AsRef<str>>(texts: impl IntoIterator<Item = T>) -> Vec<Cidr> {
    texts.into_iter().filter_map(|text| text.as_ref().parse().ok()).collect()
}

/// What the prefix keeps of `width` bits.
fn kept(bits: u128, prefix: u8, width: u8) -> u128 {
    bits.checked_shr(u32::from(width - prefix.min(width))).unwrap_or(0)
}

impl FromStr for Cidr {
    /// What is wrong with it.
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text} is no IP address, nor a block of them");
        let (address, prefix) = text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let address = address.to_canonical();
        let whole = if address.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.map_or(Ok(whole), str::parse).map_err(|_| wrong())?;
        if prefix > whole { Err(wrong()) } else { Ok(Self { address, prefix }) }
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cidr(text: &str) -> Cidr {
        text.parse().unwrap()
    }

    #[test]
    fn what_overlaps() {
        for (a, b, expected) in [
            ("10.0.3.17", "10.0.3.17/32", true),
            ("10.0.3.17", "10.0.3.18", false),
            ("10.0.3.17", "10.0.3.0/24", true),
            ("10.0.0.0/8", "10.0.3.0/24", true),
            ("10.0.4.0/24", "10.0.3.0/24", false),
            ("0.0.0.0/0", "192.0.2.1", true),
            ("0.0.0.0/0", "2001:db8::1", false),
            ("2001:db8::1", "2001:db8::/64", true),
            ("2001:db8:1::1", "2001:db8::/64", false),
            ("::/0", "2001:db8::1", true),
        ] {
            assert_eq!(cidr(a).overlaps(cidr(b)), expected, "{a} {b}");
            assert_eq!(cidr(b).overlaps(cidr(a)), expected, "{b} {a}");
        }
    }

    #[test]
    fn one_client_is_one_address() {
        for (text, expected) in [
            ("10.0.3.17", true),
            ("10.0.3.17/32", true),
            ("10.0.3.0/24", false),
            ("127.0.0.1", false),
            ("0.0.0.0", false),
            ("224.0.0.1", false),
            ("2001:db8::1/128", true),
            ("2001:db8::/64", false),
        ] {
            assert_eq!(cidr(text).is_client(), expected, "{text}");
        }
        for text in ["", "10.0.3", "10.0.3.17/33", "10.0.3.17/", "2001:db8::1/129", "a/8"] {
            assert!(text.parse::<Cidr>().is_err(), "{text}");
        }
        assert_eq!(cidr("10.0.3.17").to_string(), "10.0.3.17/32");
    }

    #[test]
    fn one_address_is_the_same_in_any_way_of_writing() {
        for (some, other) in
            [("10.0.3.17", "10.0.3.17/32"), ("10.0.3.17", "::ffff:10.0.3.17"), ("2001:db8::1", "2001:0db8:0:0::1/128")]
        {
            assert_eq!(cidr(some), cidr(other), "{some} {other}");
        }
    }

    #[test]
    fn what_is_no_address_is_passed_over() {
        let texts = ["10.0.3.17", "", "node-1.example.com", "10.0.3.17/33", "2001:db8::/64"];
        let read = vec![cidr("10.0.3.17"), cidr("2001:db8::/64")];
        assert_eq!(readable(texts), read);
        assert_eq!(readable(texts.map(str::to_owned)), read);
    }

    proptest! {
        #[test]
        fn nothing_panics(a in "[0-9a-f:./]{0,20}", b in any::<u32>(), prefix in 0u8..=32) {
            let b = Cidr { address: IpAddr::V4(b.into()), prefix };
            prop_assert!(b.overlaps(b));
            if let Ok(a) = a.parse::<Cidr>() {
                prop_assert_eq!(a.overlaps(b), b.overlaps(a));
            }
        }
    }
}
