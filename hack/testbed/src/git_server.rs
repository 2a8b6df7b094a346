//! A git repository in a folder, served over HTTP for reading, as git's own smart protocol wants it. What is committed is what
//! git itself commits.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderName, StatusCode};
use axum::routing::{get, post};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::task::JoinSet;

/// What precedes the list of references, in packets of git's protocol.
const PREAMBLE: &[u8] = b"001e# service=git-upload-pack\n0000";

type Answer = Result<([(HeaderName, &'static str); 1], Vec<u8>), (StatusCode, String)>;

/// A repository and its server, which ends when this is dropped.
#[derive(Debug)]
pub struct GitServer {
    folder: PathBuf,
    address: SocketAddr,
    _serving: JoinSet<()>,
}

impl GitServer {
    /// An empty repository in this folder, on a free port.
    ///
    /// # Errors
    /// When git fails, or no port is to be had.
    pub async fn start(folder: &Path) -> io::Result<Self> {
        run(folder, &["init", "--quiet", "--initial-branch=main"]).await?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let routes = Router::new()
            .route("/repository.git/info/refs", get(references))
            .route("/repository.git/git-upload-pack", post(packs))
            .with_state(folder.to_owned());
        let mut serving = JoinSet::new();
        serving.spawn(async move { drop(axum::serve(listener, routes).await) });
        Ok(Self { folder: folder.to_owned(), address, _serving: serving })
    }

    /// Where it is to be cloned from.
    pub fn url(&self) -> String {
        format!("http://{}/repository.git", self.address)
    }

    /// Commits everything that is in the folder, and returns the commit.
    ///
    /// # Errors
    /// When git fails.
    pub async fn commit(&self, message: &str) -> io::Result<String> {
        run(&self.folder, &["add", "--all"]).await?;
        let person = ["-c", "user.name=testbed", "-c", "user.email=testbed@example.com", "-c", "commit.gpgsign=false"];
        run(&self.folder, &[&person[..], &["commit", "--quiet", "--message", message]].concat()).await?;
        let commit = run(&self.folder, &["rev-parse", "HEAD"]).await?;
        Ok(String::from_utf8_lossy(&commit).trim().to_owned())
    }
}

async fn references(State(folder): State<PathBuf>) -> Answer {
    let listed = run(&folder, &["upload-pack", "--stateless-rpc", "--advertise-refs", "."]).await;
    let body = [PREAMBLE, &listed.map_err(failed)?].concat();
    Ok(([(CONTENT_TYPE, "application/x-git-upload-pack-advertisement")], body))
}

async fn packs(State(folder): State<PathBuf>, wanted: Bytes) -> Answer {
    let packed = feed(&folder, &["upload-pack", "--stateless-rpc", "."], &wanted).await;
    Ok(([(CONTENT_TYPE, "application/x-git-upload-pack-result")], packed.map_err(failed)?))
}

fn failed(error: io::Error) -> (StatusCode, String) {
    (StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}

async fn run(folder: &Path, arguments: &[&str]) -> io::Result<Vec<u8>> {
    feed(folder, arguments, &[]).await
}

/// What git prints in a folder, given this as its input.
async fn feed(folder: &Path, arguments: &[&str], input: &[u8]) -> io::Result<Vec<u8>> {
    let mut command = Command::new("git");
    command.current_dir(folder).args(arguments).kill_on_drop(true);
    let mut git = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    if let Some(mut pipe) = git.stdin.take() {
        pipe.write_all(input).await?;
    }
    let output = git.wait_with_output().await?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("git {} failed: {}", arguments.join(" "), said.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_was_committed_can_be_cloned() {
        let (source, clone) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let server = GitServer::start(source.path()).await.unwrap();
        std::fs::write(source.path().join("file"), "first").unwrap();
        server.commit("First").await.unwrap();
        std::fs::write(source.path().join("file"), "second").unwrap();
        let commit = server.commit("Second").await.unwrap();
        run(clone.path(), &["clone", "--quiet", &server.url(), "."]).await.unwrap();
        assert_eq!(std::fs::read_to_string(clone.path().join("file")).unwrap(), "second");
        let cloned = run(clone.path(), &["rev-parse", "HEAD"]).await.unwrap();
        assert_eq!(String::from_utf8_lossy(&cloned).trim(), commit);
    }
}
