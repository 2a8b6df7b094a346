//! A compromised agent: it can break what its own node has, and nothing else.

use libtest_mimic::Failed;
use serde_json::json;

use super::world::{World, bad, good};

pub async fn an_agent_taints_volumes_of_its_node_only(world: &World) -> Result<(), Failed> {
    world.node("honest-1").await?;
    world.node("lying-1").await?;
    world.local("honest-local", "honest-1").await?;
    world.local("lying-local", "lying-1").await?;
    world.csi("honest-csi", json!({})).await?;
    world.user("honest-csi", "honest-1", "honest-csi").await?;
    world.report("honest-1", json!([good("honest-local"), good("honest-csi")])).await?;
    let lie = |volume| bad(volume, "Device", "DataLoss", "DataLoss");
    world.report("lying-1", json!([lie("honest-local"), lie("honest-csi"), lie("lying-local")])).await?;
    // Its own volume shows that the lie has arrived; nothing of the others was said before it.
    world.tainted("lying-local", "VolumeNotUsable").await?;
    for volume in ["honest-local", "honest-csi"] {
        let health = world.tainted(volume, "").await?;
        let status = health.status.ok_or("no status")?;
        assert_eq!((status.observations.len(), status.data_loss_token), (0, None), "{volume}");
    }
    // Nor does it take back what others said.
    world
        .report("honest-1", json!([bad("honest-local", "Device", "Inaccessible", "DeviceMissing"), good("honest-csi")]))
        .await?;
    world.tainted("honest-local", "VolumeNotUsable").await?;
    world
        .report(
            "lying-1",
            json!([good("honest-local"), bad("lying-local", "FUSE", "Inaccessible", "FuseDisconnected")]),
        )
        .await?;
    world.tainted("lying-local", "VolumeNotUsable,VolumeNotMounted").await?;
    world.tainted("honest-local", "VolumeNotUsable").await?;
    Ok(())
}
