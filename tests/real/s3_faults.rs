//! What goes wrong around buckets: Mountpoint Pods, the CSI service, the kubelet, the controller, the node, the credentials.

use std::path::Path;

use bulkhead::api::s3::{CREDENTIALS_FOLDER, MOUNTPOINT_NAMESPACE, communication_folder};
use bulkhead_testbed::cluster::real::{PodPlace, RealCluster, S3Volume, Shell};
use bulkhead_testbed::process::Signal;
use bulkhead_testbed::real_nodes::{Fault, NodeProgram};
use bulkhead_testbed::s3_server::{KeyPair, Usable};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::Api;
use kube::api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams, PostParams};
use libtest_mimic::Failed;
use serde_json::json;

use super::Outcome;
use super::bed::SOON;
use super::cleaning::CONTROLLER;
use super::s3::{NODE, add, is_clean, mountpoint_pod, reads_again, run, told};

/// The namespace and the label of the driver's node pods.
const DRIVER_NAMESPACE: &str = "kube-system";
const NODE_SERVICE: &str = "app.kubernetes.io/component=s3-csi-node";

/// A workload that sees later mounts, on a volume of its own, with a file in it.
struct Watched<'a> {
    cluster: &'a RealCluster,
    name: &'a str,
    pod: PodPlace,
    serving: PodPlace,
}

impl<'a> Watched<'a> {
    /// `name` is that of the volume, the bucket and the pod.
    async fn begin(cluster: &'a RealCluster, name: &'a str) -> Result<Self, Failed> {
        add(cluster, &S3Volume::new(name)).await?;
        let shell = Shell { sees_later_mounts: true, ..Shell::new(name, name, NODE) };
        let [pod] = <[PodPlace; 1]>::try_from(run(cluster, &[shell]).await?).map_err(|_| "not one pod")?;
        cluster.shell(name, "echo before >greeting").await?;
        let serving = mountpoint_pod(cluster, name, &pod).await?;
        Ok(Self { cluster, name, pod, serving })
    }

    /// Waits until another Mountpoint Pod serves it. Containers that see no later mounts may still use the old one, so it may
    /// stay as long as the workload.
    async fn is_served_by_another(&self) -> Outcome {
        let other = async || {
            let now = self.cluster.serving(self.name, &self.pod).await?;
            Ok(match now {
                Some(now) if now.uid != self.serving.uid => Ok(()),
                now => Err(format!("{now:?}")),
            })
        };
        Ok(self.cluster.wait("another Mountpoint Pod serves it", SOON, other).await?)
    }

    /// The same container reads and writes, and nothing is left of it afterwards.
    async fn ends_well(&self) -> Outcome {
        reads_again(self.cluster, self.name, "greeting", "before\n").await?;
        self.cluster.shell(self.name, "echo after >greeting").await?;
        assert_eq!(self.cluster.in_bucket(self.name, "greeting")?, "after\n");
        self.cluster.end_shells(&[self.name], SOON).await?;
        is_clean(self.cluster, self.name).await?;
        Ok(self.cluster.remove_s3_volume(self.name).await?)
    }
}

pub async fn mountpoint_pod_deleted(cluster: &RealCluster) -> Outcome {
    let watched = Watched::begin(cluster, "evicted").await?;
    mountpoint_pods(cluster).evict(&watched.serving.name, &EvictParams::default()).await?;
    watched.is_served_by_another().await?;
    told(cluster, watched.name, "MountpointPodReplaced").await?;
    watched.ends_well().await
}

/// A deadline that has passed: nothing makes it run again, as one that the kubelet evicts. SIGTERM it ignores.
pub async fn mountpoint_pod_failed(cluster: &RealCluster) -> Outcome {
    let watched = Watched::begin(cluster, "failed").await?;
    let deadline = Patch::Merge(json!({"spec": {"activeDeadlineSeconds": 1}}));
    mountpoint_pods(cluster).patch(&watched.serving.name, &PatchParams::default(), &deadline).await?;
    let failed = async || {
        // The kubelet may start it once more before it knows of the deadline.
        let _ = cluster.kill_mountpoint_container(&watched.serving).await;
        let now = mountpoint_pods(cluster).get_opt(&watched.serving.name).await?;
        let phase = now.and_then(|pod| pod.status).and_then(|status| status.phase);
        Ok(if matches!(phase.as_deref(), None | Some("Failed")) { Ok(()) } else { Err(format!("{phase:?}")) })
    };
    cluster.wait("it is Failed", SOON, failed).await?;
    watched.is_served_by_another().await?;
    watched.ends_well().await
}

pub async fn mountpoint_container_killed(cluster: &RealCluster) -> Outcome {
    let watched = Watched::begin(cluster, "container-killed").await?;
    cluster.kill_mountpoint_container(&watched.serving).await?;
    watched.ends_well().await
}

pub async fn csi_service_restarted(cluster: &RealCluster) -> Outcome {
    let watched = Watched::begin(cluster, "service-restarted").await?;
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), DRIVER_NAMESPACE);
    let here = ListParams::default().labels(NODE_SERVICE).fields(&format!("spec.nodeName={NODE}"));
    pods.delete_collection(&DeleteParams::default(), &here).await?;
    assert_eq!(cluster.shell(watched.name, "cat greeting").await?, "before\n");
    cluster.settled().await?;
    watched.ends_well().await
}

pub async fn kubelet_restarted(cluster: &RealCluster) -> Outcome {
    let watched = Watched::begin(cluster, "kubelet-restarted").await?;
    let node = cluster.node(NODE)?;
    node.fault(Fault::Kill(NodeProgram::Kubelet)).await?;
    node.heal_all().await?;
    cluster.usable(NODE, SOON).await?;
    watched.ends_well().await
}

pub async fn controller_killed_in_the_middle(cluster: &RealCluster) -> Outcome {
    let (volume, names) = ("controller-killed", ["middle-1", "middle-2", "middle-3"]);
    add(cluster, &S3Volume::new(volume)).await?;
    let [first, second, third] = names.map(|name| Shell::new(name, volume, NODE));
    for shell in [first, Shell { fs_group: Some(2000), ..second }, third] {
        cluster.create_shell(&shell).await?;
    }
    kill_leader(cluster).await?;
    for name in names {
        cluster.shell_runs(name, SOON).await?;
        cluster.shell(name, &format!("echo {name} >{name}")).await?;
    }
    let pods: Api<Pod> = Api::default_namespaced(cluster.client.clone());
    for name in names {
        pods.delete(name, &DeleteParams::default()).await?;
    }
    kill_leader(cluster).await?;
    is_clean(cluster, volume).await?;
    for name in names {
        assert_eq!(cluster.in_bucket(volume, name)?, format!("{name}\n"));
    }
    Ok(cluster.remove_s3_volume(volume).await?)
}

/// Both are evicted at once; the workload writes for some seconds more.
pub async fn node_drained(cluster: &RealCluster) -> Outcome {
    let (volume, name) = ("drained", "drained");
    add(cluster, &S3Volume::new(volume)).await?;
    let farewell = "trap 'sleep 5; echo bye >/data/farewell; exit' TERM; while :; do sleep 1; done";
    run(cluster, &[Shell { runs: Some(farewell), ..Shell::new(name, volume, NODE) }]).await?;
    let drain = ["drain", NODE, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=120s"];
    let drained = cluster.testbed.kubectl(&drain).await;
    cluster.testbed.kubectl(&["uncordon", NODE]).await?;
    drained?;
    assert_eq!(cluster.in_bucket(volume, "farewell")?, "bye\n");
    is_clean(cluster, volume).await?;
    Ok(cluster.remove_s3_volume(volume).await?)
}

pub async fn credentials_rotated(cluster: &RealCluster) -> Outcome {
    let (name, keys) = ("rotated", cluster.s3()?.keys());
    let [old, new] = ["ROTATEDOLD", "ROTATEDNEW"].map(|key| KeyPair::new(key, &format!("{key}/secret")));
    keys.set(old.clone(), Usable::only([name]));
    cluster.set_s3_secret(name, &old).await?;
    add(cluster, &S3Volume { secret: Some(name.to_owned()), ..S3Volume::new(name) }).await?;
    let shell = Shell { sees_later_mounts: true, ..Shell::new(name, name, NODE) };
    let [pod] = <[PodPlace; 1]>::try_from(run(cluster, &[shell]).await?).map_err(|_| "not one pod")?;
    cluster.shell(name, "echo before >greeting").await?;
    let serving = mountpoint_pod(cluster, name, &pod).await?;

    keys.set(new.clone(), Usable::only([name]));
    cluster.set_s3_secret(name, &new).await?;
    let folder = communication_folder(Path::new("/var/lib/kubelet"), &serving.uid).join(CREDENTIALS_FOLDER);
    let grep = ["grep", "-rl", &new.access_key, &folder.to_string_lossy()].map(str::to_owned);
    let delivered = async || {
        let found = cluster.node(NODE)?.exec(&grep.each_ref().map(String::as_str)).await?;
        Ok(if found.status.success() { Ok(()) } else { Err(format!("not below {}", folder.display())) })
    };
    cluster.wait("the new key is in the Mountpoint Pod", SOON, delivered).await?;

    // mount-s3 looks into the files every 15 minutes, and when it starts.
    keys.revoke(&old.access_key);
    cluster.kill_mount_program(&serving).await?;
    reads_again(cluster, name, "greeting", "before\n").await?;
    cluster.shell(name, "echo after >greeting").await?;
    assert_eq!(cluster.in_bucket(name, "greeting")?, "after\n");
    cluster.end_shells(&[name], SOON).await?;
    is_clean(cluster, name).await?;
    Ok(cluster.remove_s3_volume(name).await?)
}

pub async fn credentials_isolated(cluster: &RealCluster) -> Outcome {
    let s3 = cluster.s3()?;
    let tenants = [("tenant-1", "TENANTONE"), ("tenant-2", "TENANTTWO")];
    for (name, key) in tenants {
        let key = KeyPair::new(key, &format!("{key}/secret"));
        s3.keys().set(key.clone(), Usable::only([name]));
        cluster.set_s3_secret(name, &key).await?;
        add(cluster, &S3Volume { secret: Some(name.to_owned()), ..S3Volume::new(name) }).await?;
    }
    // The bucket of the second, with the key of the first.
    let stolen =
        S3Volume { bucket: "tenant-2".to_owned(), secret: Some("tenant-1".to_owned()), ..S3Volume::new("stolen") };
    cluster.add_s3_volume(&stolen).await?;
    let [first, second, thief] = [("tenant-1", "tenant-1"), ("tenant-2", "tenant-2"), ("thief", "stolen")]
        .map(|(name, claim)| Shell::new(name, claim, NODE));
    run(cluster, &[first, second]).await?;
    for (name, _) in tenants {
        cluster.shell(name, &format!("echo {name} >mine")).await?;
        assert_eq!(cluster.in_bucket(name, "mine")?, format!("{name}\n"));
    }
    cluster.create_shell(&thief).await?;
    let why = told(cluster, "thief", "FailedMount").await?;
    println!("credentials_isolated: {why}");
    for request in s3.requests().into_iter().filter(|request| request.status.is_some_and(|status| status.is_success()))
    {
        if let Some((bucket, key)) = tenants.iter().find(|(bucket, _)| *bucket == request.bucket) {
            assert_eq!(&request.access_key, key, "{bucket}: {request:?}");
        }
    }
    cluster.end_shells(&["tenant-1", "tenant-2", "thief"], SOON).await?;
    for volume in ["tenant-1", "tenant-2", "stolen"] {
        is_clean(cluster, volume).await?;
        cluster.remove_s3_volume(volume).await?;
    }
    Ok(())
}

pub async fn bucket_per_claim(cluster: &RealCluster) -> Outcome {
    let (client, name, create) = (&cluster.client, "made-for-it", PostParams::default());
    let class: StorageClass = serde_json::from_value(json!({
        "metadata": {"name": name},
        "provisioner": bulkhead::api::s3::DRIVER,
        "mountOptions": ["allow-delete", "allow-overwrite", "allow-other"],
    }))?;
    Api::all(client.clone()).create(&create, &class).await?;
    let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(client.clone());
    let claim: PersistentVolumeClaim = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {"storageClassName": name, "accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
    }))?;
    let before = cluster.s3()?.buckets()?;
    claims.create(&create, &claim).await?;
    run(cluster, &[Shell::new(name, name, NODE)]).await?;
    let made: Vec<_> = cluster.s3()?.buckets()?.difference(&before).cloned().collect();
    let [bucket] = <[String; 1]>::try_from(made).map_err(|made| format!("{made:?} instead of one bucket"))?;
    cluster.shell(name, "echo hello >greeting").await?;
    assert_eq!(cluster.in_bucket(&bucket, "greeting")?, "hello\n");
    // Only an empty one is deleted.
    cluster.shell(name, "busybox rm greeting").await?;
    let volume = claims.get(name).await?.spec.and_then(|spec| spec.volume_name).ok_or("the claim is not bound")?;
    cluster.end_shells(&[name], SOON).await?;
    is_clean(cluster, &volume).await?;
    claims.delete(name, &DeleteParams::default()).await?;
    let gone = async || {
        let buckets = cluster.s3()?.buckets().map_err(bulkhead_testbed::cluster::ClusterError::Array)?;
        Ok(if buckets.contains(&bucket) { Err(format!("{buckets:?}")) } else { Ok(()) })
    };
    cluster.wait("the bucket is gone", SOON, gone).await?;
    Api::<StorageClass>::all(client.clone()).delete(name, &DeleteParams::default()).await?;
    Ok(())
}

fn mountpoint_pods(cluster: &RealCluster) -> Api<Pod> {
    Api::namespaced(cluster.client.clone(), MOUNTPOINT_NAMESPACE)
}

/// Kills the process that leads the operator; its container is started again.
async fn kill_leader(cluster: &RealCluster) -> Outcome {
    let node = cluster.leader().await?.and_then(|pod| pod.spec?.node_name).ok_or("nobody leads")?;
    Ok(cluster.node(&node)?.signal(CONTROLLER, Signal::Kill).await?)
}
