//! The question about I/O before the first call, as tables: when it is asked, of whom, and what the answer is worth.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::fence_request::{FenceOutcome, IO_IN_PROGRESS, RequestedVolume};
use crate::api::fencing::Proof;

use super::io::{Question, questions};
use super::tests::{Case, HANDLE, NODE, sends};

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn it_is_asked_after_the_read_and_before_the_record() {
    let asking = || Case::new().asks_about_io();
    assert!(asking().decide().ask.is_empty(), "the list comes first: it tells whose I/O it is");
    let asked = asking().read(0, &[NODE]).decide();
    let own = Question { own: set(&[HANDLE]), ..Question::default() };
    assert_eq!((asked.ask, asked.effects), (BTreeMap::from([(NODE.to_owned(), own)]), Vec::new()));
    // A driver that does not list the node has nothing to be asked about.
    assert_eq!(asking().read(0, &["other"]).answer().reason.as_deref(), Some("NeverPublished"));
    // Nobody who does not want it asks.
    assert!(Case::new().read(0, &[NODE]).decide().ask.is_empty());
}

#[test]
fn io_is_an_answer_without_started_and_all_else_begins() {
    let vetoed = Case::new().asks_about_io().read(0, &[NODE]).busy(&[NODE]).answer();
    assert_eq!((vetoed.result, vetoed.reason.as_deref()), (FenceOutcome::Failed, Some(IO_IN_PROGRESS)));
    assert_eq!((vetoed.started_at, vetoed.proof), (None, Proof::None));
    for others in [&[][..], &["other"]] {
        let begun = Case::new().asks_about_io().read(0, &[NODE]).busy(others).answer();
        assert!(begun.result == FenceOutcome::Started && begun.started_at.is_some(), "{others:?}: {begun:?}");
    }
}

#[test]
fn what_was_begun_goes_on_whatever_the_driver_says() {
    let begun = Case::new().asks_about_io().begun(1).busy(&[NODE]).decide();
    assert!(sends(&begun) && begun.ask.is_empty(), "{begun:?}");
}

#[test]
fn a_veto_of_an_earlier_round_is_no_answer() {
    let mut case = Case::new().asks_about_io().read(0, &[NODE]).busy(&[NODE]);
    let vetoed = case.answer();
    case = case.answered(vetoed.clone()).asked_again(2);
    assert!(!case.decide().ask.is_empty(), "it is asked anew");
    let begun = case.busy(&[]).answer();
    assert_eq!((begun.result, begun.round), (FenceOutcome::Started, 2));
    let same = Case::new().asks_about_io().answered(vetoed).decide();
    assert!(same.ask.is_empty() && same.read.is_empty() && same.effects.is_empty(), "the round is answered: {same:?}");
}

#[test]
fn a_proof_that_needs_no_list_asks_without_one_too() {
    let unlisted = Case::new().minimum(Proof::Acknowledged).asks_about_io().unreadable();
    let asked = unlisted.decide().ask;
    assert_eq!(asked.get(NODE).map(|question| &question.own), Some(&set(&[HANDLE])));
    assert_eq!(unlisted.busy(&[NODE]).answer().reason.as_deref(), Some(IO_IN_PROGRESS));
}

/// Volumes with the nodes that have them; the node that is asked about is `a`.
fn asked(listed: &[(&str, &[&str])], wanted: &[&str]) -> Question {
    let seen = Case::new().asks_about_io().lists(listed);
    let volume = |handle: &&str| RequestedVolume {
        volume_handle: (*handle).to_owned(),
        node_id: "a".into(),
        ..seen.request.spec.volumes[0].clone()
    };
    let volumes: Vec<_> = wanted.iter().map(volume).collect();
    let mut questions = questions(&seen, &volumes);
    assert_eq!(questions.len(), 1, "one question however many volumes there are");
    questions.remove("a").expect("about the node")
}

#[test]
fn of_shared_volumes_a_node_that_has_none_of_them_is_the_control() {
    type Case<'a> = (&'a str, &'a [(&'a str, &'a [&'a str])], (&'a [&'a str], &'a [&'a str], Option<&'a str>));
    let cases: [Case; 5] = [
        ("its own", &[("v", &["a"]), ("w", &["b"])], (&["v"], &[], None)),
        ("shared, and another node has none", &[("v", &["a", "b"]), ("w", &["c"])], (&[], &["v"], Some("c"))),
        ("shared by all that are known", &[("v", &["a", "b"]), ("w", &["b"])], (&[], &["v"], None)),
        ("an empty node id is nobody", &[("v", &["a", "b"]), ("w", &[""])], (&[], &["v"], None)),
        ("not listed", &[("w", &["b"])], (&["v"], &[], None)),
    ];
    for (name, listed, (own, shared, control)) in cases {
        let question = asked(listed, &["v"]);
        let wanted = Question { own: set(own), shared: set(shared), control: control.map(str::to_owned) };
        assert_eq!(question, wanted, "{name}");
    }
    let both = asked(&[("v", &["a"]), ("s", &["a", "b"]), ("w", &["c"])], &["v", "s"]);
    assert_eq!(both, Question { own: set(&["v"]), shared: set(&["s"]), control: Some("c".into()) });
}

#[test]
fn of_what_is_not_attached_nobody_is_asked() {
    let seen = Case::new().asks_about_io().lists(&[]);
    let attached = &seen.request.spec.volumes[0];
    let unattached =
        RequestedVolume { volume_handle: "shared".into(), attach_required: Some(false), ..attached.clone() };
    let questions = questions(&seen, [attached, &unattached]);
    let own = questions.values().map(|question| &question.own).collect::<Vec<_>>();
    assert_eq!(own, [&set(&[attached.volume_handle.as_str()])]);
    assert!(questions.values().all(|question| question.shared.is_empty()));
}
