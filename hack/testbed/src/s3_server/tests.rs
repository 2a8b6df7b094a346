//! The server, asked by our own client. Objects are for the tests of the mounter, whose client is mount-s3 itself.

use bulkhead::s3::controller_service::{Deletion, Endpoint, S3, S3Error};
use bulkhead::s3::keys::Keys;
use http::StatusCode;

use super::*;

const ADMIN: &str = "ADMIN";

struct Bed {
    server: S3Server,
    s3: S3,
    _folder: tempfile::TempDir,
}

impl Bed {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let server = S3Server::start(folder.path(), "127.0.0.1:0".parse().unwrap()).unwrap();
        server.keys().set(KeyPair::new(ADMIN, "secret"), Usable::All);
        let s3 = S3::new(Endpoint::new(&server.endpoint(), "us-east-1", None).unwrap());
        Self { server, s3, _folder: folder }
    }
}

fn key(name: &str) -> Keys {
    Keys::new(name, "secret", None).unwrap()
}

fn refused<T: std::fmt::Debug>(result: Result<T, S3Error>) -> (u16, String) {
    match result.unwrap_err() {
        S3Error::Refused { status, code, .. } => (status.as_u16(), code),
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn buckets_are_folders_and_are_only_deleted_when_they_are_empty() {
    let Bed { server, s3, _folder } = Bed::new();
    let admin = key(ADMIN);
    assert_eq!(s3.has_bucket("data", &admin).await, Ok(false));
    s3.create_bucket("data", &admin).await.unwrap();
    s3.create_bucket("data", &admin).await.expect("it is theirs");
    assert!(server.bucket("data").is_dir() && s3.has_bucket("data", &admin).await.unwrap());
    assert_eq!(server.buckets().unwrap(), ["data".to_owned()].into());

    std::fs::create_dir(server.bucket("data").join("folder")).unwrap();
    let object = server.bucket("data").join("folder/object");
    std::fs::write(&object, "kept").unwrap();
    assert_eq!(s3.delete_bucket("data", &admin).await, Ok(Deletion::NotEmpty));
    std::fs::remove_file(object).unwrap();
    assert_eq!(s3.delete_bucket("data", &admin).await, Ok(Deletion::Done));
    assert_eq!(s3.delete_bucket("data", &admin).await, Ok(Deletion::Missing));

    let put = &server.requests()[1];
    assert_eq!((put.method.as_str(), put.bucket.as_str(), put.access_key.as_str()), ("PUT", "data", ADMIN));
    assert_eq!(put.status, Some(StatusCode::OK));
    assert!(put.user_agent.starts_with("s3-csi-driver/"), "{put:?}");
}

#[tokio::test]
async fn a_key_opens_its_own_buckets_and_no_others() {
    let Bed { server, s3, _folder } = Bed::new();
    server.create_bucket("shared").unwrap();
    server.keys().set(KeyPair::new("ONE", "secret"), Usable::only(["shared"]));
    server.keys().set(KeyPair::new("TWO", "secret"), Usable::only([]));
    s3.create_bucket("ones", &key("ONE")).await.unwrap();
    assert_eq!(s3.has_bucket("ones", &key("ONE")).await, Ok(true));
    assert_eq!(s3.has_bucket("shared", &key("ONE")).await, Ok(true));
    assert_eq!(refused(s3.has_bucket("ones", &key("TWO")).await).0, 403);
    assert_eq!(refused(s3.delete_bucket("shared", &key("TWO")).await), (403, "AccessDenied".into()));
    assert_eq!(refused(s3.create_bucket("ones", &key("TWO")).await), (409, "BucketAlreadyExists".into()));

    server.keys().revoke("ONE");
    assert_eq!(refused(s3.create_bucket("more", &key("ONE")).await), (403, "InvalidAccessKeyId".into()));
    server.keys().set(KeyPair::new("ONE", "changed"), Usable::All);
    assert_eq!(refused(s3.create_bucket("more", &key("ONE")).await), (403, "SignatureDoesNotMatch".into()));
    let changed = Keys::new("ONE", "changed", None).unwrap();
    s3.create_bucket("more", &changed).await.unwrap();
}

#[tokio::test]
async fn faults_befall_the_requests_they_are_for() {
    let Bed { server, s3, _folder } = Bed::new();
    let admin = key(ADMIN);
    server.faults().add(Fault::everywhere(Effect::Fail(S3ErrorCode::SlowDown)).on(Method::PUT).times(1));
    assert_eq!(refused(s3.create_bucket("a-bucket", &admin).await), (503, "SlowDown".into()));
    s3.create_bucket("a-bucket", &admin).await.expect("once is over");

    let hang = server.faults().add(Fault::everywhere(Effect::Hang).in_bucket("slow").signed_by(ADMIN));
    let hanging = tokio::spawn({
        let (s3, admin) = (s3.clone(), admin.clone());
        async move { s3.create_bucket("slow", &admin).await }
    });
    assert_eq!(s3.has_bucket("a-bucket", &admin).await, Ok(true), "others pass");
    let asked =
        server.wait_for(Duration::from_secs(30), |requests| requests.iter().any(|asked| asked.bucket == "slow"));
    assert!(asked.await, "{:?}", server.requests());
    assert!(!server.bucket("slow").exists());
    server.faults().remove(hang);
    hanging.await.unwrap().expect("let go");
    assert!(server.bucket("slow").exists());
}

#[tokio::test]
async fn it_comes_back_at_the_same_address_with_all_it_had() {
    let Bed { server, s3, _folder } = Bed::new();
    let admin = key(ADMIN);
    s3.create_bucket("data", &admin).await.unwrap();
    server.stop().await;
    assert!(matches!(s3.has_bucket("data", &admin).await, Err(S3Error::Silent { .. })));
    server.restart().await.unwrap();
    assert_eq!(s3.has_bucket("data", &admin).await, Ok(true));
    s3.create_bucket("data", &admin).await.expect("it is still theirs");
}
