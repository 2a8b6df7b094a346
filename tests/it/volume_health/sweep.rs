//! Sweeps over the test array's driver, without a control plane: what is called, how much of it at once, and what comes of
//! it with drivers that offer less or lie.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bulkhead::api::driver_report::DriverReportStatus;
use bulkhead::api::volume::VolumeState;
use bulkhead::api::volume_health_policy::Thresholds;
use bulkhead::csi::client;
use bulkhead::csi::v1::VolumeHealthErrorType;
use bulkhead::csi_sidecar::driver::Driver;
use bulkhead::csi_sidecar::health::act::Sweeper;
use bulkhead::csi_sidecar::health::decide::{Attachment, Watched};
use bulkhead::csi_sidecar::health::driver::Health;
use bulkhead::csi_sidecar::health::memory::{Memory, Volumes};
use bulkhead::csi_sidecar::health::metrics::Metrics;
use bulkhead::csi_sidecar::health::status::VolumeReport;
use bulkhead::runtime::clock::Clock;
use bulkhead::runtime::telemetry::Telemetry;
use bulkhead_testbed::array::{Ailment, Array, ArrayOptions, Effect, Fault, Method};
use bulkhead_testbed::ledger::Access;
use libtest_mimic::{Failed, Trial};
use tempfile::TempDir;
use tonic::Code;

/// All tests of this file.
pub fn trials() -> Vec<Trial> {
    vec![
        trial("five_thousand_volumes_take_less_than_five_minutes", five_thousand_volumes),
        trial("every_kind_of_driver_tells_what_it_can", every_kind_of_driver),
        trial("lists_that_lie_accuse_nobody", lists_that_lie),
        trial("one_volume_that_hangs_holds_up_no_other", one_that_hangs),
        trial("a_driver_that_is_away_says_nothing_of_its_volumes", a_driver_that_is_away),
    ]
}

fn trial<T>(name: &str, test: T) -> Trial
where
    T: AsyncFn() -> Result<(), Failed> + Send + 'static,
{
    Trial::test(format!("volume_health::sweep::{name}"), move || tokio::runtime::Runtime::new()?.block_on(test()))
}

/// A driver that offers nothing but what is needed to attach.
fn bare() -> ArrayOptions {
    ArrayOptions {
        lists_volumes: false,
        lists_published_nodes: false,
        gets_volume: false,
        has_podmon: false,
        ..ArrayOptions::default()
    }
}

struct Bed {
    array: Array,
    volumes: Volumes,
    memory: Mutex<Memory>,
    sweeper: Sweeper,
    _folder: TempDir,
}

impl Bed {
    /// An array with so many volumes, all watched; the first is attached to node `a`.
    async fn new(options: ArrayOptions, count: usize) -> Result<Self, Failed> {
        let folder = tempfile::tempdir()?;
        let array = Array::start(folder.path(), options)?;
        array.add_node("a");
        let mut volumes = Volumes::new();
        for number in 0..count {
            let handle = array.create_volume(&format!("{number:05}"), Access::SingleWriter, 1 << 20)?;
            let thresholds = Thresholds { success: 1, unreachable_after: "10s".parse()?, ..Thresholds::default() };
            let watched = Watched {
                interval: Duration::from_secs(5),
                thresholds,
                health: true,
                attached: BTreeMap::new(),
                block: false,
                access_modes: vec!["ReadWriteOnce".into()],
            };
            volumes.insert(handle, watched);
        }
        let driver = Driver::new(client::connect(array.csi_socket().to_str().ok_or("path")?)?);
        let health = Health::new(driver, Metrics::register(&Telemetry::new()));
        let sweeper = Sweeper::new(health, Clock::system());
        let mut bed = Self { array, volumes, memory: Mutex::default(), sweeper, _folder: folder };
        bed.attach().await?;
        Ok(bed)
    }

    fn handle(&self, number: usize) -> String {
        self.volumes.keys().nth(number).cloned().unwrap_or_default()
    }

    /// The first volume is attached to node `a`, for Kubernetes and the array.
    async fn attach(&mut self) -> Result<(), Failed> {
        use bulkhead::csi::v1::controller_client::ControllerClient;
        use bulkhead::csi::v1::volume_capability::{AccessMode, access_mode::Mode};
        use bulkhead::csi::v1::{ControllerPublishVolumeRequest, VolumeCapability};
        let access_mode = Some(AccessMode { mode: Mode::SingleNodeWriter.into() });
        let request = ControllerPublishVolumeRequest {
            volume_id: self.handle(0),
            node_id: "a".into(),
            volume_capability: Some(VolumeCapability { access_mode, access_type: None }),
            ..Default::default()
        };
        let channel = client::connect(self.array.csi_socket().to_str().ok_or("path")?)?;
        ControllerClient::new(channel).controller_publish_volume(request).await?;
        let attachment = Attachment { name: "csi-1".into(), uid: "u".into(), node_id: "a".into() };
        if let Some(first) = self.volumes.values_mut().next() {
            first.attached.insert("node-a".into(), attachment);
        }
        Ok(())
    }

    async fn sweep(&mut self) -> Option<bool> {
        self.sweeper.sweep(&self.memory, &self.volumes, |_| true, || {}).await
    }

    fn report(&self) -> DriverReportStatus {
        let memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let mut status = DriverReportStatus::default();
        VolumeReport::new(memory.rows(&self.volumes, Clock::system().now()), Some(self.volumes.len()))
            .write(&mut status);
        status
    }

    /// Reason and first handle of each group.
    fn told(&self) -> Vec<(String, String)> {
        let groups = self.report().abnormal.into_iter();
        groups.map(|group| (group.reason, group.volume_handles[0].clone())).collect()
    }

    /// Calls of a method that were under way at once, at most.
    fn at_once(&self, method: Method) -> usize {
        let calls = self.array.calls().all();
        let mut events: Vec<_> = calls
            .iter()
            .filter(|call| call.method == method)
            .flat_map(|call| [Some((call.at, 1)), call.answer.map(|(at, _)| (at, -1))])
            .flatten()
            .collect();
        events.sort_unstable();
        let (mut now, mut most) = (0i64, 0);
        for (_, step) in events {
            now += step;
            most = most.max(now);
        }
        usize::try_from(most).unwrap_or_default()
    }
}

/// A tenth of them in a tenth of the time: each call takes what it takes.
async fn five_thousand_volumes() -> Result<(), Failed> {
    let mut bed = Bed::new(ArrayOptions { gets_health: true, ..bare() }, 500).await?;
    let slow = Effect::Latency(Duration::from_millis(50));
    bed.array.faults().add(Fault::on(Method::ControllerGetVolumeHealth, slow));
    let began = Instant::now();
    assert_eq!(bed.sweep().await, Some(true));
    let took = began.elapsed();
    assert_eq!(bed.array.calls().count(Method::ControllerGetVolumeHealth), 500);
    assert!(took < Duration::from_secs(30), "{took:?}");
    let at_once = bed.at_once(Method::ControllerGetVolumeHealth);
    assert!((2..=8).contains(&at_once), "{at_once} calls at once");
    Ok(())
}

/// What is wrong in each round: one volume is ill, one is deleted, one is not published where it is attached.
async fn every_kind_of_driver() -> Result<(), Failed> {
    let plain = ArrayOptions { has_podmon: false, ..ArrayOptions::default() };
    let list_only = ArrayOptions { gets_volume: false, ..plain.clone() };
    let get_only = ArrayOptions { lists_volumes: false, ..plain.clone() };
    let (deleted, mismatch) = ("BackendDeleted", "PublishedNodeMismatch");
    let (old, new) = ("VolumeConditionAbnormal", "DiskFailing");
    for (name, options, expected) in [
        (
            "1.12, lists",
            ArrayOptions { tells_condition: true, page_size: 2, ..list_only.clone() },
            vec![deleted, mismatch, old],
        ),
        ("1.12, gets", ArrayOptions { tells_condition: true, ..get_only.clone() }, vec![deleted, mismatch, old]),
        ("1.13, lists", ArrayOptions { lists_health: true, ..plain.clone() }, vec![deleted, new, mismatch]),
        ("1.13, gets", ArrayOptions { gets_health: true, ..get_only.clone() }, vec![deleted, new, mismatch]),
        ("1.13, nothing but health", ArrayOptions { lists_health: true, ..bare() }, vec![deleted, new]),
        ("no health, lists", list_only.clone(), vec![deleted, mismatch]),
        ("no health, gets", get_only.clone(), vec![deleted, mismatch]),
        ("no health, no nodes", ArrayOptions { lists_volumes: true, ..bare() }, vec![deleted]),
        ("nothing", bare(), vec![]),
    ] {
        let mut bed = Bed::new(options, 5).await?;
        let asked = bed.sweep().await;
        assert_eq!(asked, Some(name != "nothing"), "{name}");
        assert_eq!(bed.told(), [], "{name}: all is well");
        let (gone, ill) = (bed.handle(1), bed.handle(2));
        bed.array.lose_volume(&gone);
        bed.array.unpublish_unasked(&bed.handle(0), "a")?;
        let ailment = Ailment::new(VolumeHealthErrorType::Inaccessible, "DiskFailing", "two disks of five");
        bed.array.set_health(&ill, vec![ailment]);
        bed.sweep().await;
        assert_eq!(bed.told(), [], "{name}: one sample settles nothing");
        bed.sweep().await;
        let mut told: Vec<_> = bed.told().into_iter().map(|(reason, _)| reason).collect();
        let mut expected = expected;
        told.sort_unstable();
        expected.sort_unstable();
        assert_eq!(told, expected, "{name}");
        for group in bed.report().abnormal {
            let (node, handle) = match group.reason.as_str() {
                "BackendDeleted" => (None, &gone),
                "PublishedNodeMismatch" => (Some("node-a"), &bed.handle(0)),
                _ => (None, &ill),
            };
            assert_eq!(
                (group.state, group.node.as_deref(), group.volume_handles.as_slice()),
                (VolumeState::Inaccessible, node, std::slice::from_ref(handle)),
                "{name}"
            );
        }
        // All is mended.
        bed.array.set_health(&ill, vec![]);
        bed.array.create_volume("00001", Access::SingleWriter, 1 << 20)?;
        bed.attach().await?;
        bed.sweep().await;
        assert_eq!(bed.told(), [], "{name}: mended");
    }
    Ok(())
}

/// One that lists the health of volumes is asked about a single one only where its list cannot be the last word.
async fn lists_that_lie() -> Result<(), Failed> {
    let options = ArrayOptions { lists_health: true, has_podmon: false, ..ArrayOptions::default() };
    let mut bed = Bed::new(options, 501).await?;
    for _ in 0..3 {
        bed.sweep().await;
    }
    assert_eq!(bed.array.calls().count(Method::ControllerGetVolumeHealth), 0, "lists are enough while all is well");
    // Cut off after 500 entries; volumes left out; empty node ids; a status that nobody knows.
    let lie = |effect| Fault::on(Method::ListVolumes, effect);
    bed.array.faults().add(lie(Effect::NoToken));
    bed.array.faults().add(lie(Effect::EmptyNodeId));
    bed.array.faults().add(lie(Effect::OmitVolumes([bed.handle(3)].into())));
    bed.array.set_health(&bed.handle(4), vec![Ailment { status: 42, reason: String::new(), message: "new".into() }]);
    for _ in 0..3 {
        bed.sweep().await;
    }
    let report = bed.report();
    assert_eq!(bed.told(), [("UnknownHealthStatus".to_owned(), bed.handle(4))]);
    assert_eq!((report.abnormal[0].state, report.abnormal[0].raw_status), (VolumeState::Unknown, Some(42)));
    assert_eq!(bed.array.calls().count(Method::ControllerGetVolumeHealth), 3, "the one that was left out, each time");
    // What was ill and is not in the list any more needs a word of its own.
    bed.array.faults().clear();
    bed.array.set_health(&bed.handle(4), vec![]);
    let refused = Fault::on(Method::ControllerGetVolumeHealth, Effect::Fail(Code::Unavailable));
    bed.array.faults().add(refused.times(2));
    bed.sweep().await;
    bed.sweep().await;
    assert_eq!(bed.told().len(), 1, "an error never clears");
    bed.sweep().await;
    assert_eq!(bed.told(), []);
    Ok(())
}

async fn one_that_hangs() -> Result<(), Failed> {
    let mut bed = Bed::new(ArrayOptions { gets_health: true, ..bare() }, 20).await?;
    let (hangs, ill) = (bed.handle(0), bed.handle(19));
    bed.array.faults().add(Fault::on(Method::ControllerGetVolumeHealth, Effect::Hang).volume(&hangs));
    let ailment = Ailment::new(VolumeHealthErrorType::DataLoss, "Lost", "");
    bed.array.set_health(&ill, vec![ailment]);
    let began = Instant::now();
    while bed.told().len() < 2 && began.elapsed() < Duration::from_secs(60) {
        bed.sweep().await;
    }
    assert_eq!(bed.told(), [("Lost".to_owned(), ill), ("BackendUnreachable".to_owned(), hangs.clone())]);
    assert!(began.elapsed() > Duration::from_secs(10), "not before unreachableAfter");
    let calls = bed.array.calls().all();
    // Eight are under way at once, and come in any order.
    let mut last = calls.iter().rev().filter(|call| call.method == Method::ControllerGetVolumeHealth).take(8);
    assert!(last.any(|call| call.volume == hangs), "the silent one is asked among the last");
    bed.array.faults().clear();
    bed.sweep().await;
    assert_eq!(bed.told().len(), 1, "it answers again");
    Ok(())
}

async fn a_driver_that_is_away() -> Result<(), Failed> {
    let mut bed = Bed::new(ArrayOptions { gets_health: true, ..bare() }, 3).await?;
    bed.sweep().await;
    let ailment = Ailment::new(VolumeHealthErrorType::DataLoss, "Lost", "");
    bed.array.set_health(&bed.handle(2), vec![ailment]);
    bed.sweep().await;
    bed.sweep().await;
    bed.array.crash().await;
    let until = Instant::now() + Duration::from_secs(12);
    while Instant::now() < until {
        assert_eq!(bed.sweep().await, None);
        assert_eq!(bed.told().len(), 1, "neither more nor less than before");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    bed.array.restart().await?;
    let answers = bed.sweep().await;
    assert_eq!((answers, bed.told().len()), (Some(true), 1), "it is found again");
    Ok(())
}
