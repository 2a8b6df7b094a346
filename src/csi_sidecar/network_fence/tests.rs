//! What a network fence does next.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::api::driver_report::NetworkFenceClients;
use crate::api::fence_request::{FenceRequest, SHUT_OUT};
use crate::api::names;
use crate::api::network_fence::{CsiAddonsNode, FenceState, NetworkFence, NetworkFenceClass};
use crate::api::slim::network::{NodeAddresses, ReportedAddresses};

use super::addresses::Around;
use super::decide::{Seen, Step, fence, give_back, holds, others};

const DRIVER: &str = "csi.file.example.com";
const CLASS: &str = "file-fence";
const NAMESPACE: &str = "csi-file";

fn request(uid: &str, node: &str, desired: &str, addresses: &[&str]) -> FenceRequest {
    let mut request: FenceRequest = serde_json::from_value(json!({
        "apiVersion": "bulkhead.dev/v1alpha1", "kind": "FenceRequest",
        "metadata": { "name": format!("{node}-1"), "uid": uid },
        "spec": {
            "fencerName": DRIVER, "nodeName": node, "episode": 1, "desired": desired, "callTimeout": "5s",
            "node": { "uid": format!("uid-{node}"), "bootID": "boot-1", "addresses": addresses },
            "volumes": [{
                "episode": 1, "name": "v", "round": 1, "volumeHandle": "h", "nodeID": format!("id-{node}"),
                "minimumProof": "Acknowledged", "methods": [{ "type": "NetworkFence", "className": CLASS }],
            }],
        },
        "status": {
            "conditions": [{
                "type": SHUT_OUT, "status": "True", "reason": "NetworkFence", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }],
            "volumes": [{
                "episode": 1, "name": "v", "round": 1, "result": "Fenced", "proof": "Acknowledged",
                "method": "NetworkFence", "startedAt": "2026-01-01T00:00:00Z",
            }],
        },
    }))
    .unwrap();
    request.metadata.resource_version = Some("1".into());
    request
}

fn node(name: &str, uid: &str, address: &str) -> NodeAddresses {
    serde_json::from_value(json!({
        "metadata": { "name": name, "uid": uid },
        "status": { "addresses": [{ "type": "InternalIP", "address": address }], "nodeInfo": { "bootID": "boot-1" } },
    }))
    .unwrap()
}

fn report(name: &str, addresses: &[&str]) -> ReportedAddresses {
    let status = json!({ "nodeUID": format!("uid-{name}"), "addresses": addresses });
    serde_json::from_value(json!({ "metadata": { "name": name }, "status": status })).unwrap()
}

fn client(node: &str, cidrs: &[&str]) -> CsiAddonsNode {
    serde_json::from_value(json!({
        "metadata": { "name": node, "namespace": NAMESPACE },
        "spec": { "driver": { "name": DRIVER, "nodeID": node } },
        "status": { "networkFenceClientStatus": [
            { "networkFenceClassName": CLASS, "ClientDetails": [{ "id": node, "cidrs": cidrs }] },
        ] },
    }))
    .unwrap()
}

/// What the driver said of a node while it was well.
fn on_record(node: &str, uid: &str, addresses: &[&str]) -> NetworkFenceClients {
    let addresses = addresses.iter().map(|address| (*address).to_owned()).collect();
    NetworkFenceClients { class_name: CLASS.into(), node: node.into(), node_uid: uid.into(), addresses }
}

/// A fence of somebody with these labels.
fn of(name: &str, state: &str, cidr: &str, labels: Value) -> NetworkFence {
    serde_json::from_value(json!({
        "apiVersion": "csiaddons.openshift.io/v1alpha1", "kind": "NetworkFence",
        "metadata": { "name": name, "uid": name, "resourceVersion": "1", "labels": labels },
        "spec": { "networkFenceClassName": CLASS, "fenceState": state, "cidrs": [cidr] },
    }))
    .unwrap()
}

fn foreign(state: &str, cidr: &str) -> NetworkFence {
    of("foreign", state, cidr, json!({}))
}

fn with_result(mut fence: NetworkFence, result: &str, message: &str) -> NetworkFence {
    fence.status = serde_json::from_value(json!({ "result": result, "message": message })).unwrap();
    fence
}

struct World(Seen);

impl World {
    fn new(desired: &str) -> Self {
        let around = Around {
            class: serde_json::from_value::<NetworkFenceClass>(json!({
                "metadata": { "name": CLASS }, "spec": { "provisioner": DRIVER },
            }))
            .ok(),
            nodes: vec![node("n1", "uid-n1", "10.0.0.1"), node("n2", "uid-n2", "10.0.0.2")],
            reports: vec![report("n1", &["10.0.0.1", "10.9.0.1"]), report("n2", &["10.0.0.2"])],
            record: Vec::new(),
            clients: Vec::new(),
            namespace: NAMESPACE.into(),
        };
        let request = Arc::new(request("r1", "n1", desired, &["10.0.0.1", "10.9.0.1"]));
        Self(Seen {
            request: request.clone(),
            driver: DRIVER.into(),
            class: CLASS.into(),
            round: 3,
            fences: Vec::new(),
            requests: vec![request],
            around: Some(around),
        })
    }

    fn around(&mut self) -> &mut Around {
        self.0.around.as_mut().unwrap()
    }

    /// The fence that is made, as csi-addons would see it.
    fn made(&self) -> NetworkFence {
        let Step::Create(mut made) = fence(&self.0) else { panic!("{:?}", fence(&self.0)) };
        made.metadata.uid = Some("made".into());
        made.metadata.resource_version = Some("1".into());
        *made
    }

    /// Why it is waited for, or cannot be.
    fn code(&self, step: fn(&Seen) -> Step) -> &'static str {
        match step(&self.0) {
            Step::Wait(failure) | Step::Stop(failure) => failure.code,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn all_frozen_addresses_are_shut_out_by_an_object_of_its_own() {
    let mut world = World::new("Fenced");
    let around = world.0.around.take();
    assert_eq!(fence(&world.0), Step::LookAround);
    world.0.around = around;
    let made = world.made();
    assert_eq!(made.spec.cidrs, ["10.0.0.1/32", "10.9.0.1/32"]);
    assert_eq!(made.spec.fence_state, FenceState::Fenced);
    assert_eq!(made.metadata.name, Some(names::network_fence("r1", CLASS, 1, 3)));
    world.0.fences = vec![made.clone()];
    assert_eq!(world.code(fence), "NetworkFencing");
    world.0.fences = vec![with_result(made.clone(), "Failed", "the storage is away")];
    assert_eq!(world.code(fence), "NetworkFenceFailed");
    world.0.fences = vec![with_result(made, "Succeeded", "fencing operation successful")];
    // A later round looks whether it still holds, and makes nothing.
    world.0.round = 9;
    world.0.around = None;
    assert_eq!(fence(&world.0), Step::Done);
}

#[test]
fn it_is_on_record_before_it_is_made_and_only_while_it_is_asked_for() {
    let mut world = World::new("Fenced");
    let mut unrecorded = FenceRequest::clone(&world.0.request);
    unrecorded.status = None;
    world.0.requests = vec![Arc::new(unrecorded)];
    assert_eq!(fence(&world.0), Step::Record);
    world.0.requests = World::new("Unfenced").0.requests;
    assert_eq!(world.code(fence), "Withdrawn");
    world.0.requests.clear();
    assert_eq!(world.code(fence), "Withdrawn");
    let mut world = World::new("Unfenced");
    world.0.fences = vec![holding()];
    world.0.requests = World::new("Fenced").0.requests;
    assert_eq!(world.code(give_back), "Withdrawn", "it is asked for again");
}

#[test]
fn an_object_that_is_gone_or_of_an_earlier_episode_is_none() {
    let mut world = World::new("Fenced");
    let mut made = with_result(world.made(), "Succeeded", "fencing operation successful");
    made.metadata.labels.as_mut().unwrap().insert(names::EPISODE_LABEL.into(), "0".into());
    made.metadata.name = Some("of-an-earlier-episode".into());
    world.0.fences = vec![made.clone()];
    world.made();
    made.metadata.labels.as_mut().unwrap().insert(names::EPISODE_LABEL.into(), "1".into());
    made.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    made.spec.cidrs = vec!["10.0.0.1/32".into()];
    world.0.fences = vec![made];
    world.0.round = 4;
    // What the episode shut out first it shuts out again.
    assert_eq!(world.made().spec.cidrs, ["10.0.0.1/32"]);
}

#[test]
fn one_that_somebody_changed_proves_nothing() {
    let mut world = World::new("Fenced");
    let mut made = with_result(world.made(), "Succeeded", "fencing operation successful");
    made.metadata.generation = Some(1);
    world.0.fences = vec![made.clone()];
    assert_eq!(fence(&world.0), Step::Done);
    made.metadata.generation = Some(2);
    made.spec.cidrs = vec!["10.0.0.1/32".into()];
    world.0.fences = vec![made];
    world.0.round = 4;
    assert_eq!(world.made().spec.cidrs, ["10.0.0.1/32", "10.9.0.1/32"]);
}

/// While its round is open: the name is taken, and a creation would be refused until the time is up, with no answer.
#[test]
fn one_that_somebody_deleted_or_changed_in_its_round_ends_the_round() {
    let made = with_result(World::new("Fenced").made(), "Succeeded", "fencing operation successful");
    let deleted = {
        let mut deleted = made.clone();
        deleted.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        deleted
    };
    let changed = {
        let mut changed = made;
        changed.metadata.generation = Some(2);
        changed
    };
    for tampered in [deleted, changed] {
        let mut world = World::new("Fenced");
        world.0.fences = vec![tampered];
        let Step::Stop(failure) = fence(&world.0) else { panic!("{:?}", fence(&world.0)) };
        assert_eq!(failure.code, "NetworkFenceChanged");
        world.0.round += 1;
        world.made();
    }
}

#[test]
fn what_is_in_doubt_shuts_nobody_out() {
    let mut world = World::new("Fenced");
    world.around().class = None;
    assert_eq!(world.code(fence), "ClassNotFound");
    let mut world = World::new("Fenced");
    world.around().class.as_mut().unwrap().spec.provisioner = "another".into();
    assert_eq!(world.code(fence), "ClassOfAnotherDriver");
    let mut world = World::new("Fenced");
    world.0.request = Arc::new(request("r1", "n1", "Fenced", &[]));
    assert_eq!(world.code(fence), "AddressesUnknown");
    for address in ["10.0.0.0/24", "127.0.0.1", "none"] {
        world.0.request = Arc::new(request("r1", "n1", "Fenced", &["10.0.0.1", address]));
        assert_eq!(world.code(fence), "AddressUnusable", "{address}");
    }
}

#[test]
fn a_list_of_addresses_that_may_lack_some_shuts_nobody_out() {
    let mut world = World::new("Fenced");
    world.0.request = Arc::new(request("r1", "n1", "Fenced", &["10.9.0.1"]));
    assert_eq!(world.code(fence), "AddressesUnknown", "without what the Node has");
    // What another Node of that name has is another matter.
    world.around().reports.clear();
    world.around().nodes = vec![node("n1", "uid-anew", "10.0.0.7")];
    assert_eq!(world.made().spec.cidrs, ["10.9.0.1/32"]);
    for (count, is_known) in [(15, true), (16, false)] {
        let many: Vec<_> = (1..=count).map(|number| format!("10.0.0.{number}")).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        let mut world = World::new("Fenced");
        world.around().nodes.retain(|node| node.metadata.name.as_deref() == Some("n1"));
        world.around().reports.clear();
        world.0.request = Arc::new(request("r1", "n1", "Fenced", &many));
        if is_known {
            assert_eq!(world.made().spec.cidrs.len(), count);
        } else {
            assert_eq!(world.code(fence), "AddressesUnknown");
        }
    }
}

#[test]
fn an_address_that_another_node_has_now_is_refused() {
    let claims: [fn(&mut Around); 5] = [
        |around| around.nodes.push(node("n3", "uid-n3", "10.9.0.1")),
        |around| around.reports.push(report("n3", &["10.9.0.1"])),
        // The machine that took its place and its name.
        |around| around.nodes = vec![node("n1", "uid-anew", "10.0.0.1")],
        |around| {
            around.record = vec![on_record("n1", "uid-n1", &["192.0.2.1/32"])];
            around.clients = vec![client("n2", &["192.0.2.0/24"])];
        },
        |around| {
            around.record = ["n1", "n2"].map(|it| on_record(it, &format!("uid-{it}"), &["192.0.2.1/32"])).into();
        },
    ];
    for claim in claims {
        let mut world = World::new("Fenced");
        claim(world.around());
        assert_eq!(world.code(fence), "AddressClaimed");
    }
}

#[test]
fn what_the_storage_sees_goes_before_what_the_node_has() {
    let mut world = World::new("Fenced");
    world.around().record = vec![on_record("n1", "uid-n1", &["192.0.2.1/32"])];
    // As the driver calls it, or as the Node is called, or not at all since it failed.
    for clients in [vec![client("n1", &["192.0.2.1/32"])], vec![client("id-n1", &["192.0.2.1"])], Vec::new()] {
        world.around().clients = clients;
        assert_eq!(world.made().spec.cidrs, ["192.0.2.1/32"]);
    }
    // Without a NAT nothing that the node had is left out.
    world.around().record = vec![on_record("n1", "uid-n1", &["10.9.0.1/32"])];
    assert_eq!(world.made().spec.cidrs, ["10.0.0.1/32", "10.9.0.1/32"]);
    world.around().nodes = vec![node("n1", "uid-anew", "10.0.0.7")];
    assert_eq!(world.code(fence), "IdentityAmbiguous");
}

#[test]
fn what_is_not_on_record_from_when_the_node_was_well_shuts_nobody_out() {
    let mut world = World::new("Fenced");
    for (record, clients) in [
        // It is told now, by whoever it may be.
        (vec![], vec![client("n1", &["192.0.2.1/32"])]),
        (vec![], vec![client("n2", &["192.0.2.2/32"])]),
        // There is a NAT, as is known of others.
        (vec![on_record("n2", "uid-n2", &["192.0.2.2/32"])], vec![]),
        (vec![on_record("n1", "uid-of-another", &["192.0.2.1/32"])], vec![]),
        (vec![on_record("n1", "uid-n1", &[])], vec![client("n1", &["192.0.2.1/32"])]),
    ] {
        (world.around().record, world.around().clients) = (record, clients);
        assert_eq!(world.code(fence), "ClientsUnknown");
    }
    // Of another class nothing follows.
    let other = NetworkFenceClients { class_name: "another".into(), ..on_record("n2", "uid-n2", &["192.0.2.2/32"]) };
    (world.around().record, world.around().clients) = (vec![other], Vec::new());
    assert_eq!(world.made().spec.cidrs, ["10.0.0.1/32", "10.9.0.1/32"]);
}

#[test]
fn a_node_that_was_renumbered_since_it_failed_is_not_shut_out() {
    let mut world = World::new("Fenced");
    world.around().record = vec![on_record("n1", "uid-n1", &["192.0.2.1/32"])];
    for told in [&["192.0.2.9/32"][..], &["192.0.2.1/32", "192.0.2.9/32"][..]] {
        world.around().clients = vec![client("n1", told)];
        assert_eq!(world.code(fence), "AddressesChanged", "{told:?}");
    }
    for record in [Vec::new(), vec![on_record("n1", "uid-n1", &["10.9.0.1/32"])]] {
        let mut world = World::new("Fenced");
        world.around().record = record;
        world.around().reports = vec![report("n1", &["10.0.0.1", "10.9.0.7"])];
        assert_eq!(world.code(fence), "AddressesChanged");
        // What it has no more it had when it failed.
        world.around().reports = vec![report("n1", &["10.0.0.1"])];
        assert_eq!(world.made().spec.cidrs, ["10.0.0.1/32", "10.9.0.1/32"]);
    }
}

#[test]
fn what_is_said_in_another_namespace_is_not_believed() {
    let elsewhere = |node: &str, address: &str| {
        let mut client = client(node, &[address]);
        client.metadata.namespace = Some("tenant".into());
        client
    };
    let mut world = World::new("Fenced");
    let ours = client("n1", &["192.0.2.1/32"]);
    world.around().record = vec![on_record("n1", "uid-n1", &["192.0.2.1/32"])];
    world.around().clients = vec![elsewhere("n1", "192.0.2.7/32"), ours.clone()];
    assert_eq!(world.made().spec.cidrs, ["192.0.2.1/32"], "shuts somebody else out");
    world.around().clients = vec![elsewhere("n2", "192.0.2.1/32"), ours];
    assert_eq!(world.made().spec.cidrs, ["192.0.2.1/32"], "claims an address");
    // Where nobody of ours says anything there may be a NAT all the same.
    world.around().record.clear();
    for node in ["n1", "n2"] {
        world.around().clients = vec![elsewhere(node, "192.0.2.9/32")];
        assert_eq!(world.code(fence), "ClientsElsewhere", "{node}");
    }
}

#[test]
fn who_lifts_an_address_is_waited_for() {
    for rival in [
        foreign("Unfenced", "10.0.0.0/8"),
        of("another", "Fenced", "10.0.0.1/32", json!({ names::UNFENCING_LABEL: "true" })),
    ] {
        let mut world = World::new("Fenced");
        let made = with_result(world.made(), "Succeeded", "fencing operation successful");
        world.0.fences = vec![rival.clone()];
        assert_eq!(world.code(fence), "BeingUnfenced");
        world.0.fences = vec![made, rival];
        // What was fenced may be lifted by now: when the rival is gone it does not count any more. Whoever looks marks it.
        assert!(matches!(look(&world.0), Step::Replace(_)));
        let Step::Replace(spent) = fence(&world.0) else { panic!("{:?}", fence(&world.0)) };
        let spent = NetworkFence { status: holding().status, ..*spent };
        assert!(spent.is_fenced() && !spent.metadata.labels.as_ref().unwrap().contains_key(names::UNFENCING_LABEL));
        world.0.round = 4;
        world.0.fences[0] = spent.clone();
        assert_eq!(world.code(fence), "BeingUnfenced");
        world.0.fences = vec![spent];
        assert_eq!(world.code(look), "NetworkFenceLifted");
        let again = with_result(world.made(), "Succeeded", "fencing operation successful");
        world.0.fences.push(again);
        assert_eq!(fence(&world.0), Step::Done);
        assert_eq!(look(&world.0), Step::Done);
    }
    let mut world = World::new("Fenced");
    world.0.fences = vec![foreign("Unfenced", "10.0.0.2/32"), foreign("Fenced", "10.0.0.1/32")];
    world.made();
    assert_eq!(world.code(look), "NetworkFenceLifted", "ours is gone");
}

/// A look, the first.
fn look(seen: &Seen) -> Step {
    holds(seen, &BTreeSet::new())
}

/// Whoever made it may have lifted it before it was deleted, between two looks.
#[test]
fn a_fence_of_others_that_is_gone_makes_ours_doubtful() {
    let mut world = World::new("Fenced");
    world.0.fences = vec![holding(), foreign("Fenced", "10.0.0.0/24"), of("far", "Fenced", "10.1.0.1/32", json!({}))];
    assert_eq!(look(&world.0), Step::Done);
    let before = others(&world.0);
    assert_eq!(before, BTreeSet::from(["foreign".to_owned()]));
    assert_eq!(holds(&world.0, &before), Step::Done);
    world.0.fences.truncate(1);
    let Step::Replace(marked) = holds(&world.0, &before) else { panic!("{:?}", holds(&world.0, &before)) };
    assert!(marked.metadata.annotations.as_ref().unwrap().contains_key(names::ANNOUNCED_ANNOTATION));
}

/// A later incident of the same node: what was shut out in the first one is so still.
#[test]
fn a_row_that_is_carried_over_is_looked_for_in_its_own_episode() {
    let at = |row: i64, made: &str| {
        let mut world = World::new("Fenced");
        let mut request = FenceRequest::clone(&world.0.request);
        request.spec.episode = 2;
        request.spec.volumes[0].episode = row;
        request.status.as_mut().unwrap().volumes[0].episode = row;
        world.0.request = Arc::new(request);
        let mut fence = holding();
        fence.metadata.labels.as_mut().unwrap().insert(names::EPISODE_LABEL.into(), made.into());
        world.0.fences = vec![fence];
        look(&world.0)
    };
    assert_eq!(at(1, "1"), Step::Done);
    assert_eq!(at(1, "2"), Step::Done, "made again in the later one");
    assert!(matches!(at(2, "1"), Step::Stop(failure) if failure.code == "NetworkFenceLifted"));
}

/// A fence of the request that holds.
fn holding() -> NetworkFence {
    with_result(World::new("Fenced").made(), "Succeeded", "fencing operation successful")
}

#[test]
fn it_is_announced_lifted_and_only_then_deleted() {
    let mut world = World::new("Unfenced");
    assert_eq!(give_back(&world.0), Step::Done);
    world.0.fences = vec![holding()];
    let Step::Replace(announced) = give_back(&world.0) else { panic!("{:?}", give_back(&world.0)) };
    assert!(announced.metadata.labels.as_ref().unwrap().contains_key(names::UNFENCING_LABEL));
    assert_eq!(announced.spec.fence_state, FenceState::Fenced);
    let announced = NetworkFence { status: holding().status, ..*announced };
    world.0.fences = vec![announced];
    let Step::Replace(lifting) = give_back(&world.0) else { panic!("{:?}", give_back(&world.0)) };
    assert_eq!(lifting.spec.fence_state, FenceState::Unfenced);
    // The result is the old one yet.
    let lifting = NetworkFence { status: holding().status, ..*lifting };
    world.0.fences = vec![lifting.clone()];
    assert_eq!(world.code(give_back), "NetworkUnfencing");
    world.0.fences = vec![with_result(lifting.clone(), "Failed", "no")];
    assert_eq!(world.code(give_back), "NetworkUnfenceFailed");
    let lifted = with_result(lifting, "Succeeded", "unfencing operation successful");
    world.0.fences = vec![lifted.clone()];
    assert!(matches!(give_back(&world.0), Step::Delete(_)));
    let mut deleted = lifted;
    deleted.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    world.0.fences = vec![deleted];
    let Step::Replace(released) = give_back(&world.0) else { panic!("{:?}", give_back(&world.0)) };
    assert_eq!(released.metadata.finalizers, Some(Vec::new()));
    world.0.fences = vec![*released];
    assert_eq!(give_back(&world.0), Step::Done);
}

#[test]
fn what_somebody_else_wants_out_stays_out() {
    let asked = request("r2", "n1", "Fenced", &[]);
    let elsewhere = request("r3", "n9", "Fenced", &["10.0.0.1"]);
    for (fences, requests) in [
        (vec![foreign("Fenced", "10.0.0.0/24")], Vec::new()),
        (Vec::new(), vec![Arc::new(asked)]),
        (Vec::new(), vec![Arc::new(elsewhere)]),
    ] {
        let mut world = World::new("Unfenced");
        world.0.fences = [vec![holding()], fences.clone()].concat();
        world.0.requests.clone_from(&requests);
        assert_eq!(world.code(give_back), "AddressShared");
        // Who was about to lift steps back, or both would wait for each other.
        let mut announced = holding();
        announced.metadata.labels.as_mut().unwrap().insert(names::UNFENCING_LABEL.into(), "true".into());
        world.0.fences = [vec![announced], fences].concat();
        let Step::Replace(back) = give_back(&world.0) else { panic!("{:?}", give_back(&world.0)) };
        assert!(!back.metadata.labels.as_ref().unwrap().contains_key(names::UNFENCING_LABEL));
        assert_eq!(back.spec.fence_state, FenceState::Fenced);
    }
    let mut world = World::new("Unfenced");
    world.0.fences = vec![holding(), foreign("Fenced", "10.0.0.2/32"), foreign("Unfenced", "10.0.0.1/32")];
    world.0.requests = vec![Arc::new(request("r2", "n1", "Unfenced", &[])), world.0.request.clone()];
    assert!(matches!(give_back(&world.0), Step::Replace(_)));
}

#[test]
fn what_was_to_be_lifted_is_taken_up_again_or_brought_to_its_end() {
    let mut world = World::new("Fenced");
    let mut announced = holding();
    announced.metadata.labels.as_mut().unwrap().insert(names::UNFENCING_LABEL.into(), "true".into());
    world.0.fences = vec![announced];
    let Step::Replace(back) = fence(&world.0) else { panic!("{:?}", fence(&world.0)) };
    assert!(!back.metadata.labels.as_ref().unwrap().contains_key(names::UNFENCING_LABEL));
    let mut lifting = holding();
    lifting.spec.fence_state = FenceState::Unfenced;
    world.0.fences = vec![lifting.clone()];
    assert_eq!(world.code(fence), "NetworkUnfencing");
    let lifted = with_result(lifting, "Succeeded", "unfencing operation successful");
    world.0.fences = vec![lifted.clone()];
    assert!(matches!(fence(&world.0), Step::Delete(_)));
    // Gone but for csi-addons' own finalizer: that is no fence that holds.
    let mut going = lifted;
    going.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    going.metadata.finalizers = None;
    world.0.fences = vec![going];
    assert_eq!(world.code(fence), "NetworkUnfencing");
}

/// The fence of another driver for the same node, as it is in the world of that driver's sidecar too.
fn of_another_driver(labels: Value) -> NetworkFence {
    let mut theirs = of("theirs", "Fenced", "10.0.0.1/32", labels);
    theirs.metadata.labels.get_or_insert_default().insert(names::FENCE_REQUEST_LABEL.into(), "r2".into());
    theirs
}

#[test]
fn two_drivers_that_both_let_a_node_in_do_not_wait_for_each_other() {
    let turned_round = Arc::new(request("r2", "n1", "Unfenced", &["10.0.0.1"]));
    let mut ours = holding();
    ours.metadata.labels.as_mut().unwrap().insert(names::UNFENCING_LABEL.into(), "true".into());
    for (requests, tells) in [(vec![turned_round.clone()], true), (Vec::new(), false)] {
        let mut world = World::new("Unfenced");
        world.0.requests.extend(requests);
        world.0.fences = vec![holding(), of_another_driver(json!({}))];
        let Step::Replace(announced) = give_back(&world.0) else { panic!("{:?}", give_back(&world.0)) };
        assert_eq!(announced.metadata.name, holding().metadata.name);
        world.0.fences[0] = ours.clone();
        let Step::Replace(next) = give_back(&world.0) else { panic!("{:?}", give_back(&world.0)) };
        // Theirs is marked first, unless nobody is left who could take it for one that holds.
        assert_eq!(next.metadata.name.as_deref() == Some("theirs"), tells);
        if tells {
            assert!(next.metadata.annotations.as_ref().unwrap().contains_key(names::ANNOUNCED_ANNOTATION));
            // It holds up nobody, though its sidecar may be away for long.
            assert!(!next.metadata.labels.as_ref().unwrap().contains_key(names::UNFENCING_LABEL));
            world.0.fences[1] = *next;
            let Step::Replace(next) = give_back(&world.0) else { panic!("{:?}", give_back(&world.0)) };
            assert_eq!(next.spec.fence_state, FenceState::Unfenced);
        }
    }
    // Asked for again, theirs is a wish.
    let mut world = World::new("Unfenced");
    world.0.requests.push(Arc::new(request("r2", "n1", "Fenced", &["10.0.0.1"])));
    world.0.fences = vec![holding(), of_another_driver(json!({}))];
    assert_eq!(world.code(give_back), "AddressShared");
}

#[test]
fn what_was_announced_once_is_no_fence_that_holds() {
    let mut world = World::new("Fenced");
    let mut announced = holding();
    announced.metadata.labels.as_mut().unwrap().insert(names::UNFENCING_LABEL.into(), "true".into());
    let annotations = announced.metadata.annotations.as_mut().unwrap();
    annotations.insert(names::ANNOUNCED_ANNOTATION.into(), "true".into());
    world.0.fences = vec![announced];
    let Step::Replace(back) = fence(&world.0) else { panic!("{:?}", fence(&world.0)) };
    let back = NetworkFence { status: holding().status, ..*back };
    assert!(back.is_fenced() && !back.metadata.labels.as_ref().unwrap().contains_key(names::UNFENCING_LABEL));
    world.0.fences = vec![back];
    world.0.round = 4;
    let again = world.made();
    assert_eq!(again.spec.cidrs, holding().spec.cidrs);
    world.0.fences.push(with_result(again, "Succeeded", "fencing operation successful"));
    assert_eq!(fence(&world.0), Step::Done);
}

#[test]
fn one_that_somebody_deleted_is_lifted_by_another() {
    let mut world = World::new("Unfenced");
    let mut deleted = holding();
    deleted.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    world.0.fences = vec![deleted.clone()];
    let Step::Create(other) = give_back(&world.0) else { panic!("{:?}", give_back(&world.0)) };
    assert_eq!((other.spec.fence_state, &other.spec.cidrs), (FenceState::Unfenced, &deleted.spec.cidrs));
    world.0.fences = vec![deleted.clone(), *other.clone()];
    assert_eq!(world.code(give_back), "NetworkUnfencing");
    let lifted = with_result(*other, "Succeeded", "unfencing operation successful");
    world.0.fences = vec![lifted.clone(), deleted];
    let Step::Replace(released) = give_back(&world.0) else { panic!("{:?}", give_back(&world.0)) };
    assert_eq!(released.metadata.finalizers, Some(Vec::new()));
    world.0.fences = vec![lifted, *released];
    assert!(matches!(give_back(&world.0), Step::Delete(_)));
}
