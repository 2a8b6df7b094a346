//! Every site there is, one incident for each. The calls of an incident that nobody disturbs are the list.

use std::collections::BTreeSet;

use bulkhead_testbed::fault_proxy::{Call, Site};
use libtest_mimic::Failed;

use super::story::Story;
use super::track::{Deaths, Track, WAVE, sides, stage};

pub async fn write_of_a_failover() -> Result<(), Failed> {
    let cluster = stage().await?;
    every_write(&mut Track::new(&cluster).await?, Story::Failover, 20).await
}

pub async fn write_of_an_awkward_failover() -> Result<(), Failed> {
    let cluster = stage().await?;
    every_write(&mut Track::new(&cluster).await?, Story::Awkward, 20).await
}

pub async fn write_of_an_undo_and_of_a_deletion() -> Result<(), Failed> {
    let cluster = stage().await?;
    let mut track = Track::new(&cluster).await?;
    every_write(&mut track, Story::Return, 12).await?;
    every_write(&mut track, Story::Deletion, 12).await
}

pub async fn write_and_call_of_the_sidecar() -> Result<(), Failed> {
    let cluster = stage().await?;
    let mut track = Track::new(&cluster).await?;
    every_start(&mut track).await?;
    for (story, least) in [(Story::Failover, 8), (Story::Return, 3)] {
        every_call(&mut track, story, least).await?;
    }
    Ok(())
}

/// The writes and calls of the sidecar.
pub async fn every_call(track: &mut Track<'_>, story: Story, least: usize) -> Result<(), Failed> {
    let clean = track.clean(story, one(track, story).await?).await?;
    let sites = sides(&clean.sidecar);
    let deaths = |site| Deaths { sidecar: vec![site], ..Deaths::default() };
    let left = each(track, story, &clean, &sites, deaths).await?;
    verdict(&format!("{story:?}, sidecar"), least, &clean.sidecar, &sites, &left)
}

/// The writes of the controller.
pub async fn every_write(track: &mut Track<'_>, story: Story, least: usize) -> Result<(), Failed> {
    let clean = track.clean(story, one(track, story).await?).await?;
    let sites = sides(&clean.controller);
    let deaths = |site| Deaths { controller: vec![site], ..Deaths::default() };
    let left = each(track, story, &clean, &sites, deaths).await?;
    verdict(&format!("{story:?}, controller"), least, &clean.controller, &sites, &left)
}

async fn one(track: &Track<'_>, story: Story) -> Result<super::victim::Victim, Failed> {
    let victims = track.victims(&[(format!("{}-clean", story.name()), story)]).await?;
    Ok(victims.into_iter().next().ok_or("no victim")?)
}

/// An incident per site. Returns the sites that were not come to.
async fn each(
    track: &mut Track<'_>,
    story: Story,
    clean: &super::track::Clean,
    sites: &[Site],
    deaths: impl Fn(Site) -> Deaths,
) -> Result<Vec<Site>, Failed> {
    let mut left = Vec::new();
    for (wave, sites) in sites.chunks(WAVE).enumerate() {
        let named = (0..sites.len()).map(|number| (format!("{}-{wave}-{number}", story.name()), story));
        let victims = track.victims(&named.collect::<Vec<_>>()).await?;
        for (site, victim) in sites.iter().zip(victims) {
            left.extend(track.with(story, victim, &deaths(site.clone()), clean).await?);
        }
    }
    Ok(left)
}

/// The calls of a sidecar that starts beside a driver that is new.
async fn every_start(track: &mut Track<'_>) -> Result<(), Failed> {
    let clean = track.report(Vec::new()).await?;
    let calls = track.sidecar.script.calls();
    let sites = sides(&calls);
    let mut left = Vec::new();
    for site in &sites {
        let outcome = track.report(vec![site.clone()]).await?;
        assert_eq!(outcome, clean, "start with {site}");
        left.extend(track.sidecar.script.left());
    }
    verdict("start, sidecar", 6, &calls, &sites, &left)
}

/// Prints the counts. How often a status is written depends on what is seen together, so that its last writes may not come;
/// but each kind of call was stopped on both sides, and hardly another site was missed.
fn verdict(what: &str, least: usize, calls: &[Call], sites: &[Site], left: &[Site]) -> Result<(), Failed> {
    let named = left.iter().map(Site::to_string).collect::<Vec<_>>().join(", ");
    println!("crash sites of {what}: {} calls, {} sites, not come to: {named}", calls.len(), sites.len());
    let kinds = |sites: &mut dyn Iterator<Item = &Site>| -> BTreeSet<_> {
        sites.map(|site| (site.call.what.clone(), site.moment)).collect()
    };
    let hit = kinds(&mut sites.iter().filter(|site| !left.contains(site)));
    assert_eq!(hit, kinds(&mut sites.iter()), "a kind of call was not stopped");
    let missed = left.iter().filter(|site| !site.call.what.ends_with("/status")).count();
    assert!(missed <= 2, "too many sites were not come to");
    assert!(calls.len() >= least, "suspiciously few calls: {calls:?}");
    Ok(())
}
