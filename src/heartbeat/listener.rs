//! The replica's socket: takes the beats in, and asks the peers of those that are silent.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::api::node_volume_report::NodeVolumeReport;
use crate::api::slim::Node;
use crate::error::{Error, Result};
use crate::runtime::clock::monotonic;
use crate::runtime::lock::lock;
use crate::runtime::store::{ObjectKey, Store};
use crate::runtime::telemetry::Telemetry;

use super::keys::{self, KeyPair};
use super::metrics::ReplicaMetrics;
use super::monitor::{Monitor, Sight};
use super::replicas::Replica;
use super::tracker::Known;
use super::verdict::LOOK;
use super::wire::LONGEST;

/// Silence that the metric calls so.
const SILENT: Duration = Duration::from_secs(3);
/// Room for the beats of some seconds of 5,000 nodes, where the kernel allows as much.
const BUFFER: usize = 4 << 20;

/// What is heard. Clones share it; where heartbeats are off, nothing is ever heard.
#[derive(Clone, Default)]
pub struct Heartbeats(Option<Arc<Inner>>);

struct Inner {
    socket: UdpSocket,
    at: SocketAddr,
    monitor: Mutex<Monitor>,
    changed: watch::Sender<()>,
    metrics: ReplicaMetrics,
}

/// What is to be done beside listening.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// After which silence the peers of a node are asked; never without.
    pub ask_after: Option<Duration>,
    /// Whether agents are introduced to each other.
    pub introduce: bool,
}

/// Who there is.
pub struct Sources {
    /// Nodes.
    pub nodes: Store<Node>,
    /// What their agents report.
    pub reports: Store<NodeVolumeReport>,
}

impl Heartbeats {
    /// Listens at this address.
    pub async fn listen(at: SocketAddr, telemetry: &Telemetry) -> Result<Self> {
        let failed = |source| Error::Io { context: format!("the heartbeats' address {at}"), source };
        let socket = UdpSocket::bind(at).await.map_err(failed)?;
        let at = socket.local_addr().map_err(failed)?;
        if let Err(error) = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, BUFFER) {
            tracing::debug!(%error, "the receive buffer of the heartbeats stays as it is");
        }
        let monitor = Mutex::new(Monitor::new(KeyPair::generate().map_err(failed)?, monotonic()));
        let metrics = ReplicaMetrics::register(telemetry);
        let inner = Arc::new(Inner { socket, at, monitor, changed: watch::Sender::new(()), metrics });
        let counted = Arc::downgrade(&inner);
        telemetry.before_scrape(move || {
            if let Some(inner) = counted.upgrade() {
                let count = inner.monitor().count(SILENT, monotonic());
                inner.metrics.counted(count);
            }
        });
        tracing::info!(address = %at, "listening for heartbeats");
        Ok(Self(Some(inner)))
    }

    /// What the agents have to know of us; nothing where heartbeats are off.
    pub fn replica(&self) -> Option<Replica> {
        self.0.as_ref().map(|inner| Replica { key: inner.monitor().key(), at: inner.at })
    }

    /// What is known of a node's agent.
    pub fn of(&self, node: &str) -> Sight {
        self.0.as_ref().map(|inner| inner.monitor().of(node, monotonic())).unwrap_or_default()
    }

    /// Tells each time that there is something new to decide on.
    pub fn changes(&self) -> Option<watch::Receiver<()>> {
        self.0.as_ref().map(|inner| inner.changed.subscribe())
    }

    /// Takes in what comes, until `cancel`. `wish` says what is to be done beside.
    pub async fn run(self, sources: Sources, wish: impl Fn() -> Wish + Send, cancel: CancellationToken) {
        let Some(inner) = self.0 else { return };
        let work = async {
            tokio::join!(inner.receive(), inner.look(wish), inner.learn(sources));
        };
        cancel.run_until_cancelled(work).await;
    }
}

impl Inner {
    /// What it guards is replaced step by step, and a panic of its holder leaves a silence at worst.
    fn monitor(&self) -> MutexGuard<'_, Monitor> {
        lock(&self.monitor)
    }

    async fn receive(&self) {
        let mut buffer = [0; LONGEST + 1];
        loop {
            // An error here is that of an earlier datagram (ICMP): the next one may be read.
            if let Ok((length, _)) = self.socket.recv_from(&mut buffer).await {
                let datagram = buffer.get(..length).unwrap_or_default();
                let result = self.monitor().receive(datagram, monotonic());
                self.metrics.received(result);
            }
        }
    }

    async fn look(&self, wish: impl Fn() -> Wish) {
        let mut pace = tokio::time::interval(LOOK);
        pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            pace.tick().await;
            let Wish { ask_after, introduce } = wish();
            let look = {
                let mut monitor = self.monitor();
                monitor.introduce(introduce);
                monitor.look(ask_after, monotonic(), keys::random)
            };
            match look {
                Ok(look) => {
                    for (to, datagram) in look.send {
                        // A peer that cannot be asked has no vote.
                        let _ = self.socket.try_send_to(&datagram, to);
                    }
                    look.verdicts.into_iter().for_each(|verdict| self.metrics.judged(verdict));
                    if look.changed {
                        self.changed.send_replace(());
                    }
                }
                Err(error) => tracing::warn!(%error, "no random numbers: no peers are asked"),
            }
        }
    }

    async fn learn(&self, Sources { nodes, reports }: Sources) {
        let (mut of_nodes, mut of_reports) = (nodes.subscribe(), reports.subscribe());
        loop {
            let changed = tokio::select! {
                change = of_nodes.recv() => change.map(|change| change.key),
                change = of_reports.recv() => change.map(|change| change.key),
            };
            let Some(ObjectKey { name, .. }) = changed else { return };
            let key = ObjectKey::cluster(&name);
            let found = nodes.get(&key).zip(reports.get(&key));
            let known = found.and_then(|(node, report)| Known::of(&node, &report));
            self.monitor().know(&name, known);
        }
    }
}
