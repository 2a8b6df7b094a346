//! Objects as they lie in a large cache: JSON, compressed against other objects of their kind, with which they have nearly
//! all in common. A pod takes 0.3 KB so, and 3 KB as it is read.

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// So much of the first objects is what the others are compressed against.
const COMMON: usize = 8 << 10;

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

    /// Packs an object. The first are left as they are.
    pub(crate) fn pack(&mut self, object: &Arc<K>) -> Packed<K> {
        let json = self.json.and_then(|(write, _)| write(object));
        match json {
            Some(json) if self.common.len() >= COMMON => {
                let packed = lz4_flex::block::compress_with_dict(&json, &self.common);
                let length = u32::try_from(json.len()).unwrap_or(u32::MAX).to_le_bytes();
                Packed::Small([&length[..], &packed].concat().into_boxed_slice())
            }
            Some(json) => {
                self.common.extend(json);
                Packed::Plain(object.clone())
            }
            None => Packed::Plain(object.clone()),
        }
    }

    /// The object. What was packed here is always there.
    pub(crate) fn unpack(&self, packed: &Packed<K>) -> Option<Arc<K>> {
        let packed = match packed {
            Packed::Plain(object) => return Some(object.clone()),
            Packed::Small(packed) => packed,
        };
        let (length, packed) = packed.split_first_chunk()?;
        let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
        let json = lz4_flex::block::decompress_with_dict(packed, length, &self.common).ok()?;
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
    fn who_does_not_pack_hands_out_what_came_in() {
        let mut packer = Packer::none();
        let object = Arc::new(1);
        assert!(matches!(packer.pack(&object), Packed::Plain(kept) if Arc::ptr_eq(&kept, &object)));
    }
}
