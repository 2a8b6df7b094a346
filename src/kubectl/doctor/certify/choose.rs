//! Which two nodes a certification uses: one that is cut off, one that looks at what arrived. Pure.

use kube::ResourceExt;

use crate::api::names;
use crate::api::slim::{CsiNode, Node};

/// Where nodes say in which zone they are.
const ZONE: &str = "topology.kubernetes.io/zone";

/// The two nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The node that is cut off from the scratch volume.
    pub node: String,
    /// The node that reads it then.
    pub other: String,
}

/// What there is to choose from.
pub struct Choice<'a> {
    /// The driver.
    pub driver: &'a str,
    /// All nodes.
    pub nodes: &'a [std::sync::Arc<Node>],
    /// What the drivers say of their nodes.
    pub csi_nodes: &'a [std::sync::Arc<CsiNode>],
    /// Nodes with an incident.
    pub in_trouble: &'a [String],
}

impl Choice<'_> {
    /// The pair: those that the person named, where they are fit, else the first that are; both in one zone where that is
    /// possible, since volumes often are in one.
    pub fn pair(&self, node: Option<&str>, other: Option<&str>) -> Result<Pair, String> {
        let node = match node {
            Some(named) => self.named(named)?,
            None => self.first(|it| other != Some(it.name_any().as_str()), "a node")?,
        };
        let zone = |it: &Node| it.labels().get(ZONE).cloned();
        let (name, home) = (node.name_any(), zone(node));
        let other = match other {
            Some(named) if named == name => {
                return Err(format!("--other-node {named} is the node that is cut off: name another"));
            }
            Some(named) => self.named(named)?,
            None => self
                .first(|it| it.name_any() != name && zone(it) == home, "")
                .or_else(|_| self.first(|it| it.name_any() != name, "a second node"))?,
        };
        Ok(Pair { node: name, other: other.name_any() })
    }

    fn named(&self, name: &str) -> Result<&Node, String> {
        let node = self.nodes.iter().find(|node| node.name_any() == name);
        let node = node.ok_or_else(|| format!("there is no node {name}"))?;
        match self.unfit(node) {
            None => Ok(node),
            Some(why) => Err(format!("node {name} cannot be used: {why}")),
        }
    }

    fn first(&self, fits: impl Fn(&Node) -> bool, what: &str) -> Result<&Node, String> {
        let mut nodes: Vec<_> = self.nodes.iter().filter(|node| fits(node) && self.unfit(node).is_none()).collect();
        nodes.sort_by_key(|node| node.name_any());
        let none = || {
            format!(
                "there is not {what} that is Ready, without taints and incident, with a registered plugin of driver {}",
                self.driver
            )
        };
        nodes.first().map(|node| &***node).ok_or_else(none)
    }

    fn unfit(&self, node: &Node) -> Option<String> {
        let name = node.name_any();
        let has_plugin = || {
            let csi = self.csi_nodes.iter().find(|csi| csi.name_any() == name)?;
            csi.spec.drivers.iter().find(|driver| driver.name == self.driver)
        };
        let blocking = node.taints().iter().find(|taint| taint.effect != "PreferNoSchedule");
        if node.ready() != "True" {
            return Some(format!("Ready={}", node.ready()));
        }
        if let Some(taint) = blocking {
            return Some(format!("it has the taint {}", taint.key));
        }
        if self.in_trouble.contains(&name) {
            return Some("it has an incident".into());
        }
        if names::paused(&node.metadata).is_some() {
            return Some("it is paused".into());
        }
        has_plugin().is_none().then(|| format!("the plugin of driver {} is not registered there", self.driver))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;

    fn node(name: &str, zone: &str, taints: Value) -> Arc<Node> {
        let node = json!({
            "metadata": { "name": name, "labels": { ZONE: zone } },
            "spec": { "taints": taints },
            "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
        });
        Arc::new(serde_json::from_value(node).unwrap())
    }

    fn csi_node(name: &str) -> Arc<CsiNode> {
        let drivers = json!([{ "name": "d", "nodeID": format!("id-{name}") }]);
        Arc::new(
            serde_json::from_value(json!({ "metadata": { "name": name }, "spec": { "drivers": drivers } })).unwrap(),
        )
    }

    #[test]
    fn nodes_that_are_fit_are_chosen_and_others_say_why_not() {
        let tainted = json!([{ "key": names::OUT_OF_SERVICE_TAINT, "effect": "NoExecute" }]);
        let nodes = [
            node("a", "1", json!([])),
            node("b", "2", json!([])),
            node("c", "1", json!([])),
            node("d", "1", tainted),
            node("e", "1", json!([])),
            node("f", "1", json!([])),
        ];
        let csi_nodes = ["a", "b", "c", "d", "f"].map(csi_node);
        let in_trouble = ["f".to_owned()];
        let choice = Choice { driver: "d", nodes: &nodes, csi_nodes: &csi_nodes, in_trouble: &in_trouble };
        let pair = |node, other| choice.pair(node, other).map(|pair| (pair.node, pair.other));
        let is = |node: &str, other: &str| Ok((node.to_owned(), other.to_owned()));
        assert_eq!(pair(None, None), is("a", "c"), "the same zone first");
        assert_eq!(pair(Some("b"), None), is("b", "a"), "no other in its zone");
        assert_eq!(pair(None, Some("a")), is("b", "a"));
        for (named, why) in [("d", "taint"), ("e", "not registered"), ("f", "incident"), ("x", "no node")] {
            assert!(pair(Some(named), None).unwrap_err().contains(why), "{named}");
        }
        assert!(pair(Some("a"), Some("a")).unwrap_err().contains("name another"));
        let alone = Choice { nodes: &nodes[..1], ..choice };
        assert!(alone.pair(None, None).unwrap_err().contains("a second node"));
    }
}
