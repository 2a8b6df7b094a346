//! Secrets, and whom to trust.

use bulkhead_testbed::storageos::{Method, StorageOs, Tls};
use k8s_openapi::ByteString;
use kube::api::{DeleteParams, Patch, PatchParams};
use libtest_mimic::Failed;
use serde_json::json;

use super::lane::Lane;

pub async fn wrong_until_the_secret_is_right(lane: &Lane<'_>) -> Result<(), Failed> {
    lane.server.set_password("storageos", "changed");
    lane.claim("media").await?;
    lane.volume("media");
    lane.provider(json!({})).await?;
    lane.says("Stalled=True/CredentialsRefused").await?;
    lane.says("Authenticated=False/CredentialsRefused").await?;
    let ready = lane.says("Ready=False/CredentialsRefused").await?;
    assert!(!json!(ready.status).to_string().contains("changed"), "no password is told");
    assert!(lane.hears("CredentialsRefused").await?.contains("Secret"));
    lane.secret(json!({ "username": "storageos", "password": "changed" })).await?;
    lane.says("Ready=True/Polling").await?;
    lane.discovered("media").await?;
    // Changed while it is used: the token is good for some time yet, and the new password is used at once.
    lane.server.set_password("storageos", "changed again");
    let logins = lane.server.count(&Method::POST, "/v2/auth/login");
    lane.secret(json!({ "username": "storageos", "password": "changed again" })).await?;
    let again = super::world::eventually("a login with the new password", async || {
        Ok((lane.server.count(&Method::POST, "/v2/auth/login") > logins).then_some(()))
    });
    again.await?;
    lane.polled(1).await?;
    lane.says("Ready=True/Polling").await?;
    Ok(())
}

pub async fn a_missing_secret(lane: &Lane<'_>) -> Result<(), Failed> {
    lane.secrets().delete(&lane.name, &DeleteParams::default()).await?;
    lane.provider(json!({})).await?;
    lane.says("Stalled=True/SecretNotFound").await?;
    lane.says("Ready=False/SecretNotFound").await?;
    assert_eq!(lane.server.requests().len(), 0, "nobody is asked without");
    lane.secret(json!({ "username": "storageos" })).await?;
    lane.says("Stalled=True/SecretIncomplete").await?;
    lane.secret(json!({ "username": "storageos", "password": "storageos" })).await?;
    lane.says("Ready=True/Polling").await?;
    lane.secrets().delete(&lane.name, &DeleteParams::default()).await?;
    lane.says("Ready=False/SecretNotFound").await?;
    Ok(())
}

pub async fn tls_with_an_authority(lane: &Lane<'_>) -> Result<(), Failed> {
    let tls = Tls::create()?;
    let server = StorageOs::start_at("127.0.0.1:0".parse()?, Some(tls.clone()))?;
    let bundle = |authority: &str| json!(ByteString(authority.as_bytes().to_vec()));
    let wrong = bundle(Tls::create()?.authority());
    lane.provider(json!({ "endpoints": [server.endpoint()], "transport": "TLS", "caBundle": wrong })).await?;
    lane.says("Reachable=False/CertificateInvalid").await?;
    lane.says("Stalled=True/CertificateInvalid").await?;
    let right = json!({ "spec": { "caBundle": bundle(tls.authority()) } });
    lane.providers().patch(&lane.name, &PatchParams::default(), &Patch::Merge(right)).await?;
    lane.says("Ready=True/Polling").await?;
    let none = json!({ "spec": { "caBundle": bundle("nothing") } });
    lane.providers().patch(&lane.name, &PatchParams::default(), &Patch::Merge(none)).await?;
    let stalled = lane.says("Ready=False/CertificateInvalid").await?;
    assert!(json!(stalled.status).to_string().contains("spec.caBundle"));
    Ok(())
}
