//! Things that belong together because others between them do: the parts of a graph that hang together.

use std::collections::BTreeMap;

/// For each of `count` things the number of its unit: that of its first member.
pub fn units(count: usize, links: impl IntoIterator<Item = (usize, usize)>) -> Vec<usize> {
    let mut parents: Vec<usize> = (0..count).collect();
    for (one, other) in links {
        let (one, other) = (root(&parents, one), root(&parents, other));
        if let Some(parent) = parents.get_mut(one.max(other)) {
            *parent = one.min(other);
        }
    }
    (0..count).map(|thing| root(&parents, thing)).collect()
}

/// Links between things that have a name in common.
pub fn by_name<'a, N: Ord + 'a>(names: impl IntoIterator<Item = (usize, N)>) -> Vec<(usize, usize)> {
    let mut first: BTreeMap<N, usize> = BTreeMap::new();
    let link = |(thing, name)| (thing, *first.entry(name).or_insert(thing));
    names.into_iter().map(link).collect()
}

fn root(parents: &[usize], mut thing: usize) -> usize {
    while let Some(parent) = parents.get(thing).copied().filter(|parent| *parent != thing) {
        thing = parent;
    }
    thing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_linked_through_others_is_one_unit() {
        type Case = (usize, &'static [(usize, usize)], &'static [usize]);
        let cases: [Case; 5] = [
            (0, &[], &[]),
            (3, &[], &[0, 1, 2]),
            (3, &[(2, 1)], &[0, 1, 1]),
            (4, &[(3, 2), (1, 0), (2, 1)], &[0, 0, 0, 0]),
            (5, &[(4, 1), (3, 0), (1, 1)], &[0, 1, 2, 0, 1]),
        ];
        for (count, links, expected) in cases {
            assert_eq!(units(count, links.iter().copied()), expected, "{links:?}");
        }
    }

    #[test]
    fn a_name_in_common_is_a_link() {
        let links = by_name([(0, "a"), (0, "b"), (1, "c"), (2, "b"), (2, "d"), (3, "d")]);
        assert_eq!(units(4, links), [0, 1, 0, 0]);
    }
}
