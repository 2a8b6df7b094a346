use chrono::TimeDelta;

use super::*;

const VOLUME: &str = "pvc-1";

/// One volume, and a clock.
struct Case {
    settling: Settling,
    start: Instant,
    now: Now,
}

fn trouble(reason: &str) -> Trouble<String> {
    Trouble { state: VolumeState::Inaccessible, reason: reason.into(), message: format!("{reason} in words") }
}

fn bad(reason: &str) -> Sample<String> {
    Sample::Bad(trouble(reason))
}

fn makers(check: Check) -> &'static [Origin] {
    if check == Check::FUSE { &[Origin::Passive, Origin::Child] } else { &[Origin::Passive] }
}

impl Case {
    fn new(told: &[ReportedVolume]) -> Self {
        let start = Instant::now() + Duration::from_secs(3600);
        let wall = DateTime::from_timestamp(1_700_000_000, 0).unwrap();
        let mut settling = Settling::from_report(told);
        settling.enter(VOLUME, "uid", None, makers);
        Self { settling, start, now: Now { wall, mono: start } }
    }

    fn at(&mut self, millis: u64) -> &mut Self {
        let past = Duration::from_millis(millis) - (self.now.mono - self.start);
        self.now = self.now.after(past);
        self
    }

    fn add(&mut self, origin: Origin, looks: Vec<(Check, Sample<String>, &str)>) -> &mut Self {
        let look = |(check, sample, pod): (Check, Sample<String>, &str)| {
            let pods = Some(pod.to_owned()).filter(|pod| !pod.is_empty()).into_iter().collect();
            Look { check, sample, pods }
        };
        let looks = looks.into_iter().map(look).collect();
        self.settling.add(VOLUME, origin, looks, true, &Thresholds::default(), self.now);
        self
    }

    fn see(&mut self, sample: Sample<String>) -> &mut Self {
        self.add(Origin::Passive, vec![(Check::ReadOnly, sample, "")])
    }

    fn reasons(&self) -> Vec<String> {
        self.settling.findings(VOLUME).into_iter().map(|finding| finding.reason).collect()
    }
}

fn told(check: Check, reason: &str, since: DateTime<Utc>) -> ReportedVolume {
    let message = Some("first words".to_owned());
    let state = VolumeState::Inaccessible;
    let finding = Finding { check, state, reason: reason.into(), message, since, pod_uids: vec!["u-1".into()] };
    ReportedVolume {
        name: VOLUME.into(),
        driver: None,
        volume_handle: None,
        device: None,
        state,
        mounts: Vec::new(),
        findings: vec![finding],
    }
}

#[test]
fn many_looks_in_a_moment_are_one_sample() {
    let mut case = Case::new(&[]);
    case.at(0).see(bad("IOError")).at(300).see(bad("IOError")).at(900).see(bad("IOError"));
    assert_eq!(case.reasons(), [] as [&str; 0]);
    assert!(case.settling.is_wavering(VOLUME, Origin::Passive));
    case.see(Sample::Unknown);
    assert!(!case.settling.is_wavering(VOLUME, Origin::Passive), "what cannot be told is not looked at sooner");
    assert_eq!(case.at(1000).see(bad("IOError")).reasons(), ["IOError"]);
    assert_eq!(case.settling.findings(VOLUME)[0].since, case.now.wall - TimeDelta::seconds(1), "the first of them");
    for at in [1100, 1200, 2099, 2100, 3099] {
        assert_eq!(case.at(at).see(Sample::Good).reasons(), ["IOError"], "{at}");
    }
    assert_eq!(case.at(3100).see(Sample::Good).reasons(), [] as [&str; 0]);
    assert!(case.settling.is_known(VOLUME));
}

#[test]
fn what_is_good_and_bad_in_turn_settles_once_at_most() {
    for (period, phase) in [(1000, 0), (1000, 500), (700, 0), (1500, 100)] {
        let mut case = Case::new(&[]);
        let (mut changes, mut before) = (0, Vec::new());
        // Looked at every 550 ms, as what wavers is, for ten minutes.
        for look in 0..1090 {
            let at = look * 550;
            let is_bad = (at + phase) / period % 2 == 0;
            let now = case.at(at).see(if is_bad { bad("IOError") } else { Sample::Good }).reasons();
            changes += usize::from(now != before);
            before = now;
        }
        assert!(changes <= 2, "{period} {phase}: {changes}");
    }
}

#[test]
fn a_restart_goes_on_from_the_report() {
    let since = DateTime::from_timestamp(1_600_000_000, 0).unwrap();
    let report = [told(Check::ReadOnly, "ReadOnlyRemount", since)];
    let first = report[0].findings.clone();
    let mut case = Case::new(&report);
    assert_eq!(case.settling.findings(VOLUME), first);
    assert!(case.settling.is_known(VOLUME));
    case.at(0).see(Sample::Unknown).at(2000).see(Sample::Good).at(4000).see(Sample::Good);
    assert_eq!(case.settling.findings(VOLUME), first, "two good samples are too few");
    case.at(6000).add(Origin::Passive, vec![(Check::ReadOnly, bad("ReadOnlyRemount"), "u-1")]);
    assert_eq!(case.settling.findings(VOLUME), first, "the same cause is told in the first words");
    case.at(8000).see(Sample::Good).at(10_000).see(Sample::Good).at(12_000).see(Sample::Good);
    assert_eq!(case.reasons(), [] as [&str; 0]);
}

#[test]
fn what_two_make_is_well_when_both_say_so() {
    let report = [told(Check::FUSE, "FuseDisconnected", DateTime::UNIX_EPOCH)];
    let mut case = Case::new(&report);
    for at in [0, 2000, 4000, 6000] {
        case.at(at).add(Origin::Passive, vec![(Check::FUSE, Sample::Good, "")]);
    }
    assert_eq!(case.reasons(), ["FuseDisconnected"]);
    for at in [8000, 10_000, 12_000] {
        case.at(at).add(Origin::Child, vec![(Check::FUSE, Sample::Good, "")]);
    }
    assert_eq!(case.reasons(), [] as [&str; 0]);
}

#[test]
fn where_there_is_nothing_to_look_at_any_more_all_is_well_after_a_while() {
    let mut case = Case::new(&[]);
    case.at(0).see(bad("IOError")).at(1000).see(bad("IOError"));
    case.at(2000).add(Origin::Child, Vec::new()).at(4000).add(Origin::Child, Vec::new());
    case.at(6000).add(Origin::Child, Vec::new());
    assert_eq!(case.reasons(), ["IOError"], "nobody else can say so");
    case.at(7000).add(Origin::Passive, Vec::new()).at(8000).add(Origin::Passive, Vec::new());
    assert_eq!(case.reasons(), ["IOError"]);
    assert_eq!(case.at(9000).add(Origin::Passive, Vec::new()).reasons(), [] as [&str; 0]);
}

#[test]
fn silence_is_told_after_its_time_and_does_not_keep_us_looking() {
    let mut case = Case::new(&[]);
    let silence = || Sample::NoAnswer(trouble("BackendUnreachable"));
    assert_eq!(case.at(0).see(silence()).at(119_000).see(silence()).reasons(), [] as [&str; 0]);
    assert!(!case.settling.is_wavering(VOLUME, Origin::Passive));
    assert_eq!(case.at(120_000).see(silence()).reasons(), ["BackendUnreachable"]);
    assert!(!case.settling.is_wavering(VOLUME, Origin::Passive));
    case.at(121_000).see(Sample::Good);
    assert!(case.settling.is_wavering(VOLUME, Origin::Passive), "it comes back");
}

#[test]
fn another_volume_of_that_name_begins_anew() {
    let since = DateTime::from_timestamp(1_600_000_000, 0).unwrap();
    let report = [told(Check::ReadOnly, "ReadOnlyRemount", since)];
    let mut settling = Settling::from_report(&report);
    settling.enter(VOLUME, "uid", Some(since + TimeDelta::seconds(1)), makers);
    assert_eq!(settling.findings(VOLUME), [], "what was said before it was made");
    let mut case = Case::new(&report);
    case.settling.enter(VOLUME, "uid", None, makers);
    assert_eq!(case.reasons(), ["ReadOnlyRemount"]);
    case.settling.enter(VOLUME, "another uid", None, makers);
    assert_eq!((case.reasons().len(), case.settling.is_known(VOLUME)), (0, false));
}

#[test]
fn what_is_not_looked_at_is_forgotten() {
    let mut case = Case::new(&[told(Check::ReadOnly, "ReadOnlyRemount", DateTime::UNIX_EPOCH)]);
    case.settling.keep_checks(VOLUME, |check| check != Check::ReadOnly);
    assert_eq!(case.reasons(), [] as [&str; 0]);
    case.settling.keep(|_| false);
    assert!(!case.settling.is_known(VOLUME));
    case.see(bad("IOError"));
    assert!(!case.settling.is_wavering(VOLUME, Origin::Passive), "it is not here");
}

#[test]
fn a_volume_that_nothing_is_known_of_is_not_known_until_it_is() {
    let mut case = Case::new(&[]);
    assert!(!case.at(0).see(Sample::Unknown).settling.is_known(VOLUME));
    assert!(case.at(1000).see(Sample::Good).settling.is_known(VOLUME));
    assert!(case.at(2000).see(bad("IOError")).settling.is_known(VOLUME), "one bad sample makes no one forget it");
}

#[test]
fn those_that_it_touches_are_told_in_order_and_not_too_many() {
    let mut case = Case::new(&[]);
    let pods = (0..40).map(|number| format!("u-{:02}", number % 20)).rev().collect();
    let mut look = Look { check: Check::CSIMounts, sample: bad("NotMounted"), pods };
    for at in [0, 1000] {
        case.at(at);
        case.settling.add(VOLUME, Origin::Passive, vec![look.clone()], true, &Thresholds::default(), case.now);
    }
    let told = case.settling.findings(VOLUME)[0].pod_uids.clone();
    assert_eq!((told.len(), told.first().unwrap().as_str(), told.last().unwrap().as_str()), (16, "u-00", "u-15"));
    (look.sample, look.pods) = (Sample::Good, Vec::new());
    case.at(2000);
    case.settling.add(VOLUME, Origin::Passive, vec![look], true, &Thresholds::default(), case.now);
    assert_eq!(case.settling.findings(VOLUME)[0].pod_uids, told);
}

#[test]
fn texts_are_fit_to_be_shown() {
    let mut case = Case::new(&[]);
    let words = |text: &str| Sample::Bad(Trouble { message: text.repeat(200), ..trouble("IOError") });
    case.at(0).see(words("\u{1b}[31m\n")).at(1000).see(words("else"));
    let message = case.settling.findings(VOLUME)[0].message.clone().unwrap();
    assert!(message.len() <= 512 && message.starts_with("?[31m?"), "{message}");
}
