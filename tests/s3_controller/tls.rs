//! TLS to S3. The API server lends itself: its certificate is signed by an authority that no system knows.

use bulkhead::csi::client::connect;
use bulkhead::csi::v1::controller_client::ControllerClient;
use bulkhead::csi::v1::identity_client::IdentityClient;
use bulkhead::csi::v1::{CreateVolumeRequest, ProbeRequest};
use bulkhead::s3::controller_service::{Endpoint, S3, S3Error};
use bulkhead::s3::keys::Keys;
use bulkhead_testbed::Identity;
use bulkhead_testbed::pki::Pki;
use kube::config::Kubeconfig;

use crate::bed::{Bed, folder_for_all};

pub fn a_custom_authority_is_trusted_and_no_other(bed: &Bed) {
    let kubeconfig = Kubeconfig::read_from(bed.testbed.kubeconfig(&Identity::Admin).unwrap()).unwrap();
    let cluster = kubeconfig.clusters[0].cluster.clone().unwrap();
    let server = cluster.server.unwrap();
    let ask = |authorities: Vec<u8>| {
        let s3 = S3::new(Endpoint::new(&server, "us-east-1", Some(authorities)).unwrap());
        let keys = Keys::new("KEY", "secret", None).unwrap();
        bed.runtime.block_on(async move { s3.has_bucket("a-bucket", &keys).await })
    };
    // It is no S3; what it answers does not matter, only that it is heard.
    let heard = ask(std::fs::read(cluster.certificate_authority.unwrap()).unwrap());
    assert!(matches!(heard, Ok(_) | Err(S3Error::Refused { .. })), "{heard:?}");

    let folder = tempfile::tempdir().unwrap();
    let other = Pki::create(folder.path(), &[]).unwrap();
    let unheard = ask(std::fs::read(other.authority_file()).unwrap());
    assert!(matches!(&unheard, Err(S3Error::Silent { why, .. }) if why.contains("certificate")), "{unheard:?}");
}

/// An image without certificates: who asks for a bucket is told, by the program that runs.
pub fn without_authorities_a_call_says_what_to_do(bed: &Bed) {
    let nowhere = bed.path("no-such-file").display().to_string();
    let environment = [
        ("AWS_ENDPOINT_URL", "https://s3.example.com"),
        ("AWS_ACCESS_KEY_ID", "KEY"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_CA_BUNDLE", ""),
        ("SSL_CERT_FILE", &nowhere),
        ("SSL_CERT_DIR", &nowhere),
    ];
    let _process = bed.program("without-authorities", &environment);
    let socket = bed.path("without-authorities.sock");
    bed.runtime.block_on(async {
        let channel = connect(socket.to_str().unwrap()).unwrap();
        IdentityClient::new(channel.clone()).probe(ProbeRequest {}).await.unwrap();
        let request = CreateVolumeRequest {
            name: "pvc-1".to_owned(),
            volume_capabilities: vec![folder_for_all()],
            ..CreateVolumeRequest::default()
        };
        let refused = ControllerClient::new(channel).create_volume(request).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::FailedPrecondition, "{refused}");
        assert!(refused.message().contains("AWS_CA_BUNDLE"), "{refused}");
    });
}
