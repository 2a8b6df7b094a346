//! One volume and whoever speaks of it. `settle` plays controller and API server: it decides and records until nothing
//! is left to do.

use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};

use crate::api::conditions;
use crate::api::names;
use crate::api::slim::{Node, PersistentVolume, Pod};
use crate::api::time::Now;
use crate::api::volume_health::{VolumeHealth, VolumeHealthStatus, VolumeTaint};
use crate::api::volume_health_policy::VolumeHealthPolicy;
use crate::controllers::testing;
use crate::controllers::volume_health::decide::{Decision, Effect, Place, Seen, decide};
use crate::controllers::volume_health::reservation::{self, ClaimRef};

pub const DRIVER: &str = "csi.test";

pub struct World {
    pub seen: Seen,
    pub now: Now,
    /// Statuses that were written.
    pub writes: usize,
}

pub fn parse<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

pub fn policy(name: &str, spec: Value) -> Arc<VolumeHealthPolicy> {
    Arc::new(VolumeHealthPolicy::new(name, parse(spec)))
}

pub fn finding(check: &str, state: &str, reason: &str, since: DateTime<Utc>) -> Value {
    json!({ "check": check, "state": state, "reason": reason, "since": since, "message": format!("saw {reason}") })
}

pub fn node(name: &str) -> Node {
    let mut node = testing::node(name);
    node.metadata.labels = Some([("kubernetes.io/hostname".to_owned(), name.to_owned())].into());
    node
}

impl World {
    fn new(spec: Value) -> Self {
        let metadata = json!({ "name": "v", "uid": "uid-v" });
        let volume: PersistentVolume =
            parse(json!({ "metadata": metadata, "spec": spec, "status": { "phase": "Bound" } }));
        let seen = Seen {
            name: "v".into(),
            volume: Some(Arc::new(volume)),
            policies: vec![policy("default", json!({ "selector": {} }))],
            can_enforce: true,
            ..Seen::default()
        };
        Self { seen, now: testing::now(), writes: 0 }
    }

    /// A local volume on node `n1`, whose agent is there.
    pub fn local() -> Self {
        let term =
            json!({ "matchExpressions": [{ "key": "kubernetes.io/hostname", "operator": "In", "values": ["n1"] }] });
        let affinity = json!({ "required": { "nodeSelectorTerms": [term] } });
        let mut world = Self::new(json!({ "local": { "path": "/mnt/v" }, "nodeAffinity": affinity }));
        world.place("n1").is_host = true;
        world
    }

    /// A CSI volume, attached to these nodes, with a pod on each. Its driver and all agents say that it is good.
    pub fn csi(nodes: &[&str]) -> Self {
        let claim = json!({ "namespace": "shop", "name": "data", "uid": "uid-data" });
        let mut world = Self::new(json!({ "csi": { "driver": DRIVER, "volumeHandle": "h" }, "claimRef": claim }));
        for name in nodes {
            world.place(name);
            world.report(name, &[]);
            let mut attachment = testing::attachment("v", name);
            attachment.metadata.name = Some(format!("va-{name}"));
            world.seen.attachments.push(Arc::new(attachment));
            let pod: Pod = parse(json!({
                "metadata": { "namespace": "shop", "name": format!("pod-{name}") }, "spec": { "nodeName": name },
            }));
            world.seen.pods.push(Arc::new(pod));
        }
        world.driver(true, "Complete", &[]);
        world
    }

    pub fn place(&mut self, name: &str) -> &mut Place {
        self.seen.places.entry(name.to_owned()).or_insert_with(|| Place {
            node: Some(Arc::new(node(name))),
            agent_ready: true,
            ..Place::default()
        })
    }

    /// The agent of that node lists the volume, with these findings.
    pub fn report(&mut self, name: &str, findings: &[Value]) {
        let worst = findings.first().map_or(json!("Healthy"), |finding| finding["state"].clone());
        self.report_as(name, &format!("uid-{name}"), json!([{ "name": "v", "state": worst, "findings": findings }]));
    }

    pub fn report_as(&mut self, name: &str, uid: &str, volumes: Value) {
        let status = json!({ "nodeUID": uid, "volumes": volumes });
        let report = json!({
            "apiVersion": "bulkhead.dev/v1alpha1", "kind": "NodeVolumeReport", "metadata": { "name": name },
            "status": status,
        });
        self.place(name).report = Some(Arc::new(parse(report)));
    }

    /// What the sidecar says, heard of now.
    pub fn driver(&mut self, ready: bool, coverage: &str, abnormal: &[Value]) {
        let mut report = testing::report(DRIVER, &[]);
        let status = report.status.as_mut().unwrap();
        status.coverage = Some(parse(json!(coverage)));
        status.abnormal = parse(json!(abnormal));
        if !ready {
            status.conditions[0].status = "False".into();
        }
        self.seen.driver_report = Some(Arc::new(report));
        self.seen.driver_is_heard = true;
    }

    pub fn decide(&self) -> Decision {
        decide(&self.seen, self.now)
    }

    /// Decides and does, until nothing is left to do. Returns the last decision.
    pub fn settle(&mut self) -> Decision {
        for _ in 0..8 {
            let decision = self.decide();
            if decision.effects.is_empty() {
                return decision;
            }
            decision.effects.into_iter().for_each(|effect| self.carry_out(effect));
        }
        panic!("it writes for ever: {:#?}", self.decide());
    }

    pub fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Create(health) => {
                let mut health = *health;
                health.metadata.uid = Some("uid-vh".into());
                health.metadata.generation = Some(1);
                self.seen.health = Some(Arc::new(health));
            }
            Effect::Own { health, owner } => {
                let mut health = health.as_ref().clone();
                health.metadata.owner_references.get_or_insert_default().push(*owner);
                self.seen.health = Some(Arc::new(health));
            }
            Effect::Record { health, status } => {
                let before = self.seen.health.as_ref().unwrap().taints().to_vec();
                assert_eq!(Some(&health), self.seen.health.as_ref());
                check_rules(&before, &status);
                self.writes += 1;
                let mut health = health.as_ref().clone();
                health.status = Some(*status);
                self.seen.health = Some(Arc::new(health));
            }
            Effect::Delete(_) => self.seen.health = None,
            Effect::Mark { closed, guarded, .. } => {
                let metadata = &mut self.health().metadata;
                let label = (names::NO_ATTACH_LABEL.to_owned(), "Enforce".to_owned());
                metadata.labels = closed.then(|| [label].into());
                metadata.finalizers = guarded.then(|| vec![names::PROJECTION_FINALIZER.to_owned()]);
            }
            Effect::Project { marks, .. } => {
                let volume = Arc::make_mut(self.seen.volume.as_mut().unwrap());
                match marks.claim_ref {
                    ClaimRef::Keep => {}
                    ClaimRef::Reserve => volume.spec.claim_ref = Some(reservation::reserved()),
                    ClaimRef::Release => volume.spec.claim_ref = None,
                }
                let metadata = &mut volume.metadata;
                let levels = [(names::TAINTED_LABEL, marks.tainted), (names::NO_ATTACH_LABEL, marks.no_attach)];
                let labels = levels.into_iter().filter_map(|(key, level)| Some((key.into(), level?.as_str().into())));
                metadata.labels = Some(labels.collect());
                let annotation = |taints| [(names::VOLUME_TAINTS_ANNOTATION.to_owned(), taints)].into();
                metadata.annotations = marks.taints.map(annotation);
            }
        }
    }

    pub fn wait(&mut self, seconds: i64) {
        self.now.wall += TimeDelta::seconds(seconds);
        self.now.mono += std::time::Duration::from_secs(seconds.unsigned_abs());
    }

    pub fn ago(&self, seconds: i64) -> DateTime<Utc> {
        self.now.wall - TimeDelta::seconds(seconds)
    }

    pub fn health(&mut self) -> &mut VolumeHealth {
        Arc::make_mut(self.seen.health.as_mut().unwrap())
    }

    /// What a person wants from now on.
    pub fn want(&mut self, spec: Value) {
        let health = self.health();
        health.spec = parse(spec);
        health.metadata.generation = Some(health.metadata.generation.unwrap_or_default() + 1);
    }

    pub fn status(&self) -> &VolumeHealthStatus {
        self.seen.status().unwrap()
    }

    pub fn taint(&self, key: &str) -> &VolumeTaint {
        self.status().taints.iter().find(|taint| taint.key == key).unwrap()
    }

    pub fn summary(&self) -> &str {
        self.status().taint_summary.as_deref().unwrap_or_default()
    }

    pub fn phase(&self) -> String {
        format!("{:?}", self.status().phase.unwrap())
    }

    pub fn condition(&self, type_: &str) -> String {
        let condition = conditions::find(&self.status().conditions, type_).unwrap();
        format!("{} {}", condition.status, condition.reason)
    }
}

/// The rules of the definition, which the API server enforces.
fn check_rules(before: &[VolumeTaint], status: &VolumeHealthStatus) {
    use crate::api::volume::Source;
    use crate::api::volume_health::Phase;
    for taint in &status.taints {
        let known = before.iter().find(|known| known.key == taint.key);
        assert!(known.is_none_or(|known| known.time_added == taint.time_added), "timeAdded moved: {taint:?}");
        assert!(taint.nodes.len() <= 16);
    }
    let of_programs = status.taints.iter().any(|taint| taint.source != Source::Manual);
    assert!(status.phase != Some(Phase::Healthy) || !of_programs, "{status:?}");
    assert!(status.phase != Some(Phase::Unhealthy) || !status.taints.is_empty(), "{status:?}");
    assert!(status.observations.len() <= 64 && status.users.len() <= 16);
    let keys: std::collections::BTreeSet<_> =
        status.observations.iter().map(|it| (it.source, it.node.clone(), it.check)).collect();
    assert_eq!(keys.len(), status.observations.len(), "twice the same: {:?}", status.observations);
}
