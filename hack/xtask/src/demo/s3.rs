//! The demo of buckets as volumes: two workloads that share a Mountpoint Pod and one that does not, bytes in the bucket,
//! mount-s3 killed and healed, and everything gone afterwards. Needs real nodes: bytes are not simulated.

mod look;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use bulkhead_testbed::cluster::real::{PodPlace, RealCluster, RealClusterOptions, S3Volume, Shell};
use bulkhead_testbed::real_nodes;

use self::look::Look;
use crate::Result;
use crate::programs::{self, Profile};

use super::report::{self, Promise};

/// Longest time for each part. It takes seconds; a machine may be busy.
const LIMIT: Duration = Duration::from_secs(120);
/// From the death of mount-s3 until the workload reads again.
const HEALED: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The volume, and the bucket that it is.
const VOLUME: &str = "models";
const NODE: &str = "node-1";
/// Two that share, of which the first sees later mounts, and one with another fsGroup.
const WRITER: &str = "trainer";
const READER: &str = "reader";
const AUDITOR: &str = "auditor";
const ALL: [&str; 3] = [WRITER, READER, AUDITOR];
const AUDITORS: i64 = 2000;

/// Shows it all.
pub async fn run(root: &Path) -> Result<()> {
    real_nodes::check()?;
    println!("Preparing: our programs, upstream's and mount-s3 (built once, then cached).");
    let programs = programs::build(root, Profile::Dev)?;
    println!(
        "Starting: control plane, 2 real nodes, an S3 server, and Bulkhead with its S3 driver from the manifests."
    );
    let options = RealClusterOptions { nodes: 2, s3: true, ..RealClusterOptions::new(&programs) };
    let cluster = RealCluster::start(options).await?;
    let promises = play(&cluster).await?;
    report::judge(promises)
}

async fn play(cluster: &RealCluster) -> Result<Vec<Promise>> {
    let mut stage = Stage { cluster, said: BTreeSet::new(), since: Instant::now(), from: "created" };
    let mut promises = stage.share().await?;
    promises.extend(stage.write().await?);
    promises.extend(stage.kill().await?);
    promises.extend(stage.end().await?);
    Ok(promises)
}

/// Where it plays, and what was said so far.
struct Stage<'a> {
    cluster: &'a RealCluster,
    said: BTreeSet<String>,
    since: Instant,
    from: &'static str,
}

impl Stage<'_> {
    async fn share(&mut self) -> Result<Vec<Promise>> {
        self.cluster.s3()?.create_bucket(VOLUME)?;
        self.cluster.add_s3_volume(&S3Volume::new(VOLUME)).await?;
        println!("\nA bucket `{VOLUME}` as a volume for three pods on {NODE}; `{AUDITOR}` has fsGroup {AUDITORS}.");
        self.begin("created");
        let writer = Shell { sees_later_mounts: true, ..Shell::new(WRITER, VOLUME, NODE) };
        let auditor = Shell { fs_group: Some(AUDITORS), ..Shell::new(AUDITOR, VOLUME, NODE) };
        for shell in [writer, Shell::new(READER, VOLUME, NODE), auditor] {
            self.cluster.create_shell(&shell).await?;
        }
        let run = self.until(|look| ALL.iter().all(|name| look.runs(name))).await?;
        self.show(&["get", "s3pa", "-o", "wide"]).await?;
        self.show(&["get", "pods", "-n", "mount-s3"]).await?;
        let look = Look::now(self.cluster, VOLUME).await?;
        let by = |name| look.serving(name);
        let together = by(WRITER).is_some() && by(WRITER) == by(READER);
        let apart = by(AUDITOR).is_some() && by(AUDITOR) != by(WRITER);
        Ok(vec![
            (run.is_some() && together, format!("{WRITER} and {READER} share one Mountpoint Pod")),
            (apart, format!("{AUDITOR}, whose fsGroup is another, has its own")),
        ])
    }

    async fn write(&mut self) -> Result<Vec<Promise>> {
        self.cluster.shell(WRITER, "echo 'weights of epoch 1' >weights").await?;
        println!("\n{WRITER}$ echo 'weights of epoch 1' >weights");
        let mut same = true;
        for name in [READER, AUDITOR] {
            let read = self.cluster.shell(name, "cat weights").await?;
            println!("{name}$ cat weights\n{}", read.trim_end());
            same &= read == "weights of epoch 1\n";
        }
        let bytes = self.cluster.in_bucket(VOLUME, "weights")?;
        println!("In the bucket, on the S3 server's disk: weights, {} bytes: {}", bytes.len(), bytes.trim_end());
        Ok(vec![
            (same, format!("what {WRITER} wrote, {READER} and {AUDITOR} read")),
            (bytes == "weights of epoch 1\n", "and it is in the bucket".to_owned()),
        ])
    }

    async fn kill(&mut self) -> Result<Vec<Promise>> {
        let Some(serving) = self.serving(WRITER).await? else { return Err("no Mountpoint Pod serves it".into()) };
        println!("\nmount-s3 in {} is killed (SIGKILL).", serving.name);
        self.cluster.kill_mount_program(&serving).await?;
        self.begin("killed");
        let healed = self.read_again().await?;
        let told = self.until(|look| look.is_told(READER)).await?.is_some();
        let new = self.cluster.shell(WRITER, "echo 'weights of epoch 2' >weights").await.is_ok()
            && self.cluster.in_bucket(VOLUME, "weights")? == "weights of epoch 2\n";
        let in_time = healed.is_some_and(|took| took <= HEALED);
        let seconds = HEALED.as_secs();
        Ok(vec![
            (in_time, format!("the same container of {WRITER} read again within {seconds} s")),
            (new, "and wrote into the bucket".to_owned()),
            (told, format!("{READER}, whose containers cannot see the new mount, has an Event that says so")),
        ])
    }

    /// Reads until it works again, and says what it reads meanwhile. Returns how long it took.
    async fn read_again(&mut self) -> Result<Option<Duration>> {
        while self.since.elapsed() < LIMIT {
            let read = self.cluster.shell(WRITER, "cat weights 2>&1 || true").await;
            let read = read.unwrap_or_else(|error| error.to_string());
            let line = read.lines().next().unwrap_or_default().to_owned();
            self.say(format!("{WRITER} reads: {line}"));
            if read == "weights of epoch 1\n" {
                return Ok(Some(self.since.elapsed()));
            }
            self.look().await?;
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(None)
    }

    async fn end(&mut self) -> Result<Vec<Promise>> {
        println!("\nThe three pods are deleted.");
        self.begin("deleted");
        self.cluster.end_shells(&ALL, LIMIT).await?;
        self.say("the workloads are gone".to_owned());
        let left = loop {
            self.look().await?;
            let left = self.cluster.left_of(VOLUME, NODE).await?;
            if left.is_empty() || self.since.elapsed() >= LIMIT {
                break left;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        };
        let is_clean = left.is_empty();
        self.say(if is_clean { "nothing is left".to_owned() } else { format!("left: {}", left.join(", ")) });
        let kept = self.cluster.in_bucket(VOLUME, "weights").is_ok();
        Ok(vec![
            (is_clean, "no s3pa, no Mountpoint Pod, no mount and no folder is left".to_owned()),
            (kept, "the bucket has what was written".to_owned()),
        ])
    }

    /// Looks and tells until something holds; returns when it did, `None` if it was in vain.
    async fn until(&mut self, holds: impl Fn(&Look) -> bool) -> Result<Option<Duration>> {
        let began = Instant::now();
        loop {
            if holds(&self.look().await?) {
                return Ok(Some(self.since.elapsed()));
            }
            if began.elapsed() >= LIMIT {
                println!("This did not come about in {} s.", LIMIT.as_secs());
                return Ok(None);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn look(&mut self) -> Result<Look> {
        let look = Look::now(self.cluster, VOLUME).await?;
        look.told().into_iter().for_each(|what| self.say(what));
        Ok(look)
    }

    async fn serving(&self, name: &str) -> Result<Option<PodPlace>> {
        let workload = self.cluster.shell_runs(name, LIMIT).await?;
        Ok(self.cluster.serving(VOLUME, &workload).await?)
    }

    async fn show(&self, args: &[&str]) -> Result<()> {
        println!("\n$ kubectl {}\n{}", args.join(" "), self.cluster.testbed.kubectl(args).await?.trim_end());
        Ok(())
    }

    /// From now on counts from something else.
    fn begin(&mut self, from: &'static str) {
        (self.since, self.from) = (Instant::now(), from);
    }

    /// Says each thing once.
    fn say(&mut self, what: String) {
        if !self.said.contains(&what) {
            println!("{:>8} +{:5.1} s  {what}", self.from, self.since.elapsed().as_secs_f64());
            self.said.insert(what);
        }
    }
}
