//! Which changes are worth a pass.

use std::time::Duration;

use tokio::sync::mpsc;

use crate::api::names;
use crate::api::volume_health::VolumeHealth;
use crate::api::volume_health_policy::VolumeHealthPolicy;
use crate::controllers::Context;
use crate::runtime::queue::Queue;
use crate::runtime::store::Change;

use super::ALL;

/// Volumes come and go all the time and change counts only: such changes are gathered for this long.
const PACE: Duration = Duration::from_secs(1);

/// Starts to listen.
pub fn start(cx: &Context, queue: &Queue<&'static str>) {
    let stores = &cx.stores;
    on(stores.health_policies.subscribe(), queue, None, |change| {
        change.differs(|it: &VolumeHealthPolicy| (it.metadata.generation, it.metadata.deletion_timestamp.is_some()))
    });
    on(stores.admission_bindings.subscribe(), queue, None, |change| {
        names::ENFORCING_POLICIES.contains(&change.key.name.as_str())
    });
    queue.follow_all(stores.volumes.subscribe(), Some(PACE), ALL);
    on(stores.healths.subscribe(), queue, Some(PACE), |change| {
        change.differs(|it: &VolumeHealth| it.status.as_ref().and_then(|status| status.phase))
    });
}

fn on<K: Send + Sync + 'static>(
    changes: mpsc::UnboundedReceiver<Change<K>>,
    queue: &Queue<&'static str>,
    pace: Option<Duration>,
    counts: impl Fn(&Change<K>) -> bool + Send + 'static,
) {
    queue.follow(changes, pace, move |change| counts(change).then_some(ALL));
}
