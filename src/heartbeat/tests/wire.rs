//! Datagrams and the keys that seal them.

use proptest::prelude::*;

use super::super::keys::{KeyId, KeyPair, PublicKey, random};
use super::super::wire::*;
use super::{address, keys};

fn messages() -> Vec<(Message, usize)> {
    let pair = keys(1).with_replica(keys(2).public()).unwrap();
    let probe = carried(&seal(&pair, KeyId([3; 8]), 1, &Message::Probe([4; NONCE]))).unwrap();
    let neighbour = |at| Neighbour { key: keys(9).public(), at };
    let errand = |to| Errand { to, probe };
    let six = "[fd00::1]:9810".parse().unwrap();
    vec![
        (Message::Heartbeat, BEAT),
        (Message::Leaving, BEAT),
        (Message::Ask { round: 7, target: errand(address(1)), witness: errand(six) }, ASK),
        (Message::Probe([5; NONCE]), PROBE),
        (Message::Echo([6; NONCE]), PROBE),
        (Message::Answer { round: 7, target: None, witness: Some(probe) }, ANSWER),
        (Message::Answer { round: 7, target: Some(probe), witness: None }, ANSWER),
        (Message::Introduce(Vec::new()), INTRODUCE),
        (Message::Introduce(vec![neighbour(six), neighbour(address(3))]), INTRODUCE),
    ]
}

#[test]
fn what_is_sealed_is_read_and_has_the_size_of_its_kind() {
    let pair = keys(1).with_replica(keys(2).public()).unwrap();
    for (message, size) in messages() {
        let sealed = seal(&pair, keys(1).public().id(), 42, &message);
        assert_eq!(sealed.len(), size, "{message:?}");
        assert!(size <= LONGEST);
        let read = parse(&sealed).unwrap();
        assert_eq!((read.sender, read.counter, &read.message), (keys(1).public().id(), 42, &message));
        assert!(read.is_of(&pair));
    }
}

#[test]
fn both_sides_have_the_same_key_and_nobody_else() {
    let (agent, replica, other) = (keys(1), keys(2), keys(3));
    let of_agent = agent.with_replica(replica.public()).unwrap();
    let of_replica = replica.with_agent(agent.public()).unwrap();
    let tag = of_agent.tag(b"text");
    assert!(of_replica.verifies(b"text", &tag));
    assert!(!of_replica.verifies(b"texT", &tag));
    for stranger in [
        other.with_agent(agent.public()).unwrap(),
        other.with_replica(replica.public()).unwrap(),
        // Nor are the two sides one.
        agent.with_agent(replica.public()).unwrap(),
    ] {
        assert!(!stranger.verifies(b"text", &tag));
    }
}

#[test]
fn a_key_that_everybody_would_share_is_none() {
    let zero = PublicKey::parse(&"0".repeat(64)).unwrap();
    assert!(keys(1).with_replica(zero).is_none());
    assert!(keys(1).with_agent(zero).is_none());
}

#[test]
fn public_keys_are_read_as_they_are_written() {
    let key = KeyPair::generate().unwrap().public();
    assert_eq!(PublicKey::parse(&key.to_string()), Some(key));
    for wrong in
        [String::new(), "0".repeat(63), "0".repeat(65), "G".repeat(64), "é".repeat(32), key.to_string().to_uppercase()]
    {
        // A key without letters is the same in capitals.
        let is_key = PublicKey::parse(&wrong).is_some();
        assert_eq!(is_key, wrong == key.to_string(), "{wrong}");
    }
}

#[test]
fn no_bit_can_be_changed() {
    let pair = keys(1).with_replica(keys(2).public()).unwrap();
    for (message, _) in messages() {
        let sealed = seal(&pair, keys(1).public().id(), 1, &message);
        for place in 0..sealed.len() * 8 {
            let mut changed = sealed.clone();
            changed[place / 8] ^= 1 << (place % 8);
            assert!(!parse(&changed).is_some_and(|read| read.is_of(&pair)), "bit {place} of {message:?}");
        }
        for length in 0..sealed.len() {
            assert!(!parse(&sealed[..length]).is_some_and(|read| read.is_of(&pair)), "{length} bytes of {message:?}");
        }
    }
}

#[test]
fn random_bytes_are_read_or_not_and_never_panic() {
    let mut bytes = [0; LONGEST + 8];
    for turn in 0..200_000usize {
        if turn % 16 == 0 {
            bytes = random().unwrap();
        }
        // Most have a version and a kind that exist, or nothing behind them would be read.
        let length = turn % bytes.len();
        bytes[0] = 1;
        bytes[1] = (turn % 8) as u8;
        bytes[length] ^= turn as u8;
        if let Some(read) = parse(&bytes[..length]) {
            let sizes = [BEAT, ASK, PROBE, ANSWER, INTRODUCE];
            assert!(sizes.contains(&length), "{read:?} of {length} bytes");
        }
    }
}

#[test]
fn no_secret_is_shown() {
    let pair = KeyPair::from_secret([0xa7; 32]);
    let shared = pair.with_replica(keys(2).public()).unwrap();
    for shown in [format!("{pair:?}"), format!("{shared:?}"), format!("{:?}", Some((&pair, &shared)))] {
        assert!(!shown.contains("a7a7") && !shown.contains("167, 167") && shown.len() < 200, "{shown}");
    }
    assert_eq!(format!("{shared:?}"), "PairKey");
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_not(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let pair = keys(1).with_replica(keys(2).public()).unwrap();
        prop_assert!(!parse(&bytes).is_some_and(|read| read.is_of(&pair)));
    }

    #[test]
    fn any_nonce_and_counter_survives(nonce: [u8; 16], counter: u64, sender: [u8; 8]) {
        let pair = keys(1).with_replica(keys(2).public()).unwrap();
        let sealed = seal(&pair, KeyId(sender), counter, &Message::Echo(nonce));
        let read = parse(&sealed).unwrap();
        prop_assert_eq!(read.sender, KeyId(sender));
        prop_assert_eq!(read.counter, counter);
        prop_assert_eq!(&read.message, &Message::Echo(nonce));
    }
}
