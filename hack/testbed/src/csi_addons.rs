//! csi-addons as far as it fences: definitions with its group, version and fields, and a controller with its habits. An object
//! is worked on when its generation is new; it gets a finalizer first, and with it fields that nobody wrote; its result tells how the last operation ended and not which; its deletion lifts
//! nothing; what one object lifts is lifted for all; after a restart every object is worked on again. The array does what it
//! is told, so a node that is shut out writes nothing. [`real`] has csi-addons itself.

pub mod protocol;
pub mod real;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bulkhead::api::network_fence::{FenceState, NetworkFence, NetworkFenceClass, NetworkFenceStatus};
use kube::api::{DynamicObject, ListParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::task::AbortHandle;

use crate::Testbed;
use crate::array::Array;
use crate::error::TestbedError;
use crate::lock::lock;

const GROUP: &str = "csiaddons.openshift.io";
const FINALIZER: &str = "csiaddons.openshift.io/network-fence";
const PERIOD: Duration = Duration::from_millis(50);

/// What was done, of which object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The object.
    pub name: String,
    /// Shut out, or let in.
    pub fenced: bool,
    /// Whom.
    pub cidrs: Vec<String>,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Every operation fails.
    pub fails: bool,
    /// Nothing is worked on.
    pub hangs: bool,
}

#[derive(Default)]
struct State {
    operations: Vec<Operation>,
    faults: Faults,
    /// Generation of an object that was worked on, by uid.
    seen: BTreeMap<String, i64>,
}

/// The controller for the classes of one array's driver. Ends when it is dropped.
pub struct CsiAddons {
    state: Arc<Mutex<State>>,
    task: AbortHandle,
}

impl Drop for CsiAddons {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl CsiAddons {
    /// Installs the definitions and a class for the array's driver, and starts the controller.
    ///
    /// # Errors
    ///
    /// When the API server refuses something.
    pub async fn start(
        testbed: &Testbed,
        client: Client,
        array: Arc<Array>,
        class: &str,
    ) -> Result<Self, TestbedError> {
        let class = json!({
            "apiVersion": format!("{GROUP}/v1alpha1"), "kind": "NetworkFenceClass",
            "metadata": { "name": class },
            "spec": { "provisioner": array.driver_name() },
        });
        testbed
            .apply(definitions().into_iter().chain([class]).filter_map(|it| serde_json::from_value(it).ok()).collect())
            .await?;
        let state = Arc::new(Mutex::new(State::default()));
        let controller = Controller { client, array, state: state.clone() };
        let task = tokio::spawn(async move { controller.run().await }).abort_handle();
        Ok(Self { state, task })
    }

    /// What was done, the oldest first.
    pub fn operations(&self) -> Vec<Operation> {
        lock(&self.state).operations.clone()
    }

    /// From now on this goes wrong.
    pub fn set_faults(&self, faults: Faults) {
        lock(&self.state).faults = faults;
    }

    /// It starts again: every object that is there is worked on once more.
    pub fn restart(&self) {
        lock(&self.state).seen.clear();
    }
}

struct Controller {
    client: Client,
    array: Arc<Array>,
    state: Arc<Mutex<State>>,
}

impl Controller {
    async fn run(&self) {
        loop {
            if let Err(error) = self.pass().await {
                tracing::debug!(%error, "csi-addons looks again");
            }
            tokio::time::sleep(PERIOD).await;
        }
    }

    async fn pass(&self) -> kube::Result<()> {
        let classes: Api<NetworkFenceClass> = Api::all(self.client.clone());
        let classes = classes.list(&ListParams::default()).await?;
        let ours = |name: &str| {
            let mut ours = classes.items.iter().filter(|class| class.spec.provisioner == self.array.driver_name());
            ours.any(|class| class.name_any() == name)
        };
        let fences: Api<NetworkFence> = Api::all(self.client.clone());
        for fence in fences.list(&ListParams::default()).await? {
            if fence.spec.network_fence_class_name.as_deref().is_some_and(ours) {
                self.reconcile(&fences, fence).await?;
            }
        }
        Ok(())
    }

    async fn reconcile(&self, api: &Api<NetworkFence>, mut fence: NetworkFence) -> kube::Result<()> {
        let faults = lock(&self.state).faults;
        let name = fence.name_any();
        let has_finalizer = fence.finalizers().iter().any(|it| it == FINALIZER);
        if fence.metadata.deletion_timestamp.is_some() {
            if has_finalizer {
                fence.finalizers_mut().retain(|it| it != FINALIZER);
                api.replace(&name, &PostParams::default(), &fence).await?;
            }
            return Ok(());
        }
        let (uid, generation) = (fence.uid().unwrap_or_default(), fence.metadata.generation.unwrap_or_default());
        if faults.hangs || lock(&self.state).seen.get(&uid) == Some(&generation) {
            return Ok(());
        }
        if !has_finalizer {
            fence.finalizers_mut().push(FINALIZER.to_owned());
            // It writes the whole object, with fields that whoever made it left out: a change of the spec, so that it is worked on
            // once more.
            fence.spec.others.entry("driver".to_owned()).or_insert_with(|| json!(""));
            fence.spec.others.entry("secret".to_owned()).or_insert_with(|| json!({}));
            fence = api.replace(&name, &PostParams::default(), &fence).await?;
        }
        let fenced = fence.spec.fence_state == FenceState::Fenced;
        let done = if faults.fails {
            Err("the storage answers with an error".to_owned())
        } else {
            self.array.fence_network(&fence.spec.cidrs, fenced)
        };
        let cidrs = fence.spec.cidrs.clone();
        if done.is_ok() {
            lock(&self.state).operations.push(Operation { name: name.clone(), fenced, cidrs });
        }
        let (result, message) = match done {
            Ok(()) if fenced => ("Succeeded", "fencing operation successful".to_owned()),
            Ok(()) => ("Succeeded", "unfencing operation successful".to_owned()),
            Err(message) => ("Failed", message),
        };
        fence.status = Some(NetworkFenceStatus { result: Some(result.to_owned()), message: Some(message) });
        api.replace_status(&name, &PostParams::default(), &fence).await?;
        if result == "Succeeded" {
            lock(&self.state).seen.insert(uid, generation);
        }
        Ok(())
    }
}

/// The definitions, with no more than what is needed of them.
pub fn definitions() -> Vec<Value> {
    let text = || json!({ "type": "string" });
    let texts = || json!({ "type": "array", "items": text() });
    let fence = json!({
        "spec": {
            "type": "object",
            "required": ["cidrs", "fenceState"],
            "properties": {
                "networkFenceClassName": text(),
                "driver": text(),
                "secret": { "type": "object", "properties": { "name": text(), "namespace": text() } },
                "fenceState": { "type": "string", "enum": ["Fenced", "Unfenced"], "default": "Fenced" },
                "cidrs": texts(),
            },
        },
        "status": { "type": "object", "properties": { "result": text(), "message": text() } },
    });
    let class = json!({
        "spec": {
            "type": "object",
            "required": ["provisioner"],
            "properties": {
                "provisioner": text(),
                "parameters": { "type": "object", "additionalProperties": text() },
            },
        },
    });
    let client = json!({ "type": "object", "properties": { "id": text(), "cidrs": texts() } });
    let clients = json!({
        "type": "object",
        "properties": {
            "networkFenceClassName": text(),
            "ClientDetails": { "type": "array", "items": client },
        },
    });
    let node = json!({
        "spec": {
            "type": "object",
            "properties": {
                "driver": {
                    "type": "object",
                    "properties": { "name": text(), "endpoint": text(), "nodeID": text() },
                },
            },
        },
        "status": {
            "type": "object",
            "properties": { "networkFenceClientStatus": { "type": "array", "items": clients } },
        },
    });
    vec![
        definition("NetworkFence", "networkfences", "Cluster", &fence),
        definition("NetworkFenceClass", "networkfenceclasses", "Cluster", &class),
        definition("CSIAddonsNode", "csiaddonsnodes", "Namespaced", &node),
    ]
}

fn definition(kind: &str, plural: &str, scope: &str, properties: &Value) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.{GROUP}") },
        "spec": {
            "group": GROUP,
            "scope": scope,
            "names": { "kind": kind, "plural": plural, "singular": kind.to_lowercase() },
            "versions": [{
                "name": "v1alpha1", "served": true, "storage": true,
                "subresources": if properties.get("status").is_some() { json!({ "status": {} }) } else { json!({}) },
                "schema": { "openAPIV3Schema": { "type": "object", "properties": properties } },
            }],
        },
    })
}

/// What csi-addons says of a driver's plugin on a node: by which addresses the storage behind a class sees it.
///
/// # Errors
///
/// When the API server refuses it.
pub async fn tell_clients(
    client: Client,
    driver: &str,
    node: &str,
    class: &str,
    cidrs: &[&str],
) -> kube::Result<DynamicObject> {
    let resource = kube::api::ApiResource::erase::<bulkhead::api::network_fence::CsiAddonsNode>(&());
    let api: Api<DynamicObject> = Api::namespaced_with(client, "default", &resource);
    let name = format!("{node}-{driver}");
    let object = json!({
        "apiVersion": format!("{GROUP}/v1alpha1"), "kind": "CSIAddonsNode",
        "metadata": { "name": name },
        "spec": { "driver": { "name": driver, "endpoint": "", "nodeID": node } },
    });
    let params = kube::api::PatchParams::apply("csi-addons").force();
    api.patch(&name, &params, &kube::api::Patch::Apply(&object)).await?;
    let status = json!({ "status": { "networkFenceClientStatus": [
        { "networkFenceClassName": class, "ClientDetails": [{ "id": node, "cidrs": cidrs }] },
    ] } });
    api.patch_status(&name, &kube::api::PatchParams::default(), &kube::api::Patch::Merge(&status)).await
}
