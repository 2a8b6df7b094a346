//! Who may change what keeps new users off tainted volumes, tried with the identities it must stop.

use bulkhead_testbed::Identity;
use k8s_openapi::api::core::v1::{PersistentVolume, Pod};
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::Outcome;
use super::admission::{Answer, comes_to_deny, denied};
use super::objects::{api, dynamic};
use super::volumes::{GATE, dry, dry_merge, pod, status, tainted, tenants, volume};
use super::world::World;

/// `change` is refused to everybody but the controller.
async fn only_the_controller<T>(
    text: &str,
    mut person: impl AsyncFnMut() -> Answer<T>,
    controller: impl Future<Output = Answer<T>>,
) -> Outcome {
    comes_to_deny(text, async || person().await).await?;
    controller.await.map(drop).map_err(|error| format!("{text}: the controller: {error}").into())
}

pub async fn only_the_controller_projects(world: &World) -> Outcome {
    let volumes = |client: &Client| -> Api<PersistentVolume> { Api::all(client.clone()) };
    let (person, controller) = (volumes(&world.person), volumes(&world.controller));
    let name = "projected";
    volume(&world.admin, name, Some("Enforce")).await?;
    let reserved = json!({"kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": "bulkhead-system", "name": "reserved-by-bulkhead"});
    let reserve = Patch::Merge(json!({"spec": {"claimRef": reserved}}));
    controller.patch(name, &PatchParams::default(), &reserve).await?;
    let text = "taints of volume projected are a projection of its VolumeHealth: alice lacks the verb project";
    for change in [
        json!({"metadata": {"labels": {"bulkhead.dev/tainted": null}}}),
        json!({"metadata": {"labels": {"bulkhead.dev/tainted": "Observe"}}}),
        json!({"metadata": {"labels": {"bulkhead.dev/no-attach-or-mount": "Enforce"}}}),
        json!({"metadata": {"annotations": {"bulkhead.dev/volume-taints": "[]"}}}),
        json!({"spec": {"claimRef": null}}),
    ] {
        let change = Patch::Merge(change);
        let dry = dry_merge();
        only_the_controller(
            text,
            async || person.patch(name, &dry, &change).await,
            controller.patch(name, &dry, &change),
        )
        .await?;
    }
    let bound = Patch::Merge(json!({"spec": {"claimRef": {"namespace": "default", "name": "data"}}}));
    comes_to_deny(text, async || person.patch(name, &dry_merge(), &bound).await).await?;
    let unlabelled = Patch::Merge(json!({"metadata": {"labels": {"bulkhead.dev/tainted": null}}}));
    comes_to_deny(text, async || person.patch_status(name, &dry_merge(), &unlabelled).await).await?;
    person.patch(name, &dry_merge(), &Patch::Merge(json!({"metadata": {"labels": {"tier": "1"}}}))).await?;
    // What makes it a parameter.
    tainted(&world.admin, name, "shop/projected", &["VolumeNotUsable"]).await?;
    let (person, controller) = (api(&world.person, "VolumeHealth"), api(&world.controller, "VolumeHealth"));
    let unlabelled = Patch::Merge(json!({"metadata": {"labels": {"bulkhead.dev/no-attach-or-mount": null}}}));
    let (text, dry) = ("belongs to the controller: alice lacks the verb project", dry_merge());
    only_the_controller(
        text,
        async || person.patch(name, &dry, &unlabelled).await,
        controller.patch(name, &dry, &unlabelled),
    )
    .await?;
    nobody_else_touches_the_finalizers(&person, &controller, name).await?;
    nobody_else_adds_an_owner(world).await?;
    // Neither does anybody else forge a taint, or erase one.
    let text = "the status of a volumehealth belongs to the controller: alice lacks the verb project";
    for (phase, keys) in [("Unhealthy", &["VolumeNotUsable", "VolumeNotMounted"][..]), ("Healthy", &[])] {
        let mut next = controller.get(name).await?;
        next.data["status"] = status("shop/projected", keys)["status"].clone();
        next.data["status"]["phase"] = json!(phase);
        let change = Patch::Merge(json!({"status": next.data["status"]}));
        only_the_controller(
            text,
            async || person.patch_status(name, &dry, &change).await,
            controller.replace_status(name, &self::dry(), &next),
        )
        .await?;
    }
    let manual = json!({"spec": {"manualTaints": [{"key": "example.com/moved", "reason": "ticket 4711"}]}});
    person.patch(name, &dry, &Patch::Merge(manual)).await?;
    Ok(())
}

/// Ours keeps a VolumeHealth until its marks are taken back, and another one would keep it for ever.
async fn nobody_else_touches_the_finalizers(
    person: &Api<DynamicObject>,
    controller: &Api<DynamicObject>,
    name: &str,
) -> Outcome {
    let (ours, mine) = ("bulkhead.dev/projection", "example.com/mine");
    let holding = |finalizers: &[&str]| Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
    let text = "the list of finalizers of a volumehealth belongs to the controller: alice lacks the verb project";
    let dry = dry_merge();
    controller.patch(name, &PatchParams::default(), &holding(&[ours])).await?;
    for finalizers in [&[] as &[&str], &[mine], &[ours, mine]] {
        let change = holding(finalizers);
        let tried = async || person.patch(name, &dry, &change).await;
        only_the_controller(text, tried, controller.patch(name, &dry, &change)).await?;
    }
    // What the garbage collector does.
    person.patch(name, &dry, &holding(&[ours, "orphan"])).await?;
    controller.patch(name, &PatchParams::default(), &holding(&[])).await?;
    Ok(())
}

/// One that is not there has a VolumeHealth deleted, and what people have written is lost with it. To take owners away must stay
/// free: the garbage collector does, with an identity of its own.
async fn nobody_else_adds_an_owner(world: &World) -> Outcome {
    let [person, controller] = [&world.person, &world.controller].map(|client| api(client, "VolumeHealth"));
    let name = "owned";
    let owner = |kind: &str, name: &str, uid: &str| json!({"apiVersion": "v1", "kind": kind, "name": name, "uid": uid});
    let volume = owner("PersistentVolume", name, "uid-of-the-volume");
    let object = json!({
        "apiVersion": "bulkhead.dev/v1alpha1", "kind": "VolumeHealth", "spec": {},
        "metadata": {"name": name, "ownerReferences": [volume], "finalizers": ["bulkhead.dev/projection"]},
    });
    controller.create(&PostParams::default(), &dynamic(&object)?).await?;
    let owned_by = |owners: &[Value]| Patch::Merge(json!({"metadata": {"ownerReferences": owners}}));
    let text = "the list of owners of a volumehealth belongs to the controller: alice lacks the verb project";
    let (dry, another) = (dry_merge(), owner("PersistentVolume", name, "uid-of-another"));
    let mut newer_version = volume.clone();
    newer_version["apiVersion"] = json!("v2");
    for owners in [
        vec![another.clone()],
        vec![volume.clone(), another],
        vec![volume.clone(), owner("ConfigMap", "made-up", "made-up")],
        // Under another name or kind nothing has that uid: the garbage collector finds no owner there.
        vec![owner("PersistentVolume", "another", "uid-of-the-volume")],
        vec![owner("ConfigMap", name, "uid-of-the-volume")],
        vec![newer_version],
    ] {
        let change = owned_by(&owners);
        let tried = async || person.patch(name, &dry, &change).await;
        only_the_controller(text, tried, controller.patch(name, &dry, &change)).await?;
    }
    let mut blocking = volume.clone();
    blocking["blockOwnerDeletion"] = json!(true);
    for owners in [vec![], vec![volume], vec![blocking]] {
        let change = owned_by(&owners);
        person.patch(name, &dry, &change).await.map_err(|error| format!("{owners:?}: {error}"))?;
    }
    the_garbage_collector_does_its_work(world, &person, name).await
}

/// Its steps, with its identity and what it sends: no such program runs beside this API server.
async fn the_garbage_collector_does_its_work(world: &World, person: &Api<DynamicObject>, name: &str) -> Outcome {
    let user = "system:serviceaccount:kube-system:generic-garbage-collector".to_owned();
    let collector = world.testbed.client(&Identity::User { name: user, groups: Vec::new() }).await?;
    let collector = api(&collector, "VolumeHealth");
    let disowned = Patch::Merge(json!({"metadata": {"ownerReferences": []}}));
    collector.patch(name, &dry_merge(), &disowned).await?;
    person.delete(name, &DeleteParams::foreground()).await?;
    let finalizers = |object: &DynamicObject| object.metadata.finalizers.clone().unwrap_or_default();
    let going = collector.get(name).await?;
    let mut before = finalizers(&going);
    before.sort();
    assert_eq!(before, ["bulkhead.dev/projection", "foregroundDeletion"]);
    // Nothing depends on it: its part is done, and ours is left.
    let done = json!({"metadata": {
        "resourceVersion": going.metadata.resource_version, "finalizers": ["bulkhead.dev/projection"],
    }});
    let left = collector.patch(name, &PatchParams::default(), &Patch::Merge(done)).await?;
    assert_eq!(finalizers(&left), ["bulkhead.dev/projection"]);
    // It takes away no more than its own.
    let text = "the list of finalizers of a volumehealth belongs to the controller: \
                system:serviceaccount:kube-system:generic-garbage-collector lacks the verb project";
    let all = Patch::Merge(json!({"metadata": {"finalizers": []}}));
    comes_to_deny(text, async || collector.patch(name, &dry_merge(), &all).await).await?;
    api(&world.controller, "VolumeHealth").patch(name, &PatchParams::default(), &all).await?;
    let is_left = person.get_opt(name).await?.is_some();
    assert!(!is_left, "{name} is still there");
    Ok(())
}

/// With every right in its namespace a team can neither untaint, nor ungate, nor taint.
pub async fn only_the_controller_lets_a_pod_go(world: &World) -> Outcome {
    let (bob, _) = tenants(&world.testbed).await?;
    let of = |client: &Client| -> Api<Pod> { Api::namespaced(client.clone(), "shop") };
    let (pods, controller) = (of(&bob), of(&world.controller));
    let name = "ungated";
    let gated = json!({"spec": {"schedulingGates": [{"name": "example.com/quota"}, {"name": GATE}]}});
    pods.create(&PostParams::default(), &pod(name, "ungated", gated)?).await?;
    let ungate: Patch<Value> =
        Patch::Json(serde_json::from_value(json!([{"op": "remove", "path": "/spec/schedulingGates/1"}]))?);
    let dry = dry_merge();
    let text = "the pod waits for a tainted volume: bob lacks the verb project on volumehealths.bulkhead.dev";
    only_the_controller(text, async || pods.patch(name, &dry, &ungate).await, controller.patch(name, &dry, &ungate))
        .await?;
    pods.patch(name, &dry, &Patch::Merge(json!({"metadata": {"labels": {"tier": "1"}}}))).await?;
    // That is all that the controller may change of a pod.
    for (change, text) in [
        (
            json!([{"op": "replace", "path": "/spec/containers/0/image", "value": "other"}]),
            "changes nothing of a pod but",
        ),
        (json!([{"op": "add", "path": "/metadata/labels", "value": {"app": "other"}}]), "changes nothing of a pod but"),
        (json!([{"op": "remove", "path": "/spec/schedulingGates/0"}]), "removes no scheduling gate but its own"),
    ] {
        let change: Patch<Value> = Patch::Json(serde_json::from_value(change)?);
        comes_to_deny(text, async || controller.patch(name, &dry, &change).await).await?;
    }
    let health = api(&bob, "VolumeHealth");
    let change = Patch::Merge(json!({"metadata": {"labels": {"bulkhead.dev/no-attach-or-mount": "Enforce"}}}));
    for answer in
        [health.patch("tolerable", &dry, &change).await, health.patch_status("tolerable", &dry, &change).await]
    {
        assert!(denied(&answer, "cannot patch resource \"volumehealths"), "{answer:?}");
    }
    let volume = Api::<PersistentVolume>::all(bob.clone()).patch("tolerable", &dry, &change).await;
    assert!(denied(&volume, "cannot patch resource \"persistentvolumes\""), "{volume:?}");
    pods.delete(name, &DeleteParams::default().grace_period(0)).await?;
    Ok(())
}
