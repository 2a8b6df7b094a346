//! Who is heard, who is not, and what the peers say: the protocol as a whole, and each of its traps.

use std::time::Duration;

use super::super::monitor::{Counts, Sight};
use super::super::tracker::{Known, Refusal};
use super::super::verdict::Verdict;
use super::super::wire::{self, Message};
use super::network::{AFTER, Network, name};
use super::{address, keys};

const TWO: &[&str] = &["a", "b"];

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn is_unreachable(sight: Sight) -> bool {
    matches!(sight.verdict, Some(Verdict::Unreachable { .. }))
}

#[test]
fn never_heard_is_unknown() {
    let mut network = Network::new(5, &[]);
    network.off.insert(0);
    network.run(seconds(20));
    assert_eq!(network.of(0), Sight::default());
    assert_eq!(network.verdicts, [], "nobody was asked about it");
    assert!(network.of(1).silent_for.unwrap() <= seconds(1));
    assert_eq!(network.refused, []);
}

#[test]
fn heartbeats_that_do_not_arrive_are_told_while_their_nodes_are_well() {
    let mut network = Network::new(4, &[]);
    // A port that is closed from the beginning, and one that is closed later.
    network.cut.insert((Some(0), None));
    network.run(seconds(5));
    let count = |network: &Network| network.monitor.count(AFTER, network.now);
    assert_eq!(count(&network), Counts { heard: 3, silent: 0, missing: 1 });
    network.cut.insert((Some(1), None));
    network.run(seconds(5));
    assert_eq!(count(&network), Counts { heard: 2, silent: 1, missing: 2 });
    network.set_ready(1, false);
    assert_eq!(count(&network), Counts { heard: 2, silent: 1, missing: 1 }, "that node has failed");
    network.set_ready(1, true);
    network.cut.clear();
    network.run(seconds(2));
    assert_eq!(count(&network), Counts { heard: 4, silent: 0, missing: 0 });
}

#[test]
fn a_node_that_died_is_out_of_reach_within_seconds() {
    let mut network = Network::new(6, TWO);
    network.run(seconds(5));
    network.off.insert(0);
    network.run(seconds(3));
    assert!(!is_unreachable(network.of(0)), "too soon");
    network.run(Duration::from_millis(1500));
    assert_eq!(network.of(0).verdict, Some(Verdict::Unreachable { against: 5, asked: 5 }));
    network.run(seconds(60));
    assert!(is_unreachable(network.of(0)), "it is asked again and again");
    assert!(network.verdicts.iter().all(|verdict| matches!(verdict, Verdict::Unreachable { .. })));
    assert!(network.verdicts.len() <= 32, "{}", network.verdicts.len());
    network.off.remove(&0);
    network.run(Duration::from_millis(1100));
    assert_eq!(network.of(0).verdict, None, "of a node that is heard again nothing of before counts");
    assert!(network.of(0).silent_for.unwrap() < AFTER);
}

#[test]
fn an_echo_of_the_node_vetoes() {
    let mut network = Network::new(6, TWO);
    network.run(seconds(5));
    // The node does not reach the replica, and of all peers only one reaches the node.
    network.cut.insert((Some(0), None));
    for peer in [1, 3, 4, 5] {
        network.cut.insert((Some(peer), Some(0)));
    }
    network.run(seconds(20));
    assert!(network.verdicts.iter().filter(|verdict| **verdict == Verdict::Reachable).count() >= 5);
    assert!(!is_unreachable(network.of(0)));
    network.cut.insert((Some(2), Some(0)));
    network.run(seconds(5));
    assert!(is_unreachable(network.of(0)));
}

#[test]
fn whom_a_peer_reached_is_not_out_of_reach() {
    let mut network = Network::new(6, TWO);
    network.run(seconds(5));
    // Only the way to the replica is gone: it may know of its neighbours all the time.
    network.cut.insert((Some(0), None));
    network.run(seconds(20));
    let sight = network.of(0);
    assert!(sight.silent_for.unwrap() >= seconds(19) && sight.out_of_reach_for.unwrap() <= seconds(4), "{sight:?}");
    network.off.insert(0);
    network.run(seconds(10));
    let sight = network.of(0);
    let out_of_reach = sight.out_of_reach_for.unwrap();
    assert!(is_unreachable(sight) && out_of_reach >= seconds(10) && out_of_reach <= seconds(14), "{sight:?}");
    network.off.remove(&0);
    network.cut.clear();
    network.run(seconds(2));
    assert!(network.of(0).out_of_reach_for.unwrap() <= seconds(1));
}

#[test]
fn too_few_peers_decide_nothing() {
    for (agents, zones, cut_off, enough) in [
        (4, &[][..], vec![], true),
        (3, &[][..], vec![], false),
        // n0 is of zone a, as n2 and n4 are: outside are n1 and n3.
        (5, TWO, vec![], true),
        (5, TWO, vec![3], false),
        (6, TWO, vec![1, 3], false),
        (6, &["a"][..], vec![], true),
        (6, &[][..], vec![1, 2, 3], false),
    ] {
        let mut network = Network::new(agents, zones);
        network.off.extend(&cut_off);
        network.run(seconds(5));
        network.off.insert(0);
        network.run(seconds(10));
        assert_eq!(is_unreachable(network.of(0)), enough, "{agents} {zones:?} {cut_off:?}");
        let told = network.verdicts.contains(&Verdict::TooFewPeers);
        assert_eq!(told, !enough, "{agents} {zones:?} {cut_off:?}");
    }
}

#[test]
fn peers_that_were_not_heard_of_late_are_not_asked() {
    let mut network = Network::new(8, &[]);
    network.run(seconds(5));
    // The replica is deaf for most of the nodes: those that it hears are two.
    for number in 0..6 {
        network.cut.insert((Some(number), None));
    }
    network.run(seconds(20));
    assert!((0..6).all(|number| !is_unreachable(network.of(number))));
}

#[test]
fn a_peer_that_reaches_nobody_has_no_vote() {
    let mut network = Network::new(6, &[]);
    network.run(seconds(5));
    network.cut.insert((Some(0), None));
    // All reach the replica, and none of them another.
    for from in 0..6 {
        for to in 0..6 {
            network.cut.insert((Some(from), Some(to)));
        }
    }
    network.run(seconds(20));
    assert!(!network.verdicts.is_empty());
    assert!(network.verdicts.iter().all(|verdict| *verdict == Verdict::Inconclusive), "{:?}", network.verdicts);
}

#[test]
fn the_silence_of_peers_is_no_vote() {
    let mut network = Network::new(6, &[]);
    network.run(seconds(5));
    network.off.insert(0);
    // Asks do not reach three of five: two against are no majority.
    for peer in [1, 2, 3] {
        network.cut.insert((None, Some(peer)));
    }
    network.run(seconds(20));
    assert!(!network.verdicts.is_empty());
    assert!(network.verdicts.iter().all(|verdict| *verdict == Verdict::Inconclusive), "{:?}", network.verdicts);
    network.cut.remove(&(None, Some(1)));
    network.run(seconds(5));
    assert_eq!(network.of(0).verdict, Some(Verdict::Unreachable { against: 3, asked: 5 }));
}

#[test]
fn who_leaves_in_order_is_unknown_and_its_successor_is_heard() {
    let mut network = Network::new(5, &[]);
    network.run(seconds(5));
    let last = network.agents.get_mut(&0).unwrap().leave();
    network.off.insert(0);
    for (_, datagram) in &last {
        network.monitor.receive(datagram, network.now).unwrap();
    }
    network.run(seconds(10));
    assert_eq!(network.of(0), Sight::default());
    assert_eq!(network.verdicts, []);
    // What was sent before good-bye does not bring it back.
    for datagram in network.taped.clone() {
        assert_eq!(network.monitor.receive(&datagram, network.now), Err(Refusal::Replayed));
    }
    network.begin(0, keys(77), None);
    network.off.remove(&0);
    network.run(seconds(2));
    assert!(network.of(0).silent_for.unwrap() <= seconds(1));
}

#[test]
fn an_agent_that_was_killed_is_another_when_it_is_back() {
    let mut network = Network::new(5, &[]);
    network.run(seconds(5));
    network.off.insert(0);
    network.run(seconds(5));
    assert!(is_unreachable(network.of(0)));
    network.begin(0, keys(77), None);
    assert_eq!(network.of(0), Sight::default(), "of the new process nothing is known");
}

#[test]
fn nothing_is_taken_twice_or_of_somebody_else() {
    let mut network = Network::new(4, &[]);
    network.run(seconds(5));
    let taped = network.taped.clone();
    for datagram in &taped {
        assert_eq!(network.monitor.receive(datagram, network.now), Err(Refusal::Replayed));
    }
    // A node that is known no more and then again by the same key has not begun anew.
    let known = Known { key: keys(1).public(), at: address(0), zone: None, is_ready: true };
    network.monitor.know(&name(0), None);
    network.monitor.know(&name(0), Some(known));
    for datagram in &taped {
        assert_eq!(network.monitor.receive(datagram, network.now), Err(Refusal::Replayed));
    }
    let stranger = keys(200).with_replica(network.replica().key).unwrap();
    let (own, other) = (keys(200).public().id(), keys(1).public().id());
    let unknown = wire::seal(&stranger, own, 1, &Message::Heartbeat);
    assert_eq!(network.monitor.receive(&unknown, network.now), Err(Refusal::UnknownSender));
    let forged = wire::seal(&stranger, other, u64::MAX, &Message::Heartbeat);
    assert_eq!(network.monitor.receive(&forged, network.now), Err(Refusal::Forged));
    assert_eq!(network.monitor.receive(b"hello", network.now), Err(Refusal::Malformed));
    let pair = keys(1).with_replica(network.replica().key).unwrap();
    let echo = wire::seal(&pair, other, u64::MAX, &Message::Echo([0; 16]));
    assert_eq!(network.monitor.receive(&echo, network.now), Err(Refusal::Unexpected));
    let unasked = Message::Answer { round: 1, target: None, witness: None };
    let answer = wire::seal(&pair, other, 1_000_000, &unasked);
    assert_eq!(network.monitor.receive(&answer, network.now), Err(Refusal::Unexpected));
}

/// A peer that lies can say that it reaches nobody, but it cannot make the node's echo, nor another's vote.
#[test]
fn a_peer_forges_neither_echo_nor_witness() {
    let mut network = Network::new(4, &[]);
    network.run(seconds(5));
    network.off.insert(0);
    network.asks = false;
    network.run(seconds(4));
    network.asks = true;
    let now = network.now;
    let mut count = 0u128;
    let mut fresh = || {
        count += 1;
        Ok(count.to_be_bytes())
    };
    let look = network.monitor.look(Some(AFTER), now, &mut fresh).unwrap();
    assert_eq!(look.send.len(), 3);
    for (to, datagram) in look.send {
        let number = usize::from(match to.ip() {
            std::net::IpAddr::V4(address) => address.octets()[3],
            std::net::IpAddr::V6(_) => 0,
        });
        let liar = keys(number as u8 + 1);
        let pair = liar.with_replica(network.replica().key).unwrap();
        let Message::Ask { round, target, witness } = wire::parse(&datagram).unwrap().message else { panic!("no Ask") };
        let Message::Probe(nonce) = wire::parse(&target.probe).unwrap().message else { panic!("no Probe") };
        let Message::Probe(other) = wire::parse(&witness.probe).unwrap().message else { panic!("no Probe") };
        let forge = |id, nonce| wire::carried(&wire::seal(&pair, id, 1, &Message::Echo(nonce)));
        let sent = wire::seal(
            &pair,
            liar.public().id(),
            1_000_000,
            &Message::Answer {
                round,
                target: forge(keys(1).public().id(), nonce),
                witness: forge(wire::parse(&datagram).unwrap().sender, other),
            },
        );
        network.monitor.receive(&sent, now).unwrap();
        // One word each.
        let again =
            wire::seal(&pair, liar.public().id(), 1_000_001, &Message::Answer { round, target: None, witness: None });
        assert_eq!(network.monitor.receive(&again, now), Err(Refusal::Unexpected));
    }
    let look = network.monitor.look(Some(AFTER), now + Duration::from_millis(200), &mut fresh).unwrap();
    assert_eq!(look.verdicts, [Verdict::Inconclusive]);
}

#[test]
fn the_replica_that_begins_anew_knows_nothing_and_refuses_what_was_for_the_old_one() {
    let mut network = Network::new(5, &[]);
    network.run(seconds(5));
    let taped = network.taped.clone();
    network.off.insert(0);
    network.restart_replica(keys(254));
    network.refused.clear();
    for datagram in taped {
        assert_eq!(network.monitor.receive(&datagram, network.now), Err(Refusal::Forged));
    }
    network.run(seconds(10));
    assert!((0..5).all(|number| network.of(number) == Sight::default()), "the agents do not know of it yet");
    assert!(network.refused.iter().all(|refusal| *refusal == Refusal::Forged) && !network.refused.is_empty());
    network.tell_replica();
    network.run(seconds(10));
    assert_eq!(network.of(0), Sight::default(), "not heard since the start");
    assert!(network.of(1).silent_for.unwrap() <= seconds(1));
}

#[test]
fn time_in_which_the_replica_stood_still_is_nobodys_silence() {
    let mut network = Network::new(5, &[]);
    network.run(seconds(5));
    for pause in [2, 30, 3600] {
        network.is_paused = true;
        network.run(seconds(pause.min(60)));
        network.now += seconds(pause.saturating_sub(60));
        assert_eq!(network.of(1), Sight::default(), "right after the pause nothing is known");
        network.is_paused = false;
        network.run(Duration::from_millis(300));
        assert!(network.of(1).silent_for.unwrap() <= seconds(1));
        network.run(seconds(5));
        assert_eq!(network.verdicts, [], "after a pause of {pause} s");
    }
}

#[test]
fn pauses_of_two_seconds_declare_nobody() {
    let mut network = Network::new(5, &[]);
    network.run(seconds(5));
    for number in (0..5).cycle().take(25) {
        network.off.insert(number);
        network.run(seconds(2));
        network.off.remove(&number);
        network.run(Duration::from_millis(700));
        assert!((0..5).all(|number| !is_unreachable(network.of(number))));
    }
    assert!(!network.verdicts.iter().any(|verdict| matches!(verdict, Verdict::Unreachable { .. })));
}

#[test]
fn a_rolling_upgrade_and_then_another_leader_declare_nobody() {
    let mut network = Network::new(6, TWO);
    network.monitor.introduce(true);
    network.run(seconds(15));
    for number in 0..6 {
        let last = network.agents.get_mut(&number).unwrap().leave();
        let replica = network.replica().at;
        for (_, datagram) in last.iter().filter(|(to, _)| *to == replica) {
            network.monitor.receive(datagram, network.now).unwrap();
        }
        network.off.insert(number);
        network.run(seconds(8));
        network.off.remove(&number);
        network.begin(number, keys(100 + number as u8), Some(TWO[number % 2].to_owned()));
        network.run(seconds(2));
    }
    network.restart_replica(keys(254));
    network.run(seconds(5));
    network.tell_replica();
    network.run(seconds(20));
    assert_eq!(network.verdicts, [], "nobody was even asked about anybody");
    assert!((0..6).all(|number| network.of(number).silent_for.unwrap() <= seconds(1)));
}

#[test]
fn lost_datagrams_declare_nobody() {
    // A quarter of an hour each.
    for loss in [10, 100] {
        let mut network = Network::new(20, TWO);
        network.loss = loss;
        network.run(seconds(900));
        let against = network.verdicts.iter().filter(|verdict| matches!(verdict, Verdict::Unreachable { .. })).count();
        assert_eq!(against, 0, "{loss} of 1000 lost: {:?}", network.verdicts);
        // And who dies is found all the same.
        network.off.insert(0);
        network.run(seconds(12));
        assert!(is_unreachable(network.of(0)), "{loss} of 1000 lost");
    }
}

#[test]
fn only_the_replica_that_is_to_ask_does() {
    let mut network = Network::new(5, &[]);
    network.asks = false;
    network.run(seconds(5));
    network.off.insert(0);
    network.run(seconds(10));
    assert_eq!(network.verdicts, []);
    // It has listened all the time: it needs no start.
    network.asks = true;
    network.run(seconds(1));
    assert!(is_unreachable(network.of(0)));
}
