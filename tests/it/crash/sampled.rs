//! The ten points that every run of the tests tries. Several fit in one incident; each is come to.

use bulkhead_testbed::fault_proxy::Site;
use libtest_mimic::Failed;

use super::story::Story;
use super::track::{Deaths, Track, stage};

/// Where what was done is known to nobody, and where something was recorded and not done.
fn points() -> [(Story, Deaths); 4] {
    let before = Site::before;
    let after = Site::after;
    [
        (
            Story::Failover,
            Deaths {
                controller: vec![
                    after("create nodefences", 1),
                    after("delete pods", 1),
                    // The request is turned round, because the node is clean.
                    after("update fencerequests", 1),
                ],
                // The row says Started; nothing was sent.
                sidecar: vec![after("update fencerequests/status", 1)],
            },
        ),
        (
            Story::Failover,
            Deaths {
                // The second patch of the node sets the out-of-service key.
                controller: vec![before("create fencerequests", 1), after("patch nodes", 2)],
                sidecar: vec![after("ControllerUnpublishVolume", 1), before("update fencerequests/status", 2)],
            },
        ),
        (Story::Return, Deaths { controller: vec![after("update fencerequests", 1)], sidecar: Vec::new() }),
        // The finalizer goes.
        (Story::Deletion, Deaths { controller: vec![before("patch resiliencypolicies", 1)], sidecar: Vec::new() }),
    ]
}

pub async fn at_ten_points_another_carries_on() -> Result<(), Failed> {
    let points = points();
    assert_eq!(points.iter().map(|(_, deaths)| deaths.controller.len() + deaths.sidecar.len()).sum::<usize>(), 10);
    let cluster = stage().await?;
    let mut track = Track::new(&cluster).await?;
    let stories = [Story::Failover, Story::Return, Story::Deletion];
    let clean = stories.iter().map(|story| (format!("clean-{}", story.name()), *story));
    let dies = points.iter().enumerate().map(|(number, (story, _))| (format!("dies-{number}"), *story));
    let mut victims = track.victims(&clean.chain(dies).collect::<Vec<_>>()).await?.into_iter();
    let mut references = Vec::new();
    let mut calls = 0;
    for story in stories {
        let clean = track.clean(story, victims.next().ok_or("no victim")?).await?;
        calls += clean.controller.len() + clean.sidecar.len();
        references.push((story, clean));
    }
    println!("crash sites of a failover, an undo and a deletion: {}, of which ten are tried", 2 * calls);
    assert!(calls >= 50, "suspiciously few calls: {calls}");
    for (story, deaths) in points {
        let (_, clean) = references.iter().find(|(known, _)| *known == story).ok_or("no reference")?;
        let left = track.with(story, victims.next().ok_or("no victim")?, &deaths, clean).await?;
        assert_eq!(left, [], "{story:?}: these were not come to");
    }
    Ok(())
}
