//! An external fencer that sees the power of machines from outside, as by their BMCs, played: it looks once a second, and reports
//! which are off before anybody asks (docs/fencers.md). It answers no FenceRequest.

use std::collections::BTreeSet;
use std::time::Duration;

use bulkhead::api::driver_report::{DriverReport, PoweredOffNode};
use bulkhead::api::names::{self, OPERATOR_NAMESPACE};
use bulkhead::api::time;
use bulkhead_testbed::cluster::merge;
use chrono::{SecondsFormat, Utc};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use crate::Result;

/// By this name policies trust it.
pub const NAME: &str = "power.bench.test";
/// How often it looks.
const PERIOD: Duration = Duration::from_secs(1);

/// The fencer. It ends when this is dropped.
pub struct PowerFencer {
    off: watch::Sender<BTreeSet<String>>,
    _looking: JoinSet<()>,
}

impl PowerFencer {
    /// Starts it. It has its Lease and a report without rows when this returns: what was there first would be no news.
    pub async fn start(client: &Client) -> Result<Self> {
        let (off, machines) = watch::channel(BTreeSet::new());
        let mut reporter = Reporter { client: client.clone(), machines, told: None };
        reporter.look().await?;
        let mut looking = JoinSet::new();
        looking.spawn(reporter.run());
        Ok(Self { off, _looking: looking })
    }

    /// A machine has no power; its BMC says so from now on.
    pub fn lost(&self, node: &str) {
        self.off.send_modify(|off| {
            off.insert(node.to_owned());
        });
    }

    /// A machine gets its power again.
    pub fn regained(&self, node: &str) {
        self.off.send_modify(|off| {
            off.remove(node);
        });
    }
}

struct Reporter {
    client: Client,
    /// Those without power.
    machines: watch::Receiver<BTreeSet<String>>,
    /// The rows that were written last.
    told: Option<Vec<PoweredOffNode>>,
}

impl Reporter {
    async fn run(mut self) {
        let mut period = tokio::time::interval(PERIOD);
        period.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            period.tick().await;
            if let Err(error) = self.look().await {
                tracing::warn!(%error, "which nodes are off is told at the next look");
            }
        }
    }

    async fn look(&mut self) -> kube::Result<()> {
        self.renew().await?;
        // Each Node before its power, so that one that boots meanwhile is not called off in its new boot.
        let nodes = Api::<Node>::all(self.client.clone()).list(&ListParams::default()).await?;
        let off = self.machines.borrow().clone();
        let nodes = nodes.iter().filter(|node| off.contains(&node.name_any()));
        let rows: Vec<_> = nodes.filter_map(|node| self.row(node)).collect();
        if self.told.as_ref() != Some(&rows) {
            self.report(&rows).await?;
            self.told = Some(rows);
        }
        Ok(())
    }

    /// By its Lease the controller knows that it is there.
    async fn renew(&self) -> kube::Result<()> {
        let name = names::fencer_lease(NAME);
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "name": name },
            "spec": {
                "holderIdentity": NAME,
                "leaseDurationSeconds": 15,
                "renewTime": Utc::now().to_rfc3339_opts(SecondsFormat::Micros, true),
            },
        });
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), OPERATOR_NAMESPACE);
        leases.patch(&name, &writer(), &Patch::Apply(&lease)).await.map(drop)
    }

    /// What is said of a machine that is off, as it was said first.
    fn row(&self, node: &Node) -> Option<PoweredOffNode> {
        let now = PoweredOffNode {
            node: node.name_any(),
            node_uid: node.uid()?,
            boot_id: node.status.as_ref()?.node_info.as_ref()?.boot_id.clone(),
            since: time::stamp(Utc::now()),
            reason: Some("PowerStateOff".into()),
        };
        let mut told = self.told.iter().flatten();
        let same =
            told.find(|row| (&row.node, &row.node_uid, &row.boot_id) == (&now.node, &now.node_uid, &now.boot_id));
        Some(same.cloned().unwrap_or(now))
    }

    async fn report(&self, rows: &[PoweredOffNode]) -> kube::Result<()> {
        let reports: Api<DriverReport> = Api::all(self.client.clone());
        let mut report = json!({
            "apiVersion": "bulkhead.dev/v1alpha1", "kind": "DriverReport", "metadata": { "name": NAME },
        });
        reports.patch(NAME, &writer(), &Patch::Apply(&report)).await?;
        let ready = json!({
            "type": "Ready", "status": "True", "reason": "Reporting", "message": "",
            "lastTransitionTime": Utc::now().to_rfc3339_opts(SecondsFormat::Secs, true),
        });
        merge(&mut report, &json!({ "status": { "poweredOff": rows, "conditions": [ready] } }));
        reports.patch_status(NAME, &writer(), &Patch::Apply(&report)).await.map(drop)
    }
}

fn writer() -> PatchParams {
    PatchParams::apply("power-fencer").force()
}
