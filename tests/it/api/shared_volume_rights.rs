//! Who may do what with SharedVolumes, and what their controller may do in the namespaces of others; tried with the
//! identities that must be stopped.

use bulkhead::api::shared_volume::{ADOPT_ANNOTATION, SHARED_VOLUME_LABEL, SLICE_MANAGER};
use bulkhead_testbed::Identity;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Endpoints, PersistentVolumeClaim, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use libtest_mimic::Failed;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::Outcome;
use super::admission::{Answer, comes_to_deny, denied};
use super::objects::{api_of, dynamic};
use super::rules::dry_run;
use super::world::{World, samples};

const NAMESPACE: &str = "atelier";

fn dry_merge() -> PatchParams {
    PatchParams { dry_run: true, ..PatchParams::default() }
}

fn dry_delete() -> DeleteParams {
    DeleteParams { dry_run: true, ..DeleteParams::default() }
}

/// One of the team, and the one who may name addresses.
async fn team(world: &World) -> Result<(Client, Client), Failed> {
    world.testbed.apply_file(&samples().join("shared-volume-team.yaml")).await?;
    let member = |name: &str| Identity::User { name: name.into(), groups: vec!["atelier-team".into()] };
    Ok((world.testbed.client(&member("carlo")).await?, world.testbed.client(&member("dora")).await?))
}

fn volume(name: &str, backend: Value) -> Value {
    json!({
        "apiVersion": "bulkhead.dev/v1alpha1", "kind": "SharedVolume", "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"claimName": name, "backend": backend},
    })
}

fn servers(address: &str) -> Value {
    let server = |name: &str, address: &str| json!({"name": name, "addresses": [address], "ports": [{"name": "nfs", "port": 2049}]});
    json!({"static": {"candidates": [server("a", address), server("b", "10.0.0.12")]}})
}

pub async fn few_may_point_a_service_anywhere(world: &World) -> Outcome {
    let (carlo, dora) = team(world).await?;
    let object = volume("anywhere", servers("10.0.0.11"));
    let text = "backend.static points a Service at any address: carlo lacks the verb static on sharedvolumes in namespace atelier";
    let theirs = api_of(&carlo, &object)?;
    let sent = dynamic(&object)?;
    comes_to_deny(text, async || theirs.create(&dry_run(), &sent).await).await?;
    api_of(&dora, &object)?.create(&PostParams::default(), &dynamic(&object)?).await?;
    // Of what is there the team changes everything else, the active server too.
    let dry = dry_merge();
    let edits = json!({"metadata": {"labels": {"team": "print"}}, "spec": {"failover": {"activeCandidate": "b"}}});
    theirs.patch("anywhere", &dry, &Patch::Merge(edits)).await?;
    let moved = Patch::Merge(json!({"spec": {"backend": servers("10.96.0.1")}}));
    let answer = theirs.patch("anywhere", &dry, &moved).await;
    assert!(denied(&answer, text), "{answer:?}");
    // No server less either: what remains is more often active.
    let fewer =
        json!({"spec": {"backend": {"static": {"candidates": [servers("10.0.0.11")["static"]["candidates"][0]]}}}});
    let answer = theirs.patch("anywhere", &dry, &Patch::Merge(fewer)).await;
    assert!(denied(&answer, text), "{answer:?}");
    api_of(&dora, &object)?.patch("anywhere", &dry, &moved).await?;
    // The right is of one namespace.
    let mut elsewhere = object.clone();
    elsewhere["metadata"]["namespace"] = json!("default");
    let answer = api_of(&dora, &elsewhere)?.create(&dry_run(), &dynamic(&elsewhere)?).await;
    assert!(denied(&answer, "cannot create resource \"sharedvolumes\""), "{answer:?}");
    // The other backends are the team's; and the controller finishes what others began.
    for backend in
        [json!({"pods": {"matchLabels": {"app": "nfs"}}}), json!({"provider": {"name": "p", "volumeID": "v"}})]
    {
        let object = volume("here", backend);
        api_of(&carlo, &object)?.create(&dry_run(), &dynamic(&object)?).await?;
    }
    let finalizer = Patch::Merge(json!({"metadata": {"finalizers": ["bulkhead.dev/unpublish"]}}));
    api_of(&world.controller, &object)?.patch("anywhere", &dry, &finalizer).await?;
    Ok(())
}

pub async fn teams_write_no_status(world: &World) -> Outcome {
    let (carlo, _) = team(world).await?;
    let object = volume("untold", json!({"pods": {"matchLabels": {"app": "nfs"}}}));
    let theirs = api_of(&carlo, &object)?;
    theirs.create(&PostParams::default(), &dynamic(&object)?).await?;
    // An address that clients would mount, and a Service that would be taken for ours.
    let status = Patch::Merge(json!({"status": {
        "mountEndpoint": "10.0.0.1:2049", "service": {"name": "kubernetes", "uid": "u", "clusterIPs": ["10.0.0.1"]},
    }}));
    let answer = theirs.patch_status("untold", &dry_merge(), &status).await;
    assert!(denied(&answer, "cannot patch resource \"sharedvolumes/status\""), "{answer:?}");
    // What is sent beside the spec is dropped.
    let mut told = object.clone();
    told["metadata"]["name"] = json!("told");
    told["status"] = json!({"mountEndpoint": "10.0.0.1:2049"});
    let stored = theirs.create(&PostParams::default(), &dynamic(&told)?).await?;
    assert_eq!(stored.data.get("status"), Some(&json!({"observedGeneration": 0})));
    // Providers are the administrator's, and their credentials nobody else's.
    let provider = json!({
        "apiVersion": "bulkhead.dev/v1alpha1", "kind": "SharedVolumeProvider", "metadata": {"name": "mine"},
        "spec": {"endpoints": ["https://here"], "credentialsRef": {"namespace": "bulkhead-system", "name": "stos-api"}},
    });
    let answer = api_of(&carlo, &provider)?.create(&dry_run(), &dynamic(&provider)?).await;
    assert!(denied(&answer, "cannot create resource \"sharedvolumeproviders\""), "{answer:?}");
    Ok(())
}

/// An object of a core kind, in the team's namespace.
async fn there<K>(world: &World, object: Value) -> Result<(), Failed>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + Serialize
        + DeserializeOwned,
{
    let api = Api::<K>::namespaced(world.admin.clone(), NAMESPACE);
    api.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
    Ok(())
}

fn service(name: &str, labels: Value, annotations: Value) -> Value {
    let metadata = json!({"name": name, "namespace": NAMESPACE, "labels": labels, "annotations": annotations});
    json!({"metadata": metadata, "spec": {"ports": [{"name": "nfs", "port": 2049}]}})
}

pub async fn the_controller_writes_its_own(world: &World) -> Outcome {
    team(world).await?;
    let text = "belongs to no SharedVolume: bulkhead-controller takes over only what has the annotation bulkhead.dev/adopt=true";
    let services = Api::<Service>::namespaced(world.controller.clone(), NAMESPACE);
    let ours = json!({SHARED_VOLUME_LABEL: "media"});
    let stray: Service = serde_json::from_value(service("stray", json!({}), json!({})))?;
    comes_to_deny(text, async || services.create(&dry_run(), &stray).await).await?;
    services.create(&dry_run(), &serde_json::from_value(service("labelled", ours.clone(), json!({})))?).await?;

    there::<Service>(world, service("shop", json!({}), json!({}))).await?;
    there::<Service>(world, service("given", json!({}), json!({ADOPT_ANNOTATION: "true"}))).await?;
    there::<Service>(world, service("kept", json!({}), json!({ADOPT_ANNOTATION: "false"}))).await?;
    there::<Service>(world, service("media", ours.clone(), json!({}))).await?;
    let take = Patch::Merge(json!({"metadata": {"labels": ours}}));
    for (name, refused) in [("shop", true), ("kept", true), ("given", false), ("media", false)] {
        let patched = services.patch(name, &dry_merge(), &take).await.map(drop);
        let deleted = services.delete(name, &dry_delete()).await.map(drop);
        for answer in [patched, deleted] {
            expect(refused, &answer, text, name)?;
        }
    }
    // A Service of ours gets no traffic that is not its own.
    let text = "sets neither externalIPs nor type ExternalName";
    for spec in
        [json!({"externalIPs": ["198.51.100.1"]}), json!({"type": "ExternalName", "externalName": "example.com"})]
    {
        let answer = services.patch("media", &dry_merge(), &Patch::Merge(json!({"spec": spec}))).await;
        assert!(denied(&answer, text), "{spec}: {answer:?}");
    }
    its_own_endpoints(world).await
}

async fn its_own_endpoints(world: &World) -> Outcome {
    let text = "belongs to no SharedVolume";
    let slice = |name: &str, manager: &str| {
        let labels = json!({"kubernetes.io/service-name": "shop", "endpointslice.kubernetes.io/managed-by": manager});
        json!({"metadata": {"name": name, "namespace": NAMESPACE, "labels": labels}, "addressType": "IPv4", "endpoints": []})
    };
    let slices = Api::<EndpointSlice>::namespaced(world.controller.clone(), NAMESPACE);
    for (name, manager, refused) in
        [("of-kube", "endpointslice-controller.k8s.io", true), ("of-us", SLICE_MANAGER, false)]
    {
        there::<EndpointSlice>(world, slice(name, manager)).await?;
        let replaced = relabelled(&slices, name).await?;
        let deleted = slices.delete(name, &dry_delete()).await.map(drop);
        let created = serde_json::from_value(slice("another", manager))?;
        let created = slices.create(&dry_run(), &created).await.map(drop);
        for answer in [replaced, deleted, created] {
            expect(refused, &answer, text, name)?;
        }
    }
    let endpoints = Api::<Endpoints>::namespaced(world.controller.clone(), NAMESPACE);
    for (name, labels, annotations, refused) in [
        ("theirs", json!({}), json!({}), true),
        ("ours", json!({SHARED_VOLUME_LABEL: "media"}), json!({}), false),
        ("given", json!({}), json!({ADOPT_ANNOTATION: "true"}), false),
    ] {
        let metadata = json!({"name": name, "namespace": NAMESPACE, "labels": labels, "annotations": annotations});
        there::<Endpoints>(world, json!({"metadata": metadata})).await?;
        let replaced = relabelled(&endpoints, name).await?;
        let deleted = endpoints.delete(name, &dry_delete()).await.map(drop);
        for answer in [replaced, deleted] {
            expect(refused, &answer, text, name)?;
        }
    }
    Ok(())
}

/// What the server says to our label on an object.
async fn relabelled<K>(api: &Api<K>, name: &str) -> Result<Answer<()>, Failed>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    let mut object = api.get(name).await?;
    object.labels_mut().insert(SHARED_VOLUME_LABEL.to_owned(), "media".to_owned());
    Ok(api.replace(name, &dry_run(), &object).await.map(drop))
}

fn expect(refused: bool, answer: &Answer<()>, text: &str, name: &str) -> Outcome {
    if denied(answer, text) == refused && answer.is_err() == refused {
        return Ok(());
    }
    Err(format!("{name}: {answer:?}").into())
}

pub async fn the_controller_annotates_claims_and_no_more(world: &World) -> Outcome {
    team(world).await?;
    let claim = json!({
        "metadata": {"name": "annotated", "namespace": NAMESPACE, "annotations": {"team": "print"}},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
    });
    there::<PersistentVolumeClaim>(world, claim).await?;
    let claims = Api::<PersistentVolumeClaim>::namespaced(world.controller.clone(), NAMESPACE);
    let text = "changes nothing of a claim but the annotation bulkhead.dev/mount-endpoint";
    let dry = dry_merge();
    let foreign = Patch::Merge(json!({"metadata": {"annotations": {"other": "x"}}}));
    comes_to_deny(text, || claims.patch("annotated", &dry, &foreign)).await?;
    for change in [
        json!({"metadata": {"annotations": {"team": null}}}),
        json!({"metadata": {"annotations": {"team": "press", "bulkhead.dev/mount-endpoint": "10.0.0.9:2049"}}}),
        json!({"metadata": {"annotations": null}}),
        json!({"metadata": {"labels": {"team": "press"}}}),
        json!({"metadata": {"finalizers": null}}),
        json!({"metadata": {"finalizers": ["example.com/held"]}}),
        json!({"spec": {"volumeName": "pv-of-another"}}),
    ] {
        let answer = claims.patch("annotated", &dry, &Patch::Merge(&change)).await;
        assert!(denied(&answer, text), "{change}: {answer:?}");
    }
    for value in [json!("10.0.0.9:2049"), json!("10.0.0.8:2049"), Value::Null] {
        let change = Patch::Merge(json!({"metadata": {"annotations": {"bulkhead.dev/mount-endpoint": value}}}));
        claims.patch("annotated", &PatchParams::default(), &change).await?;
    }
    Ok(())
}
