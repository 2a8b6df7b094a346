//! A controller that ends and starts again.

use bulkhead_testbed::process::Signal;
use kube::ResourceExt;
use libtest_mimic::Failed;
use serde_json::json;

use super::lane::Lane;
use super::world::{World, eventually};

pub async fn tells_nothing_twice() -> Result<(), Failed> {
    let world = World::start().await?;
    let mut controller = world.controller()?;
    let lane = Lane::open(&world, "restarted").await?;
    lane.claim("media").await?;
    lane.volume("media");
    lane.provider(json!({})).await?;
    lane.discovered("media").await?;
    lane.reports("it is counted", |status| status.shared_volumes == Some(1)).await?;
    lane.hears("PlaintextCredentials").await?;
    lane.hears("SharedVolumeCreated").await?;
    let state = async || {
        let mut told = lane.told().await?;
        told.sort_unstable();
        let provider = lane.providers().get(&lane.name).await?.resource_version();
        let shared_volume = lane.shared_volumes().get("media").await?.uid();
        Ok::<_, Failed>((told, provider, shared_volume))
    };
    let before = state().await?;
    controller.signal(Signal::Terminate)?;
    let mut ended = None;
    eventually("it ends", async || {
        ended = controller.exit_status();
        Ok(ended.map(drop))
    })
    .await?;
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
    let _again = world.controller()?;
    lane.polled(3).await?;
    assert_eq!(state().await?, before);
    Ok(())
}
