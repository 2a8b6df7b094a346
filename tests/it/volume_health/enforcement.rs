//! What enforcement does to claims, attachments and pods, and that nothing of it stays.

use std::time::Duration;

use bulkhead::api::conditions;
use bulkhead::api::volume_health_policy::VolumeHealthPolicy;
use bulkhead_testbed::array::{ArrayOptions, Claim};
use bulkhead_testbed::cluster::{Cluster, ClusterOptions};
use bulkhead_testbed::ledger::Access;
use bulkhead_testbed::{Identity, Testbed};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt};
use libtest_mimic::Failed;
use serde_json::{Value, json};

use super::stage::{self, LAST_APPLIED, Stage, eventually, is_held};
use crate::failover::fleet;

/// One life of enforcement, each way out of it in turn.
pub async fn what_is_shown_is_always_taken_back() -> Result<(), Failed> {
    let options = ClusterOptions { arrays: Vec::new(), nodes: 0, ..fleet::options() };
    let (mut cluster, stage) = stage::cluster(options).await?;
    stage.policy("all", "Observe").await?;
    for (name, size) in [("small", 1), ("large", 5), ("other", 1)] {
        stage.volume(name, if name == "other" { "named" } else { "life" }, size).await?;
    }
    only_observed_nothing_is_kept_off(&stage).await?;
    claims_are_steered_past_it(&cluster, &stage).await?;
    // A pod that waits, to be let go in each of the ways.
    stage.taint("large").await?;
    stage.shows("large", Some("Enforce"), false).await?;
    hold(&stage).await?;
    without_the_policies_it_says_so(&cluster.testbed, &stage).await?;
    stage.policy("all", "Observe").await?;
    stage.shows("small", Some("Observe"), false).await?;
    let_go(&stage).await?;
    stage.policy("all", "Enforce").await?;
    stage.shows("small", Some("Enforce"), true).await?;
    hold(&stage).await?;
    a_deleted_volume_health_takes_all_back(&stage).await?;
    let_go(&stage).await?;
    a_deleted_volume_goes(&stage).await?;
    stage.taint("large").await?;
    hold(&stage).await?;
    let policies: Api<VolumeHealthPolicy> = Api::all(stage.client.clone());
    policies.delete("all", &DeleteParams::default()).await?;
    // What a person wrote stays where no policy selects the volume, and keeps nobody off.
    stage.shows("large", Some("Observe"), false).await?;
    let_go(&stage).await?;
    for name in ["large", "other"] {
        stage.untaint(name).await?;
        stage.shows(name, None, false).await?;
    }
    eventually("no VolumeHealth without a policy", async || no_healths(&stage).await).await?;
    uninstalled(&mut cluster, &stage).await
}

async fn only_observed_nothing_is_kept_off(stage: &Stage) -> Result<(), Failed> {
    stage.taint("other").await?;
    let shown = stage.shows("other", Some("Observe"), false).await?;
    assert_eq!(shown.annotations()[LAST_APPLIED], "{}", "what kubectl left is the user's");
    let taints: Value = serde_json::from_str(&shown.annotations()["bulkhead.dev/volume-taints"])?;
    assert_eq!((&taints[0]["key"], &taints[0]["effect"]), (&json!("VolumeNotUsable"), &json!("NoAttachOrMount")));
    assert_eq!(enforced(stage, "other").await, ("False".into(), "ObserveOnly".into()));
    stage.claim("observed", "named", None).await?;
    assert_eq!(stage.bound("observed").await?, "other");
    let free = stage.pod("free", "observed", json!({})).await?;
    assert!(!is_held(&free), "a pod is held where nothing is enforced");
    Ok(())
}

async fn claims_are_steered_past_it(cluster: &Cluster, stage: &Stage) -> Result<(), Failed> {
    stage.policy("all", "Enforce").await?;
    stage.shows("other", Some("Enforce"), false).await?;
    stage.taint("small").await?;
    stage.shows("small", Some("Enforce"), true).await?;
    assert_eq!(enforced(stage, "small").await, ("True".into(), "BindReserved".into()));
    stage.claim("steered", "life", None).await?;
    assert_eq!(stage.bound("steered").await?, "large");
    let refused = cluster.testbed.audit().first(|it| it.resource == "persistentvolumes" && it.code == 403)?;
    assert_eq!(refused, None, "the binder ran into the backstop instead of being steered");
    // One that asks for it by name waits, and is told why.
    stage.claim("named", "life", Some("small")).await?;
    let text = "the claim names volume small, which is tainted (VolumeNotUsable)";
    told(stage, "named", "VolumeConditionAbnormal", text).await?;
    told(stage, "small", "BindReserved", "no claim is bound to it").await?;
    stage.untaint("small").await?;
    assert_eq!(stage.bound("named").await?, "small");
    stage.shows("small", None, false).await?;
    told(stage, "small", "BindReleased", "").await?;
    // Free again, for what follows.
    stage.claims.delete("named", &DeleteParams::default()).await?;
    stage.volumes.delete("small", &DeleteParams::default()).await?;
    eventually("small is gone", async || gone(&stage.volumes, "small").await).await?;
    // A taint that were set on it now would go with it.
    eventually("its VolumeHealth too", async || gone(&stage.healths, "small").await).await?;
    stage.volume("small", "life", 1).await?;
    stage.taint("small").await?;
    stage.shows("small", Some("Enforce"), true).await?;
    Ok(())
}

/// A pod of the claim that is bound to `large`.
async fn hold(stage: &Stage) -> Result<(), Failed> {
    stage.comes_to_hold("steered").await?;
    let pod = stage.pod("waits", "steered", json!({})).await?;
    assert!(is_held(&pod));
    Ok(())
}

async fn let_go(stage: &Stage) -> Result<(), Failed> {
    stage.held("waits", false).await?;
    stage.delete_pod("waits").await
}

async fn without_the_policies_it_says_so(testbed: &Testbed, stage: &Stage) -> Result<(), Failed> {
    let name = "tainted-volume-pods.bulkhead.dev";
    testbed.kubectl(&["delete", "validatingadmissionpolicybinding", name]).await?;
    let is = |wanted: &'static str| async move || (enforced(stage, "small").await.1 == wanted).then_some(());
    eventually("AdmissionPolicyMissing", is("AdmissionPolicyMissing")).await?;
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    testbed.apply_dir(&root.join("config/policies")).await?;
    eventually("enforced again", is("BindReserved")).await
}

async fn a_deleted_volume_health_takes_all_back(stage: &Stage) -> Result<(), Failed> {
    for name in ["small", "large"] {
        stage.healths.delete(name, &DeleteParams::default()).await?;
        stage.shows(name, None, false).await?;
        eventually("a new VolumeHealth", async || stage.healths.get(name).await.ok()).await?;
    }
    Ok(())
}

async fn a_deleted_volume_goes(stage: &Stage) -> Result<(), Failed> {
    stage.taint("small").await?;
    stage.shows("small", Some("Enforce"), true).await?;
    stage.volumes.delete("small", &DeleteParams::default()).await?;
    eventually("a reserved volume goes", async || gone(&stage.volumes, "small").await).await?;
    eventually("its VolumeHealth goes", async || gone(&stage.healths, "small").await).await
}

/// `bulkhead-controller release-volumes`, for the end of an installation.
async fn uninstalled(cluster: &mut Cluster, stage: &Stage) -> Result<(), Failed> {
    stage.policy("all", "Enforce").await?;
    stage.volume("small", "life", 1).await?;
    for name in ["small", "large"] {
        stage.taint(name).await?;
        stage.shows(name, Some("Enforce"), name == "small").await?;
    }
    hold(stage).await?;
    for controller in cluster.controllers.drain(..) {
        controller.kill().await;
    }
    let kubeconfig = cluster.testbed.kubeconfig(&Identity::OperatorController)?;
    let program = tokio::process::Command::new(env!("CARGO_BIN_EXE_bulkhead-controller"))
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .args(["--identity", "uninstall", "--listen", "127.0.0.1:0", "release-volumes"])
        .output();
    let output = tokio::time::timeout(Duration::from_secs(120), program).await??;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let wanted = "2 PersistentVolumes restored (1 reservations), 1 pods let go, 2 VolumeHealths released";
    assert!(said.contains(wanted), "{said} {}", String::from_utf8_lossy(&output.stderr));
    for name in ["small", "large", "other"] {
        stage.shows(name, None, false).await?;
    }
    let_go(stage).await?;
    // Nobody is there any more who could take a finalizer away.
    cluster.testbed.kubectl(&["delete", "crd", "volumehealths.bulkhead.dev", "--timeout=60s"]).await?;
    Ok(())
}

/// On real attachments: an old user keeps its volume, a new one waits.
pub async fn new_users_are_kept_off() -> Result<(), Failed> {
    let options = ClusterOptions { arrays: vec![ArrayOptions::default()], nodes: 2, ..fleet::options() };
    let (cluster, stage) = stage::cluster(options).await?;
    stage.policy("all", "Enforce").await?;
    let claim = Claim { access: Access::MultiWriter, ..Claim::new("default", "shared") };
    cluster.arrays[0].claim(&cluster.client, &claim).await?;
    let volume = claim.volume_name();
    let on = |node: &str| json!({"nodeSelector": {"kubernetes.io/hostname": node}});
    stage.pod("old", "shared", on("node-1")).await?;
    let old = ready(&stage, "old").await?;
    stage.taint(&volume).await?;
    stage.shows(&volume, Some("Enforce"), false).await?;
    assert_eq!(enforced(&stage, &volume).await, ("True".into(), "AttachBlocked".into()));
    stage.comes_to_hold("shared").await?;
    deploy(&stage, "new", "shared", on("node-2")).await?;
    let new = eventually("the Deployment's pod", async || {
        let pods = stage.pods.list(&ListParams::default().labels("app=new")).await.ok()?;
        pods.items.into_iter().next()
    })
    .await?;
    assert!(is_held(&new), "a Deployment's pod is let in");
    refused_at_once(&stage, &volume).await?;
    // Who has it keeps it.
    let still = ready(&stage, "old").await?;
    assert_eq!(still.uid(), old.uid());
    assert_eq!(attached_to(&stage, &volume).await?, ["node-1"]);
    stage.untaint(&volume).await?;
    stage.held(&new.name_any(), false).await?;
    ready(&stage, &new.name_any()).await?;
    assert_eq!(attached_to(&stage, &volume).await?, ["node-1", "node-2"]);
    a_taint_without_effect_disturbs_nothing(&cluster, &stage).await
}

/// Self-healing re-attaches what is not attached: NoEffect is in nobody's way.
async fn a_taint_without_effect_disturbs_nothing(cluster: &Cluster, stage: &Stage) -> Result<(), Failed> {
    let claim = Claim::new("default", "healing");
    cluster.arrays[0].claim(&cluster.client, &claim).await?;
    stage.bound("healing").await?;
    stage.set_taints(&claim.volume_name(), json!([{"key": "VolumeNotAttached", "reason": "a test"}])).await?;
    eventually("the taint is shown", async || {
        let volume = stage.volumes.get(&claim.volume_name()).await.ok()?;
        volume.labels().get("bulkhead.dev/tainted").filter(|level| *level == "Enforce").map(drop)
    })
    .await?;
    stage.pod("heals", "healing", json!({})).await?;
    ready(stage, "heals").await.map(drop)
}

/// A pod that names its node cannot wait, and an attachment by hand is none of ours.
async fn refused_at_once(stage: &Stage, volume: &str) -> Result<(), Failed> {
    let placed = stage.pod("placed", "shared", json!({"nodeName": "node-2"})).await;
    let text = format!("claim default/shared is on volume {volume}, which is tainted");
    assert!(matches!(&placed, Err(kube::Error::Api(it)) if it.message.contains(&text)), "{placed:?}");
    let object = json!({
        "metadata": {"name": "by-hand"},
        "spec": {"attacher": "x", "nodeName": "node-2", "source": {"persistentVolumeName": volume}},
    });
    let attachments: Api<VolumeAttachment> = Api::all(stage.client.clone());
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let attached = attachments.create(&dry, &serde_json::from_value(object)?).await;
    let text = format!("volume {volume} is tainted and is attached to no further node");
    assert!(matches!(&attached, Err(kube::Error::Api(it)) if it.message.contains(&text)), "{attached:?}");
    Ok(())
}

async fn deploy(stage: &Stage, name: &str, claim: &str, spec: Value) -> Result<(), Failed> {
    let mut template = json!({
        "automountServiceAccountToken": false, "containers": [{"name": "main", "image": "app"}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
    });
    bulkhead_testbed::cluster::merge(&mut template, &spec);
    let deployment: Deployment = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "replicas": 1, "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": template},
        },
    }))?;
    let api: Api<Deployment> = Api::default_namespaced(stage.client.clone());
    api.create(&PostParams::default(), &deployment).await?;
    Ok(())
}

async fn ready(stage: &Stage, pod: &str) -> Result<Pod, Failed> {
    eventually(&format!("pod {pod} is Ready"), async || {
        let pod = stage.pods.get(pod).await.ok()?;
        let conditions = pod.status.as_ref()?.conditions.as_ref()?;
        let ready = conditions.iter().any(|it| it.type_ == "Ready" && it.status == "True");
        ready.then_some(pod)
    })
    .await
}

async fn attached_to(stage: &Stage, volume: &str) -> Result<Vec<String>, Failed> {
    let attachments: Api<VolumeAttachment> = Api::all(stage.client.clone());
    let all = attachments.list(&ListParams::default()).await?.items;
    let of_volume = all.into_iter().filter(|it| it.spec.source.persistent_volume_name.as_deref() == Some(volume));
    let mut nodes: Vec<_> = of_volume.map(|it| it.spec.node_name).collect();
    nodes.sort();
    Ok(nodes)
}

/// Status and reason of the condition Enforced.
async fn enforced(stage: &Stage, volume: &str) -> (String, String) {
    let health = stage.healths.get(volume).await.ok();
    let status = health.and_then(|health| health.status).unwrap_or_default();
    let condition = conditions::find(&status.conditions, "Enforced");
    condition.map(|it| (it.status.clone(), it.reason.clone())).unwrap_or_default()
}

async fn told(stage: &Stage, name: &str, reason: &str, text: &str) -> Result<(), Failed> {
    let events: Api<Event> = Api::all(stage.client.clone());
    eventually(&format!("{reason} on {name}"), async || {
        let all = events.list(&ListParams::default()).await.ok()?.items;
        let fits = |event: &Event| {
            event.regarding.as_ref().and_then(|it| it.name.as_deref()) == Some(name)
                && event.reason.as_deref() == Some(reason)
                && event.note.as_deref().unwrap_or_default().contains(text)
        };
        all.iter().any(fits).then_some(())
    })
    .await
}

async fn gone<K>(api: &Api<K>, name: &str) -> Option<()>
where
    K: Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    matches!(api.get_opt(name).await, Ok(None)).then_some(())
}

async fn no_healths(stage: &Stage) -> Option<()> {
    stage.healths.list(&ListParams::default()).await.ok()?.items.is_empty().then_some(())
}
