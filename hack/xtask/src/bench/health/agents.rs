//! The agents of the many nodes. Five hundred of them do not fit on a machine, so their reports are written here: by the
//! ServiceAccount of the agent with a token bound to the node, as the admission policy asks for.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use bulkhead::api::conditions::{self, State};
use bulkhead::api::node_volume_report::{NodeVolumeReport, NodeVolumeReportStatus, ReportedVolume};
use bulkhead::api::volume::{Check, Finding, VolumeState};
use chrono::Utc;
use futures::{StreamExt, TryStreamExt, stream};
use kube::api::{ListParams, PostParams};
use kube::core::Request;
use kube::{Api, Client, Resource, ResourceExt};

use crate::Result;

use super::world::{AGENT, Layout, SimulatedNode};

/// Reports that are written at once.
const AT_ONCE: usize = 32;

/// All of them.
pub struct Agents {
    client: Client,
    layout: Layout,
    nodes: Vec<SimulatedNode>,
}

impl Agents {
    /// The agents of these nodes, in the order of the layout.
    pub fn new(client: Client, layout: Layout, nodes: Vec<SimulatedNode>) -> Self {
        Self { client, layout, nodes }
    }

    /// The agents of the nodes that have these volumes say all that is now so: `broken` cannot be reached, the others are
    /// healthy. Returns when the first report was on its way.
    pub async fn report(&self, volumes: &BTreeSet<usize>, broken: &BTreeSet<usize>) -> Result<Instant> {
        let nodes: BTreeSet<_> = volumes.iter().map(|volume| self.layout.node_of(*volume)).collect();
        // An agent has its report before it has something to say.
        let reports: Api<NodeVolumeReport> = Api::all(self.client.clone());
        let reports = reports.list(&ListParams::default()).await?;
        let mut reports: BTreeMap<_, _> = reports.into_iter().map(|report| (report.name_any(), report)).collect();
        let mut writes = Vec::new();
        for number in nodes {
            let Some(node) = self.nodes.get(number) else { continue };
            let mut report = reports.remove(&node.name).ok_or_else(|| format!("no report of {}", node.name))?;
            report.status = Some(self.status(number, node, broken));
            writes.push(self.write(report));
        }
        let from = Instant::now();
        stream::iter(writes).buffer_unordered(AT_ONCE).try_collect::<Vec<()>>().await?;
        Ok(from)
    }

    async fn write(&self, report: NodeVolumeReport) -> Result<()> {
        let (name, body) = (report.name_any(), serde_json::to_vec(&report)?);
        let url = NodeVolumeReport::url_path(&(), None);
        let mut request = Request::new(url).replace_subresource("status", &name, &PostParams::default(), body)?;
        let headers = request.headers_mut();
        headers.insert("impersonate-user", format!("system:serviceaccount:{AGENT}:{AGENT}").parse()?);
        for group in ["system:serviceaccounts", "system:authenticated"] {
            headers.append("impersonate-group", group.parse()?);
        }
        headers.insert("impersonate-extra-authentication.kubernetes.io%2fnode-name", name.parse()?);
        let written: NodeVolumeReport = self.client.request(request).await?;
        drop(written);
        Ok(())
    }

    fn status(&self, number: usize, node: &SimulatedNode, broken: &BTreeSet<usize>) -> NodeVolumeReportStatus {
        let now = Utc::now();
        let volumes: Vec<_> =
            self.layout.volumes_of(number).map(|volume| reported(volume, broken.contains(&volume))).collect();
        let unhealthy = volumes.iter().filter(|volume| volume.state != VolumeState::Healthy).count();
        let mut conditions = Vec::new();
        conditions::set(&mut conditions, "Ready", State::True, "Reporting", String::new(), 0, now);
        NodeVolumeReportStatus {
            conditions,
            node_uid: Some(node.uid.clone()),
            boot_id: Some(node.boot_id.clone()),
            agent_version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            checked: u32::try_from(volumes.len()).ok(),
            unhealthy: u32::try_from(unhealthy).ok(),
            volumes,
            ..NodeVolumeReportStatus::default()
        }
    }
}

fn reported(volume: usize, is_broken: bool) -> ReportedVolume {
    let finding = Finding {
        check: Check::PathExists,
        state: VolumeState::Inaccessible,
        reason: "PathMissing".into(),
        message: Some("there is nothing at the path of the volume".into()),
        since: bulkhead::api::time::stamp(Utc::now()),
        pod_uids: Vec::new(),
    };
    ReportedVolume {
        name: Layout::volume(volume),
        driver: None,
        volume_handle: None,
        device: None,
        state: if is_broken { VolumeState::Inaccessible } else { VolumeState::Healthy },
        mounts: Vec::new(),
        findings: if is_broken { vec![finding] } else { Vec::new() },
    }
}
