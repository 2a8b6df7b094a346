//! When a path is lost, when it is back, and when nobody can tell.

use crate::api::driver_report::BackendState;

use super::*;

const NODES: usize = 10;

/// Nine nodes that are well, and the first.
fn first(answer: Answer) -> [Answer; NODES] {
    let mut answers = [UP; NODES];
    answers[0] = answer;
    answers
}

#[test]
fn a_row_of_answers_loses_a_path_and_a_row_brings_it_back() {
    let lost: &[&str] = &["n0"];
    let cases: [(&str, Vec<Answer>, &[&str]); 9] = [
        ("two are not enough", vec![UP, DOWN, DOWN], &[]),
        ("three are", vec![UP, DOWN, DOWN, DOWN], lost),
        ("from the beginning too", vec![DOWN, DOWN, DOWN], lost),
        ("in a row", vec![DOWN, DOWN, UP, DOWN, DOWN, UP, DOWN], &[]),
        ("nor does silence count", vec![DOWN, DOWN, DUMB, DOWN, DOWN, DUMB, DUMB, DUMB], &[]),
        ("silence alone is no loss", vec![DUMB; 30], &[]),
        ("one good answer and it is not sure any more", vec![DOWN, DOWN, DOWN, UP], &[]),
        ("nor after a silence", vec![DOWN, DOWN, DOWN, DUMB], &[]),
        ("a row after that loses it again", vec![DOWN, DOWN, DOWN, DUMB, DOWN, DOWN, DOWN], lost),
    ];
    for (name, answers, wanted) in cases {
        let mut backend = Backend::new(NODES);
        answers.into_iter().for_each(|answer| backend.cycle(&first(answer)));
        assert_eq!(backend.lost(), wanted, "{name}");
    }
}

#[test]
fn a_row_stays_until_the_path_is_proved_to_be_back() {
    let mut backend = Backend::new(NODES);
    backend.cycles(3, &first(DOWN));
    assert_eq!(backend.rows()["n0"], (PathState::Disconnected, "NotConnected".into()));
    backend.cycle(&first(UP));
    assert_eq!(backend.rows()["n0"], (PathState::Unknown, "Recovering".into()));
    backend.cycle(&first(DUMB));
    backend.cycles(2, &first(UP));
    assert_eq!(backend.rows().len(), 1, "a silence between begins it anew");
    backend.cycle(&first(UP));
    assert!(backend.rows().is_empty());
}

#[test]
fn who_does_not_answer_for_long_is_unknown_and_answers_bring_it_back() {
    let mut backend = Backend::new(NODES);
    backend.cycle(&first(UP));
    backend.cycles(2, &first(DUMB));
    assert!(backend.rows().is_empty());
    backend.cycle(&first(DUMB));
    assert_eq!(backend.rows()["n0"], (PathState::Unknown, "Unavailable".into()));
    backend.cycles(3, &first(UP));
    assert!(backend.rows().is_empty());
}

#[test]
fn an_array_that_fails_in_the_middle_of_a_cycle_loses_all_its_nodes_at_once() {
    for asked_before in 1..NODES {
        let mut backend = Backend::new(NODES);
        backend.cycles(2, &[UP; NODES]);
        let mut half = [UP; NODES];
        half[asked_before..].fill(DOWN);
        backend.cycle(&half);
        for _ in 0..6 {
            backend.cycle(&[DOWN; NODES]);
            let lost = backend.lost().len();
            assert!(lost == 0 || lost == NODES, "{lost} of {NODES} look lost alone, {asked_before} were asked before");
        }
        assert_eq!(backend.lost().len(), NODES, "{asked_before}");
    }
}

#[test]
fn with_a_threshold_of_one_the_others_are_asked_once_more_all_the_same() {
    let mut backend = Backend::new(NODES);
    backend.settings.loss = 1;
    backend.cycle(&first(DOWN));
    assert_eq!(backend.lost(), Vec::<String>::new());
    backend.cycle(&first(DOWN));
    assert_eq!(backend.lost(), ["n0"]);
    // Where there is no other node there is nobody to ask.
    let mut alone = Backend::new(1);
    alone.settings.loss = 1;
    alone.cycle(&[DOWN]);
    assert_eq!(alone.lost(), ["n0"]);
}

#[test]
fn what_flaps_does_not_hide_for_ever_what_is_lost() {
    let mut backend = Backend::new(3);
    for turn in 0..12 {
        let flapping = if turn % 2 == 0 { DOWN } else { UP };
        backend.cycle(&[DOWN, flapping, flapping]);
    }
    assert_eq!(backend.lost(), ["n0"]);
}

#[test]
fn a_backend_is_silent_when_it_says_nothing_of_more_than_half_of_its_nodes() {
    let state = |backend: &Backend| backend.status().backends.first().map(|it| it.state);
    for (dumb, wanted) in [(5, BackendState::Answering), (6, BackendState::Silent), (10, BackendState::Silent)] {
        let mut backend = Backend::new(NODES);
        backend.cycle(&[UP; NODES]);
        let since = backend.status().backends[0].since;
        let mut answers = [UP; NODES];
        answers[..dumb].fill(DUMB);
        backend.cycles(2, &answers);
        assert_eq!(state(&backend), Some(BackendState::Answering), "{dumb}");
        backend.cycle(&answers);
        assert_eq!(state(&backend), Some(wanted), "{dumb}");
        assert_eq!(backend.status().backends[0].since == since, wanted == BackendState::Answering, "{dumb}");
        backend.cycle(&[UP; NODES]);
        assert_eq!(state(&backend), Some(BackendState::Answering), "{dumb}");
    }
}

/// It takes ten seconds over each node: of a thousand a hundred are asked about in a cycle.
#[test]
fn a_backend_that_hangs_for_all_is_silent_though_most_were_not_reached() {
    let state = |backend: &Backend| backend.status().backends.first().map(|it| it.state);
    let cases: [(&str, &[Answer], BackendState); 4] = [
        ("no answer about anybody", &[DUMB, DUMB], BackendState::Silent),
        ("one answer is one", &[DUMB, DUMB, UP], BackendState::Answering),
        ("also a bad one", &[DUMB, DUMB, DOWN], BackendState::Answering),
        ("one node is not many", &[DUMB], BackendState::Answering),
    ];
    for (name, answers, wanted) in cases {
        let mut backend = Backend::new(NODES);
        backend.cycle(&[UP; NODES]);
        backend.cycles(2, answers);
        assert_eq!((state(&backend), backend.rows().len()), (Some(BackendState::Answering), 0), "{name}");
        backend.cycle(answers);
        assert_eq!(state(&backend), Some(wanted), "{name}");
        let last = backend.rows().remove("n9");
        let unknown = (wanted == BackendState::Silent).then(|| (PathState::Unknown, "NotReached".to_owned()));
        assert_eq!(last, unknown, "{name}");
        assert!(backend.lost().is_empty(), "{name}");
        backend.cycles(3, &[UP; NODES]);
        assert_eq!((state(&backend), backend.rows().len()), (Some(BackendState::Answering), 0), "{name}");
    }
}

/// Who waits longest is asked first, also after cycles that did not come to it.
#[test]
fn who_was_not_reached_still_waits() {
    let mut backend = Backend::new(NODES);
    backend.cycle(&[UP; NODES]);
    let before = backend.memory.asked("n9");
    backend.cycles(3, &[DUMB, DUMB]);
    assert_eq!(backend.memory.asked("n9"), before);
    assert!(backend.memory.asked("n0") > before);
}

#[test]
fn another_node_of_the_same_name_has_nothing_to_do_with_it() {
    let mut backend = Backend::new(NODES);
    backend.cycles(2, &first(DOWN));
    backend.targets.get_mut("n0").unwrap().uid = "another".into();
    backend.memory.keep(&backend.targets, at(25));
    backend.cycles(2, &first(DOWN));
    assert!(backend.lost().is_empty());
    // One that is not asked about any more is forgotten.
    backend.cycle(&first(DOWN));
    backend.targets.remove("n0");
    backend.memory.keep(&backend.targets, at(99));
    assert!(backend.rows().is_empty());
}

#[test]
fn a_node_that_cannot_be_named_is_unknown() {
    let mut backend = Backend::new(2);
    backend.cycle(&[UP, UP]);
    backend.targets.get_mut("n0").unwrap().node_id = None;
    backend.memory.keep(&backend.targets, at(15));
    assert_eq!(backend.rows()["n0"], (PathState::Unknown, "NodeIdUnknown".into()));
    assert_eq!(backend.status().backends[0].nodes, Some(1), "it is not asked about");
}

#[test]
fn after_a_restart_nothing_is_believed_and_nothing_forgotten() {
    let mut before = Backend::new(NODES);
    before.cycles(3, &first(DOWN));
    let mut after = Backend::new(NODES);
    after.memory = Memory::from_report(&before.status(), at(100));
    assert_eq!(after.memory.lost().into_iter().collect::<Vec<_>>(), ["n0"]);
    after.memory.keep(&after.targets, at(100));
    after.seconds = 100;
    assert_eq!(after.rows()["n0"], (PathState::Unknown, "SidecarRestarted".into()));
    after.cycles(2, &first(DOWN));
    assert!(after.lost().is_empty());
    after.cycle(&first(DOWN));
    assert_eq!(after.lost(), ["n0"]);
    after.cycles(3, &first(UP));
    assert!(after.rows().is_empty());
}
