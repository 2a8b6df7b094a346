//! What one pass over the policies sees: the stores.

use std::time::Duration;

use kube::ResourceExt;

use crate::controllers::Stores;

use super::decide::Seen;

/// What the stores show.
pub fn stored(stores: &Stores, counts_due_in: Duration) -> Seen {
    let healths = stores.healths.list();
    let phase =
        |health: &crate::api::volume_health::VolumeHealth| health.status.as_ref().and_then(|status| status.phase);
    let policies = stores.health_policies.list();
    // Who has no policy has nothing counted, and is not to unpack every volume of the cluster whenever one changes.
    let volumes = if policies.is_empty() { Vec::new() } else { stores.volumes.list() };
    Seen {
        policies,
        volumes,
        phases: healths.iter().filter_map(|health| Some((health.name_any(), phase(health)?))).collect(),
        can_enforce: stores.can_enforce(),
        counts_due_in,
    }
}
