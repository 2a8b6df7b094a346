//! Two replicas that lead in turns, and one that wakes up as a leader of yesterday.

use std::collections::BTreeMap;

use bulkhead::api::mountpoint_s3_pod_attachment::MountpointS3PodAttachment;
use bulkhead::api::names;
use bulkhead_testbed::Identity;
use bulkhead_testbed::process::{Process, Signal};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use libtest_mimic::Failed;
use serde_json::json;

use super::lane::{Lane, phase};
use super::world::{SOON, World};

const NODES: usize = 4;
const CLAIMS: usize = 10;

/// `sharers` workloads of each claim on each node.
pub async fn that_take_turns_make_no_duplicates(sharers: usize) -> Result<(), Failed> {
    let world = World::start(&[]).await?;
    let lane = Lane::new(&world, "replicas", NODES).await?;
    let claims: Vec<_> = (0..CLAIMS).map(|number| format!("data-{number}")).collect();
    for claim in &claims {
        lane.bound(claim, json!({})).await?;
    }
    let mut replicas = Replicas { world: &world, processes: BTreeMap::new() };
    for name in ["bulkhead-controller-a", "bulkhead-controller-b"] {
        replicas.start(name)?;
    }
    for sharer in 0..sharers {
        for claim in &claims {
            for node in 1..=NODES {
                lane.pod(&format!("{claim}-{node}-{sharer}"), node, &[claim], json!({})).await?;
            }
        }
        match sharer {
            1 => replicas.one_wakes_up_late().await?,
            _ => replicas.another_leads().await?,
        }
    }
    all_attached(&lane, NODES * CLAIMS * sharers).await?;

    let attachments = lane.attachments().list(&ListParams::default()).await?.items;
    assert_eq!(attachments.len(), NODES * CLAIMS);
    let pods = lane.mountpoint_pods().list(&ListParams::default()).await?.items;
    assert_eq!(pods.len(), NODES * CLAIMS);
    // Nor was there one in between.
    let us = Identity::OperatorController.user();
    for resource in ["pods", "mountpoints3podattachments"] {
        let records = world.cluster.testbed.audit().records()?;
        let created = records.filter(|it| it.user == us && it.verb == "create" && it.resource == resource);
        assert_eq!(created.filter(|it| it.succeeded()).count(), NODES * CLAIMS, "{resource}");
    }
    Ok(())
}

struct Replicas<'a> {
    world: &'a World,
    processes: BTreeMap<String, Process>,
}

impl Replicas<'_> {
    fn start(&mut self, name: &str) -> Result<(), Failed> {
        self.processes.insert(name.to_owned(), self.world.cluster.controller(name)?);
        Ok(())
    }

    /// The leader ends in order, and starts again as a follower.
    async fn another_leads(&mut self) -> Result<(), Failed> {
        let leader = self.leader("").await?;
        if let Some(process) = self.processes.remove(&leader) {
            process.stop().await;
        }
        self.leader(&leader).await?;
        self.start(&leader)
    }

    /// The leader stands still until another leads, and goes on then.
    async fn one_wakes_up_late(&mut self) -> Result<(), Failed> {
        let leader = self.leader("").await?;
        let process = self.processes.get_mut(&leader).ok_or("no such replica")?;
        process.signal(Signal::Stop)?;
        self.leader(&leader).await?;
        let process = self.processes.get_mut(&leader).ok_or("no such replica")?;
        process.signal(Signal::Continue)?;
        // It ends, because it does not lead any more.
        process.ended_by_itself().await;
        self.start(&leader)
    }

    /// Waits for a leader other than this.
    async fn leader(&self, other_than: &str) -> Result<String, Failed> {
        let leases: Api<Lease> = Api::namespaced(self.world.admin.clone(), names::OPERATOR_NAMESPACE);
        let look = async || {
            let lease = leases.get_opt("bulkhead-controller").await?;
            let holder = lease.and_then(|lease| lease.spec).and_then(|spec| spec.holder_identity).unwrap_or_default();
            // Each process adds something of its own to its name.
            let holder = holder.rsplit_once('_').map(|(name, _)| name.to_owned()).unwrap_or_default();
            let known = self.processes.contains_key(&holder) && holder != other_than;
            Ok(if known { Ok(holder) } else { Err(format!("{holder:?} leads")) })
        };
        Ok(self.world.cluster.wait("a replica leads", SOON, look).await?)
    }
}

async fn all_attached(lane: &Lane<'_>, wanted: usize) -> Result<(), Failed> {
    let look = async || {
        let pods = lane.pods().list(&ListParams::default()).await?.items;
        let running = pods.iter().filter(|pod| phase(pod) == "Running").count();
        let attachments = lane.attachments().list(&ListParams::default()).await?.items;
        let named: usize = attachments.iter().map(workloads).sum();
        Ok(if (running, named) == (wanted, wanted) { Ok(()) } else { Err(format!("{running} run, {named} are named")) })
    };
    Ok(lane.world.cluster.wait("all workloads are attached and run", SOON, look).await?)
}

/// Each as often as it is named.
fn workloads(attachment: &MountpointS3PodAttachment) -> usize {
    assert_eq!(attachment.name_any(), attachment.spec.mount().attachment_name());
    attachment.spec.mountpoint_s3_pod_attachments.values().map(Vec::len).sum()
}
