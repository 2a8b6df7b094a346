//! What keeps new users off tainted volumes, tried with the identities it must stop.

use bulkhead_testbed::{Identity, Testbed, TestbedOptions};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use libtest_mimic::Failed;
use serde_json::{Value, json};

use super::Outcome;
use super::admission::{comes_to_deny, denied};
use super::objects::{api, dynamic};
use super::world::{World, eventually, root, samples};

pub const GATE: &str = "bulkhead.dev/volume-tainted";

pub fn dry() -> PostParams {
    PostParams { dry_run: true, ..PostParams::default() }
}

pub fn dry_merge() -> PatchParams {
    PatchParams { dry_run: true, ..PatchParams::default() }
}

/// A team that has all rights in the namespace `shop`, and who has the verb `tolerate` on the volume `tolerable`.
pub async fn tenants(testbed: &Testbed) -> Result<(Client, Client), Failed> {
    testbed.apply_file(&samples().join("tenant.yaml")).await?;
    let team = |name: &str| Identity::User { name: name.into(), groups: vec!["shop-team".into()] };
    Ok((testbed.client(&team("bob")).await?, testbed.client(&team("carol")).await?))
}

/// A volume without a claim.
pub async fn volume(client: &Client, name: &str, level: Option<&str>) -> Result<PersistentVolume, Failed> {
    let mut object = json!({
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "csi": {"driver": "csi.block.example.com", "volumeHandle": name},
        },
    });
    if let Some(level) = level {
        object["metadata"]["labels"] = json!({"bulkhead.dev/tainted": level});
        object["metadata"]["annotations"] = json!({"bulkhead.dev/volume-taints": "[{\"key\":\"VolumeNotUsable\"}]"});
    }
    Ok(Api::all(client.clone()).create(&PostParams::default(), &serde_json::from_value(object)?).await?)
}

/// The VolumeHealth of a volume that `claim` has, as the controller leaves it under Enforce.
pub async fn tainted(client: &Client, name: &str, claim: &str, keys: &[&str]) -> Outcome {
    let health = api(client, "VolumeHealth");
    let object = json!({
        "apiVersion": "bulkhead.dev/v1alpha1", "kind": "VolumeHealth", "spec": {},
        "metadata": {"name": name, "labels": {"bulkhead.dev/no-attach-or-mount": "Enforce"}},
    });
    health.create(&PostParams::default(), &dynamic(&object)?).await?;
    health.patch_status(name, &PatchParams::default(), &Patch::Merge(status(claim, keys))).await?;
    Ok(())
}

pub fn status(claim: &str, keys: &[&str]) -> Value {
    let taint = |key: &&str| {
        json!({
            "key": key, "value": "true", "effect": "NoAttachOrMount", "source": "NodeAgent", "reason": "IOError",
            "timeAdded": "2026-11-21T02:14:31Z",
        })
    };
    json!({"status": {
        "phase": "Unhealthy", "enforcement": "Enforce", "taints": keys.iter().map(taint).collect::<Vec<_>>(),
        "volume": {"uid": "u", "source": "CSI", "pvPhase": "Bound", "claim": claim},
    }})
}

/// A pod in the namespace `shop` that uses a claim.
pub fn pod(name: &str, claim: &str, spec: Value) -> Result<Pod, Failed> {
    let mut object = json!({
        "metadata": {"name": name},
        "spec": {
            "containers": [{"name": "main", "image": "app"}],
            "volumes": [
                {"name": "scratch", "emptyDir": {}},
                {"name": "data", "persistentVolumeClaim": {"claimName": claim}},
            ],
        },
    });
    bulkhead_testbed::cluster::merge(&mut object, &spec);
    Ok(serde_json::from_value(object)?)
}

fn gates(pod: &Pod) -> Vec<String> {
    let gates = pod.spec.iter().flat_map(|spec| spec.scheduling_gates.iter().flatten());
    gates.map(|gate| gate.name.clone()).collect()
}

pub async fn a_tainted_volume_is_bound_to_no_claim(world: &World) -> Outcome {
    let volumes: Api<PersistentVolume> = Api::all(world.admin.clone());
    for (name, level) in [("bind-enforced", Some("Enforce")), ("bind-observed", Some("Observe")), ("bind-sound", None)]
    {
        volume(&world.admin, name, level).await?;
    }
    let claimed = |uid: &str| {
        let claim = json!({"kind": "PersistentVolumeClaim", "namespace": "default", "name": "data", "uid": uid});
        Patch::Merge(json!({"spec": {"claimRef": claim}}))
    };
    // Nobody is exempt: this is who may do everything.
    let text = "volume bind-enforced is tainted and is bound to no claim until it is healthy: [{\"key\":\"VolumeNotUsable\"}]; \
                see kubectl describe volumehealth bind-enforced";
    comes_to_deny(text, async || volumes.patch("bind-enforced", &dry_merge(), &claimed("1")).await).await?;
    for name in ["bind-observed", "bind-sound"] {
        volumes.patch(name, &dry_merge(), &claimed("1")).await?;
    }
    for change in [
        json!({"spec": {"claimRef": {"kind": "PersistentVolumeClaim", "namespace": "default", "name": "data"}}}),
        json!({"metadata": {"finalizers": ["kubernetes.io/pv-protection"], "annotations": {"ticket": "4711"}}}),
        json!({"spec": {"capacity": {"storage": "2Gi"}, "persistentVolumeReclaimPolicy": "Retain"}}),
    ] {
        volumes.patch("bind-enforced", &dry_merge(), &Patch::Merge(&change)).await?;
    }
    let phase = Patch::Merge(json!({"status": {"phase": "Failed"}}));
    volumes.patch_status("bind-enforced", &dry_merge(), &phase).await?;
    a_bound_volume_stays_bound(world, &volumes).await
}

async fn a_bound_volume_stays_bound(world: &World, volumes: &Api<PersistentVolume>) -> Outcome {
    let name = "bind-bound";
    volume(&world.admin, name, None).await?;
    let claim =
        |uid: &str| json!({"kind": "PersistentVolumeClaim", "namespace": "default", "name": "data", "uid": uid});
    let bound = json!({"spec": {"claimRef": claim("1")}, "metadata": {"labels": {"bulkhead.dev/tainted": "Enforce"}}});
    volumes.patch(name, &PatchParams::default(), &Patch::Merge(&bound)).await?;
    let another = Patch::Merge(json!({"spec": {"claimRef": claim("2")}}));
    comes_to_deny("is bound to no claim until it is healthy", async || {
        volumes.patch(name, &dry_merge(), &another).await
    })
    .await?;
    for change in [
        json!({"metadata": {"finalizers": null, "annotations": {"pv.kubernetes.io/bound-by-controller": "yes"}}}),
        json!({"spec": {"claimRef": {"resourceVersion": "7"}, "capacity": {"storage": "2Gi"}}}),
        json!({"spec": {"claimRef": null}}),
    ] {
        volumes
            .patch(name, &dry_merge(), &Patch::Merge(&change))
            .await
            .map_err(|error| format!("{change}: {error}"))?;
    }
    Ok(())
}

pub async fn the_claim_that_volumes_are_reserved_for_is_never_made(world: &World) -> Outcome {
    let claim = |name: &str| -> Result<PersistentVolumeClaim, Failed> {
        let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
        Ok(serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec}))?)
    };
    let (reserved, other) = (claim("reserved-by-bulkhead")?, claim("data")?);
    let ours: Api<PersistentVolumeClaim> = Api::namespaced(world.admin.clone(), "bulkhead-system");
    let text = "tainted volumes are reserved for this name, and no claim may have it";
    comes_to_deny(text, async || ours.create(&dry(), &reserved).await).await?;
    ours.create(&dry(), &other).await?;
    Api::<PersistentVolumeClaim>::default_namespaced(world.admin.clone()).create(&dry(), &reserved).await?;
    Ok(())
}

fn attachment(volume: &str) -> Result<VolumeAttachment, Failed> {
    let source = json!({"persistentVolumeName": volume});
    let spec = json!({"attacher": "csi.block.example.com", "nodeName": "worker-9", "source": source});
    Ok(serde_json::from_value(json!({"metadata": {"name": format!("of-{volume}")}, "spec": spec}))?)
}

pub async fn a_tainted_volume_is_attached_to_no_further_node(world: &World) -> Outcome {
    tainted(&world.admin, "attach-1", "shop/attach", &["VolumeNotUsable", "example.com/moved"]).await?;
    let attachments = Api::<VolumeAttachment>::all(world.admin.clone());
    let (bad, good) = (attachment("attach-1")?, attachment("attach-2")?);
    let text = "volume attach-1 is tainted and is attached to no further node until it is healthy: \
                VolumeNotUsable (IOError), example.com/moved (IOError); see kubectl describe volumehealth attach-1";
    comes_to_deny(text, async || attachments.create(&dry(), &bad).await).await?;
    attachments.create(&dry(), &good).await?;
    unlabel(&world.admin, "attach-1").await?;
    eventually("attach-1 is attached again", async || attachments.create(&dry(), &bad).await.ok()).await.map(drop)
}

async fn unlabel(client: &Client, name: &str) -> Outcome {
    let change = Patch::Merge(json!({"metadata": {"labels": {"bulkhead.dev/no-attach-or-mount": null}}}));
    api(client, "VolumeHealth").patch(name, &PatchParams::default(), &change).await?;
    Ok(())
}

/// Repeats a dry run until the pod that would be created has our gate, and it alone.
async fn comes_to_wait(pods: &Api<Pod>, pod: &Pod) -> Outcome {
    eventually("a pod with our gate", async || pods.create(&dry(), pod).await.ok().filter(|pod| gates(pod) == [GATE]))
        .await
        .map(drop)
}

pub async fn a_new_pod_of_a_tainted_volume_waits(world: &World) -> Outcome {
    let (bob, _) = tenants(&world.testbed).await?;
    tainted(&world.admin, "wait-1", "shop/wait", &["VolumeNotUsable"]).await?;
    let pods: Api<Pod> = Api::namespaced(bob, "shop");
    comes_to_wait(&pods, &pod("held", "wait", json!({}))?).await?;
    // A gate of somebody else stays, and ours is not added twice.
    for gates_given in [json!([{"name": "example.com/quota"}]), json!([{"name": GATE}, {"name": "example.com/quota"}])]
    {
        let created =
            pods.create(&dry(), &pod("held", "wait", json!({"spec": {"schedulingGates": gates_given}}))?).await?;
        let mut names = gates(&created);
        names.sort();
        assert_eq!(names, [GATE, "example.com/quota"]);
    }
    // A generic ephemeral volume by the name of its claim; a claim of that name elsewhere; one that only looks like it.
    let ephemeral = json!({"spec": {"volumes": [{"name": "data", "ephemeral": {"volumeClaimTemplate": {"spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}}}]}});
    tainted(&world.admin, "wait-2", "shop/held-data", &["VolumeNotUsable"]).await?;
    comes_to_wait(&pods, &pod("held", "wait", ephemeral.clone())?).await?;
    for (name, claim, spec) in [
        ("held", "other", json!({})),
        ("hel", "d-data", json!({})),
        ("other", "wait", ephemeral),
        ("none", "x", no_volumes()),
    ] {
        assert_eq!(
            gates(&pods.create(&dry(), &pod(name, claim, spec)?).await?),
            Vec::<String>::new(),
            "{name} {claim}"
        );
    }
    let elsewhere: Api<Pod> = Api::default_namespaced(world.admin.clone());
    assert_eq!(gates(&elsewhere.create(&dry(), &pod("held", "wait", json!({}))?).await?), Vec::<String>::new());
    a_pod_that_cannot_wait_is_refused(&pods).await?;
    // The claim is gone, and another of its name may have another volume.
    let released = Patch::Merge(json!({"status": {"volume": {"pvPhase": "Released"}}}));
    api(&world.admin, "VolumeHealth").patch_status("wait-1", &PatchParams::default(), &released).await?;
    eventually("a pod of another claim of that name", async || {
        let created = pods.create(&dry(), &pod("held", "wait", json!({})).ok()?).await.ok()?;
        gates(&created).is_empty().then_some(())
    })
    .await
}

fn no_volumes() -> Value {
    json!({"spec": {"volumes": null}})
}

async fn a_pod_that_cannot_wait_is_refused(pods: &Api<Pod>) -> Outcome {
    let text = "claim shop/wait is on volume wait-1, which is tainted and takes no new pod until it is healthy: \
                VolumeNotUsable (IOError); see kubectl describe volumehealth wait-1";
    let placed = pod("held", "wait", json!({"spec": {"nodeName": "worker-9"}}))?;
    comes_to_deny(text, async || pods.create(&dry(), &placed).await).await
}

pub async fn a_pod_that_may_tolerate_the_taints_passes(world: &World) -> Outcome {
    let (bob, carol) = tenants(&world.testbed).await?;
    let of = |client: &Client| -> Api<Pod> { Api::namespaced(client.clone(), "shop") };
    let (bob, carol) = (of(&bob), of(&carol));
    let keys = ["VolumeNotUsable", "example.com/moved"];
    tainted(&world.admin, "tolerable", "shop/tolerable", &keys).await?;
    tainted(&world.admin, "intolerable", "shop/intolerable", &keys).await?;
    let tolerating = |claim: &str, keys: &str, spec: Value| {
        let mut object =
            json!({"metadata": {"annotations": {"bulkhead.dev/tolerate-volume-taints": keys}}, "spec": spec});
        object["spec"]["automountServiceAccountToken"] = json!(false);
        pod("fsck", claim, object)
    };
    let (all, placed) = ("VolumeNotUsable, example.com/moved", json!({"nodeName": "worker-9"}));
    for claim in ["tolerable", "intolerable"] {
        comes_to_wait(&bob, &pod("fsck", claim, json!({}))?).await?;
    }
    // By who creates it, and by who it runs as.
    for (pods, spec) in [(&carol, json!({})), (&carol, placed.clone()), (&bob, json!({"serviceAccountName": "rescue"}))]
    {
        let created = pods.create(&dry(), &tolerating("tolerable", all, spec)?).await?;
        assert_eq!(gates(&created), Vec::<String>::new());
    }
    // Without the annotation, without all keys, without the right for that volume: it waits, or is refused with the reason.
    let refusals: [(&Api<Pod>, &str, &str, Value, &str); 4] = [
        (&carol, "tolerable", "", json!({}), "see kubectl describe volumehealth tolerable"),
        (&carol, "tolerable", "VolumeNotUsable", json!({}), "volume-taints does not name all of them"),
        (
            &carol,
            "intolerable",
            all,
            json!({}),
            "neither carol nor the pod's ServiceAccount has the verb tolerate on \
                                                   volumehealths.bulkhead.dev/intolerable",
        ),
        (&bob, "tolerable", all, json!({}), "neither bob nor the pod's ServiceAccount has the verb tolerate"),
    ];
    for (pods, claim, keys, spec, text) in refusals {
        assert_eq!(gates(&pods.create(&dry(), &tolerating(claim, keys, spec)?).await?), [GATE], "{claim} {keys}");
        let answer = pods.create(&dry(), &tolerating(claim, keys, placed.clone())?).await;
        assert!(denied(&answer, text), "{text}: {answer:?}");
    }
    Ok(())
}

/// Clusters before 1.36 have no policy that adds the gate. And with `failurePolicy: Fail` a missing definition would stop
/// every pod and every attach of the cluster.
pub async fn without_the_gate_pods_are_refused_and_without_our_definitions_nothing_is() -> Outcome {
    let testbed = Testbed::start(TestbedOptions::api_server_only()).await?;
    testbed.apply_dir(&root().join("config/before-1.36")).await?;
    let (bob, _) = tenants(&testbed).await?;
    let admin = testbed.client(&Identity::Admin).await?;
    tainted(&admin, "pv", "shop/data", &["VolumeNotUsable"]).await?;
    let pods: Api<Pod> = Api::namespaced(bob, "shop");
    let (held, attachments) = (pod("held", "data", json!({}))?, Api::<VolumeAttachment>::all(admin.clone()));
    comes_to_deny("claim shop/data is on volume pv, which is tainted", async || pods.create(&dry(), &held).await)
        .await?;
    let attached = attachment("pv")?;
    comes_to_deny("volume pv is tainted", async || attachments.create(&dry(), &attached).await).await?;
    testbed.kubectl(&["delete", "crd", "volumehealths.bulkhead.dev"]).await?;
    eventually("a pod without a definition of VolumeHealth", async || pods.create(&dry(), &held).await.ok()).await?;
    eventually("an attachment without it", async || attachments.create(&dry(), &attached).await.ok()).await?;
    Ok(())
}
