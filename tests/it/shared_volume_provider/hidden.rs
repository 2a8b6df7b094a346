//! Credentials and tokens are nowhere to be read: not at the highest log level, in no status, Event or metric.

use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim};
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::ListParams;
use libtest_mimic::Failed;
use serde_json::json;

use super::lane::Lane;
use super::world::World;

const WRONG: &str = "Kq7-wrong-Pv2";
const RIGHT: &str = "Zr4-right-Mw9";
/// The same in base64, as a Secret has them.
const ENCODED: [&str; 2] = ["S3E3LXdyb25nLVB2Mg", "WnI0LXJpZ2h0LU13OQ"];
/// What the control plane's tokens begin with.
const TOKEN: &str = "jwt-";

pub async fn credentials_are_nowhere_to_be_read() -> Result<(), Failed> {
    let world = World::start().await?;
    let controller = world.controller_at("trace")?;
    let lane = Lane::open(&world, "hidden").await?;
    lane.server.set_password("storageos", RIGHT);
    lane.secret(json!({ "username": "storageos", "password": WRONG })).await?;
    lane.claim("media").await?;
    lane.volume("media");
    lane.provider(json!({})).await?;
    lane.says("Authenticated=False/CredentialsRefused").await?;
    lane.secret(json!({ "username": "storageos", "password": RIGHT })).await?;
    lane.discovered("media").await?;
    lane.says("Ready=True/Polling").await?;
    // Logging in anew, and a Secret that is incomplete, are told as well.
    lane.server.expire_tokens();
    lane.polled(2).await?;
    lane.secret(json!({ "username": "", "password": RIGHT })).await?;
    lane.says("Stalled=True/SecretIncomplete").await?;

    let log = world.testbed.folder().join("bulkhead-controller.log");
    let log = std::fs::read_to_string(&log)?;
    assert!(log.contains("TRACE"), "not the highest level");
    let mut places = vec![("the log", log), ("the metrics", world.scrape().await?)];
    places.push(("a provider", serde_json::to_string(&lane.providers().list(&ListParams::default()).await?)?));
    places.push(("a SharedVolume", serde_json::to_string(&lane.shared_volumes().list(&ListParams::default()).await?)?));
    let all = ListParams::default();
    places.push(("an Event", serde_json::to_string(&Api::<Event>::all(world.admin.clone()).list(&all).await?)?));
    let claims = Api::<PersistentVolumeClaim>::all(world.admin.clone()).list(&all).await?;
    places.push(("a claim", serde_json::to_string(&claims)?));
    let maps = Api::<ConfigMap>::all(world.admin.clone()).list(&all).await?;
    places.push(("a ConfigMap", serde_json::to_string(&maps)?));
    for (place, text) in &places {
        assert!(!text.is_empty(), "{place}");
        for secret in [WRONG, RIGHT, ENCODED[0], ENCODED[1], TOKEN] {
            let line = text.lines().find(|line| line.contains(secret));
            assert!(line.is_none(), "{secret} is in {place}: {line:?}");
        }
    }
    drop(controller);
    Ok(())
}
