//! Control planes that fail in part, for a while, or at one address.

use bulkhead_testbed::storageos::{Effect, Fault, Method, NewVolume};
use http::StatusCode;
use kube::ResourceExt;
use libtest_mimic::Failed;
use serde_json::json;

use super::lane::Lane;

/// How a namespace fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    Error,
    Forbidden,
    Silence,
    Garbage,
}

impl Failure {
    pub const ALL: [Self; 4] = [Self::Error, Self::Forbidden, Self::Silence, Self::Garbage];

    fn effect(self) -> (Effect, &'static str) {
        match self {
            Self::Error => (Effect::Status(500), "ServerError"),
            Self::Forbidden => (Effect::Status(403), "Forbidden"),
            Self::Silence => (Effect::Silence, "Timeout"),
            Self::Garbage => (Effect::Garbage, "Malformed"),
        }
    }
}

pub async fn one_namespace(lane: &Lane<'_>, failure: Failure) -> Result<(), Failed> {
    let bad = lane.server.volumes().create_namespace("bad");
    for claim in ["media", "logs", "hidden"] {
        lane.claim(claim).await?;
    }
    lane.volume("media");
    let (effect, reason) = failure.effect();
    let fault = lane.server.faults().add(Fault::to(&format!("/{bad}/volumes"), effect));
    let hidden = NewVolume { volume_name: "pv-hidden", claim_name: "hidden", claim_namespace: &lane.name };
    lane.attached(&bad, &hidden);
    lane.provider(json!({ "requestTimeout": "3s" })).await?;
    lane.discovered("media").await?;
    let is_named = |status: &bulkhead::api::shared_volume_provider::SharedVolumeProviderStatus| {
        status.failing_namespaces.iter().any(|it| (it.name.as_str(), it.reason.as_str()) == ("bad", reason))
    };
    lane.reports("it is named", is_named).await?;
    lane.says("Discovering=True/PartialList").await?;
    lane.says("Ready=True/Polling").await?;
    assert!(lane.hears("NamespaceFailing").await?.contains("bad"));
    // What happens elsewhere is seen at the next poll, also while nobody answers there.
    lane.volume("logs");
    lane.discovered("logs").await?;
    assert!(!lane.all().await?.contains(&"hidden".to_owned()));
    lane.server.faults().remove(fault);
    lane.discovered("hidden").await?;
    lane.says("Discovering=True/Complete").await?;
    lane.reports("it is well again", |status| status.failing_namespaces.is_empty()).await?;
    Ok(())
}

pub async fn an_expired_token_within_a_poll(lane: &Lane<'_>) -> Result<(), Failed> {
    lane.claim("media").await?;
    lane.volume("media");
    lane.provider(json!({})).await?;
    lane.reports("it is counted", |status| status.shared_volumes == Some(1)).await?;
    let before = lane.providers().get(&lane.name).await?.resource_version();
    let volumes = format!("/v2/namespaces/{}/volumes", lane.namespace);
    // Between the list of namespaces and that of volumes.
    lane.server.faults().add(Fault::to(&volumes, Effect::Status(401)).times(1));
    lane.polled(2).await?;
    let all = lane.server.requests();
    let refused = all.iter().position(|it| it.status == Some(StatusCode::UNAUTHORIZED)).ok_or("nothing was refused")?;
    let then: Vec<_> = all[refused..].iter().take(3).map(|it| (it.path.as_str(), it.status)).collect();
    let ok = Some(StatusCode::OK);
    let expected = [(volumes.as_str(), Some(StatusCode::UNAUTHORIZED)), ("/v2/auth/login", ok), (&volumes, ok)];
    assert_eq!(then, expected, "one login, and the same call again");
    assert_eq!(lane.server.count(&Method::POST, "/v2/auth/login"), 2);
    assert_eq!(lane.providers().get(&lane.name).await?.resource_version(), before, "nobody is troubled with it");
    Ok(())
}

pub async fn a_provider_that_is_down_and_back(lane: &Lane<'_>) -> Result<(), Failed> {
    lane.claim("media").await?;
    lane.volume("media");
    lane.provider(json!({})).await?;
    let shared_volume = lane.discovered("media").await?;
    lane.reports("it is counted", |status| status.shared_volumes == Some(1)).await?;
    lane.server.stop().await;
    let down = lane.says("Ready=False/ConnectionRefused").await?;
    lane.says("Reachable=False/ConnectionRefused").await?;
    let status = down.status.ok_or("no status")?;
    assert_eq!((status.volumes, status.shared_volumes), (Some(1), Some(1)), "what is known of it stays");
    assert!(!status.conditions.iter().any(|it| it.type_ == "Stalled"), "it comes back by itself");
    assert!(lane.hears("ProviderUnreachable").await?.contains(&lane.server.endpoint()));
    lane.server.restart().await?;
    lane.says("Ready=True/Polling").await?;
    assert_eq!(lane.shared_volumes().get("media").await?.uid(), shared_volume.uid());
    Ok(())
}

pub async fn another_endpoint_is_used(lane: &Lane<'_>) -> Result<(), Failed> {
    let second = lane.server.another_endpoint()?;
    lane.claim("media").await?;
    lane.volume("media");
    lane.provider(json!({ "endpoints": [lane.server.endpoint(), second.endpoint()] })).await?;
    let uses = |endpoint: String| {
        move |status: &bulkhead::api::shared_volume_provider::SharedVolumeProviderStatus| {
            status.endpoint.as_ref() == Some(&endpoint)
        }
    };
    lane.reports("the first", uses(lane.server.endpoint())).await?;
    lane.server.stop().await;
    lane.reports("the second", uses(second.endpoint())).await?;
    assert!(lane.hears("EndpointChanged").await?.contains(&second.endpoint()));
    lane.says("Ready=True/Polling").await?;
    let told = lane.told().await?;
    assert!(!told.iter().any(|(reason, _)| reason == "ProviderUnreachable"), "{told:?}");
    Ok(())
}

pub async fn nobody_behind(lane: &Lane<'_>, status: u16) -> Result<(), Failed> {
    let second = lane.server.another_endpoint()?;
    lane.claim("media").await?;
    lane.volume("media");
    lane.provider(json!({ "endpoints": [lane.server.endpoint(), second.endpoint()] })).await?;
    lane.reports("the first", |it| it.endpoint.as_ref() == Some(&lane.server.endpoint())).await?;
    lane.discovered("media").await?;
    // The token is good and nobody logs in anew: only the answers tell that it is of no use.
    let fault = lane.server.faults().add(Fault::to("/v2/namespaces", Effect::Status(status)));
    lane.reports("the second", |it| it.endpoint.as_ref() == Some(&second.endpoint())).await?;
    assert!(lane.hears("EndpointChanged").await?.contains(&second.endpoint()));
    lane.claim("logs").await?;
    lane.volume("logs");
    lane.discovered("logs").await?;
    lane.says("Ready=True/Polling").await?;
    let told = lane.told().await?;
    assert!(!told.iter().any(|(reason, _)| reason == "ProviderUnreachable"), "{told:?}");
    // Both of them: each is asked within a call, and the failure is told.
    second.faults().add(Fault::to("/v2/namespaces", Effect::Status(status)));
    lane.says("Ready=False/ListFailed").await?;
    lane.server.faults().remove(fault);
    lane.says("Ready=True/Polling").await?;
    Ok(())
}
