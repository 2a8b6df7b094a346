//! The rules of the control plane that is tested against.

use super::*;

fn shared(server: &StorageOs) -> String {
    let namespace = server.volumes().create_namespace("web");
    let new = NewVolume { volume_name: "pvc-1", claim_name: "media", claim_namespace: "web" };
    let id = server.volumes().create(&namespace, &new);
    server.volumes().controller_publish(&id, AccessMode::MultiNodeMultiWriter, "n1", "10.0.0.1:4711").unwrap();
    id
}

#[test]
fn only_the_shared_mode_starts_a_server() {
    let volumes = Volumes::default();
    let namespace = volumes.create_namespace("web");
    let id = volumes.create(&namespace, &NewVolume::default());
    assert_eq!(volumes.get(&id).unwrap().attachment, Attachment::Detached);
    volumes.controller_publish(&id, AccessMode::SingleNodeWriter, "n1", "10.0.0.1:4711").unwrap();
    let volume = volumes.get(&id).unwrap();
    assert_eq!((volume.attachment, volume.endpoint), (Attachment::Host, None));
    let shared = volumes.controller_publish(&id, AccessMode::MultiNodeMultiWriter, "n1", "10.0.0.1:4711");
    assert_eq!(shared, Err(Rule::AttachedOtherwise));
    assert_eq!(volumes.serve(&id, "n1", "10.0.0.1:4711"), Err(Rule::NotShared));
    volumes.controller_unpublish(&id).unwrap();
    volumes.controller_publish(&id, AccessMode::MultiNodeMultiWriter, "n1", "10.0.0.1:4711").unwrap();
    let volume = volumes.get(&id).unwrap();
    assert_eq!((volume.attachment, volume.endpoint.as_deref()), (Attachment::Nfs, Some("10.0.0.1:4711")));
}

#[test]
fn nothing_is_mounted_before_the_endpoint_is_published() {
    let server = StorageOs::start().unwrap();
    let id = shared(&server);
    assert_eq!(server.volumes().node_publish(&id), Err(Rule::NoMountEndpoint));
    let version = server.volumes().get(&id).unwrap().version_text();
    assert_eq!(server.volumes().publish(&id, "10.96.0.9:2049", Some("v0")), Err(Rule::StaleWrite));
    server.volumes().publish(&id, "10.96.0.9:2049", Some(&version)).unwrap();
    assert_eq!(server.volumes().node_publish(&id), Ok("10.96.0.9:2049".to_owned()));
    let again = server.volumes().publish(&id, "10.96.0.9:2049", Some(&version));
    assert_eq!(again, Err(Rule::StaleWrite), "each write has its version");
}

#[tokio::test]
async fn a_failover_has_a_moment_without_server() {
    let server = StorageOs::start().unwrap();
    let id = shared(&server);
    let volumes = server.volumes().clone();
    let moved = volumes.fail_over(&id, "n2", "10.0.0.2:4712", Duration::from_millis(20));
    let (moved, between) = tokio::join!(moved, async { server.volumes().get(&id).unwrap().endpoint });
    moved.unwrap();
    assert_eq!(between, None);
    let volume = server.volumes().get(&id).unwrap();
    assert_eq!((volume.node.as_str(), volume.endpoint.as_deref()), ("n2", Some("10.0.0.2:4712")));
}
