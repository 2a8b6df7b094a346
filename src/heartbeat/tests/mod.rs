mod agent;
mod monitor;
mod network;
mod peers;
mod wire;

use std::net::SocketAddr;

use super::keys::KeyPair;

/// Keys of their own for each number.
fn keys(number: u8) -> KeyPair {
    KeyPair::from_secret([number; 32])
}

fn address(number: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, (number >> 8) as u8, number as u8], 9810))
}
