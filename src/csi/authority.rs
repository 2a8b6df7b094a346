//! Lets the kubelet's registration calls in.
//!
//! The kubelet connects to a registration socket with the socket's path, percent-encoded, as the HTTP/2 `:authority`. That is
//! none, and our HTTP/2 server refuses it with PROTOCOL_ERROR. (Its CSI calls say `localhost`.) So on this one socket the
//! value is replaced on its way in. Nothing has to be decoded for that: a header block says how long its parts are.

use std::io;

use futures::{Stream, StreamExt};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::net::UnixStream;

/// The bytes that a client sends first.
const PREFACE: usize = 24;
/// Length (3), type, flags, stream (4).
pub const FRAME_HEADER: usize = 9;
/// The longest frame that a client may send: HTTP/2's SETTINGS_MAX_FRAME_SIZE, which our server leaves as it is by default.
pub const FRAME_MAX: usize = 16 << 10;
const HEADERS: u8 = 1;
/// All headers are in this frame, without padding and priority: as the kubelet sends them.
const WHOLE: u8 = 4;
const NOT_PLAIN: u8 = 0x8 | 0x20;
/// The index of `:authority` in HPACK's static table.
const AUTHORITY: usize = 1;
/// A string literal, not compressed: its length and its bytes.
const LOCALHOST: &[u8] = b"\x09localhost";
/// How much may be under way in one direction.
const BUFFER: usize = 64 << 10;

/// The same connections, with `localhost` for every `:authority`.
pub(super) fn replaced(
    connections: impl Stream<Item = io::Result<UnixStream>>,
) -> impl Stream<Item = io::Result<DuplexStream>> {
    connections.map(|connection| {
        let (mut from_client, mut to_client) = connection?.into_split();
        let (ours, servers) = tokio::io::duplex(BUFFER);
        let (mut from_server, mut to_server) = tokio::io::split(ours);
        tokio::spawn(async move {
            // Either end may end it; the other learns it from the end of its stream.
            tokio::select! {
                passed = pass_in(&mut from_client, &mut to_server) => tell(passed),
                _ = tokio::io::copy(&mut from_server, &mut to_client) => {}
            }
        });
        Ok(servers)
    })
}

/// A client that hangs up is no news, and one that was refused is.
fn tell(passed: io::Result<()>) {
    if let Err(error) = passed
        && error.kind() == io::ErrorKind::InvalidData
    {
        tracing::warn!(%error, "a client of the registration socket is refused");
    }
}

async fn pass_in(client: &mut (impl AsyncRead + Unpin), server: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    let mut preface = [0; PREFACE];
    client.read_exact(&mut preface).await?;
    server.write_all(&preface).await?;
    loop {
        let mut header = [0; FRAME_HEADER];
        client.read_exact(&mut header).await?;
        let mut payload = vec![0; length(header)?];
        let [_, _, _, kind, flags, stream @ ..] = header;
        client.read_exact(&mut payload).await?;
        if kind == HEADERS && flags & WHOLE != 0 && flags & NOT_PLAIN == 0 {
            // What is not understood passes as it is.
            payload = with_localhost(&payload).unwrap_or(payload);
        }
        let [_, a, b, c] = u32::try_from(payload.len()).map_err(io::Error::other)?.to_be_bytes();
        server.write_all(&[a, b, c, kind, flags]).await?;
        server.write_all(&stream).await?;
        server.write_all(&payload).await?;
    }
}

/// How long the frame behind this header is: three bytes could say 16 MiB.
///
/// # Errors
///
/// When no client may send so long a frame.
pub fn length(header: [u8; FRAME_HEADER]) -> io::Result<usize> {
    let [a, b, c, ..] = header;
    let length = u32::from_be_bytes([0, a, b, c]);
    usize::try_from(length).ok().filter(|length| *length <= FRAME_MAX).ok_or_else(|| {
        let text = format!("a frame of {length} bytes, and HTTP/2 allows {FRAME_MAX} here: the client is no kubelet");
        io::Error::new(io::ErrorKind::InvalidData, text)
    })
}

/// A header block (RFC 7541, section 6) with `localhost` for every `:authority`; nothing where it is not understood.
pub fn with_localhost(block: &[u8]) -> Option<Vec<u8>> {
    let mut replaced = Vec::with_capacity(block.len());
    let mut rest = block;
    while let Some(&first) = rest.first() {
        let field = rest;
        let is_literal = first & 0xc0 == 0x40 || first & 0xe0 == 0;
        let index_bits = match first {
            _ if first & 0x80 != 0 => 7,
            _ if first & 0xc0 == 0x40 => 6,
            _ if first & 0xe0 == 0x20 => 5,
            _ => 4,
        };
        let (index, behind) = integer(rest, index_bits)?;
        rest = behind;
        if is_literal && index == 0 {
            rest = behind_string(rest)?;
        }
        let name = field.get(..field.len() - rest.len())?;
        if is_literal {
            rest = behind_string(rest)?;
        }
        if is_literal && index == AUTHORITY {
            replaced.extend_from_slice(name);
            replaced.extend_from_slice(LOCALHOST);
        } else {
            replaced.extend_from_slice(field.get(..field.len() - rest.len())?);
        }
    }
    Some(replaced)
}

fn behind_string(bytes: &[u8]) -> Option<&[u8]> {
    let (length, rest) = integer(bytes, 7)?;
    rest.get(length..)
}

/// An integer in the low `bits` of the first byte, or behind it if it does not fit there (section 5.1).
fn integer(bytes: &[u8], bits: u32) -> Option<(usize, &[u8])> {
    let (first, mut rest) = bytes.split_first()?;
    let most = (1_usize << bits) - 1;
    let mut value = usize::from(*first) & most;
    if value < most {
        return Some((value, rest));
    }
    let mut shift = 0;
    loop {
        let (byte, behind) = rest.split_first()?;
        rest = behind;
        let part = usize::from(byte & 0x7f).checked_mul(1_usize.checked_shl(shift)?)?;
        value = value.checked_add(part)?;
        if byte & 0x80 == 0 {
            return Some((value, rest));
        }
        shift += 7;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_authority_of_a_header_block_changes() {
        let mut path = vec![0x41, 0x7f, 0x01];
        path.extend([b'x'; 128]);
        let method_and_path = [0x83, 0x44, 0x02, b'/', b'a'];
        let named = [0x40, 0x01, b'n', 0x81, 0xff];
        let never_indexed = [0x10, 0x02, b't', b'e', 0x01, b'v'];
        let block = [&method_and_path[..], &path, &[0x3f, 0x01], &named, &[0xbf], &never_indexed].concat();
        let wanted =
            [&method_and_path[..], b"\x41\x09localhost", &[0x3f, 0x01], &named, &[0xbf], &never_indexed].concat();
        assert_eq!(with_localhost(&block), Some(wanted));
    }

    #[test]
    fn a_block_that_is_cut_off_is_not_understood() {
        for block in
            [&[0x41, 0x05, b'x'][..], &[0x41], &[0x7f], &[0x40, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]]
        {
            assert_eq!(with_localhost(block), None);
        }
    }

    /// What a client sends: the preface, and a frame of DATA of this length.
    fn sent(length: usize) -> Vec<u8> {
        let [_, a, b, c] = u32::try_from(length).unwrap().to_be_bytes();
        [&[0; PREFACE][..], &[a, b, c, 0, 0, 0, 0, 0, 1], &vec![b'x'; length]].concat()
    }

    #[tokio::test]
    async fn a_frame_that_is_too_long_is_refused() {
        for frame in [0, FRAME_MAX] {
            let (sent, mut passed) = (sent(frame), Vec::new());
            let end = pass_in(&mut sent.as_slice(), &mut passed).await.unwrap_err();
            assert!(end.kind() == io::ErrorKind::UnexpectedEof && passed == sent, "{frame}: {end}");
        }
        for frame in [FRAME_MAX + 1, 0xff_ffff] {
            let (sent, mut passed) = (sent(frame), Vec::new());
            let error = pass_in(&mut sent.as_slice(), &mut passed).await.unwrap_err();
            let told = error.to_string();
            assert!(error.kind() == io::ErrorKind::InvalidData && told.contains(&frame.to_string()), "{told}");
            assert_eq!(passed.len(), PREFACE, "nothing of it is passed on");
        }
    }
}
