//! Volume I/O: a socket protocol of the array's own, for whoever plays a node's kernel.
//!
//! A frame is its length (four bytes, big-endian) and that many bytes of JSON. The client sends a [`Command`], the server
//! answers each with one [`Reply`]. `Open` comes first and names volume and node; access is asked for anew by every
//! command after it, so that taking it away cuts off a connection that is open already.

use std::io;
use std::path::Path;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufStream};
use tokio::net::UnixStream;

/// The longest frame either side accepts, in bytes.
const LONGEST_FRAME: usize = 64 * 1024;

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "camelCase")]
pub enum Command {
    /// Names the volume and the CSI node id of the client; once, first.
    Open {
        /// The volume handle.
        volume: String,
        /// The CSI node id.
        node: String,
    },
    /// Writes.
    Write {
        /// The writer's own number of this write.
        sequence: u64,
        /// Who writes.
        tag: String,
    },
    /// Reads the last accepted write.
    Read,
}

/// What the array answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "camelCase")]
pub enum Reply {
    /// Opened, or written.
    Done,
    /// The last accepted write; `None` if there was none.
    Last {
        /// What it was.
        write: Option<Written>,
    },
    /// Refused, as an I/O error.
    Refused {
        /// Why, for a person.
        reason: String,
    },
}

/// An accepted write as it is read back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    /// The CSI node id that wrote.
    pub node: String,
    /// The writer's own number of the write.
    pub sequence: u64,
    /// Who wrote.
    pub tag: String,
}

/// Why an I/O did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum IoError {
    /// The array refused it.
    #[error("the array refused the I/O: {0}")]
    Refused(String),
    /// The connection failed.
    #[error("no connection to the array's I/O socket: {0}")]
    Connection(#[from] io::Error),
}

/// A volume, opened by a node.
#[derive(Debug)]
pub struct OpenVolume {
    stream: BufStream<UnixStream>,
}

impl OpenVolume {
    /// Opens `volume` as `node` over the array's I/O `socket`. It succeeds without access, too: I/O does not.
    ///
    /// # Errors
    ///
    /// [`IoError::Connection`] when the socket cannot be reached.
    pub async fn open(socket: &Path, volume: &str, node: &str) -> Result<Self, IoError> {
        let stream = BufStream::new(UnixStream::connect(socket).await?);
        let mut opened = OpenVolume { stream };
        let (volume, node) = (volume.to_owned(), node.to_owned());
        opened.ask(&Command::Open { volume, node }).await?;
        Ok(opened)
    }

    /// Writes.
    ///
    /// # Errors
    ///
    /// [`IoError::Refused`] without access; the volume stays open.
    pub async fn write(&mut self, sequence: u64, tag: &str) -> Result<(), IoError> {
        let tag = tag.to_owned();
        self.ask(&Command::Write { sequence, tag }).await?;
        Ok(())
    }

    /// Reads the last accepted write.
    ///
    /// # Errors
    ///
    /// [`IoError::Refused`] without access; the volume stays open.
    pub async fn read(&mut self) -> Result<Option<Written>, IoError> {
        match self.ask(&Command::Read).await? {
            Reply::Last { write } => Ok(write),
            reply => Err(invalid(&format!("{reply:?} to a read")).into()),
        }
    }

    async fn ask(&mut self, command: &Command) -> Result<Reply, IoError> {
        send(&mut self.stream, command).await?;
        match receive(&mut self.stream).await? {
            Reply::Refused { reason } => Err(IoError::Refused(reason)),
            reply => Ok(reply),
        }
    }
}

/// What answers commands: the array.
pub(super) trait Disk: Send + Sync + 'static {
    fn write(
        &self,
        volume: &Arc<str>,
        node: &Arc<str>,
        sequence: u64,
        tag: String,
    ) -> impl Future<Output = Reply> + Send;

    fn read(&self, volume: &Arc<str>, node: &Arc<str>) -> impl Future<Output = Reply> + Send;
}

/// Answers one client until it goes.
pub(super) async fn serve(stream: UnixStream, disk: &impl Disk) -> io::Result<()> {
    let mut stream = BufStream::new(stream);
    let Command::Open { volume, node } = receive(&mut stream).await? else {
        return Err(invalid("the first command is not Open"));
    };
    let (volume, node): (Arc<str>, Arc<str>) = (volume.into(), node.into());
    send(&mut stream, &Reply::Done).await?;
    loop {
        let reply = match receive(&mut stream).await? {
            Command::Open { .. } => return Err(invalid("a second Open")),
            Command::Write { sequence, tag } => disk.write(&volume, &node, sequence, tag).await,
            Command::Read => disk.read(&volume, &node).await,
        };
        send(&mut stream, &reply).await?;
    }
}

async fn send(stream: &mut BufStream<UnixStream>, message: &impl Serialize) -> io::Result<()> {
    let frame = serde_json::to_vec(message)?;
    let length = u32::try_from(frame.len()).map_err(|_| invalid("the frame is too long"))?;
    stream.write_all(&length.to_be_bytes()).await?;
    stream.write_all(&frame).await?;
    stream.flush().await
}

async fn receive<T: DeserializeOwned>(stream: &mut BufStream<UnixStream>) -> io::Result<T> {
    let length = usize::try_from(stream.read_u32().await?).unwrap_or(usize::MAX);
    if length > LONGEST_FRAME {
        return Err(invalid("the frame is too long"));
    }
    let mut frame = vec![0; length];
    stream.read_exact(&mut frame).await?;
    Ok(serde_json::from_slice(&frame)?)
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}
