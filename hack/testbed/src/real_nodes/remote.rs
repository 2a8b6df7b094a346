//! Lets another process break the nodes of this one: a line of [`super::script`] over a Unix socket, and an answer.

use std::io;
use std::path::Path;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};

use super::RealNodes;
use super::error::RealNodeError;
use super::script::Step;

/// The answer when all went well.
const DONE: &str = "done";
/// The word before the path of an image archive.
const IMPORT: &str = "import ";

/// Serves requests on `socket` until the returned future is dropped. One request at a time per connection.
///
/// # Errors
/// When the socket cannot be opened.
pub async fn serve(nodes: &RealNodes, socket: &Path) -> Result<(), RealNodeError> {
    let failed = |source| RealNodeError::File { path: socket.to_owned(), source };
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let listener = UnixListener::bind(socket).map_err(failed)?;
    loop {
        let (stream, _) = listener.accept().await.map_err(failed)?;
        // Requests are seldom, and the order in which they are made is the order in which they are carried out. A client
        // that is gone does not want its answer.
        let _ = answer(nodes, stream).await;
    }
}

async fn answer(nodes: &RealNodes, stream: UnixStream) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line).await?;
    let text = match carry_out(nodes, line.trim()).await {
        Ok(()) => DONE.to_owned(),
        Err(error) => error.to_string(),
    };
    stream.into_inner().write_all(text.as_bytes()).await
}

async fn carry_out(nodes: &RealNodes, line: &str) -> Result<(), RealNodeError> {
    if let Some(archive) = line.strip_prefix(IMPORT) {
        return nodes.import_image(Path::new(archive)).await;
    }
    let step: Step = line.parse()?;
    let node = nodes.node(&step.node).ok_or(RealNodeError::Unknown(step.node))?;
    step.action.apply(&node).await
}

/// Asks the process that serves `socket` for one step: `node-1 cut-control`.
///
/// # Errors
/// When nobody serves it, or what was asked for failed.
pub async fn ask(socket: &Path, line: &str) -> Result<(), RealNodeError> {
    let failed = |source| RealNodeError::Remote { socket: socket.to_owned(), source };
    let mut stream = UnixStream::connect(socket).await.map_err(failed)?;
    stream.write_all(format!("{line}\n").as_bytes()).await.map_err(failed)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.map_err(failed)?;
    if answer == DONE { Ok(()) } else { Err(RealNodeError::Refused(answer)) }
}

/// Asks it to put an image archive into every node.
///
/// # Errors
/// As [`ask`].
pub async fn ask_to_import(socket: &Path, archive: &Path) -> Result<(), RealNodeError> {
    let path =
        std::fs::canonicalize(archive).map_err(|source| RealNodeError::File { path: archive.to_owned(), source })?;
    ask(socket, &format!("{IMPORT}{}", path.display())).await
}
