//! The cluster that the tests share.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::path::Path;
use std::time::Duration;

use bulkhead::api::resiliency_policy::ResiliencyPolicy;
use bulkhead_testbed::cluster::real::{RealCluster, RealClusterOptions};
use bulkhead_testbed::{Component, TestbedOptions};
use futures::FutureExt;
use kube::Api;
use kube::api::PostParams;
use libtest_mimic::Failed;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;

use super::Outcome;

/// Long enough for a loaded machine; nothing waits this long when it works.
pub const SOON: Duration = Duration::from_secs(180);

/// Limits of the policy: the tests take turns, not the incidents.
pub const WITHOUT_BRAKES: &str =
    r#"{"maxNodes": "100%", "ceiling": 100, "maxUnhealthy": "100%", "window": "0s", "cooldown": "0s"}"#;

/// The shared cluster, started by the first test that needs it.
pub struct Bed {
    // Dropped before the runtime that its tasks run on.
    cluster: OnceCell<RealCluster>,
    runtime: std::io::Result<Runtime>,
}

impl Bed {
    pub fn new() -> Self {
        Self { cluster: OnceCell::new(), runtime: Runtime::new() }
    }

    /// Runs a test on the cluster; before it all that is shipped is available, after it the oracle judges.
    pub fn run<T>(&self, test: T) -> Outcome
    where
        T: AsyncFn(&RealCluster) -> Outcome,
    {
        let runtime = self.runtime.as_ref().map_err(|error| error.to_string())?;
        runtime.block_on(async {
            let cluster = self.cluster.get_or_try_init(start).await?;
            cluster.settled().await?;
            // What a failed assertion leaves broken must be mended too.
            let tested = AssertUnwindSafe(test(cluster)).catch_unwind().await;
            // Those of a test that failed must not fail the next one.
            cluster.array.faults().clear();
            cluster.heal_all().await?;
            tested.unwrap_or_else(|panic| resume_unwind(panic))?;
            Ok(cluster.judge()?)
        })
    }

    /// Runs a test that has a cluster of its own.
    pub fn alone(&self, test: impl Future<Output = Outcome>) -> Outcome {
        self.runtime.as_ref().map_err(|error| error.to_string())?.block_on(test)
    }
}

/// How the clusters of these tests are set up.
pub fn options() -> Result<RealClusterOptions, Failed> {
    let mut testbed = TestbedOptions::fast_nodes();
    // Attach/detach learns of an attachment that somebody else removed at its next sync only, each minute by default.
    testbed.extra_args.insert(Component::ControllerManager, vec!["--attach-detach-reconcile-sync-period=2s".into()]);
    let programs =
        Path::new(env!("CARGO_BIN_EXE_bulkhead-controller")).parent().ok_or("the programs are in no folder")?;
    Ok(RealClusterOptions {
        testbed,
        s3: true,
        nfs: true,
        controller_args: vec!["--attacher-resync-period=1s".into()],
        ..RealClusterOptions::new(programs)
    })
}

async fn start() -> Result<RealCluster, Failed> {
    let cluster = RealCluster::start(options()?).await?;
    let limits: Value = serde_json::from_str(WITHOUT_BRAKES)?;
    let policy: ResiliencyPolicy = serde_json::from_value(json!({
        "apiVersion": "bulkhead.dev/v1alpha1",
        "kind": "ResiliencyPolicy",
        "metadata": {"name": "protected"},
        "spec": {
            "mode": "Enforce",
            "selector": {"podSelector": {"matchLabels": {"bulkhead.dev/protect": "true"}}},
            "limits": limits,
        },
    }))?;
    Api::<ResiliencyPolicy>::all(cluster.client.clone()).create(&PostParams::default(), &policy).await?;
    Ok(cluster)
}
