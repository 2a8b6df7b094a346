//! `xtask bench detect`: from the failure of a node to its declaration and to the release of its pod, with heartbeats, peers
//! and Kubernetes' usual times. Nodes, kubelets, containers and all that we ship are real; the array is played, and takes its
//! time to cut a node off. The clock starts before the node is broken.

mod power;

use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead::api::node_fence::{Channel, Evidence, NodeFence, Phase};
use bulkhead::api::time;
use bulkhead_testbed::array::{Effect, Fault as ArrayFault, Link, Method};
use bulkhead_testbed::cluster::merge;
use bulkhead_testbed::cluster::real::{RealCluster, RealWorkload};
use bulkhead_testbed::ledger::Stamp;
use bulkhead_testbed::real_nodes::Fault;
use chrono::{DateTime, Utc};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use crate::Result;
use crate::programs::{self, Profile};

use super::measured::{self, Measured, Times};
use super::on_real_nodes::{self, NODES_MIN, SOON, one};
use super::report;

use self::power::PowerFencer;

/// How a node fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Failure {
    /// It has no power, and its array sees that its path is gone.
    Dead,
    /// It has no power, and an external fencer sees that; its array knows of nothing.
    Power,
    /// Its control link is cut: its pod writes on.
    Cut,
}

impl Failure {
    fn name(self) -> &'static str {
        match self {
            Self::Dead => "dead",
            Self::Power => "power",
            Self::Cut => "cut",
        }
    }

    fn fault(self) -> Fault {
        match self {
            Self::Dead | Self::Power => Fault::KillEverything,
            Self::Cut => Fault::CutControl,
        }
    }

    /// The goals of the project for a fence of one second: declared, released.
    fn targets(self) -> (Option<f64>, f64) {
        match self {
            Self::Dead | Self::Power => (Some(5.0), 8.0),
            Self::Cut => (None, 25.0),
        }
    }

    /// What must have told of it: a node that Kubernetes gave up first was told by nobody else.
    fn channels(self) -> &'static [Channel] {
        match self {
            Self::Dead | Self::Cut => &[Channel::Agent],
            Self::Power => &[Channel::Agent, Channel::Power],
        }
    }
}

/// Options of `bench detect`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// How a node fails
    #[arg(long, value_enum, default_value = "dead")]
    failure: Failure,
    /// Nodes of the cluster; three must be left to be asked about the one that fails
    #[arg(long, default_value_t = 5)]
    nodes: usize,
    /// How many failures, one after the other
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// How long the array takes to cut a node off from a volume
    #[arg(long, value_name = "DURATION", default_value = "1s")]
    fence_latency: time::Duration,
    /// Also write the results to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Measure the development build: quick to make, slow to run
    #[arg(long)]
    dev: bool,
}

/// Runs the benchmark. A failure that is not measured, whatever went wrong, is told and counted; that two nodes wrote to one
/// volume ends it.
pub async fn run(root: &Path, options: &Options) -> Result<()> {
    if options.nodes < NODES_MIN || options.runs == 0 {
        return Err(format!("--nodes must be {NODES_MIN} or more, --runs 1 or more").into());
    }
    let profile = if options.dev { Profile::Dev } else { Profile::Release };
    let programs = programs::build(root, profile)?;
    let (mut told, mut lacking, mut whole) = (Told::default(), 0, None);
    for number in 1..=options.runs {
        let bed = match whole.take() {
            Some(bed) => bed,
            None => start(&programs, options).await?,
        };
        let failed = fail(&bed, options, number).await;
        bed.cluster.judge()?;
        match failed {
            Ok(seconds) => {
                println!("failure {number} of {}: {seconds}", options.runs);
                told.add(&seconds);
                whole = Some(bed);
            }
            // Nobody knows what it left behind: the next is in a new cluster.
            Err(error) => {
                println!("failure {number} of {} is not measured: {error}", options.runs);
                lacking += 1;
            }
        }
    }
    let measures = measured::measures(&[told.measured(options.failure, lacking)]);
    report::print(&measures, options.runs, profile, "clocks start before the node is broken");
    if let Some(file) = &options.json {
        let params = json!({
            "failure": options.failure.name(), "nodes": options.nodes, "build": profile.name(),
            "fenceLatency": options.fence_latency.to_string(), "machine": report::machine(),
        });
        report::write(file, &measures, options.runs, &params)?;
    }
    if lacking == 0 { Ok(()) } else { Err(format!("{lacking} of {} failures were not measured", options.runs).into()) }
}

/// A cluster, and who watches its machines from outside.
struct Bed {
    // Dropped in this order: it writes as long as it is there.
    fencer: Option<PowerFencer>,
    cluster: RealCluster,
}

async fn start(programs: &Path, options: &Options) -> Result<Bed> {
    let cluster = on_real_nodes::start(programs, options.nodes, &policy(options.failure)).await?;
    let latency = Effect::Latency(options.fence_latency.get());
    cluster.array.faults().add(ArrayFault::on(Method::ControllerUnpublishVolume, latency));
    let fencer = match options.failure {
        Failure::Power => Some(PowerFencer::start(&cluster.client).await?),
        Failure::Dead | Failure::Cut => None,
    };
    Ok(Bed { fencer, cluster })
}

/// What is particular about the policy.
fn policy(failure: Failure) -> Value {
    // The nodes fail one after the other, and none is too many. A lost path alone would move the pod before the node is
    // declared, which is what is measured: the sample ignores it.
    let mut spec = json!({
        "limits": { "maxNodes": "100%", "ceiling": 100, "maxUnhealthy": "100%", "window": "0s", "cooldown": "0s" },
    });
    if failure == Failure::Power {
        // Its word counts where it is a method; the array is asked first, as in the other cases.
        let external = json!({ "type": "External", "external": { "fencerName": power::NAME } });
        merge(&mut spec, &json!({ "fencing": { "methods": [{ "type": "Unpublish" }, external] } }));
    }
    spec
}

/// Times since before the node was broken.
struct Seconds {
    /// It was broken: what the testbed takes for that is in all that follows.
    broken: Duration,
    declared: Duration,
    released: Duration,
    /// The replacement's first write.
    writes: Duration,
}

impl std::fmt::Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [broken, declared, released, writes] =
            [self.broken, self.declared, self.released, self.writes].map(|time| time.as_secs_f64());
        write!(
            f,
            "broken {broken:.1} s, declared {declared:.1} s, released {released:.1} s, replacement writes {writes:.1} s"
        )
    }
}

/// Those of all failures.
#[derive(Default)]
struct Told {
    broken: Times,
    declared: Times,
    released: Times,
    writes: Times,
}

impl Told {
    fn add(&mut self, seconds: &Seconds) {
        self.broken.add(seconds.broken);
        self.declared.add(seconds.declared);
        self.released.add(seconds.released);
        self.writes.add(seconds.writes);
    }

    fn measured(&self, failure: Failure, lacking: usize) -> Measured {
        let mut measured = Measured::default();
        let (declared, released) = failure.targets();
        let rows = [
            ("broken", &self.broken, None),
            ("declared", &self.declared, declared),
            ("released", &self.released, Some(released)),
            ("replacement-writes", &self.writes, None),
        ];
        for (name, times, target) in rows {
            measured.note(format!("detect/{name}-p50"), "s", times.percentile(50));
            let (name, slow) = (format!("detect/{name}-p99"), times.percentile(99));
            match target {
                Some(target) => measured.hold(name, "s", slow, target),
                None => measured.note(name, "s", slow),
            }
        }
        measured.hold("detect/not-measured", "", lacking as f64, 0.0);
        measured
    }
}

/// One failure from beginning to end: everything is whole again afterwards.
async fn fail(bed: &Bed, options: &Options, number: usize) -> Result<Seconds> {
    let Bed { cluster, fencer } = bed;
    let name = cluster.node_without_leader().await?;
    let workload = RealWorkload { node: Some(name.clone()), ..RealWorkload::new(&format!("detect-{number}")) };
    cluster.run(&workload).await?;
    let old = one(cluster.running(&workload, &[], SOON).await?)?;
    if old.node != name {
        return Err(format!("{} runs on {} instead of {name}, which no leader is on", old.name, old.node).into());
    }
    let (volume, ledger) = (cluster.volume(&workload, 0).await?, cluster.array.ledger());
    ledger.wait_for_write(&volume, &old.node, Stamp::START, SOON).await?;
    on_real_nodes::armed(cluster, options.nodes, 1).await?;
    let (began, node) = (ledger.now(), cluster.node(&old.node)?);
    if options.failure == Failure::Dead {
        cluster.array.set_link(&old.node, Link::Refuse);
    }
    node.fault(options.failure.fault()).await?;
    if let Some(fencer) = fencer {
        fencer.lost(&old.node);
    }
    let broken = ledger.now().since(began);
    let new = one(cluster.running(&workload, std::slice::from_ref(&old), SOON).await?)?;
    let writes = ledger.wait_for_write(&volume, &new.node, began, SOON).await?.since(began);
    let is_over = |fence: &NodeFence| phase(fence).is_some_and(|phase| phase >= Phase::PodsReleased);
    let fence = cluster.fence(&old.node, "released", SOON, is_over).await?;
    let (declared, released) = times(&fence, options.failure, ledger.wall(began))?;
    cluster.array.set_link(&old.node, Link::Up);
    if let Some(fencer) = fencer {
        fencer.regained(&old.node);
    }
    node.heal_all().await?;
    cluster.fence(&old.node, "Recovered", SOON, |fence| phase(fence) == Some(Phase::Recovered)).await?;
    cluster.usable(&old.node, SOON).await?;
    cluster.end(&workload, SOON).await?;
    cluster.settled().await?;
    Ok(Seconds { broken, declared, released, writes })
}

/// When the node was declared failed, and when its pods were gone.
fn times(fence: &NodeFence, failure: Failure, began: DateTime<Utc>) -> Result<(Duration, Duration)> {
    if let Some(channel) = untold(failure, &fence.spec.plan.evidence) {
        return Err(format!("declared without channel {channel:?}: {}", on_real_nodes::evidence(fence)).into());
    }
    let timeline = fence.status.as_ref().and_then(|status| status.timeline.as_ref());
    let since = |at: Option<DateTime<Utc>>, what: &str| {
        let at = at.ok_or_else(|| format!("the timeline lacks {what}"))?;
        (at - began).to_std().map_err(|_| format!("{what} is before the node was broken: {at}"))
    };
    let declared = since(timeline.and_then(|timeline| timeline.decided_at), "decidedAt")?;
    let released = since(timeline.and_then(|timeline| timeline.released_at), "releasedAt")?;
    Ok((declared, released))
}

/// The first channel that should have told of it and did not.
fn untold(failure: Failure, evidence: &[Evidence]) -> Option<Channel> {
    let told = |channel: &Channel| evidence.iter().any(|row| row.channel == *channel);
    failure.channels().iter().copied().find(|channel| !told(channel))
}

fn phase(fence: &NodeFence) -> Option<Phase> {
    fence.status.as_ref().and_then(|status| status.phase)
}

#[cfg(test)]
mod tests {
    use bulkhead::api::node_fence::EvidenceState;
    use bulkhead::api::resiliency_policy::Fencing;

    use super::*;

    #[test]
    fn a_failure_that_was_not_measured_is_no_quick_one() {
        let mut told = Told::default();
        for number in 1..=50 {
            let [broken, writes] = [Duration::from_millis(500), Duration::from_secs(20)];
            let (declared, released) = (Duration::from_secs(number), Duration::from_secs(number + 1));
            told.add(&Seconds { broken, declared, released, writes });
        }
        let text = format!("{:?}", told.measured(Failure::Dead, 2));
        assert!(text.contains("\"detect/declared-p50\", unit: \"s\", value: 25.0"), "{text}");
        assert!(text.contains("\"detect/declared-p99\", unit: \"s\", value: 50.0, target: Some(5.0)"), "{text}");
        assert!(text.contains("\"detect/not-measured\", unit: \"\", value: 2.0, target: Some(0.0)"), "{text}");
    }

    #[test]
    fn a_failure_that_others_told_is_not_measured() {
        let row = |channel| Evidence {
            channel,
            state: EvidenceState::Failed,
            backend: None,
            since: DateTime::UNIX_EPOCH,
            reason: "Played".into(),
            message: None,
        };
        let [agent, power, kubelet] = [Channel::Agent, Channel::Power, Channel::Kubelet].map(row);
        assert_eq!(untold(Failure::Dead, &[]), Some(Channel::Agent));
        assert_eq!(untold(Failure::Cut, &[kubelet.clone(), agent.clone()]), None);
        assert_eq!(untold(Failure::Power, &[agent.clone(), kubelet]), Some(Channel::Power));
        assert_eq!(untold(Failure::Power, &[agent, power]), None);
    }

    #[test]
    fn a_fencer_is_heard_where_the_policy_names_it() {
        let spec: Fencing = serde_json::from_value(policy(Failure::Power)["fencing"].clone()).unwrap();
        assert_eq!(spec.external_fencers().collect::<Vec<_>>(), [power::NAME]);
        assert_eq!(policy(Failure::Dead).get("fencing"), None);
    }
}
