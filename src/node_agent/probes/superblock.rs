//! The UUID in the superblock of a file system. Pure.

use crate::api::names;

/// How much of a device is needed: btrfs keeps its superblock at 64 KiB.
pub const LENGTH: usize = 65 * 1024;

/// Where the signature is, what it is, and where the UUID is.
const KINDS: [(usize, &[u8], usize); 3] = [
    // ext2, ext3 and ext4
    (0x438, b"\x53\xef", 0x468),
    (0, b"XFSB", 32),
    // btrfs
    (0x1_0040, b"_BHRfS_M", 0x1_0020),
];

/// The UUID of the file system that a device begins with.
pub fn uuid(start: &[u8]) -> Option<String> {
    let (.., place) =
        KINDS.iter().find(|(at, signature, _)| start.get(*at..at + signature.len()) == Some(*signature))?;
    let bytes = start.get(*place..place + 16)?;
    let hex = names::hex(bytes, 16);
    let part = |range: std::ops::Range<usize>| hex.get(range).unwrap_or_default();
    Some([part(0..8), part(8..12), part(12..16), part(16..20), part(20..32)].join("-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_keeps_its_uuid_elsewhere() {
        for (at, signature, place) in KINDS {
            let mut start = vec![0; LENGTH];
            start[at..at + signature.len()].copy_from_slice(signature);
            start[place..place + 16].copy_from_slice(&(0x10..0x20).collect::<Vec<u8>>());
            assert_eq!(uuid(&start).as_deref(), Some("10111213-1415-1617-1819-1a1b1c1d1e1f"));
            assert_eq!(uuid(&start[..place + 15]), None, "a part of it is none");
        }
        assert_eq!(uuid(&vec![0; LENGTH]), None);
        assert_eq!(uuid(b""), None);
    }
}
