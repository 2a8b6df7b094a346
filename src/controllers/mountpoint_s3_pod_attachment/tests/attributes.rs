//! What a volume asks of its Mountpoint Pod.

use serde_json::{Value, json};

use super::super::attributes::Attributes;
use super::world::volume;

fn read(attributes: &[(&str, &str)], options: &[&str]) -> Result<Attributes, String> {
    let mut volume = volume("uid");
    let given = &mut volume.spec.csi.as_mut().unwrap().volume_attributes;
    given.extend(attributes.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    volume.spec.mount_options = Some(options.iter().map(ToString::to_string).collect());
    Attributes::of(&volume)
}

#[test]
fn nothing_said_is_nothing_asked() {
    assert_eq!(read(&[], &["cache-xz"]).unwrap(), Attributes::default());
}

#[test]
fn account_and_resources() {
    let found = read(
        &[
            ("mountpointPodServiceAccountName", "reader"),
            ("mountpointContainerResourcesRequestsCpu", "500m"),
            ("mountpointContainerResourcesLimitsMemory", "1.5Gi"),
            ("mountpointContainerResourcesLimitsCpu", ""),
        ],
        &[],
    )
    .unwrap();
    assert_eq!(found.service_account.as_deref(), Some("reader"));
    assert_eq!(found.resources, json!({ "requests": { "cpu": "500m" }, "limits": { "memory": "1.5Gi" } }));
}

#[test]
fn caches() {
    let cache = |attributes: &[(&str, &str)]| read(attributes, &[]).unwrap().cache.unwrap();
    assert_eq!(cache(&[("cache", "emptyDir")]), json!({ "name": "local-cache", "emptyDir": {} }));
    let limited = [("cache", "emptyDir"), ("cacheEmptyDirSizeLimit", "1Gi"), ("cacheEmptyDirMedium", "Memory")];
    let expected = json!({ "name": "local-cache", "emptyDir": { "sizeLimit": "1Gi", "medium": "Memory" } });
    assert_eq!(cache(&limited), expected);
    let ephemeral = [
        ("cache", "ephemeral"),
        ("cacheEphemeralStorageClassName", "fast"),
        ("cacheEphemeralStorageResourceRequest", "10Gi"),
    ];
    let template = |cache: Value| cache.pointer("/ephemeral/volumeClaimTemplate/spec").cloned().unwrap();
    let spec = template(cache(&ephemeral));
    assert_eq!(spec["storageClassName"], "fast");
    assert_eq!(spec["resources"]["requests"]["storage"], "10Gi");
    assert_eq!(spec["accessModes"], json!(["ReadWriteOnce"]));
}

#[test]
fn what_is_wrong_is_named() {
    type Pairs = &'static [(&'static str, &'static str)];
    let cases: [(Pairs, &[&str], &str); 10] = [
        (&[("cache", "disk")], &[], "emptyDir or ephemeral"),
        (&[("cache", "emptyDir")], &["--cache /tmp"], "exclude each other"),
        (&[("cache", "emptyDir")], &["cache=/tmp"], "exclude each other"),
        (&[("cache", "emptyDir"), ("cacheEmptyDirMedium", "HugePages")], &[], "cacheEmptyDirMedium"),
        (&[("cache", "emptyDir"), ("cacheEmptyDirSizeLimit", "much")], &[], "cacheEmptyDirSizeLimit"),
        (&[("cache", "emptyDir"), ("cacheEmptyDirSizeLimit", "1Gi")], &["max-cache-size=1024"], "at most 972 (MiB)"),
        (&[("cache", "ephemeral")], &[], "cacheEphemeralStorageClassName"),
        (
            &[("cache", "ephemeral"), ("cacheEphemeralStorageClassName", "a")],
            &[],
            "cacheEphemeralStorageResourceRequest",
        ),
        (&[("mountpointContainerResourcesRequestsMemory", "-1Gi")], &[], "quantity"),
        (&[("mountpointContainerResourcesRequestsCpu", "1 core")], &[], "mountpointContainerResourcesRequestsCpu"),
    ];
    for (attributes, options, words) in cases {
        let error = read(attributes, options).unwrap_err();
        assert!(error.contains(words), "{attributes:?}: {error}");
    }
}
