//! A leader is frozen with a write or a call on its way. The other replica finishes, or the node is back meanwhile; then
//! the frozen one goes on, and what was on its way arrives: nothing wrong is done.

use bulkhead_testbed::array::{Array, Method};
use bulkhead_testbed::cluster::Cluster;
use bulkhead_testbed::fault_proxy::{Call, Site};
use bulkhead_testbed::oracle;
use libtest_mimic::Failed;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::SOON;
use super::lineage::{Kind, Lineage};
use super::outcome::outcome;
use super::pair::{Frozen, Pair};
use super::story::{Scene, Story};
use super::track::{WAVE, stage};
use super::victim::Victim;

/// Which program is frozen.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    Controller,
    Sidecar,
}

/// A failover and a comeback, frozen in the middle.
pub async fn a_frozen_controller_does_nothing_wrong_when_it_goes_on() -> Result<(), Failed> {
    let sites =
        [(Story::Failover, Site::before("delete pods", 1)), (Story::Return, Site::before("create fencerequests", 1))];
    freeze_at(Who::Controller, &sites).await
}

/// With the fence call on its way.
pub async fn a_frozen_sidecar_does_nothing_wrong_when_it_goes_on() -> Result<(), Failed> {
    freeze_at(Who::Sidecar, &[(Story::Failover, Site::before("ControllerUnpublishVolume", 1))]).await
}

pub async fn at_every_write_of_the_controller() -> Result<(), Failed> {
    freeze_at_every(Who::Controller, [20, 12]).await
}

pub async fn at_every_write_and_call_of_the_sidecar() -> Result<(), Failed> {
    freeze_at_every(Who::Sidecar, [8, 3]).await
}

async fn freeze_at(who: Who, sites: &[(Story, Site)]) -> Result<(), Failed> {
    let cluster = stage().await?;
    let mut ice = Ice::new(&cluster, who).await?;
    let named = sites.iter().enumerate().map(|(number, (story, _))| (format!("frozen-{number}"), *story));
    let mut named: Vec<_> = named.collect();
    named.push(("clean-failover".to_owned(), Story::Failover));
    let mut victims = ice.victims(&named).await?;
    let (_, clean) = ice.clean(Story::Failover, victims.pop().ok_or("no victim")?).await?;
    for ((story, site), victim) in sites.iter().zip(victims) {
        let hit = ice.freeze(*story, victim, site, &clean).await?;
        assert!(hit, "{story:?}: it did not come to {site}");
    }
    Ok(())
}

async fn freeze_at_every(who: Who, least: [usize; 2]) -> Result<(), Failed> {
    let cluster = stage().await?;
    let mut ice = Ice::new(&cluster, who).await?;
    for (story, least) in [Story::Failover, Story::Return].into_iter().zip(least) {
        let victim = ice.victims(&[(format!("{}-clean", story.name()), story)]).await?.remove(0);
        let (calls, clean) = ice.clean(story, victim).await?;
        let sites: Vec<_> = calls.iter().map(|call| Site::before(&call.what, call.number)).collect();
        let (mut hit, mut failures) = (0, Vec::new());
        for (wave, sites) in sites.chunks(WAVE).enumerate() {
            let named = (0..sites.len()).map(|number| (format!("{}-{wave}-{number}", story.name()), story));
            let victims = ice.victims(&named.collect::<Vec<_>>()).await?;
            for (site, victim) in sites.iter().zip(victims) {
                match ice.freeze(story, victim, site, &clean).await {
                    Ok(come_to) => hit += usize::from(come_to),
                    Err(failed) => failures.push(failed.message().unwrap_or_default().to_owned()),
                }
            }
        }
        println!("frozen in a {}: {} calls, {hit} come to", story.name(), calls.len());
        assert!(failures.is_empty(), "{}", failures.join("\n\n"));
        assert!(calls.len() >= least, "suspiciously few calls: {calls:?}");
        assert!(hit * 10 >= sites.len() * 8, "too many were not come to");
    }
    Ok(())
}

/// One program in two replicas, the other alone.
struct Ice<'a> {
    cluster: &'a Cluster,
    array: &'a Array,
    pair: Pair<'a>,
    other: Lineage<'a>,
}

impl<'a> Ice<'a> {
    async fn new(cluster: &'a Cluster, who: Who) -> Result<Self, Failed> {
        let array = cluster.arrays.first().ok_or("no array")?;
        let (sidecar, controller) = (Kind::Sidecar(array), Kind::Controller);
        let (twice, once) = if who == Who::Sidecar { (sidecar, controller) } else { (controller, sidecar) };
        let other = Lineage::start(cluster, once).await?;
        Ok(Self { cluster, array, pair: Pair::start(cluster, twice).await?, other })
    }

    async fn victims(&self, stories: &[(String, Story)]) -> Result<Vec<Victim>, Failed> {
        let named: Vec<_> = stories.iter().map(|(name, _)| (name.clone(), false)).collect();
        Victim::all(self.cluster, self.array, &named).await
    }

    async fn clean(&mut self, story: Story, victim: Victim) -> Result<(Vec<Call>, Value), Failed> {
        let (script, nobody, over) = (self.pair.script.clone(), CancellationToken::new(), CancellationToken::new());
        let scene = Scene { cluster: self.cluster, array: self.array, victim: &victim, frozen: nobody.clone() };
        let played = async {
            let outcome = story.play(&scene, || script.begin(victim.name(), Vec::new())).await;
            over.cancel();
            outcome
        };
        let (pair, other) = (&mut self.pair, &mut self.other);
        let (_, outcome, ()) = tokio::try_join!(pair.keep(&nobody, &over), played, other.die_as_scripted(&over))?;
        self.cluster.nodes.remove(victim.name()).await?;
        Ok((script.calls(), outcome))
    }

    /// Plays a story with the leader frozen at a site. Returns whether it came to it.
    async fn freeze(&mut self, story: Story, victim: Victim, site: &Site, clean: &Value) -> Result<bool, Failed> {
        let what = format!("{story:?}, frozen {site}");
        let told = |failed: Failed| Failed::from(format!("{what}: {}", failed.message().unwrap_or_default()));
        let (token, over) = (CancellationToken::new(), CancellationToken::new());
        let scene = Scene { cluster: self.cluster, array: self.array, victim: &victim, frozen: token.clone() };
        let script = self.pair.script.clone();
        let played = async {
            let counting = || script.begin(victim.name(), vec![site.clone()]);
            let done = match story {
                Story::Return => scene.come_back(counting).await,
                story => story.play(&scene, counting).await.map(drop),
            };
            over.cancel();
            done
        };
        let (pair, other) = (&mut self.pair, &mut self.other);
        let (frozen, (), ()) =
            tokio::try_join!(pair.keep(&token, &over), played, other.die_as_scripted(&over)).map_err(told)?;
        let hit = frozen.is_some();
        self.same(story, &victim, clean).await.map_err(told)?;
        if let Some(frozen) = frozen {
            self.thaw(frozen).await.map_err(told)?;
            self.same(story, &victim, clean).await.map_err(told)?;
        }
        if story == Story::Return {
            self.unharmed(&victim).map_err(told)?;
        }
        let verdict = oracle::judge(self.array.ledger());
        assert!(verdict.is_clean(), "{what}: {verdict}");
        self.cluster.nodes.remove(victim.name()).await?;
        Ok(hit)
    }

    async fn thaw(&mut self, frozen: Frozen) -> Result<(), Failed> {
        self.pair.thaw(frozen).await?;
        self.pair.fill().await
    }

    /// A failover ends as one that nobody disturbed; a node that came back has nothing of ours.
    async fn same(&self, story: Story, victim: &Victim, clean: &Value) -> Result<(), Failed> {
        if story == Story::Return {
            let frozen = CancellationToken::new();
            return Scene { cluster: self.cluster, array: self.array, victim, frozen }.at_peace().await;
        }
        let look = async || {
            let outcome = outcome(self.cluster, victim).await;
            Ok(match outcome {
                Ok(outcome) if outcome == *clean => Ok(()),
                Ok(outcome) => Err(format!("{outcome:#}\nwithout: {clean:#}")),
                Err(failed) => Err(failed.message().unwrap_or_default().to_owned()),
            })
        };
        Ok(self.cluster.wait("the same end", SOON, look).await?)
    }

    /// Nobody took a volume from a node that was back before the first call.
    fn unharmed(&self, victim: &Victim) -> Result<(), Failed> {
        let (volume, node) = (victim.set.handle(0, 0), victim.node.csi_node_id().to_owned());
        let calls = self.array.calls().all();
        let cut = calls.iter().filter(|call| call.method == Method::ControllerUnpublishVolume);
        let cut = cut.filter(|call| call.volume == volume && call.node == node).count();
        if cut == 0 { Ok(()) } else { Err("access was taken from a node that was back".into()) }
    }
}
