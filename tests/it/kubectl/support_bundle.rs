//! `support-bundle`: everything that helps, and nothing that is nobody's business.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use bulkhead_testbed::Identity;
use bulkhead_testbed::array::{Effect, Fault, Method};
use bulkhead_testbed::cluster::Cluster;
use flate2::read::GzDecoder;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use libtest_mimic::Failed;
use serde_json::{Value, json};

use super::{plugin, rights};
use crate::failover::fleet::{Lane, LaneOptions, SOON};

/// Runs it, and reads what it made: paths below the archive's folder, and texts.
async fn bundle(
    cluster: &Cluster,
    person: &Identity,
    file: &Path,
) -> Result<(BTreeMap<String, String>, Value), Failed> {
    let path = file.to_string_lossy();
    let said = plugin::run(cluster, person, &["support-bundle", "--file", &path, "-o", "json"]).await?;
    assert_eq!(said.code, 0, "{}{}", said.out, said.error);
    let mut texts = BTreeMap::new();
    for entry in tar::Archive::new(GzDecoder::new(File::open(file)?)).entries()? {
        let mut entry = entry?;
        let path = entry.path()?.components().skip(1).collect::<std::path::PathBuf>();
        let mut text = String::new();
        entry.read_to_string(&mut text)?;
        texts.insert(path.to_string_lossy().into_owned(), text);
    }
    Ok((texts, serde_json::from_str(&said.out)?))
}

/// Somebody with the roles that are for this, and no others.
async fn supporter(cluster: &Cluster) -> Result<Identity, Failed> {
    const NAME: &str = "supporter";
    for role in ["bulkhead-support", "bulkhead-support-logs"] {
        rights::bind(cluster, NAME, role).await?;
    }
    let binding: RoleBinding = serde_json::from_value(json!({
        "metadata": { "name": NAME },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "bulkhead-support" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": NAME }],
    }))?;
    let admin = cluster.testbed.client(&Identity::Admin).await?;
    let namespace = bulkhead::api::names::OPERATOR_NAMESPACE;
    Api::namespaced(admin, namespace).create(&PostParams::default(), &binding).await?;
    let person = rights::person(NAME);
    cluster
        .wait("the bindings count", SOON, async || {
            // It writes over no file.
            let folder = tempfile::tempdir().map_err(|error| super::simulate::told(error.into()))?;
            let file = folder.path().join("bundle.tar.gz");
            let (_, index) = bundle(cluster, &person, &file).await.map_err(super::simulate::told)?;
            Ok(if index["notRead"] == json!([]) { Ok(()) } else { Err(index["notRead"].to_string()) })
        })
        .await?;
    Ok(person)
}

pub async fn a_bundle_has_what_helps_and_no_credentials(cluster: &Cluster) -> Result<(), Failed> {
    let namespace = bulkhead::api::names::OPERATOR_NAMESPACE;
    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), namespace);
    let secret = json!({ "metadata": { "name": "bundled" }, "stringData": { "key": "not-to-be-seen-1" } });
    secrets.create(&PostParams::default(), &serde_json::from_value(secret)?).await?;
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), namespace);
    let data = json!({ "db-password": "not-to-be-seen-2", "config": "level: info\ntoken: not-to-be-seen-3\n" });
    let map = json!({ "metadata": { "name": "bundled" }, "data": data });
    maps.create(&PostParams::default(), &serde_json::from_value(map)?).await?;
    let lane = Lane::new(cluster, "bundled", LaneOptions::default()).await?;
    let set = lane.workload("db");
    lane.run(&set).await?;
    let victim = lane.victim()?.name().to_owned();
    let fault = lane.array().faults().add(Fault::on(Method::ControllerUnpublishVolume, Effect::DoNothing));
    lane.victim()?.kill().await;
    lane.fence("held", |fence| {
        let rows = fence.status.iter().flat_map(|status| &status.volumes);
        rows.into_iter().any(|row| row.reason.as_deref() == Some("StillPublished"))
    })
    .await?;
    let folder = tempfile::tempdir()?;
    let (texts, index) = bundle(cluster, &supporter(cluster).await?, &folder.path().join("bundle.tar.gz")).await?;
    let text = |path: &str| texts.get(path).map(String::as_str).unwrap_or_default();
    for (path, word) in [
        ("versions.json", "gitVersion"),
        ("bulkhead/nodefences.json", victim.as_str()),
        ("bulkhead/resiliencypolicies.json", "\"bundled\""),
        ("bulkhead/fencerequests.json", "StillPublished"),
        ("nodes/nodes.json", victim.as_str()),
        ("nodes/leases.json", victim.as_str()),
        ("namespace/configmaps.json", "level: info"),
        ("namespace/leases.json", "bulkhead-controller"),
        ("cluster/validatingadmissionpolicies.json", "fence-attest.bulkhead.dev"),
        ("events.json", "NodeDeclaredFailed"),
        ("doctor.txt", "COMPUTED"),
        ("index.json", "bulkhead/nodefences.json"),
    ] {
        assert!(text(path).contains(word), "{word} is not in {path}: {index:#}");
    }
    assert!(text(&format!("explain/{victim}.txt")).contains("It waits for:"), "{index:#}");
    let seen: Vec<_> = texts.iter().filter(|(_, text)| text.contains("not-to-be-seen")).map(|(path, _)| path).collect();
    assert!(seen.is_empty(), "credentials are in {seen:?}");
    assert_eq!(index["notRead"], json!([]), "{index:#}");
    lane.array().faults().remove(fault);
    lane.moved(&set).await?;
    secrets.delete("bundled", &DeleteParams::default()).await?;
    maps.delete("bundled", &DeleteParams::default()).await?;
    lane.end().await
}

pub async fn what_may_not_be_read_is_named(cluster: &Cluster) -> Result<(), Failed> {
    let nobody = Identity::User { name: "nobody".into(), groups: vec![] };
    let folder = tempfile::tempdir()?;
    let (texts, index) = bundle(cluster, &nobody, &folder.path().join("bundle.tar.gz")).await?;
    let named = |what: &str| {
        let all = index["notRead"].as_array().into_iter().flatten();
        all.into_iter().any(|it| it["what"] == what && it["why"].as_str().is_some_and(|why| why.contains("forbidden")))
    };
    assert!(named("bulkhead/nodefences.json") && named("events.json"), "{index:#}");
    assert_eq!(texts.keys().collect::<Vec<_>>(), ["index.json", "versions.json"], "{index:#}");
    Ok(())
}
