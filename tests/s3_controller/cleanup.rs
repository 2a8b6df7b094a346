//! Where the Scality driver's pages look for what the sweep does: the log of the controller service.

use bulkhead::api::s3::SWEEP_ACTION;
use bulkhead_testbed::process::{Launch, Process};
use k8s_openapi::api::core::v1::Event;
use kube::Api;
use serde_json::json;

use super::bed::Bed;

/// The program as it is shipped, under the rights of the manifests. Of the controller's Events only those of the sweep are
/// logged.
pub fn the_sweep_is_told_in_the_log(bed: &Bed) {
    tell(bed, "MountpointPodCreated", "Attach", "not of the sweep");
    tell(bed, "StaleAttachmentsRemoved", SWEEP_ACTION, "one before it starts");
    let log = bed.path("controller.log");
    let launch = Launch {
        name: "s3-csi-controller".to_owned(),
        program: env!("CARGO_BIN_EXE_bulkhead-s3-csi").into(),
        args: vec![
            "--mode=controller".into(),
            "--listen=127.0.0.1:0".into(),
            format!("--endpoint=unix://{}", bed.path("controller.sock").display()).into(),
            format!("--kubeconfig={}", bed.kubeconfig().display()).into(),
        ],
        env: [("AWS_ENDPOINT_URL", bed.s3.endpoint()), ("BULKHEAD_S3_LOG_CLEANUP", "true".to_owned())]
            .map(|(name, value)| (name.to_owned(), value))
            .to_vec(),
        log: log.clone(),
    };
    let _program = Process::spawn(launch).unwrap();
    let logged = |words: &str| {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        text.lines().any(|line| line.contains("cleanup") && line.contains(words)).then_some(())
    };
    bed.until("an Event that is there is logged", || logged("one before it starts"));
    tell(bed, "OrphanRemoved", SWEEP_ACTION, "another while it runs");
    bed.until("an Event that comes is logged", || logged("another while it runs"));
    assert_eq!(logged("not of the sweep"), None);
}

/// An Event as the controller's are.
fn tell(bed: &Bed, reason: &str, action: &str, message: &str) {
    let events: Api<Event> = Api::default_namespaced(bed.client.clone());
    let event = json!({
        "metadata": { "generateName": "sweep-" },
        "involvedObject": {
            "apiVersion": "s3.csi.scality.com/v2",
            "kind": "MountpointS3PodAttachment",
            "name": "s3pa-1",
        },
        "type": "Normal",
        "reason": reason,
        "action": action,
        "message": message,
        "reportingComponent": "bulkhead-controller",
        "reportingInstance": "bulkhead-controller-0",
    });
    bed.create(&events, event);
}
