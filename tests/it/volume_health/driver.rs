//! The sidecar beside a CSI driver: what becomes of its volumes is in the DriverReport, and nothing else is written.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bulkhead::api::driver_report::{AbnormalVolumes, Capability, Coverage, DriverReport, DriverReportStatus};
use bulkhead::api::volume::VolumeState;
use bulkhead::api::volume_health_policy::VolumeHealthPolicy;
use bulkhead::csi::v1::VolumeHealthErrorType;
use bulkhead_testbed::array::{Ailment, Array, ArrayOptions, Claim, Effect, Fault, Method};
use bulkhead_testbed::cluster::{Cluster, ClusterOptions, Workload};
use bulkhead_testbed::process::Process;
use bulkhead_testbed::{AttacherOptions, Identity, TestbedOptions};
use kube::Api;
use kube::api::PostParams;
use libtest_mimic::{Failed, Trial};
use serde_json::json;
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;
use tonic::Code;

/// Long enough for a loaded machine; nothing waits this long when it works.
const SOON: Duration = Duration::from_secs(90);
/// The interval of the policies.
const INTERVAL: Duration = Duration::from_secs(5);

/// All tests of this file; they share a cluster and have a driver each.
pub fn trials() -> Vec<Trial> {
    let bed = match Runtime::new() {
        Ok(runtime) => Arc::new(Bed { cluster: OnceCell::new(), runtime }),
        Err(error) => return vec![Trial::test("volume_health::driver::runtime", move || Err(error.into()))],
    };
    vec![
        trial(&bed, "what_the_backend_deleted_is_told_and_errors_neither_tell_nor_clear", deleted_and_unreachable),
        trial(&bed, "a_volume_unpublished_by_others_is_told_until_the_attacher_is_back", unpublished),
        trial(&bed, "a_new_sidecar_goes_on_and_writes_nothing", a_new_sidecar),
        trial(&bed, "a_driver_that_can_say_nothing_is_ready_all_the_same", nothing_to_say),
    ]
}

struct Bed {
    // Dropped before the runtime that its tasks run on.
    cluster: OnceCell<Cluster>,
    runtime: Runtime,
}

fn trial<T>(bed: &Arc<Bed>, name: &str, test: T) -> Trial
where
    T: AsyncFn(&Cluster) -> Result<(), Failed> + Send + 'static,
{
    let bed = bed.clone();
    Trial::test(format!("volume_health::driver::{name}"), move || {
        bed.runtime.block_on(async { test(bed.cluster.get_or_try_init(cluster).await?).await })
    })
}

async fn cluster() -> Result<Cluster, Failed> {
    let sidecar = PathBuf::from(env!("CARGO_BIN_EXE_bulkhead-csi-sidecar"));
    let options = ClusterOptions {
        testbed: TestbedOptions::fast_nodes(),
        programs: sidecar.parent().map(PathBuf::from),
        arrays: Vec::new(),
        nodes: 1,
        controller: false,
        ..ClusterOptions::default()
    };
    Ok(Cluster::start(options).await?)
}

/// A driver with its attacher and sidecar, and a policy for its volumes.
struct Side<'a> {
    cluster: &'a Cluster,
    storage: bulkhead_testbed::cluster::AddedArray,
    name: String,
    sidecar: Option<Process>,
}

impl<'a> Side<'a> {
    async fn new(cluster: &'a Cluster, name: &str, options: ArrayOptions) -> Result<Self, Failed> {
        let attacher = AttacherOptions { reconcile_sync: Duration::from_secs(20), ..AttacherOptions::default() };
        let options = ArrayOptions { driver_name: format!("{name}.health.test"), ..options };
        let storage = cluster.add_array_with(&options, &attacher).await?;
        let policy: VolumeHealthPolicy = serde_json::from_value(json!({
            "apiVersion": "bulkhead.dev/v1alpha1", "kind": "VolumeHealthPolicy", "metadata": { "name": name },
            "spec": {
                "selector": { "drivers": [options.driver_name] }, "interval": format!("{}s", INTERVAL.as_secs()),
                "thresholds": { "success": 2, "unreachableAfter": "12s" },
            },
        }))?;
        Api::all(cluster.client.clone()).create(&PostParams::default(), &policy).await?;
        let mut side = Self { cluster, storage, name: options.driver_name, sidecar: None };
        side.start()?;
        Ok(side)
    }

    fn start(&mut self) -> Result<(), Failed> {
        self.sidecar = Some(self.cluster.sidecar(self.array())?);
        Ok(())
    }

    fn array(&self) -> &Array {
        &self.storage.array
    }

    /// A volume with its claim; its handle.
    async fn claim(&self, name: &str) -> Result<String, Failed> {
        Ok(self.array().claim(&self.cluster.client, &Claim::new("default", name)).await?)
    }

    async fn report(&self) -> Result<DriverReport, Failed> {
        Ok(Api::<DriverReport>::all(self.cluster.client.clone()).get(&self.name).await?)
    }

    /// Waits until the report is as `holds` wants it.
    async fn until(
        &self,
        what: &str,
        holds: impl Fn(&DriverReportStatus) -> bool,
    ) -> Result<DriverReportStatus, Failed> {
        let api: Api<DriverReport> = Api::all(self.cluster.client.clone());
        let look = async || {
            let status = api.get_opt(&self.name).await?.and_then(|report| report.status).unwrap_or_default();
            Ok(if holds(&status) { Ok(status) } else { Err(serde_json::to_string(&status)?) })
        };
        Ok(self.cluster.wait(what, SOON, look).await?)
    }

    /// Waits until so many volumes were asked about and nothing is wrong.
    async fn well(&self, volumes: u32) -> Result<(), Failed> {
        self.until("all well", |status| {
            status.coverage == Some(Coverage::Complete)
                && status.checked_volumes == Some(volumes)
                && status.abnormal.is_empty()
        })
        .await?;
        Ok(())
    }

    /// Writes of our sidecars to this report.
    fn writes(&self) -> Result<usize, Failed> {
        let user = Identity::CsiSidecar.user();
        let records = self.cluster.testbed.audit().records()?;
        Ok(records.filter(|record| record.user == user && record.is_write() && record.name == self.name).count())
    }
}

fn group<'a>(status: &'a DriverReportStatus, reason: &str) -> Option<&'a AbnormalVolumes> {
    status.abnormal.iter().find(|group| group.reason == reason)
}

/// The driver lists volumes and published nodes, and knows nothing of health.
async fn deleted_and_unreachable(cluster: &Cluster) -> Result<(), Failed> {
    let side = Side::new(cluster, "deleted", ArrayOptions::default()).await?;
    let (gone, silent) = (side.claim("gone").await?, side.claim("silent").await?);
    side.well(2).await?;

    side.array().lose_volume(&gone);
    let before = side.array().calls().count(Method::ListVolumes);
    let status = side.until("BackendDeleted", |status| group(status, "BackendDeleted").is_some()).await?;
    // Each sweep reads the list once; so does the attacher now and then, and one sweep may have been under way.
    let lists = side.array().calls().count(Method::ListVolumes) - before;
    assert!(lists <= 4, "{lists} lists for two sweeps");
    let told = group(&status, "BackendDeleted").ok_or("no group")?;
    assert_eq!(
        (told.state, told.node.as_deref(), told.volume_handles.as_slice()),
        (VolumeState::Inaccessible, None, &[gone][..])
    );
    assert_eq!((status.abnormal_volumes, status.coverage), (Some(1), Some(Coverage::Complete)));
    assert!(side.report().await?.is_ready());

    // The driver lives, its array does not answer.
    let began = Instant::now();
    let fault = side.array().gateway_down();
    let status = side.until("BackendUnreachable", |status| group(status, "BackendUnreachable").is_some()).await?;
    assert!(began.elapsed() >= Duration::from_secs(12), "after {:?}, before unreachableAfter", began.elapsed());
    assert_eq!(group(&status, "BackendUnreachable").ok_or("no group")?.volume_handles, [silent]);
    assert_eq!(group(&status, "BackendDeleted"), Some(told), "an error clears nothing");

    side.array().faults().remove(fault);
    let status = side.until("an answer", |status| group(status, "BackendUnreachable").is_none()).await?;
    assert_eq!(status.abnormal, std::slice::from_ref(told));
    Ok(())
}

async fn unpublished(cluster: &Cluster) -> Result<(), Failed> {
    let side = Side::new(cluster, "unpublished", ArrayOptions::default()).await?;
    cluster.nodes.add("unpublished-node").await?;
    cluster.nodes_usable(&["unpublished-node".to_owned()]).await?;
    let set = Workload { node: Some("unpublished-node".into()), ..Workload::new("unpublished") };
    cluster.stateful_set_on(&[side.array()], &set).await?;
    let placed = cluster.pods_ready(&set, SOON).await?;
    assert!(placed.values().all(|node| node == "unpublished-node"), "{placed:?}");
    side.well(1).await?;

    let handle = set.handle(0, 0);
    let ids = side.array().published_nodes(&handle);
    assert_eq!(ids.len(), 1, "{ids:?}");
    side.array().unpublish_unasked(&handle, &ids[0])?;
    let status = side.until("PublishedNodeMismatch", |status| group(status, "PublishedNodeMismatch").is_some()).await?;
    let told = group(&status, "PublishedNodeMismatch").ok_or("no group")?;
    assert_eq!(
        (told.node.as_deref(), told.volume_handles.as_slice()),
        (Some("unpublished-node"), &[handle.clone()][..])
    );
    assert!(side.array().published_nodes(&handle).is_empty(), "it was told before it was mended");

    // The attacher heals it by itself, unhindered.
    side.well(1).await?;
    assert_eq!(side.array().published_nodes(&handle), ids);
    Ok(())
}

/// The driver speaks CSI 1.13.
async fn a_new_sidecar(cluster: &Cluster) -> Result<(), Failed> {
    let options = ArrayOptions { lists_health: true, ..ArrayOptions::default() };
    let mut side = Side::new(cluster, "restarted", options).await?;
    let (lost, slow) = (side.claim("lost").await?, side.claim("slow").await?);
    side.well(2).await?;
    let ail = |status, reason| vec![Ailment::new(status, reason, "see the array's console")];
    side.array().set_health(&lost, ail(VolumeHealthErrorType::DataLoss, "TwoDisksFailed"));
    side.array().set_health(&slow, ail(VolumeHealthErrorType::Degraded, "rebuilding"));
    let before = side.until("two groups", |status| status.abnormal.len() == 2).await?;
    assert!(before.capabilities.contains(&Capability::VolumeHealth));
    assert_eq!(
        (before.abnormal[0].state, before.abnormal[0].reason.as_str()),
        (VolumeState::DataLoss, "TwoDisksFailed")
    );
    assert_eq!((before.abnormal[1].state, before.abnormal[1].reason.as_str()), (VolumeState::Degraded, "Rebuilding"));

    // While it is away, one volume is well again: that is told once there are enough samples, and not before.
    let writes = side.writes()?;
    side.sidecar.take().ok_or("no sidecar")?.kill().await;
    let refuse = side.array().faults().add(Fault::on(Method::ControllerListVolumeHealth, Effect::Fail(Code::Internal)));
    let asked = side.array().calls().count(Method::ControllerListVolumeHealth);
    side.start()?;
    let looks = async || {
        let calls = side.array().calls().count(Method::ControllerListVolumeHealth) - asked;
        Ok(if calls >= 6 { Ok(()) } else { Err(format!("{calls} calls")) })
    };
    cluster.wait("two sweeps that fail", SOON, looks).await?;
    assert_eq!(side.report().await?.status.as_ref(), Some(&before), "what was known stays");
    side.array().faults().remove(refuse);
    let asked = side.array().calls().count(Method::ControllerListVolumeHealth);
    let looks = async || {
        let calls = side.array().calls().count(Method::ControllerListVolumeHealth) - asked;
        Ok(if calls >= 4 { Ok(()) } else { Err(format!("{calls} calls")) })
    };
    cluster.wait("sweeps that succeed", SOON, looks).await?;
    assert_eq!(side.writes()?, writes, "nothing is written while nothing changes");
    assert_eq!(side.report().await?.status.as_ref(), Some(&before));

    side.array().set_health(&slow, Vec::new());
    let status = side.until("one is well", |status| status.abnormal.len() == 1).await?;
    assert_eq!(status.abnormal[0], before.abnormal[0]);
    Ok(())
}

async fn nothing_to_say(cluster: &Cluster) -> Result<(), Failed> {
    let options = ArrayOptions {
        lists_volumes: false,
        lists_published_nodes: false,
        gets_volume: false,
        ..ArrayOptions::default()
    };
    let mut side = Side::new(cluster, "nothing", options).await?;
    side.claim("unseen").await?;
    side.until("Ready", |status| status.capabilities == [Capability::Unpublish]).await?;
    let asked = side.array().calls().count(Method::ControllerGetCapabilities);
    let looks = async || {
        let calls = side.array().calls().count(Method::ControllerGetCapabilities) - asked;
        Ok(if calls >= 3 { Ok(()) } else { Err(format!("{calls} calls")) })
    };
    cluster.wait("sweeps that find nothing to ask", SOON, looks).await?;
    let report = side.report().await?;
    let status = report.status.as_ref().ok_or("no status")?;
    assert!(report.is_ready());
    assert_eq!((status.coverage, status.checked_volumes, status.abnormal.len()), (None, None, 0));

    // It comes back after a crash, and so does the sidecar's way to it.
    side.array().crash().await;
    side.until("not Ready", |status| {
        bulkhead::api::conditions::find(&status.conditions, "Ready").is_some_and(|ready| ready.status == "False")
    })
    .await?;
    side.array().restart().await?;
    side.until("Ready again", |status| bulkhead::api::conditions::is_true(&status.conditions, "Ready")).await?;
    assert_eq!(side.sidecar.as_mut().ok_or("no sidecar")?.exit_status(), None, "it never ended");
    Ok(())
}
