//! The real csi-addons: its controllers, and its sidecar beside each part of a driver. They run as in pods as far as they can tell:
//! each with a ServiceAccount's token where pods have it, and each sidecar with a Pod by which the controllers find it. That takes
//! root, for a mount namespace.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use super::GROUP;
use crate::array::Array;
use crate::binaries::{self, Binaries, BinariesError, Program};
use crate::nodes::SimulatedNode;
use crate::process::{Launch, Process, ProcessError};
use crate::{Testbed, TestbedError, ports};

/// Where the driver runs. Our sidecar believes csi-addons of its own namespace only, and runs in this one.
const NAMESPACE: &str = "default";
/// By this ServiceAccount all of csi-addons runs, and may do everything.
const ACCOUNT: &str = "csi-addons";
/// What it brings to the driver with each fence. It fences with nothing for a class that names no Secret.
const SECRET: &str = "csi-addons-fence";
/// Arguments of `unshare`, for a program whose mounts nobody else sees.
const PRIVATE: [&str; 4] = ["--mount", "--propagation", "private", "--"];
/// Runs `"$@"` with the folder `$0` where a pod has its ServiceAccount's token: csi-addons' sidecar looks nowhere else.
const IN_POD: &str = r#"
mount -t tmpfs pod /var/run && mkdir -p /var/run/secrets/kubernetes.io || exit 1
ln -s "$0" /var/run/secrets/kubernetes.io/serviceaccount && exec "$@"
"#;

/// Why csi-addons does not run.
#[derive(Debug, thiserror::Error)]
pub enum RealCsiAddonsError {
    /// No mount namespace can be had.
    #[error("csi-addons needs a mount namespace of its own: root, and no container without rights ({0})")]
    Namespace(String),
    /// Its programs.
    #[error(transparent)]
    Binaries(#[from] BinariesError),
    /// The control plane.
    #[error(transparent)]
    Testbed(#[from] TestbedError),
    /// A process.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The API.
    #[error("the API server refused a request: {0}")]
    Api(#[from] kube::Error),
    /// An object of ours.
    #[error("an object is malformed: {0}")]
    Malformed(#[from] serde_json::Error),
    /// This machine.
    #[error("cannot use a file, a socket or a port of this machine: {0}")]
    Machine(#[from] io::Error),
}

/// csi-addons for one driver; it ends when this is dropped.
pub struct RealCsiAddons {
    controllers: Option<Process>,
    sidecars: Vec<Process>,
    programs: Binaries,
    client: Client,
    /// What a pod has of its ServiceAccount.
    account: PathBuf,
    /// Of the API server.
    port: u16,
    logs: PathBuf,
}

/// Finds or builds its programs, and finds the folder of its module, where its definitions are; both only where it can run. Blocks
/// for minutes where it builds.
///
/// # Errors
///
/// When it cannot run here, or a part cannot be had.
pub fn ensure() -> Result<(Binaries, PathBuf), RealCsiAddonsError> {
    let tried = Command::new("unshare").args(PRIVATE).arg("true").output().map_err(|error| error.to_string());
    let refused = match tried {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Some(error),
    };
    match refused {
        Some(why) => Err(RealCsiAddonsError::Namespace(why)),
        None => {
            let folder = binaries::upstream_folder(Program::CsiAddonsManager)?;
            Ok((Binaries::ensure_all(None, &Program::CSI_ADDONS)?, folder))
        }
    }
}

impl RealCsiAddons {
    /// Installs csi-addons' definitions and a class for the array's driver, and starts its controllers. Blocks for minutes where
    /// its programs must be built.
    ///
    /// # Errors
    ///
    /// When a part cannot be had or started.
    pub async fn start(
        testbed: &Testbed,
        client: Client,
        array: &Array,
        class: &str,
    ) -> Result<Self, RealCsiAddonsError> {
        let ready = tokio::task::spawn_blocking(ensure);
        let (programs, folder) = ready.await.map_err(io::Error::other)??;
        testbed.apply_dir(&folder.join("config/crd/bases")).await?;
        let objects = objects(array.driver_name(), class).into_iter().map(serde_json::from_value);
        testbed.apply(objects.collect::<Result<Vec<DynamicObject>, _>>()?).await?;
        let account = testbed.folder().join("csi-addons");
        write_account(&account, &testbed.authority_file(), &token(&client).await?)?;
        let port = testbed.server_port();
        let logs = testbed.folder().to_owned();
        let mut csi_addons = Self { controllers: None, sidecars: Vec::new(), programs, client, account, port, logs };
        csi_addons.start_controllers()?;
        Ok(csi_addons)
    }

    /// Starts the sidecar beside the driver's controller, which is taken to run on this node.
    ///
    /// # Errors
    ///
    /// When a part cannot be started.
    pub async fn beside_controller(&mut self, array: &Array, node: &str) -> Result<(), RealCsiAddonsError> {
        let socket = array.serve_csi_addons(None)?;
        self.sidecar("csi-addons-controller", &socket, node).await
    }

    /// Starts the sidecar beside the driver's plugin on a node.
    ///
    /// # Errors
    ///
    /// When a part cannot be started.
    pub async fn beside_plugin(&mut self, array: &Array, node: &SimulatedNode) -> Result<(), RealCsiAddonsError> {
        let socket = array.serve_csi_addons(Some(node.csi_node_id()))?;
        self.sidecar(&format!("csi-addons-{}", node.name()), &socket, node.name()).await
    }

    /// The controllers end: when this returns they call nobody any more.
    pub async fn kill_controllers(&mut self) {
        if let Some(controllers) = self.controllers.take() {
            controllers.kill().await;
        }
    }

    /// The controllers start.
    ///
    /// # Errors
    ///
    /// When they cannot be started.
    pub fn start_controllers(&mut self) -> Result<(), RealCsiAddonsError> {
        let quiet = ["--health-probe-bind-address=0".into()];
        let launch = self.launch("csi-addons-controllers", Program::CsiAddonsManager, &quiet);
        self.controllers = Some(Process::spawn(launch)?);
        Ok(())
    }

    /// The end of what each of its programs has printed.
    pub fn logs(&self) -> String {
        let tails = self.controllers.iter().chain(&self.sidecars).map(Process::log_tail);
        tails.collect::<Vec<_>>().join("\n")
    }

    async fn sidecar(&mut self, pod: &str, socket: &Path, node: &str) -> Result<(), RealCsiAddonsError> {
        let uid = self.pod(pod).await?;
        let port = ports::free()?;
        let args = [
            format!("--csi-addons-address={}", socket.display()),
            format!("--node-id={node}"),
            format!("--controller-port={port}"),
            format!("--pod={pod}"),
            format!("--pod-uid={uid}"),
            format!("--namespace={NAMESPACE}"),
            format!("--leader-election-namespace={NAMESPACE}"),
        ];
        let launch = self.launch(pod, Program::CsiAddonsSidecar, &args.map(OsString::from));
        self.sidecars.push(Process::spawn(launch)?);
        Ok(())
    }

    /// Makes the Pod of a sidecar, with the address where it listens, and returns its uid. No scheduler and no kubelet knows it.
    async fn pod(&self, name: &str) -> Result<String, RealCsiAddonsError> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), NAMESPACE);
        let owner = accounts.get(ACCOUNT).await?.uid();
        // csi-addons wants an owner, to name its object after.
        let owner = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "name": ACCOUNT, "uid": owner });
        let pod: Pod = serde_json::from_value(json!({
            "metadata": { "name": name, "namespace": NAMESPACE, "ownerReferences": [owner] },
            "spec": {
                "serviceAccountName": ACCOUNT, "automountServiceAccountToken": false, "schedulerName": "nobody",
                "containers": [{ "name": "csi-addons", "image": "csi-addons" }],
            },
        }))?;
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        let uid = pods.create(&PostParams::default(), &pod).await?.uid().unwrap_or_default();
        let status = json!({ "status": { "podIP": "127.0.0.1", "podIPs": [{ "ip": "127.0.0.1" }] } });
        pods.patch_status(name, &PatchParams::default(), &Patch::Merge(&status)).await?;
        Ok(uid)
    }

    fn launch(&self, name: &str, program: Program, args: &[OsString]) -> Launch {
        let unshare = PRIVATE.into_iter().chain(["sh", "-c", IN_POD]).map(OsString::from).collect::<Vec<_>>();
        let inside = [self.account.clone().into_os_string(), self.programs.path(program).into_os_string()];
        let env = [
            ("KUBERNETES_SERVICE_HOST", "127.0.0.1".to_owned()),
            ("KUBERNETES_SERVICE_PORT", self.port.to_string()),
            // Before the token of a pod it would take the cluster of whoever runs this.
            ("KUBECONFIG", String::new()),
        ];
        Launch {
            name: name.to_owned(),
            program: "unshare".into(),
            args: [&unshare[..], &inside, args].concat(),
            env: env.map(|(name, value)| (name.to_owned(), value)).into(),
            log: self.logs.join(format!("{name}.log")),
        }
    }
}

async fn token(client: &Client) -> Result<String, RealCsiAddonsError> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), NAMESPACE);
    let answer = accounts.create_token_request(ACCOUNT, &PostParams::default(), &TokenRequest::default()).await?;
    let status = answer.status.ok_or_else(|| io::Error::other("the API server gives no token"))?;
    Ok(status.token)
}

/// What a kubelet puts into a pod.
fn write_account(folder: &Path, authority: &Path, token: &str) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    std::fs::copy(authority, folder.join("ca.crt"))?;
    std::fs::write(folder.join("namespace"), NAMESPACE)?;
    std::fs::write(folder.join("token"), token)
}

fn objects(driver: &str, class: &str) -> [Value; 4] {
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": ACCOUNT, "namespace": NAMESPACE },
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": ACCOUNT },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin" },
        "subjects": [{ "kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE }],
    });
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": SECRET, "namespace": NAMESPACE },
        "stringData": { "key": "of the array" },
    });
    let class = json!({
        "apiVersion": format!("{GROUP}/v1alpha1"), "kind": "NetworkFenceClass", "metadata": { "name": class },
        "spec": {
            "provisioner": driver,
            "parameters": {
                format!("{GROUP}/networkfence-secret-name"): SECRET,
                format!("{GROUP}/networkfence-secret-namespace"): NAMESPACE,
            },
        },
    });
    [account, binding, secret, class]
}
