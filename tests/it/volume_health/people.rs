//! What people write into the spec.

use chrono::{TimeDelta, Utc};
use libtest_mimic::Failed;
use serde_json::json;

use super::world::{World, abnormal};

pub async fn people_taint_and_suppress(world: &World) -> Result<(), Failed> {
    world.csi("of-people", json!({})).await?;
    let manual =
        json!([{ "key": "storage.example.com/migrating", "effect": "NoAttachOrMount", "reason": "ticket 4711" }]);
    world.want("of-people", json!({ "manualTaints": manual })).await?;
    let health = world.tainted("of-people", "storage.example.com/migrating").await?;
    assert_eq!(health.taints()[0].message.as_deref(), Some("ticket 4711"));
    world.driver("people", json!([abnormal("of-people", "Inaccessible", "BackendDeleted")])).await?;
    world.tainted("of-people", "VolumeNotUsable,storage.example.com/migrating").await?;
    let until = Utc::now() + TimeDelta::seconds(6);
    let suppressed = json!([{ "key": "VolumeNotUsable", "until": until, "reason": "ticket 4690" }]);
    world.want("of-people", json!({ "manualTaints": null, "suppressTaints": suppressed })).await?;
    world.tainted("of-people", "").await?;
    let health = world.tainted("of-people", "VolumeNotUsable").await?;
    assert!(health.taints()[0].time_added >= until, "{:?}", health.taints());
    // The same words about the same object are not told again within ten minutes.
    let told = ["TaintSuppressed", "VolumeTaintRemoved", "VolumeTaintRemoved", "VolumeTainted", "VolumeTainted"];
    world.told("VolumeHealth", "of-people", &told).await
}

pub async fn a_data_loss_waits_for_a_person(world: &World) -> Result<(), Failed> {
    world.csi("of-loss", json!({})).await?;
    world.driver("loss", json!([abnormal("of-loss", "DataLoss", "DataLoss")])).await?;
    let health = world.tainted("of-loss", "VolumeNotUsable").await?;
    let token = health.status.ok_or("no status")?.data_loss_token.ok_or("no token")?;
    // The driver says that all is well again, and says something else: only the latter changes.
    world.csi("beside-loss", json!({})).await?;
    world.driver("loss", json!([abnormal("beside-loss", "Inaccessible", "BackendUnreachable")])).await?;
    world.tainted("beside-loss", "VolumeNotUsable").await?;
    world.tainted("of-loss", "VolumeNotUsable").await?;
    world.want("of-loss", json!({ "acknowledgeDataLoss": token })).await?;
    let health = world.tainted("of-loss", "").await?;
    assert_eq!(health.status.ok_or("no status")?.data_loss_token, None);
    Ok(())
}
