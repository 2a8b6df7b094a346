//! The end of what a program said, in bounded memory. Pure.

use std::collections::VecDeque;

/// Keeps the last bytes of a stream.
#[derive(Debug)]
pub struct Tail {
    bytes: VecDeque<u8>,
    room: usize,
    /// Whether bytes went that are not kept any more.
    cut: bool,
}

impl Tail {
    /// Keeps `room` bytes.
    pub fn new(room: usize) -> Self {
        Self { bytes: VecDeque::new(), room, cut: false }
    }

    /// Adds what came.
    pub fn add(&mut self, chunk: &[u8]) {
        let kept = chunk.get(chunk.len().saturating_sub(self.room)..).unwrap_or_default();
        let surplus = (self.bytes.len() + kept.len()).saturating_sub(self.room);
        self.cut |= surplus > 0 || kept.len() < chunk.len();
        self.bytes.drain(..surplus.min(self.bytes.len()));
        self.bytes.extend(kept);
    }

    /// The text: whole lines, when its beginning is not kept.
    pub fn text(&self) -> String {
        let (one, other) = self.bytes.as_slices();
        let text = String::from_utf8_lossy(&[one, other].concat()).into_owned();
        let whole = match text.split_once('\n') {
            Some((_, rest)) if self.cut => rest,
            _ => &text,
        };
        whole.trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn whole_lines_are_left() {
        let mut tail = Tail::new(12);
        tail.add(b"first\nsecond\n");
        assert_eq!(tail.text(), "second");
        tail.add(b"third");
        assert_eq!(tail.text(), "third");
        let mut tail = Tail::new(12);
        tail.add(b"all of it\n");
        assert_eq!(tail.text(), "all of it");
    }

    #[test]
    fn no_more_is_kept_than_there_is_room_for() {
        proptest!(|(chunks in proptest::collection::vec(proptest::collection::vec(b'a'..=b'z', 0..50), 0..20))| {
            let mut tail = Tail::new(64);
            chunks.iter().for_each(|chunk| tail.add(chunk));
            let all = chunks.concat();
            let end = &all[all.len().saturating_sub(64)..];
            prop_assert_eq!(tail.text().into_bytes(), end);
        });
    }
}
