//! A cluster in which our controllers run, and what a GitOps tool applies to it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use bulkhead_testbed::Testbed;
use bulkhead_testbed::cluster::{Cluster, ClusterError, ClusterOptions};
use libtest_mimic::Failed;
use serde_json::{Value, json};

use crate::failover::fleet;
use crate::failover::kept::Kept;
use crate::shared;

/// Field manager of the tool.
pub const TOOL: &str = "a-gitops-tool";

/// The cluster.
pub struct World {
    _kept: Kept,
    pub cluster: Cluster,
}

impl shared::World for World {
    async fn start_shared() -> Result<Self, Failed> {
        // Two nodes that never fail: not all nodes are ever suspected.
        let options = ClusterOptions { arrays: Vec::new(), nodes: 2, ..fleet::options() };
        let mut cluster = Cluster::start(options).await?;
        Ok(Self { _kept: Kept::new(cluster.controllers.remove(0)), cluster })
    }
}

impl World {
    pub fn testbed(&self) -> &Testbed {
        &self.cluster.testbed
    }

    /// Waits until `look` says Ok.
    pub async fn wait<T>(&self, what: &str, mut look: impl AsyncFnMut() -> Result<T, String>) -> Result<T, Failed> {
        let limit = Duration::from_secs(90);
        Ok(self.cluster.wait(what, limit, async || Ok::<_, ClusterError>(look().await)).await?)
    }
}

/// Writes objects to a file that kubectl reads.
pub fn file(folder: &Path, objects: &[Value]) -> Result<PathBuf, Failed> {
    let path = folder.join("objects.json");
    std::fs::write(&path, json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string())?;
    Ok(path)
}

/// Applies a file as the tool does, which takes no field from anybody.
pub async fn apply(testbed: &Testbed, file: &Path) -> Result<(), Failed> {
    let manager = format!("--field-manager={TOOL}");
    testbed.kubectl(&["apply", "--server-side", &manager, "-f", &file.to_string_lossy()]).await?;
    Ok(())
}

/// The same, for the first time: whoever had put in what is there lets go of it.
pub async fn take_over(testbed: &Testbed, file: &Path) -> Result<(), Failed> {
    let manager = format!("--field-manager={TOOL}");
    let arguments = ["apply", "--server-side", "--force-conflicts", &manager, "-f", &file.to_string_lossy()];
    testbed.kubectl(&arguments).await?;
    Ok(())
}

/// The objects of a file as they are on the server.
pub async fn live(testbed: &Testbed, file: &Path) -> Result<Vec<Value>, Failed> {
    let path = file.to_string_lossy();
    items(&testbed.kubectl(&["get", "--show-managed-fields", "-o", "json", "-f", &path]).await?)
}

/// The objects of a List as JSON.
pub fn items(list: &str) -> Result<Vec<Value>, Failed> {
    let mut list: Value = serde_json::from_str(list)?;
    match list["items"].take() {
        Value::Array(items) => Ok(items),
        _ => Err(format!("no list of objects: {list}").into()),
    }
}

/// Whether it is an object of ours.
pub fn is_ours(object: &Value) -> bool {
    object["apiVersion"].as_str().is_some_and(|it| it.starts_with("bulkhead.dev/"))
}

/// Kind and name, for messages.
pub fn told(object: &Value) -> String {
    let field = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    format!("{} {}", field("/kind"), field("/metadata/name"))
}

/// What a program prints, given this as its input.
pub fn feed(command: &mut Command, input: &Value) -> Result<Vec<u8>, Failed> {
    let mut running = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    // The end of its input comes with the end of the pipe. One that has failed does not read: it says why.
    let written = running.stdin.take().ok_or("no input")?.write_all(input.to_string().as_bytes());
    let output = running.wait_with_output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    written?;
    Ok(output.stdout)
}
