//! The way of one mount to the array: one connection, made again when it fails, and a deadline for each operation.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::time::{sleep, timeout};

use crate::array::Ailment;
use crate::array::file_protocol::{FileAnswer, FileOperation};
use crate::array::io_protocol::{IoError, OpenVolume};

/// The pause before a connection that failed at once is tried again.
const AGAIN: Duration = Duration::from_millis(200);

/// Which volume, for which node, from where.
#[derive(Clone, Debug)]
pub(super) struct Route {
    pub array: SocketAddr,
    pub volume: String,
    pub node: String,
    /// How long an operation may take, with all its attempts.
    pub patience: Duration,
}

/// A connection that blocks its thread. It has its own runtime, so that it can hold up nothing else.
#[derive(Debug)]
pub(super) struct Connection {
    route: Route,
    runtime: Runtime,
    open: Option<OpenVolume<TcpStream>>,
    sequence: u64,
}

impl Connection {
    /// Connects with the first operation. Not to be used by a thread of an async runtime.
    pub fn new(route: Route) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        Ok(Connection { route, runtime, open: None, sequence: 0 })
    }

    /// Carries out one operation. The connection is made again, and the operation sent again, until the deadline: each
    /// may be done twice without harm.
    pub fn file(
        &mut self,
        operation: &FileOperation,
        tag: &str,
        data: &[u8],
    ) -> Result<(FileAnswer, Vec<u8>), IoError> {
        if operation.changes() {
            self.sequence += 1;
        }
        let Connection { route, runtime, open, sequence } = self;
        let attempts = async {
            loop {
                let answer = match opened(route, open).await {
                    Ok(volume) => volume.file(operation.clone(), *sequence, tag, data).await,
                    Err(error) => Err(error),
                };
                let Err(IoError::Connection(error)) = answer else {
                    return answer;
                };
                tracing::debug!(%error, volume = route.volume, "connecting to the array again");
                *open = None;
                sleep(AGAIN).await;
            }
        };
        let answer = runtime.block_on(async { timeout(route.patience, attempts).await });
        answer.unwrap_or_else(|_| {
            // What is under way there must not be taken for the answer to the next operation.
            self.open = None;
            Err(timed_out())
        })
    }

    /// Asks for the access that staging needs. One attempt: the kubelet comes again.
    pub fn stage(&mut self) -> Result<(), IoError> {
        let Connection { route, runtime, open, .. } = self;
        let staging = async { opened(route, open).await?.stage().await };
        runtime.block_on(async { timeout(route.patience, staging).await }).unwrap_or_else(|_| Err(timed_out()))
    }

    /// What is wrong with the volume as seen from here; `None` if it does not exist. One attempt.
    pub fn health(&mut self) -> Result<Option<Vec<Ailment>>, IoError> {
        let Connection { route, runtime, open, .. } = self;
        let asking = async { opened(route, open).await?.health().await };
        runtime.block_on(async { timeout(route.patience, asking).await }).unwrap_or_else(|_| Err(timed_out()))
    }

    /// Says that the volume is unstaged. One attempt: an array that does not hear it learns it from the detach.
    pub fn unstage(&mut self) -> Result<(), IoError> {
        let Connection { route, runtime, open, .. } = self;
        let unstaging = async { opened(route, open).await?.unstage().await };
        runtime.block_on(async { timeout(route.patience, unstaging).await }).unwrap_or_else(|_| Err(timed_out()))
    }
}

async fn opened<'a>(
    route: &Route,
    open: &'a mut Option<OpenVolume<TcpStream>>,
) -> Result<&'a mut OpenVolume<TcpStream>, IoError> {
    let volume = match open.take() {
        Some(volume) => volume,
        None => OpenVolume::connect(route.array, &route.volume, &route.node).await?,
    };
    Ok(open.insert(volume))
}

fn timed_out() -> IoError {
    io::Error::new(io::ErrorKind::TimedOut, "the array does not answer").into()
}
