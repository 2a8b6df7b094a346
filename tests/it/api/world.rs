//! The control plane that the tests of this module share, with everything we ship installed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead_testbed::{Identity, Testbed, TestbedOptions};
use kube::Client;
use libtest_mimic::Failed;

use crate::shared;

/// The driver whose sidecar [`Identity::CsiSidecar`] is.
pub const DRIVER: &str = "csi.test.bulkhead.dev";

/// A control plane with everything we ship.
pub struct World {
    pub testbed: Testbed,
    pub admin: Client,
    pub controller: Client,
    pub sidecar: Client,
    /// The agent of one node.
    pub agent: Client,
    /// Full rights on our kinds, but neither `attest` nor `plan`.
    pub person: Client,
    /// The role that we ship for people on call.
    pub approver: Client,
}

impl shared::World for World {
    async fn start_shared() -> Result<Self, Failed> {
        Self::start().await
    }
}

impl World {
    async fn start() -> Result<Self, Failed> {
        let testbed = Testbed::start(TestbedOptions::api_server_only()).await?;
        testbed.apply_dir(&root().join("config/default")).await?;
        testbed.apply_dir(&root().join("hack/testbed/manifests/fencer")).await?;
        testbed.apply_file(&samples().join("person.yaml")).await?;
        let person = Identity::User { name: "alice".into(), groups: vec!["storage-team".into()] };
        let approver = Identity::User { name: "bob".into(), groups: vec!["on-call".into()] };
        let admin = testbed.client(&Identity::Admin).await?;
        Ok(Self {
            agent: super::agent::client(&testbed, &admin).await?,
            admin,
            controller: testbed.client(&Identity::OperatorController).await?,
            sidecar: testbed.client(&Identity::CsiSidecar).await?,
            person: testbed.client(&person).await?,
            approver: testbed.client(&approver).await?,
            testbed,
        })
    }
}

/// The repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Objects that only programs write, and those for tests alone.
pub fn samples() -> PathBuf {
    root().join("tests/it/samples")
}

/// Tries until `attempt` yields something: admission policies are in force some time after they are stored.
pub async fn eventually<T>(what: &str, mut attempt: impl AsyncFnMut() -> Option<T>) -> Result<T, Failed> {
    let tries = async {
        loop {
            if let Some(result) = attempt().await {
                return result;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let result = tokio::time::timeout(Duration::from_secs(30), tries).await;
    result.map_err(|_| format!("not within 30 s: {what}").into())
}
