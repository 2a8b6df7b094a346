//! Where something is found by a value, without keeping the value: by its hash. Who looks makes sure that what it finds is
//! what it looked for.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};

/// From values to places.
#[derive(Debug, Default)]
pub(crate) struct Places {
    hasher: RandomState,
    by_hash: HashMap<u64, Found>,
}

/// Most values have one place: a set for each would be larger than what it finds.
#[derive(Debug)]
enum Found {
    One(u32),
    Many(Vec<u32>),
}

impl Places {
    /// Where something of that value may be.
    pub(crate) fn of(&self, value: &(impl Hash + ?Sized)) -> &[u32] {
        match self.by_hash.get(&self.hasher.hash_one(value)) {
            None => &[],
            Some(Found::One(place)) => std::slice::from_ref(place),
            Some(Found::Many(places)) => places,
        }
    }

    /// Something of that value is there from now on. Of one thing a value is added once, or several times in a row.
    pub(crate) fn add(&mut self, value: &(impl Hash + ?Sized), place: u32) {
        let found = self.by_hash.entry(self.hasher.hash_one(value)).or_insert(Found::One(place));
        match found {
            Found::One(known) if *known == place => {}
            Found::One(known) => *found = Found::Many(vec![*known, place]),
            // All need not be looked at: of one driver there may be 50,000 volumes.
            Found::Many(places) if places.last() == Some(&place) => {}
            Found::Many(places) => places.push(place),
        }
    }

    /// It is not there any more.
    pub(crate) fn remove(&mut self, value: &(impl Hash + ?Sized), place: u32) {
        let hash = self.hasher.hash_one(value);
        let is_last = match self.by_hash.get_mut(&hash) {
            None => false,
            Some(Found::One(known)) => *known == place,
            Some(Found::Many(places)) => {
                if let Some(at) = places.iter().position(|known| *known == place) {
                    places.swap_remove(at);
                }
                places.is_empty()
            }
        };
        if is_last {
            self.by_hash.remove(&hash);
        }
    }

    /// Whether nothing is anywhere.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.by_hash.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_come_and_go() {
        let mut places = Places::default();
        for place in [7, 7, 8, 8, 9] {
            places.add("a", place);
        }
        places.add("b", 7);
        assert_eq!((places.of("a"), places.of("b"), places.of("c")), (&[7, 8, 9][..], &[7][..], &[][..]));
        places.remove("a", 7);
        places.remove("b", 8);
        assert_eq!((places.of("a"), places.of("b")), (&[9, 8][..], &[7][..]));
        places.remove("a", 9);
        places.remove("a", 8);
        places.remove("b", 7);
        assert!(places.is_empty());
    }
}
