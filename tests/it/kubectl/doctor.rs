//! `doctor`: what would go wrong at night.

use bulkhead::api::resiliency_policy::ResiliencyPolicy;
use bulkhead_testbed::array::{Array, ArrayOptions};
use bulkhead_testbed::cluster::{Cluster, Workload};
use bulkhead_testbed::ledger::Access;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use libtest_mimic::Failed;
use serde_json::{Value, json};

use super::plugin;
use crate::failover::fleet::{Lane, LaneOptions, create_policy};

/// The findings about something.
fn findings<'a>(examination: &'a Value, check: &str, about: &str) -> Vec<&'a Value> {
    let all = examination["findings"].as_array().map(Vec::as_slice).unwrap_or_default();
    all.iter()
        .filter(|it| it["check"] == check && it["about"].as_str().is_some_and(|text| text.contains(about)))
        .collect()
}

async fn examine(cluster: &Cluster) -> Result<Value, Failed> {
    let said = plugin::run(cluster, &plugin::ADMIN, &["doctor", "-o", "json"]).await?;
    assert_eq!(said.code, 1, "no agent runs here: that is a warning. {}{}", said.out, said.error);
    Ok(serde_json::from_str(&said.out)?)
}

pub async fn doctor_names_what_is_missing(cluster: &Cluster) -> Result<(), Failed> {
    let bad = LaneOptions { sidecar: false, ..LaneOptions::default() };
    let (good, bad) =
        (Lane::new(cluster, "sound", LaneOptions::default()).await?, Lane::new(cluster, "unsound", bad).await?);
    for lane in [&good, &bad] {
        lane.run(&lane.workload("db")).await?;
    }
    // Nothing matches its selector: it stops nobody, and it is told all the same.
    let webhook: ValidatingWebhookConfiguration = serde_json::from_value(json!({
        "metadata": { "name": "doctor-test" },
        "webhooks": [{
            "name": "deny.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Fail",
            "clientConfig": { "service": { "namespace": "default", "name": "nowhere" } },
            "namespaceSelector": { "matchLabels": { "no-such-label": "x" } },
            "rules": [{ "operations": ["DELETE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"] }],
        }],
    }))?;
    let webhooks: Api<ValidatingWebhookConfiguration> = Api::all(cluster.client.clone());
    webhooks.create(&PostParams::default(), &webhook).await?;
    // A node plugin that would not come back on a fenced node. None of its pods is scheduled.
    let plugin_set: DaemonSet = serde_json::from_value(json!({
        "metadata": { "name": "plugin", "namespace": "default" },
        "spec": {
            "selector": { "matchLabels": { "app": "plugin" } },
            "template": {
                "metadata": { "labels": { "app": "plugin" } },
                "spec": {
                    "nodeSelector": { "no-such-label": "x" },
                    "containers": [{ "name": "driver", "image": "driver", "args": [format!("--driver={}", good.array().driver_name())] }],
                },
            },
        },
    }))?;
    let sets: Api<DaemonSet> = Api::namespaced(cluster.client.clone(), "default");
    sets.create(&PostParams::default(), &plugin_set).await?;
    // The controller of a driver that would die with its node. Its pod is not scheduled.
    let lonely: Deployment = serde_json::from_value(json!({
        "metadata": { "name": "lonely", "namespace": "default" },
        "spec": {
            "replicas": 1,
            "selector": { "matchLabels": { "app": "lonely" } },
            "template": {
                "metadata": { "labels": { "app": "lonely" } },
                "spec": {
                    "nodeSelector": { "no-such-label": "x" },
                    "containers": [{ "name": "bulkhead-csi-sidecar", "image": "bulkhead-csi-sidecar" }],
                },
            },
        },
    }))?;
    let deployments: Api<Deployment> = Api::namespaced(cluster.client.clone(), "default");
    deployments.create(&PostParams::default(), &lonely).await?;
    let examination = cluster
        .wait("the sound driver is in order", crate::failover::fleet::SOON, async || {
            let examination = examine(cluster).await.map_err(super::simulate::told)?;
            let proof = findings(&examination, "Proof", "policy sound,");
            Ok(if proof.iter().any(|it| it["severity"] == "Ok") {
                Ok(examination.clone())
            } else {
                Err(examination.to_string())
            })
        })
        .await?;
    let warned = |check: &str, about: &str| {
        let found = findings(&examination, check, about);
        found.iter().any(|it| it["severity"] == "Warning" && it["remedy"].as_str().is_some_and(|text| !text.is_empty()))
    };
    for (check, about) in [
        ("Proof", "policy unsound,"),
        ("Sidecar", "unsound.csi.test"),
        ("Agent", ""),
        ("Webhooks", "doctor-test"),
        ("Tolerations", "default/plugin"),
        ("Replicas", "Deployment default/lonely"),
    ] {
        assert!(warned(check, about), "{check} {about} is not warned of: {examination:#}");
    }
    let sidecar = findings(&examination, "Sidecar", "sound.csi.test");
    let of_sound: Vec<_> = sidecar.iter().filter(|it| it["about"] == "sound.csi.test").collect();
    assert!(of_sound.iter().all(|it| it["severity"] == "Ok") && !of_sound.is_empty(), "{examination:#}");
    assert!(!warned("Admission", "") && !warned("Controller", "") && !warned("Kubernetes", ""), "{examination:#}");
    let timeline = examination["timelines"].as_array().and_then(|all| all.iter().find(|it| it["policy"] == "sound"));
    let steps = timeline.ok_or("no timeline")?["steps"].as_array().ok_or("no steps")?;
    // Nobody tells sooner: there are no agents, and the drivers lack the extension.
    let times: Vec<_> = steps.iter().map(|it| (it["step"].as_str(), it["atSeconds"].as_f64())).collect();
    let expected = [
        ("unreachable", 55.0),
        ("declared failed", 55.0),
        ("first pod released", 56.3),
        ("all pods released", 59.1),
        ("attachments gone", 59.1),
    ];
    assert_eq!(times, expected.map(|(step, seconds)| (Some(step), Some(seconds))), "{steps:?}");
    let text = plugin::run(cluster, &plugin::ADMIN, &["doctor"]).await?.out;
    assert!(text.contains("WHAT TO DO") && text.contains("COMPUTED"), "{text}");
    webhooks.delete("doctor-test", &DeleteParams::default()).await?;
    sets.delete("plugin", &DeleteParams::default()).await?;
    deployments.delete("lonely", &DeleteParams::default()).await?;
    good.end().await?;
    bad.end().await
}

/// One pod for each reason for which a pod would stay, and one that would go.
pub async fn doctor_names_the_pods_that_would_stay(cluster: &Cluster) -> Result<(), Failed> {
    let unattached =
        ArrayOptions { driver_name: "staying-unattached.csi.test".into(), attaches: false, ..ArrayOptions::default() };
    let unattached = cluster.add_array(&unattached).await?;
    let mute = ArrayOptions { driver_name: "staying-mute.csi.test".into(), ..ArrayOptions::default() };
    let mute = cluster.add_array(&mute).await?;
    let lane = Lane::new(cluster, "staying", LaneOptions::default()).await?;
    let arrays: [&Array; 3] = [lane.array(), &unattached.array, &mute.array];
    let workload = |name: &str, volumes: &[usize]| Workload { volumes: volumes.to_vec(), ..lane.workload(name) };
    let with = |name: &str, volume: Value| Workload { more_volumes: vec![volume], ..lane.workload(name) };
    let shared = Workload { access: Access::MultiWriter, ..lane.workload("shared") };
    let claim = json!({ "name": "shared", "persistentVolumeClaim": { "claimName": shared.claim_name(0, 0) } });
    let outside = Workload { labels: [].into(), ..with("outside", claim) };
    let sets = [
        with("local", json!({ "name": "host", "hostPath": { "path": "/var/lib/host" } })),
        with("inline", json!({ "name": "inline", "csi": { "driver": lane.array().driver_name() } })),
        workload("unattached", &[1]),
        workload("mute", &[2]),
        shared,
        outside,
        lane.workload("goes"),
    ];
    for set in &sets {
        lane.run_on(&arrays, set).await?;
    }
    let api: Api<Pod> = Api::namespaced(lane.client(), "default");
    let bare = json!({
        "metadata": { "name": "staying-bare", "labels": { "lane": "staying" } },
        "spec": {
            "nodeName": lane.victim()?.name(), "containers": [{ "name": "main", "image": "app" }],
            "volumes": [{ "name": "host", "hostPath": { "path": "/var/lib/host" } }],
        },
    });
    api.create(&PostParams::default(), &serde_json::from_value(bare)?).await?;
    // It selects nobody, and says so to nobody else.
    let by_driver = json!({ "selector": { "drivers": ["staying-unattached.csi.test"] } });
    create_policy(&lane.client(), "staying-by-driver", "nobody", &by_driver).await?;
    let expected = [
        ("staying-local-0", "LocalVolume", "lives on the node"),
        ("staying-inline-0", "UnknownVolumeKind", "inline volume of driver staying.csi.test"),
        ("staying-unattached-0", "UnknownVolumeKind", "attachRequired: false"),
        (
            "staying-mute-0",
            "FencerMissing",
            "run bulkhead-csi-sidecar beside the controller of driver staying-mute.csi.test",
        ),
        ("staying-shared-0", "SharerHeld", "default/staying-outside-0"),
        ("staying-bare", "BarePod", "no controller would create it again"),
    ];
    // The sidecar of the lane's own driver may not have said yet what that can do.
    let examination = cluster
        .wait("the pod that would go is not named", crate::failover::fleet::SOON, async || {
            let examination = examine(cluster).await.map_err(super::simulate::told)?;
            Ok(if staying(&examination).len() == expected.len() {
                Ok(examination)
            } else {
                Err(examination.to_string())
            })
        })
        .await?;
    let staying = staying(&examination);
    let victim = lane.victim()?.name();
    for (name, reason, words) in expected {
        let row = staying.iter().find(|row| row["name"] == name).ok_or(format!("{name} is missing: {staying:#?}"))?;
        assert_eq!((&row["reason"], &row["policy"], &row["node"]), (&json!(reason), &json!("staying"), &json!(victim)));
        assert!(row["message"].as_str().is_some_and(|message| message.contains(words)), "{row}");
        let about = format!("policy staying, {reason}");
        assert!(!findings(&examination, "Failure", &about).is_empty(), "{about}: {examination:#}");
    }
    let by_driver = findings(&examination, "CSIDriver", "policy staying-by-driver, driver staying-unattached.csi.test");
    assert!(by_driver.iter().any(|it| it["severity"] == "Warning"), "{examination:#}");
    let text = plugin::run(cluster, &plugin::ADMIN, &["doctor"]).await?.out;
    assert!(text.contains("PODS THAT WOULD STAY IF THEIR NODE FAILED"), "{text}");
    let policies: Api<ResiliencyPolicy> = Api::all(lane.client());
    policies.delete("staying-by-driver", &DeleteParams::default()).await?;
    lane.end().await
}

/// The rows of this test's pods, among those of the tests that run beside it.
fn staying(examination: &Value) -> Vec<&Value> {
    let all = examination["staying"].as_array().map(Vec::as_slice).unwrap_or_default();
    all.iter().filter(|row| row["name"].as_str().is_some_and(|name| name.starts_with("staying-"))).collect()
}
