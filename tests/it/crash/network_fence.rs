//! Method NetworkFence, where more is written than for the others: a fence is recorded before it is made, announced before it is
//! lifted, and told to be lifted before it is removed. Our programs die between these.

use bulkhead_testbed::cluster::Cluster;
use bulkhead_testbed::csi_addons::CsiAddons;
use bulkhead_testbed::fault_proxy::Site;
use libtest_mimic::Failed;

use super::every::{every_call, every_write};
use super::story::{CLASS, Story};
use super::track::{Deaths, Track, stage};

/// Where what was done is known to nobody, and where something was recorded and not done.
fn points() -> [Deaths; 2] {
    let before = Site::before;
    let after = Site::after;
    [
        Deaths {
            controller: vec![
                after("create fencerequests", 1),
                after("delete pods", 1),
                // Turned round, or asked again after a death.
                after("update fencerequests", 1),
            ],
            sidecar: vec![
                // The row says Started; nothing is recorded of a fence.
                after("update fencerequests/status", 1),
                after("create networkfences", 1),
                // It is to be lifted, and nobody has said so.
                before("update networkfences", 1),
                after("update networkfences", 2),
                after("delete networkfences", 1),
            ],
        },
        Deaths {
            controller: vec![before("create fencerequests", 1), before("delete volumeattachments", 1)],
            sidecar: vec![
                // The fence is recorded, and was not made.
                before("create networkfences", 1),
                // It is announced, and told to be lifted.
                after("update networkfences", 1),
                before("delete networkfences", 1),
                // The last of it is gone, and the request does not say so.
                after("update networkfences", 3),
            ],
        },
    ]
}

pub async fn a_network_fence_is_carried_through_by_others() -> Result<(), Failed> {
    let cluster = stage().await?;
    let _csi_addons = csi_addons(&cluster).await?;
    let mut track = Track::new(&cluster).await?;
    let points = points();
    let named = (0..=points.len()).map(|number| (format!("shutout-{number}"), Story::ShutOut));
    let mut victims = track.victims(&named.collect::<Vec<_>>()).await?.into_iter();
    let clean = track.clean(Story::ShutOut, victims.next().ok_or("no victim")?).await?;
    for deaths in points {
        let left = track.with(Story::ShutOut, victims.next().ok_or("no victim")?, &deaths, &clean).await?;
        assert_eq!(left, [], "these were not come to");
    }
    Ok(())
}

pub async fn every_write_of_a_network_fence() -> Result<(), Failed> {
    let cluster = stage().await?;
    let _csi_addons = csi_addons(&cluster).await?;
    let mut track = Track::new(&cluster).await?;
    every_write(&mut track, Story::ShutOut, 15).await?;
    every_call(&mut track, Story::ShutOut, 8).await
}

async fn csi_addons(cluster: &Cluster) -> Result<CsiAddons, Failed> {
    let array = cluster.arrays.first().ok_or("no array")?.clone();
    Ok(CsiAddons::start(&cluster.testbed, cluster.client.clone(), array, CLASS).await?)
}
