//! The array's end of the I/O protocol. It goes on when the CSI driver crashes: data does not pass through the driver.

use std::io;
use std::sync::Arc;

use futures::{Stream, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;

use super::driver::Driver;
use super::io_protocol::{self, Disk, FileRequest, Reply, Written};
use super::state::{Link, Refusal};
use crate::ledger::Reason;
use crate::lock::lock;

/// Serves I/O until it is dropped.
pub(super) async fn serve<S>(connections: impl Stream<Item = io::Result<S>>, driver: Arc<Driver>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut connections = std::pin::pin!(connections);
    let mut clients = JoinSet::new();
    while let Some(accepted) = connections.next().await {
        let stream = match accepted {
            Ok(stream) => stream,
            Err(error) => {
                tracing::error!(%error, "the I/O socket failed");
                return;
            }
        };
        let driver = driver.clone();
        clients.spawn(async move {
            match io_protocol::serve(stream, &*driver).await {
                Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
                    tracing::debug!(%error, "an I/O client was cut off");
                }
                _ => {}
            }
        });
        while clients.try_join_next().is_some() {}
    }
}

impl Disk for Driver {
    async fn write(&self, volume: &Arc<str>, node: &Arc<str>, sequence: u64, tag: String) -> Reply {
        self.link_answers(node).await;
        let written = lock(&self.state).write(volume, node, sequence, tag.into());
        written.map_or_else(|refusal| refused(&refusal), |()| Reply::Done)
    }

    async fn read(&self, volume: &Arc<str>, node: &Arc<str>) -> Reply {
        self.link_answers(node).await;
        let read = lock(&self.state).read(volume, node);
        match read {
            Err(refusal) => refused(&refusal),
            Ok(last) => Reply::Last {
                write: last.map(|last| Written {
                    node: last.node.to_string(),
                    sequence: last.sequence,
                    tag: last.tag.to_string(),
                }),
            },
        }
    }

    async fn stage(&self, volume: &Arc<str>, node: &Arc<str>) -> Reply {
        self.link_answers(node).await;
        let staged = lock(&self.state).stage(volume, node);
        staged.map_or_else(|status| Reply::Refused { reason: status.message().to_owned() }, |()| Reply::Done)
    }

    async fn unstage(&self, volume: &Arc<str>, node: &Arc<str>) -> Reply {
        self.link_answers(node).await;
        let unstaged = lock(&self.state).unstage(volume, node);
        unstaged.map_or_else(|status| Reply::Refused { reason: status.message().to_owned() }, |()| Reply::Done)
    }

    async fn health(&self, volume: &Arc<str>, node: &Arc<str>) -> Reply {
        self.link_answers(node).await;
        let state = lock(&self.state);
        if state.link(node).is_ok_and(|link| link != Link::Up) {
            return refused(&Refusal(Reason::LinkDown));
        }
        let ailments = state.volume(volume).is_ok().then(|| state.health.on_node(volume, node).to_vec());
        Reply::Health { ailments }
    }

    async fn file(&self, volume: &Arc<str>, node: &Arc<str>, asked: FileRequest) -> (Reply, Vec<u8>) {
        self.link_answers(node).await;
        let done = lock(&self.state).file(volume, node, asked);
        match done {
            Err(refusal) => (refused(&refusal), Vec::new()),
            Ok(Err(error)) => (Reply::Failed { error }, Vec::new()),
            Ok(Ok((answer, data))) => (Reply::File { answer }, data),
        }
    }
}

impl Driver {
    /// Waits while the node's link hangs.
    async fn link_answers(&self, node: &str) {
        let mut changes = self.links.subscribe();
        while let Ok(Link::Hang) = self.link(node) {
            // The sender lives in `self`, so this cannot fail.
            let _ = changes.changed().await;
        }
    }

    fn link(&self, node: &str) -> Result<Link, tonic::Status> {
        lock(&self.state).link(node)
    }
}

fn refused(refusal: &Refusal) -> Reply {
    let reason = match refusal.0 {
        Reason::NoVolume => "the volume does not exist",
        Reason::NoAccess => "the node has no access to the volume",
        Reason::ReadOnly => "the access is read-only",
        Reason::LinkDown => "the node does not reach the array",
        Reason::InUse => "the volume is in use",
    };
    Reply::Refused { reason: reason.to_owned() }
}
