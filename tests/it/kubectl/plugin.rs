//! The program, as a person runs it.

use std::process::Output;

use bulkhead_testbed::Identity;
use bulkhead_testbed::cluster::Cluster;
use libtest_mimic::Failed;
use serde_json::Value;
use tokio::process::Command;

/// The administrator of the testbed, who may do everything.
pub const ADMIN: Identity = Identity::Admin;

/// What the program said.
pub struct Said {
    pub code: i32,
    pub out: String,
    pub error: String,
}

/// Runs the program as somebody. Nobody sits at its keyboard.
pub async fn run(cluster: &Cluster, person: &Identity, arguments: &[&str]) -> Result<Said, Failed> {
    let kubeconfig = cluster.testbed.kubeconfig(person)?;
    let Output { status, stdout, stderr } = Command::new(env!("CARGO_BIN_EXE_kubectl-bulkhead"))
        .args(arguments)
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .stdin(std::process::Stdio::null())
        .kill_on_drop(true)
        .output()
        .await?;
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    Ok(Said { code: status.code().unwrap_or(-1), out: text(&stdout), error: text(&stderr) })
}

/// Runs it as the administrator; it must do what it is asked.
pub async fn done(cluster: &Cluster, arguments: &[&str]) -> Result<String, Failed> {
    let said = run(cluster, &ADMIN, arguments).await?;
    if said.code != 0 {
        return Err(format!("{arguments:?} ended with {}: {}{}", said.code, said.out, said.error).into());
    }
    Ok(said.out)
}

/// The same, for programs.
pub async fn json(cluster: &Cluster, arguments: &[&str]) -> Result<Value, Failed> {
    let text = done(cluster, &[arguments, &["-o", "json"]].concat()).await?;
    Ok(serde_json::from_str(&text)?)
}
