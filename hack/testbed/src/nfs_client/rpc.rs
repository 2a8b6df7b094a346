//! Remote procedure calls over TCP (RFC 5531), one after the other on one connection.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::NfsError;
use super::xdr::{Decoder, Encoder};

const CALL: u32 = 0;
const REPLY: u32 = 1;
const RPC_VERSION: u32 = 2;
const PROGRAM: u32 = 100_003;
const VERSION: u32 = 4;
const COMPOUND: u32 = 1;
const AUTH_NONE: u32 = 0;
const AUTH_SYS: u32 = 1;
/// The upper bit of a fragment's length says that it is the last of its message.
const LAST: u32 = 1 << 31;
/// No answer to what is asked here is near as long.
const LONGEST: usize = 4 << 20;

/// A connection to a server.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    number: u32,
}

impl Connection {
    /// Connects. Nothing on the connection takes longer than `patience`.
    pub fn open(server: SocketAddr, patience: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&server, patience)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, number: 0 })
    }

    /// Sends one COMPOUND and returns what it is answered. After an error the connection is of no use.
    pub fn compound(&mut self, host: &str, body: &[u8]) -> Result<Vec<u8>, NfsError> {
        self.number = self.number.wrapping_add(1);
        let user = Encoder::default().u32(0).opaque(host.as_bytes()).u32(0).u32(0).u32(0).bytes();
        let call = Encoder::default()
            .u32(self.number)
            .u32(CALL)
            .u32(RPC_VERSION)
            .u32(PROGRAM)
            .u32(VERSION)
            .u32(COMPOUND)
            .u32(AUTH_SYS)
            .opaque(&user)
            .u32(AUTH_NONE)
            .opaque(&[])
            .fixed(body)
            .bytes();
        let length = u32::try_from(call.len()).unwrap_or(u32::MAX) | LAST;
        self.stream.write_all(&[&length.to_be_bytes()[..], &call].concat())?;
        let reply = self.receive()?;
        let mut decoder = Decoder::new(&reply);
        let (number, kind, denied) = (decoder.u32()?, decoder.u32()?, decoder.u32()?);
        if (number, kind) != (self.number, REPLY) {
            return Err(NfsError::Protocol("an answer to something else"));
        }
        if denied != 0 {
            return Err(NfsError::Protocol("the server denied the call"));
        }
        let _verifier = (decoder.u32()?, decoder.opaque()?);
        if decoder.u32()? != 0 {
            return Err(NfsError::Protocol("the server does not know the call"));
        }
        Ok(decoder.rest().to_vec())
    }

    fn receive(&mut self) -> Result<Vec<u8>, NfsError> {
        let mut message = Vec::new();
        loop {
            let mut header = [0; 4];
            self.stream.read_exact(&mut header)?;
            let header = u32::from_be_bytes(header);
            let start = message.len();
            let end = usize::try_from(header & !LAST).unwrap_or(usize::MAX).saturating_add(start);
            if end > LONGEST {
                return Err(NfsError::Protocol("the answer is too long"));
            }
            message.resize(end, 0);
            self.stream.read_exact(message.get_mut(start..).unwrap_or_default())?;
            if header & LAST != 0 {
                return Ok(message);
            }
        }
    }
}
