//! Every cell of the table with our real programs, a real driver behind gRPC and a real API server; what is paper is the
//! rest of the cluster: nodes, pods and attachments are objects that nobody stands behind. So hundreds of drivers fit in
//! one test. One node per line of the table, one driver with one volume and one pod per cell.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bulkhead::api::fence_request::{FenceOutcome, FenceRequest};
use bulkhead::api::fencing::Proof;
use bulkhead::api::node_fence::{NodeFence, VolumeStatusState};
use bulkhead_testbed::TestbedOptions;
use bulkhead_testbed::array::{Effect, Fault, FaultId, Method};
use bulkhead_testbed::cluster::{Cluster, ClusterError, ClusterOptions};
use bulkhead_testbed::process::Process;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use libtest_mimic::Failed;
use serde_json::json;

use super::super::fleet::{create_policy, options};
use super::super::look::{answer, operator_records, volume_row};
use super::objects::{Bed, Nodes, Sidecars};
use super::table::{Cell, Met, Stage, cells};

/// How many cells the table has, and how many of them run without `--wide`.
const CELLS: (usize, usize) = (303, 123);
/// Hundreds of drivers on a loaded machine; and after a minute of trouble the next try may be half a minute away.
const LIMIT: Duration = Duration::from_secs(180);
/// Set up at once.
const AT_ONCE: usize = 24;

pub async fn every_trouble_of_every_call_at_every_stage() -> Result<(), Failed> {
    let all = cells();
    let sampled: Vec<_> = all.iter().copied().filter(Cell::is_sampled).collect();
    assert_eq!((all.len(), sampled.len()), CELLS, "a table of another size");
    let cells = if super::super::is_wide() { all } else { sampled };
    let testbed = TestbedOptions::api_server_only();
    let mut cluster = Cluster::start(ClusterOptions { testbed, arrays: Vec::new(), nodes: 0, ..options() }).await?;
    let controller = Mutex::new(cluster.controllers.remove(0));
    for minimum in [Proof::Verified, Proof::Acknowledged] {
        let name = format!("{minimum:?}").to_lowercase();
        let fencing = match minimum {
            Proof::Verified => json!({}),
            _ => json!({ "minimumProof": minimum, "methods": [{ "type": "Unpublish" }] }),
        };
        let mut spec = json!({ "fencing": fencing, "release": { "detach": "VolumeAttachments" } });
        spec["fencing"]["callTimeout"] = json!("3s");
        // What renews the Leases here is this busy process: their age is not what this is about.
        spec["detection"] = json!({ "kubelet": { "suspectAfter": "5m" } });
        create_policy(&cluster.client, &name, &name, &spec).await?;
    }
    let nodes = Nodes::start(&cluster, cells.iter().map(Cell::line)).await?;
    let sidecars = Sidecars::new(&cluster).await?;
    let beds = stream::iter(cells).map(|cell| Bed::new(&cluster, &sidecars, cell)).buffer_unordered(AT_ONCE);
    let beds: Vec<Bed> = beds.try_collect().await?;
    let paper = Paper { cluster: &cluster, controller, beds };
    let held = paper.begin_trouble();
    nodes.die().await?;
    paper.interfere(held).await?;
    paper.all_met().await?;
    paper.assert_only(|bed| matches!(bed.cell.met(), Met::Released(_) | Met::Proved))?;
    paper.end_trouble().await?;
    paper.all_over().await?;
    paper.assert_only(|bed| bed.cell.ends())?;
    assert_calls_are_counted(&sidecars.scrape()?);
    println!("fail closed: {} of {} cells, each with a driver of its own", paper.beds.len(), CELLS.0);
    Ok(())
}

/// What succeeded and what did not is told apart, and nothing that a driver says is in a label.
fn assert_calls_are_counted(metrics: &str) {
    let series = |method: &str| format!("bulkhead_fence_calls_total{{method=\"{method}\",result=\"");
    for method in ["ControllerUnpublishVolume", "ListVolumes"] {
        let results: Vec<_> = metrics.lines().filter_map(|line| line.strip_prefix(&series(method))).collect();
        let failed = results.iter().filter(|result| !result.starts_with("Ok\""));
        assert!(failed.count() > 0 && results.iter().any(|result| result.starts_with("Ok\"")), "{method}: {results:?}");
        let is_code = |result: &&str| result.split('"').next().is_some_and(|it| it.chars().all(char::is_alphanumeric));
        assert!(results.iter().all(is_code), "{method}: {results:?}");
    }
}

/// The cells, each on its bed.
struct Paper<'a> {
    cluster: &'a Cluster,
    controller: Mutex<Process>,
    beds: Vec<Bed>,
}

/// Objects of our kinds and pods, by name, at one moment.
struct Look {
    requests: BTreeMap<String, FenceRequest>,
    fences: BTreeMap<String, NodeFence>,
    pods: BTreeSet<String>,
    attachments: BTreeSet<String>,
}

impl Paper<'_> {
    /// Trouble from before the nodes die. Where it comes later the fence call is held up until then.
    fn begin_trouble(&self) -> Vec<(&Bed, FaultId)> {
        let mut held = Vec::new();
        for bed in &self.beds {
            match bed.cell.stage {
                Stage::Start => {}
                Stage::Before | Stage::Fence => bed.begin(bed.created),
                Stage::After | Stage::Middle => {
                    let hang = Fault::on(Method::ControllerUnpublishVolume, Effect::Hang);
                    held.push((bed, bed.array.faults().add(hang)));
                }
            }
        }
        held
    }

    /// Trouble in the middle: once the fence calls are under way.
    async fn interfere(&self, held: Vec<(&Bed, FaultId)>) -> Result<(), Failed> {
        let begun = async || {
            let look = match self.look().await {
                Ok(look) => look,
                Err(error) => return Ok(Err(error)),
            };
            let row = |bed: &Bed| answer(look.requests.get(&bed.request_name())?, &bed.volume)?.started_at;
            let open: Vec<_> = held.iter().filter(|(bed, _)| row(bed).is_none()).map(|(bed, _)| &bed.id).collect();
            Ok(if open.is_empty() { Ok(()) } else { Err(format!("{open:?}")) })
        };
        self.cluster.wait("fence calls are under way", LIMIT, begun).await?;
        for (bed, _) in &held {
            bed.begin(bed.array.ledger().now());
        }
        let middle = held.iter().filter(|(bed, _)| bed.cell.stage == Stage::Middle);
        stream::iter(middle.map(|(bed, _)| bed.ask_driver())).buffer_unordered(AT_ONCE).collect::<Vec<_>>().await;
        for (bed, hang) in held {
            bed.array.faults().remove(hang);
        }
        Ok(())
    }

    /// A program that loses its Lease to the load of the machine ends, and its kubelet starts it again.
    fn restart_what_ended(&self) -> Result<(), ClusterError> {
        let mut controller = self.controller.lock().unwrap_or_else(PoisonError::into_inner);
        if controller.exit_status().is_some() {
            *controller = self.cluster.controller("bulkhead-controller-again")?;
        }
        self.beds.iter().try_for_each(|bed| bed.restart_sidecar(self.cluster))
    }

    async fn look(&self) -> Result<Look, String> {
        // It is a costly look: not as often as it could be.
        tokio::time::sleep(Duration::from_secs(1)).await;
        self.restart_what_ended().map_err(|error| error.to_string())?;
        let (client, all) = (&self.cluster.client, ListParams::default());
        let requests: Api<FenceRequest> = Api::all(client.clone());
        let fences: Api<NodeFence> = Api::all(client.clone());
        let pods: Api<Pod> = Api::default_namespaced(client.clone());
        let attachments: Api<VolumeAttachment> = Api::all(client.clone());
        let (requests, fences, pods, attachments) = tokio::try_join!(
            requests.list(&all),
            fences.list(&all),
            pods.list_metadata(&all),
            attachments.list_metadata(&all)
        )
        .map_err(|error| error.to_string())?;
        Ok(Look {
            requests: by_name(requests.items),
            fences: by_name(fences.items),
            pods: by_name(pods.items).into_keys().collect(),
            attachments: by_name(attachments.items).into_keys().collect(),
        })
    }

    /// Waits until each cell shows what it must.
    async fn all_met(&self) -> Result<(), Failed> {
        let met = async || {
            let look = match self.look().await {
                Ok(look) => look,
                Err(error) => return Ok(Err(error)),
            };
            let open: Vec<_> = self.beds.iter().filter(|bed| !look.is_met(bed)).collect();
            Ok(if open.is_empty() { Ok(()) } else { Err(look.told(&open)) })
        };
        Ok(self.cluster.wait("every cell shows its trouble", LIMIT, met).await?)
    }

    /// We deleted the pods and attachments of these cells and no others, and each on enough proof.
    fn assert_only(&self, goes: impl Fn(&Bed) -> bool) -> Result<(), Failed> {
        let deleted = operator_records(self.cluster, |record| {
            record.verb == "delete" && ["pods", "volumeattachments"].contains(&record.resource.as_str())
        })?;
        for record in deleted {
            let bed = self.beds.iter().find(|bed| bed.id == record.name).ok_or("a pod of nobody")?;
            assert!(goes(bed), "{}: {} was deleted", bed.id, record.resource);
            let cut_off = !bed.array.published_nodes(&bed.handle).contains(&bed.node_id());
            assert!(cut_off || bed.cell.minimum < Proof::Verified, "{}: the node still has access", bed.id);
        }
        Ok(())
    }

    /// The drivers are sound again.
    async fn end_trouble(&self) -> Result<(), Failed> {
        for bed in &self.beds {
            bed.array.faults().clear();
            if bed.cell.crashes() {
                bed.array.restart().await?;
            }
        }
        let reporting = self.beds.iter().filter(|bed| bed.cell.stage == Stage::Middle).map(Bed::ask_driver);
        stream::iter(reporting).buffer_unordered(AT_ONCE).collect::<Vec<_>>().await;
        Ok(())
    }

    /// Waits until the failover of every cell has gone on by itself, and has ended with enough proof.
    async fn all_over(&self) -> Result<(), Failed> {
        let over = async || {
            let look = match self.look().await {
                Ok(look) => look,
                Err(error) => return Ok(Err(error)),
            };
            let open: Vec<_> = self.beds.iter().filter(|bed| look.is_gone(bed) != bed.cell.ends()).collect();
            Ok(if open.is_empty() { Ok(look) } else { Err(look.told(&open)) })
        };
        let look = self.cluster.wait("every failover goes on by itself", LIMIT, over).await?;
        for bed in self.beds.iter().filter(|bed| bed.cell.ends()) {
            let row = look.fences.get(&bed.node).and_then(|fence| volume_row(fence, &bed.volume)).ok_or("no row")?;
            assert!(row.proof >= bed.cell.minimum, "{}: {row:?}", bed.id);
        }
        Ok(())
    }
}

fn by_name<K: ResourceExt>(items: Vec<K>) -> BTreeMap<String, K> {
    items.into_iter().map(|item| (item.name_any(), item)).collect()
}

impl Look {
    fn is_gone(&self, bed: &Bed) -> bool {
        !self.pods.contains(&bed.id) && !self.attachments.contains(&bed.id)
    }

    /// Whether the cell shows what it must.
    fn is_met(&self, bed: &Bed) -> bool {
        let request = self.requests.get(&bed.request_name());
        let row = request.and_then(|request| answer(request, &bed.volume));
        let fence = self.fences.get(&bed.node);
        let volume = fence.and_then(|fence| volume_row(fence, &bed.volume));
        match bed.cell.met() {
            Met::Answer(results, reasons) => row.is_some_and(|row| {
                let reason = row.reason.clone().unwrap_or_default();
                let begun = row.started_at.is_some() == (bed.cell.stage != Stage::Before);
                results.contains(&(row.result, row.proof)) && reasons.contains(&reason) && begun
            }),
            Met::NotAsked(reasons) => {
                let told = volume.filter(|volume| volume.state == VolumeStatusState::Failed);
                let reason = told.and_then(|volume| volume.reason.as_deref());
                request.is_none() && reason.is_some_and(|reason| reasons.contains(&reason))
            }
            Met::Released(proof) => {
                let proved = row.is_some_and(|row| row.result == FenceOutcome::Fenced && row.proof == proof);
                proved && !self.pods.contains(&bed.id)
            }
            Met::Proved => {
                let proved = row.is_some_and(|row| row.result == FenceOutcome::Fenced && row.proof == Proof::Verified);
                let reason = volume.and_then(|volume| volume.reason.as_deref());
                proved && (!self.pods.contains(&bed.id) || reason == Some("DriverUnavailable"))
            }
        }
    }

    /// What there is instead: all names, and the first few in full.
    fn told(&self, open: &[&Bed]) -> String {
        let one = |bed: &&Bed| {
            let row = self.requests.get(&bed.request_name()).and_then(|request| answer(request, &bed.volume));
            let volume = self.fences.get(&bed.node).and_then(|fence| volume_row(fence, &bed.volume));
            let there = (self.pods.contains(&bed.id), self.attachments.contains(&bed.id));
            format!("{}: answer {row:?}, volume {volume:?}, pod and attachment there: {there:?}", bed.id)
        };
        let names: Vec<_> = open.iter().map(|bed| bed.id.as_str()).collect();
        let shown: Vec<_> = open.iter().take(5).map(one).collect();
        format!("{} cells: {}\n{}", open.len(), names.join(" "), shown.join("\n"))
    }
}
