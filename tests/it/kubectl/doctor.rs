//! `doctor`: what would go wrong at night.

use bulkhead_testbed::cluster::Cluster;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use libtest_mimic::Failed;
use serde_json::{Value, json};

use super::plugin;
use crate::failover::fleet::{Lane, LaneOptions};

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
    ] {
        assert!(warned(check, about), "{check} {about} is not warned of: {examination:#}");
    }
    let sidecar = findings(&examination, "Sidecar", "sound.csi.test");
    let of_sound: Vec<_> = sidecar.iter().filter(|it| it["about"] == "sound.csi.test").collect();
    assert!(of_sound.iter().all(|it| it["severity"] == "Ok") && !of_sound.is_empty(), "{examination:#}");
    assert!(!warned("Admission", "") && !warned("Controller", "") && !warned("Kubernetes", ""), "{examination:#}");
    let timeline = examination["timelines"].as_array().and_then(|all| all.iter().find(|it| it["policy"] == "sound"));
    assert_eq!(timeline.ok_or("no timeline")?["steps"].as_array().map(Vec::len), Some(5));
    let text = plugin::run(cluster, &plugin::ADMIN, &["doctor"]).await?.out;
    assert!(text.contains("WHAT TO DO") && text.contains("COMPUTED"), "{text}");
    webhooks.delete("doctor-test", &DeleteParams::default()).await?;
    sets.delete("plugin", &DeleteParams::default()).await?;
    good.end().await?;
    bad.end().await
}
