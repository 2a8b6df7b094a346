//! `doctor --certify` before it creates anything. What it does then needs nodes that run containers: see `tests/real`.

use bulkhead_testbed::Identity;
use bulkhead_testbed::cluster::Cluster;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt};
use libtest_mimic::Failed;
use serde_json::json;

use super::plugin;
use crate::failover::fleet::{Lane, LaneOptions};

pub async fn nothing_is_created_without_what_it_takes(cluster: &Cluster) -> Result<(), Failed> {
    let lane = Lane::new(cluster, "certified", LaneOptions::default()).await?;
    let classes: Api<StorageClass> = Api::all(cluster.client.clone());
    let class = |name: &str, driver: &str| {
        serde_json::from_value::<StorageClass>(json!({ "metadata": { "name": name }, "provisioner": driver }))
    };
    classes.create(&PostParams::default(), &class("known", lane.array().driver_name())?).await?;
    classes.create(&PostParams::default(), &class("unknown", "nobody.example.com")?).await?;
    let nobody = Identity::User { name: "uncertified".into(), groups: vec![] };
    let reader = plugin::ADMIN;
    let cases: [(&Identity, &[&str], &str); 6] = [
        (&nobody, &["--storage-class", "known", "--yes"], "you may not"),
        (&reader, &["--yes"], "--storage-class"),
        (&reader, &["--storage-class", "none", "--yes"], "storageclass none is not there"),
        (&reader, &["--storage-class", "unknown", "--yes"], "has no DriverReport"),
        (&reader, &["--storage-class", "known", "--yes", "--watch", "1m"], "from 3s to 12s"),
        // Nobody sits at the keyboard.
        (&reader, &["--storage-class", "known", "--image", "any"], "nobody can be asked here"),
    ];
    for (person, arguments, why) in cases {
        let said = plugin::run(cluster, person, &[["doctor", "--certify"].as_slice(), arguments].concat()).await?;
        assert_eq!((said.code, said.out.as_str()), (2, ""), "{arguments:?}: {}", said.error);
        assert!(said.error.contains(why), "{why} is not in: {}", said.error);
    }
    let namespaces = Api::<Namespace>::all(cluster.client.clone()).list(&ListParams::default()).await?;
    let created: Vec<_> = namespaces.iter().map(ResourceExt::name_any).filter(|it| it.contains("certify")).collect();
    assert!(created.is_empty(), "{created:?}");
    for name in ["known", "unknown"] {
        classes.delete(name, &DeleteParams::default()).await?;
    }
    lane.end().await
}
