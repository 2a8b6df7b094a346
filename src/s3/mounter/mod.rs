//! The program in each Mountpoint Pod: receives options and a FUSE descriptor, runs mount-s3, and ends when that ends. It needs
//! no privilege: the node service has mounted before, and unmounts.
//!
//! It and the node service share a folder. `mount.exit` there says that the mount is no longer needed: then, and only then, the
//! program ends with success, and its pod is done. Otherwise it is started again, and waits for options anew. Why it failed
//! stands in `mount.err`, for the node service to read.

mod arguments;
mod engine;
mod tail;

use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::Instrument as _;

use crate::api::s3::{ERROR_FILE, EXIT_FILE, SOCKET};
use crate::error::{Error, Result};
use crate::s3::socket_protocol::{Listener, MountMessage, ProtocolError};
use crate::s3::spans;

use engine::{Ended, Engine};

/// How often to look for `mount.exit` before there is a mount.
const LOOK: Duration = Duration::from_millis(200);

/// What a mounter is told when it starts.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The folder that it shares with the node service.
    pub communication_folder: PathBuf,
    /// The volume for a cache; the pod may not have it.
    pub cache_folder: PathBuf,
    /// Where mount-s3 is.
    pub mountpoint_bin_dir: PathBuf,
    /// How long to wait for options.
    pub receive_timeout: Duration,
}

/// How it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The mount is no longer needed.
    Done,
    /// SIGTERM or SIGINT came before there were options.
    Stopped,
    /// mount-s3 cannot be run, or ended while the mount is needed. `mount.err` says why.
    Failed,
}

/// Runs until the mount is no longer needed.
///
/// # Errors
/// When no options come.
pub async fn run(settings: &Settings) -> Result<Outcome> {
    let mut signals = Signals::new()?;
    let received = tokio::select! {
        biased;
        () = exit_file_appears(&settings.communication_folder) => return Ok(Outcome::Done),
        () = signals.next() => return Ok(Outcome::Stopped),
        received = receive(settings) => received?,
    };
    let span = spans::mount(&received.0.bucket_name);
    Ok(to_its_end(settings, received, signals).instrument(span).await)
}

/// Mounts, and waits for the end of the mount.
async fn to_its_end(settings: &Settings, received: (MountMessage, OwnedFd), mut signals: Signals) -> Outcome {
    tracing::info!(bucket = received.0.bucket_name, args = ?received.0.args, "options received; mount-s3 starts");
    let ended = tokio::select! {
        ended = mount(settings, received) => ended,
        never = signals.ignore() => match never {},
    };
    // Whatever became of mount-s3: the node service says whether that was to be.
    if exit_file(&settings.communication_folder) {
        return Outcome::Done;
    }
    let why = match ended {
        Ok(Ended { how, said }) if said.is_empty() => format!("mount-s3 {how}"),
        Ok(Ended { how, said }) => format!("{said}\nmount-s3 {how}"),
        Err(why) => why,
    };
    tracing::error!("the mount is lost: {why}");
    tell(&settings.communication_folder, &why);
    Outcome::Failed
}

/// Waits for options. A message that is not understood is answered in `mount.err`; then the next may come.
async fn receive(settings: &Settings) -> Result<(MountMessage, OwnedFd)> {
    let folder = &settings.communication_folder;
    loop {
        let listener = Listener::bind(&folder.join(SOCKET)).map_err(failed)?;
        match listener.receive(settings.receive_timeout).await {
            Err(refused @ (ProtocolError::TooLong | ProtocolError::Descriptors(_) | ProtocolError::Json { .. })) => {
                tracing::warn!(%refused, "a message is refused");
                tell(folder, &format!("the mounter refuses the options: {refused}"));
            }
            other => return other.map_err(failed),
        }
    }
}

fn failed(error: ProtocolError) -> Error {
    Error::Io { context: "receiving the options of mount-s3".into(), source: io::Error::other(error) }
}

/// Runs mount-s3 to its end, or says why it cannot be run.
async fn mount(settings: &Settings, (message, fuse): (MountMessage, OwnedFd)) -> std::result::Result<Ended, String> {
    let cache = cache_folder(settings, &message)?;
    let arguments = arguments::arguments(&message.bucket_name, &message.args, cache.as_deref())
        .map_err(|error| error.to_string())?;
    let engine = Engine::start(&settings.mountpoint_bin_dir, &arguments, &message.env, fuse)?;
    Ok(engine.ended().await)
}

/// The pod's cache volume. Without one a cache that the mount options ask for is in the container, where that can be written.
fn cache_folder(settings: &Settings, message: &MountMessage) -> std::result::Result<Option<PathBuf>, String> {
    if settings.cache_folder.is_dir() {
        return Ok(Some(settings.cache_folder.clone()));
    }
    if !arguments::want_cache(&message.args) {
        return Ok(None);
    }
    let folder = std::env::temp_dir().join("mount-s3-cache");
    match std::fs::create_dir_all(&folder) {
        Ok(()) => Ok(Some(folder)),
        Err(error) => Err(format!(
            "the mount option cache needs a volume, for {} cannot be made ({error}): set the volume attribute cache of \
             the PersistentVolume, for example to emptyDir",
            folder.display()
        )),
    }
}

async fn exit_file_appears(folder: &Path) {
    let mut interval = tokio::time::interval(LOOK);
    loop {
        interval.tick().await;
        if exit_file(folder) {
            return;
        }
    }
}

fn exit_file(folder: &Path) -> bool {
    folder.join(EXIT_FILE).symlink_metadata().is_ok()
}

/// Writes `mount.err`: at once or not at all, so that nobody reads half of it.
fn tell(folder: &Path, why: &str) {
    let new = folder.join(format!("{ERROR_FILE}.new"));
    let write = || -> io::Result<()> {
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(why.as_bytes())?;
        std::fs::rename(&new, folder.join(ERROR_FILE))
    };
    if let Err(error) = write() {
        tracing::warn!(%error, "{ERROR_FILE} cannot be written; the node service does not learn why");
    }
}

/// The signals that ask a program to end.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> Result<Self> {
        let listen = |kind| signal(kind).map_err(|source| Error::Io { context: "listening to signals".into(), source });
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// A drained node ends its pods in any order: as long as a workload has the mount, it must be served.
    async fn ignore(&mut self) -> std::convert::Infallible {
        loop {
            self.next().await;
            tracing::info!("not ending before the mount is no longer needed");
        }
    }
}
