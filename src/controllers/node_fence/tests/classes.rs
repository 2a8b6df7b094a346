//! A network fence beside other methods: only where the driver's sidecar says that there is a class for it.

use serde_json::json;

use crate::api::fence_request::FencerMethodType;
use crate::controllers::testing::*;

use super::network::fencing_report;
use super::world::{Fencer, World};

fn methods(world: &World) -> Vec<FencerMethodType> {
    let requested = world.seen.requests.iter().flat_map(|request| &request.spec.volumes);
    requested.flat_map(|volume| &volume.methods).map(|method| method.type_).collect()
}

/// A sidecar of the release before could not read a request with that word, and would answer nothing at all.
#[test]
fn who_knows_no_network_fence_is_asked_for_the_other_methods_alone() {
    let network = json!({ "type": "NetworkFence", "networkFence": { "className": "file-fence" } });
    let fencing = json!({ "minimumProof": "Acknowledged", "methods": [{ "type": "Unpublish" }, network] });
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({ "fencing": fencing }));
    world.seen.reports = reports([report(DRIVER, &["Unpublish", "ListPublishedNodes"])]);
    world.fencers.insert(DRIVER.into(), Fencer::Fails("Unavailable"));
    world.run();
    assert_eq!(methods(&world), [FencerMethodType::Unpublish], "{:#?}", world.log);
    // It was upgraded, or csi-addons was installed.
    world.seen.reports = reports([fencing_report(&["Unpublish", "ListPublishedNodes", "NetworkFence"])]);
    world.wait(5.0);
    world.run();
    assert_eq!(methods(&world), [FencerMethodType::Unpublish, FencerMethodType::NetworkFence], "{:#?}", world.log);
}
