//! Our programs die at any write and any call, and others carry on to the same end. Each test ends with the oracle.
#![allow(clippy::indexing_slicing, clippy::panic, reason = "a test says what it expects by panicking")]

mod lineage;
mod outcome;
mod story;
mod track;
mod victim;

use bulkhead_testbed::fault_proxy::Site;
use libtest_mimic::{Failed, Trial};

use story::Story;
use track::{Deaths, Track, stage};

/// All tests of this module.
pub fn trials() -> Vec<Trial> {
    vec![alone("at_ten_points_another_carries_on", at_ten_points_another_carries_on)]
}

/// Each has a cluster of its own, for it has the programs for itself.
fn alone<T>(name: &str, test: T) -> Trial
where
    T: AsyncFn() -> Result<(), Failed> + Send + 'static,
{
    Trial::test(format!("crash::{name}"), move || tokio::runtime::Runtime::new()?.block_on(test()))
}

async fn at_ten_points_another_carries_on() -> Result<(), Failed> {
    let cluster = stage().await?;
    let mut track = Track::new(&cluster).await?;
    let names = ["clean-f", "clean-r", "clean-d", "dies-f"].map(str::to_owned);
    let mut victims = track.victims(&names).await?.into_iter();
    for story in [Story::Failover, Story::Return, Story::Deletion] {
        let at = std::time::Instant::now();
        let clean = track.clean(story, victims.next().ok_or("no victim")?).await?;
        eprintln!("{story:?} {:?}\n{:#?}\n{:#?}\n{:#}", at.elapsed(), clean.controller, clean.sidecar, clean.outcome);
        if story == Story::Failover {
            let deaths = Deaths {
                controller: vec![Site::after("create nodefences", 1), Site::before("delete pods", 1)],
                sidecar: vec![Site::after("ControllerUnpublishVolume", 1)],
            };
            let at = std::time::Instant::now();
            let left = track.with(story, victims.nth(2).ok_or("no victim")?, &deaths, &clean).await?;
            eprintln!("{left:?} {:?}", at.elapsed());
            let mut more = track.victims(&["clean-r2", "clean-d2"].map(str::to_owned)).await?;
            more.reverse();
            victims = more.into_iter();
        }
    }
    Ok(())
}
