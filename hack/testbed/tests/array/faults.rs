//! The fault script, each fault at least once.

use std::time::Instant;

use bulkhead::csi::podmon::ValidateVolumeHostConnectivityRequest;
use bulkhead_testbed::array::io_protocol::IoError;
use bulkhead_testbed::array::{Effect, FAILURE_CODES, Fault, Link, Method};
use bulkhead_testbed::ledger::{Event, Reason, Stamp};
use tokio::time::timeout;

use super::*;

/// An array with one volume, published to node `a`.
async fn published() -> (Bed, String) {
    let bed = Bed::new();
    let volume = bed.volume("data");
    bed.publish(&volume, "a").await.unwrap();
    (bed, volume)
}

fn on_unpublish(effect: Effect) -> Fault {
    Fault::on(Method::ControllerUnpublishVolume, effect)
}

#[tokio::test]
async fn every_code_can_be_answered_and_nothing_is_done_then() {
    let (bed, volume) = published().await;
    for wanted in FAILURE_CODES {
        bed.faults().add(on_unpublish(Effect::Fail(wanted)).times(1));
        assert_eq!(code(bed.unpublish(&volume, "a").await), wanted);
        assert_eq!(bed.published_nodes(&volume), ["a"]);
    }
    bed.unpublish(&volume, "a").await.unwrap();
    assert!(bed.published_nodes(&volume).is_empty());
    assert_eq!(bed.calls().count(Method::ControllerUnpublishVolume), FAILURE_CODES.len() + 1);
}

#[tokio::test]
async fn a_fault_is_limited_to_calls_volume_and_node() {
    let (bed, volume) = published().await;
    let other = bed.volume("other");
    let fail = || on_unpublish(Effect::Fail(Code::Internal));
    bed.faults().add(fail().volume(&volume).node("a").times(2));
    assert_eq!(code(bed.unpublish(&other, "a").await), Code::Ok);
    assert_eq!(code(bed.unpublish(&volume, "b").await), Code::Ok);
    assert_eq!(code(bed.publish(&volume, "a").await), Code::Ok);
    for wanted in [Code::Internal, Code::Internal, Code::Ok] {
        assert_eq!(code(bed.unpublish(&volume, "a").await), wanted);
    }
    let calls = bed.calls().all();
    let last = calls.last().expect("calls");
    assert_eq!((&*last.volume, &*last.node), (&*volume, "a"));
    assert_eq!(last.answer.map(|(_, code)| code), Some(Code::Ok));
}

#[tokio::test]
async fn ok_but_did_nothing() {
    let (bed, volume) = published().await;
    bed.faults().add(on_unpublish(Effect::DoNothing));
    bed.unpublish(&volume, "a").await.unwrap();
    assert_eq!(bed.published_nodes(&volume), ["a"]);
    bed.open(&volume, "a").await.write(1, "zombie").await.unwrap();
}

#[tokio::test]
async fn done_but_answered_with_an_error() {
    let (bed, volume) = published().await;
    bed.faults().add(on_unpublish(Effect::DoThenFail(Code::DeadlineExceeded)));
    assert_eq!(code(bed.unpublish(&volume, "a").await), Code::DeadlineExceeded);
    assert!(bed.published_nodes(&volume).is_empty());
}

#[tokio::test]
async fn a_slow_operation_aborts_others_on_its_volume_only() {
    let (bed, volume) = published().await;
    let other = bed.volume("other");
    let latency = Duration::from_millis(300);
    bed.faults().add(on_unpublish(Effect::Latency(latency)).times(1));
    let begun = Instant::now();
    let slow = bed.unpublish(&volume, "a");
    let meanwhile = async {
        while bed.calls().count(Method::ControllerUnpublishVolume) == 0 {
            tokio::task::yield_now().await;
        }
        // The call is in the log; it takes the volume just after that.
        let mut second = Code::Ok;
        while begun.elapsed() < latency && second != Code::Aborted {
            second = code(bed.publish(&volume, "a").await);
        }
        let independent = code(bed.publish(&other, "a").await);
        (second, independent)
    };
    let (slow, meanwhile) = tokio::join!(slow, meanwhile);
    slow.unwrap();
    assert_eq!(meanwhile, (Code::Aborted, Code::Ok));
    assert!(begun.elapsed() >= latency);
}

#[tokio::test]
async fn a_hanging_call_is_carried_out_when_it_is_released() {
    let (bed, volume) = published().await;
    let hang = bed.faults().add(on_unpublish(Effect::Hang).times(1));
    let call = timeout(Duration::from_millis(100), bed.unpublish(&volume, "a")).await;
    assert!(call.is_err(), "the caller gave up");
    assert_eq!(bed.published_nodes(&volume), ["a"]);
    let calls = bed.calls().all();
    assert!(calls.last().expect("call").answer.is_none());
    bed.faults().remove(hang);
    let gone = |entries: &[bulkhead_testbed::ledger::Entry]| {
        entries.iter().find_map(|entry| matches!(entry.event, Event::Unpublished { .. }).then_some(()))
    };
    bed.ledger().wait_for("the late unpublish", SOON, gone).await.unwrap();
    assert!(bed.published_nodes(&volume).is_empty());
}

#[tokio::test]
async fn clearing_the_script_releases_what_hangs() {
    let (bed, volume) = published().await;
    bed.faults().add(Fault::everywhere(Effect::Hang));
    let waiting = bed.unpublish(&volume, "a");
    let clear = async {
        while bed.calls().count(Method::ControllerUnpublishVolume) == 0 {
            tokio::task::yield_now().await;
        }
        bed.faults().clear();
    };
    let (answer, ()) = timeout(SOON, async { tokio::join!(waiting, clear) }).await.expect("released");
    answer.unwrap();
}

#[tokio::test]
async fn a_crash_cuts_connections_and_keeps_state_and_io() {
    let (bed, volume) = published().await;
    let mut disk = bed.open(&volume, "a").await;
    let mut connected = bed.controller();
    connected.list_volumes(ListVolumesRequest::default()).await.unwrap();
    bed.crash().await;
    assert!(!bed.is_running() && !bed.csi_socket().exists());
    let answer = connected.list_volumes(ListVolumesRequest::default()).await;
    // Cancelled where the client had not noticed yet that its connection is gone.
    assert!(matches!(code(answer), Code::Unavailable | Code::Cancelled));
    disk.write(1, "pod").await.unwrap();

    bed.restart().await.unwrap();
    assert_eq!(bed.published_nodes(&volume), ["a"]);
    // The channel of before the crash finds its way back.
    connected.list_volumes(ListVolumesRequest::default()).await.unwrap();
}

#[tokio::test]
async fn a_call_can_crash_the_driver_before_or_after_it_is_done() {
    for (effect, nodes) in [(Effect::CrashBefore, 1), (Effect::CrashAfter, 0)] {
        let (bed, volume) = published().await;
        bed.faults().add(on_unpublish(effect).times(1));
        let answer = timeout(SOON, bed.unpublish(&volume, "a")).await.expect("cut off");
        assert_ne!(code(answer), Code::Ok);
        assert_eq!(bed.published_nodes(&volume).len(), nodes);
        while bed.is_running() {
            tokio::task::yield_now().await;
        }
        bed.restart().await.unwrap();
        bed.unpublish(&volume, "a").await.unwrap();
        assert!(bed.published_nodes(&volume).is_empty());
    }
}

#[tokio::test]
async fn with_the_gateway_down_every_management_call_is_unavailable() {
    let (bed, volume) = published().await;
    let mut disk = bed.open(&volume, "a").await;
    let down = bed.gateway_down();
    assert_eq!(code(bed.unpublish(&volume, "a").await), Code::Unavailable);
    assert_eq!(code(bed.publish(&volume, "b").await), Code::Unavailable);
    let list = bed.controller().list_volumes(ListVolumesRequest::default()).await;
    assert_eq!(code(list), Code::Unavailable);
    let podmon = bed.podmon().validate_volume_host_connectivity(ValidateVolumeHostConnectivityRequest::default()).await;
    assert_eq!(code(podmon), Code::Unavailable);
    bed.identity().probe(ProbeRequest {}).await.unwrap();
    disk.write(1, "pod").await.unwrap();
    bed.faults().remove(down);
    bed.unpublish(&volume, "a").await.unwrap();
}

#[tokio::test]
async fn a_link_that_is_down_stops_io_though_access_is_granted() {
    let (bed, volume) = published().await;
    let mut disk = bed.open(&volume, "a").await;
    bed.set_link("a", Link::Refuse);
    assert!(matches!(disk.write(1, "pod").await, Err(IoError::Refused(_))));
    assert_eq!(bed.published_nodes(&volume), ["a"]);
    let refused = bed.ledger().entries().pop().expect("entry").event;
    assert!(matches!(refused, Event::Refused { reason: Reason::LinkDown, .. }));
    let stage = NodeStageVolumeRequest {
        volume_id: volume.clone(),
        staging_target_path: "/stage".to_owned(),
        ..Default::default()
    };
    assert_eq!(code(bed.plugins().node_stage_volume(at_node("a", stage)).await), Code::Unavailable);

    bed.set_link("a", Link::Hang);
    let hanging = tokio::spawn(async move { disk.write(2, "pod").await });
    let mut other = bed.open(&volume, "b").await;
    assert!(other.write(1, "pod").await.is_err(), "another node's link answers");
    assert!(!hanging.is_finished());
    assert_eq!(bed.ledger().writes(&volume, "a", Stamp::START), 0);
    bed.set_link("a", Link::Up);
    timeout(SOON, hanging).await.expect("link is up").unwrap().unwrap();
    assert_eq!(bed.ledger().writes(&volume, "a", Stamp::START), 1);
}

#[tokio::test]
async fn a_write_that_hung_is_judged_by_the_access_it_has_on_arrival() {
    let (bed, volume) = published().await;
    let mut disk = bed.open(&volume, "a").await;
    bed.set_link("a", Link::Hang);
    let hanging = tokio::spawn(async move { disk.write(1, "pod").await });
    bed.unpublish(&volume, "a").await.unwrap();
    bed.set_link("a", Link::Up);
    let late = timeout(SOON, hanging).await.expect("link is up").unwrap();
    assert!(matches!(late, Err(IoError::Refused(_))));
}
