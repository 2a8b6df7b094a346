//! A program that is killed (SIGKILL, the shipped binary) at each site of its script, and followed by another with empty
//! memory under another name.

use bulkhead::api::names;
use bulkhead_testbed::array::Array;
use bulkhead_testbed::cluster::{Cluster, Tapped};
use bulkhead_testbed::fault_proxy::{Script, Tap};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{Patch, PatchParams};
use libtest_mimic::Failed;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::SOON;

/// Which program.
#[derive(Clone, Copy)]
pub enum Kind<'a> {
    Controller,
    /// Beside this array.
    Sidecar(&'a Array),
}

impl Kind<'_> {
    pub fn lease(self) -> String {
        match self {
            Self::Controller => "bulkhead-controller".to_owned(),
            Self::Sidecar(array) => names::fencer_lease(array.driver_name()),
        }
    }

    /// One more process of this kind.
    pub async fn start(self, cluster: &Cluster, name: &str, script: &Script) -> Result<Tapped, Failed> {
        Ok(match self {
            Self::Controller => cluster.tapped_controller(name, script).await?,
            Self::Sidecar(array) => cluster.tapped_sidecar(name, array, script).await?,
        })
    }
}

/// One process after the other.
pub struct Lineage<'a> {
    cluster: &'a Cluster,
    kind: Kind<'a>,
    pub script: Script,
    current: Option<Tapped>,
    generation: usize,
}

impl<'a> Lineage<'a> {
    /// Starts the first process, and returns when it leads.
    pub async fn start(cluster: &'a Cluster, kind: Kind<'a>) -> Result<Self, Failed> {
        let mut lineage = Self { cluster, kind, script: Script::default(), current: None, generation: 0 };
        lineage.succeed().await?;
        lineage
            .cluster
            .wait("the first leads", SOON, async || Ok(holder(cluster, &kind.lease()).await?.ok_or_else(String::new)))
            .await?;
        Ok(lineage)
    }

    /// Kills the process and starts the next.
    ///
    /// The Lease is emptied in between: its 15 s are there for a leader that may still live, and this one is dead for
    /// certain. What the next one finds is the same, only sooner. (That it waits while it must: `restarts.rs`.)
    pub async fn succeed(&mut self) -> Result<(), Failed> {
        self.stop().await?;
        self.generation += 1;
        let name = format!("{}-{}", self.kind.lease(), self.generation);
        self.current = Some(self.kind.start(self.cluster, &name, &self.script).await?);
        Ok(())
    }

    /// Kills the process.
    pub async fn stop(&mut self) -> Result<(), Failed> {
        if let Some(current) = self.current.take() {
            current.kill().await;
            let leases: Api<Lease> = Api::namespaced(self.cluster.client.clone(), names::OPERATOR_NAMESPACE);
            let nobody = Patch::Merge(json!({ "spec": { "holderIdentity": null } }));
            match leases.patch(&self.kind.lease(), &PatchParams::default(), &nobody).await {
                // It died before it led.
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                patched => drop(patched?),
            }
        }
        Ok(())
    }

    /// The name of its Lease.
    pub fn lease(&self) -> String {
        self.kind.lease()
    }

    /// Kills and replaces at each site, until `over`. One that ends by itself, as on a machine too busy to renew a Lease in
    /// time, is started again, as a kubelet does.
    pub async fn die_as_scripted(&mut self, over: &CancellationToken) -> Result<(), Failed> {
        loop {
            let Tapped { process, tap, .. } = self.current.as_mut().ok_or("no process")?;
            tokio::select! {
                biased;
                _ = tap.stopped() => {}
                _ = process.ended_by_itself() => {}
                // What is done may be seen before its answer comes and is kept back.
                () = settled(over, tap) => return Ok(()),
            }
            self.succeed().await?;
        }
    }
}

async fn settled(over: &CancellationToken, tap: &Tap) {
    over.cancelled().await;
    tap.quiet().await;
}

/// Who holds a Lease of ours.
pub async fn holder(cluster: &Cluster, lease: &str) -> Result<Option<String>, kube::Error> {
    let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), names::OPERATOR_NAMESPACE);
    let lease = leases.get_opt(lease).await?;
    let holder = lease.and_then(|lease| lease.spec).and_then(|spec| spec.holder_identity);
    Ok(holder.filter(|holder| !holder.is_empty()))
}
