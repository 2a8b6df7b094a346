//! Volumes that are mounted without being attached: which methods cover them, which proofs count, and when a node is switched off for
//! their sake.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::api::driver_report::{DriverReport, NetworkFenceCluster};
use crate::api::fence_request::{FencerMethodType, IO_IN_PROGRESS};
use crate::api::fencing::{FenceMethodType, Proof};
use crate::api::node_fence::{PodStatusState, VolumeStatusState};
use crate::api::proof::CLASS_TOO_NEW;
use crate::api::usage::PodView;
use crate::controllers::testing::*;

use super::network::{ADDRESS, with_address};
use super::world::{Fencer, World};

/// What its sidecar says: these classes, the clusters of which it tells; empty where a class names none.
fn storage(clusters: &[(&str, &str)]) -> DriverReport {
    let mut report = report(FILES, &["NetworkFence"]);
    let status = report.status.as_mut().unwrap();
    status.network_fence_classes = vec!["file-fence".into()];
    let cluster = |(class, id): &(&str, &str)| NetworkFenceCluster {
        class_name: (*class).to_owned(),
        cluster_id: Some((*id).to_owned()).filter(|id| !id.is_empty()),
    };
    status.network_fence_clusters = clusters.iter().map(cluster).collect();
    report
}

/// A failed node with these pods, under a policy with these methods.
fn failed(pods: Vec<PodView>, minimum: &str, methods: &[Value]) -> World {
    let fencing = json!({ "minimumProof": minimum, "methods": methods, "callTimeout": "5s", "giveUpAfter": "20s" });
    let spec = json!({ "fencing": fencing, "detection": { "storage": { "whenIOInProgress": "Veto" } } });
    let mut world = World::new(pods, &spec);
    let block = report(DRIVER, &["Unpublish", "ListPublishedNodes", "Connectivity", "IOInProgress"]);
    world.seen.reports = reports([block, storage(&[("file-fence", "")])]);
    world.fencers.insert(FILES.into(), Fencer::Proves(Proof::Acknowledged));
    world.fencers.insert(POWER.into(), Fencer::Proves(Proof::PowerOff));
    Arc::make_mut(&mut world.seen.fence).spec.node.addresses = vec![ADDRESS.into()];
    world.node_becomes(|node| with_address(node, ADDRESS));
    world
}

fn files() -> PodView {
    pod("files", "n1", &[unattached(FILES, "share")])
}

fn waits() -> (PodStatusState, String) {
    (PodStatusState::Waiting, "UnknownVolumeKind".into())
}

#[test]
fn a_network_fence_of_its_own_driver_frees_the_pod() {
    let mut world = failed(vec![files()], "Acknowledged", &[unpublish(), network()]);
    world.run();
    world.assert_order(&["taint fenced", "ask Fenced share round 1", "Started share", "Fenced share"]);
    assert!(world.did("delete files grace 0") && !world.did("taint out-of-service"), "{:#?}", world.log);
    let row = world.volume("share");
    assert_eq!((row.method, row.proof), (Some(FenceMethodType::NetworkFence), Proof::Acknowledged));
    let asked = &world.seen.request(FILES).unwrap().spec.volumes[0];
    let types: Vec<_> = asked.methods.iter().map(|method| method.type_).collect();
    assert_eq!(types, [FencerMethodType::NetworkFence], "there is no publish to be taken back");
}

#[test]
fn a_class_that_does_not_name_the_cluster_of_the_volume_is_not_used() {
    let of_a = || in_cluster(unattached(FILES, "share"), "a");
    let of_none = || unattached(FILES, "share");
    let untold: &[(&str, &str)] = &[];
    for (share, clusters, goes, words) in [
        (of_a(), untold, false, "is not known"),
        (of_a(), &[("file-fence", "")][..], false, "cluster a"),
        (of_a(), &[("file-fence", "b")][..], false, "cluster a"),
        (of_a(), &[("other", "a")][..], false, "is not known"),
        (of_a(), &[("file-fence", "a")][..], true, ""),
        (of_none(), untold, false, "is not known"),
        (of_none(), &[("file-fence", "b")][..], false, "the volume none"),
        (of_none(), &[("file-fence", "")][..], true, ""),
    ] {
        let mut world = failed(vec![pod("files", "n1", &[share])], "Acknowledged", &[network()]);
        world.seen.reports.insert(FILES.into(), Arc::new(storage(clusters)));
        world.run();
        assert_eq!(world.did("delete files"), goes, "{clusters:?}: {:#?}", world.log);
        assert_eq!(world.did("ask"), goes, "{clusters:?}: {:#?}", world.log);
        let row = world.volume("share");
        if goes {
            let asked = &world.seen.request(FILES).unwrap().spec.volumes[0];
            assert_eq!(
                asked.cluster_id, world.seen.fence.spec.plan.volumes[0].cluster_id,
                "the sidecar looks at the class itself"
            );
            assert_eq!(asked.attach_required, Some(false));
        } else {
            assert_eq!(row.reason.as_deref(), Some("ClassOfAnotherCluster"));
            let message = row.message.unwrap_or_default();
            assert!(message.contains(words), "{clusters:?}: {message}");
        }
    }
}

#[test]
fn a_node_without_power_frees_the_pods_of_every_unattached_volume() {
    let pods = vec![files(), pod("web", "n1", &[nfs("export")])];
    let mut world = failed(pods, "Verified", &[unpublish(), external()]);
    world.run();
    assert!(world.did("delete files grace 0") && world.did("delete web grace 0"), "{:#?}", world.log);
    for name in ["share", "export"] {
        let row = world.volume(name);
        assert_eq!((row.method, row.proof), (Some(FenceMethodType::External), Proof::PowerOff), "{name}");
    }
    let asked = &world.seen.request(POWER).unwrap().spec.volumes;
    assert!(asked.iter().all(|row| row.minimum_proof == Proof::PowerOff), "nothing less is asked for: {asked:?}");
    let export = asked.iter().find(|row| row.name == "export").unwrap();
    assert_eq!((export.volume_handle.as_str(), export.node_id.as_str()), ("export", "n1"), "labels of what has none");
}

#[test]
fn less_than_the_end_of_power_frees_nobody_whatever_the_policy_demands() {
    for minimum in ["Acknowledged", "Verified"] {
        for proof in [Proof::Acknowledged, Proof::Verified] {
            let mut world = failed(vec![files()], minimum, &[external()]);
            world.fencers.insert(POWER.into(), Fencer::Proves(proof));
            for _ in 0..4 {
                world.run();
                world.wait(7.0);
            }
            assert!(world.did("Fenced share") && !world.did("delete"), "{minimum} {proof:?}: {:#?}", world.log);
            assert_eq!(world.volume("share").state, VolumeStatusState::Failed, "{minimum} {proof:?}");
        }
    }
}

#[test]
fn pods_without_a_method_that_covers_them_wait_by_name() {
    let mut world = failed(vec![files(), pod("web", "n1", &[nfs("export")])], "Acknowledged", &[network()]);
    world.run();
    assert!(world.did("delete files"), "{:#?}", world.log);
    assert_eq!(world.pod("web"), waits(), "NFS in-tree has no driver that could shut the node out");
    for method in [unpublish(), json!({ "type": "Detach" })] {
        let mut world = failed(vec![files()], "Acknowledged", &[method]);
        world.run();
        assert_eq!(world.pod("files"), waits());
        assert!(!world.did("ask") && !world.did("delete"), "{:#?}", world.log);
    }
}

#[test]
fn who_shares_it_with_a_pod_that_stays_stays() {
    let shares = || unattached(FILES, "share");
    let pods = vec![pod("goes", "n1", &[shares()]), pod("stays", "n1", &[shares(), local("disk")])];
    let mut world = failed(pods, "Acknowledged", &[network()]);
    world.run();
    assert_eq!(world.pod("goes"), (PodStatusState::Waiting, "SharerHeld".into()));
    assert!(!world.did("ask") && !world.did("delete"), "{:#?}", world.log);
}

/// By a controller that covered none, or when the driver attached.
#[test]
fn a_row_that_was_planned_otherwise_proves_nothing() {
    type Change = fn(&mut World);
    let cases: [(&str, Change); 2] = [
        ("of another kind", |world| world.plan().volumes[0].attach_required = None),
        ("without methods", |world| world.plan().volumes[0].methods.clear()),
    ];
    for (name, change) in cases {
        let mut world = failed(vec![files()], "Acknowledged", &[network()]);
        change(&mut world);
        world.run();
        assert_eq!(world.pod("files"), waits(), "{name}");
        assert!(!world.did("ask") && !world.did("delete"), "{name}: {:#?}", world.log);
    }
}

#[test]
fn whose_machine_it_was_must_be_certain() {
    let mut world = failed(vec![pod("web", "n1", &[nfs("export")])], "Verified", &[external()]);
    world.plan().volumes[0].node_id = None;
    world.run();
    assert_eq!(world.condition("Held"), Some(("True".into(), "IdentityAmbiguous".into())));
    assert!(!world.did("ask") && !world.did("delete"), "{:#?}", world.log);
}

#[test]
fn the_node_is_switched_off_only_when_the_others_have_spoken() {
    let both = || vec![pod("db", "n1", &[csi("v1")]), files()];
    let asks = |world: &World| world.seen.request(POWER).is_some();
    let mut world = failed(both(), "Verified", &[unpublish(), external()]);
    world.run();
    world.assert_order(&["Fenced v1", "ask Fenced share round 1", "Fenced share", "delete files grace 0"]);
    assert!(world.did("delete db grace 0"), "{:#?}", world.log);

    let mut world = failed(both(), "Verified", &[unpublish(), external()]);
    world.fencers.insert(DRIVER.into(), Fencer::Hangs);
    world.run();
    assert!(!asks(&world), "{:#?}", world.log);
    let row = world.volume("share");
    assert_eq!((row.state, row.reason.as_deref()), (VolumeStatusState::Pending, Some("PowerWaits")));
    assert!(row.message.unwrap_or_default().contains("volume v1"), "who is waited for");
    world.wait(7.1);
    world.run();
    assert!(asks(&world) && world.did("delete files grace 0"), "{:#?}", world.log);

    let mut world = failed(both(), "Verified", &[unpublish(), external()]);
    world.fencers.insert(DRIVER.into(), Fencer::Refuses(IO_IN_PROGRESS));
    for _ in 0..6 {
        world.run();
        world.wait(10.0);
    }
    assert!(!asks(&world) && !world.did("delete"), "the node is at work: {:#?}", world.log);
}

#[test]
fn the_node_is_not_switched_off_while_its_storage_may_shut_it_out() {
    let asks = |world: &World| world.seen.request(POWER).is_some();
    let mut world = failed(vec![files()], "Acknowledged", &[network(), external()]);
    world.run();
    assert!(world.did("delete files grace 0") && !asks(&world), "{:#?}", world.log);
    let mut world = failed(vec![files()], "Acknowledged", &[network(), external()]);
    world.fencers.insert(FILES.into(), Fencer::Fails("NetworkFenceFailed"));
    world.run();
    assert!(asks(&world) && world.did("delete files grace 0"), "{:#?}", world.log);
}

/// Its sidecar waits a minute, until csi-addons has seen the class, and shuts the node out then.
#[test]
fn the_node_is_not_switched_off_while_its_class_is_too_new() {
    let asks = |world: &World| world.seen.request(POWER).is_some();
    let mut world = failed(vec![files()], "Acknowledged", &[network(), external()]);
    world.fencers.insert(FILES.into(), Fencer::Waits(CLASS_TOO_NEW));
    world.run();
    world.wait(58.0);
    world.run();
    assert!(!asks(&world), "{:#?}", world.log);
    // The class is old enough now, and csi-addons has not answered yet.
    world.fencers.insert(FILES.into(), Fencer::Waits("NetworkFencing"));
    world.run();
    world.wait(4.0);
    world.run();
    assert!(!asks(&world), "{:#?}", world.log);
    world.fencers.insert(FILES.into(), Fencer::Proves(Proof::Acknowledged));
    world.run();
    assert!(world.did("delete files grace 0") && !asks(&world), "{:#?}", world.log);
    // A clock that is far behind must not keep the node's pods for ever.
    let mut world = failed(vec![files()], "Acknowledged", &[network(), external()]);
    world.fencers.insert(FILES.into(), Fencer::Waits(CLASS_TOO_NEW));
    world.run();
    world.wait(67.1);
    world.run();
    assert!(asks(&world) && world.did("delete files grace 0"), "{:#?}", world.log);
}

/// A sidecar of the release before tells of no clusters: the storage might shut the node out.
#[test]
fn the_node_is_not_switched_off_since_nobody_says_whose_cluster_a_class_is_of() {
    let untold: &[(&str, &str)] = &[];
    for (cluster, clusters, goes) in [
        (Some("a"), untold, false),
        (None, untold, false),
        (Some("a"), &[("file-fence", "b")][..], true),
        (Some("a"), &[("file-fence", "")][..], true),
        (None, &[("file-fence", "b")][..], true),
    ] {
        let share = unattached(FILES, "share");
        let share = match cluster {
            Some(cluster) => in_cluster(share, cluster),
            None => share,
        };
        let mut world = failed(vec![pod("files", "n1", &[share])], "Acknowledged", &[network(), external()]);
        world.seen.reports.insert(FILES.into(), Arc::new(storage(clusters)));
        for _ in 0..3 {
            world.run();
            world.wait(7.0);
        }
        assert_eq!(world.seen.request(POWER).is_some(), goes, "{cluster:?} {clusters:?}: {:#?}", world.log);
        assert_eq!(world.did("delete files grace 0"), goes, "{cluster:?} {clusters:?}: {:#?}", world.log);
        if !goes {
            let row = world.volume("share");
            assert_eq!((row.state, row.reason.as_deref()), (VolumeStatusState::Failed, Some("ClassOfAnotherCluster")));
            let of_now = storage(&[("file-fence", cluster.unwrap_or_default())]);
            world.seen.reports.insert(FILES.into(), Arc::new(of_now));
            world.run();
            assert!(world.did("delete files grace 0") && world.seen.request(POWER).is_none(), "{:#?}", world.log);
        }
    }
}
