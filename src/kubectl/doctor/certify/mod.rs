//! `kubectl bulkhead doctor --certify`: does a driver's unpublish really take a node's access away? It is tried on a volume
//! that is there for nothing else, on a node that is well, by the way a failover goes: a FenceRequest that the driver's
//! sidecar answers. A pod on the node goes on writing; whether its writes arrive is asked of the array, of the pod and, at
//! last, of a pod on another node.

mod choose;
mod judge;
mod log;
mod pods;
mod prepare;
mod report;
mod scratch;
mod trial;

use std::io::{self, BufRead, IsTerminal, Write};
use std::time::Duration;

use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::api::time;
use crate::kubectl::error::{Error, Result};
use crate::kubectl::gather::Cluster;
use crate::runtime::clock::Clock;

pub use self::log::WriterLog;
pub use report::Certificate;

use judge::Reason;
use prepare::Plan;
use scratch::Scratch;
use trial::Trial;

/// How long all that was created may take to go.
const REMOVAL: Duration = Duration::from_secs(180);
/// How long the writes are watched. Longer, and the sidecar would unpublish again where it should only look.
const WATCH: std::ops::RangeInclusive<Duration> = Duration::from_secs(3)..=Duration::from_secs(12);

/// Which driver is certified, and where.
#[derive(Debug, Args)]
pub struct Certify {
    /// StorageClass of the scratch volume; its driver is certified.
    #[arg(long, requires = "certify")]
    storage_class: Option<String>,
    /// Node that is cut off from the scratch volume. Without it: one that is fit.
    #[arg(long, requires = "certify")]
    node: Option<String>,
    /// Node that reads then what has arrived. Without it: one that is fit, in the same zone if there is one.
    #[arg(long, requires = "certify")]
    other_node: Option<String>,
    /// Image of bulkhead-controller for the pods. Without it: that of the controller's Deployment.
    #[arg(long, requires = "certify")]
    image: Option<String>,
    /// Size of the scratch volume.
    #[arg(long, requires = "certify", default_value = "1Gi")]
    size: String,
    /// How long the writes of the node that was cut off are watched, from 3s to 12s.
    #[arg(long, requires = "certify", default_value = "10s")]
    watch: time::Duration,
    /// Do not ask.
    #[arg(long, short, requires = "certify")]
    yes: bool,
}

impl Certify {
    /// Certifies. What it created is gone when it returns, or named.
    pub async fn run(&self, cluster: &Cluster) -> Result<Certificate> {
        let missing =
            || Error::Refused("--certify needs --storage-class: the driver of that class is certified".into());
        let class = self.storage_class.as_deref().ok_or_else(missing)?;
        let watch = self.watch.get();
        if !WATCH.contains(&watch) {
            return Err(Error::Refused("--watch must be from 3s to 12s".into()));
        }
        let plan = prepare::plan(self, class, &cluster.gather().await?, &cluster.operator).await?;
        let scratch = Scratch::new(cluster.clients.reads.clone(), cluster.clients.writes.clone())?;
        if !self.yes {
            confirm(&plan, &scratch)?;
        }
        let at = time::stamp(Clock::system().now().wall);
        let (stop, hurry) = interruptions()?;
        let mut trial = Trial::new(plan.clone(), scratch.clone(), cluster.clients.clone(), stop);
        trial.play(&self.size, watch).await;
        let began = trial.elapsed();
        let left = remove(&scratch, &hurry).await;
        let removed = if left.is_empty() { Ok(()) } else { Err(Reason { reason: "Left", message: left.join(", ") }) };
        // What is left is in the certificate.
        let _ = trial.told("everything removed", began, removed, |()| String::new());
        let (verdict, Reason { reason, message }) = judge::judge(&trial.facts);
        let Plan { class, driver, pair, .. } = plan;
        let (storage_class, node, other_node) = (class, pair.node, pair.other);
        let steps = std::mem::take(&mut trial.steps);
        Ok(Certificate { verdict, reason, message, storage_class, driver, node, other_node, steps, left, at })
    }
}

/// Says what will be done, and asks. Without somebody to ask nothing is done.
fn confirm(plan: &Plan, scratch: &Scratch) -> Result<()> {
    let refused = |why: &str| Error::Refused(format!("{why}: nothing was created; give --yes"));
    if !io::stdin().is_terminal() {
        return Err(refused("nobody can be asked here"));
    }
    let Plan { class, driver, pair, program, .. } = plan;
    eprint!(
        "In a namespace of its own, {name}, this creates a claim of StorageClass {class} and a pod of image {image} on node {node} \
         that writes to it; asks the sidecar of driver {driver} by a FenceRequest to cut node {node} off from that one volume; \
         reads the volume in a pod on node {other}; and removes all of it. Nothing else is touched. Other volumes of the driver \
         are read in one list. A disk behind multipath that queues without a path (queue_if_no_path) would hold the pod's last write, \
         and so the pod and the volume: set no_path_retry for it first.\nGo on? Type the StorageClass's name: ",
        name = scratch.name(),
        image = program.image,
        node = pair.node,
        other = pair.other,
    );
    let mut line = String::new();
    let answered = io::stderr().flush().and_then(|()| io::stdin().lock().read_line(&mut line));
    match answered {
        Ok(_) if line.trim() == class => Ok(()),
        _ => Err(refused("not confirmed")),
    }
}

/// The first Ctrl-C ends the trial, the second the wait for what is being removed.
fn interruptions() -> Result<(CancellationToken, CancellationToken)> {
    let listen = |kind| signal(kind).map_err(|error| Error::Refused(format!("signals cannot be heard: {error}")));
    let (mut interrupt, mut terminate) = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
    let (stop, hurry) = (CancellationToken::new(), CancellationToken::new());
    let tokens = [stop.clone(), hurry.clone()];
    tokio::spawn(async move {
        for token in tokens {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            eprintln!("interrupted: what was created is being removed; once more, and it is only named");
            token.cancel();
        }
    });
    Ok((stop, hurry))
}

/// Removes everything, and says what is left.
async fn remove(scratch: &Scratch, hurry: &CancellationToken) -> Vec<String> {
    let end = tokio::time::Instant::now() + REMOVAL;
    loop {
        let deleted = scratch.delete().await;
        let left = match (scratch.left().await, deleted) {
            (Ok(left), Ok(())) if left.is_empty() => return left,
            (Ok(left), deleted) => left.into_iter().chain(deleted.err().map(|error| format!("({error})"))).collect(),
            (Err(error), _) => {
                vec![format!("whatever is in Namespace {}, and FenceRequest {0} ({error})", scratch.name())]
            }
        };
        if hurry.is_cancelled() || tokio::time::Instant::now() > end {
            return left;
        }
        hurry.run_until_cancelled(tokio::time::sleep(Duration::from_millis(500))).await;
    }
}

#[cfg(test)]
mod tests {
    use super::judge::Verdict;
    use super::*;

    #[test]
    fn the_verdicts_have_their_exit_codes() {
        let codes = [Verdict::Certified, Verdict::NotCertified, Verdict::Inconclusive].map(|verdict| {
            let plain = Certificate {
                verdict,
                reason: "",
                message: String::new(),
                storage_class: String::new(),
                driver: String::new(),
                node: String::new(),
                other_node: String::new(),
                steps: vec![],
                left: vec![],
                at: chrono::DateTime::UNIX_EPOCH,
            };
            format!("{:?}", plain.exit_code())
        });
        assert_eq!(
            codes,
            ["0", "1", "2"].map(|code| format!("{:?}", std::process::ExitCode::from(code.parse::<u8>().unwrap())))
        );
    }
}
