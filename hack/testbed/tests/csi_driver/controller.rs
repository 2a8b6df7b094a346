//! The controller's mode, and the conformance suite of CSI on both modes.

use std::time::Duration;

use bed::{Bed, channel, code, run};
use bulkhead::csi::plugin_registration::registration_client::RegistrationClient;
use bulkhead::csi::plugin_registration::{InfoRequest, RegistrationStatus};
use bulkhead::csi::podmon::ValidateVolumeHostConnectivityRequest;
use bulkhead::csi::podmon::podmon_client::PodmonClient;
use bulkhead::csi::v1::controller_client::ControllerClient;
use bulkhead::csi::v1::*;
use bulkhead_testbed::array::{Ailment, Effect, Fault, Method};
use bulkhead_testbed::binaries::{Binaries, Program};
use tonic::{Code, Request};

use crate::bed;

pub fn csi_sanity_passes() {
    let bed = Bed::new();
    let programs = Binaries::ensure_all(None, &[Program::CsiSanity]).expect("csi-sanity");
    let (_controller, controller) = bed.controller();
    let _plugin = bed.plugin_that_tells("a", "condition");
    run(
        &programs.path(Program::CsiSanity),
        &[
            &format!("--csi.endpoint={}", bed.path("plugin-a.sock").display()),
            &format!("--csi.controllerendpoint={}", controller.display()),
            &format!("--csi.mountdir={}", bed.path("sanity-mount").display()),
            &format!("--csi.stagingdir={}", bed.path("sanity-staging").display()),
            "--csi.testvolumesize=16777216",
            "--ginkgo.no-color",
        ],
    );
    assert!(bed.mounts().is_empty(), "{:?}", bed.mounts());
}

pub fn calls_deadlines_and_codes_pass_to_the_array_and_back() {
    let bed = Bed::new();
    let (_process, socket) = bed.controller();
    let volume = bed.volume("v");
    let mut controller = ControllerClient::new(channel(&bed.runtime, &socket));
    let mut podmon = PodmonClient::new(channel(&bed.runtime, &socket));

    let publish = ControllerPublishVolumeRequest {
        volume_id: volume.clone(),
        node_id: "a".to_owned(),
        volume_capability: Some(bed::capability(false)),
        ..Default::default()
    };
    bed.runtime.block_on(controller.controller_publish_volume(publish)).expect("attached");
    assert_eq!(bed.array.published_nodes(&volume), ["a"]);
    let asked = ValidateVolumeHostConnectivityRequest { node_id: "a".to_owned(), ..Default::default() };
    assert!(
        bed.runtime.block_on(podmon.validate_volume_host_connectivity(asked)).expect("podmon").into_inner().connected
    );
    let unknown = ControllerGetVolumeRequest { volume_id: "none".to_owned() };
    assert_eq!(code(bed.runtime.block_on(controller.controller_get_volume(unknown))), Code::NotFound);

    let hang = bed.array.faults().add(Fault::on(Method::ListVolumes, Effect::Hang));
    let mut list = Request::new(ListVolumesRequest::default());
    list.set_timeout(Duration::from_millis(300));
    let late = code(bed.runtime.block_on(controller.list_volumes(list)));
    assert!(matches!(late, Code::DeadlineExceeded | Code::Cancelled), "{late:?}");
    bed.array.faults().remove(hang);

    bed.runtime.block_on(bed.array.crash());
    assert_eq!(code(bed.runtime.block_on(controller.list_volumes(ListVolumesRequest::default()))), Code::Unavailable);
    bed.runtime.block_on(bed.array.restart()).expect("the same address");
    let listed = bed.runtime.block_on(controller.list_volumes(ListVolumesRequest::default()));
    assert_eq!(listed.expect("it is back").into_inner().entries.len(), 1);
}

pub fn a_node_plugin_says_how_a_volume_is_in_either_generation() {
    use node_service_capability::{Rpc, Type, rpc};
    let bed = Bed::new();
    let volume = bed.volume("data");
    bed.attach(&volume, "a");
    let ask = |volume: &str| NodeGetVolumeHealthRequest { volume_id: volume.to_owned(), ..Default::default() };
    let offers = |plugin: &bed::Plugin<'_>, kind: rpc::Type| {
        let answer = bed.runtime.block_on(plugin.client().node_get_capabilities(NodeGetCapabilitiesRequest {}));
        let wanted = Some(Type::Rpc(Rpc { r#type: kind.into() }));
        answer.expect("capabilities").into_inner().capabilities.iter().any(|has| has.r#type == wanted)
    };

    let old = bed.plugin_that_tells("a", "condition");
    let staging = bed.path("staging");
    old.stage(&volume, &staging, false).expect("staged");
    assert!(offers(&old, rpc::Type::VolumeCondition) && !offers(&old, rpc::Type::GetVolumeHealth));
    let stats = || NodeGetVolumeStatsRequest {
        volume_id: volume.clone(),
        volume_path: staging.display().to_string(),
        ..Default::default()
    };
    let condition = || {
        let answer = bed.runtime.block_on(old.client().node_get_volume_stats(stats())).expect("statistics");
        answer.into_inner().volume_condition.expect("a condition")
    };
    assert_eq!(condition(), VolumeCondition::default());
    let ailment = Ailment::new(VolumeHealthErrorType::Degraded, "PathLost", "one path of two");
    bed.array.set_health_on_node(&volume, "a", vec![ailment.clone()]);
    assert_eq!(condition(), VolumeCondition { abnormal: true, message: ailment.message.clone() });
    assert_eq!(code(bed.runtime.block_on(old.client().node_get_volume_health(ask(&volume)))), Code::Unimplemented);
    old.unstage(&volume, &staging).expect("unstaged");
    old.kill();

    let new = bed.plugin_that_tells("a", "health");
    assert!(offers(&new, rpc::Type::GetVolumeHealth) && !offers(&new, rpc::Type::VolumeCondition));
    let answer = bed.runtime.block_on(new.client().node_get_volume_health(ask(&volume))).expect("health").into_inner();
    let health = answer.volume_health.expect("health");
    assert_eq!((health.volume_id.as_str(), health.health_statuses.len()), (volume.as_str(), 1));
    assert_eq!((health.health_statuses[0].status, health.health_statuses[0].reason.as_str()), (1, "PathLost"));
    bed.array.lose_volume(&volume);
    assert_eq!(code(bed.runtime.block_on(new.client().node_get_volume_health(ask(&volume)))), Code::NotFound);
}

pub fn the_kubelet_learns_where_the_node_plugin_is() {
    let bed = Bed::new();
    let _plugin = bed.plugin("a");
    let socket = bed.path("registry/array.testbed.bulkhead.dev-reg.sock");
    let mut kubelet = RegistrationClient::new(channel(&bed.runtime, &socket));
    let info = bed.runtime.block_on(kubelet.get_info(InfoRequest {})).expect("who it is").into_inner();
    assert_eq!((info.r#type.as_str(), info.name.as_str()), ("CSIPlugin", "array.testbed.bulkhead.dev"));
    assert_eq!(info.endpoint, bed.path("plugin-a.sock").to_str().expect("path"));
    let status = RegistrationStatus { plugin_registered: true, error: String::new() };
    bed.runtime.block_on(kubelet.notify_registration_status(status)).expect("heard");
}
