//! Operations of NFSv4.1 (RFC 8881): each is appended to a COMPOUND, and its result read from the answer in the same order.

use super::NfsError;
use super::status::Status;
use super::xdr::{Decoder, Encoder};

const MINOR_VERSION: u32 = 1;
/// Reading and writing, and no delegation: there would be nobody to ask it back from.
const READ_AND_WRITE: u32 = 3 | 0x0400;
const CLAIM_BY_NAME: u32 = 0;
const CLAIM_AS_BEFORE: u32 = 1;
const CLAIM_BY_HANDLE: u32 = 4;
/// Whoever was promised that a write is on the disk may forget it.
const ON_DISK: u32 = 2;
/// The second word of a set of attributes, and in it the permissions.
const WITH_MODE: [u32; 2] = [0, 1 << 1];
const MODE: u32 = 0o644;
/// The largest request and answer, and how many operations are in one.
const MESSAGE: u32 = 1 << 20;
const OPERATIONS: u32 = 16;

const CLOSED: u32 = 0;
const MADE: u32 = 1;

/// The number of an operation, which its result begins with too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Operation {
    GetHandle = 10,
    Lookup = 15,
    Open = 18,
    PutHandle = 22,
    PutRoot = 24,
    Read = 25,
    Write = 38,
    ExchangeId = 42,
    CreateSession = 43,
    Sequence = 53,
    ReclaimComplete = 58,
}

/// What names an open file towards the server.
pub(super) type StateId = [u8; 16];
/// What names a session.
pub(super) type SessionId = [u8; 16];

/// Whose a file is that is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claim<'a> {
    /// Of this name, in the current folder; made if it is not there.
    Named(&'a str),
    /// It was open before the server started anew.
    AsBefore,
    /// The current one.
    ByHandle,
}

/// A COMPOUND.
#[derive(Clone, Debug, Default)]
pub(super) struct Compound {
    count: u32,
    operations: Encoder,
}

impl Compound {
    /// As it is sent.
    pub fn bytes(self) -> Vec<u8> {
        let head = Encoder::default().opaque(&[]).u32(MINOR_VERSION).u32(self.count);
        head.fixed(&self.operations.bytes()).bytes()
    }

    fn with(self, operation: Operation, arguments: impl FnOnce(Encoder) -> Encoder) -> Self {
        Self { count: self.count + 1, operations: arguments(self.operations.u32(operation as u32)) }
    }

    pub fn exchange_id(self, verifier: [u8; 8], owner: &str) -> Self {
        // No flags, no protection of state, no word about the program.
        self.with(Operation::ExchangeId, |it| it.fixed(&verifier).opaque(owner.as_bytes()).u32(0).u32(0).u32(0))
    }

    pub fn create_session(self, client: u64, sequence: u32) -> Self {
        let channel = |it: Encoder| it.u32(0).u32(MESSAGE).u32(MESSAGE).u32(MESSAGE).u32(OPERATIONS).u32(1).u32(0);
        self.with(Operation::CreateSession, |it| {
            let it = channel(channel(it.u64(client).u32(sequence).u32(0)));
            // The server never calls back, and if it did, as nobody in particular.
            it.u32(0).u32(1).u32(0)
        })
    }

    /// The first operation of every COMPOUND but those that make a session; the session has one slot.
    pub fn sequence(self, session: &SessionId, number: u32) -> Self {
        self.with(Operation::Sequence, |it| it.fixed(session).u32(number).u32(0).u32(0).flag(true))
    }

    pub fn reclaim_complete(self) -> Self {
        self.with(Operation::ReclaimComplete, |it| it.flag(false))
    }

    pub fn root(self) -> Self {
        self.with(Operation::PutRoot, |it| it)
    }

    pub fn handle(self, handle: &[u8]) -> Self {
        self.with(Operation::PutHandle, |it| it.opaque(handle))
    }

    pub fn lookup(self, name: &str) -> Self {
        self.with(Operation::Lookup, |it| it.opaque(name.as_bytes()))
    }

    pub fn get_handle(self) -> Self {
        self.with(Operation::GetHandle, |it| it)
    }

    pub fn open(self, client: u64, claim: Claim<'_>) -> Self {
        self.with(Operation::Open, |it| {
            let it = it.u32(0).u32(READ_AND_WRITE).u32(0).u64(client).opaque(b"journal");
            match claim {
                Claim::Named(name) => {
                    let [first, second] = WITH_MODE;
                    let attributes = Encoder::default().u32(MODE).bytes();
                    let it = it.u32(MADE).u32(0).u32(2).u32(first).u32(second).opaque(&attributes);
                    it.u32(CLAIM_BY_NAME).opaque(name.as_bytes())
                }
                Claim::AsBefore => it.u32(CLOSED).u32(CLAIM_AS_BEFORE).u32(0),
                Claim::ByHandle => it.u32(CLOSED).u32(CLAIM_BY_HANDLE),
            }
        })
    }

    pub fn write(self, state: &StateId, offset: u64, data: &[u8]) -> Self {
        self.with(Operation::Write, |it| it.fixed(state).u64(offset).u32(ON_DISK).opaque(data))
    }

    pub fn read(self, state: &StateId, offset: u64, length: u32) -> Self {
        self.with(Operation::Read, |it| it.fixed(state).u64(offset).u32(length))
    }
}

/// The answer to a COMPOUND.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer<'a>(Decoder<'a>);

impl<'a> Answer<'a> {
    pub fn new(bytes: &'a [u8]) -> Result<Self, NfsError> {
        let mut decoder = Decoder::new(bytes);
        // The status is that of the last operation, and stands there again.
        let _head = (decoder.u32()?, decoder.opaque()?, decoder.u32()?);
        Ok(Self(decoder))
    }

    /// What comes next is the result of this operation, and it is OK.
    pub fn expect(&mut self, operation: Operation) -> Result<&mut Decoder<'a>, NfsError> {
        if self.0.u32()? != operation as u32 {
            return Err(NfsError::Protocol("the answer is to other operations"));
        }
        match self.0.u32()? {
            0 => Ok(&mut self.0),
            status => Err(NfsError::Status(Status(status))),
        }
    }

    pub fn sequence(&mut self) -> Result<(), NfsError> {
        let result = self.expect(Operation::Sequence)?;
        let _slot: (SessionId, [u32; 5]) =
            (result.fixed()?, [result.u32()?, result.u32()?, result.u32()?, result.u32()?, result.u32()?]);
        Ok(())
    }

    /// The client's number, and that of its next session.
    pub fn exchange_id(&mut self) -> Result<(u64, u32), NfsError> {
        let result = self.expect(Operation::ExchangeId)?;
        Ok((result.u64()?, result.u32()?))
    }

    pub fn create_session(&mut self) -> Result<SessionId, NfsError> {
        self.expect(Operation::CreateSession)?.fixed()
    }

    pub fn get_handle(&mut self) -> Result<Vec<u8>, NfsError> {
        Ok(self.expect(Operation::GetHandle)?.opaque()?.to_vec())
    }

    pub fn open(&mut self) -> Result<StateId, NfsError> {
        let result = self.expect(Operation::Open)?;
        let state = result.fixed()?;
        let _change: (u32, u64, u64, u32) = (result.u32()?, result.u64()?, result.u64()?, result.u32()?);
        for _ in 0..result.u32()? {
            let _attributes_set = result.u32()?;
        }
        match result.u32()? {
            0 => Ok(state),
            // None, and why: it was not asked for.
            3 => result.u32().map(|_| state),
            _ => Err(NfsError::Protocol("the server delegates what nobody asked it to")),
        }
    }

    /// How many bytes were written.
    pub fn write(&mut self) -> Result<usize, NfsError> {
        let count = self.expect(Operation::Write)?.u32()?;
        usize::try_from(count).map_err(|_| NfsError::Protocol("more was written than there was"))
    }

    pub fn read(&mut self) -> Result<Vec<u8>, NfsError> {
        let result = self.expect(Operation::Read)?;
        let _end = result.u32()?;
        Ok(result.opaque()?.to_vec())
    }
}
