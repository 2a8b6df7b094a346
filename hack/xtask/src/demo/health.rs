//! The demo of volume health: a disk with volumes is gone while a pod writes to one of them. What is found, told and tainted,
//! who is kept off, and that all of it goes when the disk is back.

mod look;
mod stage;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use bulkhead_testbed::real_nodes;
use clap::Args;

use self::look::Look;
use self::stage::Stage;
use crate::Result;
use crate::programs::{self, Profile};

use super::report::{self, Promise};

/// Longest time for each part. It takes seconds; a machine may be busy.
const LIMIT: Duration = Duration::from_secs(120);
/// From the break to the taint, where nodes are looked at by agents.
const TAINTED: Duration = Duration::from_secs(10);
/// How long it is watched that nothing changes.
const WATCHED: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The volume that a pod writes to, one beside it on the same disk that nobody has yet, and a larger one elsewhere.
const USED: &str = "orders";
const SPARE: &str = "spare-small";
const OTHER: &str = "spare-large";
/// The pod that writes, one that would like to, and one with a new claim.
const POD: &str = "shop";
const NEWCOMER: &str = "report";
const ELSEWHERE: &str = "cart";
/// The new claim. The other one is called as its volume.
const NEW_CLAIM: &str = "cart";

/// What to show.
#[derive(Args)]
pub struct Options {
    /// Simulated nodes: no agents and no disks, so it is the array that loses the volumes
    #[arg(long)]
    simulated: bool,
}

/// Shows it all.
pub async fn run(root: &Path, options: &Options) -> Result<()> {
    let simulated = match real_nodes::check() {
        _ if options.simulated => true,
        Ok(()) => false,
        Err(error) => {
            println!("{error}");
            true
        }
    };
    println!("Preparing: our programs and upstream's (built once, then cached).");
    let programs = programs::build(root, Profile::Dev)?;
    let stage = if simulated { Stage::simulated(programs).await? } else { Stage::real(&programs).await? };
    stage.set_up().await?;
    let promises = play(&stage).await?;
    report::judge(promises)
}

async fn play(stage: &Stage) -> Result<Vec<Promise>> {
    let before = Look::now(stage).await?;
    let mut said = Said::new("break");
    stage.break_disk().await?;
    println!("\n{}", stage.broken());
    let tainted = until(stage, &mut said, |look| look.is_tainted(USED) && look.is_reserved(SPARE)).await?;
    let told = until(stage, &mut said, |look| look.events.len() >= 2).await?.is_some();
    println!("               now a new pod `{NEWCOMER}` wants the volume, and a new claim `{NEW_CLAIM}` wants one:");
    stage.newcomers().await?;
    let apart = until(stage, &mut said, |look| look.is_held(NEWCOMER) && look.runs(ELSEWHERE)).await?;
    let stayed = watch(stage, &mut said).await?;
    println!("\n$ kubectl get volumehealth\n{}", stage.kubectl(&["get", "volumehealth"]).await?);
    println!("$ kubectl get pods,pvc\n{}", stage.kubectl(&["get", "pods,pvc"]).await?);

    said.begin("mended");
    stage.mend_disk().await?;
    println!("{}", stage.mended());
    let whole = |look: &Look| look.is_whole() && look.runs(NEWCOMER);
    let back = until(stage, &mut said, whole).await?;
    println!("\n$ kubectl get volumehealth\n{}", stage.kubectl(&["get", "volumehealth"]).await?);
    let after = Look::now(stage).await?;
    let bound = after.claim_volume(NEW_CLAIM);
    // Agents see it at once; a driver is asked now and then.
    let (in_time, when) = match stage.is_simulated() {
        true => (tainted.is_some(), String::new()),
        false => (tainted.is_some_and(|took| took <= TAINTED), format!(" within {} s", TAINTED.as_secs())),
    };
    Ok(vec![
        (in_time, format!("{USED} and {SPARE} were tainted{when}, and {SPARE} was reserved")),
        (told, "the claim and the pod on the volume were told".to_owned()),
        (apart.is_some() && stayed, format!("{NEWCOMER} was held while the volume was tainted")),
        (bound.as_deref() == Some(OTHER), format!("the new claim was bound to {OTHER}, and not to the broken {SPARE}")),
        (after.same_pod(&before), format!("nobody touched {POD}, which has the volume: no restart")),
        (back.is_some(), format!("mended: no taint, no label and no reservation is left, and {NEWCOMER} runs")),
        (after.same_volumes(&before), "no PersistentVolume and no claim was deleted".to_owned()),
    ])
}

/// Looks and tells until something holds; returns when it did, `None` if it was in vain.
async fn until(stage: &Stage, said: &mut Said, holds: impl Fn(&Look) -> bool) -> Result<Option<Duration>> {
    let began = Instant::now();
    loop {
        let look = Look::now(stage).await?;
        look.tell(stage, said);
        if holds(&look) {
            return Ok(Some(said.since.elapsed()));
        }
        if began.elapsed() >= LIMIT {
            println!("This did not come about in {} s.", LIMIT.as_secs());
            return Ok(None);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Whether the newcomer is held for a while longer.
async fn watch(stage: &Stage, said: &mut Said) -> Result<bool> {
    let began = Instant::now();
    while began.elapsed() < WATCHED {
        let look = Look::now(stage).await?;
        look.tell(stage, said);
        if !look.is_held(NEWCOMER) {
            return Ok(false);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(true)
}

/// Says each thing once.
struct Said {
    since: Instant,
    from: &'static str,
    said: BTreeSet<String>,
}

impl Said {
    fn new(from: &'static str) -> Self {
        Self { since: Instant::now(), from, said: BTreeSet::new() }
    }

    /// From now on counts from something else. What was said is not said again.
    fn begin(&mut self, from: &'static str) {
        (self.since, self.from) = (Instant::now(), from);
    }

    fn say(&mut self, what: String) {
        if !self.said.contains(&what) {
            println!("{:>6} +{:5.1} s  {what}", self.from, self.since.elapsed().as_secs_f64());
            self.said.insert(what);
        }
    }
}
