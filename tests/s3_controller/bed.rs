//! One control plane, one S3, one driver, and the real provisioner under the rights that the manifests give it.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use bulkhead::csi::v1::VolumeCapability;
use bulkhead::csi::v1::volume_capability::access_mode::Mode;
use bulkhead::csi::v1::volume_capability::{AccessMode, AccessType, MountVolume};
use bulkhead::s3::controller_service::{self, Endpoint, NonEmptyBucket, Settings};
use bulkhead::s3::keys::Keys;
use bulkhead_testbed::binaries::{Binaries, Program};
use bulkhead_testbed::process::{Launch, Process, log_tail};
use bulkhead_testbed::s3_server::{KeyPair, S3Server, Usable};
use bulkhead_testbed::{Identity, Testbed, TestbedOptions};
use k8s_openapi::api::core::v1::{Event, PersistentVolume, PersistentVolumeClaim, Secret};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use crate::PROGRAMS;

/// How long anything may take; ends as soon as it is as it shall be.
const SOON: Duration = Duration::from_secs(60);
/// Where the Secret is that the manifests let a StorageClass name.
const NAMESPACE: &str = "kube-system";
const SECRET: &str = "s3-secret";
/// The keys of the driver and of the StorageClass with its own.
pub const DRIVER_KEY: &str = "DRIVERKEY";
pub const CLASS_KEY: &str = "CLASSKEY";
pub const CLASS_SECRET: &str = "class-secret-0123456789";
/// StorageClasses: without and with a Secret.
pub const CLASS: &str = "s3";
pub const CLASS_WITH_SECRET: &str = "s3-secret";

pub struct Bed {
    pub runtime: Runtime,
    pub s3: S3Server,
    pub testbed: Testbed,
    pub client: Client,
    folder: TempDir,
    driver: Mutex<Option<Driver>>,
    provisioner: Mutex<Option<Process>>,
}

/// The service with a runtime of its own: its end is that of a process.
struct Driver {
    runtime: Runtime,
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.kill_driver();
    }
}

impl Bed {
    pub fn new() -> Self {
        let runtime = Runtime::new().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let buckets = folder.path().join("buckets");
        std::fs::create_dir(&buckets).unwrap();
        let s3 = S3Server::start(&buckets, "127.0.0.1:0".parse().unwrap()).unwrap();
        let options = TestbedOptions { scheduler: false, ..TestbedOptions::default() };
        let testbed = runtime.block_on(Testbed::start(options)).unwrap();
        let client = runtime.block_on(testbed.client(&Identity::Admin)).unwrap();
        let (driver, provisioner) = (Mutex::new(None), Mutex::new(None));
        let bed = Self { runtime, s3, testbed, client, folder, driver, provisioner };
        bed.set_up();
        bed
    }

    fn set_up(&self) {
        let rights = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/s3/controller_rbac.yaml");
        self.runtime.block_on(self.testbed.kubectl(&["apply", "-f", rights.to_str().unwrap()])).unwrap();
        let class = |name: &str, parameters: Value| {
            json!({
                "metadata": { "name": name },
                "provisioner": "s3.csi.scality.com",
                "parameters": parameters,
                "mountOptions": ["allow-delete", "region=us-east-1"],
            })
        };
        let secret = json!({
            "csi.storage.k8s.io/provisioner-secret-name": SECRET,
            "csi.storage.k8s.io/provisioner-secret-namespace": NAMESPACE,
        });
        let classes: Api<StorageClass> = Api::all(self.client.clone());
        self.create(&classes, class(CLASS, json!({})));
        self.create(&classes, class(CLASS_WITH_SECRET, secret));
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), NAMESPACE);
        self.create(&secrets, json!({ "metadata": { "name": SECRET } }));
    }

    /// What one test leaves must not matter to the next.
    pub fn as_at_first(&self) {
        self.s3.keys().set(KeyPair::new(DRIVER_KEY, "secret"), Usable::only([]));
        self.s3.keys().set(KeyPair::new(CLASS_KEY, CLASS_SECRET), Usable::only([]));
        self.set_class_secret(CLASS_SECRET);
        self.start_driver(NonEmptyBucket::Keep);
        self.start_provisioner();
    }

    pub fn socket(&self) -> PathBuf {
        self.path("csi.sock")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// In the place of the one that runs.
    pub fn start_driver(&self, non_empty_bucket: NonEmptyBucket) {
        self.kill_driver();
        let settings = Settings {
            socket: self.socket(),
            endpoint: Endpoint::new(&self.s3.endpoint(), "us-east-1", None).unwrap(),
            keys: Some(Keys::new(DRIVER_KEY, "secret", None).unwrap()),
            non_empty_bucket,
        };
        let runtime = Runtime::new().unwrap();
        runtime.spawn(async move {
            controller_service::serve(settings, CancellationToken::new()).await.unwrap();
        });
        *self.driver.lock().unwrap() = Some(Driver { runtime });
        self.until("the driver serves", || std::os::unix::net::UnixStream::connect(self.socket()).ok());
    }

    /// The program itself beside the driver, once it serves at its socket, `NAME.sock`. Its log is `NAME.log`.
    pub fn program(&self, name: &str, environment: &[(&str, &str)]) -> Process {
        let socket = self.path(&format!("{name}.sock"));
        let launch = Launch {
            name: "bulkhead-s3-csi".to_owned(),
            program: env!("CARGO_BIN_EXE_bulkhead-s3-csi").into(),
            args: vec![
                "--mode=controller".into(),
                "--listen=127.0.0.1:0".into(),
                format!("--endpoint=unix://{}", socket.display()).into(),
                "--kubeconfig".into(),
                self.testbed.kubeconfig(&Identity::Admin).unwrap().into(),
            ],
            env: environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            log: self.path(&format!("{name}.log")),
        };
        let mut process = Process::spawn(launch).unwrap();
        self.until("it serves", || {
            assert!(process.exit_status().is_none(), "it ended: {}", process.log_tail());
            std::os::unix::net::UnixStream::connect(&socket).ok()
        });
        process
    }

    /// As SIGKILL does: calls under way are lost, and the socket stays.
    pub fn kill_driver(&self) {
        if let Some(driver) = self.driver.lock().unwrap().take() {
            driver.runtime.shutdown_timeout(Duration::from_secs(10));
        }
    }

    /// In the place of the one that runs; it tries again sooner than upstream's default.
    pub fn start_provisioner(&self) {
        let mut running = self.provisioner.lock().unwrap();
        drop(running.take());
        let programs = Binaries::ensure_all(None, &PROGRAMS).unwrap();
        let args = [
            format!("--csi-address={}", self.socket().display()),
            format!("--kubeconfig={}", self.kubeconfig().display()),
            "--retry-interval-start=200ms".to_owned(),
            "--retry-interval-max=1s".to_owned(),
            "--v=5".to_owned(),
        ];
        let launch = Launch {
            name: "provisioner".to_owned(),
            program: programs.path(Program::CsiProvisioner),
            args: args.into_iter().map(Into::into).collect(),
            env: Vec::new(),
            log: self.provisioner_log(),
        };
        *running = Some(Process::spawn(launch).unwrap());
    }

    /// Of the ServiceAccount of the Deployment.
    pub fn kubeconfig(&self) -> PathBuf {
        let name = "system:serviceaccount:kube-system:s3-csi-driver-controller-sa".to_owned();
        let account = Identity::User { name, groups: vec!["system:serviceaccounts".to_owned()] };
        self.testbed.kubeconfig(&account).unwrap()
    }

    pub fn provisioner_log(&self) -> PathBuf {
        self.path("provisioner.log")
    }

    pub fn set_class_secret(&self, secret: &str) {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), NAMESPACE);
        let data = json!({ "stringData": { "access_key_id": CLASS_KEY, "secret_access_key": secret } });
        self.runtime.block_on(secrets.patch(SECRET, &PatchParams::default(), &Patch::Merge(data))).unwrap();
    }

    pub fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::default_namespaced(self.client.clone())
    }

    pub fn volumes(&self) -> Api<PersistentVolume> {
        Api::all(self.client.clone())
    }

    pub fn claim(&self, name: &str, class: &str, access: &str) -> PersistentVolumeClaim {
        let spec = json!({
            "accessModes": [access],
            "storageClassName": class,
            "resources": { "requests": { "storage": "5Gi" } },
        });
        self.create(&self.claims(), json!({ "metadata": { "name": name }, "spec": spec }))
    }

    pub fn create<K>(&self, api: &Api<K>, object: Value) -> K
    where
        K: kube::Resource + Clone + Debug + DeserializeOwned + serde::Serialize,
    {
        let object = serde_json::from_value(object).unwrap();
        self.runtime.block_on(api.create(&PostParams::default(), &object)).unwrap()
    }

    /// The claim's volume, once it is bound.
    pub fn bound(&self, claim: &str) -> PersistentVolume {
        let volume = self.until(&format!("claim {claim} is bound"), || {
            let claim = self.runtime.block_on(self.claims().get(claim)).unwrap();
            let bound = claim.status?.phase? == "Bound";
            claim.spec?.volume_name.filter(|_| bound)
        });
        self.runtime.block_on(self.volumes().get(&volume)).unwrap()
    }

    pub fn delete_claim(&self, claim: &str) {
        self.runtime.block_on(self.claims().delete(claim, &DeleteParams::default())).unwrap();
    }

    pub fn gone(&self, volume: &PersistentVolume) {
        let name = volume.name_any();
        self.until(&format!("volume {name} is gone"), || {
            self.runtime.block_on(self.volumes().get_opt(&name)).unwrap().is_none().then_some(())
        });
    }

    /// The message of an Event on the object that says this.
    pub fn told(&self, uid: &str, words: &str) -> String {
        let events: Api<Event> = Api::default_namespaced(self.client.clone());
        let about = ListParams::default().fields(&format!("involvedObject.uid={uid}"));
        self.until(&format!("an Event says {words:?}"), || {
            let messages = self.runtime.block_on(events.list(&about)).unwrap().items;
            messages.into_iter().filter_map(|event| event.message).find(|message| message.contains(words))
        })
    }

    /// Polls until there is something; shows what the provisioner says, else.
    pub fn until<T>(&self, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        let started = Instant::now();
        loop {
            if let Some(found) = look() {
                return found;
            }
            let tail = || log_tail(&self.provisioner_log(), 30);
            assert!(started.elapsed() < SOON, "not within {SOON:?}: {what}\n{}\n{:?}", tail(), self.s3.requests());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// The bucket of a volume.
pub fn handle(volume: &PersistentVolume) -> String {
    volume.spec.as_ref().unwrap().csi.as_ref().unwrap().volume_handle.clone()
}

/// What every volume of ours is.
pub fn folder_for_all() -> VolumeCapability {
    VolumeCapability {
        access_mode: Some(AccessMode { mode: Mode::MultiNodeMultiWriter.into() }),
        access_type: Some(AccessType::Mount(MountVolume::default())),
    }
}
