//! A real control plane: starting it, waiting until it is ready, talking to it, and breaking it.
//! How a single program is called stands in `components`, how it is kept in [`crate::process`].

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kube::Client;
use tracing::instrument::WithSubscriber;
use tracing::subscriber::NoSubscriber;

use crate::audit::Audit;
use crate::binaries::{Binaries, Program};
use crate::components::{self, Layout};
use crate::error::TestbedError;
use crate::folder::Folder;
use crate::kubeconfig;
use crate::options::{AttacherOptions, Component, KwokNodes, KwokOptions, TestbedOptions};
use crate::pki::{CertificateFiles, Identity, Pki};
use crate::ports::Ports;
use crate::process::{Launch, Process, ProcessError, Signal};

/// How long a component may take to become ready. A loaded machine needs more than the usual 3 s.
const READY_DEADLINE: Duration = Duration::from_secs(90);
const POLL: Duration = Duration::from_millis(50);
/// How often a start is tried when another program takes a port that was free a moment ago.
const ATTEMPTS: u32 = 4;

/// What starts together. A controller that starts before the apiserver has its roles is refused
/// and backs off, which costs two seconds.
const START_ORDER: [[Component; 2]; 2] =
    [[Component::Etcd, Component::ApiServer], [Component::ControllerManager, Component::Scheduler]];

/// A running control plane with its own folder and ports. Dropping it ends and removes all of it.
#[derive(Debug)]
pub struct Testbed {
    // Dropped in this order: the folder is removed when nothing writes to it any more.
    processes: Mutex<BTreeMap<Component, Process>>,
    launches: BTreeMap<Component, Launch>,
    binaries: Binaries,
    ports: Ports,
    pki: Pki,
    /// Held while an identity's files are written.
    issuing: Mutex<()>,
    /// See [`TestbedOptions::advertise_address`].
    advertised: Option<Ipv4Addr>,
    folder: Folder,
}

impl Testbed {
    /// Starts a control plane and returns when it is ready. The first time on a machine this
    /// builds the programs, which takes minutes and is told on standard error.
    ///
    /// # Errors
    /// When a program is missing and cannot be built, or does not become ready.
    pub async fn start(options: TestbedOptions) -> Result<Self, TestbedError> {
        let given = options.binaries.clone();
        let binaries = tokio::task::spawn_blocking(move || Binaries::ensure(given.as_deref()))
            .await
            .map_err(|error| TestbedError::Folder { folder: PathBuf::new(), source: io::Error::other(error) })??;
        let mut attempt = 1;
        loop {
            match Self::try_start(&binaries, &options).await {
                Err(TestbedError::Process(ProcessError::Ended { tail, .. }))
                    if attempt < ATTEMPTS && tail.contains("address already in use") =>
                {
                    attempt += 1;
                }
                other => return other,
            }
        }
    }

    async fn try_start(binaries: &Binaries, options: &TestbedOptions) -> Result<Self, TestbedError> {
        let folder = Folder::create().map_err(folder_error(&std::env::temp_dir()))?;
        let path = folder.path();
        fs::write(path.join("audit-policy.yaml"), include_str!("audit-policy.yaml"))
            .and_then(|()| fs::write(path.join("kwok.yaml"), include_str!("../kwok/nodes.yaml")))
            .map_err(folder_error(path))?;
        let advertised = options.advertise_address;
        let addresses: Vec<Ipv4Addr> =
            advertised.into_iter().flat_map(|address| [address, components::SERVICE_ADDRESS]).collect();
        let mut testbed = Self {
            processes: Mutex::default(),
            launches: BTreeMap::new(),
            binaries: binaries.clone(),
            ports: Ports::find_free().map_err(TestbedError::Ports)?,
            pki: Pki::create(path, &addresses)?,
            issuing: Mutex::default(),
            advertised,
            folder,
        };
        testbed.launches = testbed.plan(options)?;
        for stage in START_ORDER {
            let stage = || stage.into_iter().filter(|c| options.runs(*c));
            for component in stage() {
                testbed.spawn(component)?;
            }
            for component in stage() {
                testbed.wait_ready(component).await?;
            }
        }
        Ok(testbed)
    }

    fn plan(&self, options: &TestbedOptions) -> Result<BTreeMap<Component, Launch>, TestbedError> {
        let kubelet_client =
            Identity::User { name: "kube-apiserver-kubelet-client".into(), groups: vec!["system:masters".into()] };
        let layout = Layout {
            folder: self.folder(),
            ports: self.ports,
            pki: &self.pki,
            options,
            controller_manager: &self.kubeconfig(&Identity::ControllerManager)?,
            scheduler: &self.kubeconfig(&Identity::Scheduler)?,
            kubelet_client: options.advertise_address.map(|_| self.pki.client(&kubelet_client)).transpose()?,
        };
        Ok(START_ORDER
            .into_iter()
            .flatten()
            .filter(|component| options.runs(*component))
            .map(|component| {
                let program = component.program();
                let args = component.args(&layout);
                (component, self.launch(program.name(), program, args))
            })
            .collect())
    }

    fn spawn(&self, component: Component) -> Result<(), TestbedError> {
        let launch = self.launches.get(&component);
        let launch = launch.ok_or_else(|| not_running(component))?;
        let process = Process::spawn(launch.clone())?;
        self.processes().insert(component, process);
        Ok(())
    }

    fn launch(&self, name: &str, program: Program, args: Vec<std::ffi::OsString>) -> Launch {
        Launch {
            name: name.to_owned(),
            program: self.binaries.path(program),
            args,
            env: Vec::new(),
            log: self.folder().join(format!("{name}.log")),
        }
    }

    /// The testbed's folder: logs, certificates, kubeconfig files and the audit log.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The programs in use.
    pub fn binaries(&self) -> &Binaries {
        &self.binaries
    }

    /// The address of etcd, for objects by the hundred thousand.
    pub fn etcd(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports.etcd)
    }

    /// The audit log.
    pub fn audit(&self) -> Audit {
        Audit::new(self.folder().join("audit.log"))
    }

    /// The kubeconfig file of an identity, made when it is first asked for.
    ///
    /// # Errors
    /// When it cannot be written, or the identity has more than two groups.
    pub fn kubeconfig(&self, identity: &Identity) -> Result<PathBuf, TestbedError> {
        let _issuing = self.issuing.lock().unwrap_or_else(PoisonError::into_inner);
        let path = self.folder().join(format!("{}.kubeconfig", identity.file_stem()));
        if !path.is_file() {
            let files = self.pki.client(identity)?;
            kubeconfig::write(&path, self.ports.apiserver, &self.pki.authority_file(), &identity.user(), &files)?;
        }
        Ok(path)
    }

    /// The apiserver's port on 127.0.0.1, for a program that takes no kubeconfig.
    pub(crate) fn server_port(&self) -> u16 {
        self.ports.apiserver
    }

    /// The server's address for real nodes and what they run, if it has one.
    pub fn advertised_server(&self) -> Option<String> {
        self.advertised.map(|address| format!("https://{address}:{}", self.ports.apiserver))
    }

    /// The authority's certificate.
    pub(crate) fn authority_file(&self) -> PathBuf {
        self.pki.authority_file()
    }

    /// A certificate of an identity, for a program that cannot see this testbed's folder.
    pub(crate) fn certificate(&self, identity: &Identity) -> Result<CertificateFiles, TestbedError> {
        let _issuing = self.issuing.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(self.pki.client(identity)?)
    }

    /// A client that acts as an identity; each request is limited to 30 seconds.
    ///
    /// # Errors
    /// When its kubeconfig cannot be made or used.
    pub async fn client(&self, identity: &Identity) -> Result<Client, TestbedError> {
        Ok(kubeconfig::client(&self.kubeconfig(identity)?, None).await?)
    }

    /// Runs kubectl as [`Identity::Admin`] and returns what it printed.
    ///
    /// # Errors
    /// When kubectl cannot be run or fails; the error has its message.
    pub async fn kubectl(&self, args: &[&str]) -> Result<String, TestbedError> {
        let failed = |message: String| TestbedError::Kubectl { arguments: args.join(" "), message };
        let output = tokio::process::Command::new(self.binaries.path(Program::Kubectl))
            .arg("--kubeconfig")
            .arg(self.kubeconfig(&Identity::Admin)?)
            .args(args)
            .stdin(std::process::Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .map_err(|error| failed(error.to_string()))?;
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(failed(String::from_utf8_lossy(&output.stderr).into_owned()))
        }
    }

    /// Starts an external-attacher for the CSI driver that listens on `socket`. `name` tells its
    /// log from those of others.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_attacher(
        &self,
        name: &str,
        socket: &Path,
        options: &AttacherOptions,
    ) -> Result<Process, TestbedError> {
        let kubeconfig = self.kubeconfig(&Identity::Attacher)?;
        let args = components::attacher(&kubeconfig, socket, options);
        let launch = self.launch(&format!("attacher-{name}"), Program::CsiAttacher, args);
        Ok(Process::spawn(launch)?)
    }

    /// Starts a kwok that keeps Leases and the Ready condition of `nodes`. Ending the returned
    /// process ([`Process::kill`] or dropping it) stops their heartbeats at once: they die.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_kwok(&self, nodes: &KwokNodes, options: &KwokOptions) -> Result<Process, TestbedError> {
        let kubeconfig = self.kubeconfig(&Identity::Kwok)?;
        let stages = self.folder().join("kwok.yaml");
        let args = components::kwok(&kubeconfig, &stages, nodes, options);
        let name = match nodes {
            KwokNodes::One(name) | KwokNodes::Labelled(name) => name.replace('/', "-"),
        };
        let launch = self.launch(&format!("kwok-{name}"), Program::Kwok, args);
        Ok(Process::spawn(launch)?)
    }

    /// Freezes a component (SIGSTOP): it holds its connections and answers nothing.
    ///
    /// # Errors
    /// When it does not run.
    pub fn pause(&self, component: Component) -> Result<(), TestbedError> {
        self.signal(component, Signal::Stop)
    }

    /// Lets a frozen component go on.
    ///
    /// # Errors
    /// When it does not run.
    pub fn resume(&self, component: Component) -> Result<(), TestbedError> {
        self.signal(component, Signal::Continue)
    }

    /// Kills a component and returns when it is gone and its port is free.
    ///
    /// # Errors
    /// When it does not run.
    pub async fn stop(&self, component: Component) -> Result<(), TestbedError> {
        let process = self.processes().remove(&component);
        process.ok_or_else(|| not_running(component))?.kill().await;
        Ok(())
    }

    /// Starts a stopped component again, on the port it had, and returns when it is ready.
    ///
    /// # Errors
    /// When it is not part of this testbed or does not become ready.
    pub async fn start_again(&self, component: Component) -> Result<(), TestbedError> {
        self.spawn(component)?;
        self.wait_ready(component).await
    }

    /// Waits until a component works: its health endpoint says so, and of the
    /// controller-manager that pods can be created in the namespace `default`.
    ///
    /// # Errors
    /// When it, or another component, ends, or when it is not ready in time.
    pub async fn wait_ready(&self, component: Component) -> Result<(), TestbedError> {
        const DEFAULT_ACCOUNT: &str = "/api/v1/namespaces/default/serviceaccounts/default";
        match component {
            // The apiserver is not ready before its etcd is.
            Component::Etcd => Ok(()),
            Component::ApiServer => self.wait_answer(component, self.ports.apiserver, "/readyz").await,
            Component::ControllerManager => {
                let port = self.ports.controller_manager;
                self.wait_answer(component, port, "/healthz").await?;
                self.wait_answer(component, self.ports.apiserver, DEFAULT_ACCOUNT).await
            }
            Component::Scheduler => self.wait_answer(component, self.ports.scheduler, "/readyz").await,
        }
    }

    async fn wait_answer(&self, component: Component, port: u16, path: &str) -> Result<(), TestbedError> {
        let admin = self.kubeconfig(&Identity::Admin)?;
        let probe = kubeconfig::client(&admin, Some(port)).await?;
        let started = Instant::now();
        loop {
            // Any of them can be what holds this one up.
            for process in self.processes().values_mut() {
                process.ensure_running()?;
            }
            // The client logs each failure as an error; here they are what is waited out.
            let quiet = kubeconfig::get(&probe, path).with_subscriber(NoSubscriber::default());
            let Err(last) = quiet.await else {
                return Ok(());
            };
            if started.elapsed() > READY_DEADLINE {
                return Err(TestbedError::NotReady {
                    component: component.program().name(),
                    seconds: READY_DEADLINE.as_secs(),
                    last: last.to_string(),
                    tail: self.processes().get(&component).map(Process::log_tail).unwrap_or_default(),
                });
            }
            tokio::time::sleep(POLL).await;
        }
    }

    fn signal(&self, component: Component, signal: Signal) -> Result<(), TestbedError> {
        let mut processes = self.processes();
        let process = processes.get_mut(&component);
        Ok(process.ok_or_else(|| not_running(component))?.signal(signal)?)
    }

    fn processes(&self) -> MutexGuard<'_, BTreeMap<Component, Process>> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        // Nothing here is worth a graceful end; all are killed before the first is waited for.
        for process in self.processes().values_mut() {
            let _ = process.signal(Signal::Kill);
        }
    }
}

fn not_running(component: Component) -> TestbedError {
    TestbedError::NotRunning(component.program().name())
}

fn folder_error(path: &Path) -> impl FnOnce(io::Error) -> TestbedError {
    let folder = path.to_owned();
    move |source| TestbedError::Folder { folder, source }
}
