//! A client of NFSv4.1 in user space, as much of one as a program needs that keeps one file open, for machines whose kernel
//! has no NFS. What matters here is what a kernel's client does when its server is another one all of a sudden, behind the
//! same address: it connects again, makes its session anew, tells the server who it was before and which file it had open
//! ("reclaims" it, while the server still waits for that), and goes on with the same file handle.
//!
//! Everything blocks, and nothing is repeated here: who calls decides how long to go on trying.

mod operation;
mod rpc;
mod status;
mod xdr;

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use self::operation::{Answer, Claim, Compound, Operation, SessionId, StateId};
use self::rpc::Connection;
pub use self::status::Status;

/// Why an operation was not carried out, as far as is known.
#[derive(Debug, thiserror::Error)]
pub enum NfsError {
    /// The server was not reached, or did not answer in time.
    #[error("no answer: {0}")]
    Connection(#[from] io::Error),
    /// The server refused.
    #[error("{0}")]
    Status(Status),
    /// The server answered what makes no sense.
    #[error("{0}")]
    Protocol(&'static str),
}

/// What was made anew before an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// Connected.
    Connection,
    /// The server did not know the client, and does now.
    Client,
    /// A session.
    Session,
    /// The file is open, as never before.
    Opened,
    /// The file is open as it was before the server started anew.
    Reclaimed,
    /// The server gave nothing back; the file is open again, by its handle.
    OpenedByHandle,
}

/// One file of an NFS server, open for reading and writing.
#[derive(Debug)]
pub struct NfsFile {
    server: SocketAddr,
    /// The folders on the way to the file, and the file.
    path: Vec<String>,
    patience: Duration,
    /// Who this client is: the same for all its life.
    owner: String,
    verifier: [u8; 8],
    connection: Option<Connection>,
    client: Option<Client>,
    session: Option<Session>,
    /// Given out once, and good for ever.
    handle: Option<Vec<u8>>,
    state: Option<StateId>,
    renewals: Vec<Renewal>,
}

#[derive(Clone, Copy, Debug)]
struct Client {
    id: u64,
    /// Of its next session.
    sequence: u32,
    /// The server has heard everything that it had open before.
    reclaimed: bool,
}

#[derive(Clone, Copy, Debug)]
struct Session {
    id: SessionId,
    sequence: u32,
}

impl NfsFile {
    /// The file `path` of a server, from the root of its exports on; made with the first operation if it is not there.
    /// Nothing waits longer than `patience` for the server; `owner` is nobody else.
    pub fn new(server: SocketAddr, path: &str, owner: &str, patience: Duration) -> Self {
        let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        Self {
            server,
            path: path.split('/').filter(|name| !name.is_empty()).map(str::to_owned).collect(),
            patience,
            owner: owner.to_owned(),
            verifier: u64::try_from(began).unwrap_or_default().to_be_bytes(),
            connection: None,
            client: None,
            session: None,
            handle: None,
            state: None,
            renewals: Vec::new(),
        }
    }

    /// What was made anew since this was asked last.
    pub fn renewals(&mut self) -> Vec<Renewal> {
        std::mem::take(&mut self.renewals)
    }

    /// Writes bytes; they are on the server's disk when this returns.
    ///
    /// # Errors
    /// When the server does not say so. They may be there all the same.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), NfsError> {
        let (handle, state) = self.ready()?;
        let compound = |compound: Compound| compound.handle(&handle).write(&state, offset, data);
        let written = self.in_session(compound, |answer| {
            answer.expect(Operation::PutHandle)?;
            answer.write()
        })?;
        if written == data.len() { Ok(()) } else { Err(NfsError::Protocol("the server wrote a part of it")) }
    }

    /// Reads bytes; fewer at the end of the file.
    ///
    /// # Errors
    /// When the server does not answer with them.
    pub fn read(&mut self, offset: u64, length: u32) -> Result<Vec<u8>, NfsError> {
        let (handle, state) = self.ready()?;
        let compound = |compound: Compound| compound.handle(&handle).read(&state, offset, length);
        self.in_session(compound, |answer| {
            answer.expect(Operation::PutHandle)?;
            answer.read()
        })
    }

    /// The file open, whatever that takes.
    fn ready(&mut self) -> Result<(Vec<u8>, StateId), NfsError> {
        self.establish()?;
        let client = self.client.ok_or(NfsError::Protocol("there is no client"))?;
        if !client.reclaimed {
            self.reclaim(client)?;
        }
        match (self.handle.clone(), self.state) {
            (Some(handle), Some(state)) => Ok((handle, state)),
            (Some(handle), None) => {
                let state = self.open_by_handle(&handle, client.id, Claim::ByHandle)?;
                self.opened(state, Renewal::OpenedByHandle);
                Ok((handle, state))
            }
            (None, _) => {
                let (handle, state) = self.open_by_name(client.id)?;
                self.handle = Some(handle.clone());
                self.opened(state, Renewal::Opened);
                Ok((handle, state))
            }
        }
    }

    fn opened(&mut self, state: StateId, how: Renewal) {
        self.state = Some(state);
        self.renewals.push(how);
    }

    /// A client of the server with a session.
    fn establish(&mut self) -> Result<(), NfsError> {
        let client = match self.client {
            Some(client) => client,
            None => self.exchange_id()?,
        };
        if self.session.is_some() {
            return Ok(());
        }
        match self.create_session(client) {
            // It is another server: one that never heard of this client.
            Err(NfsError::Status(Status::STALE_CLIENT)) => {
                let client = self.exchange_id()?;
                self.create_session(client)
            }
            done => done,
        }
    }

    fn exchange_id(&mut self) -> Result<Client, NfsError> {
        let bytes = self.call(Compound::default().exchange_id(self.verifier, &self.owner))?;
        let (id, sequence) = Answer::new(&bytes)?.exchange_id()?;
        let client = Client { id, sequence, reclaimed: false };
        (self.client, self.session, self.state) = (Some(client), None, None);
        self.renewals.push(Renewal::Client);
        Ok(client)
    }

    fn create_session(&mut self, client: Client) -> Result<(), NfsError> {
        let bytes = self.call(Compound::default().create_session(client.id, client.sequence))?;
        let made = Answer::new(&bytes)?.create_session();
        if let Err(NfsError::Status(_)) = made {
            // Whatever it is: the server knows best who this is and which session is the next.
            self.client = None;
        }
        self.session = Some(Session { id: made?, sequence: 1 });
        self.client = Some(Client { sequence: client.sequence.wrapping_add(1), ..client });
        self.renewals.push(Renewal::Session);
        Ok(())
    }

    /// Tells a server what was open before it started, if anything was, and that this is all.
    fn reclaim(&mut self, client: Client) -> Result<(), NfsError> {
        if let Some(handle) = self.handle.clone() {
            match self.open_by_handle(&handle, client.id, Claim::AsBefore) {
                Ok(state) => self.opened(state, Renewal::Reclaimed),
                Err(NfsError::Status(status)) if status.refuses_reclaim() => {}
                Err(error) => return Err(error),
            }
        }
        let told =
            self.in_session(Compound::reclaim_complete, |answer| answer.expect(Operation::ReclaimComplete).map(drop));
        match told {
            // It is the server of before, to which only the session was lost.
            Ok(()) | Err(NfsError::Status(Status::COMPLETE_ALREADY)) => {}
            Err(error) => return Err(error),
        }
        self.client = self.client.map(|client| Client { reclaimed: true, ..client });
        Ok(())
    }

    fn open_by_handle(&mut self, handle: &[u8], client: u64, claim: Claim<'_>) -> Result<StateId, NfsError> {
        let compound = |compound: Compound| compound.handle(handle).open(client, claim);
        self.in_session(compound, |answer| {
            answer.expect(Operation::PutHandle)?;
            answer.open()
        })
    }

    fn open_by_name(&mut self, client: u64) -> Result<(Vec<u8>, StateId), NfsError> {
        let path = self.path.clone();
        let (name, folders) = path.split_last().ok_or(NfsError::Protocol("the path names no file"))?;
        let compound = |compound: Compound| {
            let folder = folders.iter().fold(compound.root(), |compound, folder| compound.lookup(folder));
            folder.open(client, Claim::Named(name)).get_handle()
        };
        self.in_session(compound, |answer| {
            answer.expect(Operation::PutRoot)?;
            for _ in folders {
                answer.expect(Operation::Lookup)?;
            }
            let state = answer.open()?;
            Ok((answer.get_handle()?, state))
        })
    }

    /// One COMPOUND in the session, and what its answer says. What a refusal makes worthless is forgotten.
    fn in_session<T>(
        &mut self,
        compound: impl FnOnce(Compound) -> Compound,
        read: impl FnOnce(&mut Answer<'_>) -> Result<T, NfsError>,
    ) -> Result<T, NfsError> {
        let session = self.session.as_mut().ok_or(NfsError::Protocol("there is no session"))?;
        let asked = compound(Compound::default().sequence(&session.id, session.sequence));
        session.sequence = session.sequence.wrapping_add(1);
        let result = self.call(asked).and_then(|bytes| {
            let mut answer = Answer::new(&bytes)?;
            answer.sequence()?;
            read(&mut answer)
        });
        match &result {
            // Whether it was carried out nobody knows; a session of its own tells the server not to wait for the rest.
            Err(NfsError::Connection(_) | NfsError::Protocol(_)) => self.session = None,
            Err(NfsError::Status(status)) if status.needs_session() => self.session = None,
            Err(NfsError::Status(status)) if status.needs_open() => self.state = None,
            _ => {}
        }
        result
    }

    fn call(&mut self, compound: Compound) -> Result<Vec<u8>, NfsError> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                let connection = Connection::open(self.server, self.patience)?;
                self.renewals.push(Renewal::Connection);
                connection
            }
        };
        let answer = connection.compound(&self.owner, &compound.bytes())?;
        self.connection = Some(connection);
        Ok(answer)
    }
}
