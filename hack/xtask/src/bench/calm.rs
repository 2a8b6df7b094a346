//! `xtask bench calm`: what is no failure must not be taken for one. Real nodes with a writer on each are disturbed again and
//! again, with the detection of `bench detect`: no node may be declared failed, no pod deleted by us, and every writer goes on.

mod disturbance;
mod verdict;
mod writers;

use std::path::{Path, PathBuf};

use bulkhead_testbed::cluster::real::RealCluster;
use clap::{Args, ValueEnum};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::Result;
use crate::programs::{self, Profile};

use super::measured::{self, Measured};
use super::on_real_nodes::{self, NODES_MIN, SOON};
use super::report::{self, Measure};

use self::disturbance::{CONTROLLERS, Disturbance, SIDECARS};
use self::verdict::Before;
use self::writers::Writers;

/// Options of `bench calm`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Only this disturbance; may be given several times
    #[arg(long, value_enum, value_name = "NAME")]
    only: Vec<Disturbance>,
    /// Also the disturbances that last long
    #[arg(long)]
    wide: bool,
    /// Nodes of the cluster, in three zones, with a writer on each
    #[arg(long, default_value_t = 5)]
    nodes: usize,
    /// How often each disturbance, one after the other
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Also write the results to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Measure the development build: quick to make, slow to run
    #[arg(long)]
    dev: bool,
}

impl Options {
    /// What is played.
    fn disturbances(&self) -> Vec<Disturbance> {
        if !self.only.is_empty() {
            return self.only.clone();
        }
        let all = Disturbance::value_variants().iter().copied();
        all.filter(|disturbance| self.wide || !disturbance.is_long()).collect()
    }
}

/// Runs the benchmark. What was measured until then is told even if it ends with a node that was declared failed.
pub async fn run(root: &Path, options: &Options) -> Result<()> {
    if options.nodes < NODES_MIN || options.runs == 0 {
        return Err(format!("--nodes must be {NODES_MIN} or more, --runs 1 or more").into());
    }
    let profile = if options.dev { Profile::Dev } else { Profile::Release };
    let programs = programs::build(root, profile)?;
    let cluster = on_real_nodes::start(&programs, options.nodes, &policy()).await?;
    let mut measures = Vec::new();
    let played = play_all(&cluster, options, &mut measures).await;
    report::print(&measures, options.runs, profile, "each disturbance; none excuses anything");
    if let Some(file) = &options.json {
        let params = json!({ "nodes": options.nodes, "build": profile.name(), "machine": report::machine() });
        report::write(file, &measures, options.runs, &params)?;
    }
    played
}

/// Lost paths act as well, by as few answers. The limits as shipped, but for a shorter calm after an outage: until it is over
/// nothing would be declared, so each run waits for it.
fn policy() -> Value {
    json!({ "limits": { "cooldown": "1m" }, "triggers": { "storagePathLoss": "Release" } })
}

async fn play_all(cluster: &RealCluster, options: &Options, measures: &mut Vec<Measure>) -> Result<()> {
    let writers = Writers::start(cluster, options.nodes).await?;
    for disturbance in options.disturbances() {
        let mut runs = Vec::new();
        for number in 1..=options.runs {
            let played = play(cluster, options.nodes, &writers, disturbance, number).await;
            match played {
                Ok(measured) => {
                    println!("{disturbance}, run {number} of {}: nothing was declared", options.runs);
                    runs.push(measured);
                }
                Err(error) => {
                    measures.extend(measured::measures(&runs));
                    measures.push(failed(disturbance, 1.0));
                    return Err(format!("{disturbance}, run {number}: {error}").into());
                }
            }
        }
        measures.extend(measured::measures(&runs));
        measures.push(failed(disturbance, 0.0));
    }
    Ok(())
}

/// How many runs ended with something that was done, or otherwise in vain: at the first one the benchmark ends.
fn failed(disturbance: Disturbance, runs: f64) -> Measure {
    Measure::new(format!("{disturbance}/failed"), "", vec![runs]).target(Some(0.0))
}

/// Once: an error if anything was done.
async fn play(
    cluster: &RealCluster,
    nodes: usize,
    writers: &Writers,
    disturbance: Disturbance,
    number: usize,
) -> Result<Measured> {
    is_whole(cluster, nodes).await?;
    let (before, began) = (Before::look(cluster).await?, cluster.array.ledger().now());
    disturbance.play(cluster, nodes, number).await?;
    let ended = cluster.array.ledger().now();
    tokio::time::sleep(disturbance.watched()).await;
    before.nothing_is_declared(cluster).await?;
    before.nobody_is_deleted(cluster)?;
    let pause = writers.wrote_on(cluster, began, ended).await?;
    cluster.judge()?;
    let mut measured = Measured::default();
    measured.note(format!("{disturbance}/writers-paused"), "s", pause.as_secs_f64());
    Ok(measured)
}

/// Waits until a node could be declared failed within seconds: else that none is says nothing.
async fn is_whole(cluster: &RealCluster, nodes: usize) -> Result<()> {
    for number in 1..=nodes {
        cluster.usable(&format!("node-{number}"), SOON).await?;
    }
    for labels in [CONTROLLERS, SIDECARS] {
        replace_waiting(cluster, labels).await?;
    }
    cluster.settled().await?;
    on_real_nodes::armed(cluster, nodes, nodes).await
}

/// A container that ended with the Lease that it held is started later each time. That of a new pod is started at once.
async fn replace_waiting(cluster: &RealCluster, labels: &str) -> Result<()> {
    let is_waiting = |status: &ContainerStatus| {
        let waiting = status.state.as_ref().and_then(|state| state.waiting.as_ref());
        waiting.is_some_and(|waiting| waiting.reason.as_deref() == Some("CrashLoopBackOff"))
    };
    for pod in Api::<Pod>::all(cluster.client.clone()).list(&ListParams::default().labels(labels)).await? {
        let mut statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
        if statuses.any(is_waiting) {
            let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &pod.namespace().unwrap_or_default());
            pods.delete(&pod.name_any(), &DeleteParams::default()).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        options: Options,
    }

    fn parse(args: &[&str]) -> Result<Options, String> {
        let parsed = Cli::try_parse_from(["calm"].iter().chain(args));
        parsed.map(|cli| cli.options).map_err(|error| error.to_string())
    }

    #[test]
    fn disturbances_have_names_of_their_own() {
        let all = Disturbance::value_variants();
        let names: BTreeSet<_> = all.iter().map(ToString::to_string).collect();
        assert_eq!(names.len(), all.len());
        assert!(names.iter().all(|name| !name.is_empty()), "{names:?}");
    }

    #[test]
    fn those_that_last_long_are_asked_for() {
        let played = |args: &[&str]| parse(args).map(|options| options.disturbances());
        let (usual, wide) = (played(&[]).unwrap(), played(&["--wide"]).unwrap());
        assert!(!usual.contains(&Disturbance::ApiServerDownLong));
        assert_eq!(wide.len(), Disturbance::value_variants().len());
        let named = played(&["--only", "link-down", "--only", "api-server-down-long"]).unwrap();
        assert_eq!(named, [Disturbance::LinkDown, Disturbance::ApiServerDownLong]);
    }

    #[test]
    fn an_unknown_one_is_refused_with_the_names_of_all() {
        let refused = parse(&["--only", "earthquake"]).unwrap_err();
        let names = Disturbance::value_variants().iter().map(ToString::to_string);
        let missing: Vec<_> = names.filter(|name| !refused.contains(name)).collect();
        assert!(refused.contains("earthquake") && missing.is_empty(), "{missing:?}: {refused}");
    }
}
