//! The agent's decisions, as tables: whose turn it is, what is cleaned, and when a node is clean.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::DateTime;

use crate::api::node_volume_report::{CleanupState, NodeVolumeReport, NodeVolumeReportSpec, RemnantKind};
use crate::api::time::Now;

use super::decide::{Decision, Failure, Incident, Key, Looked, Seen, decide};
use super::memory::Memory;
use super::mounts::inventory::{Holder, Inventory, Mounted, Place, Remains, Unknown};
use super::mounts::layout::Wanted;
use super::mounts::mountinfo::Device;
use super::status;

const POD: &str = "u-1";

/// One volume, and everything the agent knows.
pub(super) struct Case {
    pub(super) seen: Seen,
    memory: Memory,
    start: Instant,
    now: Instant,
}

fn volume(name: &str) -> Wanted {
    Wanted {
        name: name.into(),
        driver: "csi.example.com".into(),
        handle: format!("handle of {name}"),
        proved: true,
        pods: vec![POD.into()],
        others: None,
        known: Vec::new(),
    }
}

fn key() -> Key {
    Key { fence_uid: "f".into(), episode: 1, digest: "sha256:00000000".into(), boot_id: "boot-1".into() }
}

fn target() -> Place {
    let device = Device { major: 0, minor: 50 };
    let mount = Mounted { path: "/k/t".into(), device, root: "/".into(), fs_type: "fuse.x".into() };
    Place { path: "t".into(), pod: Some(POD.into()), mounts: vec![mount], ..Place::default() }
}

pub(super) fn zombie() -> Remains {
    Remains { targets: vec![target()], staging: vec![Place { pod: None, ..target() }], ..Remains::default() }
}

/// What an agent sees that has just started, of a node that is well: it has not looked yet.
pub(super) fn first_seen(report: NodeVolumeReport, incident: Incident) -> Seen {
    Seen {
        node_uid: "n".into(),
        kubelet_is_up: true,
        boot_id: incident.key.boot_id.clone(),
        node_boot_id: incident.key.boot_id.clone(),
        addresses: Vec::new(),
        heartbeat: None,
        self_fencing: None,
        report: Arc::new(report),
        fence: Some(incident),
        has_fence: true,
        fenced: BTreeSet::new(),
        health: None,
        pods: BTreeMap::new(),
        looked: None,
        hung: 0,
        probes_hung: false,
        patience: Duration::from_secs(3),
        check_interval: Duration::from_secs(30),
    }
}

impl Case {
    pub(super) fn new(remains: Remains) -> Self {
        let start = Instant::now() + Duration::from_secs(3600);
        let incident = Incident { key: key(), wanted: vec![volume("pvc-1")], unusable: Vec::new() };
        let seen = first_seen(NodeVolumeReport::new("n", NodeVolumeReportSpec {}), incident);
        let mut case = Self { seen, memory: Memory::default(), start, now: start };
        case.finds(remains);
        case
    }

    /// What the next looks find.
    pub(super) fn finds(&mut self, remains: Remains) {
        let found = Inventory { volumes: vec![remains], ..Inventory::default() };
        self.seen.looked = Some(Looked { began: self.now, ended: self.now, found: Ok(Arc::new(found)) });
    }

    /// A pass that many seconds after the start, with a look of its own; its report is taken.
    pub(super) fn at(&mut self, seconds: u64) -> Decision {
        self.now = self.start + Duration::from_secs(seconds);
        if let Some(looked) = &mut self.seen.looked {
            (looked.began, looked.ended) = (self.now, self.now);
        }
        self.memory.note(&self.seen, self.now);
        let decision = decide(&self.seen, &self.memory, self.now);
        let now = Now { wall: DateTime::from_timestamp(1_700_000_000, 0).unwrap(), mono: self.now };
        Arc::make_mut(&mut self.seen.report).status = Some(status::compute(&self.seen, decision.cleanup.as_ref(), now));
        decision.work.iter().for_each(|work| self.memory.begins(&work.volume.name));
        decision
    }

    fn ends(&mut self, outcome: Result<(), Failure>) {
        self.memory.ended("pvc-1", outcome, self.now);
    }
}

fn state(decision: &Decision) -> CleanupState {
    decision.cleanup.as_ref().unwrap().state
}

fn reasons(decision: &Decision) -> Vec<&str> {
    decision.cleanup.as_ref().unwrap().remaining.iter().map(|left| left.reason.as_str()).collect()
}

fn hung() -> Failure {
    Failure { kind: RemnantKind::Mount, id: "/k/t".into(), reason: "UnmountHangs".into(), message: String::new() }
}

#[test]
fn the_kubelet_has_its_chance_first() {
    let mut case = Case::new(zombie());
    case.seen.pods.insert(POD.into(), false);
    for seconds in [0, 10] {
        let decision = case.at(seconds);
        assert_eq!((state(&decision), decision.work.len()), (CleanupState::Inventory, 0), "its pod is there");
    }
    case.seen.pods.clear();
    assert!(case.at(20).work.is_empty(), "the pod is gone: patience");
    assert!(case.at(22).work.is_empty());
    let decision = case.at(23);
    assert_eq!((state(&decision), decision.work.len()), (CleanupState::Cleaning, 1));
    assert!(case.at(24).work.is_empty(), "it is under way");
}

#[test]
fn a_kubelet_that_is_down_gets_no_time_and_a_finished_pod_is_nobodys() {
    let mut case = Case::new(zombie());
    case.seen.kubelet_is_up = false;
    assert_eq!(case.at(0).work.len(), 1);
    let mut case = Case::new(zombie());
    case.seen.pods.insert(POD.into(), true);
    case.at(0);
    assert_eq!(case.at(3).work.len(), 1);
}

#[test]
fn a_pod_that_does_not_end_is_told_at_last() {
    let mut case = Case::new(zombie());
    case.seen.pods.insert(POD.into(), false);
    assert_eq!(state(&case.at(0)), CleanupState::Inventory);
    let decision = case.at(120);
    assert_eq!((state(&decision), decision.work.len()), (CleanupState::Blocked, 0));
    assert_eq!(reasons(&decision), ["PodNotGone"]);
}

#[test]
fn nothing_is_unstaged_while_a_pod_uses_it() {
    let other = Place { path: "t2".into(), pod: Some("u-2".into()), ..target() };
    let mut case = Case::new(Remains { targets: vec![target(), other], ..zombie() });
    case.seen.pods.insert("u-2".into(), false);
    case.at(0);
    let work = case.at(3).work.remove(0);
    assert_eq!((work.targets.len(), work.rest), (1, None));
    case.ends(Ok(()));
    case.seen.pods.clear();
    case.at(4);
    let work = case.at(7).work.remove(0);
    assert_eq!(work.rest.map(|rest| rest.staging.len()), Some(1));
}

#[test]
fn a_user_of_the_volume_stops_everything_and_the_host_itself_does_not() {
    let holder = |of_the_host| Holder { pid: 7, name: "postgres".into(), of_the_host };
    let mut case = Case::new(Remains { holders: vec![holder(false)], ..zombie() });
    assert_eq!(state(&case.at(0)), CleanupState::Inventory);
    // The usual grace period of a container is no reason to warn.
    let decision = case.at(29);
    assert_eq!((state(&decision), decision.work.len()), (CleanupState::Inventory, 0));
    let decision = case.at(30);
    assert_eq!((state(&decision), decision.work.len()), (CleanupState::Blocked, 0));
    let left = &decision.cleanup.unwrap().remaining[0];
    assert_eq!((left.kind, left.id.as_str()), (RemnantKind::Process, "pid 7 (postgres)"));
    case.finds(zombie());
    assert_eq!(case.at(31).work.len(), 1, "it has ended");
    let mut case = Case::new(Remains { holders: vec![holder(true)], ..zombie() });
    case.at(0);
    assert_eq!(case.at(3).work.len(), 1);
    let mut case = Case::new(Remains { holders: vec![holder(true)], ..Remains::default() });
    case.at(0);
    let decision = case.at(30);
    assert_eq!((state(&decision), decision.work.len()), (CleanupState::Blocked, 0), "nothing else is left to remove");
}

/// What a case changes.
type Change<'a> = &'a dyn Fn(&mut Case);

#[test]
fn what_cannot_be_told_is_not_clean_and_not_touched() {
    let unknown = || vec![Unknown::new("/x", "RecordUnreadable")];
    let of_the_node = |case: &mut Case, found: Inventory| {
        case.seen.looked.as_mut().unwrap().found = Ok(Arc::new(found));
    };
    let cases: [(&str, Change<'_>); 7] = [
        ("of the volume", &|case| case.finds(Remains { unknown: unknown(), ..zombie() })),
        ("of the node", &|case| {
            of_the_node(
                case,
                Inventory { volumes: vec![Remains::default()], unknown: unknown(), ..Inventory::default() },
            );
        }),
        ("a record of a pod that is gone", &|case| {
            let unreadable = vec![("u-9".to_owned(), Unknown::new("/x", "RecordUnreadable"))];
            of_the_node(case, Inventory { volumes: vec![Remains::default()], unreadable, ..Inventory::default() });
        }),
        ("no inventory", &|case| case.seen.looked.as_mut().unwrap().found = Err("InventoryTimedOut".into())),
        ("half an inventory", &|case| of_the_node(case, Inventory::default())),
        ("a volume without a handle", &|case| {
            case.finds(Remains::default());
            case.seen.fence.as_mut().unwrap().unusable.push("pod/data".into());
        }),
        ("a child that hangs", &|case| {
            case.finds(Remains::default());
            case.seen.hung = 1;
        }),
    ];
    for (name, change) in cases {
        let mut case = Case::new(zombie());
        change(&mut case);
        for seconds in [0, 3, 10, 100] {
            let decision = case.at(seconds);
            let expected = if seconds == 0 { CleanupState::Inventory } else { CleanupState::Blocked };
            assert_eq!((state(&decision), decision.work.len()), (expected, 0), "{name} after {seconds} s");
            assert_eq!(decision.cleanup.unwrap().passes, 0, "{name}");
        }
    }
}

#[test]
fn a_record_of_a_pod_that_lives_is_the_kubelets_business() {
    let mut case = Case::new(Remains::default());
    let unreadable = vec![("u-9".to_owned(), Unknown::new("/x", "RecordUnreadable"))];
    let found = Inventory { volumes: vec![Remains::default()], unreadable, ..Inventory::default() };
    case.seen.looked.as_mut().unwrap().found = Ok(Arc::new(found));
    case.seen.pods.insert("u-9".into(), false);
    case.at(0);
    assert_eq!(state(&case.at(1)), CleanupState::Clean);
}

#[test]
fn clean_is_seen_twice_a_second_apart() {
    let mut case = Case::new(Remains::default());
    let decision = case.at(0);
    assert_eq!((state(&decision), decision.cleanup.unwrap().passes), (CleanupState::Cleaning, 1));
    assert_eq!(decision.look_again, Duration::from_secs(1));
    assert_eq!(state(&case.at(0)), CleanupState::Cleaning, "too soon");
    let decision = case.at(1);
    assert_eq!((state(&decision), decision.cleanup.unwrap().passes), (CleanupState::Clean, 2));
    case.finds(zombie());
    assert_eq!(state(&case.at(5)), CleanupState::Inventory, "it is back");
    case.finds(Remains::default());
    assert_eq!(state(&case.at(6)), CleanupState::Cleaning, "counted anew");
}

#[test]
fn a_node_is_not_clean_while_a_pod_of_the_incident_is_bound_to_it() {
    let mut case = Case::new(Remains::default());
    case.seen.pods.insert(POD.into(), false);
    for seconds in [0, 1, 60] {
        let decision = case.at(seconds);
        assert_eq!((state(&decision), decision.cleanup.unwrap().passes), (CleanupState::Inventory, 0), "{seconds}");
    }
    let decision = case.at(120);
    assert_eq!((state(&decision), reasons(&decision)), (CleanupState::Blocked, vec!["PodNotGone"]));
    case.seen.pods.insert(POD.into(), true);
    assert_eq!(state(&case.at(121)), CleanupState::Cleaning, "it has ended");
    assert_eq!(state(&case.at(122)), CleanupState::Clean);
}

#[test]
fn a_look_that_began_before_work_ended_counts_for_nothing() {
    let mut case = Case::new(zombie());
    case.at(0);
    case.at(3);
    case.now += Duration::from_millis(500);
    case.ends(Ok(()));
    // The look of second 3 again: still full, or (of another volume's work) already empty.
    let stale = case.seen.clone();
    case.memory.note(&stale, case.now);
    let decision = decide(&stale, &case.memory, case.now);
    assert_eq!((state(&decision), decision.work.len()), (CleanupState::Cleaning, 0));
    assert_eq!(case.memory.passes, None);
}

#[test]
fn failures_stay_told_while_they_are_tried_again_ever_less_often() {
    let mut case = Case::new(zombie());
    case.at(0);
    assert!(!case.at(3).work[0].force);
    case.ends(Err(hung()));
    let mut begun = Vec::new();
    for seconds in 4..80 {
        let decision = case.at(seconds);
        assert_eq!((state(&decision), reasons(&decision)), (CleanupState::Blocked, vec!["UnmountHangs"]), "{seconds}");
        if let Some(work) = decision.work.first() {
            assert!(work.force, "what hangs is cut off: the volume is proved to be fenced");
            begun.push(seconds);
            case.ends(Err(hung()));
        }
    }
    assert_eq!(begun, [4, 6, 10, 18, 34, 64]);
}

#[test]
fn requests_are_cut_off_only_where_they_hang_and_the_fence_is_proved() {
    for (proved, reason, force) in [
        (true, "NodeUnpublishDeadlineExceeded", true),
        (false, "NodeUnpublishDeadlineExceeded", false),
        (true, "DriverMissing", false),
    ] {
        let mut case = Case::new(zombie());
        case.seen.fence.as_mut().unwrap().wanted[0].proved = proved;
        case.at(0);
        case.at(3);
        case.ends(Err(Failure { reason: reason.into(), ..hung() }));
        assert_eq!(case.at(5).work[0].force, force, "{proved} {reason}");
    }
}

#[test]
fn another_episode_is_another_clean_up_and_a_restart_is_none() {
    let mut case = Case::new(Remains::default());
    case.at(0);
    assert_eq!(state(&case.at(1)), CleanupState::Clean);
    case.memory = Memory::default();
    assert_eq!(state(&case.at(2)), CleanupState::Clean, "a restart");
    for change in [
        (|key: &mut Key| key.episode = 2) as fn(&mut Key),
        |key| key.fence_uid = "g".into(),
        |key| key.digest = "sha256:11111111".into(),
        |key| key.boot_id = "boot-2".into(),
    ] {
        let mut next = Case { seen: case.seen.clone(), memory: case.memory.clone(), ..case };
        change(&mut next.seen.fence.as_mut().unwrap().key);
        let decision = next.at(3);
        assert_eq!((state(&decision), decision.cleanup.unwrap().passes), (CleanupState::Cleaning, 1));
    }
}

#[test]
fn without_an_incident_nothing_is_looked_at() {
    let mut case = Case::new(zombie());
    case.seen.fence = None;
    let decision = case.at(0);
    assert!(decision.cleanup.is_none() && decision.work.is_empty());
}
