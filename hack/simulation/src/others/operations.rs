//! What csi-addons has the storages do, in their moods. It gives up after three minutes; what was asked for may be carried out all the
//! same, later. A storage carries out what it was asked for in the order of the asking: one that does not may shut out after it let
//! in, and nobody could tell (docs/safety.md).

use bulkhead::api::cidr::{Cidr, readable};
use bulkhead::api::names;
use bulkhead::api::network_fence::{FenceState, NetworkFence, NetworkFenceStatus};
use bulkhead::csi_sidecar::decide::Failure;
use kube::ResourceExt;
use serde_json::json;

use crate::array::{Array, Course, failure};
use crate::chance::Chance;
use crate::shape::fence_class;
use crate::time::{MINUTE, Millis, SECOND};
use crate::world::World;

use super::{Actor, is_ours, machines_of};

/// How long csi-addons waits for a driver.
pub(crate) const CALL: Millis = 3 * MINUTE;
/// How long it waits at most before it tries again what failed. It is 1000 s in a cluster: here everything has to come to an end.
const LONGEST_PAUSE: Millis = MINUTE;

/// Something that a storage was asked for.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    driver: String,
    /// The node that one of our objects names.
    node: Option<String>,
    state: FenceState,
    addresses: Vec<Cidr>,
    /// When it is carried out; `None` when it was, or never is.
    effect_at: Option<Millis>,
    /// Who waits for the answer, if anybody does.
    waits: Option<Waiting>,
}

/// Who waits for an answer.
#[derive(Clone, Debug)]
struct Waiting {
    /// The object that was read.
    name: String,
    uid: String,
    version: Option<String>,
    generation: i64,
    until: Millis,
    answer: Result<(), Failure>,
}

impl Operation {
    /// Nobody waits for its answer any more.
    pub(super) fn forget(&mut self) {
        self.waits = None;
    }

    fn is_for(&self, uid: &str) -> bool {
        self.waits.as_ref().is_some_and(|waits| waits.uid == uid)
    }

    /// When something of it is due next.
    fn next(&self) -> Option<Millis> {
        self.effect_at.into_iter().chain(self.waits.as_ref().map(|waits| waits.until)).min()
    }
}

impl World {
    /// The storages carry out what is due; csi-addons takes down what they answered, and asks for what is new.
    pub(crate) fn csi_addons(&mut self, chance: &mut dyn Chance) {
        self.carry_out();
        let mut next = Some(self.now + SECOND).filter(|_| self.api.down);
        if !self.api.down {
            self.take_answers();
            next = self.ask_storages(chance);
        }
        let operations = &mut self.others.csi_addons.operations;
        operations.retain(|_, operation| operation.next().is_some());
        let effects = operations.values().filter_map(|operation| operation.effect_at);
        let answers = operations.values().filter_map(Operation::next).filter(|_| !self.api.down);
        if let Some(next) = next.into_iter().chain(effects).chain(answers).min() {
            self.wake(Actor::CsiAddons, next.max(self.now + 1));
        }
    }

    fn carry_out(&mut self) {
        let now = self.now;
        let mut due = Vec::new();
        for operation in self.others.csi_addons.operations.values_mut() {
            if operation.effect_at.take_if(|at| *at <= now).is_some() {
                due.push(operation.clone());
            }
        }
        for operation in due {
            self.counts.network_late += u64::from(operation.waits.is_none());
            let Some(array) = self.arrays.get_mut(&operation.driver) else { continue };
            operate(array, &operation);
            self.oracle.touch();
            if let Some(node) = operation.node.filter(|_| operation.state == FenceState::Unfenced) {
                machines_of(&node).iter().for_each(|machine| self.judge_lifted(machine, &operation.driver));
            }
            self.tell(|| format!("{} has {:?} {:?}", operation.driver, operation.state, operation.addresses));
        }
    }

    /// A result is written to the version of the object that was read, or not at all: then it is worked on again.
    fn take_answers(&mut self) {
        let now = self.now;
        let csi_addons = &mut self.others.csi_addons;
        let mut ended = Vec::new();
        for operation in csi_addons.operations.values_mut() {
            let waits = operation.waits.take_if(|waits| waits.until <= now);
            ended.extend(waits.map(|waits| (operation.state, waits)));
        }
        for (state, waits) in ended {
            let version = csi_addons.next_version();
            self.counts.network_failures += u64::from(waits.answer.is_err());
            match waits.answer {
                Ok(()) => {
                    csi_addons.failed.remove(&waits.uid);
                }
                Err(_) => {
                    let pause = csi_addons.failed.get(&waits.uid).map_or(SECOND, |(_, _, pause)| pause * 2);
                    let pause = pause.min(LONGEST_PAUSE);
                    csi_addons.failed.insert(waits.uid.clone(), (waits.generation, now + pause, pause));
                }
            }
            let known =
                csi_addons.fences.get_mut(&waits.name).filter(|fence| fence.metadata.uid.as_ref() == Some(&waits.uid));
            let Some(fence) = known.filter(|fence| fence.metadata.resource_version == waits.version) else { continue };
            fence.status = Some(result(state, &waits.answer));
            fence.metadata.resource_version = Some(version);
            if waits.answer.is_ok() {
                csi_addons.worked_on.insert(waits.uid, waits.generation);
            }
        }
    }

    /// Returns when what failed is tried again.
    fn ask_storages(&mut self, chance: &mut dyn Chance) -> Option<Millis> {
        let mut again = None;
        for name in self.others.csi_addons.fences.keys().cloned().collect::<Vec<_>>() {
            let wait = self.ask_storage(&name, chance);
            again = again.into_iter().chain(wait).min();
        }
        again
    }

    /// Asks for what an object wants, if that is new.
    fn ask_storage(&mut self, name: &str, chance: &mut dyn Chance) -> Option<Millis> {
        let (now, number) = (self.now, self.number());
        let csi_addons = &mut self.others.csi_addons;
        let version = csi_addons.next_version();
        let fence = csi_addons.fences.get_mut(name).filter(|fence| fence.metadata.deletion_timestamp.is_none())?;
        let uid = fence.metadata.uid.clone()?;
        let is_worked_on = csi_addons.worked_on.get(&uid).copied() == fence.metadata.generation;
        if is_worked_on || csi_addons.operations.values().any(|operation| operation.is_for(&uid)) {
            return None;
        }
        if let Some((generation, at, _)) = csi_addons.failed.get(&uid)
            && (Some(*generation), true) == (fence.metadata.generation, *at > now)
        {
            return Some(*at);
        }
        let class = fence.spec.network_fence_class_name.clone().unwrap_or_default();
        let (driver, array) = self.arrays.iter_mut().find(|(driver, _)| fence_class(driver) == class)?;
        // With its finalizer it writes the whole object, and fields of it that nobody wrote.
        if fence.spec.others.is_empty() {
            fence.spec.others = [("driver".to_owned(), json!("")), ("secret".to_owned(), json!({}))].into();
            fence.metadata.generation = fence.metadata.generation.map(|known| known + 1);
            fence.metadata.resource_version = Some(version);
        }
        let course = array.network_course(chance);
        let before = csi_addons.operations.values().filter(|operation| operation.driver == *driver);
        let after = before.filter_map(|operation| operation.effect_at).max();
        let operation = asked(fence, driver, uid, course, (now, after));
        csi_addons.operations.insert(number, operation);
        None
    }
}

/// What a storage is asked for now, that may be carried out after that moment only.
fn asked(
    fence: &NetworkFence,
    driver: &str,
    uid: String,
    course: Course,
    (now, after): (Millis, Option<Millis>),
) -> Operation {
    let effect_at = course.effect_after.map(|effect| (now + effect).max(after.map_or(0, |after| after + 1)));
    // Who answers well has carried it out.
    let answered_at =
        now.saturating_add(course.answer_after).max(effect_at.filter(|_| course.answer.is_ok()).unwrap_or(0));
    let in_time = answered_at <= now + CALL;
    let waits = Waiting {
        name: fence.name_any(),
        uid,
        version: fence.metadata.resource_version.clone(),
        generation: fence.metadata.generation.unwrap_or_default(),
        until: answered_at.min(now + CALL),
        answer: if in_time { course.answer } else { Err(failure("DeadlineExceeded")) },
    };
    let node = fence.annotations().get(names::FENCED_NODE_ANNOTATION).cloned();
    Operation {
        driver: driver.to_owned(),
        node: node.filter(|_| is_ours(fence)),
        state: fence.spec.fence_state,
        addresses: readable(&fence.spec.cidrs),
        effect_at,
        waits: Some(waits),
    }
}

fn operate(array: &mut Array, operation: &Operation) {
    for address in &operation.addresses {
        match operation.state {
            FenceState::Fenced => {
                array.shut_out.insert(*address);
            }
            FenceState::Unfenced => array.shut_out.retain(|known| !known.overlaps(*address)),
        }
    }
}

fn result(state: FenceState, answer: &Result<(), Failure>) -> NetworkFenceStatus {
    let (result, message) = match (answer, state) {
        (Ok(()), FenceState::Fenced) => ("Succeeded", "fencing operation successful".to_owned()),
        (Ok(()), FenceState::Unfenced) => ("Succeeded", "unfencing operation successful".to_owned()),
        (Err(failure), _) => ("Failed", format!("{}: {}", failure.code, failure.message)),
    };
    NetworkFenceStatus { result: Some(result.into()), message: Some(message) }
}
