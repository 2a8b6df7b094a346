//! What becomes of claims, volumes and buckets when all goes well.

use bulkhead::s3::controller_service::NonEmptyBucket;
use kube::ResourceExt;

use crate::bed::{Bed, CLASS, CLASS_KEY, CLASS_WITH_SECRET, DRIVER_KEY, handle};

fn attribute(volume: &k8s_openapi::api::core::v1::PersistentVolume, key: &str) -> String {
    let source = volume.spec.as_ref().unwrap().csi.as_ref().unwrap();
    source.volume_attributes.as_ref().unwrap().get(key).cloned().unwrap_or_default()
}

/// Who signed the request that made the bucket.
fn maker(bed: &Bed, bucket: &str) -> String {
    let made = bed.s3.requests().into_iter().find(|asked| asked.method == "PUT" && asked.bucket == bucket);
    made.expect("the bucket was made").access_key
}

pub fn a_claim_becomes_a_bucket_and_takes_it_along(bed: &Bed) {
    let claim = bed.claim("plain", CLASS, "ReadWriteMany");
    let volume = bed.bound("plain");
    let bucket = handle(&volume);
    assert_eq!(bucket, format!("csi-s3-pvc-{}", claim.uid().unwrap()));
    assert!(bed.s3.bucket(&bucket).is_dir());
    assert_eq!(maker(bed, &bucket), DRIVER_KEY);
    assert_eq!(attribute(&volume, "bucketName"), bucket);
    assert_eq!(attribute(&volume, "dynamicProvisioning"), "true");
    assert_eq!(attribute(&volume, "authenticationSource"), "driver");
    let spec = volume.spec.as_ref().unwrap();
    assert_eq!(spec.mount_options.as_deref(), Some(&["allow-delete".to_owned(), "region=us-east-1".to_owned()][..]));
    assert_eq!(spec.capacity.as_ref().unwrap()["storage"].0, "5Gi");

    bed.delete_claim("plain");
    bed.gone(&volume);
    assert!(!bed.s3.bucket(&bucket).exists());
}

pub fn a_class_brings_its_own_credentials(bed: &Bed) {
    bed.claim("own", CLASS_WITH_SECRET, "ReadWriteMany");
    let volume = bed.bound("own");
    let bucket = handle(&volume);
    assert_eq!(maker(bed, &bucket), CLASS_KEY);
    assert_eq!(attribute(&volume, "authenticationSource"), "secret");

    // The driver's own key could not delete it.
    bed.delete_claim("own");
    bed.gone(&volume);
    assert!(!bed.s3.bucket(&bucket).exists());
}

pub fn a_bucket_with_data_outlives_its_volume(bed: &Bed) {
    bed.claim("data", CLASS, "ReadWriteMany");
    let volume = bed.bound("data");
    let object = bed.s3.bucket(&handle(&volume)).join("object");
    std::fs::write(&object, "kept").unwrap();
    bed.delete_claim("data");
    bed.gone(&volume);
    assert_eq!(std::fs::read_to_string(object).unwrap(), "kept");
}

pub fn a_bucket_with_data_holds_its_volume_if_asked(bed: &Bed) {
    bed.start_driver(NonEmptyBucket::Refuse);
    bed.claim("held", CLASS, "ReadWriteMany");
    let volume = bed.bound("held");
    let bucket = bed.s3.bucket(&handle(&volume));
    std::fs::write(bucket.join("object"), "kept").unwrap();
    bed.delete_claim("held");
    let told = bed.told(&volume.uid().unwrap(), "empty it with a tool of S3");
    assert!(told.contains("FailedPrecondition"), "{told}");
    assert!(bucket.join("object").exists());

    std::fs::remove_file(bucket.join("object")).unwrap();
    bed.gone(&volume);
    assert!(!bucket.exists());
}

pub fn a_claim_for_one_node_is_told_what_to_ask_for(bed: &Bed) {
    let before = bed.s3.buckets().unwrap();
    let claim = bed.claim("single", CLASS, "ReadWriteOnce");
    let told = bed.told(&claim.uid().unwrap(), "use accessModes [ReadWriteMany]");
    assert!(told.contains("InvalidArgument"), "{told}");
    bed.delete_claim("single");
    assert_eq!(bed.s3.buckets().unwrap(), before);
}
