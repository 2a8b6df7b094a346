//! The admission policies, tried with the identities they must stop.

use bulkhead_testbed::{Identity, Testbed, TestbedOptions};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use libtest_mimic::Failed;
use serde_json::{Value, json};

use super::Outcome;
use super::objects::{Changes, api, api_of, changed, dynamic, one, with_status};
use super::rules::{dry_run, sample};
use super::world::{DRIVER, World, eventually, root, samples};

/// What the server says.
pub type Answer<T> = Result<T, kube::Error>;

/// Whether an answer is a refusal with this text by an admission policy.
pub fn denied<T>(answer: &Answer<T>, text: &str) -> bool {
    matches!(answer, Err(kube::Error::Api(status)) if status.code == 403 && status.message.contains(text))
}

/// Repeats a dry run until it is refused: a policy is in force some time after it is stored.
pub async fn comes_to_deny<T>(text: &str, mut attempt: impl AsyncFnMut() -> Answer<T>) -> Outcome {
    eventually(text, async || denied(&attempt().await, text).then_some(())).await
}

pub fn dry_merge() -> PatchParams {
    PatchParams { dry_run: true, ..PatchParams::default() }
}

pub async fn create(client: &Client, kind: &str, name: &str, changes: &Changes) -> Result<DynamicObject, Failed> {
    let object = changed(&sample(kind)?, name, changes)?;
    Ok(api_of(client, &object)?.create(&PostParams::default(), &dynamic(&object)?).await?)
}

pub async fn only_the_fencer_attests(world: &World) -> Outcome {
    let ours = create(&world.controller, "FenceRequest", "for-us", &vec![("/spec/fencerName", json!(DRIVER))]).await?;
    let other = create(&world.controller, "FenceRequest", "for-block", &vec![]).await?;
    let answer = json!({"progress": "0/2"});
    let (ours, other) = (with_status(&ours, &answer)?, with_status(&other, &answer)?);
    let dry = dry_run();
    let sidecar = api(&world.sidecar, "FenceRequest");
    comes_to_deny(
        "only fencer csi.block.example.com may answer: system:serviceaccount:bulkhead-system:bulkhead-csi-sidecar lacks \
         the verb attest on fencers.bulkhead.dev/csi.block.example.com",
        || sidecar.replace_status("for-block", &dry, &other),
    )
    .await?;
    sidecar.replace_status("for-us", &dry, &ours).await?;
    let person = api(&world.person, "FenceRequest").replace_status("for-us", &dry, &ours).await;
    assert!(denied(&person, "alice lacks the verb attest"), "{person:?}");
    // Nor can the controller make up a proof: it has not even the subresource.
    let controller = api(&world.controller, "FenceRequest").replace_status("for-us", &dry, &ours).await;
    assert!(denied(&controller, "cannot update resource \"fencerequests/status\""), "{controller:?}");
    Ok(())
}

pub async fn only_the_driver_reports(world: &World) -> Outcome {
    let report = one(&samples().join("driverreport.yaml"))?;
    let ours = dynamic(&changed(&report, DRIVER, &vec![])?)?;
    let other = dynamic(&changed(&report, "csi.block.example.com", &vec![])?)?;
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let sidecar = api(&world.sidecar, "DriverReport");
    comes_to_deny("only the sidecar or the fencer of csi.block.example.com may report", || {
        sidecar.create(&dry, &other)
    })
    .await?;
    // The samples test may have created it meanwhile.
    match sidecar.create(&dry, &ours).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        Err(error) => return Err(error.into()),
    }
    let person = api(&world.person, "DriverReport").create(&dry, &other).await;
    assert!(denied(&person, "alice lacks the verb attest"), "{person:?}");
    Ok(())
}

/// With the rights of the power fencer that is shipped as an example.
pub async fn only_the_fencer_tells_of_power(world: &World) -> Outcome {
    const FENCER: &str = "redfish.example.com";
    world.testbed.apply_file(&root().join("config/samples/fencers/redfish/rbac.yaml")).await?;
    let account = "system:serviceaccount:bulkhead-redfish:redfish-fencer".to_owned();
    let fencer = world.testbed.client(&Identity::User { name: account, groups: Vec::new() }).await?;
    let fencer = api(&fencer, "DriverReport");
    let report = one(&samples().join("driverreport.yaml"))?;
    let ours = dynamic(&changed(&report, FENCER, &vec![])?)?;
    let params = PostParams::default();
    eventually("the fencer makes its report", async || fencer.create(&params, &ours).await.ok()).await?;
    let row = json!({"node": "worker-3", "nodeUID": "0b6c1c4e", "bootID": "5e2d7a50", "since": "2026-11-21T02:12:35Z"});
    let mut told = fencer.get(FENCER).await?;
    told.data["status"] = json!({"poweredOff": [row]});
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let sidecar = api(&world.sidecar, "DriverReport");
    comes_to_deny("lacks the verb attest on fencers.bulkhead.dev/redfish.example.com", || {
        sidecar.replace_status(FENCER, &dry, &told)
    })
    .await?;
    let person = api(&world.person, "DriverReport").replace_status(FENCER, &dry, &told).await;
    assert!(denied(&person, "alice lacks the verb attest"), "{person:?}");
    let controller = api(&world.controller, "DriverReport").replace_status(FENCER, &dry, &told).await;
    assert!(denied(&controller, "cannot update resource \"driverreports/status\""), "{controller:?}");
    let written = fencer.replace_status(FENCER, &params, &told).await?;
    assert_eq!(written.data["status"], told.data["status"]);
    // Nor does it speak for a driver, nor of a machine whatever boot that is in.
    let driver = dynamic(&changed(&report, "csi.block.example.com", &vec![])?)?;
    let driver = fencer.create(&dry, &driver).await;
    assert!(denied(&driver, "only the sidecar or the fencer of csi.block.example.com may report"), "{driver:?}");
    let mut vague = written;
    vague.data["status"]["poweredOff"][0]["bootID"] = Value::Null;
    match fencer.replace_status(FENCER, &dry, &vague).await {
        Err(kube::Error::Api(status)) if status.code == 422 && status.message.contains("bootID") => Ok(()),
        other => Err(format!("a row without its boot: {other:?}").into()),
    }
}

pub async fn people_change_no_plan(world: &World) -> Outcome {
    let name = "frozen";
    let finalizers = json!(["bulkhead.dev/node-clean", "foregroundDeletion"]);
    create(&world.controller, "NodeFence", name, &vec![("/metadata/finalizers", finalizers)]).await?;
    let person = api(&world.person, "NodeFence");
    let dry = dry_merge();
    let frozen = "people write only spec.approval and spec.hold";
    let grown = Patch::Merge(json!({"spec": {"plan": {"digest": "sha256:00000000"}}}));
    comes_to_deny(frozen, || person.patch(name, &dry, &grown)).await?;
    for (change, text) in [
        (json!({"spec": {"episode": 3}}), frozen),
        (json!({"spec": {"hold": {"reason": "wait"}, "plan": {"digest": "sha256:00000000"}}}), frozen),
        (json!({"metadata": {"labels": {"bulkhead.dev/active": null}}}), "labels and finalizers"),
        (json!({"metadata": {"labels": {"team": "storage"}}}), "labels and finalizers"),
        (json!({"metadata": {"finalizers": ["foregroundDeletion"]}}), "labels and finalizers"),
        (json!({"metadata": {"finalizers": null}}), "labels and finalizers"),
    ] {
        let answer = person.patch(name, &dry, &Patch::Merge(&change)).await;
        assert!(denied(&answer, text), "{change}: {answer:?}");
    }
    // What the garbage collector does, and what concerns nobody.
    for change in [
        json!({"metadata": {"finalizers": ["bulkhead.dev/node-clean"]}}),
        json!({"metadata": {"annotations": {"ticket": "4711"}}}),
    ] {
        person.patch(name, &dry, &Patch::Merge(&change)).await.map_err(|error| format!("{change}: {error}"))?;
    }
    api(&world.controller, "NodeFence").patch(name, &dry, &grown).await?;
    Ok(())
}

pub async fn only_the_controller_plans(world: &World) -> Outcome {
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    for kind in ["NodeFence", "FenceRequest"] {
        let object = dynamic(&changed(&sample(kind)?, "made-up", &vec![])?)?;
        let person = api(&world.person, kind);
        comes_to_deny("only the controller writes this: alice lacks the verb plan", || person.create(&dry, &object))
            .await?;
        api(&world.controller, kind).create(&dry, &object).await?;
    }
    let stored = create(&world.controller, "NodeFence", "told", &vec![]).await?;
    let told = with_status(&stored, &json!({"phase": "Recovered"}))?;
    let person = api(&world.person, "NodeFence");
    comes_to_deny("alice lacks the verb plan", || person.replace_status("told", &dry, &told)).await?;
    api(&world.controller, "NodeFence").replace_status("told", &dry, &told).await?;
    Ok(())
}

/// Not even the controller changes what is planned or asked for.
pub async fn what_is_planned_and_asked_for_is_frozen(world: &World) -> Outcome {
    let (pod, volume) = ("a planned pod cannot be changed", "a planned volume cannot be changed");
    let (carried, asked) = ("carried over from an earlier episode cannot be changed", "only its round can rise");
    let (network, unpublish) = (json!({"type": "NetworkFence", "className": "c"}), json!({"type": "Unpublish"}));
    let refusals: [(&str, &str, Changes); 9] = [
        ("NodeFence", pod, vec![("/spec/plan/pods/0/action", json!("Keep"))]),
        ("NodeFence", volume, vec![("/spec/plan/volumes/0/minimumProof", json!("None"))]),
        ("NodeFence", volume, vec![("/spec/plan/volumes/1/nodeID", Value::Null)]),
        (
            "NodeFence",
            carried,
            vec![("/spec/episode", json!(3)), ("/spec/plan/volumes/0/volumeHandle", json!("other"))],
        ),
        ("FenceRequest", asked, vec![("/spec/volumes/1/round", json!(2))]),
        ("FenceRequest", asked, vec![("/spec/volumes/0/volumeHandle", json!("vol-1"))]),
        ("FenceRequest", asked, vec![("/spec/volumes/0/attachmentUID", Value::Null)]),
        ("FenceRequest", asked, vec![("/spec/volumes/0/methods", json!([network]))]),
        ("FenceRequest", asked, vec![("/spec/episode", json!(3)), ("/spec/volumes/1", Value::Null)]),
    ];
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    for kind in ["NodeFence", "FenceRequest"] {
        let stored = serde_json::to_value(create(&world.controller, kind, "rows", &vec![]).await?)?;
        let api = api(&world.controller, kind);
        for (_, text, changes) in refusals.iter().filter(|(of, ..)| *of == kind) {
            let update = dynamic(&changed(&stored, "rows", changes)?)?;
            let refused = |answer: &Answer<DynamicObject>| matches!(answer, Err(kube::Error::Api(status)) if status.code == 422 && status.message.contains(text));
            eventually(text, async || refused(&api.replace("rows", &dry, &update).await).then_some(())).await?;
        }
        let risen: Changes = match kind {
            "NodeFence" => vec![("/spec/plan/digest", json!("sha256:00000000"))],
            _ => vec![("/spec/volumes/0/round", json!(7)), ("/spec/volumes/0/methods", json!([unpublish, network]))],
        };
        api.replace("rows", &dry, &dynamic(&changed(&stored, "rows", &risen)?)?).await?;
    }
    Ok(())
}

fn attachment(node: &str) -> Result<VolumeAttachment, Failed> {
    let object: Value = json!({
        "metadata": {"name": format!("to-{node}")},
        "spec": {"attacher": DRIVER, "nodeName": node, "source": {"persistentVolumeName": "pv"}},
    });
    Ok(serde_json::from_value(object)?)
}

pub async fn a_fenced_node_gets_no_attachments(world: &World) -> Outcome {
    let attachments = Api::<VolumeAttachment>::all(world.admin.clone());
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let inactive = vec![("/metadata/labels", Value::Null)];
    create(&world.controller, "NodeFence", "dead", &vec![]).await?;
    create(&world.controller, "NodeFence", "recovered", &inactive).await?;
    let (dead, recovered, healthy) = (attachment("dead")?, attachment("recovered")?, attachment("healthy")?);
    comes_to_deny("node dead is fenced (NodeFence episode 2): no new attachments until it is clean", || {
        attachments.create(&dry, &dead)
    })
    .await?;
    attachments.create(&dry, &recovered).await?;
    attachments.create(&dry, &healthy).await?;
    // Recovered: the label goes, and with it the lock.
    let unlabelled = Patch::Merge(json!({"metadata": {"labels": {"bulkhead.dev/active": null}}}));
    api(&world.controller, "NodeFence").patch("dead", &PatchParams::default(), &unlabelled).await?;
    eventually("dead gets attachments again", async || attachments.create(&dry, &dead).await.ok()).await?;
    Ok(())
}

/// What a paused leader had on its way may arrive when the incident is over.
pub async fn a_fence_is_asked_for_in_an_open_incident_only(world: &World) -> Outcome {
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    create(&world.controller, "NodeFence", "open", &vec![("/spec/episode", json!(2))]).await?;
    create(&world.controller, "NodeFence", "over", &vec![("/metadata/labels", Value::Null)]).await?;
    let asked = |node: &str, episode: i64| -> Result<DynamicObject, Failed> {
        let changes = vec![("/spec/nodeName", json!(node)), ("/spec/episode", json!(episode))];
        dynamic(&changed(&sample("FenceRequest")?, &format!("for-{node}-{episode}"), &changes)?)
    };
    let requests = api(&world.controller, "FenceRequest");
    for late in [asked("over", 2)?, asked("open", 1)?] {
        comes_to_deny("is over: nothing of it is fenced any more", || requests.create(&dry, &late)).await?;
    }
    for due in [asked("open", 2)?, asked("unheard-of", 1)?] {
        requests.create(&dry, &due).await?;
    }
    Ok(())
}

/// With `failurePolicy: Fail` this would stop every attach of the cluster.
pub async fn without_our_definitions_nodes_get_attachments() -> Outcome {
    let testbed = Testbed::start(TestbedOptions::api_server_only()).await?;
    testbed.apply_dir(&root().join("config/crd")).await?;
    testbed.apply_file(&root().join("config/policies/fenced-node-attachments.yaml")).await?;
    let client = testbed.client(&Identity::Admin).await?;
    let attachments = Api::<VolumeAttachment>::all(client.clone());
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    create(&client, "NodeFence", "dead", &vec![("/metadata/finalizers", Value::Null)]).await?;
    let dead = attachment("dead")?;
    comes_to_deny("node dead is fenced", || attachments.create(&dry, &dead)).await?;
    testbed.kubectl(&["delete", "crd", "nodefences.bulkhead.dev"]).await?;
    eventually("an attachment without a definition of NodeFence", async || attachments.create(&dry, &dead).await.ok())
        .await?;
    Ok(())
}
