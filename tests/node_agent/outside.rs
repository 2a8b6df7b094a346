//! What a node hears of the world outside: the API and its neighbours, each of which may fall silent.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bulkhead::api::resiliency_policy::ResiliencyPolicy;
use bulkhead::api::slim::Namespace;
use bulkhead::heartbeat::keys::KeyPair;
use bulkhead::heartbeat::peers::{Heard, Peers};
use bulkhead::heartbeat::sender::Surroundings;
use bulkhead::node_agent::self_fence::{self, Namespaces, Sources, Watching, record};
use bulkhead::node_agent::{Context, Stores};
use bulkhead::runtime::store::Store;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The world outside. Clones share it.
#[derive(Clone)]
pub struct Outside {
    pub policies: Store<ResiliencyPolicy>,
    pub namespaces: Store<Namespace>,
    /// Whether agents send heartbeats from now on.
    pub beats: bool,
    api: Arc<watch::Sender<bool>>,
    neighbours: Arc<watch::Sender<usize>>,
}

impl Outside {
    pub fn new() -> Self {
        let (policies, namespaces) = (Store::new_detached(Vec::new()), Store::new_detached(Vec::new()));
        namespaces.list_done();
        policies.list_done();
        Self {
            policies,
            namespaces,
            beats: true,
            api: Arc::new(watch::Sender::new(true)),
            neighbours: Arc::new(watch::Sender::new(3)),
        }
    }

    /// Whether the API answers from now on.
    pub fn api(&self, answers: bool) {
        self.api.send_replace(answers);
    }

    /// How many neighbours answer from now on.
    pub fn neighbours(&self, answer: usize) {
        self.neighbours.send_replace(answer);
    }

    /// Returns once the API answers.
    pub async fn api_answers(&self) {
        self.api.subscribe().wait_for(|answers| *answers).await.unwrap();
    }

    /// The next agent has not heard of any policy.
    pub fn forget(&mut self) {
        self.policies = Store::new_detached(Vec::new());
    }

    /// Starts what an agent starts.
    pub fn start(&self, cx: &Context, stores: &Stores, cancel: &CancellationToken) {
        let acquaintance = Peers::new(KeyPair::from_secret([7; 32])).acquaintance();
        let (told, surroundings) = watch::channel(Surroundings { heard: Heard::default(), acquaintance });
        let neighbours = self.neighbours.clone();
        tokio::spawn(cancel.clone().run_until_cancelled_owned(async move {
            let mut pace = tokio::time::interval(Duration::from_millis(100));
            loop {
                pace.tick().await;
                let answer = *neighbours.borrow();
                if answer > 0 {
                    told.send_modify(|now| now.heard = Heard { at: Some(Instant::now()), neighbours: answer });
                }
            }
        }));
        let namespaces = self.namespaces.clone();
        let namespaces = Namespaces::new(move || namespaces.clone());
        let (nodes, policies, pods) = (stores.nodes.clone(), self.policies.clone(), stores.pods.clone());
        let sources = Sources { nodes, policies, pods, namespaces };
        let watching = self.beats.then(|| Watching { sources, surroundings });
        let (cx, cancel) = (cx.clone(), cancel.clone());
        tokio::spawn(async move {
            let earlier = record::read(&cx.settings).await;
            self_fence::run(cx, watching, earlier, cancel).await;
        });
    }
}
