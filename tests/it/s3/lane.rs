//! What one test has for itself: a namespace and nodes of its name, and volumes whose names begin with it.

use std::collections::{BTreeMap, BTreeSet};

use bulkhead::api::mountpoint_s3_pod_attachment::MountpointS3PodAttachment;
use bulkhead::api::s3;
use bulkhead_testbed::cluster::{ClusterError, merge};
use bulkhead_testbed::mount_nodes::MAX_PODS;
use k8s_openapi::api::core::v1::{Namespace, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use libtest_mimic::Failed;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::world::{SOON, World};

/// A driver that is not ours.
pub const FOREIGN: &str = "csi.example.com";

/// Who shares what of a volume: Mountpoint Pod → names of its workloads.
pub type Groups = BTreeMap<String, BTreeSet<String>>;

/// One test's part of the cluster.
pub struct Lane<'a> {
    pub world: &'a World,
    pub name: String,
}

impl<'a> Lane<'a> {
    /// With so many nodes, `node(1)` and so on.
    pub async fn new(world: &'a World, name: &str, nodes: usize) -> Result<Self, Failed> {
        let lane = Self { world, name: name.to_owned() };
        lane.create::<Namespace>(None, json!({ "metadata": { "name": name } })).await?;
        for number in 1..=nodes {
            world.nodes.add(&lane.node(number), MAX_PODS).await?;
        }
        Ok(lane)
    }

    pub fn client(&self) -> Client {
        self.world.admin.clone()
    }

    pub fn node(&self, number: usize) -> String {
        format!("{}-{number}", self.name)
    }

    /// The PersistentVolume behind a claim of this lane.
    pub fn volume_name(&self, claim: &str) -> String {
        format!("{}-{claim}", self.name)
    }

    /// Creates an object; what is said only is sent, as by kubectl.
    pub async fn create<K>(&self, namespace: Option<&str>, mut object: Value) -> Result<K, Failed>
    where
        K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + Serialize,
    {
        object["apiVersion"] = K::api_version(&()).into();
        object["kind"] = K::kind(&()).into();
        let request = kube::core::Request::new(K::url_path(&(), namespace));
        Ok(self.client().request(request.create(&PostParams::default(), serde_json::to_vec(&object)?)?).await?)
    }

    /// A volume of our driver that waits for the claim of this name. `spec` is merged into it.
    pub async fn volume(&self, claim: &str, spec: Value) -> Result<PersistentVolume, Failed> {
        let name = self.volume_name(claim);
        let mut whole = json!({
            "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteMany"], "storageClassName": "",
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": { "kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": self.name, "name": claim },
            "csi": { "driver": s3::DRIVER, "volumeHandle": format!("handle-{name}"),
                "volumeAttributes": { "bucketName": "bucket" } },
        });
        merge(&mut whole, &spec);
        self.create(None, json!({ "metadata": { "name": name }, "spec": whole })).await
    }

    /// A claim for the volume of its name.
    pub async fn claim(&self, claim: &str) -> Result<PersistentVolumeClaim, Failed> {
        let spec = json!({
            "accessModes": ["ReadWriteMany"], "volumeName": self.volume_name(claim), "storageClassName": "",
            "resources": { "requests": { "storage": "1Gi" } },
        });
        self.create(Some(&self.name), json!({ "metadata": { "name": claim }, "spec": spec })).await
    }

    /// Both, bound to each other.
    pub async fn bound(&self, claim: &str, spec: Value) -> Result<(), Failed> {
        self.volume(claim, spec).await?;
        self.claim(claim).await?;
        self.binds(claim).await
    }

    pub async fn binds(&self, claim: &str) -> Result<(), Failed> {
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client(), &self.name);
        let is_bound = |claim: &PersistentVolumeClaim| {
            claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound")
        };
        self.wait_for(&claims, claim, "bound", |claim| claim.is_some_and(is_bound)).await?;
        Ok(())
    }

    /// A pod with these claims on this node. `spec` is merged into it.
    pub async fn pod(&self, name: &str, node: usize, claims: &[&str], spec: Value) -> Result<Pod, Failed> {
        let mut whole = json!({ "nodeName": self.node(node) });
        merge(&mut whole, &spec);
        self.unbound_pod(name, claims, whole).await
    }

    /// A pod that no scheduler looks at.
    pub async fn unbound_pod(&self, name: &str, claims: &[&str], spec: Value) -> Result<Pod, Failed> {
        let volume = |claim: &&str| json!({ "name": claim, "persistentVolumeClaim": { "claimName": claim } });
        let mut whole = json!({
            "schedulerName": "nobody", "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 1,
            "containers": [{ "name": "main", "image": "app" }],
            "volumes": claims.iter().map(volume).collect::<Vec<_>>(),
        });
        merge(&mut whole, &spec);
        let pod = json!({ "metadata": { "name": name }, "spec": whole });
        // The ServiceAccount of a new namespace comes a moment later.
        let attempt = async || {
            let created = self.create::<Pod>(Some(&self.name), pod.clone()).await;
            Ok::<_, ClusterError>(created.map_err(|error| error.message().unwrap_or_default().to_owned()))
        };
        Ok(self.world.cluster.wait(&format!("pod {name} is taken"), SOON, attempt).await?)
    }

    /// Binds a pod as a scheduler does.
    pub async fn schedule(&self, pod: &str, node: usize) -> Result<(), Failed> {
        let target = json!({ "apiVersion": "v1", "kind": "Node", "name": self.node(node) });
        let binding = json!({ "apiVersion": "v1", "kind": "Binding", "metadata": { "name": pod }, "target": target });
        self.pods().create_subresource::<_, Value>("binding", pod, &PostParams::default(), &binding).await?;
        Ok(())
    }

    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client(), &self.name)
    }

    pub fn mountpoint_pods(&self) -> Api<Pod> {
        Api::namespaced(self.client(), self.world.namespace)
    }

    pub fn attachments(&self) -> Api<MountpointS3PodAttachment> {
        Api::all(self.client())
    }

    /// All attachments of the volume behind a claim.
    pub async fn attachments_of(&self, claim: &str) -> Result<Vec<MountpointS3PodAttachment>, kube::Error> {
        let volume = format!("spec.persistentVolumeName={}", self.volume_name(claim));
        Ok(self.attachments().list(&ListParams::default().fields(&volume)).await?.items)
    }

    /// All Mountpoint Pods of the volume behind a claim.
    pub async fn mountpoint_pods_of(&self, claim: &str) -> Result<Vec<Pod>, kube::Error> {
        let volume = self.volume_name(claim);
        let mut pods = self.mountpoint_pods().list(&ListParams::default()).await?.items;
        pods.retain(|pod| pod.annotations().get(s3::VOLUME_NAME) == Some(&volume));
        Ok(pods)
    }

    /// The one attachment of a volume. One that nobody uses any more is emptied first, and goes a moment later.
    pub async fn attachment(&self, claim: &str) -> Result<MountpointS3PodAttachment, Failed> {
        let look = async || {
            let mut all = self.attachments_of(claim).await?;
            Ok(match all.pop() {
                Some(one) if all.is_empty() => Ok(one),
                one => Err(format!("{one:?} {all:?}")),
            })
        };
        Ok(self.world.cluster.wait(&format!("{}: {claim} has one attachment", self.name), SOON, look).await?)
    }

    /// Waits until exactly these workloads share the volume in these groups: each group one Mountpoint Pod that runs, on
    /// which they are mounted, and all of them run. Returns the Mountpoint Pods in the order of the groups.
    pub async fn shared(&self, claim: &str, groups: &[&[&str]]) -> Result<Vec<String>, Failed> {
        let wanted: BTreeSet<BTreeSet<String>> =
            groups.iter().map(|group| group.iter().map(ToString::to_string).collect()).collect();
        let look = async || {
            let (found, trouble) = self.groups(claim).await?;
            let sets: BTreeSet<_> = found.values().cloned().collect();
            let is_it = trouble.is_empty() && sets == wanted && found.len() == groups.len();
            Ok(if is_it { Ok(found) } else { Err(format!("{found:?} {trouble:?}")) })
        };
        let what = format!("{}: {claim} is shared as {groups:?}", self.name);
        let found = self.world.cluster.wait(&what, SOON, look).await?;
        let of = |group: &&[&str]| {
            let first = group.first().copied().unwrap_or_default();
            found.iter().find(|(_, workloads)| workloads.contains(first)).map(|(pod, _)| pod.clone())
        };
        Ok(groups.iter().filter_map(of).collect())
    }

    /// Who shares what, as the attachments say; and what is not as it should be.
    async fn groups(&self, claim: &str) -> Result<(Groups, Vec<String>), ClusterError> {
        let pods = self.pods().list(&ListParams::default()).await?.items;
        let mountpoint_pods = self.mountpoint_pods().list(&ListParams::default()).await?.items;
        let (mut groups, mut trouble) = (Groups::new(), Vec::new());
        for attachment in self.attachments_of(claim).await? {
            for (mountpoint_pod, workloads) in &attachment.spec.mountpoint_s3_pod_attachments {
                let pod = mountpoint_pods.iter().find(|pod| pod.name_any() == *mountpoint_pod);
                // One that is being deleted runs on until its workloads have left it.
                let stays = |pod: &Pod| phase(pod) == "Running" && pod.metadata.deletion_timestamp.is_none();
                if !pod.is_some_and(stays) {
                    trouble.push(format!("{mountpoint_pod} is {:?}", pod.map(phase)));
                }
                let group = groups.entry(mountpoint_pod.clone()).or_default();
                for workload in workloads {
                    let uid = Some(&workload.workload_pod_uid);
                    let Some(pod) = pods.iter().find(|pod| pod.uid().as_ref() == uid) else {
                        trouble.push(format!("{} is attached and not there", workload.workload_pod_uid));
                        continue;
                    };
                    let mounts = self.world.nodes.mounts_of(&workload.workload_pod_uid);
                    if phase(pod) != "Running" || mounts.get(&self.volume_name(claim)) != Some(mountpoint_pod) {
                        trouble.push(format!("{} is {}, mounted: {mounts:?}", pod.name_any(), phase(pod)));
                    }
                    if !group.insert(pod.name_any()) {
                        trouble.push(format!("{} is attached twice", pod.name_any()));
                    }
                }
            }
        }
        Ok((groups, trouble))
    }

    /// Waits until nothing is left of a volume's mounts.
    pub async fn clean(&self, claim: &str) -> Result<(), Failed> {
        let look = async || {
            let attachments = self.attachments_of(claim).await?;
            let pods = self.mountpoint_pods_of(claim).await?;
            let left = || {
                let pods: Vec<_> = pods.iter().map(|pod| (pod.name_any(), phase(pod), pod.annotations())).collect();
                let attachments: Vec<_> = attachments.iter().map(|it| (it.name_any(), &it.spec)).collect();
                format!("{attachments:?} {pods:?}")
            };
            Ok(if attachments.is_empty() && pods.is_empty() { Ok(()) } else { Err(left()) })
        };
        Ok(self.world.cluster.wait(&format!("{}: nothing is left of {claim}", self.name), SOON, look).await?)
    }

    /// Deletes pods, as a person does.
    pub async fn delete(&self, pods: &[&str]) -> Result<(), Failed> {
        for pod in pods {
            self.pods().delete(pod, &DeleteParams::default()).await?;
        }
        Ok(())
    }

    /// Says something of a pod's status that its kubelet would say.
    pub async fn status(&self, pods: &Api<Pod>, name: &str, status: Value) -> Result<(), Failed> {
        let patch = Patch::Strategic(json!({ "status": status }));
        pods.patch_status(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Waits until an object is as `holds` wants it.
    pub async fn wait_for<K>(
        &self,
        api: &Api<K>,
        name: &str,
        what: &str,
        holds: impl Fn(Option<&K>) -> bool,
    ) -> Result<Option<K>, Failed>
    where
        K: Resource + Clone + std::fmt::Debug + DeserializeOwned + Serialize,
    {
        let look = async || {
            let found = api.get_opt(name).await?;
            Ok(if holds(found.as_ref()) { Ok(found) } else { Err(serde_json::to_string(&found)?) })
        };
        Ok(self.world.cluster.wait(&format!("{}: {name}: {what}", self.name), SOON, look).await?)
    }

    /// Waits until our controller told this of a workload; returns the words.
    pub async fn told(&self, pod: &str, reason: &str) -> Result<String, Failed> {
        let events: Api<Event> = Api::namespaced(self.client(), &self.name);
        let look = async || {
            let all = events.list(&ListParams::default()).await?.items;
            let about = |event: &&Event| {
                event.regarding.as_ref().and_then(|it| it.name.as_deref()) == Some(pod)
                    && event.reporting_controller.as_deref() == Some("bulkhead-controller")
            };
            let told = all
                .iter()
                .filter(about)
                .map(|it| (it.reason.clone().unwrap_or_default(), it.note.clone().unwrap_or_default()));
            let told: Vec<_> = told.collect();
            let found = told.iter().find(|(of, _)| of == reason).map(|(_, note)| note.clone());
            Ok(found.ok_or_else(|| format!("{told:?}")))
        };
        Ok(self.world.cluster.wait(&format!("{}: Event {reason} of {pod}", self.name), SOON, look).await?)
    }

    /// The controller has seen everything that was done before: it serves a workload that comes now, on a node of this lane.
    pub async fn barrier(&self, name: &str, node: usize) -> Result<(), Failed> {
        self.bound(name, json!({})).await?;
        self.pod(name, node, &[name], json!({})).await?;
        self.shared(name, &[&[name]]).await?;
        Ok(())
    }
}

/// Phase of a pod.
pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// Whether a Mountpoint Pod was told that nobody needs it.
pub fn needs_unmount(pod: &Pod) -> bool {
    pod.annotations().get(s3::NEEDS_UNMOUNT).is_some_and(|value| value == "true")
}

/// Takes an object away whatever holds it.
pub async fn take_away<K>(api: &Api<K>, name: &str) -> Result<(), Failed>
where
    K: Resource + Clone + std::fmt::Debug + DeserializeOwned,
{
    let unguarded = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    api.patch(name, &PatchParams::default(), &unguarded).await?;
    match api.delete(name, &DeleteParams::default().grace_period(0)).await {
        Err(kube::Error::Api(gone)) if gone.code == 404 => return Ok(()),
        deleted => drop(deleted?),
    }
    // Kubernetes' own controllers may have guarded it again.
    match api.patch(name, &PatchParams::default(), &unguarded).await {
        Err(kube::Error::Api(gone)) if gone.code == 404 => Ok(()),
        patched => Ok(patched.map(drop)?),
    }
}

/// The same with what may be gone already.
pub async fn take_away_if_there<K>(api: &Api<K>, name: &str) -> Result<(), Failed>
where
    K: Resource + Clone + std::fmt::Debug + DeserializeOwned,
{
    if api.get_metadata_opt(name).await?.is_some() { take_away(api, name).await } else { Ok(()) }
}
