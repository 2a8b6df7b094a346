//! The ports of one testbed.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, TcpListener};

/// Below those that Linux gives to outgoing connections, so that a server that starts later, or again, finds its port free.
const RANGE: std::ops::Range<u16> = 16_384..32_768;

/// A port of 127.0.0.1 that is free now.
pub(crate) fn free() -> io::Result<u16> {
    Ok(listen()?.local_addr()?.port())
}

fn listen() -> io::Result<TcpListener> {
    let random = RandomState::new();
    let width = u64::from(RANGE.end - RANGE.start);
    // The remainder is below the width, which is a u16.
    let candidate = |n: u32| RANGE.start + u16::try_from(random.hash_one(n) % width).unwrap_or_default();
    let found = (0..1000).map(candidate).find_map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok());
    found.ok_or_else(|| io::ErrorKind::AddrInUse.into())
}

/// Where each server of one testbed listens, all on 127.0.0.1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ports {
    pub etcd: u16,
    pub etcd_peer: u16,
    pub apiserver: u16,
    pub controller_manager: u16,
    pub scheduler: u16,
}

impl Ports {
    /// Ports that are free now, found at once so that they differ.
    pub(crate) fn find_free() -> io::Result<Self> {
        let mut listeners = Vec::new();
        let mut port = || {
            let listener = listen()?;
            let port = listener.local_addr()?.port();
            listeners.push(listener);
            io::Result::Ok(port)
        };
        Ok(Self {
            etcd: port()?,
            etcd_peer: port()?,
            apiserver: port()?,
            controller_manager: port()?,
            scheduler: port()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_outgoing_connection_takes_a_port_before_its_server_does() {
        let port = free().unwrap();
        assert!(RANGE.contains(&port), "{port}");
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
    }
}
