//! The demo of one address for an NFS server that survives failover: a client keeps reading and writing through the address
//! while the server's node dies, the volume is fenced, and the server comes up elsewhere. Needs real nodes, nfs-ganesha and
//! libnfs: bytes and file handles are not simulated.

mod look;

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use bulkhead::api::shared_volume::{OnBackendLost, SharedVolume};
use bulkhead_testbed::cluster::real::{NfsExport, PodPlace, RealCluster, RealClusterOptions, Said};
use bulkhead_testbed::ganesha::Ganesha;
use bulkhead_testbed::real_nodes::{self, Fault};
use chrono::{DateTime, Utc};
use clap::{Args, ValueEnum};
use kube::Api;
use serde_json::json;

use self::look::{Look, Phase, Seen};
use crate::Result;
use crate::incident::{Moment, seconds};
use crate::programs::{self, Profile};

use super::report::{self, Promise};

/// Longest time for each part. It takes seconds; a machine may be busy.
const LIMIT: Duration = Duration::from_secs(180);
/// How often it is looked: what the table says of the API is as exact as this.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How many records the client writes after the failover before it is believed that it goes on.
const RECORDS: u64 = 20;

/// The claim, and with it the server, the SharedVolume, the Service.
const NAME: &str = "media";
const CLIENT: &str = "editor";

/// How to show it.
#[derive(Args)]
pub struct Options {
    /// What becomes of the endpoints when the server is lost: one run with each measures what the client has of it
    #[arg(long, value_enum, default_value_t)]
    on_backend_lost: Lost,
}

/// `failover.onBackendLost`.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum Lost {
    /// Emptied: clients are refused at once
    #[default]
    #[value(name = "Withdraw")]
    Withdraw,
    /// Left as they are: clients wait for what is not there
    #[value(name = "Keep")]
    Keep,
}

impl From<Lost> for OnBackendLost {
    fn from(lost: Lost) -> Self {
        match lost {
            Lost::Withdraw => Self::Withdraw,
            Lost::Keep => Self::Keep,
        }
    }
}

/// Shows it all.
pub async fn run(root: &Path, options: &Options) -> Result<()> {
    real_nodes::check()?;
    Ganesha::find()?;
    println!(
        "Preparing: our programs and upstream's (built once, then cached), and images of them and of nfs-ganesha."
    );
    let programs = programs::build(root, Profile::Dev)?;
    println!(
        "Starting: control plane, 3 real nodes, the array and its CSI driver, and Bulkhead from the shipped manifests."
    );
    let cluster = RealCluster::start(RealClusterOptions { nfs: true, ..RealClusterOptions::new(&programs) }).await?;
    cluster.testbed.apply_file(&root.join("config/samples/resiliencypolicy-first.yaml")).await?;
    let promises = play(&cluster, options.on_backend_lost.into()).await?;
    report::judge(promises)
}

async fn play(cluster: &RealCluster, lost: OnBackendLost) -> Result<Vec<Promise>> {
    let stage = Stage::set_up(cluster, lost).await?;
    let failure = stage.fail().await?;
    stage.report(&failure)?;
    let read = cluster.read_by_libnfs(&stage.client, stage.address, LIMIT).await?;
    cluster.node(&stage.server.node)?.heal_all().await?;
    cluster.usable(&stage.server.node, LIMIT).await?;
    println!("{} is whole again; the server stays where it is.", stage.server.node);
    let mut promises = stage.promises(&failure, read).await?;
    promises
        .push((cluster.judge().is_ok(), "the array's ledger has no write of the dead node after the new one's".into()));
    Ok(promises)
}

/// A server, its address, and a client that writes through it.
struct Stage<'a> {
    cluster: &'a RealCluster,
    server: PodPlace,
    address: SocketAddr,
    client: PodPlace,
}

/// How the failure of the server's node went.
struct Failure {
    /// Power off: the zero.
    cut: Moment,
    seen: Seen,
    /// The last record that was safe before, and what the client said after.
    safe: u64,
    said: Vec<Said>,
}

impl<'a> Stage<'a> {
    async fn set_up(cluster: &'a RealCluster, lost: OnBackendLost) -> Result<Self> {
        let first = cluster.node_without_leader().await?;
        let others: Vec<_> = (1..=3).map(|number| format!("node-{number}")).filter(|name| *name != first).collect();
        let [second, client] = <[String; 2]>::try_from(others).map_err(|_| "there are not three nodes")?;
        let export = NfsExport { name: NAME.to_owned(), nodes: vec![first, second] };
        cluster.create_nfs_export(&export).await?;
        let shared = serde_json::from_value(json!({
            "apiVersion": "bulkhead.dev/v1alpha1",
            "kind": "SharedVolume",
            "metadata": {"name": NAME, "namespace": "default"},
            "spec": {
                "claimName": NAME, "backend": {"pods": {"matchLabels": {"app": NAME}}},
                "probe": {"period": "1s", "timeout": "1s"}, "failover": {"onBackendLost": lost},
            },
        }))?;
        cluster.testbed.apply(vec![shared]).await?;
        let server = cluster.nfs_export_runs(&export, None, LIMIT).await?;
        let address = address(cluster).await?;
        println!("\nnfs-ganesha exports the volume of the claim `{NAME}` on {}.", server.node);
        let stage =
            Self { cluster, server, address, client: cluster.run_nfs_client(CLIENT, &client, address, LIMIT).await? };
        println!(
            "`{CLIENT}` on {client} has mounted {address} and a file open: it writes a record and reads it, ten times a second."
        );
        for args in
            [&["get", "shv", NAME][..], &["get", "service", NAME], &["get", "endpointslices", "--selector", SLICES]]
        {
            println!("\n$ kubectl {}\n{}", args.join(" "), cluster.testbed.kubectl(args).await?.trim_end());
        }
        Ok(stage)
    }

    /// Powers the node off and follows what happens until the client has gone on for a while.
    async fn fail(&self) -> Result<Failure> {
        let cut = Utc::now();
        self.cluster.node(&self.server.node)?.fault(Fault::KillEverything).await?;
        println!("\n{} is powered off.", self.server.node);
        let (began, mut seen) = (Instant::now(), Seen::default());
        loop {
            let look = Look::now(&self.cluster.client, NAME, &self.server).await?;
            for (phase, at) in seen.note(&look) {
                println!("   off +{:5.1} s  {}", seconds(cut, at), phase.text(&self.server.node, look.to()));
            }
            let said = self.cluster.said(&self.client)?;
            let safe = last(said.iter().filter(|line| line.at <= cut));
            let goes_on = seen.at(Phase::Switched).is_some() && last(said.iter()) >= safe + RECORDS;
            if goes_on || began.elapsed() >= LIMIT {
                return Ok(Failure { cut, seen, safe, said });
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn report(&self, failure: &Failure) -> Result<()> {
        println!("\nWhat `{CLIENT}` said, but for each record:");
        for line in failure.said.iter().filter(|line| line.at >= failure.cut && !is_record(&line.what)) {
            println!("   off +{:5.1} s  {}", seconds(failure.cut, line.at), line.what);
        }
        let Some((from, to)) = failure.pause() else { return Err("the client never wrote again".into()) };
        println!("\nThe client's pause, from its last record of before to its first after:");
        println!("  {:<52} {:>8} {:>8}", "seconds", "until", "took");
        let mut before = from;
        let mut rows: Vec<_> =
            Phase::ALL.iter().filter_map(|phase| Some((phase.title(), failure.seen.at(*phase)?))).collect();
        rows.push(("the client's next record is safe", to));
        rows.sort_by_key(|(_, at)| *at);
        for (what, at) in rows {
            println!("  {what:<52} {:>8.2} {:>8.2}", seconds(from, at), seconds(before, at));
            before = at;
        }
        Ok(())
    }

    async fn promises(&self, failure: &Failure, read: u64) -> Result<Vec<Promise>> {
        let says =
            |words: &[&str]| failure.said.iter().any(|line| words.iter().any(|word| line.what.starts_with(word)));
        let shared = shared_volume(self.cluster).await?;
        let same = shared.status.and_then(|status| status.mount_endpoint) == Some(self.address.to_string());
        let moved = failure.seen.to().is_some_and(|to| to != self.server.node);
        let after = last(failure.said.iter());
        let fenced_first = match (failure.seen.at(Phase::Fenced), failure.seen.at(Phase::Switched)) {
            (Some(fenced), Some(switched)) => fenced <= switched,
            _ => false,
        };
        Ok(vec![
            (moved, "the server runs on another node".to_owned()),
            (fenced_first, "its address led there only after the array had confirmed the fence".to_owned()),
            (same, format!("the address is the same, {}", self.address)),
            (!says(&["stale"]), "no file handle was stale".to_owned()),
            (says(&["renewed Reclaimed"]), "the client got back the file that it had open".to_owned()),
            (after >= failure.safe + RECORDS, "it goes on writing".to_owned()),
            (!says(&["lost", "broken", "read something"]), "it found every record that was safe".to_owned()),
            (read >= after, format!("and libnfs, another client, reads {read} records without a gap")),
        ])
    }
}

const SLICES: &str = "kubernetes.io/service-name=media";

impl Failure {
    /// The longest time between two records that were safe.
    fn pause(&self) -> Option<(Moment, Moment)> {
        let safe: Vec<DateTime<Utc>> =
            self.said.iter().filter(|line| line.what.starts_with("wrote ")).map(|line| line.at).collect();
        safe.windows(2).filter_map(|pair| Some((*pair.first()?, *pair.last()?))).max_by_key(|(from, to)| *to - *from)
    }
}

/// Where clients mount, once it serves.
async fn address(cluster: &RealCluster) -> Result<SocketAddr> {
    let address: String = cluster
        .wait("the SharedVolume is Ready", LIMIT, async || {
            let shared: Api<SharedVolume> = Api::default_namespaced(cluster.client.clone());
            let status = shared.get(NAME).await?.status.unwrap_or_default();
            let ready = status.conditions.iter().any(|it| it.type_ == "Ready" && it.status == "True");
            Ok(status.mount_endpoint.clone().filter(|_| ready).ok_or_else(|| format!("{status:?}")))
        })
        .await?;
    Ok(address.parse()?)
}

async fn shared_volume(cluster: &RealCluster) -> Result<SharedVolume> {
    Ok(Api::default_namespaced(cluster.client.clone()).get(NAME).await?)
}

fn is_record(what: &str) -> bool {
    what.split_once(' ').is_some_and(|(word, rest)| ["wrote", "read"].contains(&word) && rest.parse::<u64>().is_ok())
}

/// The last record that was safe; 0 for none.
fn last<'a>(said: impl Iterator<Item = &'a Said>) -> u64 {
    said.filter_map(|line| line.what.strip_prefix("wrote ")?.parse().ok()).max().unwrap_or(0)
}
