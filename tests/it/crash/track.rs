//! One cluster on which incidents follow each other, each alone, while our programs die at chosen calls.

use std::collections::BTreeSet;

use bulkhead::api::driver_report::DriverReport;
use bulkhead_testbed::array::Array;
use bulkhead_testbed::cluster::{Cluster, ClusterOptions};
use bulkhead_testbed::fault_proxy::{Call, Script, Site};
use bulkhead_testbed::oracle;
use kube::Api;
use kube::api::DeleteParams;
use libtest_mimic::Failed;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::SOON;
use super::lineage::{Kind, Lineage, holder};
use super::outcome::normalise;
use super::story::{Scene, Story};
use super::victim::Victim;
use crate::failover::fleet::options;

/// Victims that die together: their pods are evicted by Kubernetes itself after 5 minutes, so they may not lie for long.
pub const WAVE: usize = 8;

/// Where a program dies.
#[derive(Clone, Debug, Default)]
pub struct Deaths {
    pub controller: Vec<Site>,
    pub sidecar: Vec<Site>,
}

/// The calls of a story that nobody disturbed, and what it left.
pub struct Clean {
    pub controller: Vec<Call>,
    pub sidecar: Vec<Call>,
    pub outcome: Value,
}

/// The cluster, with what is needed to play on it.
pub struct Track<'a> {
    cluster: &'a Cluster,
    array: &'a Array,
    pub controller: Lineage<'a>,
    pub sidecar: Lineage<'a>,
}

/// A cluster without our programs.
pub async fn stage() -> Result<Cluster, Failed> {
    Ok(Cluster::start(ClusterOptions { nodes: 2, controller: false, sidecars: false, ..options() }).await?)
}

impl<'a> Track<'a> {
    pub async fn new(cluster: &'a Cluster) -> Result<Self, Failed> {
        let array = cluster.arrays.first().ok_or("no array")?;
        let sidecar = Lineage::start(cluster, Kind::Sidecar(array)).await?;
        let controller = Lineage::start(cluster, Kind::Controller).await?;
        Ok(Self { cluster, array, controller, sidecar })
    }

    /// Victims of these names for a story.
    pub async fn victims(&self, stories: &[(String, Story)]) -> Result<Vec<Victim>, Failed> {
        let named: Vec<_> = stories.iter().map(|(name, story)| (name.clone(), *story == Story::Awkward)).collect();
        Victim::all(self.cluster, self.array, &named).await
    }

    /// Plays a story while nobody dies.
    pub async fn clean(&mut self, story: Story, victim: Victim) -> Result<Clean, Failed> {
        let outcome = self.play(story, victim, &Deaths::default()).await?;
        Ok(Clean { controller: self.controller.script.calls(), sidecar: self.sidecar.script.calls(), outcome })
    }

    /// Plays a story with deaths, and compares what is left. Returns the sites that were not come to.
    pub async fn with(
        &mut self,
        story: Story,
        victim: Victim,
        deaths: &Deaths,
        clean: &Clean,
    ) -> Result<Vec<Site>, Failed> {
        let outcome = self.play(story, victim, deaths).await?;
        let calls = |script: &Script| script.calls().iter().map(|call| call.what.clone()).collect::<Vec<_>>();
        if outcome != clean.outcome {
            let (ours, theirs) = (calls(&self.controller.script), calls(&self.sidecar.script));
            return Err(format!(
                "{story:?} with {deaths:?} ended otherwise:\n{outcome:#}\nwithout:\n{:#}\ncalls {ours:?} {theirs:?}",
                clean.outcome
            )
            .into());
        }
        Ok([self.controller.script.left(), self.sidecar.script.left()].concat())
    }

    async fn play(&mut self, story: Story, victim: Victim, deaths: &Deaths) -> Result<Value, Failed> {
        let scripts = [self.controller.script.clone(), self.sidecar.script.clone()];
        let subject = victim.name().to_owned();
        let counting = || {
            scripts[0].begin(&subject, deaths.controller.clone());
            scripts[1].begin(&subject, deaths.sidecar.clone());
        };
        let scene =
            Scene { cluster: self.cluster, array: self.array, victim: &victim, frozen: CancellationToken::new() };
        let what = format!("{story:?} with {deaths:?}");
        let outcome = self.outlive(&what, story.play(&scene, counting)).await?;
        self.cluster.nodes.remove(victim.name()).await?;
        Ok(outcome)
    }

    /// A sidecar begins beside a driver that nobody has reported yet. Returns what is left: its DriverReport.
    pub async fn report(&mut self, sites: Vec<Site>) -> Result<Value, Failed> {
        let reports: Api<DriverReport> = Api::all(self.cluster.client.clone());
        let driver = self.array.driver_name();
        let what = format!("report with {sites:?}");
        self.sidecar.stop().await?;
        match reports.delete(driver, &DeleteParams::default()).await {
            // The first sidecar had not yet written it.
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            deleted => drop(deleted?),
        }
        self.sidecar.script.begin(driver, sites);
        self.sidecar.succeed().await?;
        let (cluster, lease) = (self.cluster, self.sidecar.lease());
        let reported = async {
            let look = async || {
                let report = reports.get_opt(driver).await?;
                let conditions = report.iter().flat_map(|report| &report.status).flat_map(|status| &status.conditions);
                let ready = conditions.into_iter().any(|it| it.type_ == "Ready" && it.status == "True");
                let led = holder(cluster, &lease).await?.is_some();
                Ok(if ready && led { Ok(json!({ "status": report })) } else { Err(format!("{report:?}")) })
            };
            Ok(cluster.wait("reported", SOON, look).await?)
        };
        let mut left = self.outlive(&what, reported).await?;
        if let Some(status) = left.pointer_mut("/status") {
            *status = status["status"].take();
        }
        normalise(&mut left, driver);
        Ok(left)
    }

    /// Lets something happen while our programs die and are replaced; then the oracle speaks.
    async fn outlive<T>(&mut self, what: &str, happens: impl Future<Output = Result<T, Failed>>) -> Result<T, Failed> {
        let over = CancellationToken::new();
        let happens = async {
            let done = happens.await;
            over.cancel();
            done
        };
        let (sidecar, controller) = (&mut self.sidecar, &mut self.controller);
        let (done, ..) = tokio::try_join!(happens, controller.die_as_scripted(&over), sidecar.die_as_scripted(&over))
            .map_err(|failed| format!("{what}: {}", failed.message().unwrap_or_default()))?;
        let verdict = oracle::judge(self.array.ledger());
        if !verdict.is_clean() {
            return Err(format!("{what}: {verdict}").into());
        }
        Ok(done)
    }
}

/// Both sides of each of these calls.
pub fn sides(calls: &[Call]) -> Vec<Site> {
    let calls: BTreeSet<_> = calls.iter().collect();
    calls
        .iter()
        .flat_map(|call| [Site::before(&call.what, call.number), Site::after(&call.what, call.number)])
        .collect()
}
