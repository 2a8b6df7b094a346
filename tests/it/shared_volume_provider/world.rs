//! An API server, and the shipped controller with StorageOS' flags in StorageOS' spelling.

use std::ffi::OsString;
use std::net::TcpListener;
use std::path::PathBuf;
use std::time::Duration;

use bulkhead::api::names::OPERATOR_NAMESPACE;
use bulkhead::api::shared_volume::SharedVolume;
use bulkhead::api::shared_volume_provider::SharedVolumeProvider;
use bulkhead_testbed::process::{Launch, Process};
use bulkhead_testbed::{Identity, Testbed, TestbedOptions};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::PostParams;
use kube::{Api, Client, CustomResourceExt as _, ResourceExt};
use libtest_mimic::Failed;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::failover::kept::Kept;
use crate::shared;

/// Long enough for a loaded machine; nothing waits this long when it works.
pub const SOON: Duration = Duration::from_secs(100);
/// How often a condition is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Time between two polls, by the flag.
pub const POLL: Duration = Duration::from_secs(1);

/// The cluster.
pub struct World {
    pub admin: Client,
    pub testbed: Testbed,
    pub metrics: u16,
    kept: Option<Kept>,
}

impl shared::World for World {
    async fn start_shared() -> Result<Self, Failed> {
        let mut world = Self::start().await?;
        world.kept = Some(Kept::new(world.controller()?));
        Ok(world)
    }
}

impl World {
    /// Everything but the controller.
    pub async fn start() -> Result<Self, Failed> {
        let testbed = Testbed::start(TestbedOptions::api_server_only()).await?;
        testbed.apply_dir(&crate::api::world::root().join("crds")).await?;
        let admin = testbed.client(&Identity::Admin).await?;
        for definition in [SharedVolume::crd(), SharedVolumeProvider::crd()] {
            install(&admin, &definition).await?;
        }
        let metrics = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let world = Self { admin, testbed, metrics, kept: None };
        world.namespace(OPERATOR_NAMESPACE, json!({})).await?;
        Ok(world)
    }

    /// Starts the controller; polls come by StorageOS' flag.
    pub fn controller(&self) -> Result<Process, Failed> {
        self.controller_at("info,bulkhead=debug,kube=warn")
    }

    /// The same, with another log.
    pub fn controller_at(&self, log: &str) -> Result<Process, Failed> {
        let kubeconfig = self.testbed.kubeconfig(&Identity::Admin)?;
        let arguments = [
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--namespace={OPERATOR_NAMESPACE}"),
            format!("--listen=127.0.0.1:{}", self.metrics),
            format!("--log={log}"),
            "-api-poll-interval".to_owned(),
            format!("{}ms", POLL.as_millis()),
        ];
        let launch = Launch {
            name: "bulkhead-controller".to_owned(),
            program: PathBuf::from(env!("CARGO_BIN_EXE_bulkhead-controller")),
            args: arguments.map(OsString::from).into(),
            env: Vec::new(),
            log: self.testbed.folder().join("bulkhead-controller.log"),
        };
        Ok(Process::spawn(launch)?)
    }

    /// What the controller's metrics say.
    pub async fn scrape(&self) -> Result<String, Failed> {
        let mut connection = TcpStream::connect(("127.0.0.1", self.metrics)).await?;
        connection.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await?;
        let mut text = String::new();
        connection.read_to_string(&mut text).await?;
        Ok(text)
    }

    pub async fn namespace(&self, name: &str, labels: serde_json::Value) -> Result<(), Failed> {
        let namespace = serde_json::from_value(json!({ "metadata": { "name": name, "labels": labels } }))?;
        Api::<Namespace>::all(self.admin.clone()).create(&PostParams::default(), &namespace).await?;
        Ok(())
    }
}

async fn install(admin: &Client, definition: &CustomResourceDefinition) -> Result<(), Failed> {
    let all: Api<CustomResourceDefinition> = Api::all(admin.clone());
    let name = definition.name_any();
    if all.get_opt(&name).await?.is_none() {
        all.create(&PostParams::default(), definition).await?;
    }
    let is_served = async || {
        let found = all.get(&name).await?;
        let conditions = found.status.and_then(|status| status.conditions).unwrap_or_default();
        Ok(conditions.iter().any(|it| it.type_ == "Established" && it.status == "True").then_some(()))
    };
    eventually(&format!("{name} is served"), is_served).await
}

/// Waits until `look` finds something.
pub async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Result<Option<T>, Failed>) -> Result<T, Failed> {
    let looking = async {
        loop {
            if let Some(found) = look().await? {
                return Ok(found);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    tokio::time::timeout(SOON, looking).await.unwrap_or_else(|_| Err(format!("not within {SOON:?}: {what}").into()))
}

/// A name for the objects of a test: its own, as a namespace may have it.
pub fn lane_name(test: &str) -> String {
    let kept = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = test.chars().map(kept).collect();
    name.split('-').filter(|part| !part.is_empty()).collect::<Vec<_>>().join("-").chars().take(60).collect()
}
