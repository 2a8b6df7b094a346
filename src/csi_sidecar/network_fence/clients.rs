//! By what the storage knows the nodes, put on record in the DriverReport while they are well. csi-addons forgets a plugin soon
//! after its node has failed, and may say by then what another machine has: so a fence goes by this record. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use kube::ResourceExt as _;

use crate::api::cidr::{Cidr, readable};
use crate::api::driver_report::{KnownBy, NetworkFenceClients};
use crate::api::names::FENCED_TAINT;
use crate::api::network_fence::CsiAddonsNode;
use crate::api::slim::network::ReportedAddresses;
use crate::api::slim::{CsiNode, Node};

use super::addresses;

/// Nodes on record at most, so that the report stays small enough. The others are not shut out.
const MOST_NODES: usize = 2048;
/// Addresses of a node at most.
const MOST_ADDRESSES: usize = 16;
/// How long a driver may say nothing of a node that is well before what it said counts no more. A node that has just failed is
/// forgotten by csi-addons sooner than the lack of its kubelet shows.
const SILENCE: Duration = Duration::from_secs(120);
/// How often Nodes are listed: while what is told differs from what is on record, and else, for a Node that another machine has taken
/// with its name and its addresses.
const NODES: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(600));

/// A class and a node.
type Key = (String, String);
/// What a driver tells: addresses by class and node. None: they cannot be used.
pub(super) type Told = BTreeMap<Key, Vec<String>>;
/// Nodes by name.
type Nodes<'a> = BTreeMap<String, &'a Node>;

/// What a look at the nodes shows.
pub(super) struct Machines<'a> {
    /// All Nodes.
    pub nodes: &'a [Node],
    /// By what the drivers know them.
    pub csi_nodes: &'a [CsiNode],
    /// What all agents report.
    pub reports: &'a [ReportedAddresses],
}

/// What this process remembers between two looks.
#[derive(Debug, Default)]
pub struct Memory {
    /// When Nodes were listed last.
    looked: Option<Instant>,
    /// Names of the nodes that csi-addons calls as the driver does.
    names: BTreeMap<String, String>,
    /// Since when the driver says nothing of a node that is on record and well.
    silent: BTreeMap<Key, Instant>,
}

/// What a driver's plugins tell of these classes.
pub(super) fn told(plugins: &[CsiAddonsNode], driver: &str, classes: &[String]) -> Told {
    let mut told = BTreeMap::<_, Vec<&str>>::new();
    for plugin in plugins.iter().filter(|plugin| plugin.spec.driver.name == driver) {
        for class in classes {
            let clients = plugin.clients(class);
            if !clients.is_empty() {
                told.entry((class.clone(), plugin.spec.driver.node_id.clone())).or_default().extend(clients);
            }
        }
    }
    told.into_iter().map(|(key, texts)| (key, usable(&texts))).collect()
}

/// In one way of writing; none where one of them is no address, or there are too many: a part of them is no use.
fn usable(texts: &[&str]) -> Vec<String> {
    let addresses: Option<BTreeSet<_>> = texts.iter().map(|text| text.parse::<Cidr>().ok()).collect();
    let addresses = addresses.filter(|addresses| addresses.len() <= MOST_ADDRESSES).unwrap_or_default();
    addresses.into_iter().map(|address| address.to_string()).collect()
}

/// The node that is meant, by what csi-addons calls it: the name of the Node, or as the driver does.
fn names(told: &Told, nodes: &[Node], csi_nodes: &[CsiNode], driver: &str) -> BTreeMap<String, String> {
    let ids: BTreeSet<_> = told.keys().map(|(_, id)| id).collect();
    let is_name = |id: &&String| nodes.iter().any(|node| node.metadata.name.as_ref() == Some(*id));
    let has_id =
        |node: &&CsiNode, id: &String| node.spec.drivers.iter().any(|it| it.name == driver && it.node_id == *id);
    let name = |id: &String| {
        let node = csi_nodes.iter().find(|node| has_id(node, id))?;
        Some((id.clone(), node.name_any()))
    };
    ids.into_iter().filter(|id| !is_name(id)).filter_map(name).collect()
}

impl Memory {
    /// Whether Nodes are to be listed, to settle what is on record.
    pub(super) fn is_look_due(&self, record: &[NetworkFenceClients], told: &Told, now: Instant) -> bool {
        if record.is_empty() && told.is_empty() {
            return false;
        }
        let of_use = |told: Told| told.into_iter().filter(|(_, addresses)| !addresses.is_empty()).collect::<Told>();
        let known = record.iter().map(|it| (key(it), it.addresses.clone())).collect();
        let is_as_told = of_use(known) == of_use(self.by_name(told.clone()));
        let pause = if is_as_told { NODES.1 } else { NODES.0 };
        self.looked.is_none_or(|at| now.saturating_duration_since(at) >= pause)
    }

    /// What is to be on record from now on.
    pub(super) fn settle(
        &mut self,
        record: Vec<NetworkFenceClients>,
        told: Told,
        machines: &Machines<'_>,
        driver: &str,
        now: Instant,
    ) -> Vec<NetworkFenceClients> {
        self.looked = Some(now);
        self.names = names(&told, machines.nodes, machines.csi_nodes, driver);
        let told = self.by_name(told);
        let nodes: Nodes<'_> = machines.nodes.iter().map(|node| (node.name_any(), node)).collect();
        self.listen(&record, &told, &nodes, now);
        settle(record, told, &nodes, machines.reports, |key| self.is_silent(key, now))
    }

    fn by_name(&self, told: Told) -> Told {
        let named = |id: String| self.names.get(&id).cloned().unwrap_or(id);
        told.into_iter().map(|((class, id), addresses)| ((class, named(id)), addresses)).collect()
    }

    /// Takes down since when the driver says nothing of nodes that are well.
    fn listen(&mut self, record: &[NetworkFenceClients], told: &Told, nodes: &Nodes<'_>, now: Instant) {
        let quiet = record.iter().map(key).filter(|key| !told.contains_key(key));
        let quiet = quiet.filter(|(_, node)| nodes.get(node).is_some_and(|node| is_well(node)));
        self.silent = quiet.map(|key| (key.clone(), self.silent.get(&key).copied().unwrap_or(now))).collect();
    }

    fn is_silent(&self, key: &Key, now: Instant) -> bool {
        self.silent.get(key).is_some_and(|since| now.saturating_duration_since(*since) >= SILENCE)
    }
}

/// What is told of nodes that are well; of others what was on record, as long as it is the same Node.
fn settle(
    record: Vec<NetworkFenceClients>,
    told: Told,
    nodes: &Nodes<'_>,
    reports: &[ReportedAddresses],
    is_silent: impl Fn(&Key) -> bool,
) -> Vec<NetworkFenceClients> {
    let mut next = BTreeMap::<Key, NetworkFenceClients>::new();
    for mut known in record {
        let key = key(&known);
        if nodes.get(&known.node).is_some_and(|node| node.metadata.uid.as_ref() == Some(&known.node_uid)) {
            if is_silent(&key) {
                known.addresses.clear();
            }
            next.insert(key, known);
        }
    }
    for ((class_name, name), addresses) in told {
        let Some(node) = nodes.get(&name).filter(|node| is_well(node)) else { continue };
        let node_uid = node.metadata.uid.clone().unwrap_or_default();
        let key = (class_name.clone(), name.clone());
        // Another address since may be one that it has no more: csi-addons asks once an hour.
        let was_own = next.get(&key).is_some_and(|known| known.known_by == Some(KnownBy::OwnAddress));
        let is_own = was_own || has_any(node, &node_uid, reports, &addresses);
        let known_by = if is_own { KnownBy::OwnAddress } else { KnownBy::OtherAddress };
        next.insert(key, NetworkFenceClients { class_name, node: name, node_uid, addresses, known_by: Some(known_by) });
    }
    next.into_values().take(MOST_NODES).collect()
}

/// Whether one of these addresses is the node's own.
fn has_any(node: &Node, uid: &str, reports: &[ReportedAddresses], told: &[String]) -> bool {
    let own = addresses::own(node.status.addresses.iter(), reports, uid);
    readable(told).iter().any(|address| own.contains(address))
}

/// Whether what is told of it now is of the machine that writes there now, and no incident of it is open.
pub(super) fn is_well(node: &Node) -> bool {
    node.ready() == "True" && node.taint(FENCED_TAINT, "NoSchedule").is_none()
}

fn key(known: &NetworkFenceClients) -> Key {
    (known.class_name.clone(), known.node.clone())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::slim::NodeAddress;

    const CLASS: &str = "file-fence";
    const DRIVER: &str = "csi.file.example.com";

    fn node(name: &str, uid: &str, ready: &str) -> Node {
        serde_json::from_value(json!({
            "metadata": { "name": name, "uid": uid }, "status": { "conditions": [{ "type": "Ready", "status": ready }] },
        }))
        .unwrap()
    }

    fn plugin(id: &str, cidrs: &[&str]) -> CsiAddonsNode {
        serde_json::from_value(json!({
            "metadata": { "name": id }, "spec": { "driver": { "name": DRIVER, "nodeID": id } },
            "status": { "networkFenceClientStatus": [
                { "networkFenceClassName": CLASS, "ClientDetails": [{ "id": id, "cidrs": cidrs }] },
            ] },
        }))
        .unwrap()
    }

    fn told_by(plugins: &[CsiAddonsNode]) -> Told {
        told(plugins, DRIVER, &[CLASS.to_owned()])
    }

    /// One look at these nodes, after another that put this on record.
    fn look(record: &[NetworkFenceClients], plugins: &[CsiAddonsNode], nodes: &[Node]) -> Vec<NetworkFenceClients> {
        let nodes: Nodes<'_> = nodes.iter().map(|node| (node.name_any(), node)).collect();
        settle(record.to_vec(), told_by(plugins), &nodes, &[], |_| false)
    }

    fn rows<'a>(record: &'a [NetworkFenceClients]) -> Vec<(&'a str, &'a str, Vec<&'a str>)> {
        let texts = |it: &'a NetworkFenceClients| it.addresses.iter().map(String::as_str).collect();
        record.iter().map(|it| (it.node.as_str(), it.node_uid.as_str(), texts(it))).collect()
    }

    #[test]
    fn what_is_told_of_a_node_that_is_well_is_kept_when_it_fails() {
        let well = [node("n1", "u1", "True"), node("n2", "u2", "True")];
        let record = look(&[], &[plugin("n1", &["192.0.2.1", "192.0.2.1/32"]), plugin("n2", &["192.0.2.2/32"])], &well);
        assert_eq!(rows(&record), [("n1", "u1", vec!["192.0.2.1/32"]), ("n2", "u2", vec!["192.0.2.2/32"])]);
        let mut tainted = well[0].clone();
        tainted.spec.taints = serde_json::from_value(json!([{ "key": FENCED_TAINT, "effect": "NoSchedule" }])).unwrap();
        for failed in [node("n1", "u1", "Unknown"), node("n1", "u1", "False"), tainted] {
            for plugins in [vec![], vec![plugin("n1", &["192.0.2.7/32"])]] {
                let kept = look(&record[..1], &plugins, std::slice::from_ref(&failed));
                assert_eq!(rows(&kept), [("n1", "u1", vec!["192.0.2.1/32"])], "{failed:?} {plugins:?}");
            }
        }
        // Renumbered while it is well.
        let renumbered = look(&record, &[plugin("n1", &["192.0.2.7/32"])], &well);
        assert_eq!(rows(&renumbered)[0], ("n1", "u1", vec!["192.0.2.7/32"]));
    }

    /// What differs from its own later may be what it had before.
    #[test]
    fn a_node_that_was_known_by_an_address_of_its_own_stays_so() {
        let at = |uid: &str, type_: &str, address: &str| {
            let mut node = node("n1", uid, "True");
            node.status.addresses = vec![NodeAddress { type_: type_.into(), address: address.into() }];
            node
        };
        let look = |record: &[NetworkFenceClients], told: &str, node: &Node, reports: &[ReportedAddresses]| {
            let nodes = Nodes::from([("n1".to_owned(), node)]);
            settle(record.to_vec(), told_by(&[plugin("n1", &[told])]), &nodes, reports, |_| false)
        };
        let report = |uid: &str, address: &str| -> ReportedAddresses {
            let status = json!({ "nodeUID": uid, "addresses": [address] });
            serde_json::from_value(json!({ "metadata": { "name": "n1" }, "status": status })).unwrap()
        };
        let first = look(&[], "10.0.0.1", &at("u1", "InternalIP", "10.0.0.1"), &[]);
        assert_eq!(first[0].known_by, Some(KnownBy::OwnAddress));
        // Renumbered: csi-addons says the one of before.
        let (moved, anew) = (at("u1", "InternalIP", "10.0.0.7"), at("anew", "InternalIP", "10.0.0.7"));
        for told in ["10.0.0.1", "192.0.2.1"] {
            assert_eq!(look(&first, told, &moved, &[])[0].known_by, Some(KnownBy::OwnAddress), "{told}");
            assert_eq!(look(&first, told, &anew, &[])[0].known_by, Some(KnownBy::OtherAddress), "{told}");
        }
        for (node, uid, expected) in [
            (at("u1", "InternalIP", "10.0.0.1"), "u1", KnownBy::OwnAddress),
            (at("u1", "InternalIP", "10.0.0.1"), "of-another", KnownBy::OtherAddress),
            (at("u1", "ExternalIP", "10.9.0.1"), "of-another", KnownBy::OtherAddress),
        ] {
            let known = look(&[], "10.9.0.1", &node, &[report(uid, "10.9.0.1")]);
            assert_eq!(known[0].known_by, Some(expected), "{node:?} {uid}");
        }
    }

    #[test]
    fn another_node_of_that_name_has_a_record_of_its_own() {
        let record = look(&[], &[plugin("n1", &["192.0.2.1/32"])], &[node("n1", "u1", "True")]);
        assert_eq!(look(&record, &[plugin("n1", &["192.0.2.1/32"])], &[]), [], "the Node is gone");
        assert_eq!(look(&record, &[], &[node("n1", "anew", "True")]), [], "it has told nothing yet");
        let anew = look(&record, &[plugin("n1", &["192.0.2.1/32"])], &[node("n1", "anew", "True")]);
        assert_eq!(rows(&anew), [("n1", "anew", vec!["192.0.2.1/32"])]);
    }

    #[test]
    fn what_cannot_be_used_is_on_record_as_nothing() {
        let many: Vec<_> = (1..=17).map(|number| format!("192.0.2.{number}")).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        for (cidrs, expected) in
            [(&["a client"][..], 0), (&["192.0.2.1", "a client"][..], 0), (&many[..16], 16), (&many[..], 0)]
        {
            let record = look(&[], &[plugin("n1", cidrs)], &[node("n1", "u1", "True")]);
            assert_eq!((record.len(), record[0].addresses.len()), (1, expected), "{cidrs:?}");
        }
        // Several plugins of a driver run on a node.
        let both =
            look(&[], &[plugin("n1", &["192.0.2.1"]), plugin("n1", &["192.0.2.2"])], &[node("n1", "u1", "True")]);
        assert_eq!(both[0].addresses.len(), 2);
    }

    #[test]
    fn a_node_is_known_by_the_drivers_id_too() {
        let csi_node: CsiNode = serde_json::from_value(json!({
            "metadata": { "name": "n1" }, "spec": { "drivers": [{ "name": DRIVER, "nodeID": "id-n1" }] },
        }))
        .unwrap();
        let (nodes, told) = ([node("n1", "u1", "True")], told_by(&[plugin("id-n1", &["192.0.2.1"])]));
        let memory = Memory { names: names(&told, &nodes, &[csi_node], DRIVER), ..Memory::default() };
        assert_eq!(memory.by_name(told), told_by(&[plugin("n1", &["192.0.2.1"])]));
    }

    #[test]
    fn nodes_are_listed_for_a_difference_and_slowly_else() {
        let now = Instant::now() + Duration::from_secs(3600);
        let record = look(&[], &[plugin("n1", &["192.0.2.1/32"])], &[node("n1", "u1", "True")]);
        let (same, other) = (told_by(&[plugin("n1", &["192.0.2.1/32"])]), told_by(&[plugin("n1", &["192.0.2.7/32"])]));
        for (seconds, told, expected) in
            [(59, &other, false), (60, &other, true), (60, &same, false), (600, &same, true), (60, &Told::new(), true)]
        {
            let memory = Memory { looked: Some(now - Duration::from_secs(seconds)), ..Memory::default() };
            assert_eq!(memory.is_look_due(&record, told, now), expected, "{seconds} {told:?}");
        }
        assert!(Memory::default().is_look_due(&record, &same, now), "the first look of a process");
        assert!(!Memory::default().is_look_due(&[], &Told::new(), now), "nobody tells anything");
    }

    #[test]
    fn a_driver_that_says_nothing_of_a_node_that_is_well_is_believed_no_more() {
        let now = Instant::now();
        let record = look(&[], &[plugin("n1", &["192.0.2.1/32"])], &[node("n1", "u1", "True")]);
        for (ready, expected) in [("True", 0), ("Unknown", 1)] {
            let node = node("n1", "u1", ready);
            let nodes = Nodes::from([("n1".to_owned(), &node)]);
            let mut memory = Memory::default();
            for (seconds, expected) in [(0, 1), (119, 1), (120, expected)] {
                let now = now + Duration::from_secs(seconds);
                memory.listen(&record, &Told::new(), &nodes, now);
                let next = settle(record.clone(), Told::new(), &nodes, &[], |key| memory.is_silent(key, now));
                assert_eq!((next.len(), next[0].addresses.len()), (1, expected), "{ready} {seconds}");
            }
        }
    }
}
