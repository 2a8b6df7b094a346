use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;

fn seeds(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(target);
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.iter().map(|file| fs::read(file).unwrap()).collect()
}

#[test]
fn each_target_has_seeds_and_each_folder_a_target() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds");
    let folders: BTreeSet<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(folders, TARGETS.iter().map(|target| target.name.to_owned()).collect());
    for target in TARGETS {
        let seeds = seeds(target.name);
        assert!(seeds.len() >= 2, "{}", target.name);
        seeds.iter().for_each(|seed| (target.feed)(seed));
    }
}

/// Neither any bytes, nor what is near to what is usual.
#[test]
fn no_parser_panics_and_what_it_accepts_is_in_its_bounds() {
    for target in TARGETS {
        let seeds = seeds(target.name);
        let near = (proptest::sample::select(seeds), any::<prop::sample::Index>(), any::<u8>(), 0..4_u8);
        let near = near.prop_map(|(mut seed, at, byte, how)| {
            let at = at.index(seed.len().max(1));
            match how {
                0 => seed.insert(at, byte),
                1 => seed.truncate(at),
                2 => seed.extend_from_within(at.min(seed.len())..),
                _ => seed.iter_mut().skip(at).take(1).for_each(|old| *old = byte),
            }
            seed
        });
        let anything = prop_oneof![near, proptest::collection::vec(any::<u8>(), 0..200)];
        let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::default() });
        let outcome = runner.run(&anything, |data| {
            (target.feed)(&data);
            Ok(())
        });
        assert!(outcome.is_ok(), "{}: {}", target.name, outcome.unwrap_err());
    }
}
