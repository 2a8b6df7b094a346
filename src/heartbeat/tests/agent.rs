//! Whom an agent answers and carries for, and how it reads who that is.

use super::super::agent::Agent;
use super::super::replicas::{self, Replica};
use super::super::wire::{self, Message};
use super::{address, keys};

#[test]
fn an_agent_answers_and_carries_for_replicas_only() {
    let (now, from) = (std::time::Instant::now(), address(7));
    let replica = keys(255);
    let mut agent = Agent::new(keys(1));
    let probe = |pair: &crate::heartbeat::keys::PairKey, id| wire::seal(pair, id, 1, &Message::Probe([9; 16]));
    let pair = replica.with_agent(keys(1).public()).unwrap();
    let good = probe(&pair, replica.public().id());
    assert_eq!(agent.receive(from, &good, now), [], "a replica that nobody told of");
    agent.set_replicas(&[Replica { key: replica.public(), at: address(999) }]);
    let echo = agent.receive(from, &good, now);
    assert_eq!(echo.len(), 1);
    assert_eq!((echo[0].0, echo[0].1.len()), (from, good.len()), "no larger than what was asked");
    let stranger = keys(3).with_agent(keys(1).public()).unwrap();
    assert_eq!(agent.receive(from, &probe(&stranger, replica.public().id()), now), []);
    assert_eq!(agent.receive(from, &probe(&stranger, keys(3).public().id()), now), []);
    let carried = wire::carried(&good).unwrap();
    let errand = |to, probe| wire::Errand { to, probe };
    let ask = |counter, probe| {
        let message =
            Message::Ask { round: 1, target: errand(address(2), probe), witness: errand(address(3), carried) };
        wire::seal(&pair, replica.public().id(), counter, &message)
    };
    assert_eq!(agent.receive(from, &ask(5, carried), now).len(), 2);
    assert_eq!(agent.receive(from, &ask(5, carried), now), [], "the same again");
    assert_eq!(agent.receive(from, &ask(6, [0; wire::PROBE]), now), [], "no probe is carried");
}

#[test]
fn the_replicas_are_read_as_they_are_written() {
    let replica = Replica { key: keys(1).public(), at: address(1) };
    let six = Replica { key: keys(2).public(), at: "[fd00::1]:9810".parse().unwrap() };
    let mut data: std::collections::BTreeMap<_, _> =
        [("a", replica), ("b", six)].map(|(name, replica)| (name.to_owned(), replicas::entry(replica))).into();
    for (name, text) in [("c", ""), ("d", "x y"), ("e", "0 10.0.0.1:1")] {
        data.insert(name.to_owned(), text.to_owned());
    }
    assert_eq!(replicas::read(&data), [replica, six]);
    for number in 0..100 {
        data.insert(format!("n{number}"), replicas::entry(replica));
    }
    assert_eq!(replicas::read(&data).len(), replicas::REPLICAS_MAX);
}
