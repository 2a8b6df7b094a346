//! What the array does when nothing goes wrong.

use bulkhead::csi::podmon::ValidateVolumeHostConnectivityRequest;
use bulkhead_testbed::array::io_protocol::IoError;
use bulkhead_testbed::array::{Link, MultiAttach};
use bulkhead_testbed::ledger::{Event, Operation, Reason, Stamp};
use bulkhead_testbed::oracle;

use super::*;

#[tokio::test]
async fn the_driver_says_who_it_is_and_what_it_can() {
    let bed = Bed::with(ArrayOptions {
        driver_name: "csi.example.com".to_owned(),
        lists_published_nodes: false,
        gets_volume: false,
        ..Default::default()
    });
    let info = bed.identity().get_plugin_info(GetPluginInfoRequest {}).await.unwrap().into_inner();
    assert_eq!(info.name, "csi.example.com");
    let probe = bed.identity().probe(ProbeRequest {}).await.unwrap().into_inner();
    assert_eq!(probe.ready, Some(true));
    let plugin = bed.identity().get_plugin_capabilities(GetPluginCapabilitiesRequest {}).await.unwrap();
    assert_eq!(plugin.into_inner().capabilities.len(), 1);
    let request = ControllerGetCapabilitiesRequest {};
    let answer = bed.controller().controller_get_capabilities(request).await.unwrap().into_inner();
    use controller_service_capability::{Type, rpc};
    let has = |kind: rpc::Type| {
        answer.capabilities.iter().any(|capability| match &capability.r#type {
            Some(Type::Rpc(rpc)) => rpc.r#type() == kind,
            None => false,
        })
    };
    assert!(has(rpc::Type::PublishUnpublishVolume) && has(rpc::Type::ListVolumes));
    assert!(!has(rpc::Type::ListVolumesPublishedNodes) && !has(rpc::Type::GetVolume));
}

#[tokio::test]
async fn access_decides_about_every_write_and_the_ledger_has_it_all() {
    let bed = Bed::new();
    let volume = bed.volume("data");
    let mut disk = bed.open(&volume, "a").await;
    assert!(matches!(disk.write(1, "pod").await, Err(IoError::Refused(_))));

    bed.publish(&volume, "a").await.unwrap();
    disk.write(2, "pod").await.unwrap();
    let last = disk.read().await.unwrap().expect("a write");
    assert_eq!((last.sequence, &*last.node, &*last.tag), (2, "a", "pod"));

    // The connection stays open; the access does not.
    bed.unpublish(&volume, "a").await.unwrap();
    assert!(matches!(disk.write(3, "pod").await, Err(IoError::Refused(_))));
    assert!(matches!(disk.read().await, Err(IoError::Refused(_))));

    let events: Vec<Event> = bed.ledger().entries().into_iter().map(|entry| entry.event).collect();
    let no_access = |operation| Event::Refused { operation, reason: Reason::NoAccess };
    assert_eq!(
        events,
        [
            Event::Created { access: Access::SingleWriter },
            no_access(Operation::Write),
            Event::Published { read_only: false, repeated: false },
            Event::Wrote { sequence: 2, tag: "pod".into() },
            Event::Unpublished { repeated: false },
            no_access(Operation::Write),
            no_access(Operation::Read),
        ]
    );
    assert!(bed.ledger().entries().is_sorted_by_key(|entry| entry.at));
    assert_eq!(bed.ledger().writes(&volume, "a", Stamp::START), 1);
    assert_eq!(bed.ledger().refused_writes(&volume, "a", Stamp::START), 2);
}

#[tokio::test]
async fn it_can_be_misused_and_the_oracle_sees_it() {
    let bed = Bed::new();
    let volume = bed.volume("data");
    for node in ["a", "b"] {
        bed.publish(&volume, node).await.unwrap();
        bed.open(&volume, node).await.write(1, node).await.unwrap();
    }
    assert!(oracle::judge(bed.ledger()).is_clean());
    assert_eq!(oracle::judge(bed.ledger()).overlaps.len(), 1);
    bed.open(&volume, "a").await.write(2, "a").await.unwrap();
    assert_eq!(oracle::judge(bed.ledger()).violations.len(), 1);
}

#[tokio::test]
async fn a_careful_array_refuses_a_second_writer_but_not_a_second_reader() {
    let bed = Bed::with(ArrayOptions { multi_attach: MultiAttach::Refuse, ..Default::default() });
    let volume = bed.volume("data");
    bed.publish(&volume, "a").await.unwrap();
    assert_eq!(code(bed.publish(&volume, "b").await), Code::FailedPrecondition);
    assert_eq!(bed.published_nodes(&volume), ["a"]);
    let shared = bed.create_volume("shared", Access::MultiWriter, 1).unwrap();
    for node in ["a", "b"] {
        bed.publish(&shared, node).await.unwrap();
        bed.open(&shared, node).await.write(1, node).await.unwrap();
    }
    bed.set_multi_attach(MultiAttach::Accept);
    bed.publish(&volume, "b").await.unwrap();
}

#[tokio::test]
async fn read_only_access_reads_and_does_not_write() {
    let bed = Bed::new();
    let volume = bed.volume("data");
    let read_only = ControllerPublishVolumeRequest { readonly: true, ..publish(&volume, "a") };
    bed.controller().controller_publish_volume(read_only).await.unwrap();
    let mut disk = bed.open(&volume, "a").await;
    assert!(matches!(disk.write(1, "pod").await, Err(IoError::Refused(_))));
    assert_eq!(disk.read().await.unwrap(), None);
    // The same node with another mode is not the same publish.
    assert_eq!(code(bed.publish(&volume, "a").await), Code::AlreadyExists);

    let golden = bed.create_volume("golden", Access::ReadOnly, 1).unwrap();
    bed.publish(&golden, "a").await.unwrap();
    let mut disk = bed.open(&golden, "a").await;
    assert!(matches!(disk.write(1, "pod").await, Err(IoError::Refused(_))));
}

#[tokio::test]
async fn everything_can_be_repeated() {
    let bed = Bed::new();
    let request = CreateVolumeRequest {
        name: "data".to_owned(),
        volume_capabilities: vec![capability(Mode::SingleNodeWriter)],
        ..Default::default()
    };
    let mut ids = Vec::new();
    for _ in 0..2 {
        let created = bed.controller().create_volume(request.clone()).await.unwrap();
        ids.push(created.into_inner().volume.expect("volume").volume_id);
    }
    assert_eq!(ids[0], ids[1]);
    let shared = CreateVolumeRequest { volume_capabilities: vec![capability(Mode::MultiNodeMultiWriter)], ..request };
    assert_eq!(code(bed.controller().create_volume(shared).await), Code::AlreadyExists);

    let volume = &ids[0];
    let delete = DeleteVolumeRequest { volume_id: volume.clone(), ..Default::default() };
    for _ in 0..2 {
        bed.publish(volume, "a").await.unwrap();
    }
    assert_eq!(code(bed.controller().delete_volume(delete.clone()).await), Code::FailedPrecondition);
    for _ in 0..2 {
        bed.unpublish(volume, "a").await.unwrap();
    }
    for _ in 0..2 {
        bed.controller().delete_volume(delete.clone()).await.unwrap();
        bed.unpublish(volume, "a").await.unwrap();
    }
    let changes = |event: &Event| {
        matches!(event, Event::Published { repeated: false, .. } | Event::Unpublished { repeated: false })
    };
    let entries = bed.ledger().entries();
    assert_eq!(entries.iter().filter(|entry| changes(&entry.event)).count(), 2);
}

#[tokio::test]
async fn unpublish_without_a_node_is_for_all_nodes() {
    let bed = Bed::new();
    let volume = bed.create_volume("shared", Access::MultiWriter, 1).unwrap();
    bed.publish(&volume, "a").await.unwrap();
    bed.publish(&volume, "b").await.unwrap();
    bed.unpublish(&volume, "").await.unwrap();
    assert!(bed.published_nodes(&volume).is_empty());
}

#[tokio::test]
async fn wrong_calls_get_the_codes_of_the_specification() {
    let bed = Bed::new();
    let volume = bed.volume("data");
    assert_eq!(code(bed.publish("", "a").await), Code::InvalidArgument);
    assert_eq!(code(bed.publish(&volume, "").await), Code::InvalidArgument);
    assert_eq!(code(bed.publish("vol-none", "a").await), Code::NotFound);
    assert_eq!(code(bed.publish(&volume, "stranger").await), Code::NotFound);
    assert_eq!(code(bed.unpublish("", "a").await), Code::InvalidArgument);
    assert_eq!(code(bed.unpublish("vol-none", "a").await), Code::NotFound);
    let modeless = ControllerPublishVolumeRequest { volume_capability: None, ..publish(&volume, "a") };
    let answer = bed.controller().controller_publish_volume(modeless).await;
    assert_eq!(code(answer), Code::InvalidArgument);
    assert_eq!(code(bed.controller().create_volume(CreateVolumeRequest::default()).await), Code::InvalidArgument);
    assert_eq!(code(bed.controller().get_capacity(GetCapacityRequest::default()).await), Code::Unimplemented);
    assert!(bed.published_nodes(&volume).is_empty());
}

#[tokio::test]
async fn capabilities_are_confirmed_or_not() {
    let bed = Bed::new();
    let volume = bed.volume("data");
    let request = |mode| ValidateVolumeCapabilitiesRequest {
        volume_id: volume.clone(),
        volume_capabilities: vec![capability(mode)],
        ..Default::default()
    };
    let mut controller = bed.controller();
    let single = controller.validate_volume_capabilities(request(Mode::SingleNodeWriter)).await.unwrap();
    assert!(single.into_inner().confirmed.is_some());
    let shared = controller.validate_volume_capabilities(request(Mode::MultiNodeMultiWriter)).await.unwrap();
    assert!(shared.into_inner().confirmed.is_none());
}

#[tokio::test]
async fn a_required_secret_is_asked_for_by_publish_and_unpublish() {
    let secret = ("password".to_owned(), "open sesame".to_owned());
    let bed = Bed::with(ArrayOptions { required_secret: Some(secret.clone()), ..Default::default() });
    let volume = bed.volume("data");
    assert_eq!(code(bed.publish(&volume, "a").await), Code::Unauthenticated);
    let mut with_secret = publish(&volume, "a");
    with_secret.secrets.insert(secret.0.clone(), secret.1.clone());
    bed.controller().controller_publish_volume(with_secret).await.unwrap();
    let mut wrong = unpublish(&volume, "a");
    wrong.secrets.insert(secret.0.clone(), "guess".to_owned());
    assert_eq!(code(bed.controller().controller_unpublish_volume(wrong).await), Code::Unauthenticated);
    assert_eq!(bed.published_nodes(&volume), ["a"]);
}

#[tokio::test]
async fn a_node_stages_only_what_is_published_to_it() {
    let bed = Bed::new();
    let volume = bed.volume("data");
    let mut plugins = bed.plugins();
    let stage = || NodeStageVolumeRequest {
        volume_id: volume.clone(),
        staging_target_path: "/stage".to_owned(),
        ..Default::default()
    };
    let unstage = || NodeUnstageVolumeRequest { volume_id: volume.clone(), staging_target_path: "/stage".to_owned() };
    let mount =
        || NodePublishVolumeRequest { volume_id: volume.clone(), target_path: "/pod".to_owned(), ..Default::default() };
    let unmount = || NodeUnpublishVolumeRequest { volume_id: volume.clone(), target_path: "/pod".to_owned() };
    let info = plugins.node_get_info(at_node("a", NodeGetInfoRequest {})).await.unwrap();
    assert_eq!(info.into_inner().node_id, "a");
    plugins.node_get_capabilities(at_node("a", NodeGetCapabilitiesRequest {})).await.unwrap();
    assert_eq!(code(plugins.node_stage_volume(stage()).await), Code::InvalidArgument);

    bed.publish(&volume, "b").await.unwrap();
    assert_eq!(code(plugins.node_stage_volume(at_node("a", stage())).await), Code::FailedPrecondition);
    bed.publish(&volume, "a").await.unwrap();
    assert_eq!(code(plugins.node_publish_volume(at_node("a", mount())).await), Code::FailedPrecondition);
    plugins.node_stage_volume(at_node("a", stage())).await.unwrap();
    plugins.node_publish_volume(at_node("a", mount())).await.unwrap();
    assert_eq!(code(plugins.node_unstage_volume(at_node("a", unstage())).await), Code::FailedPrecondition);
    for _ in 0..2 {
        plugins.node_unpublish_volume(at_node("a", unmount())).await.unwrap();
        plugins.node_unstage_volume(at_node("a", unstage())).await.unwrap();
    }
    plugins.node_stage_volume(at_node("a", stage())).await.unwrap();
    bed.forget_staging("a");
    assert_eq!(code(plugins.node_publish_volume(at_node("a", mount())).await), Code::FailedPrecondition);
}

#[tokio::test]
async fn podmon_tells_connection_and_recent_writes() {
    let bed = Bed::new();
    let volume = bed.volume("data");
    let ask = |node: &str, volumes: &[&String]| ValidateVolumeHostConnectivityRequest {
        node_id: node.to_owned(),
        volume_ids: volumes.iter().map(|volume| volume.to_string()).collect(),
        io_sample_time_seconds: 60,
        ..Default::default()
    };
    let mut podmon = bed.podmon();
    let probe = podmon.validate_volume_host_connectivity(ask("", &[])).await.unwrap();
    assert!(!probe.into_inner().messages.is_empty());
    let nameless = podmon.validate_volume_host_connectivity(ask("", &[&volume])).await;
    assert_eq!(code(nameless), Code::InvalidArgument);
    let stranger = podmon.validate_volume_host_connectivity(ask("stranger", &[])).await;
    assert_eq!(code(stranger), Code::NotFound);

    let idle = podmon.validate_volume_host_connectivity(ask("a", &[&volume])).await.unwrap().into_inner();
    assert!(idle.connected && !idle.ios_in_progress);
    bed.publish(&volume, "a").await.unwrap();
    bed.open(&volume, "a").await.write(1, "pod").await.unwrap();
    bed.set_link("a", Link::Refuse);
    let zombie = podmon.validate_volume_host_connectivity(ask("a", &[&volume])).await.unwrap().into_inner();
    assert!(!zombie.connected && zombie.ios_in_progress);

    let plain = Bed::with(ArrayOptions { has_podmon: false, ..Default::default() });
    let answer = plain.podmon().validate_volume_host_connectivity(ask("", &[])).await;
    assert_eq!(code(answer), Code::Unimplemented);
}

#[tokio::test]
async fn a_driver_that_does_not_attach_gives_access_with_staging() {
    let bed = Bed::with(ArrayOptions { attaches: false, ..Default::default() });
    let volume = bed.volume("data");
    assert_eq!(code(bed.publish(&volume, "a").await), Code::Unimplemented);
    assert_eq!(code(bed.unpublish(&volume, "a").await), Code::Unimplemented);
    let stage = NodeStageVolumeRequest {
        volume_id: volume.clone(),
        staging_target_path: "/stage".to_owned(),
        ..Default::default()
    };
    let unstage = NodeUnstageVolumeRequest { volume_id: volume.clone(), staging_target_path: "/stage".to_owned() };
    bed.plugins().node_stage_volume(at_node("a", stage)).await.unwrap();
    bed.open(&volume, "a").await.write(1, "pod").await.unwrap();
    bed.plugins().node_unstage_volume(at_node("a", unstage)).await.unwrap();
    assert!(bed.open(&volume, "a").await.write(2, "pod").await.is_err());
}
