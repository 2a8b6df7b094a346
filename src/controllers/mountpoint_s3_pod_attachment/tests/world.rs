//! One mount in memory: workloads, Mountpoint Pods and attachments, and the controller's passes over them. The API server is
//! in `api_server`, whoever else acts is in `others`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::api::mountpoint_pod::MountpointPod;
use crate::api::mountpoint_s3_pod_attachment::MountpointS3PodAttachment;
use crate::api::s3::{DRIVER, Mount};
use crate::api::slim::{PersistentVolume, Pod};
use crate::api::time::{self, Now};
use crate::controllers::testing::{at, now};

use super::super::decide::{self, Decision, Patience, Seen, Workload};
use super::super::mountpoint_pod::Settings;

/// The end of a pass.
#[derive(Clone, Debug)]
pub struct Pass {
    pub decision: Decision,
}

#[derive(Clone, Debug)]
pub struct World {
    pub mount: Mount,
    pub volume: Option<Arc<PersistentVolume>>,
    pub attachments: BTreeMap<String, MountpointS3PodAttachment>,
    pub pods: BTreeMap<String, MountpointPod>,
    pub workloads: BTreeMap<String, Pod>,
    /// On which Mountpoint Pod, by uid, a workload is mounted.
    pub mounted: BTreeMap<String, String>,
    /// Workloads whose end the controller saw.
    pub departed: BTreeSet<String>,
    pub settings: Settings,
    pub now: Now,
    /// Writes that the API server took.
    pub writes: Vec<&'static str>,
    pub version: u64,
}

pub fn volume(uid: &str) -> PersistentVolume {
    serde_json::from_value(json!({
        "metadata": { "name": "pv", "uid": uid, "creationTimestamp": at(0) },
        "spec": {
            "csi": { "driver": DRIVER, "volumeHandle": "handle", "volumeAttributes": { "bucketName": "bucket" } },
            "claimRef": { "namespace": "default", "name": "claim", "uid": "uid-claim" },
            "mountOptions": ["allow-delete", "region=x"],
        },
    }))
    .unwrap()
}

impl World {
    pub fn new() -> Self {
        Self {
            mount: Mount {
                node_name: "node".into(),
                persistent_volume_name: "pv".into(),
                volume_id: "handle".into(),
                mount_options: "allow-delete,region=x".into(),
                workload_fs_group: String::new(),
            },
            volume: Some(Arc::new(volume("uid-pv"))),
            attachments: BTreeMap::new(),
            pods: BTreeMap::new(),
            workloads: BTreeMap::new(),
            mounted: BTreeMap::new(),
            departed: BTreeSet::new(),
            settings: Settings { image: "mounter".into(), ..Settings::default() },
            now: now(),
            writes: Vec::new(),
            version: 0,
        }
    }

    /// With these workloads, which wait.
    pub fn with(workloads: &[&str]) -> Self {
        let mut world = Self::new();
        workloads.iter().for_each(|uid| world.start(uid));
        world
    }

    pub fn wait(&mut self, by: Duration) {
        self.now.wall += by;
        self.now.mono += by;
    }

    /// A workload comes.
    pub fn start(&mut self, uid: &str) {
        let pod = json!({
            "metadata": { "name": uid, "namespace": "default", "uid": uid, "creationTimestamp": self.now.wall },
            "spec": { "nodeName": "node" }, "status": { "phase": "Pending" },
        });
        self.workloads.insert(uid.to_owned(), serde_json::from_value(pod).unwrap());
    }

    pub fn phase(&mut self, uid: &str, phase: &str) {
        self.workloads.get_mut(uid).unwrap().status.phase = Some(phase.to_owned());
    }

    /// Its volumes are mounted, its containers run.
    pub fn runs(&mut self, uid: &str) {
        let now = time::to_k8s(self.now.wall);
        let pod = self.workloads.get_mut(uid).unwrap();
        pod.status.phase = Some("Running".to_owned());
        if pod.condition("PodReadyToStartContainers").is_none() {
            let begun = json!({ "type": "PodReadyToStartContainers", "status": "True", "lastTransitionTime": now });
            pod.status.conditions.push(serde_json::from_value(begun).unwrap());
        }
    }

    /// A person deletes a workload; its containers run on.
    pub fn terminate(&mut self, uid: &str) {
        let now = time::to_k8s(self.now.wall);
        if let Some(pod) = self.workloads.get_mut(uid) {
            pod.metadata.deletion_timestamp = Some(now);
        }
    }

    /// A workload is gone.
    pub fn gone(&mut self, uid: &str, seen: bool) {
        if self.workloads.remove(uid).is_some() && seen {
            self.departed.insert(uid.to_owned());
        }
        self.mounted.remove(uid);
    }

    pub fn pod(&mut self, name: &str) -> &mut MountpointPod {
        self.pods.get_mut(name).unwrap()
    }

    /// The one attachment.
    pub fn attachment(&self) -> &MountpointS3PodAttachment {
        assert_eq!(self.attachments.len(), 1, "{:?}", self.attachments);
        self.attachments.values().next().unwrap()
    }

    /// Mountpoint Pod → workloads, over all attachments.
    pub fn entries(&self) -> BTreeMap<String, Vec<String>> {
        let mut entries: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (pod, workloads) in self.attachments.values().flat_map(|it| &it.spec.mountpoint_s3_pod_attachments) {
            let uids = workloads.iter().map(|it| it.workload_pod_uid.clone());
            entries.entry(pod.clone()).or_default().extend(uids);
        }
        entries
    }

    /// The Mountpoint Pod that serves a workload.
    pub fn serves(&self, uid: &str) -> Option<String> {
        let entries = self.entries();
        entries.iter().find(|(_, uids)| uids.iter().any(|it| it == uid)).map(|(pod, _)| pod.clone())
    }

    /// What observe gives.
    pub fn seen(&self) -> Seen {
        let attachments: Vec<_> = self.attachments.values().cloned().map(Arc::new).collect();
        let named: BTreeSet<_> = attachments.iter().flat_map(|it| it.spec.workloads()).map(str::to_owned).collect();
        let workload = |(uid, pod): (&String, &Pod)| {
            let workload = Workload { pod: Arc::new(pod.clone()), wants: true };
            (uid.clone(), workload)
        };
        Seen {
            mount: self.mount.clone(),
            volume: self.volume.clone(),
            attachments,
            pods: self.pods.iter().map(|(name, pod)| (name.clone(), Arc::new(pod.clone()))).collect(),
            workloads: self.workloads.iter().map(workload).collect(),
            departed: named.intersection(&self.departed).cloned().collect(),
            hostname: Some("host".into()),
            is_quiet: false,
        }
    }

    pub fn decide(&self) -> Decision {
        decide::decide(&self.seen(), &self.settings, Patience::default(), self.now)
    }

    /// One pass that dies after so many writes.
    pub fn pass(&mut self, writes: usize) -> Pass {
        let seen = self.seen();
        self.pass_over(&seen, writes)
    }

    /// The same over a view that may be old.
    pub fn pass_over(&mut self, seen: &Seen, writes: usize) -> Pass {
        let decision = decide::decide(seen, &self.settings, Patience::default(), self.now);
        let until = self.writes.len().saturating_add(writes);
        for effect in &decision.effects {
            if self.apply(effect, until).is_err() {
                return Pass { decision };
            }
        }
        Pass { decision }
    }

    /// Passes until nothing is left to do now.
    pub fn settle(&mut self) {
        for _ in 0..20 {
            let pass = self.pass(usize::MAX);
            if pass.decision.effects.is_empty() {
                return;
            }
        }
        panic!("it does not come to rest: {:?}", self.decide());
    }

    /// Controller, kubelet and node service, until nothing happens; then the sweep, until it finds nothing.
    pub fn converge(&mut self) {
        for _ in 0..12 {
            self.settle();
            self.kubelet();
            self.settle();
            self.wait(Duration::from_secs(121));
        }
    }

    /// What must hold in the end.
    pub fn check(&self) -> Result<(), String> {
        let entries = self.entries();
        for (uid, pod) in self.workloads.iter().filter(|(_, pod)| !pod.is_finished() && !pod.is_terminating()) {
            let homes: Vec<_> =
                entries.iter().flat_map(|(pod, uids)| uids.iter().filter(|it| *it == uid).map(move |_| pod)).collect();
            let serves = homes.first().and_then(|name| self.pods.get(*name));
            let lives = serves.is_some_and(|pod| !pod.has_ended() && !pod.is_terminating() && !pod.needs_unmount());
            if homes.len() != 1 || !lives {
                return Err(format!("{uid} ({:?}) is served by {homes:?}: {serves:?}", pod.status.phase));
            }
        }
        let is_named = |name: &&String| entries.get(*name).is_some_and(|uids| !uids.is_empty());
        if let Some(name) = self.pods.keys().find(|name| !is_named(name)) {
            return Err(format!("nobody needs {name}: {:?}", self.pods.get(name)));
        }
        match self.attachments.values().find(|it| it.spec.workloads().is_empty()) {
            Some(empty) => Err(format!("empty: {empty:?}")),
            None if self.attachments.len() > 1 => Err(format!("several: {:?}", self.attachments)),
            None => Ok(()),
        }
    }
}
