//! What a child is asked to look at, and what it answers. Pure data.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::super::mounts::mountinfo::Device;
use super::view::Looked;

/// Something to look at in a child.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Probe {
    /// Paths of local volumes: nothing that should wait for anything.
    Look(Vec<String>),
    /// The UUID of the file system on a device, whose name this is: it may wait for that device.
    Superblock(Device, String),
    /// Ask the file system that is mounted here.
    Root(Place),
    /// Read blocks around the page cache.
    Read(Disk),
    /// Read back a canary, if there is one.
    ReadCanary(Place),
    /// Write a canary and read it back around the page cache.
    Write(Place),
    /// Read every block of a part of the device, slowly.
    Scrub(Scrub),
}

/// A folder of a mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Its path, without symbolic links.
    pub path: String,
    /// Id of the mount that it must be in.
    pub mount: u64,
    /// Who asks: each node has a canary of its own.
    pub node: String,
}

/// A block device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// Its name, as sysfs spells it.
    pub name: String,
    /// Its number.
    pub device: Device,
    /// Its size in bytes.
    pub size: u64,
    /// How often it was read: each time at another place too.
    pub turn: u64,
}

/// A part of a block device to read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scrub {
    /// The device.
    pub disk: Disk,
    /// Where to begin, in bytes.
    pub from: u64,
    /// Blocks to read again first.
    pub again: Vec<u64>,
}

/// What the child found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// What is at the paths; one that did not answer in time is not here.
    Looked(BTreeMap<String, Looked>),
    /// The UUID, if there is one that could be read.
    Superblock(Option<String>),
    /// The file system answers.
    Space(Space),
    /// It was read, or written and read.
    Done,
    /// What was read is not what was written.
    Mismatch,
    /// It is not there, or not what it was: nothing was done.
    Changed,
    /// A call failed.
    Failed {
        /// Number of the error.
        errno: i32,
        /// What was done.
        at: String,
    },
    /// A part was read.
    Scrubbed {
        /// Where to go on.
        to: u64,
        /// Blocks that could not be read.
        bad: Vec<u64>,
    },
}

/// What is left in a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Space {
    /// Blocks.
    pub blocks: u64,
    /// Of these, free for all users.
    pub available: u64,
    /// Inodes; 0 where they are not limited.
    pub inodes: u64,
    /// Of these, free.
    pub inodes_free: u64,
}

/// Size of the blocks that are read and written.
pub const BLOCK: usize = 4096;
/// How much one scrub reads.
pub const SCRUB: u64 = 32 << 20;

/// Where to read on a device of that size: the first block, the last one, and one that is another each time. All of it
/// comes to its turn.
pub fn positions(size: u64, turn: u64) -> Vec<u64> {
    let blocks = size / BLOCK as u64;
    // Steps of the golden ratio spread evenly, wherever they end.
    let spread = u128::from(turn.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let some = u64::try_from((spread * u128::from(blocks)) >> 64).unwrap_or_default();
    let mut places = vec![0, blocks.saturating_sub(1), some];
    places.dedup();
    places.into_iter().filter(|block| *block < blocks).map(|block| block * BLOCK as u64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_comes_to_its_turn() {
        assert!(positions(0, 7).is_empty() && positions(4095, 7).is_empty());
        assert_eq!(positions(4096, 7), [0]);
        let size = 1000 * BLOCK as u64;
        let mut seen: std::collections::BTreeSet<u64> = (0..3000).flat_map(|turn| positions(size, turn)).collect();
        assert!(seen.contains(&0) && seen.contains(&(size - BLOCK as u64)));
        assert!(seen.len() > 990, "{}", seen.len());
        assert!(seen.pop_last().is_some_and(|last| last < size));
        assert!(positions(u64::MAX, u64::MAX).iter().all(|at| at % BLOCK as u64 == 0));
    }
}
