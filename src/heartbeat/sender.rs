//! The agent's socket: beats once a second, asks its neighbours, answers probes and runs errands. It goes on when the API is
//! down, with the replicas and neighbours that it knows.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ConfigMap;
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::api::node_volume_report::HeartbeatEndpoint;
use crate::error::{Error, Result};
use crate::runtime::clock::monotonic;
use crate::runtime::random_unit;
use crate::runtime::store::{ObjectKey, Store};

use super::agent::{Agent, Outgoing};
use super::keys::{self, KeyPair};
use super::metrics::AgentMetrics;
use super::peers::{Acquaintance, Heard};
use super::replicas;
use super::wire::LONGEST;

/// Time between two beats, up to a tenth more or less, so that many nodes do not send together.
const BEAT: Duration = Duration::from_secs(1);

/// Where the agents learn of the replicas.
#[derive(Clone)]
pub struct Source {
    /// The ConfigMap.
    pub config_maps: Store<ConfigMap>,
    /// Its namespace.
    pub namespace: String,
}

/// What the agent hears of its neighbours, and what a later process needs to ask them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Surroundings {
    /// What it hears.
    pub heard: Heard,
    /// For a later process.
    pub acquaintance: Acquaintance,
}

/// What runs, and what others have to know of it.
pub struct Started<F> {
    /// By what its heartbeats are known.
    pub endpoint: HeartbeatEndpoint,
    /// What it hears of its neighbours.
    pub surroundings: watch::Receiver<Surroundings>,
    /// The work.
    pub work: F,
}

/// Starts to beat, from this address, until `cancel`; then says good-bye. `earlier` is what a process before knew.
pub async fn start(
    at: SocketAddr,
    source: Source,
    earlier: Option<Acquaintance>,
    metrics: AgentMetrics,
    cancel: CancellationToken,
) -> Result<Started<impl Future<Output = ()> + Send>> {
    let failed = |source| Error::Io { context: format!("the heartbeat's address {at}"), source };
    let socket = UdpSocket::bind(at).await.map_err(failed)?;
    let bound = socket.local_addr().map_err(failed)?;
    let keys = KeyPair::generate().map_err(failed)?;
    let endpoint = HeartbeatEndpoint {
        public_key: keys.public().to_string(),
        address: bound.ip().to_string(),
        port: bound.port(),
    };
    let agent = match &earlier {
        Some(earlier) => Agent::after(keys, earlier),
        None => Agent::new(keys),
    };
    let now = Surroundings { heard: agent.heard(), acquaintance: agent.acquaintance() };
    let (told, surroundings) = watch::channel(now);
    let sender = Sender { socket: Arc::new(socket), agent, metrics, told };
    Ok(Started { endpoint, surroundings, work: sender.run(source, cancel) })
}

struct Sender {
    socket: Arc<UdpSocket>,
    agent: Agent,
    metrics: AgentMetrics,
    told: watch::Sender<Surroundings>,
}

impl Sender {
    async fn run(mut self, source: Source, cancel: CancellationToken) {
        let mut changes = source.config_maps.subscribe();
        self.learn(&source);
        let mut beat_at = monotonic();
        let mut buffer = [0; LONGEST + 1];
        let socket = self.socket.clone();
        loop {
            let wake = self.agent.next_due().map_or(beat_at, |due| due.min(beat_at));
            tokio::select! {
                () = cancel.cancelled() => break,
                // The watch is there as long as we are.
                Some(_) = changes.recv() => self.learn(&source),
                received = socket.recv_from(&mut buffer) => {
                    // An error here is that of an earlier datagram (ICMP): the next one may be read.
                    if let Ok((length, from)) = received {
                        let datagram = buffer.get(..length).unwrap_or_default();
                        let out = self.agent.receive(from, datagram, monotonic());
                        self.send(out);
                        self.tell();
                    }
                }
                () = tokio::time::sleep_until(wake.into()) => {
                    let now = monotonic();
                    let due = self.agent.due(now);
                    self.send(due);
                    if now >= beat_at {
                        beat_at = next_beat(now);
                        let beats = self.agent.beat();
                        self.send(beats);
                        self.ask();
                    }
                }
            }
        }
        let last = self.agent.leave();
        self.send(last);
    }

    fn ask(&mut self) {
        match self.agent.ask_neighbours(keys::random) {
            Ok(questions) => self.send(questions),
            Err(error) => tracing::warn!(%error, "no random numbers: no neighbours are asked"),
        }
    }

    fn tell(&self) {
        let now = Surroundings { heard: self.agent.heard(), acquaintance: self.agent.acquaintance() };
        self.told.send_if_modified(|before| {
            let is_new = *before != now;
            *before = now;
            is_new
        });
    }

    /// A ConfigMap that is gone says nothing: who was known still is.
    fn learn(&mut self, source: &Source) {
        let key = ObjectKey::namespaced(&source.namespace, replicas::CONFIG_MAP);
        if let Some(config_map) = source.config_maps.get(&key) {
            let known = replicas::read(config_map.data.as_ref().unwrap_or(&Default::default()));
            self.metrics.replicas(known.len());
            self.agent.set_replicas(&known);
        }
    }

    /// A datagram that cannot be sent now is worth nothing later.
    fn send(&self, out: Vec<Outgoing>) {
        for (to, datagram) in out {
            self.metrics.sent(self.socket.try_send_to(&datagram, to).is_ok());
        }
    }
}

fn next_beat(now: Instant) -> Instant {
    now + BEAT.mul_f64(0.9 + random_unit() / 5.0)
}
