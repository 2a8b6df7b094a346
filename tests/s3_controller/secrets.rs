//! Keys, where they do not belong: the log of the program itself, which is as verbose as it can be.

use std::collections::HashMap;

use bulkhead::csi::client::connect;
use bulkhead::csi::v1::controller_client::ControllerClient;
use bulkhead::csi::v1::{CreateVolumeRequest, DeleteVolumeRequest, ValidateVolumeCapabilitiesRequest};
use bulkhead_testbed::s3_server::{KeyPair, Usable};
use tonic::Code;

use crate::bed::{Bed, folder_for_all};

/// The driver's own keys, those of a Secret, and wrong ones, which S3 refuses with words of its own.
const DRIVER: [&str; 2] = ["VERBOSEDRIVER", "verbose/driver/secret"];
const OF_SECRET: [&str; 2] = ["VERBOSESECRET", "verbose/own/secret"];
const WRONG: [&str; 3] = ["VERBOSESECRET", "verbose/wrong/secret", "verbose/session/token"];

pub fn the_most_verbose_log_shows_no_key(bed: &Bed) {
    for [id, secret] in [DRIVER, OF_SECRET] {
        bed.s3.keys().set(KeyPair::new(id, secret), Usable::only([]));
    }
    let [id, secret] = DRIVER;
    let environment = [
        ("BULKHEAD_LOG", "trace"),
        ("AWS_ENDPOINT_URL", &bed.s3.endpoint()),
        ("AWS_ACCESS_KEY_ID", id),
        ("AWS_SECRET_ACCESS_KEY", secret),
    ];
    let process = bed.program("verbose", &environment);
    let socket = bed.path("verbose.sock");
    bed.runtime.block_on(async {
        let mut calls = ControllerClient::new(connect(socket.to_str().unwrap()).unwrap());
        for secrets in [HashMap::new(), secrets(&OF_SECRET)] {
            let made = calls.create_volume(making(&secrets)).await.unwrap().into_inner().volume.unwrap();
            let looking = ValidateVolumeCapabilitiesRequest {
                volume_id: made.volume_id.clone(),
                volume_context: made.volume_context,
                volume_capabilities: vec![folder_for_all()],
                secrets: secrets.clone(),
                ..ValidateVolumeCapabilitiesRequest::default()
            };
            calls.validate_volume_capabilities(looking).await.unwrap();
            calls.delete_volume(DeleteVolumeRequest { volume_id: made.volume_id, secrets }).await.unwrap();
        }
        let refused = calls.create_volume(making(&secrets(&WRONG))).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unauthenticated, "{refused}");
    });
    drop(process);
    let log = std::fs::read_to_string(bed.path("verbose.log")).unwrap();
    for told in ["TRACE", "bucket made", "bucket deleted", "method=\"CreateVolume\"", "method=\"DeleteVolume\""] {
        assert!(log.contains(told), "{told:?} is not in the log");
    }
    for key in DRIVER.iter().chain(&OF_SECRET).chain(&WRONG) {
        assert!(!log.contains(key), "{key} is in the log");
    }
}

fn making(secrets: &HashMap<String, String>) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: "pvc-verbose".to_owned(),
        volume_capabilities: vec![folder_for_all()],
        secrets: secrets.clone(),
        ..CreateVolumeRequest::default()
    }
}

/// As the Secret has them, as far as there are any.
fn secrets(keys: &[&str]) -> HashMap<String, String> {
    let names = ["access_key_id", "secret_access_key", "session_token"];
    names.into_iter().zip(keys).map(|(name, key)| (name.to_owned(), (*key).to_owned())).collect()
}
