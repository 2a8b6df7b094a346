//! Which addresses are shut out, and when nobody is.

use crate::api::slim::NodeAddress;

use super::super::addresses::{check_cluster, check_same};
use super::*;

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
        world.around().reports.clear();
        world.0.request = Arc::new(request("r1", "n1", "Fenced", &["10.0.0.1", address]));
        assert_eq!(world.code(fence), "AddressUnusable", "{address}");
    }
}

#[test]
fn a_list_of_addresses_that_may_lack_some_shuts_nobody_out() {
    let mut world = World::new("Fenced");
    world.0.request = Arc::new(request("r1", "n1", "Fenced", &["10.9.0.1"]));
    assert_eq!(world.code(fence), "AddressesUnknown", "without what the Node has");
    // As when the plan is made: an address that cannot be told is not among them, and a block tells no address.
    for (of_node, frozen) in [("none", "10.0.0.1"), ("10.0.0.1", "10.0.0.0/24")] {
        let mut world = World::new("Fenced");
        world.around().reports.clear();
        world.around().nodes = vec![node("n1", "uid-n1", of_node)];
        world.0.request = Arc::new(request("r1", "n1", "Fenced", &[frozen]));
        assert_eq!(world.code(fence), "AddressesUnknown", "{of_node} {frozen}");
    }
    // What another Node of that name has is another matter, and that none was missing was told when they were frozen.
    let mut world = World::new("Fenced");
    world.around().reports.clear();
    world.around().nodes = vec![node("n1", "uid-anew", "10.0.0.7")];
    assert_eq!(world.made().spec.cidrs, ["10.0.0.1/32", "10.9.0.1/32"]);
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

/// csi-addons asks a driver once an hour: it may tell what the node had before.
#[test]
fn a_node_that_was_renumbered_before_the_driver_was_asked_again_is_not_shut_out() {
    let mut world = World::new("Fenced");
    let renumbered = on_record("n1", "uid-n1", &["10.0.0.9/32"]);
    for own in ["10.0.0.2/32", "10.9.0.2/32"] {
        world.around().reports.push(report("n2", &["10.9.0.2"]));
        world.around().record = vec![renumbered.clone(), on_record("n2", "uid-n2", &[own])];
        assert_eq!(world.code(fence), "AddressesChanged", "{own}");
    }
    // Where the storage knows the others by nothing of theirs either there is a NAT.
    world.around().record = vec![renumbered, on_record("n2", "uid-n2", &["192.0.2.2/32"])];
    assert_eq!(world.made().spec.cidrs, ["10.0.0.9/32"]);
}

/// The whole network was renumbered, or no other node is on record: nobody else shows that there is no NAT.
#[test]
fn a_node_that_was_known_by_its_own_address_is_not_shut_out_by_one_that_it_had_before() {
    for others in [vec![], vec![on_record("n2", "uid-n2", &["10.8.0.2/32"])]] {
        let mut world = World::new("Fenced");
        let before =
            NetworkFenceClients { known_by: Some(KnownBy::OwnAddress), ..on_record("n1", "uid-n1", &["10.8.0.1/32"]) };
        world.around().record = [vec![before.clone()], others.clone()].concat();
        assert_eq!(world.code(fence), "AddressesChanged", "{others:?}");
        // csi-addons has asked again.
        let now = NetworkFenceClients { addresses: vec!["10.9.0.1/32".into()], ..before };
        world.around().record = [vec![now], others.clone()].concat();
        assert_eq!(world.made().spec.cidrs, ["10.0.0.1/32", "10.9.0.1/32"], "{others:?}");
    }
}

/// Without an agent, or where an InternalIP is on no interface, nothing is frozen: the driver's word alone is gone by.
#[test]
fn where_nothing_is_frozen_the_drivers_word_counts_as_long_as_the_node_has_the_address() {
    let without_frozen = |own: &str| {
        let mut world = World::new("Fenced");
        world.0.request = Arc::new(request("r1", "n1", "Fenced", &[]));
        world.around().record = vec![on_record("n1", "uid-n1", &[own]), on_record("n2", "uid-n2", &["10.0.0.2/32"])];
        world
    };
    let mut world = without_frozen("10.0.0.1/32");
    world.around().reports.clear();
    assert_eq!(world.made().spec.cidrs, ["10.0.0.1/32"], "by its Node");
    // Its agent reported that one, and not the InternalIP.
    let mut world = without_frozen("10.9.0.1/32");
    world.around().reports = vec![report("n1", &["10.9.0.1"])];
    assert_eq!(world.made().spec.cidrs, ["10.0.0.1/32", "10.9.0.1/32"], "by its agent");
    let mut world = without_frozen("10.0.0.9/32");
    assert_eq!(world.code(fence), "AddressesChanged", "it has others by now");
    // What another machine of that name has is not its own.
    world.around().reports.clear();
    world.around().nodes.retain(|node| node.metadata.name.as_deref() != Some("n1"));
    assert_eq!(world.code(fence), "AddressesChanged", "nobody knows what it has");
}

/// What the driver said an hour ago is one of them; the client may have connected by another since.
#[test]
fn where_nothing_is_frozen_no_address_that_the_node_has_is_left_out() {
    let mut world = World::new("Fenced");
    world.0.request = Arc::new(request("r1", "n1", "Fenced", &[]));
    world.around().reports.clear();
    world.around().record = vec![on_record("n1", "uid-n1", &["10.0.0.1/32"])];
    let second = NodeAddress { type_: "InternalIP".into(), address: "2001:db8::1".into() };
    world.around().nodes[0].status.addresses.push(second);
    assert_eq!(world.made().spec.cidrs, ["10.0.0.1/32", "2001:db8::1/128"]);
    world.around().reports = vec![report("n3", &["2001:db8::1"])];
    assert_eq!(world.code(fence), "AddressClaimed", "another node has the second one");
}

/// The public address of a cloud's machine is in its Node, and on no interface of it.
#[test]
fn an_external_address_is_that_of_a_nat() {
    let mut world = World::new("Fenced");
    for (number, node) in (1..).zip(&mut world.around().nodes) {
        let external = NodeAddress { type_: "ExternalIP".into(), address: format!("192.0.2.{number}") };
        node.status.addresses.push(external);
    }
    world.around().record =
        vec![on_record("n1", "uid-n1", &["192.0.2.1/32"]), on_record("n2", "uid-n2", &["192.0.2.2/32"])];
    assert_eq!(world.made().spec.cidrs, ["192.0.2.1/32"]);
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
fn a_class_of_another_cluster_shuts_nobody_out() {
    let attached = || request("r1", "n1", "Fenced", &[]).spec.volumes.remove(0);
    let volume = |cluster_id: Option<&str>| {
        let mut volume = attached();
        volume.attach_required = Some(false);
        volume.cluster_id = cluster_id.map(str::to_owned);
        volume
    };
    for (class, volumes, is_right) in [
        (None, vec![attached()], true),
        (Some("a"), vec![attached()], true),
        (None, vec![volume(None)], true),
        (Some("a"), vec![volume(Some("a")), attached()], true),
        (Some("a"), vec![volume(None)], false),
        (Some("a"), vec![volume(Some("a")), volume(None)], false),
        (None, vec![volume(Some("a"))], false),
        (Some("b"), vec![volume(Some("a"))], false),
        (Some("a"), vec![volume(Some("a")), volume(Some("b"))], false),
    ] {
        let code = check_cluster(CLASS, class, &volumes).err().map(|failure| failure.code);
        assert_eq!(code, (!is_right).then_some("ClassOfAnotherCluster"), "{class:?} {volumes:?}");
    }
}

#[test]
fn a_class_that_is_made_anew_meanwhile_is_another() {
    let code = |before: &str, now: &str| check_same(CLASS, before, now).err().map(|failure| failure.code);
    assert_eq!(code("first", "first"), None);
    assert_eq!(code("", ""), None, "no cluster is demanded");
    assert_eq!(code("first", "second"), Some("NetworkFenceChanged"));
    assert_eq!(code("first", ""), Some("NetworkFenceChanged"), "it is gone");
}
