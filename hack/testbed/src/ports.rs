//! The ports of one testbed.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, TcpListener};

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
    /// Ports that are free now, found at once so that they differ. They lie below those that Linux
    /// gives to outgoing connections, so that a stopped server finds its port free again.
    pub(crate) fn find_free() -> io::Result<Self> {
        const RANGE: std::ops::Range<u16> = 16_384..32_768;
        let random = RandomState::new();
        let mut candidates = (0..1000_u32).map(|n| {
            let width = u64::from(RANGE.end - RANGE.start);
            // The remainder is below the width, which is a u16.
            RANGE.start + u16::try_from(random.hash_one(n) % width).unwrap_or_default()
        });
        let mut listeners = Vec::new();
        let mut port = || {
            let listener = candidates
                .find_map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok())
                .ok_or(io::ErrorKind::AddrInUse)?;
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
