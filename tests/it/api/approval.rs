//! Who may approve a plan and hold an incident: people, and never the controller.

use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::Outcome;
use super::admission::{comes_to_deny, create, denied, dry_merge};
use super::objects::{api, changed, dynamic};
use super::rules::sample;
use super::world::World;

const DIGEST: &str = "sha256:9c1e55d0a7b3";

pub async fn people_approve_and_hold(world: &World) -> Outcome {
    let name = "approved";
    create(&world.controller, "NodeFence", name, &vec![]).await?;
    let write = PatchParams::default();
    for client in [&world.approver, &world.person, &world.admin] {
        let fences = api(client, "NodeFence");
        for change in [
            json!({"spec": {"approval": {"planDigest": DIGEST, "reason": "ticket 4711"}}}),
            json!({"spec": {"hold": {"reason": "the array is looked at"}}}),
            json!({"spec": {"approval": null, "hold": null}}),
        ] {
            fences.patch(name, &write, &Patch::Merge(&change)).await.map_err(|error| format!("{change}: {error}"))?;
        }
    }
    let fences = api(&world.approver, "NodeFence");
    let plan = Patch::Merge(json!({"spec": {"plan": {"digest": "sha256:00000000"}}}));
    let dry = dry_merge();
    comes_to_deny("people write only spec.approval and spec.hold", || fences.patch(name, &dry, &plan)).await?;
    // The role is for these two, and for reading.
    let told = Patch::Merge(json!({"status": {"phase": "Recovered"}}));
    let answer = fences.patch_status(name, &dry, &told).await;
    assert!(denied(&answer, "cannot patch resource \"nodefences/status\""), "{answer:?}");
    let made = dynamic(&changed(&sample("NodeFence")?, "made-up", &vec![])?)?;
    let answer = fences.create(&PostParams { dry_run: true, ..PostParams::default() }, &made).await;
    assert!(denied(&answer, "cannot create resource \"nodefences\""), "{answer:?}");
    Ok(())
}

pub async fn the_controller_neither_approves_nor_holds(world: &World) -> Outcome {
    let name = "held";
    create(&world.controller, "NodeFence", name, &vec![]).await?;
    let refusal = "people write spec.approval and spec.hold of a NodeFence, and the controller never does";
    let controller = api(&world.controller, "NodeFence");
    let (write, dry) = (PatchParams::default(), dry_merge());
    let approval = Patch::Merge(json!({"spec": {"approval": {"planDigest": DIGEST}}}));
    comes_to_deny(refusal, || controller.patch(name, &dry, &approval)).await?;
    let person = api(&world.approver, "NodeFence");
    let both = json!({"spec": {"approval": {"planDigest": DIGEST}, "hold": {"reason": "wait"}}});
    person.patch(name, &write, &Patch::Merge(&both)).await?;
    let refused = [
        json!({"spec": {"approval": null}}),
        json!({"spec": {"hold": null}}),
        json!({"spec": {"hold": {"reason": "go on"}}}),
        json!({"spec": {"approval": {"planDigest": "sha256:00000000"}, "plan": {"digest": "sha256:00000000"}}}),
        json!({"spec": {"episode": 3, "hold": null}}),
        json!({"spec": {"episode": 3, "approval": {"planDigest": "sha256:00000000"}}}),
    ];
    for change in refused {
        let answer = controller.patch(name, &dry, &Patch::Merge(&change)).await;
        assert!(denied(&answer, refusal), "{change}: {answer:?}");
    }
    // Its own writes leave both alone; the next episode drops the approval, which was of another plan.
    for change in [
        json!({"spec": {"plan": {"digest": "sha256:00000000"}}}),
        json!({"spec": {"episode": 3, "approval": null}}),
        json!({"metadata": {"labels": {"bulkhead.dev/active": null}}}),
    ] {
        controller.patch(name, &dry, &Patch::Merge(&change)).await.map_err(|error| format!("{change}: {error}"))?;
    }
    let made: Vec<(&str, Value)> = vec![("/spec/hold", json!({"reason": "made up"}))];
    let made = dynamic(&changed(&sample("NodeFence")?, "made-up", &made)?)?;
    let answer = controller.create(&PostParams { dry_run: true, ..PostParams::default() }, &made).await;
    assert!(denied(&answer, refusal), "{answer:?}");
    Ok(())
}
