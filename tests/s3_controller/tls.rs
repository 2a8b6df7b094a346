//! TLS to S3. The API server lends itself: its certificate is signed by an authority that no system knows.

use bulkhead::s3::controller_service::{Credentials, Endpoint, S3, S3Error};
use bulkhead_testbed::Identity;
use bulkhead_testbed::pki::Pki;
use kube::config::Kubeconfig;

use crate::bed::Bed;

pub fn a_custom_authority_is_trusted_and_no_other(bed: &Bed) {
    let kubeconfig = Kubeconfig::read_from(bed.testbed.kubeconfig(&Identity::Admin).unwrap()).unwrap();
    let cluster = kubeconfig.clusters[0].cluster.clone().unwrap();
    let server = cluster.server.unwrap();
    let ask = |authorities: Vec<u8>| {
        let s3 = S3::new(Endpoint::new(&server, "us-east-1", Some(authorities)).unwrap()).unwrap();
        let keys = Credentials::new("KEY", "secret", None).unwrap();
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
