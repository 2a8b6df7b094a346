//! Flux on a testbed: its real source-controller and kustomize-controller, as programs of this machine.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::binaries::{self, Binaries, BinariesError, Program};
use crate::process::{Launch, Process, ProcessError};
use crate::{Identity, Testbed, TestbedError, ports};

/// Why Flux does not run.
#[derive(Debug, thiserror::Error)]
pub enum FluxError {
    /// Its programs.
    #[error(transparent)]
    Binaries(#[from] BinariesError),
    /// The control plane.
    #[error(transparent)]
    Testbed(#[from] TestbedError),
    /// A process.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// This machine.
    #[error("cannot use a folder or a port of this machine: {0}")]
    Machine(#[from] std::io::Error),
}

/// The two controllers; they end when this is dropped.
#[derive(Debug)]
pub struct Flux {
    /// Fetches what git has.
    pub source_controller: Process,
    /// Applies it.
    pub kustomize_controller: Process,
}

impl Flux {
    /// Installs the definitions of Flux's kinds and starts it, as somebody who may do everything. Blocks for minutes where its
    /// programs must be built.
    ///
    /// # Errors
    /// When a part cannot be had or started.
    pub async fn start(testbed: &Testbed) -> Result<Self, FluxError> {
        let ready = tokio::task::spawn_blocking(|| {
            let folders =
                Program::FLUX.map(binaries::upstream_folder).into_iter().collect::<Result<Vec<PathBuf>, _>>()?;
            Ok::<_, BinariesError>((Binaries::ensure_all(None, &Program::FLUX)?, folders))
        });
        let (programs, folders) = ready.await.map_err(std::io::Error::other)??;
        for folder in folders {
            testbed.apply_dir(&folder.join("config/crd/bases")).await?;
        }
        let storage = testbed.folder().join("flux");
        std::fs::create_dir_all(&storage)?;
        let artifacts = format!("127.0.0.1:{}", ports::free()?);
        let source: [OsString; 6] = [
            "--storage-path".into(),
            storage.into(),
            "--storage-addr".into(),
            artifacts.clone().into(),
            "--storage-adv-addr".into(),
            artifacts.into(),
        ];
        // By default it waits for 30 s for what another depends on.
        let kustomize = ["--requeue-dependency", "2s"].map(OsString::from);
        Ok(Self {
            source_controller: start(testbed, &programs, Program::SourceController, &source)?,
            kustomize_controller: start(testbed, &programs, Program::KustomizeController, &kustomize)?,
        })
    }
}

fn start(testbed: &Testbed, programs: &Binaries, program: Program, further: &[OsString]) -> Result<Process, FluxError> {
    let name = program.name();
    let kubeconfig = testbed.kubeconfig(&Identity::Admin)?.display().to_string();
    let quiet = ["--metrics-addr", "0", "--health-addr", "127.0.0.1:0", "--log-level", "debug"].map(OsString::from);
    let launch = Launch {
        name: name.to_owned(),
        program: programs.path(program),
        args: [&quiet[..], further].concat(),
        env: vec![("KUBECONFIG".into(), kubeconfig), ("RUNTIME_NAMESPACE".into(), "flux-system".into())],
        log: testbed.folder().join(format!("{name}.log")),
    };
    Ok(Process::spawn(launch)?)
}
