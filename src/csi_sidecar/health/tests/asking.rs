//! What is asked of which driver, and what the answers are worth.

use super::super::clean;
use super::super::decide::{Asks, List, Lists, Offer, Offers, asks, is_any, lists_health, samples};
use super::super::memory::Volumes;
use super::super::schedule::Schedule;
use super::*;

fn offers(list: &[Offer]) -> Offers {
    list.iter().copied().collect()
}

fn list(of: &[(&str, Said)]) -> List {
    Ok(of.iter().map(|(handle, said)| ((*handle).to_owned(), said.clone())).collect())
}

#[test]
fn a_driver_is_asked_by_what_it_offers() {
    use Offer::{Condition, GetHealth, GetVolume, ListHealth, ListVolumes, PublishedNodes};
    let none = Asks::default();
    let (health, volume) = (Asks { health: true, ..none }, Asks { volume: true, ..none });
    let validate = Asks { validate: true, ..none };
    let both = Asks { health: true, volume: true, ..none };
    // What is offered; asks of a volume that is listed and attached, that was ill, and that is absent from ListVolumes.
    for (offered, usual, suspected, absent) in [
        (&[][..], none, none, none),
        (&[ListVolumes], none, none, validate),
        (&[ListVolumes, PublishedNodes, Condition], none, none, validate),
        (&[ListVolumes, PublishedNodes, Condition, GetVolume], none, none, volume),
        (&[GetVolume], volume, volume, volume),
        (&[GetVolume, PublishedNodes, Condition], volume, volume, volume),
        (&[GetHealth], health, health, health),
        (&[GetHealth, GetVolume], health, health, health),
        (&[GetHealth, GetVolume, PublishedNodes], both, both, both),
        (&[GetHealth, ListVolumes, PublishedNodes], health, health, health),
        (&[ListHealth, GetHealth, ListVolumes, PublishedNodes], none, health, health),
        (&[ListHealth, GetHealth, ListVolumes, GetVolume, Condition], none, health, health),
        // Without ListVolumes only a call of its own shows that a volume is gone.
        (&[ListHealth, GetHealth], health, health, health),
    ] {
        let offered = offers(offered);
        let has = |offer| offered.contains(&offer);
        let lists = |volumes: List| Lists {
            volumes: has(ListVolumes).then_some(volumes),
            health: lists_health(&offered).then(|| list(&[])),
        };
        let there = lists(list(&[(HANDLE, on(&["id-1"]))]));
        assert_eq!(asks(&offered, &there, HANDLE, &attached(), false), usual, "{offered:?}");
        assert_eq!(asks(&offered, &there, HANDLE, &attached(), true), suspected, "{offered:?} suspected");
        assert_eq!(asks(&offered, &lists(list(&[])), HANDLE, &attached(), false), absent, "{offered:?} absent");
        // A list that could not be read shows nobody's absence.
        let unread = Lists { volumes: has(ListVolumes).then(|| Err(failure("Unavailable"))), health: None };
        assert!(!asks(&offered, &unread, HANDLE, &attached(), false).validate, "{offered:?} unread");
        assert_eq!(is_any(&offered), !offered.is_empty());
    }
    let off = Watched { health: false, ..attached() };
    let get = offers(&[GetHealth, GetVolume, PublishedNodes]);
    assert_eq!(asks(&get, &Lists::default(), HANDLE, &off, true), volume, "only where it is published");
    let detached = Watched { health: false, ..watched() };
    assert_eq!(asks(&get, &Lists::default(), HANDLE, &detached, true), none);
}

#[test]
fn what_is_told_of_a_volumes_health() {
    use VolumeState::{DataLoss, Degraded, Inaccessible, Unknown};
    let sample = |volumes: Option<List>, health: Option<List>, answers: Vec<Result<Said, Failure>>| {
        let samples = samples(&Lists { volumes, health }, &answers, HANDLE, &watched(), &BTreeMap::new());
        assert_eq!(samples.len(), 1);
        samples.into_iter().next().unwrap().1
    };
    let bad = |sample: Sample<Cause>| match sample {
        Sample::Bad(problem) => (problem.state, problem.reason.reason),
        other => panic!("{other:?}"),
    };
    let listed = || Some(list(&[(HANDLE, Said::default())]));
    // Good needs a word about the volume itself.
    assert_eq!(sample(listed(), None, vec![]), Sample::Good);
    assert_eq!(sample(None, None, vec![Ok(well())]), Sample::Good);
    assert_eq!(sample(listed(), Some(list(&[])), vec![]), Sample::Good);
    assert_eq!(sample(Some(list(&[])), None, vec![]), Sample::Unknown, "absence alone proves nothing");
    assert_eq!(sample(Some(list(&[])), Some(list(&[])), vec![]), Sample::Unknown);
    assert_eq!(sample(None, None, vec![Err(failure("Unimplemented"))]), Sample::Unknown);
    assert_eq!(sample(Some(list(&[])), None, vec![Err(failure("InvalidArgument"))]), Sample::Unknown);
    assert_eq!(sample(Some(list(&[])), None, vec![Ok(well())]), Sample::Good, "there after all");
    // Gone.
    let gone = (Inaccessible, "BackendDeleted".to_owned());
    assert_eq!(bad(sample(Some(list(&[])), None, vec![Err(failure("NotFound"))])), gone);
    assert_eq!(bad(sample(None, None, vec![Ok(well()), Err(failure("NotFound"))])), gone);
    // Nobody answered: a list that fails with NotFound says nothing about a volume.
    for (volumes, answers) in [
        (Some(Err(failure("NotFound"))), vec![]),
        (Some(Err(failure("Unavailable"))), vec![]),
        (listed(), vec![Err(failure("DeadlineExceeded"))]),
        (None, vec![Ok(well()), Err(failure("Internal"))]),
    ] {
        let sample = sample(volumes, None, answers);
        assert!(
            matches!(&sample, Sample::NoAnswer(trouble) if trouble.reason.reason == "BackendUnreachable"),
            "{sample:?}"
        );
    }
    assert!(matches!(sample(listed(), Some(Err(failure("Unavailable"))), vec![]), Sample::NoAnswer(_)));
    // Ill, whoever says so; the worst counts, and what we do not know is the least.
    let degraded = || ill(problem(Degraded, "Rebuilding"));
    assert_eq!(bad(sample(Some(list(&[(HANDLE, degraded())])), None, vec![])), (Degraded, "Rebuilding".into()));
    assert_eq!(bad(sample(listed(), Some(list(&[(HANDLE, degraded())])), vec![])), (Degraded, "Rebuilding".into()));
    assert_eq!(
        bad(sample(Some(Err(failure("Unavailable"))), Some(list(&[(HANDLE, degraded())])), vec![])).0,
        Degraded,
        "a bad word stands beside a failure"
    );
    let both =
        vec![problem(Unknown, "New"), problem(Degraded, "B"), problem(DataLoss, "A"), problem(Inaccessible, "C")];
    let said = Said { health: Some(both), nodes: None };
    assert_eq!(bad(sample(None, None, vec![Ok(said)])), (DataLoss, "A".into()));
    assert_eq!(bad(sample(None, None, vec![Ok(ill(problem(Unknown, "New")))])).0, Unknown, "never healthy");
}

#[test]
fn a_volume_is_published_where_it_is_attached_or_not() {
    let sample = |said: Option<Said>| {
        let lists = Lists { volumes: said.map(|said| list(&[(HANDLE, said)])), health: None };
        let volume = Watched { health: false, ..attached() };
        let mut samples = samples(&lists, &vec![], HANDLE, &volume, &volume.attached);
        let (subject, sample) = samples.pop().unwrap();
        assert_eq!((subject, samples.len()), (Subject::Published("node-1".into()), 0));
        sample
    };
    assert_eq!(sample(Some(on(&["id-0", "id-1"]))), Sample::Good);
    for nodes in [&[][..], &["id-0"], &["node-1"]] {
        let sample = sample(Some(on(nodes)));
        assert!(
            matches!(&sample, Sample::Bad(trouble) if trouble.reason.reason == "PublishedNodeMismatch"),
            "{nodes:?}"
        );
    }
    assert_eq!(sample(Some(well())), Sample::Unknown, "no word about nodes");
    assert_eq!(sample(None), Sample::Unknown);
    let volume = attached();
    let lists = Lists { volumes: Some(list(&[(HANDLE, on(&[]))])), health: None };
    let left = samples(&lists, &vec![], HANDLE, &volume, &BTreeMap::new());
    assert_eq!(left, health(Sample::Good), "an attachment that went meanwhile is nobody's");
}

#[test]
fn a_drivers_words_are_made_ours() {
    use VolumeState::{DataLoss, Degraded, Unknown};
    for (given, state, reason) in [
        ("DiskFailing", Degraded, "DiskFailing"),
        ("disk is failing", Degraded, "DiskIsFailing"),
        ("RAID_degraded-2", Degraded, "RAIDDegraded2"),
        ("", DataLoss, "DataLoss"),
        ("42", Degraded, "Degraded"),
        ("älter", Unknown, "Lter"),
        ("\u{1b}[31m", Unknown, "UnknownHealthStatus"),
    ] {
        assert_eq!(clean::reason(given, state), reason, "{given:?}");
    }
    assert_eq!(clean::reason(&"Ab".repeat(99), Degraded).len(), 64);
    assert_eq!(clean::message(" two\n lines\u{1b}[2J\u{202e}and\ttabs "), "two lines [2J and tabs");
    assert_eq!(clean::message(&"é".repeat(999)).len(), 512);
}

#[test]
fn volumes_of_one_interval_are_due_together() {
    let mut schedule = Schedule::default();
    let every = |seconds| Watched { interval: Duration::from_secs(seconds), ..watched() };
    let mut volumes: Volumes = [("a".to_owned(), every(60)), ("b".to_owned(), every(5))].into();
    let mut due = |volumes: &Volumes, seconds| {
        let due = schedule.due(volumes, at(seconds).mono, || 0.5);
        (due.into_keys().collect::<Vec<_>>().join(","), schedule.next())
    };
    assert_eq!(due(&volumes, 0).0, "a,b");
    volumes.insert("c".to_owned(), every(60));
    assert_eq!(due(&volumes, 1).0, "", "a new one waits for the others of its interval");
    assert_eq!(due(&volumes, 5).0, "b", "a part of the interval is left to chance");
    assert_eq!(due(&volumes, 56).0, "b");
    assert_eq!(due(&volumes, 57), ("a,c".into(), Some(at(56).mono + Duration::from_secs_f64(4.75))));
    volumes.remove("b");
    assert_eq!(due(&volumes, 70), (String::new(), Some(at(57 + 57).mono)));
}
