//! JSON patches for lists and maps that others write too: each `test`s what it was decided on, so that it
//! fails instead of overwriting. Pure.
//!
//! Server-side apply is no help here: `spec.taints` is an atomic list, so applying one taint would take all.

use std::collections::BTreeMap;

use json_patch::{
    AddOperation, Patch, PatchOperation, RemoveOperation, TestOperation,
    jsonptr::{PointerBuf, Token},
};
use k8s_openapi::{api::core::v1::Taint, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::Serialize;
use serde_json::{Value, json};

/// The node that a patch is meant for. A name alone may by now belong to another machine.
#[derive(Clone, Copy, Debug)]
pub struct NodePrecondition<'a> {
    /// `metadata.uid`.
    pub uid: &'a str,
    /// `status.nodeInfo.bootID`, where the patch is meant for this boot of the machine only.
    pub boot_id: Option<&'a str>,
    /// `metadata.resourceVersion`, where the patch is meant for the node as it was seen and no other.
    pub version: Option<&'a str>,
}

impl<'a> NodePrecondition<'a> {
    /// This Node, in whatever boot and version.
    pub fn of(meta: &'a ObjectMeta) -> Self {
        Self { uid: meta.uid.as_deref().unwrap_or_default(), boot_id: None, version: None }
    }

    fn tests(&self) -> Vec<PatchOperation> {
        let mut tests = vec![test(["metadata", "uid"], self.uid)];
        tests.extend(self.boot_id.map(|boot_id| test(["status", "nodeInfo", "bootID"], boot_id)));
        tests.extend(self.version.map(|version| test(["metadata", "resourceVersion"], version)));
        tests
    }
}

/// Adds `taint` to a node whose taints are exactly `present`; `None` if it is there (same key, value, effect).
/// One with the same key and effect but another value is replaced, since the API allows only one.
pub fn add_taint(node: NodePrecondition<'_>, present: &[Taint], taint: &Taint) -> Option<Patch> {
    let same = present.iter().position(|it| it.key == taint.key && it.effect == taint.effect);
    if same.and_then(|index| present.get(index)).is_some_and(|it| it.value == taint.value) {
        return None;
    }
    let mut operations = node.tests();
    operations.push(test_list(TAINTS, present));
    match same {
        Some(index) => {
            operations.push(remove_item(TAINTS, index));
            operations.push(add(TAINTS.iter().copied().chain(["-"]), taint));
        }
        None => operations.push(append(TAINTS, present, taint)),
    }
    Some(Patch(operations))
}

/// Removes the taint with this key and effect from a node whose taints are exactly `present`; `None` if it is
/// not there.
pub fn remove_taint(node: NodePrecondition<'_>, present: &[Taint], key: &str, effect: &str) -> Option<Patch> {
    let index = present.iter().position(|it| it.key == key && it.effect == effect)?;
    let mut operations = node.tests();
    operations.push(test_list(TAINTS, present));
    operations.push(remove_item(TAINTS, index));
    Some(Patch(operations))
}

/// Adds a finalizer to the object with this metadata; `None` if it is there.
pub fn add_finalizer(meta: &ObjectMeta, finalizer: &str) -> Option<Patch> {
    let present = meta.finalizers.as_deref().unwrap_or_default();
    if present.iter().any(|it| it == finalizer) {
        return None;
    }
    let mut operations = uid_test(meta);
    operations.push(test_list(FINALIZERS, present));
    operations.push(append(FINALIZERS, present, finalizer));
    Some(Patch(operations))
}

/// Removes a finalizer from the object with this metadata; `None` if it is not there.
pub fn remove_finalizer(meta: &ObjectMeta, finalizer: &str) -> Option<Patch> {
    let present = meta.finalizers.as_deref().unwrap_or_default();
    let index = present.iter().position(|it| it == finalizer)?;
    let mut operations = uid_test(meta);
    operations.push(test_list(FINALIZERS, present));
    operations.push(remove_item(FINALIZERS, index));
    Some(Patch(operations))
}

/// Several changes of exactly one version of an object, made together or not at all.
pub struct Edit<'a> {
    meta: &'a ObjectMeta,
    operations: Vec<PatchOperation>,
    /// Maps that are there, or that an operation before makes.
    made: Vec<&'static str>,
}

impl<'a> Edit<'a> {
    /// No change yet.
    pub fn of(meta: &'a ObjectMeta) -> Self {
        Self { meta, operations: Vec::new(), made: Vec::new() }
    }

    /// Gives a label this value, or takes it away.
    #[must_use]
    pub fn label(self, key: &str, value: Option<&str>) -> Self {
        let present = self.meta.labels.as_ref();
        self.entry("labels", present, key, value)
    }

    /// Gives an annotation this value, or takes it away.
    #[must_use]
    pub fn annotation(self, key: &str, value: Option<&str>) -> Self {
        let present = self.meta.annotations.as_ref();
        self.entry("annotations", present, key, value)
    }

    /// Adds a finalizer, or takes it away.
    #[must_use]
    pub fn finalizer(mut self, finalizer: &str, wanted: bool) -> Self {
        let present = self.meta.finalizers.as_deref().unwrap_or_default();
        match (present.iter().position(|it| it == finalizer), wanted) {
            (None, true) => self.operations.push(append(FINALIZERS, present, finalizer)),
            (Some(index), false) => self.operations.push(remove_item(FINALIZERS, index)),
            _ => {}
        }
        self
    }

    /// Puts a value at a path whose parent is there, whatever is there now.
    #[must_use]
    pub fn put(mut self, path: &[&str], value: impl Serialize) -> Self {
        self.operations.push(add(path.iter().copied(), value));
        self
    }

    /// Takes away what is at a path.
    #[must_use]
    pub fn take(mut self, path: &[&str]) -> Self {
        self.operations.push(remove(path.iter().copied()));
        self
    }

    /// The patch; `None` if nothing would change.
    pub fn patch(self) -> Option<Patch> {
        let mut operations = version_tests(self.meta);
        let is_change = !self.operations.is_empty();
        operations.extend(self.operations);
        is_change.then_some(Patch(operations))
    }

    fn entry(
        mut self,
        map: &'static str,
        present: Option<&'a BTreeMap<String, String>>,
        key: &str,
        value: Option<&str>,
    ) -> Self {
        match (present.and_then(|present| present.get(key)), value) {
            (Some(found), Some(value)) if found == value => {}
            (_, Some(value)) => {
                // With no entry at all the map itself is missing, and a path through it would fail.
                if present.is_none_or(BTreeMap::is_empty) && !self.made.contains(&map) {
                    self.made.push(map);
                    self.operations.push(add(["metadata", map], json!({})));
                }
                self.operations.push(add(["metadata", map, key], value));
            }
            (Some(_), None) => self.operations.push(remove(["metadata", map, key])),
            (None, None) => {}
        }
        self
    }
}

const TAINTS: &[&str] = &["spec", "taints"];
const FINALIZERS: &[&str] = &["metadata", "finalizers"];

fn uid_test(meta: &ObjectMeta) -> Vec<PatchOperation> {
    meta.uid.iter().map(|uid| test(["metadata", "uid"], uid)).collect()
}

fn version_tests(meta: &ObjectMeta) -> Vec<PatchOperation> {
    let mut tests = uid_test(meta);
    tests.extend(meta.resource_version.iter().map(|version| test(["metadata", "resourceVersion"], version)));
    tests
}

/// Tests a whole list. The API leaves an empty one out, and a missing path equals `null`.
fn test_list(path: &[&str], present: &[impl Serialize]) -> PatchOperation {
    let value = if present.is_empty() { Value::Null } else { json!(present) };
    test(path.iter().copied(), value)
}

/// Adds an item at the end of a list that [`test_list`] has tested, creating the list if it is missing.
fn append(path: &[&str], present: &[impl Serialize], item: impl Serialize) -> PatchOperation {
    if present.is_empty() {
        return add(path.iter().copied(), json!([item]));
    }
    add(path.iter().copied().chain(["-"]), item)
}

fn remove_item(path: &[&str], index: usize) -> PatchOperation {
    let index = index.to_string();
    remove(path.iter().copied().chain([index.as_str()]))
}

fn test<'a>(path: impl IntoIterator<Item = &'a str>, value: impl Serialize) -> PatchOperation {
    PatchOperation::Test(TestOperation { path: pointer(path), value: json!(value) })
}

fn add<'a>(path: impl IntoIterator<Item = &'a str>, value: impl Serialize) -> PatchOperation {
    PatchOperation::Add(AddOperation { path: pointer(path), value: json!(value) })
}

fn remove<'a>(path: impl IntoIterator<Item = &'a str>) -> PatchOperation {
    PatchOperation::Remove(RemoveOperation { path: pointer(path) })
}

/// Joins names into a JSON pointer, escaping `/` and `~` (RFC 6901): label keys contain slashes.
fn pointer<'a>(path: impl IntoIterator<Item = &'a str>) -> PointerBuf {
    PointerBuf::from_tokens(path.into_iter().map(Token::new))
}

#[cfg(test)]
#[path = "patch_tests.rs"]
mod tests;
