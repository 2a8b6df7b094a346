//! Who is introduced to whom, and what agents hear of each other.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::super::agent::Agent;
use super::super::peers::Peers;
use super::super::wire::{self, Message, NEIGHBOURS_MAX, Neighbour};
use super::network::Network;
use super::{address, keys};

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn introduced(agents: usize) -> Network {
    let mut network = Network::new(agents, &[]);
    network.monitor.introduce(true);
    network.run(seconds(15));
    network
}

/// How many neighbours an agent hears, and for how long it has heard none.
fn heard(network: &Network, number: usize) -> (usize, Option<u64>) {
    let heard = network.agents[&number].heard();
    (heard.neighbours, heard.at.map(|at| (network.now - at).as_secs()))
}

#[test]
fn each_agent_hears_its_neighbours() {
    for (agents, expected) in [(1, 0), (2, 1), (3, 2), (7, 6), (8, NEIGHBOURS_MAX), (40, NEIGHBOURS_MAX)] {
        let network = introduced(agents);
        assert!((0..agents).all(|number| heard(&network, number).0 == expected), "{agents} agents");
    }
    let mut network = Network::new(5, &[]);
    network.run(seconds(30));
    assert_eq!(heard(&network, 0), (0, None), "nobody asked for it");
}

#[test]
fn of_two_neighbours_each_is_the_others() {
    let network = introduced(25);
    let of = |number: &usize| -> BTreeSet<String> {
        let known = serde_json::to_value(network.agents[number].acquaintance()).unwrap();
        let known = known["neighbours"].as_array().unwrap().clone();
        known.into_iter().map(|one| one[0].as_str().unwrap().to_owned()).collect()
    };
    let key = |number: usize| keys(number as u8 + 1).public().to_string();
    for one in 0..25 {
        for other in 0..25 {
            assert_eq!(of(&one).contains(&key(other)), of(&other).contains(&key(one)), "{one} and {other}");
        }
    }
}

#[test]
fn who_is_cut_off_hears_nobody_and_the_others_go_on() {
    let mut network = introduced(8);
    network.cut_off(0);
    network.run(seconds(20));
    assert_eq!(heard(&network, 0), (6, Some(20)), "how many there were is known");
    assert!((1..8).all(|number| heard(&network, number).1 == Some(0)));
    // Two that are cut off together are not alone.
    let mut network = introduced(3);
    network.cut.extend((1..3).flat_map(|number| [(Some(0), Some(number)), (Some(number), Some(0))]));
    network.run(seconds(20));
    assert_eq!(heard(&network, 1), (1, Some(0)), "who fell silent long before the last is not counted");
}

#[test]
fn who_goes_or_begins_anew_in_order_is_known_again() {
    let mut network = introduced(4);
    for number in 0..4 {
        let last = network.agents.get_mut(&number).unwrap().leave();
        let now = network.now;
        for (to, datagram) in last {
            let other = (0..4).find(|other| address(*other as u16) == to);
            other.map(|other| network.agents.get_mut(&other).unwrap().receive(address(number as u16), &datagram, now));
        }
        assert!((0..4).filter(|other| *other != number).all(|other| heard(&network, other).0 == 2));
        network.begin(number, keys(100 + number as u8), None);
        network.run(seconds(25));
        assert!((0..4).all(|number| heard(&network, number) == (3, Some(0))));
    }
}

#[test]
fn an_agent_that_begins_while_no_replica_is_there_asks_whom_its_predecessor_knew() {
    let mut network = introduced(4);
    network.is_paused = true;
    network.run(seconds(5));
    let known = network.agents[&0].acquaintance();
    network.begin_with(0, Agent::after(keys(100), &known), keys(100), None);
    network.run(seconds(5));
    assert_eq!(heard(&network, 0), (3, Some(0)), "they know its predecessor's key");
    assert_eq!(heard(&network, 1), (3, Some(0)), "and it answers under that");
    network.is_paused = false;
    network.run(seconds(15));
    assert_eq!(heard(&network, 0), (3, Some(0)), "introduced anew, under its own");
    let text = serde_json::to_string(&network.agents[&0].acquaintance()).unwrap();
    assert!(!format!("{:?}", network.agents[&0]).contains("secret") && text.contains("secret"));
}

#[test]
fn nobody_else_is_taken_for_a_neighbour() {
    let (now, from) = (Instant::now(), address(9));
    let (own, other, stranger) = (keys(1), keys(2), keys(3));
    let mut peers = Peers::new(own.clone());
    peers.introduced(&[Neighbour { key: other.public(), at: address(2) }]);
    let mut last = [0; 16];
    peers
        .ask(|| {
            last = [5; 16];
            Ok(last)
        })
        .unwrap();
    let sealed = |by: &crate::heartbeat::keys::KeyPair, as_of: &crate::heartbeat::keys::KeyPair, message| {
        wire::seal(&by.with_peer(own.public()).unwrap(), as_of.public().id(), 1, &message)
    };
    let mut take = |bytes: &[u8]| peers.receive(from, &wire::parse(bytes).unwrap(), now).is_some();
    assert!(!take(&sealed(&stranger, &stranger, Message::Echo(last))));
    assert!(!take(&sealed(&stranger, &other, Message::Echo(last))), "another's seal");
    assert!(!take(&sealed(&other, &other, Message::Echo([6; 16]))), "another nonce");
    assert!(!take(&sealed(&stranger, &stranger, Message::Probe(last))), "strangers are not answered");
    let as_agent = wire::seal(&other.with_agent(own.public()).unwrap(), other.public().id(), 1, &Message::Echo(last));
    assert!(!take(&as_agent), "the key of agents and replicas is another");
    assert!(take(&sealed(&other, &other, Message::Probe(last))));
    assert_eq!(peers.heard().at, None);
    let echo = sealed(&other, &other, Message::Echo(last));
    peers.receive(from, &wire::parse(&echo).unwrap(), now);
    assert_eq!(peers.heard().at, Some(now));
    peers.receive(from, &wire::parse(&echo).unwrap(), now + seconds(5));
    assert_eq!(peers.heard().at, Some(now), "the same again tells nothing");
}
