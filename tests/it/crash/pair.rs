//! Two replicas of a program. The one that leads is frozen (SIGSTOP) at a call, with that call on its way; the other takes
//! over when the Lease has stood still for its 15 s.

use std::time::Duration;

use bulkhead_testbed::cluster::{Cluster, Tapped};
use bulkhead_testbed::fault_proxy::{Script, Site};
use bulkhead_testbed::process::Signal;
use libtest_mimic::Failed;
use tokio_util::sync::CancellationToken;

use super::SOON;
use super::lineage::{Kind, holder};

/// A program that was let go on has this long to notice that it leads no more, and to end.
const NOTICES: Duration = Duration::from_secs(20);

/// Two replicas.
pub struct Pair<'a> {
    cluster: &'a Cluster,
    kind: Kind<'a>,
    pub script: Script,
    replicas: Vec<(String, Tapped)>,
    generation: usize,
}

/// A replica that is frozen.
pub struct Frozen {
    name: String,
    replica: Tapped,
    site: Site,
}

impl<'a> Pair<'a> {
    /// Starts both, and returns when one leads.
    pub async fn start(cluster: &'a Cluster, kind: Kind<'a>) -> Result<Self, Failed> {
        let mut pair = Self { cluster, kind, script: Script::default(), replicas: Vec::new(), generation: 0 };
        pair.fill().await?;
        pair.led(None).await?;
        Ok(pair)
    }

    /// Starts what is missing, and again what ended by itself, as on a machine too busy to renew a Lease in time.
    pub async fn fill(&mut self) -> Result<(), Failed> {
        self.replicas.retain_mut(|(_, replica)| replica.process.exit_status().is_none());
        while self.replicas.len() < 2 {
            self.generation += 1;
            let name = format!("{}-{}", self.kind.lease(), self.generation);
            let replica = self.kind.start(self.cluster, &name, &self.script).await?;
            self.replicas.push((name, replica));
        }
        Ok(())
    }

    /// Keeps replicas running until `over`; the one that comes to a site is frozen, and returned in the end. `told` is
    /// cancelled then: nobody leads for a while.
    pub async fn keep(&mut self, told: &CancellationToken, over: &CancellationToken) -> Result<Option<Frozen>, Failed> {
        let mut frozen = None;
        loop {
            let happens = self.replicas.iter_mut().enumerate().map(|(position, (_, replica))| {
                let Tapped { process, tap, .. } = replica;
                Box::pin(async move {
                    tokio::select! {
                        biased;
                        site = tap.stopped() => Some((position, site)),
                        _ = process.ended_by_itself() => None,
                    }
                })
            });
            let stop = tokio::select! {
                biased;
                (stop, ..) = futures::future::select_all(happens) => stop,
                () = over.cancelled() => return Ok(frozen),
            };
            match stop {
                Some((position, site)) => {
                    let (name, mut replica) = self.replicas.remove(position);
                    // Until the signal arrives it waits for its call: nothing of it passes.
                    replica.process.signal(Signal::Stop)?;
                    frozen = Some(Frozen { name, replica, site });
                    told.cancel();
                }
                None => self.fill().await?,
            }
        }
    }

    /// What was on its way arrives, then the replica goes on. Returns when it has noticed that it leads no more and has
    /// ended, while the other leads.
    pub async fn thaw(&mut self, frozen: Frozen) -> Result<(), Failed> {
        let Frozen { name, mut replica, site } = frozen;
        self.fill().await?;
        self.led(Some(&name)).await?;
        replica.tap.go_on();
        replica.tap.quiet().await;
        replica.process.signal(Signal::Continue)?;
        let ended = tokio::time::timeout(NOTICES, replica.process.ended_by_itself()).await;
        let status = ended.map_err(|_| format!("{name}, frozen {site}, still runs: {}", replica.process.log_tail()))?;
        assert!(status.is_some_and(|status| !status.success()), "{name}, frozen {site}, ended with {status:?}");
        Ok(())
    }

    /// Waits until a replica leads, another than this.
    async fn led(&self, but: Option<&str>) -> Result<(), Failed> {
        let look = async || {
            let holder = holder(self.cluster, &self.kind.lease()).await?;
            // A suffix tells the processes of one name apart.
            let name = holder.as_deref().and_then(|holder| holder.rsplit_once('_')).map(|(name, _)| name);
            Ok(if name.is_some() && name != but { Ok(()) } else { Err(format!("{holder:?}")) })
        };
        Ok(self.cluster.wait("a replica leads", SOON, look).await?)
    }
}
