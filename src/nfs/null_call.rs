//! One RPC NULL call (RFC 5531) to an NFS server over TCP: the cheapest question that only a serving NFS server answers. A
//! port that takes connections proves nothing: a server that is in recovery, or another program, does so too.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// NFS, in the list of RPC programs.
const PROGRAM: u32 = 100_003;
/// Versions that are asked for, the better first. NFSv4.1 and later are minor versions of 4.
const VERSIONS: [u32; 2] = [4, 3];
/// Longest answer that is read. An answer to NULL has 24 bytes, and 400 more with the longest verifier.
const ANSWER_MAX: usize = 1024;
/// Marks the last fragment of a record.
const LAST: u32 = 1 << 31;

/// Why a server does not count as serving.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NullCallError {
    /// Nobody listens there.
    #[error("connection refused")]
    Refused,
    /// No answer in time.
    #[error("no answer in time")]
    TimedOut,
    /// Something else answered, or NFS said that it does not serve.
    #[error("no NFS server: {0}")]
    NotNfs(String),
    /// The connection failed.
    #[error("{0}")]
    Io(String),
}

/// Asks `server` whether it serves NFS 4, or 3 if it says that it serves no other; all of it within `timeout`.
///
/// # Errors
/// When it does not say so.
pub async fn null_call(server: SocketAddr, timeout: Duration) -> Result<(), NullCallError> {
    tokio::time::timeout(timeout, ask(server)).await.unwrap_or(Err(NullCallError::TimedOut))
}

async fn ask(server: SocketAddr) -> Result<(), NullCallError> {
    let mut connection = TcpStream::connect(server).await?;
    for version in VERSIONS {
        // The version makes the two calls differ as well as any number would.
        connection.write_all(&call(version, version)).await?;
        match read(&record(&mut connection).await?, version)? {
            Answer::Serves => return Ok(()),
            Answer::Mismatch { low, high } if version == VERSIONS[0] && (low..=high).contains(&VERSIONS[1]) => {}
            Answer::Mismatch { low, high } => {
                return Err(NullCallError::NotNfs(format!("it serves versions {low} to {high}, not 4 or 3")));
            }
        }
    }
    Err(NullCallError::NotNfs("it says that it serves version 3, and then that it does not".to_owned()))
}

/// The call, as one record.
fn call(id: u32, version: u32) -> Vec<u8> {
    // Call, RPC version 2, program, version, procedure NULL, no credentials and no verifier.
    let words = [id, 0, 2, PROGRAM, version, 0, 0, 0, 0, 0];
    let length = LAST | 40;
    std::iter::once(length).chain(words).flat_map(u32::to_be_bytes).collect()
}

/// Reads one record, of however many fragments.
async fn record(connection: &mut TcpStream) -> Result<Vec<u8>, NullCallError> {
    let mut whole = Vec::new();
    loop {
        let header = connection.read_u32().await?;
        let length = (header & !LAST) as usize;
        if whole.len() + length > ANSWER_MAX {
            return Err(NullCallError::NotNfs("it answers with something that is no RPC".to_owned()));
        }
        let begin = whole.len();
        whole.resize(begin + length, 0);
        connection.read_exact(whole.get_mut(begin..).unwrap_or_default()).await?;
        if header & LAST != 0 {
            return Ok(whole);
        }
    }
}

/// What a server says to the call.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// It serves this version.
    Serves,
    /// Not this version, but these.
    Mismatch {
        /// The lowest.
        low: u32,
        /// The highest.
        high: u32,
    },
}

/// Reads the record that answers call `id`.
///
/// # Errors
/// When it says anything else.
pub fn read(record: &[u8], id: u32) -> Result<Answer, NullCallError> {
    let wrong = |what: &str| NullCallError::NotNfs(what.to_owned());
    let mut words = Words(record);
    let truncated = || NullCallError::NotNfs("its answer ends too early".to_owned());
    let mut next = || words.next().ok_or_else(truncated);
    if next()? != id {
        return Err(wrong("it answers another call"));
    }
    if next()? != 1 {
        return Err(wrong("it answers with something that is no RPC reply"));
    }
    if next()? != 0 {
        return Err(wrong("it refuses the call"));
    }
    let (_flavour, length) = (next()?, next()?);
    words.skip(length).ok_or_else(truncated)?;
    let mut next = || words.next().ok_or_else(truncated);
    match next()? {
        0 => Ok(Answer::Serves),
        1 => Err(wrong("NFS is not among its programs")),
        2 => Ok(Answer::Mismatch { low: next()?, high: next()? }),
        other => Err(NullCallError::NotNfs(format!("it answers NULL with error {other}"))),
    }
}

/// Reads XDR words.
struct Words<'a>(&'a [u8]);

impl Words<'_> {
    fn next(&mut self) -> Option<u32> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_be_bytes(*word))
    }

    /// Skips opaque data, which fills whole words.
    fn skip(&mut self, length: u32) -> Option<()> {
        let padded = usize::try_from(length).ok()?.checked_next_multiple_of(4)?;
        self.0 = self.0.get(padded..)?;
        Some(())
    }
}

impl From<io::Error> for NullCallError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Self::Refused,
            io::ErrorKind::TimedOut => Self::TimedOut,
            io::ErrorKind::UnexpectedEof => Self::NotNfs("it closes the connection without an answer".to_owned()),
            _ => Self::Io(error.to_string()),
        }
    }
}

#[cfg(test)]
#[path = "null_call_tests.rs"]
mod tests;
