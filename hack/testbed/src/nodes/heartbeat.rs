//! Who keeps a node's Lease and Ready condition, and how that stops when the node dies.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use futures::FutureExt;
use futures::future::BoxFuture;

use super::NodeError;
use crate::lock::lock;
use crate::process::Process;
use crate::{KwokNodes, KwokOptions, Testbed};

/// Keeps the Lease and the Ready condition of nodes.
pub trait Heartbeat: std::fmt::Debug + Send + Sync + 'static {
    /// From now on the node lives. Doing it again changes nothing.
    fn start<'a>(&'a self, node: &'a str) -> BoxFuture<'a, Result<(), NodeError>>;

    /// When this returns, nothing is written for the node any more.
    fn stop<'a>(&'a self, node: &'a str) -> BoxFuture<'a, ()>;
}

/// One kwok per node, so that each can die alone.
#[derive(Debug)]
pub struct KwokHeartbeat {
    testbed: Arc<Testbed>,
    options: KwokOptions,
    running: Mutex<BTreeMap<String, Process>>,
}

impl KwokHeartbeat {
    /// Heartbeats on `testbed`.
    pub fn new(testbed: Arc<Testbed>, options: KwokOptions) -> Self {
        KwokHeartbeat { testbed, options, running: Mutex::default() }
    }
}

impl Heartbeat for KwokHeartbeat {
    fn start<'a>(&'a self, node: &'a str) -> BoxFuture<'a, Result<(), NodeError>> {
        async move {
            if let Some(kwok) = lock(&self.running).get_mut(node) {
                return Ok(kwok.ensure_running()?);
            }
            let nodes = KwokNodes::One(node.to_owned());
            let kwok = self.testbed.start_kwok(&nodes, &self.options)?;
            lock(&self.running).insert(node.to_owned(), kwok);
            Ok(())
        }
        .boxed()
    }

    fn stop<'a>(&'a self, node: &'a str) -> BoxFuture<'a, ()> {
        async move {
            let kwok = lock(&self.running).remove(node);
            if let Some(kwok) = kwok {
                kwok.kill().await;
            }
        }
        .boxed()
    }
}
