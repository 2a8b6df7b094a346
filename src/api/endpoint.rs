//! Where an NFS server answers: an IP address and a port, read strictly. What a provider reports is written into Endpoints
//! and slices, so what the API server would refuse there, or would lead clients astray, is refused here, with a remedy.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// More than any endpoint has; the rest of a text is left out where it is shown.
const SHOWN: usize = 80;

/// Address and port of an NFS server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Endpoint {
    /// Its address: one that other machines can reach.
    pub address: IpAddr,
    /// Its port, never 0.
    pub port: u16,
}

/// Why a text is no [`Endpoint`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidEndpoint {
    /// Not `address:port` at all.
    #[error(
        "endpoint {0:?} is not <ip>:<port>: report an IP address and a port, such as 10.0.0.11:2049 or [fd00::b]:2049"
    )]
    Form(String),
    /// An IPv6 address whose end cannot be told from the port.
    #[error("endpoint {0:?} has an IPv6 address without brackets: report it as [address]:port, such as [fd00::b]:2049")]
    Brackets(String),
    /// A name where an address is needed.
    #[error("endpoint {0:?} has a host name: report the server's IP address, for slices carry no names")]
    HostName(String),
    /// Meaningful on one machine only.
    #[error("endpoint {0:?} has a zone: report an address that is the same on all nodes")]
    Zone(String),
    /// Another spelling of an address.
    #[error("endpoint {text:?} spells its address in an unusual way: report it as {canonical}")]
    NotCanonical {
        /// The endpoint.
        text: String,
        /// The address as it should be.
        canonical: String,
    },
    /// An address at which no other node finds the server.
    #[error("endpoint {text:?} has a {kind} address: report one at which every node reaches the server")]
    Unreachable {
        /// The endpoint.
        text: String,
        /// What kind of address it is.
        kind: &'static str,
    },
    /// Not a port.
    #[error("endpoint {0:?} has no valid port: report a number from 1 to 65535")]
    Port(String),
}

impl FromStr for Endpoint {
    type Err = InvalidEndpoint;

    fn from_str(text: &str) -> Result<Self, InvalidEndpoint> {
        let (host, port) = split(text)?;
        let address = address(text, host)?;
        if let Some(kind) = unreachable(address) {
            return Err(InvalidEndpoint::Unreachable { text: shown(text), kind });
        }
        let is_number = !port.starts_with('0') && port.bytes().all(|byte| byte.is_ascii_digit());
        let port = Some(port).filter(|_| is_number).and_then(|port| port.parse().ok());
        port.map(|port| Self { address, port }).ok_or_else(|| InvalidEndpoint::Port(shown(text)))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        SocketAddr::new(self.address, self.port).fmt(f)
    }
}

/// Host, with the brackets of an IPv6 address, and port.
fn split(text: &str) -> Result<(&str, &str), InvalidEndpoint> {
    let (host, port) = text.rsplit_once(':').ok_or_else(|| InvalidEndpoint::Form(shown(text)))?;
    if host.is_empty() || host.ends_with(']') != host.starts_with('[') {
        return Err(InvalidEndpoint::Form(shown(text)));
    }
    if host.contains(':') && !host.starts_with('[') {
        return Err(InvalidEndpoint::Brackets(shown(text)));
    }
    Ok((host, port))
}

fn address(text: &str, host: &str) -> Result<IpAddr, InvalidEndpoint> {
    if host.contains('%') {
        return Err(InvalidEndpoint::Zone(shown(text)));
    }
    let Some(inner) = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) else {
        let in_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
        let is_name = host.bytes().all(in_name) && host.bytes().any(|byte| byte.is_ascii_alphabetic());
        let wrong = if is_name { InvalidEndpoint::HostName } else { InvalidEndpoint::Form };
        return host.parse().map(IpAddr::V4).map_err(|_| wrong(shown(text)));
    };
    let address: Ipv6Addr = inner.parse().map_err(|_| InvalidEndpoint::Form(shown(text)))?;
    // Kubernetes takes an IPv4 address in IPv6 clothes for neither.
    let canonical = address.to_ipv4_mapped().map_or_else(|| address.to_string(), |mapped| mapped.to_string());
    if canonical == inner {
        return Ok(address.into());
    }
    Err(InvalidEndpoint::NotCanonical { text: shown(text), canonical })
}

/// What makes an address useless to other nodes. The API server refuses most of these in slices too.
fn unreachable(address: IpAddr) -> Option<&'static str> {
    let is_link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    let is_broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    let kinds = [
        (address.is_unspecified(), "unspecified"),
        (address.is_loopback(), "loopback"),
        (is_link_local, "link-local"),
        (address.is_multicast(), "multicast"),
        (is_broadcast, "broadcast"),
    ];
    kinds.into_iter().find_map(|(is_so, kind)| is_so.then_some(kind))
}

/// The text, or its beginning: it comes from outside.
fn shown(text: &str) -> String {
    text.chars().take(SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_endpoints_are_read_and_written_back_unchanged() {
        for text in [
            "10.0.0.11:2049",
            "192.168.1.5:1",
            "203.0.113.9:65535",
            "8.8.8.8:25705",
            "[fd00::b]:2049",
            "[2001:db8::1]:43210",
            "[2001:db8:1:2:3:4:5:6]:111",
        ] {
            let endpoint: Endpoint = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(endpoint.to_string(), text);
        }
    }

    #[test]
    fn bad_endpoints_are_refused_by_what_is_wrong_with_them() {
        for (text, wrong) in [
            ("", "is not <ip>:<port>"),
            ("10.0.0.11", "is not <ip>:<port>"),
            (":2049", "is not <ip>:<port>"),
            ("[fd00::b]", "is not <ip>:<port>"),
            ("[fd00::b:2049", "is not <ip>:<port>"),
            ("[10.0.0.11]:2049", "is not <ip>:<port>"),
            (" 10.0.0.11:2049", "is not <ip>:<port>"),
            ("fd00::b:2049", "without brackets"),
            ("nfs.example.com:2049", "has a host name"),
            ("010.0.0.11:2049", "is not <ip>:<port>"),
            ("10.0.0.256:2049", "is not <ip>:<port>"),
            ("[fe80::1%eth0]:2049", "has a zone"),
            ("[FD00::B]:2049", "report it as fd00::b"),
            ("[::ffff:10.0.0.11]:2049", "report it as 10.0.0.11"),
            ("0.0.0.0:2049", "unspecified"),
            ("127.0.0.1:2049", "loopback"),
            ("[::1]:2049", "loopback"),
            ("169.254.1.1:2049", "link-local"),
            ("[fe80::1]:2049", "link-local"),
            ("224.0.0.1:2049", "multicast"),
            ("255.255.255.255:2049", "broadcast"),
            ("10.0.0.11:0", "no valid port"),
            ("10.0.0.11:99999", "no valid port"),
            ("10.0.0.11:+2049", "no valid port"),
            ("10.0.0.11:02049", "no valid port"),
            ("10.0.0.11:nfs", "no valid port"),
            ("10.0.0.11:", "no valid port"),
        ] {
            let error = text.parse::<Endpoint>().expect_err(text).to_string();
            assert!(error.contains(wrong) && error.contains("report"), "{text}: {error}");
        }
    }

    #[test]
    fn a_long_text_is_shown_in_part() {
        let error = "x".repeat(5000).parse::<Endpoint>().expect_err("no endpoint").to_string();
        assert!(error.len() < 300, "{error}");
    }
}
