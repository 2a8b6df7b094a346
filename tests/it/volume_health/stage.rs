//! A cluster with volumes, claims, pods and taints that people set by hand.

use std::time::{Duration, Instant};

use bulkhead::api::names;
use bulkhead::api::volume_health::VolumeHealth;
use bulkhead::api::volume_health_policy::VolumeHealthPolicy;
use bulkhead_testbed::cluster::{Cluster, ClusterOptions};
use bulkhead_testbed::{Component, Identity};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use libtest_mimic::Failed;
use serde_json::{Value, json};

/// Long enough for a loaded machine; nothing waits this long when it works.
pub const SOON: Duration = Duration::from_secs(90);
/// The annotation of `kubectl apply`.
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Objects of one cluster, made as an administrator does.
#[derive(Clone)]
pub struct Stage {
    pub client: Client,
    pub volumes: Api<PersistentVolume>,
    pub healths: Api<VolumeHealth>,
    pub claims: Api<PersistentVolumeClaim>,
    pub pods: Api<Pod>,
}

/// A cluster whose binder looks again each second: by default what was refused waits a quarter of a minute.
pub async fn cluster(options: ClusterOptions) -> Result<(Cluster, Stage), Failed> {
    let mut options = ClusterOptions { sidecars: false, ..options };
    let arguments = options.testbed.extra_args.entry(Component::ControllerManager).or_default();
    arguments.push("--pvclaimbinder-sync-period=1s".into());
    let cluster = Cluster::start(options).await?;
    let client = cluster.testbed.client(&Identity::Admin).await?;
    let stage = Stage {
        volumes: Api::all(client.clone()),
        healths: Api::all(client.clone()),
        claims: Api::default_namespaced(client.clone()),
        pods: Api::default_namespaced(client.clone()),
        client,
    };
    Ok((cluster, stage))
}

impl Stage {
    /// A policy for volumes of these labels.
    pub async fn policy(&self, name: &str, level: &str) -> Result<(), Failed> {
        let policy = json!({
            "apiVersion": "bulkhead.dev/v1alpha1", "kind": "VolumeHealthPolicy", "metadata": {"name": name},
            "spec": {"selector": {}, "enforcement": level},
        });
        let policies: Api<VolumeHealthPolicy> = Api::all(self.client.clone());
        policies.patch(name, &PatchParams::apply("test").force(), &Patch::Apply(policy)).await?;
        Ok(())
    }

    /// A volume that nobody attaches, of so many gibibytes, as `kubectl apply` makes it: with one annotation, which is its.
    pub async fn volume(&self, name: &str, class: &str, size: usize) -> Result<(), Failed> {
        let object = json!({
            "metadata": {"name": name, "annotations": {LAST_APPLIED: "{}"}},
            "spec": {
                "capacity": {"storage": format!("{size}Gi")}, "accessModes": ["ReadWriteOnce"],
                "storageClassName": class, "persistentVolumeReclaimPolicy": "Retain",
                "nfs": {"server": "10.0.0.1", "path": format!("/{name}")},
            },
        });
        self.volumes.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
        Ok(())
    }

    /// A claim for a gibibyte, of a certain volume or of any.
    pub async fn claim(&self, name: &str, class: &str, volume: Option<&str>) -> Result<(), Failed> {
        let object = json!({
            "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": class, "volumeName": volume,
                "resources": {"requests": {"storage": "1Gi"}},
            },
        });
        self.claims.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
        Ok(())
    }

    /// The volume that a claim has come to be bound to.
    pub async fn bound(&self, claim: &str) -> Result<String, Failed> {
        eventually(&format!("claim {claim} is bound"), async || {
            let claim = self.claims.get(claim).await.ok()?;
            let phase = claim.status.and_then(|status| status.phase);
            claim.spec.and_then(|spec| spec.volume_name).filter(|_| phase.as_deref() == Some("Bound"))
        })
        .await
    }

    /// The taints that a person has set by hand, whether the controller has made the VolumeHealth yet or not.
    pub async fn set_taints(&self, volume: &str, taints: Value) -> Result<(), Failed> {
        let spec = json!({"manualTaints": taints});
        let (change, object) = (
            json!({"spec": spec}),
            json!({"apiVersion": "bulkhead.dev/v1alpha1", "kind": "VolumeHealth", "metadata": {"name": volume}, "spec": spec}),
        );
        let object: VolumeHealth = serde_json::from_value(object)?;
        loop {
            match self.healths.patch(volume, &PatchParams::default(), &Patch::Merge(&change)).await {
                Err(kube::Error::Api(answer)) if answer.code == 404 => {}
                done => return Ok(done.map(drop)?),
            }
            match self.healths.create(&PostParams::default(), &object).await {
                Err(kube::Error::Api(answer)) if answer.code == 409 => {}
                done => return Ok(done.map(drop)?),
            }
        }
    }

    pub async fn taint(&self, volume: &str) -> Result<(), Failed> {
        let taint = json!({"key": "VolumeNotUsable", "effect": "NoAttachOrMount", "reason": "a test"});
        self.set_taints(volume, json!([taint])).await
    }

    pub async fn untaint(&self, volume: &str) -> Result<(), Failed> {
        self.set_taints(volume, json!([])).await
    }

    /// A pod that uses a claim.
    pub async fn pod(&self, name: &str, claim: &str, spec: Value) -> Result<Pod, kube::Error> {
        let pod = pod(name, claim, spec).map_err(kube::Error::SerdeError)?;
        self.pods.create(&PostParams::default(), &pod).await
    }

    pub async fn delete_pod(&self, name: &str) -> Result<(), Failed> {
        self.pods.delete(name, &DeleteParams::default().grace_period(0)).await?;
        Ok(())
    }

    /// Waits until a volume shows this level, is reserved or not, and its VolumeHealth shows that too.
    pub async fn shows(&self, volume: &str, level: Option<&str>, reserved: bool) -> Result<PersistentVolume, Failed> {
        eventually(&format!("{volume} shows {level:?}, reserved: {reserved}"), async || {
            let seen = self.volumes.get(volume).await.ok()?;
            let health = self.healths.get_opt(volume).await.ok()?;
            let label = |key| seen.labels().get(key).map(String::as_str);
            let annotated = seen.annotations().contains_key(names::VOLUME_TAINTS_ANNOTATION);
            let closes = health.as_ref().is_some_and(|health| health.labels().contains_key(names::NO_ATTACH_LABEL));
            let guarded = health.as_ref().is_some_and(|health| !health.finalizers().is_empty());
            let fits = label(names::TAINTED_LABEL) == level
                && label(names::NO_ATTACH_LABEL) == level
                && annotated == level.is_some()
                && guarded == level.is_some()
                && closes == (level == Some("Enforce"))
                && is_reserved(&seen) == reserved;
            fits.then_some(seen)
        })
        .await
    }

    /// Waits until a pod waits at our gate, or not.
    pub async fn held(&self, pod: &str, wanted: bool) -> Result<Pod, Failed> {
        eventually(&format!("pod {pod} held: {wanted}"), async || {
            self.pods.get(pod).await.ok().filter(|pod| is_held(pod) == wanted)
        })
        .await
    }

    /// Creates pods of a claim, in vain, until one would be held: the server's own view of VolumeHealths lags a little.
    pub async fn comes_to_hold(&self, claim: &str) -> Result<(), Failed> {
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        let pod = pod("dry", claim, json!({}))?;
        eventually(&format!("pods of claim {claim} are held"), async || {
            self.pods.create(&dry, &pod).await.ok().filter(is_held).map(drop)
        })
        .await
    }
}

fn pod(name: &str, claim: &str, spec: Value) -> Result<Pod, serde_json::Error> {
    let mut object = json!({
        "metadata": {"name": name},
        "spec": {
            "automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": "app"}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
        },
    });
    bulkhead_testbed::cluster::merge(&mut object["spec"], &spec);
    serde_json::from_value(object)
}

pub fn is_held(pod: &Pod) -> bool {
    let gates = pod.spec.iter().flat_map(|spec| spec.scheduling_gates.iter().flatten());
    gates.into_iter().any(|gate| gate.name == names::VOLUME_TAINTED_GATE)
}

pub fn is_reserved(volume: &PersistentVolume) -> bool {
    let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    claim.is_some_and(|claim| claim.name.as_deref() == Some(names::RESERVED_CLAIM) && claim.uid.is_none())
}

/// Tries until `attempt` yields something.
pub async fn eventually<T>(what: &str, mut attempt: impl AsyncFnMut() -> Option<T>) -> Result<T, Failed> {
    let deadline = Instant::now() + SOON;
    loop {
        if let Some(found) = attempt().await {
            return Ok(found);
        }
        if Instant::now() > deadline {
            return Err(format!("not within {SOON:?}: {what}").into());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
