//! `kill -9` at the controller's writes, before they are sent and when they are done, while a story happens; whoever starts
//! next carries on.

use bulkhead::api::names;
use bulkhead_testbed::cluster::Cluster;
use bulkhead_testbed::fault_proxy::{Call, Script, Site};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::DeleteParams;
use kube::{Api, Client};
use libtest_mimic::Failed;
use tokio_util::sync::CancellationToken;

/// The name under which they follow each other.
const CONTROLLER: &str = "bulkhead-controller-tapped";

/// Where controllers live and die.
pub struct Mortals<'a> {
    pub cluster: &'a Cluster,
    pub admin: &'a Client,
}

impl Mortals<'_> {
    /// The calls of a story during which nobody dies.
    pub async fn undisturbed(&self, story: impl Future<Output = Result<(), Failed>>) -> Result<Vec<Call>, Failed> {
        let script = Script::default();
        script.begin("", Vec::new());
        self.outlive(&script, story).await?;
        Ok(script.calls())
    }

    /// Which sites were not come to, and how often the controller died.
    pub async fn disturbed(
        &self,
        sites: Vec<Site>,
        story: impl Future<Output = Result<(), Failed>>,
    ) -> Result<(Vec<Site>, usize), Failed> {
        let script = Script::default();
        script.begin("", sites);
        let died = self.outlive(&script, story).await?;
        Ok((script.left(), died))
    }

    /// Each of these calls alone, before and after, in a story of its own name.
    pub async fn disturbed_at_each(
        &self,
        calls: &[Call],
        story: impl AsyncFn(&str) -> Result<(), Failed>,
    ) -> Result<(), Failed> {
        for (number, call) in calls.iter().enumerate() {
            for site in [Site::before(&call.what, call.number), Site::after(&call.what, call.number)] {
                let name = format!("dies-{number}-{:?}", site.moment).to_lowercase();
                let told = site.to_string();
                let (left, _) = self.disturbed(vec![site], story(&name)).await?;
                println!("{told}: {}", if left.is_empty() { "killed" } else { "not come to" });
            }
        }
        Ok(())
    }

    /// Lets a story happen while controllers die as scripted and are started again.
    async fn outlive(&self, script: &Script, story: impl Future<Output = Result<(), Failed>>) -> Result<usize, Failed> {
        let over = CancellationToken::new();
        let story = async {
            let done = story.await;
            over.cancel();
            done
        };
        let ((), died) = tokio::try_join!(story, self.die_as_scripted(script, &over))?;
        Ok(died)
    }

    async fn die_as_scripted(&self, script: &Script, over: &CancellationToken) -> Result<usize, Failed> {
        let mut died = 0;
        loop {
            let mut controller = self.cluster.tapped_controller(CONTROLLER, script).await?;
            let tap = controller.tap.clone();
            tokio::select! {
                site = tap.stopped() => {
                    eprintln!("killed {site}");
                    died += 1;
                    controller.kill().await;
                    self.free_the_lease().await?;
                }
                // It lost its Lease: a loaded machine is enough.
                _ = controller.process.ended_by_itself() => {}
                () = over.cancelled() => {
                    controller.kill().await;
                    self.free_the_lease().await?;
                    return Ok(died);
                }
            }
        }
    }

    /// Who is killed gives nothing back, and is dead for certain: so the next one leads at once, not after 15 s.
    async fn free_the_lease(&self) -> Result<(), Failed> {
        let leases: Api<Lease> = Api::namespaced(self.admin.clone(), names::OPERATOR_NAMESPACE);
        match leases.delete("bulkhead-controller", &DeleteParams::default()).await {
            Err(kube::Error::Api(gone)) if gone.code == 404 => Ok(()),
            deleted => Ok(deleted.map(drop)?),
        }
    }
}
