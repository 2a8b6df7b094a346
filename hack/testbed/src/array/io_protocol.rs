//! Volume I/O: a socket protocol of the array's own, for whoever plays a node's kernel.
//!
//! A frame is its length (four bytes, big-endian) and that many bytes of JSON. The client sends a [`Command`], the server
//! answers each with one [`Reply`]. `Open` comes first and names volume and node; access is asked for anew by every
//! command after it, so that taking it away cuts off a connection that is open already. After `File` comes one more frame
//! with the bytes of the operation, and after its reply one with the bytes that were read; both may be empty. A client
//! that goes away takes a command that is not carried out yet with it.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufStream};
use tokio::net::{TcpStream, UnixStream};

use super::file_protocol::{FileAnswer, FileError, FileOperation};
use super::health::Ailment;

/// The longest frame either side accepts, in bytes: the list of a full folder.
const LONGEST_FRAME: usize = 2 << 20;

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
    /// Asks for the access that staging needs; where the controller does not attach, it gives it.
    Stage,
    /// Says that the node has unstaged the volume.
    Unstage,
    /// Asks how the volume is, as seen from the node. It needs no access.
    Health,
    /// An operation on files.
    File {
        /// What.
        operation: FileOperation,
        /// The node's own number of this operation; in the ledger if it changes something.
        sequence: u64,
        /// Who asks for it.
        tag: String,
    },
}

/// What the array answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "camelCase")]
pub enum Reply {
    /// Opened, written, staged or unstaged.
    Done,
    /// The last accepted write; `None` if there was none.
    Last {
        /// What it was.
        write: Option<Written>,
    },
    /// How the volume is.
    Health {
        /// What is wrong with it; `None` if there is no such volume.
        ailments: Option<Vec<Ailment>>,
    },
    /// Refused, as an I/O error.
    Refused {
        /// Why, for a person.
        reason: String,
    },
    /// What the operation on files gave.
    File {
        /// Without the bytes, which follow.
        answer: FileAnswer,
    },
    /// The operation on files was admitted and cannot be done.
    Failed {
        /// Why.
        error: FileError,
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
    /// It cannot be done with these files.
    #[error(transparent)]
    Failed(#[from] FileError),
    /// The connection failed.
    #[error("no connection to the array's I/O socket: {0}")]
    Connection(#[from] io::Error),
}

/// A volume, opened by a node.
#[derive(Debug)]
pub struct OpenVolume<S: AsyncRead + AsyncWrite = UnixStream> {
    stream: BufStream<S>,
}

impl OpenVolume {
    /// Opens `volume` as `node` over the array's I/O `socket`. It succeeds without access, too: I/O does not.
    ///
    /// # Errors
    ///
    /// [`IoError::Connection`] when the socket cannot be reached.
    pub async fn open(socket: &Path, volume: &str, node: &str) -> Result<Self, IoError> {
        OpenVolume::over(UnixStream::connect(socket).await?, volume, node).await
    }
}

impl OpenVolume<TcpStream> {
    /// Opens `volume` as `node` over the array's I/O `address`. It succeeds without access, too: I/O does not.
    ///
    /// # Errors
    ///
    /// [`IoError::Connection`] when the address cannot be reached. There is no deadline: the caller has one.
    pub async fn connect(address: SocketAddr, volume: &str, node: &str) -> Result<Self, IoError> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        // What was given up must not arrive later, when a link that was cut heals.
        stream.set_zero_linger()?;
        OpenVolume::over(stream, volume, node).await
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> OpenVolume<S> {
    async fn over(stream: S, volume: &str, node: &str) -> Result<Self, IoError> {
        let mut opened = OpenVolume { stream: BufStream::new(stream) };
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

    /// Asks for the access that staging needs.
    ///
    /// # Errors
    ///
    /// [`IoError::Refused`] without access; the volume stays open.
    pub async fn stage(&mut self) -> Result<(), IoError> {
        self.ask(&Command::Stage).await?;
        Ok(())
    }

    /// Says that the node has unstaged the volume.
    ///
    /// # Errors
    ///
    /// [`IoError::Refused`] if the array knows better.
    pub async fn unstage(&mut self) -> Result<(), IoError> {
        self.ask(&Command::Unstage).await?;
        Ok(())
    }

    /// What is wrong with the volume, as seen from the node; `None` if there is no such volume.
    ///
    /// # Errors
    ///
    /// [`IoError::Refused`] while the node does not reach the array.
    pub async fn health(&mut self) -> Result<Option<Vec<Ailment>>, IoError> {
        match self.ask(&Command::Health).await? {
            Reply::Health { ailments } => Ok(ailments),
            reply => Err(invalid(&format!("{reply:?} to a question about health")).into()),
        }
    }

    /// Carries out one operation on files; `data` is what a write writes, and the bytes that come back are what a read read.
    ///
    /// # Errors
    ///
    /// [`IoError::Refused`] without access, [`IoError::Failed`] as a file system fails; the volume stays open.
    pub async fn file(
        &mut self,
        operation: FileOperation,
        sequence: u64,
        tag: &str,
        data: &[u8],
    ) -> Result<(FileAnswer, Vec<u8>), IoError> {
        send(&mut self.stream, &Command::File { operation, sequence, tag: tag.to_owned() }).await?;
        send_bytes(&mut self.stream, data).await?;
        let reply = receive(&mut self.stream).await?;
        let data = receive_bytes(&mut self.stream).await?;
        match reply {
            Reply::File { answer } => Ok((answer, data)),
            Reply::Failed { error } => Err(error.into()),
            Reply::Refused { reason } => Err(IoError::Refused(reason)),
            reply => Err(invalid(&format!("{reply:?} to an operation on files")).into()),
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

    fn stage(&self, volume: &Arc<str>, node: &Arc<str>) -> impl Future<Output = Reply> + Send;

    fn unstage(&self, volume: &Arc<str>, node: &Arc<str>) -> impl Future<Output = Reply> + Send;

    fn health(&self, volume: &Arc<str>, node: &Arc<str>) -> impl Future<Output = Reply> + Send;

    fn file(
        &self,
        volume: &Arc<str>,
        node: &Arc<str>,
        asked: FileRequest,
    ) -> impl Future<Output = (Reply, Vec<u8>)> + Send;
}

/// An operation on files with all that belongs to it.
pub(super) struct FileRequest {
    pub operation: FileOperation,
    pub sequence: u64,
    pub tag: Arc<str>,
    pub data: Vec<u8>,
}

/// Answers one client until it goes.
pub(super) async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin, disk: &impl Disk) -> io::Result<()> {
    let mut stream = BufStream::new(stream);
    let Command::Open { volume, node } = receive(&mut stream).await? else {
        return Err(invalid("the first command is not Open"));
    };
    let (volume, node): (Arc<str>, Arc<str>) = (volume.into(), node.into());
    send(&mut stream, &Reply::Done).await?;
    loop {
        let command = receive(&mut stream).await?;
        let is_file = matches!(command, Command::File { .. });
        let bytes = if is_file { receive_bytes(&mut stream).await? } else { Vec::new() };
        let (reply, data) = tokio::select! {
            biased;
            answered = carry_out(command, bytes, disk, &volume, &node) => answered?,
            error = gone(&mut stream) => return Err(error),
        };
        send(&mut stream, &reply).await?;
        if is_file {
            send_bytes(&mut stream, &data).await?;
        }
    }
}

async fn carry_out(
    command: Command,
    data: Vec<u8>,
    disk: &impl Disk,
    volume: &Arc<str>,
    node: &Arc<str>,
) -> io::Result<(Reply, Vec<u8>)> {
    let reply = match command {
        Command::Open { .. } => return Err(invalid("a second Open")),
        Command::Write { sequence, tag } => disk.write(volume, node, sequence, tag).await,
        Command::Read => disk.read(volume, node).await,
        Command::Stage => disk.stage(volume, node).await,
        Command::Unstage => disk.unstage(volume, node).await,
        Command::Health => disk.health(volume, node).await,
        Command::File { operation, sequence, tag } => {
            let asked = FileRequest { operation, sequence, tag: tag.into(), data };
            return Ok(disk.file(volume, node, asked).await);
        }
    };
    Ok((reply, Vec::new()))
}

/// Returns when the client has gone. A client that sends its next command early stays unread meanwhile.
async fn gone(stream: &mut BufStream<impl AsyncRead + AsyncWrite + Unpin>) -> io::Error {
    match stream.fill_buf().await {
        Ok([]) => io::ErrorKind::UnexpectedEof.into(),
        Ok(_) => std::future::pending().await,
        Err(error) => error,
    }
}

async fn send(stream: &mut BufStream<impl AsyncRead + AsyncWrite + Unpin>, message: &impl Serialize) -> io::Result<()> {
    send_bytes(stream, &serde_json::to_vec(message)?).await
}

async fn send_bytes(stream: &mut BufStream<impl AsyncRead + AsyncWrite + Unpin>, frame: &[u8]) -> io::Result<()> {
    let length = u32::try_from(frame.len()).map_err(|_| invalid("the frame is too long"))?;
    stream.write_all(&length.to_be_bytes()).await?;
    stream.write_all(frame).await?;
    stream.flush().await
}

async fn receive<T: DeserializeOwned>(stream: &mut BufStream<impl AsyncRead + AsyncWrite + Unpin>) -> io::Result<T> {
    Ok(serde_json::from_slice(&receive_bytes(stream).await?)?)
}

async fn receive_bytes(stream: &mut BufStream<impl AsyncRead + AsyncWrite + Unpin>) -> io::Result<Vec<u8>> {
    let length = usize::try_from(stream.read_u32().await?).unwrap_or(usize::MAX);
    if length > LONGEST_FRAME {
        return Err(invalid("the frame is too long"));
    }
    let mut frame = vec![0; length];
    stream.read_exact(&mut frame).await?;
    Ok(frame)
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}
