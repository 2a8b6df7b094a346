//! The real helm on a testbed.

use std::process::Stdio;

use tokio::process::Command;

use crate::binaries::{Binaries, Program};
use crate::{Identity, Testbed, TestbedError};

impl Testbed {
    /// Runs helm as [`Identity::Admin`] and returns what it printed. The first time on a machine this builds it, which takes
    /// minutes.
    ///
    /// # Errors
    /// When helm cannot be had or fails; the error has its message.
    pub async fn helm(&self, args: &[&str]) -> Result<String, TestbedError> {
        let failed = |message: String| TestbedError::Helm { arguments: args.join(" "), message };
        let ready = tokio::task::spawn_blocking(|| Binaries::ensure_all(None, &[Program::Helm]));
        let programs = ready.await.map_err(|error| failed(error.to_string()))??;
        // Nothing of what a person has set up for helm on this machine.
        let folder = self.folder().join("helm");
        let output = Command::new(programs.path(Program::Helm))
            .args(args)
            .env("KUBECONFIG", self.kubeconfig(&Identity::Admin)?)
            .envs(["CACHE", "CONFIG", "DATA"].map(|kind| (format!("HELM_{kind}_HOME"), folder.join(kind))))
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .map_err(|error| failed(error.to_string()))?;
        let (printed, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        if output.status.success() { Ok(printed.into_owned()) } else { Err(failed(format!("{said}{printed}"))) }
    }
}
