//! Volumes that are mounted without being attached (docs/adr/0029). What covers them cuts off the node as a whole: which rows it
//! does, and when a node is switched off for their sake.

use crate::api::fencing::{FenceMethodType, PlannedMethod};
use crate::api::node_fence::PlannedVolume;
use crate::api::proof::{CLASS_OF_ANOTHER_CLUSTER, class_of_other_cluster};
use crate::api::time::Now;

use super::answers;
use super::decide::Seen;
use super::fencers::{self, Answer};
use super::rows::VolumeRow;

/// Whether the plan has methods for a volume that is not attached. A row that was planned when it was, or by a controller that
/// covered none, has not: what it lists proves nothing.
pub fn is_covered(seen: &Seen, volume: &str) -> bool {
    let rows = seen.fence.spec.plan.volumes.iter().filter(|row| row.name == volume);
    rows.max_by_key(|row| row.episode).is_some_and(PlannedVolume::is_unattached_and_covered)
}

/// Reason of a row for which the node is not switched off before others of the incident have spoken.
pub const POWER_WAITS: &str = "PowerWaits";

/// Marks the rows for which the node is not switched off yet: that ends all that runs there, so whoever comes before it for any
/// volume of the incident is heard first. One who does not begin since there is I/O has not spoken; nor has a class of which nobody has
/// said whose cluster it is of: csi-addons may be able to shut the node out.
pub fn hold_power(seen: &Seen, rows: &mut [VolumeRow], now: Now) {
    if !rows.iter().any(|row| row.plan.is_unattached()) {
        return;
    }
    let unheard = rows.iter().filter(|row| row.needed).find(|row| !is_heard(seen, row, now));
    let unheard = unheard.map(|row| row.plan.name.clone());
    for row in rows.iter_mut().filter(|row| row.needed && row.plan.is_unattached()) {
        // What the pass before said of it: it is said again where it is so still.
        if row.status.reason.as_deref() == Some(POWER_WAITS) {
            (row.status.reason, row.status.message) = (None, None);
        }
        if row.plan.methods.iter().any(is_external) {
            row.power_waits = untold(seen, row).or_else(|| unheard.as_deref().map(waits_for));
        }
    }
}

fn waits_for(volume: &str) -> (&'static str, String) {
    let message = format!(
        "the node is switched off last: volume {volume} is neither proved nor given up by those who come before"
    );
    (POWER_WAITS, message)
}

/// Why a row waits for a class that comes before the external fencer, and of which it is not known whether it is of the volume's
/// cluster.
fn untold(seen: &Seen, row: &VolumeRow) -> Option<(&'static str, String)> {
    let (driver, demanded) = (row.plan.driver.as_deref()?, row.plan.demanded_cluster()?);
    let report = seen.reports.get(driver)?;
    let earlier = row.plan.methods.iter().take_while(|method| !is_external(method));
    let mut networks = earlier.filter(|method| method.type_ == FenceMethodType::NetworkFence);
    let reaches = |method: &&PlannedMethod| method.type_.best_proof() >= row.minimum;
    let untold = networks.find(|it| reaches(it) && report.is_cluster_untold(it.class()))?;
    Some((CLASS_OF_ANOTHER_CLUSTER, class_of_other_cluster(report, driver, untold.class(), demanded)))
}

fn is_external(method: &PlannedMethod) -> bool {
    method.type_ == FenceMethodType::External
}

/// Whether a row is proved, or everybody whom its plan names before an external fencer leaves it to others.
fn is_heard(seen: &Seen, row: &VolumeRow, now: Now) -> bool {
    let proves = |answer: &Answer| {
        answers::is_proof(row, answer) && fencers::round(answer.request, row) == Some(answer.result.round)
    };
    let driver = row.plan.driver.as_deref().unwrap_or_default();
    let earlier = row.plan.methods.iter().take_while(|method| !is_external(method));
    let mut asked =
        earlier.filter(|method| fencers::is_usable(seen, row, method, now)).filter_map(|it| it.fencer(driver));
    row.is_cut_off()
        || fencers::answers(seen, row).iter().any(proves)
        || asked.all(|fencer| fencers::has_given_way(seen, row, fencer, now))
}
