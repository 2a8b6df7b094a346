//! Objects as they lie in a large cache: JSON, compressed against other objects of their kind, with which they have nearly
//! all in common. A pod takes 0.3 KB so, and 3 KB as it is read.

use std::sync::Arc;

use lz4_flex::block::{compress_prepend_size_with_dict, decompress_size_prepended_with_dict};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// What all are compressed against grows no more from here on.
const COMMON: usize = 8 << 10;
/// An object that takes a third of its JSON or less is like one that was there before.
const ALIKE: usize = 3;

/// An object at rest.
pub(crate) enum Packed<K> {
    /// As it is.
    Plain(Arc<K>),
    /// Compressed.
    Small(Box<[u8]>),
}

/// How a kind is packed.
pub(crate) struct Packer<K> {
    json: Option<(Write<K>, Read<K>)>,
    /// One object of each sort: it is gone through for each that is packed, so that it is no larger than it has to be.
    common: Vec<u8>,
}

type Write<K> = fn(&K) -> Option<Vec<u8>>;
type Read<K> = fn(&[u8]) -> Option<K>;

impl<K> Packer<K> {
    /// Leaves objects as they are.
    pub(crate) fn none() -> Self {
        Self { json: None, common: Vec::new() }
    }

    /// Packs. The kind must be read as it is written.
    pub(crate) fn json() -> Self
    where
        K: Serialize + DeserializeOwned,
    {
        let write: Write<K> = |object| serde_json::to_vec(object).ok();
        let read: Read<K> = |json| serde_json::from_slice(json).ok();
        Self { json: Some((write, read)), common: Vec::new() }
    }

    /// Packs an object. One that others are compressed against is left as it is.
    pub(crate) fn pack(&mut self, object: &Arc<K>) -> Packed<K> {
        let Some(json) = self.json.and_then(|(write, _)| write(object)) else {
            return Packed::Plain(object.clone());
        };
        let packed = compress_prepend_size_with_dict(&json, &self.common);
        let is_new = self.common.is_empty() || packed.len() * ALIKE > json.len();
        if is_new && self.common.len() < COMMON {
            // In front: what is packed points into it by the distance from its end.
            self.common.splice(..0, json);
            return Packed::Plain(object.clone());
        }
        Packed::Small(packed.into_boxed_slice())
    }

    /// The object. What was packed here is always there.
    pub(crate) fn unpack(&self, packed: &Packed<K>) -> Option<Arc<K>> {
        let packed = match packed {
            Packed::Plain(object) => return Some(object.clone()),
            Packed::Small(packed) => packed,
        };
        let json = decompress_size_prepended_with_dict(packed, &self.common).ok()?;
        let (_, read) = self.json?;
        read(&json).map(Arc::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_small_and_comes_out_as_it_was() {
        let mut packer = Packer::json();
        let object = |number: u32| {
            let text = |field: usize| format!("the same text in each object, in field {field}");
            Arc::new((number, (0..20).map(text).collect::<Vec<_>>()))
        };
        let all: Vec<_> = (0..100).map(object).collect();
        let packed: Vec<_> = all.iter().map(|object| packer.pack(object)).collect();
        for (object, packed) in all.iter().zip(&packed) {
            assert_eq!(packer.unpack(packed).as_ref(), Some(object));
        }
        let small = packed.iter().filter(|it| matches!(it, Packed::Small(packed) if packed.len() < 100)).count();
        assert!(small > 80, "{small} of 100 are small");
    }

    #[test]
    fn what_is_like_none_before_is_what_others_are_compressed_against() {
        let mut packer = Packer::json();
        let object = |sort: u64, number: u64| {
            let text = |field: u64| format!("{:016x}", (sort * 1000 + field).wrapping_mul(0x9E37_79B9_7F4A_7C15));
            Arc::new((number, (1..=20).map(text).collect::<Vec<_>>()))
        };
        let all: Vec<_> = (0..9).map(|number| object(number % 3, number)).collect();
        let packed: Vec<_> = all.iter().map(|object| packer.pack(object)).collect();
        for (object, packed) in all.iter().zip(&packed) {
            assert_eq!(packer.unpack(packed).as_ref(), Some(object), "also what was packed before another sort came");
        }
        let is_plain: Vec<_> = packed.iter().map(|it| matches!(it, Packed::Plain(_))).collect();
        assert_eq!(is_plain, [true, true, true, false, false, false, false, false, false]);
    }

    #[test]
    fn who_does_not_pack_hands_out_what_came_in() {
        let mut packer = Packer::none();
        let object = Arc::new(1);
        assert!(matches!(packer.pack(&object), Packed::Plain(kept) if Arc::ptr_eq(&kept, &object)));
    }
}
