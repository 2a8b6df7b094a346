//! Who may change what keeps new users off tainted volumes, tried with the identities it must stop.

use k8s_openapi::api::core::v1::{PersistentVolume, Pod};
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::Outcome;
use super::admission::{Answer, comes_to_deny, denied};
use super::objects::api;
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
