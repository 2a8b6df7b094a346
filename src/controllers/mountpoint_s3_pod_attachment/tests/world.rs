//! An API server, a kubelet and a node service in memory, for one mount: versions are checked, names are unique, finalizers
//! hold, and a Mountpoint Pod ends when it may.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::json;

use crate::api::mountpoint_pod::MountpointPod;
use crate::api::mountpoint_s3_pod_attachment::MountpointS3PodAttachment;
use crate::api::s3::{DRIVER, FINALIZER, Mount, NEEDS_UNMOUNT};
use crate::api::slim::{PersistentVolume, Pod};
use crate::api::time::{self, Now};
use crate::controllers::testing::now;

use super::super::decide::{self, Decision, Effect, Patience, Seen, Workload};
use super::super::mountpoint_pod::Settings;

/// What a write was refused for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict;

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
    version: u64,
}

pub fn volume(uid: &str) -> PersistentVolume {
    serde_json::from_value(json!({
        "metadata": { "name": "pv", "uid": uid, "creationTimestamp": "2026-01-01T00:00:00Z" },
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

    fn written(&mut self, what: &'static str, until: usize) -> Result<(), Conflict> {
        if self.writes.len() >= until {
            return Err(Conflict);
        }
        self.writes.push(what);
        self.version += 1;
        Ok(())
    }

    fn stamp(&self, meta: &mut ObjectMeta, is_new: bool) {
        meta.resource_version = Some(self.version.to_string());
        if is_new {
            meta.uid = Some(format!("uid-{}", self.version));
            meta.creation_timestamp = Some(time::to_k8s(self.now.wall));
        }
    }

    fn apply(&mut self, effect: &Effect, until: usize) -> Result<(), Conflict> {
        match effect {
            Effect::Create(attachment) => {
                let name = attachment.metadata.name.clone().unwrap();
                if self.attachments.contains_key(&name) {
                    return Err(Conflict);
                }
                self.written("create", until)?;
                let mut attachment = attachment.as_ref().clone();
                self.stamp(&mut attachment.metadata, true);
                self.attachments.insert(name, attachment);
            }
            Effect::Replace { after, .. } => self.replace(after.as_ref().clone(), until)?,
            Effect::Record { before, status } => {
                let mut after = before.as_ref().clone();
                after.status = Some(status.as_ref().clone());
                self.replace(after, until)?;
            }
            Effect::Remove(before) => self.remove(before, until)?,
            Effect::CreatePod { pod, .. } => {
                let mut pod: MountpointPod = serde_json::from_value(json!(pod)).unwrap();
                if self.pods.contains_key(pod.name()) {
                    return Err(Conflict);
                }
                self.written("create pod", until)?;
                self.stamp(&mut pod.metadata, true);
                pod.status.phase = Some("Pending".into());
                self.pods.insert(pod.name().to_owned(), pod);
            }
            Effect::Retire(pod) => {
                self.check_pod(pod)?;
                self.written("retire", until)?;
                self.annotate(pod.name(), NEEDS_UNMOUNT);
            }
            Effect::DeletePod { pod, .. } => {
                self.check_pod(pod)?;
                assert!(!self.mounted.values().any(|on| on == pod.uid()) || pod.has_ended(), "deleted in use: {pod:?}");
                self.written("delete pod", until)?;
                self.pods.remove(pod.name());
            }
        }
        Ok(())
    }

    fn check_pod(&self, pod: &MountpointPod) -> Result<(), Conflict> {
        let now = self.pods.get(pod.name());
        let is_same = now.is_some_and(|now| {
            now.uid() == pod.uid() && now.metadata.resource_version == pod.metadata.resource_version
        });
        if is_same { Ok(()) } else { Err(Conflict) }
    }

    fn replace(&mut self, mut after: MountpointS3PodAttachment, until: usize) -> Result<(), Conflict> {
        let name = after.metadata.name.clone().unwrap();
        let now = self.attachments.get(&name).ok_or(Conflict)?;
        if now.metadata.resource_version != after.metadata.resource_version {
            return Err(Conflict);
        }
        self.written("replace", until)?;
        self.stamp(&mut after.metadata, false);
        let is_free = after.metadata.finalizers.as_ref().is_none_or(Vec::is_empty);
        if after.metadata.deletion_timestamp.is_some() && is_free {
            self.attachments.remove(&name);
        } else {
            self.attachments.insert(name, after);
        }
        Ok(())
    }

    /// As act does it: two writes.
    fn remove(&mut self, before: &MountpointS3PodAttachment, until: usize) -> Result<(), Conflict> {
        let name = before.metadata.name.clone().unwrap();
        let mut after = before.clone();
        after.spec.mountpoint_s3_pod_attachments.clear();
        after.metadata.finalizers.iter_mut().for_each(|all| all.retain(|it| it != FINALIZER));
        if after != *before {
            self.replace(after, until)?;
        }
        if before.metadata.deletion_timestamp.is_none() {
            self.written("delete", until)?;
            self.attachments.remove(&name);
        }
        Ok(())
    }

    /// A person, or upstream's controller, writes a whole attachment.
    pub fn put(&mut self, mut attachment: MountpointS3PodAttachment) {
        self.version += 1;
        self.stamp(&mut attachment.metadata, true);
        self.attachments.insert(attachment.metadata.name.clone().unwrap(), attachment);
    }

    /// A person deletes an attachment.
    pub fn delete_attachment(&mut self, name: &str) {
        let Some(attachment) = self.attachments.get_mut(name) else { return };
        if attachment.metadata.finalizers.as_ref().is_none_or(Vec::is_empty) {
            self.attachments.remove(name);
        } else {
            self.version += 1;
            attachment.metadata.resource_version = Some(self.version.to_string());
            attachment.metadata.deletion_timestamp = Some(time::to_k8s(self.now.wall));
        }
    }

    pub fn annotate(&mut self, name: &str, annotation: &str) {
        self.version += 1;
        let version = self.version.to_string();
        if let Some(pod) = self.pods.get_mut(name) {
            pod.metadata.annotations.get_or_insert_default().insert(annotation.to_owned(), "true".to_owned());
            pod.metadata.resource_version = Some(version);
        }
    }

    /// What becomes of a Mountpoint Pod by other hands.
    pub fn pod_becomes(&mut self, name: &str, phase: &str) {
        self.version += 1;
        let version = self.version.to_string();
        if let Some(pod) = self.pods.get_mut(name).filter(|pod| !pod.has_ended()) {
            pod.status.phase = Some(phase.to_owned());
            pod.metadata.resource_version = Some(version);
            if pod.has_ended() {
                let uid = pod.uid().to_owned();
                self.mounted.retain(|_, on| *on != uid);
            }
        }
    }

    pub fn terminate_pod(&mut self, name: &str) {
        self.version += 1;
        let (now, version) = (time::to_k8s(self.now.wall), self.version.to_string());
        if let Some(pod) = self.pods.get_mut(name) {
            pod.metadata.deletion_timestamp = Some(now);
            pod.metadata.resource_version = Some(version);
        }
    }

    pub fn vanish_pod(&mut self, name: &str) {
        if let Some(pod) = self.pods.remove(name) {
            self.mounted.retain(|_, on| on != pod.uid());
        }
    }

    /// Pods start and end, workloads are mounted where the attachments say.
    pub fn kubelet(&mut self) {
        let names: Vec<_> = self.pods.keys().cloned().collect();
        for name in names {
            let pod = self.pod(&name).clone();
            let is_used = self.mounted.values().any(|on| on == pod.uid());
            if pod.is_terminating() && (!is_used || pod.has_ended()) {
                self.vanish_pod(&name);
            } else if pod.needs_unmount() && pod.has_run() && !is_used {
                self.pod_becomes(&name, "Succeeded");
            } else if !pod.has_ended() && !pod.is_terminating() {
                self.pod_becomes(&name, "Running");
            }
        }
        let uids: Vec<_> = self.workloads.keys().cloned().collect();
        for uid in uids {
            let on = self.serves(&uid).and_then(|name| self.pods.get(&name).cloned());
            let serving = on.filter(|pod| pod.status.phase.as_deref() == Some("Running") && !pod.needs_unmount());
            if self.workloads[&uid].is_terminating() {
                self.gone(&uid, true);
            } else if let Some(pod) = serving.filter(|_| !self.workloads[&uid].is_finished()) {
                self.mounted.insert(uid.clone(), pod.uid().to_owned());
                self.phase(&uid, "Running");
            }
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
