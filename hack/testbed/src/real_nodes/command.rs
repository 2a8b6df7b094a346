//! Short-lived programs of the system, on the host or inside a node.

use std::ffi::OsStr;
use std::process::Stdio;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use super::error::RealNodeError;

/// Where the programs of the system and, in a node, the upstream programs are.
pub(super) const PATH: &str = "/opt/programs:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Where a program runs.
pub(super) struct InNamespaces(Vec<String>);

/// Not in a node.
pub(super) const HOST: InNamespaces = InNamespaces(Vec::new());

impl InNamespaces {
    /// In the network of the process.
    pub(super) fn network(process: i32) -> Self {
        Self(vec![format!("--net=/proc/{process}/ns/net")])
    }

    /// Inside the node whose first process this is.
    pub(super) fn node(init: i32) -> Self {
        let flags = ["--mount", "--net", "--pid", "--uts", "--ipc", "--cgroup"];
        Self([format!("--target={init}")].into_iter().chain(flags.map(str::to_owned)).collect())
    }

    /// The words before a program's own that make it run here.
    pub(super) fn prefix(&self) -> Vec<String> {
        let nsenter = if self.0.is_empty() { None } else { Some("nsenter".to_owned()) };
        nsenter.into_iter().chain(self.0.iter().cloned()).collect()
    }

    /// A program that runs here, not yet started. It is killed when what waits for it is dropped.
    pub(super) fn command<S: AsRef<OsStr>>(&self, program: &str, args: impl IntoIterator<Item = S>) -> Command {
        let mut words = self.prefix();
        words.push(program.to_owned());
        let mut command = Command::new("env");
        // The system's own folders, whatever the PATH of the person who started this.
        command.env("PATH", PATH).args(words).args(args).kill_on_drop(true);
        command
    }
}

/// Runs a program to its end with `input` and returns what it printed.
pub(super) async fn run<S: AsRef<OsStr>>(
    place: &InNamespaces,
    program: &str,
    args: impl IntoIterator<Item = S>,
    input: &str,
) -> Result<String, RealNodeError> {
    let mut command = place.command(program, args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let words: Vec<_> = command.as_std().get_args().map(|word| word.to_string_lossy().into_owned()).collect();
    let words = words.join(" ");
    let failed = |message: String| RealNodeError::Command { command: words.clone(), message };
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return Err(failed(error.to_string())),
    };
    if let Some(mut stdin) = child.stdin.take() {
        // One that ends early says more by its message than by not reading.
        let _ = stdin.write_all(input.as_bytes()).await;
    }
    let output = match child.wait_with_output().await {
        Ok(output) => output,
        Err(error) => return Err(failed(error.to_string())),
    };
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
    }
}
