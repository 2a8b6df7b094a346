//! What the node service and the mounter in a Mountpoint Pod say to each other: one JSON document and one descriptor over a
//! Unix socket, in one connection, without an answer. Upstream's node service and mounter say the same.
//!
//! Neither side trusts the other. A Mountpoint Pod may put what it likes where its socket belongs, so a link is not followed;
//! and what arrives at a mounter is bounded, and is closed when it is not what was agreed.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use serde::{Deserialize, Deserializer, Serialize};
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Instant, sleep, timeout_at};

/// How long to wait before the mounter is called again.
const CALL_AGAIN: Duration = Duration::from_millis(5);
/// How much is read at once.
const CHUNK: usize = 1024;
/// The longest message: far more than arguments and environment ever are.
const LONGEST_MESSAGE: usize = 1 << 20;
/// What is longer is as good as for ever, and no moment in time lies behind it.
const LONGEST_DEADLINE: Duration = Duration::from_hours(24);
/// Room for more descriptors than are agreed, so that they are seen, and closed.
const ROOM_FOR_DESCRIPTORS: usize = 4;

/// What the mounter needs to run mount-s3.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MountMessage {
    /// The bucket.
    pub bucket_name: String,
    /// Arguments of mount-s3, in addition to bucket and mount point.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub args: Vec<String>,
    /// Its whole environment, each as `NAME=value`.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub env: Vec<String>,
}

/// Go writes a list that was never filled as null.
fn null_is_empty<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Without the values of the environment: keys are among them.
impl fmt::Debug for MountMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.env.iter().map(|entry| entry.split('=').next().unwrap_or_default()).collect();
        f.debug_struct("MountMessage")
            .field("bucket_name", &self.bucket_name)
            .field("args", &self.args)
            .field("env", &names)
            .finish()
    }
}

/// Why a message did not get through.
#[derive(Debug, thiserror::Error)]
pub enum ProtocolError {
    /// A system call failed.
    #[error("cannot {action} {path}: {source}")]
    Socket {
        /// What was tried.
        action: &'static str,
        /// The socket.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Something else is where the socket belongs.
    #[error("{} is not a socket: delete the Mountpoint Pod", .0.display())]
    NotASocket(PathBuf),
    /// The other side took too long.
    #[error("{what} within {} s at {}", .deadline.as_secs_f64(), .path.display())]
    Deadline {
        /// What did not happen.
        what: &'static str,
        /// The socket.
        path: PathBuf,
        /// How long it was waited for.
        deadline: Duration,
    },
    /// The message is longer than one can be.
    #[error("the message is longer than {LONGEST_MESSAGE} bytes")]
    TooLong,
    /// Not exactly one descriptor came.
    #[error("the message came with {0} descriptors instead of one")]
    Descriptors(usize),
    /// What came is no message. It may hold keys, and so may what serde_json says of it: only the place is told.
    #[error("the message is not what was agreed, at line {line}, column {column} of its JSON")]
    Json {
        /// Line of the JSON document.
        line: usize,
        /// Column in that line.
        column: usize,
    },
}

impl ProtocolError {
    fn socket(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Socket { action, path, source }
    }

    fn deadline(what: &'static str, path: &Path, deadline: Duration) -> Self {
        Self::Deadline { what, path: path.to_owned(), deadline }
    }
}

/// A mounter that listens, and has not been told anything yet.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    socket: PathBuf,
    end: Instant,
    deadline: Duration,
}

impl Connection {
    /// Calls the mounter that listens on `socket`, or will. `deadline` is for sending too.
    ///
    /// # Errors
    /// When nobody listens, or something else than a socket is there.
    pub async fn open(socket: &Path, deadline: Duration) -> Result<Self, ProtocolError> {
        let end = Instant::now() + deadline.min(LONGEST_DEADLINE);
        let stream = timeout_at(end, dial(socket))
            .await
            .map_err(|_| ProtocolError::deadline("no mounter listened", socket, deadline))??;
        Ok(Self { stream, socket: socket.to_owned(), end, deadline })
    }

    /// Sends `message` and `descriptor`.
    ///
    /// # Errors
    /// When the mounter does not take the message.
    pub async fn send(self, message: &MountMessage, descriptor: BorrowedFd<'_>) -> Result<(), ProtocolError> {
        let Self { stream, socket, end, deadline } = self;
        // A message of strings is always JSON.
        let document = serde_json::to_vec(message).map_err(|error| json_error(&error))?;
        if document.len() > LONGEST_MESSAGE {
            return Err(ProtocolError::TooLong);
        }
        timeout_at(end, write(stream, &document, descriptor))
            .await
            .map_err(|_| ProtocolError::deadline("the mounter did not take the message", &socket, deadline))?
            .map_err(ProtocolError::socket("send a message to", &socket))
    }
}

/// Calls until somebody listens. The Mountpoint Pod's containers may still be starting.
async fn dial(socket: &Path) -> Result<UnixStream, ProtocolError> {
    loop {
        match dial_once(socket).await {
            Err(ProtocolError::Socket { source, .. })
                if matches!(
                    source.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused | io::ErrorKind::WouldBlock
                ) =>
            {
                sleep(CALL_AGAIN).await;
            }
            other => return other,
        }
    }
}

/// The socket is opened before it is called: then it is not a link to somebody else's, and its path may have any length.
async fn dial_once(socket: &Path) -> Result<UnixStream, ProtocolError> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(CWD, socket, flags, Mode::empty())
        .map_err(io::Error::from)
        .map_err(ProtocolError::socket("open", socket))?;
    let kind = rustix::fs::fstat(&opened).map_err(io::Error::from).map_err(ProtocolError::socket("open", socket))?;
    if FileType::from_raw_mode(kind.st_mode) != FileType::Socket {
        return Err(ProtocolError::NotASocket(socket.to_owned()));
    }
    UnixStream::connect(own_path(&opened)).await.map_err(ProtocolError::socket("connect to", socket))
}

/// A short name of what a descriptor of ours stands for: the address of a socket has room for 107 bytes only.
fn own_path(descriptor: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", descriptor.as_raw_fd()))
}

/// The descriptor goes with the first bytes.
async fn write(mut stream: UnixStream, document: &[u8], descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let first = stream.async_io(Interest::WRITABLE, || send_first(stream.as_fd(), document, descriptor)).await?;
    stream.write_all(document.get(first..).unwrap_or_default()).await?;
    stream.shutdown().await
}

fn send_first(stream: BorrowedFd<'_>, document: &[u8], descriptor: BorrowedFd<'_>) -> io::Result<usize> {
    let descriptors = [descriptor];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    Ok(rustix::net::sendmsg(stream, &[IoSlice::new(document)], &mut control, SendFlags::NOSIGNAL)?)
}

/// Where a mounter waits for its one message.
#[derive(Debug)]
pub struct Listener {
    listener: UnixListener,
    socket: Bound,
}

/// A socket's file, removed when it is no longer listened on.
#[derive(Debug)]
struct Bound(PathBuf);

impl Drop for Bound {
    fn drop(&mut self) {
        // Whoever binds next removes what is left.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Listener {
    /// Listens on `socket`. A socket that a killed process left there is removed first.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub fn bind(socket: &Path) -> Result<Self, ProtocolError> {
        match std::fs::remove_file(socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(ProtocolError::socket("remove", socket)(error));
            }
            _ => {}
        }
        let listener = bind_in_folder(socket).map_err(ProtocolError::socket("listen on", socket))?;
        Ok(Self { listener, socket: Bound(socket.to_owned()) })
    }

    /// Waits for one message and its descriptor. `deadline` is for all of it. Nobody can connect any more once somebody did.
    ///
    /// # Errors
    /// When nothing comes in time, or something else than a message with one descriptor. What came with it is closed.
    pub async fn receive(self, deadline: Duration) -> Result<(MountMessage, OwnedFd), ProtocolError> {
        let Self { listener, socket } = self;
        let path = socket.0.clone();
        let end = Instant::now() + deadline.min(LONGEST_DEADLINE);
        let (stream, _) = timeout_at(end, listener.accept())
            .await
            .map_err(|_| ProtocolError::deadline("no options came", &path, deadline))?
            .map_err(ProtocolError::socket("accept a connection at", &path))?;
        drop((listener, socket));
        let (document, descriptors) = timeout_at(end, read(&stream, &path))
            .await
            .map_err(|_| ProtocolError::deadline("the options did not come to their end", &path, deadline))??;
        decode(&document, descriptors)
    }
}

fn bind_in_folder(socket: &Path) -> io::Result<UnixListener> {
    let (Some(folder), Some(name)) = (socket.parent(), socket.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::openat(CWD, folder, flags, Mode::empty())?;
    UnixListener::bind(own_path(&folder).join(name))
}

/// Everything up to the end of the connection, and every descriptor that came with it.
async fn read(stream: &UnixStream, path: &Path) -> Result<(Vec<u8>, Vec<OwnedFd>), ProtocolError> {
    let mut document = Vec::new();
    let mut descriptors = Vec::new();
    loop {
        let mut chunk = [0; CHUNK];
        let (length, crowded) = stream
            .async_io(Interest::READABLE, || receive_chunk(stream.as_fd(), &mut chunk, &mut descriptors))
            .await
            .map_err(ProtocolError::socket("read from", path))?;
        if crowded || descriptors.len() > 1 {
            return Err(ProtocolError::Descriptors(descriptors.len().max(2)));
        }
        if length == 0 {
            return Ok((document, descriptors));
        }
        document.extend_from_slice(chunk.get(..length).unwrap_or_default());
        if document.len() > LONGEST_MESSAGE {
            return Err(ProtocolError::TooLong);
        }
    }
}

/// How much came, and whether more descriptors came than there was room for; the kernel closed those.
fn receive_chunk(
    stream: BorrowedFd<'_>,
    chunk: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
) -> io::Result<(usize, bool)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(ROOM_FOR_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::net::recvmsg(stream, &mut [IoSliceMut::new(chunk)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(came) = message {
            descriptors.extend(came);
        }
    }
    Ok((received.bytes, received.flags.contains(ReturnFlags::CTRUNC)))
}

fn decode(document: &[u8], descriptors: Vec<OwnedFd>) -> Result<(MountMessage, OwnedFd), ProtocolError> {
    let [descriptor] = <[OwnedFd; 1]>::try_from(descriptors).map_err(|came| ProtocolError::Descriptors(came.len()))?;
    Ok((message(document)?, descriptor))
}

/// The message of a document.
///
/// # Errors
/// When it is none. Nothing of the document is in the error: there are keys in it.
pub fn message(document: &[u8]) -> Result<MountMessage, ProtocolError> {
    serde_json::from_slice(document).map_err(|error| json_error(&error))
}

fn json_error(error: &serde_json::Error) -> ProtocolError {
    ProtocolError::Json { line: error.line(), column: error.column() }
}

#[cfg(test)]
#[path = "socket_protocol_tests.rs"]
mod tests;
