//! The API server: versions are checked, names are unique, finalizers hold. A pass dies after so many writes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::json;

use crate::api::mountpoint_pod::MountpointPod;
use crate::api::mountpoint_s3_pod_attachment::MountpointS3PodAttachment;
use crate::api::s3::{FINALIZER, NEEDS_UNMOUNT};
use crate::api::time;

use super::super::decide::Effect;
use super::world::World;

/// What a write was refused for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict;

impl World {
    fn written(&mut self, what: &'static str, until: usize) -> Result<(), Conflict> {
        if self.writes.len() >= until {
            return Err(Conflict);
        }
        self.writes.push(what);
        self.version += 1;
        Ok(())
    }

    pub fn stamp(&self, meta: &mut ObjectMeta, is_new: bool) {
        meta.resource_version = Some(self.version.to_string());
        if is_new {
            meta.uid = Some(format!("uid-{}", self.version));
            meta.creation_timestamp = Some(time::to_k8s(self.now.wall));
        }
    }

    pub fn apply(&mut self, effect: &Effect, until: usize) -> Result<(), Conflict> {
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
}
