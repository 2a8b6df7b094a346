//! What becomes of claims when S3, the driver, the provisioner or the credentials fail.

use bulkhead::s3::controller_service::NonEmptyBucket;
use bulkhead_testbed::s3_server::{Effect, Fault, Method};
use kube::ResourceExt;

use crate::bed::{Bed, CLASS, CLASS_KEY, CLASS_SECRET, CLASS_WITH_SECRET, handle};

pub fn s3_goes_down_and_comes_back(bed: &Bed) {
    bed.runtime.block_on(bed.s3.stop());
    let claim = bed.claim("patient", CLASS, "ReadWriteMany");
    let told = bed.told(&claim.uid().unwrap(), "does not answer");
    assert!(told.contains("Unavailable") && told.contains("AWS_ENDPOINT_URL"), "{told}");
    bed.runtime.block_on(bed.s3.restart()).unwrap();
    let volume = bed.bound("patient");

    bed.runtime.block_on(bed.s3.stop());
    bed.delete_claim("patient");
    bed.told(&volume.uid().unwrap(), "does not answer");
    bed.runtime.block_on(bed.s3.restart()).unwrap();
    bed.gone(&volume);
    assert!(!bed.s3.bucket(&handle(&volume)).exists());
}

/// S3 has made the bucket and nobody heard of it: driver and provisioner are killed while they wait.
pub fn a_restart_makes_no_second_bucket(bed: &Bed) {
    let before = bed.s3.buckets().unwrap();
    let hang = bed.s3.faults().add(Fault::everywhere(Effect::DoThenHang).on(Method::PUT));
    bed.claim("once", CLASS, "ReadWriteMany");
    bed.until("the bucket is made", || (bed.s3.buckets().unwrap() != before).then_some(()));
    bed.kill_driver();
    bed.start_provisioner();
    bed.start_driver(NonEmptyBucket::Keep);
    bed.s3.faults().remove(hang);

    let bucket = handle(&bed.bound("once"));
    let made: Vec<_> = bed.s3.buckets().unwrap().difference(&before).cloned().collect();
    assert_eq!(made, [bucket]);
}

pub fn wrong_credentials_are_told_on_the_claim(bed: &Bed) {
    let wrong = "wrong-secret-9876543210";
    bed.set_class_secret(wrong);
    let claim = bed.claim("locked-out", CLASS_WITH_SECRET, "ReadWriteMany");
    let uid = claim.uid().unwrap();
    let told = bed.told(&uid, "put valid keys into the Secret that the StorageClass names");
    assert!(told.contains("Unauthenticated") && told.contains("SignatureDoesNotMatch"), "{told}");
    assert!(!told.contains(wrong) && !told.contains(CLASS_KEY), "{told}");

    bed.s3.keys().revoke(CLASS_KEY);
    bed.told(&uid, "InvalidAccessKeyId");
    bed.as_at_first();
    let volume = bed.bound("locked-out");
    assert!(bed.s3.bucket(&handle(&volume)).is_dir());
    let log = std::fs::read_to_string(bed.provisioner_log()).unwrap();
    assert!(!log.contains(wrong) && !log.contains(CLASS_SECRET), "a secret is in the provisioner's log");
}
