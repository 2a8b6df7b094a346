//! The cells of the fence call itself with the whole control plane: attach/detach, the attacher, kubelets and writers. One
//! node, many volumes, each with its own trouble; the sound one is not delayed by any of them.

use std::collections::BTreeMap;

use bulkhead::api::fencing::Proof;
use bulkhead::api::node_fence::{NodeFence, PodStatusState, VolumeStatusState};
use bulkhead_testbed::array::{Fault, Method};
use bulkhead_testbed::cluster::{Cluster, Workload};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use libtest_mimic::Failed;
use serde_json::{Value, json};

use super::super::fleet::{Lane, LaneOptions, SOON};
use super::super::look::{answer, condition, is_released, pod_row, volume_row};
use super::table::{Cell, Met, Trouble, cells};

const UNPUBLISH: Method = Method::ControllerUnpublishVolume;

/// The cells that one node can have side by side: a driver that dies takes all its volumes with it. A call that was done
/// though it failed is run here with `--wide`.
fn of_one_node(minimum: Proof) -> Vec<Cell> {
    let line = cells().into_iter().filter(|cell| cell.call == UNPUBLISH && cell.minimum == minimum && !cell.crashes());
    line.filter(|cell| super::super::is_wide() || !matches!(cell.trouble, Trouble::DoneThenFails(_))).collect()
}

/// A lane with a sound pod, the first, and one for each cell.
struct Ward<'a> {
    lane: Lane<'a>,
    set: Workload,
    cells: Vec<Cell>,
    /// The volume of each attachment of the victim.
    attachments: BTreeMap<String, String>,
}

impl<'a> Ward<'a> {
    async fn open(cluster: &'a Cluster, name: &str, options: LaneOptions, cells: Vec<Cell>) -> Result<Self, Failed> {
        let lane = Lane::new(cluster, name, options).await?;
        let set = Workload { replicas: cells.len() + 1, ..lane.workload("db") };
        lane.run(&set).await?;
        let api: Api<VolumeAttachment> = Api::all(lane.client());
        let volume = |it: &VolumeAttachment| it.spec.source.persistent_volume_name.clone().unwrap_or_default();
        let all = api.list(&ListParams::default()).await?.items;
        let ours = all.iter().filter(|it| it.spec.attacher == lane.array().driver_name());
        let attachments = ours.map(|it| (it.name_any(), volume(it))).collect();
        for (replica, cell) in (1..).zip(&cells) {
            let handle = set.handle(replica, 0);
            let effect = cell.effect(&handle, lane.array().ledger().now());
            lane.array().faults().add(Fault::on(UNPUBLISH, effect).volume(&handle));
        }
        lane.victim()?.kill().await;
        Ok(Self { lane, set, cells, attachments })
    }

    /// Each cell with the name of its pod and of its volume.
    fn beds(&self) -> impl Iterator<Item = (&Cell, String, String)> {
        let named = |(replica, cell)| (cell, format!("{}-{replica}", self.set.name), self.set.volume_name(replica, 0));
        (1..).zip(&self.cells).map(named)
    }

    fn first(&self) -> String {
        format!("{}-0", self.set.name)
    }

    /// Waits until every cell's answer is what the table says; a cell without trouble for this proof has moved.
    async fn all_answered(&self) -> Result<(), Failed> {
        let lane = &self.lane;
        lane.request("every trouble is answered", |request| {
            self.beds().all(|(cell, _, volume)| match cell.met() {
                Met::Answer(results, reasons) => answer(request, &volume).is_some_and(|row| {
                    let reason = row.reason.clone().unwrap_or_default();
                    results.contains(&(row.result, row.proof)) && reasons.contains(&reason)
                }),
                _ => false,
            })
        })
        .await?;
        Ok(())
    }

    /// The sound pod is released, all others wait, and nobody else's pod was deleted.
    async fn all_wait(&self) -> Result<NodeFence, Failed> {
        let first = self.first();
        let fence = self
            .lane
            .fence("the sound pod is released and the others wait", |fence| {
                is_released(fence, &first) && matches!(condition(fence, "Released"), Some(("False", _)))
            })
            .await?;
        for (cell, pod, _) in self.beds() {
            let state = pod_row(&fence, &pod).map(|row| row.state);
            assert!(matches!(state, Some(PodStatusState::Waiting | PodStatusState::Pending)), "{cell:?}: {state:?}");
        }
        let released = self.lane.deletions(&[])?;
        assert!(released.iter().all(|record| record.name == first), "{released:?}");
        Ok(fence)
    }

    /// The trouble ends, and the failover goes on by itself.
    async fn all_move(self, minimum: Proof) -> Result<(), Failed> {
        self.lane.array().faults().clear();
        self.lane.moved(&self.set).await?;
        let fence = self.lane.detached().await?;
        for (cell, _, volume) in self.beds() {
            let row = volume_row(&fence, &volume).ok_or("no row")?;
            assert!(row.proof >= minimum, "{cell:?}: {row:?}");
        }
        println!("fail closed: {} cells of {} on the whole control plane", self.cells.len(), self.lane.name);
        self.lane.end().await
    }
}

fn policy(minimum: Proof, method: &str) -> Value {
    json!({ "fencing": { "minimumProof": minimum, "methods": [{ "type": method }], "callTimeout": "3s" } })
}

/// `Unimplemented` is for good.
fn that_end(mut cells: Vec<Cell>) -> Vec<Cell> {
    cells.retain(Cell::ends);
    cells
}

pub async fn each_trouble_holds_its_own_pod_only(cluster: &Cluster) -> Result<(), Failed> {
    // Method Detach is in the policy, and never tried: it could not give the proof.
    let policy = json!({ "fencing": { "callTimeout": "3s" } });
    let options = LaneOptions { policy, ..LaneOptions::default() };
    let ward = Ward::open(cluster, "trouble", options, that_end(of_one_node(Proof::Verified))).await?;
    ward.all_answered().await?;
    ward.all_wait().await?;
    let sound = ward.set.volume_name(0, 0);
    let names: Vec<_> = ward.attachments.keys().cloned().collect();
    for record in ward.lane.deletions(&names)?.iter().filter(|record| record.resource != "pods") {
        assert_eq!(ward.attachments.get(&record.name), Some(&sound), "detached below the proof");
    }
    ward.all_move(Proof::Verified).await
}

/// With `--wide`: an OK is enough, and nothing less is.
pub async fn acknowledged_by_a_driver(cluster: &Cluster) -> Result<(), Failed> {
    let options = LaneOptions { policy: policy(Proof::Acknowledged, "Unpublish"), ..LaneOptions::default() };
    let mut cells = that_end(of_one_node(Proof::Acknowledged));
    // An OK that did nothing is what this proof cannot exclude.
    cells.retain(|cell| cell.trouble != Trouble::Nothing);
    let ward = Ward::open(cluster, "acknowledged", options, cells).await?;
    ward.all_answered().await?;
    ward.all_wait().await?;
    ward.all_move(Proof::Acknowledged).await
}

/// Method Detach: the deletion of the attachment is the fence call, and its end is the proof. What the driver answers,
/// the attacher hears.
pub async fn acknowledged_by_the_attacher(cluster: &Cluster) -> Result<(), Failed> {
    let policy = policy(Proof::Acknowledged, "Detach");
    let options = LaneOptions { sidecar: false, policy, ..LaneOptions::default() };
    let mut cells = of_one_node(Proof::Acknowledged);
    cells.retain(|cell| cell.trouble != Trouble::Nothing);
    let ward = Ward::open(cluster, "attacher", options, cells).await?;
    let asked = async || {
        let calls = ward.lane.array().calls().all();
        let open = ward.beds().filter(|(_, _, volume)| {
            let handle = format!("vol-{volume}");
            !calls.iter().any(|call| call.method == UNPUBLISH && call.volume == handle)
        });
        let open: Vec<_> = open.map(|(cell, _, _)| cell.trouble).collect();
        Ok(if open.is_empty() { Ok(()) } else { Err(format!("{open:?}")) })
    };
    cluster.wait("the attacher has asked for each", SOON, asked).await?;
    let fence = ward.all_wait().await?;
    for (cell, _, volume) in ward.beds() {
        let row = volume_row(&fence, &volume).ok_or("no row")?;
        assert_eq!((row.state, row.proof), (VolumeStatusState::Fencing, Proof::None), "{cell:?}");
    }
    ward.all_move(Proof::Acknowledged).await
}
