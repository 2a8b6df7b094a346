//! The client alone, against the control plane. No API server.

use std::time::Duration;

use bulkhead::api::shared_volume_provider::Transport;
use bulkhead::storageos::metrics::Metrics;
use bulkhead::storageos::providers::{ControlPlane as _, PublishError};
use bulkhead::storageos::{Client, Credentials, Settings};
use bulkhead_testbed::storageos::{AccessMode, Effect, Fault, Method, NewVolume, StorageOs, Tls};
use k8s_openapi::ByteString;
use libtest_mimic::Failed;
use serde_json::json;

const MOUNT: &str = "10.96.0.9:2049";

fn settings(servers: &[&StorageOs]) -> Settings {
    Settings {
        endpoints: servers.iter().map(|server| server.endpoint()).collect(),
        transport: Transport::Plaintext,
        ca_bundle: None,
        request_timeout: Duration::from_secs(30),
        concurrency: 4,
    }
}

fn client(settings: &Settings) -> Client {
    let credentials = Credentials { username: "storageos".into(), password: "storageos".into() };
    Client::new(settings, credentials, Metrics::default()).expect("a client")
}

fn shared(server: &StorageOs) -> (String, String) {
    let namespace = server.volumes().create_namespace("web");
    let id = server.volumes().create(&namespace, &NewVolume::default());
    let attached = server.volumes().controller_publish(&id, AccessMode::MultiNodeMultiWriter, "n1", "10.0.0.1:4711");
    assert_eq!(attached, Ok(()));
    (namespace, id)
}

pub async fn publishes_for_the_version_that_it_read() -> Result<(), Failed> {
    let server = StorageOs::start()?;
    let (namespace, id) = shared(&server);
    let client = client(&settings(&[&server]));
    let puts = || server.count(&Method::PUT, "/nfs/mount-endpoint");
    client.publish(&namespace, &id, MOUNT).await?;
    assert_eq!(server.volumes().node_publish(&id).as_deref(), Ok(MOUNT));
    client.publish(&namespace, &id, MOUNT).await?;
    assert_eq!(puts(), 1, "it is there already");
    server.faults().add(Fault::to("mount-endpoint", Effect::Overtaken).times(1));
    client.publish(&namespace, &id, "10.96.0.10:2049").await?;
    assert_eq!(
        (puts(), server.volumes().node_publish(&id)),
        (3, Ok("10.96.0.10:2049".into())),
        "read again, once more"
    );
    let overtaken = server.faults().add(Fault::to("mount-endpoint", Effect::Overtaken));
    assert_eq!(client.publish(&namespace, &id, MOUNT).await, Err(PublishError::VersionConflict));
    server.faults().remove(overtaken);
    server.faults().add(Fault::to("mount-endpoint", Effect::LostAnswer).times(1));
    let lost = client.publish(&namespace, &id, MOUNT).await;
    assert!(matches!(lost, Err(PublishError::Unreachable(_))), "{lost:?}");
    client.publish(&namespace, &id, "").await?;
    assert_eq!(server.volumes().get(&id).map(|it| it.mount_endpoint().to_owned()).as_deref(), Some(""));
    for (namespace, id) in [(namespace.as_str(), "vol-9999"), ("ns-none", id.as_str()), (namespace.as_str(), "../x")] {
        assert_eq!(client.publish(namespace, id, MOUNT).await, Err(PublishError::VolumeGone), "{namespace}/{id}");
    }
    server.faults().add(Fault::to("mount-endpoint", Effect::Status(403)));
    let refused = client.publish(&namespace, &id, MOUNT).await;
    assert!(matches!(&refused, Err(PublishError::Refused(words)) if words.contains("403")), "{refused:?}");
    Ok(())
}

pub async fn renews_a_token_within_the_call() -> Result<(), Failed> {
    let server = StorageOs::start()?;
    let (namespace, id) = shared(&server);
    let client = client(&settings(&[&server]));
    client.namespaces().await?;
    server.expire_tokens();
    // All of them find the token refused; one logs in for all.
    let calls = (0..4).map(|_| client.namespaces());
    for answer in futures::future::join_all(calls).await {
        assert_eq!(answer?.len(), 1);
    }
    assert_eq!(server.count(&Method::POST, "/v2/auth/login"), 2);
    server.expire_tokens();
    client.publish(&namespace, &id, MOUNT).await?;
    server.set_password("storageos", "another");
    server.expire_tokens();
    let refused = client.namespaces().await.map_err(|error| error.reason());
    assert_eq!(refused.map(|it| it.len()), Err("CredentialsRefused"));
    Ok(())
}

pub async fn refreshes_a_token_before_it_ends() -> Result<(), Failed> {
    let server = StorageOs::start()?;
    server.set_token_life(Duration::from_secs(20));
    let client = client(&settings(&[&server]));
    client.namespaces().await?;
    let due = client.refresh_in();
    assert!(due > Duration::from_secs(5) && due <= Duration::from_secs(10), "half of its life: {due:?}");
    client.refresh().await?;
    client.namespaces().await?;
    let logins = || server.count(&Method::POST, "/v2/auth/login");
    assert_eq!((server.count(&Method::POST, "/v2/auth/refresh"), logins()), (1, 1));
    server.expire_tokens();
    client.refresh().await?;
    assert_eq!(logins(), 2, "what cannot be refreshed is made anew");
    client.namespaces().await?;
    assert!(
        server
            .requests()
            .iter()
            .filter(|it| it.path == "/v2/namespaces")
            .all(|it| it.status == Some(http::StatusCode::OK))
    );
    Ok(())
}

pub async fn changes_an_endpoint_that_is_silent() -> Result<(), Failed> {
    let first = StorageOs::start()?;
    let second = first.another_endpoint()?;
    let client = client(&settings(&[&first, &second]));
    client.namespaces().await?;
    assert_eq!(client.endpoint(), Some(first.endpoint()));
    first.stop().await;
    client.namespaces().await?;
    assert_eq!(client.endpoint(), Some(second.endpoint()), "within the call");
    first.restart().await?;
    client.namespaces().await?;
    assert_eq!(client.endpoint(), Some(second.endpoint()), "kept while it answers");
    second.stop().await;
    client.namespaces().await?;
    assert_eq!(client.endpoint(), Some(first.endpoint()));
    first.stop().await;
    let silent = client.namespaces().await.map_err(|error| error.reason());
    assert_eq!(silent.map(|it| it.len()), Err("ConnectionRefused"));
    Ok(())
}

pub async fn trusts_whom_it_is_told_to() -> Result<(), Failed> {
    let tls = Tls::create()?;
    let server = StorageOs::start_at("127.0.0.1:0".parse()?, Some(tls.clone()))?;
    let reason = async |transport, authority: &str| {
        let bundle = json!(ByteString(authority.as_bytes().to_vec())).as_str().map(str::to_owned);
        let ca_bundle = bundle.filter(|_| transport == Transport::TLS);
        let client = client(&Settings { transport, ca_bundle, ..settings(&[&server]) });
        client.namespaces().await.map(drop).map_err(|error| error.reason())
    };
    assert_eq!(reason(Transport::TLS, tls.authority()).await, Ok(()));
    assert_eq!(reason(Transport::TLS, Tls::create()?.authority()).await, Err("CertificateInvalid"));
    assert_eq!(reason(Transport::TLSWithoutVerification, "").await, Ok(()));
    Ok(())
}

pub async fn asks_no_more_at_once_than_it_may() -> Result<(), Failed> {
    let server = StorageOs::start()?;
    let client =
        client(&Settings { concurrency: 2, request_timeout: Duration::from_millis(200), ..settings(&[&server]) });
    let namespaces = client.namespaces().await?;
    assert!(namespaces.is_empty());
    server.faults().add(Fault::to("/v2/namespaces", Effect::Silence));
    let before = server.requests().len();
    let calls = (0..4).map(|_| client.namespaces());
    let (answers, two) = tokio::join!(
        futures::future::join_all(calls),
        server.wait_for(Duration::from_secs(30), |requests| requests.len() >= before + 2),
    );
    assert!(two && answers.iter().all(|it| it.as_ref().is_err_and(|error| error.reason() == "Timeout")), "{answers:?}");
    let asked = server.requests();
    let asked: Vec<_> = asked[before..].iter().map(|it| it.at).collect();
    let gap = asked[2].saturating_sub(asked[0]);
    assert!(gap >= Duration::from_millis(190), "the third waited for the first: {asked:?}");
    Ok(())
}
