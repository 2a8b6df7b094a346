//! NFS servers as a probe sees them: what answers RPC NULL calls, hangs, or is not there.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How it behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It answers.
    Serves,
    /// It takes connections and answers nothing, as a server in its grace period or on a frozen disk.
    Hangs,
    /// Nobody listens.
    Refuses,
}

/// A server; it ends when this is dropped.
pub struct Server {
    pub address: SocketAddr,
    mode: watch::Sender<Mode>,
    calls: Arc<AtomicUsize>,
    _serving: JoinSet<()>,
}

impl Server {
    /// On a free port of this address.
    pub async fn start(address: IpAddr, mode: Mode) -> io::Result<Self> {
        let listener = TcpListener::bind((address, 0)).await?;
        let address = listener.local_addr()?;
        let (mode, modes) = watch::channel(mode);
        let calls = Arc::new(AtomicUsize::new(0));
        let mut serving = JoinSet::new();
        serving.spawn(serve(listener, modes, calls.clone()));
        Ok(Self { address, mode, calls, _serving: serving })
    }

    pub fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// How often it was called.
    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

async fn serve(first: TcpListener, mut modes: watch::Receiver<Mode>, calls: Arc<AtomicUsize>) {
    let Ok(address) = first.local_addr() else { return };
    let (mut listener, mut open) = (Some(first), JoinSet::new());
    loop {
        let mode = *modes.borrow_and_update();
        if mode == Mode::Refuses {
            listener = None;
        } else if listener.is_none() {
            listener = Some(bound_again(address).await);
        }
        // Who hung is not answered late.
        open.abort_all();
        loop {
            tokio::select! {
                changed = modes.changed() => match changed {
                    Ok(()) => break,
                    Err(_) => return,
                },
                Some(stream) = accepted(listener.as_ref()) => {
                    open.spawn(answer(stream, mode, calls.clone()));
                }
            }
        }
    }
}

/// The next connection; never one where nobody listens.
async fn accepted(listener: Option<&TcpListener>) -> Option<TcpStream> {
    match listener {
        Some(listener) => listener.accept().await.ok().map(|(stream, _)| stream),
        None => std::future::pending().await,
    }
}

/// Somebody else's connection may have the port for a moment.
async fn bound_again(address: SocketAddr) -> TcpListener {
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return listener,
            Err(error) => eprintln!("{address}: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// RFC 5531: a record mark, then xid, type, and so on, of which only the xid counts here.
async fn answer(mut stream: TcpStream, mode: Mode, calls: Arc<AtomicUsize>) {
    let mut mark = [0; 4];
    while stream.read_exact(&mut mark).await.is_ok() {
        let mut call = vec![0; (u32::from_be_bytes(mark) & 0x7fff_ffff) as usize];
        if stream.read_exact(&mut call).await.is_err() {
            return;
        }
        calls.fetch_add(1, Ordering::SeqCst);
        if mode != Mode::Serves {
            return std::future::pending().await;
        }
        // Last fragment of 24 bytes; xid; REPLY, MSG_ACCEPTED; verifier AUTH_NONE of length 0; SUCCESS.
        let mut reply = (0x8000_0000_u32 | 24).to_be_bytes().to_vec();
        reply.extend(call.get(..4).unwrap_or_default());
        reply.extend([1_u32, 0, 0, 0, 0].into_iter().flat_map(u32::to_be_bytes));
        if stream.write_all(&reply).await.is_err() {
            return;
        }
    }
}
