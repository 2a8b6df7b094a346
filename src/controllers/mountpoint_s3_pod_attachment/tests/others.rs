//! What people, upstream's controller, kubelets and node services do. A Mountpoint Pod ends when it may.

use crate::api::mountpoint_s3_pod_attachment::MountpointS3PodAttachment;
use crate::api::time;

use super::world::World;

impl World {
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
                self.runs(&uid);
            }
        }
    }
}
