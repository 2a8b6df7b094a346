use super::*;

const NODE: NodePrecondition<'_> = NodePrecondition { uid: "uid-1", boot_id: Some("boot-1"), version: None };

fn taint(key: &str, value: &str, effect: &str) -> Taint {
    Taint { key: key.into(), value: (!value.is_empty()).then(|| value.into()), effect: effect.into(), time_added: None }
}

fn node(taints: &[Taint]) -> Value {
    json!({
        "metadata": { "uid": "uid-1", "resourceVersion": "7" },
        "spec": { "taints": taints },
        "status": { "nodeInfo": { "bootID": "boot-1" } },
    })
}

/// The document after the patch.
fn patched(mut document: Value, patch: &Patch) -> Result<Value, json_patch::PatchError> {
    json_patch::patch(&mut document, patch).map(|()| document)
}

fn meta(value: Value) -> ObjectMeta {
    serde_json::from_value(value).unwrap()
}

fn text(patch: Option<Patch>) -> Value {
    json!(patch.unwrap())
}

#[test]
fn a_taint_is_added_to_others_and_removed_again() {
    let present = [taint("a", "", "NoSchedule"), taint("b", "x", "NoExecute")];
    let ours = taint("bulkhead.dev/fencing", "", "NoSchedule");
    let added = patched(node(&present), &add_taint(NODE, &present, &ours).unwrap()).unwrap();
    let all: Vec<Taint> = serde_json::from_value(added["spec"]["taints"].clone()).unwrap();
    assert_eq!(all, [present[0].clone(), present[1].clone(), ours.clone()]);

    let patch = remove_taint(NODE, &all, "bulkhead.dev/fencing", "NoSchedule").unwrap();
    assert_eq!(patched(added, &patch).unwrap(), node(&present));
}

#[test]
fn a_taint_patch_fails_on_another_list_node_or_boot() {
    let present = [taint("a", "", "NoSchedule")];
    let patch = add_taint(NODE, &present, &taint("ours", "", "NoSchedule")).unwrap();
    let moved = node(&[taint("a", "changed", "NoSchedule")]);
    let mut recreated = node(&present);
    recreated["metadata"]["uid"] = json!("uid-2");
    let mut rebooted = node(&present);
    rebooted["status"]["nodeInfo"]["bootID"] = json!("boot-2");
    for other in [moved, recreated, rebooted] {
        assert!(patched(other.clone(), &patch).is_err(), "{other}");
    }
    assert!(patched(node(&present), &patch).is_ok());
}

/// Its kubelet may have told that it is well.
#[test]
fn a_taint_patch_for_a_node_as_it_was_seen_fails_once_anything_was_written() {
    let (present, ours) = ([taint("a", "", "NoSchedule")], taint("ours", "", "NoSchedule"));
    let exact = add_taint(NodePrecondition { version: Some("7"), ..NODE }, &present, &ours).unwrap();
    let any = add_taint(NODE, &present, &ours).unwrap();
    let mut written = node(&present);
    written["metadata"]["resourceVersion"] = json!("8");
    assert!(patched(node(&present), &exact).is_ok());
    assert!(patched(written.clone(), &exact).is_err());
    assert!(patched(written, &any).is_ok());
}

#[test]
fn the_first_taint_tests_that_there_is_no_list() {
    let node = NodePrecondition { uid: "uid-1", boot_id: None, version: None };
    assert_eq!(
        text(add_taint(node, &[], &taint("ours", "", "NoSchedule"))),
        json!([
            { "op": "test", "path": "/metadata/uid", "value": "uid-1" },
            { "op": "test", "path": "/spec/taints", "value": null },
            { "op": "add", "path": "/spec/taints", "value": [{ "key": "ours", "effect": "NoSchedule" }] },
        ])
    );
}

#[test]
fn a_taint_that_is_there_or_not_there_needs_no_patch() {
    let present = [taint("ours", "v", "NoSchedule")];
    assert_eq!(add_taint(NODE, &present, &taint("ours", "v", "NoSchedule")), None);
    assert_eq!(remove_taint(NODE, &present, "ours", "NoExecute"), None);
    assert_eq!(remove_taint(NODE, &present, "other", "NoSchedule"), None);
}

#[test]
fn another_value_of_a_taint_is_replaced_not_doubled() {
    let present = [taint("ours", "old", "NoSchedule")];
    let patch = add_taint(NODE, &present, &taint("ours", "new", "NoSchedule")).unwrap();
    assert_eq!(patched(node(&present), &patch).unwrap(), node(&[taint("ours", "new", "NoSchedule")]));
}

#[test]
fn a_finalizer_is_added_and_removed_beside_others() {
    let with = |finalizers: Value| json!({ "metadata": { "uid": "u", "finalizers": finalizers } });
    let before = meta(json!({ "uid": "u", "finalizers": ["other"] }));
    let added = patched(with(json!(["other"])), &add_finalizer(&before, "bulkhead.dev/x").unwrap()).unwrap();
    assert_eq!(added, with(json!(["other", "bulkhead.dev/x"])));
    let after = meta(added["metadata"].clone());
    assert_eq!(add_finalizer(&after, "bulkhead.dev/x"), None);
    let removed = patched(added, &remove_finalizer(&after, "bulkhead.dev/x").unwrap()).unwrap();
    assert_eq!(removed, with(json!(["other"])));
    assert_eq!(remove_finalizer(&before, "bulkhead.dev/x"), None);
    // Somebody else's finalizer came or went meanwhile: read again.
    assert!(patched(with(json!(["x", "y"])), &remove_finalizer(&after, "bulkhead.dev/x").unwrap()).is_err());
}

#[test]
fn label_keys_are_escaped() {
    let object = meta(json!({ "uid": "u", "resourceVersion": "7", "labels": { "a~b/c": "old" } }));
    let labelled = |key, value| Edit::of(&object).label(key, value).patch();
    assert_eq!(
        text(labelled("a~b/c", Some("new"))),
        json!([
            { "op": "test", "path": "/metadata/uid", "value": "u" },
            { "op": "test", "path": "/metadata/resourceVersion", "value": "7" },
            { "op": "add", "path": "/metadata/labels/a~0b~1c", "value": "new" },
        ])
    );
    let document = |labels: Value| json!({ "metadata": { "uid": "u", "resourceVersion": "7", "labels": labels } });
    let set = patched(document(json!({ "a~b/c": "old" })), &labelled("a~b/c", Some("new")).unwrap());
    assert_eq!(set.unwrap(), document(json!({ "a~b/c": "new" })));
    let removed = patched(document(json!({ "a~b/c": "old" })), &labelled("a~b/c", None).unwrap());
    assert_eq!(removed.unwrap(), document(json!({})));
    assert_eq!(labelled("a~b/c", Some("old")), None);
    assert_eq!(labelled("absent", None), None);
}

/// Labels, annotations and finalizers are there or not; the changes are made together, on the version that was seen.
#[test]
fn an_edit_makes_all_its_changes_or_none() {
    let bare = json!({ "metadata": { "uid": "u", "resourceVersion": "7" }, "spec": {} });
    let edit = |document: &Value, wanted: Option<&str>| {
        let meta = meta(document["metadata"].clone());
        Edit::of(&meta)
            .label("bulkhead.dev/a", wanted)
            .label("bulkhead.dev/b", wanted)
            .annotation("bulkhead.dev/c", wanted)
            .finalizer("bulkhead.dev/d", wanted.is_some())
            .patch()
    };
    let added = edit(&bare, Some("x")).unwrap();
    let marked = patched(bare.clone(), &added).unwrap();
    assert_eq!(
        marked["metadata"],
        json!({
            "uid": "u", "resourceVersion": "7", "labels": { "bulkhead.dev/a": "x", "bulkhead.dev/b": "x" },
            "annotations": { "bulkhead.dev/c": "x" }, "finalizers": ["bulkhead.dev/d"],
        })
    );
    assert_eq!(edit(&marked, Some("x")), None);
    let cleared = patched(marked.clone(), &edit(&marked, None).unwrap()).unwrap();
    assert_eq!(cleared["metadata"]["labels"], json!({}));
    assert_eq!(edit(&cleared, None), None);
    let mut newer = bare.clone();
    newer["metadata"]["resourceVersion"] = json!("8");
    assert!(patched(newer, &added).is_err());
    // What others have written stays.
    let mut theirs = bare.clone();
    theirs["metadata"]["labels"] = json!({ "tier": "1" });
    theirs["metadata"]["finalizers"] = json!(["kubernetes.io/pv-protection"]);
    let both = patched(theirs.clone(), &edit(&theirs, Some("x")).unwrap()).unwrap();
    assert_eq!(both["metadata"]["labels"], json!({ "tier": "1", "bulkhead.dev/a": "x", "bulkhead.dev/b": "x" }));
    assert_eq!(both["metadata"]["finalizers"], json!(["kubernetes.io/pv-protection", "bulkhead.dev/d"]));
}

#[test]
fn an_edit_puts_and_takes_fields() {
    let meta = meta(json!({ "uid": "u", "resourceVersion": "7" }));
    let document = json!({ "metadata": { "uid": "u", "resourceVersion": "7" }, "spec": {} });
    let put = Edit::of(&meta).put(&["spec", "claimRef"], json!({ "name": "reserved" })).patch().unwrap();
    let reserved = patched(document.clone(), &put).unwrap();
    assert_eq!(reserved["spec"]["claimRef"]["name"], "reserved");
    let take = Edit::of(&meta).take(&["spec", "claimRef"]).patch().unwrap();
    assert_eq!(patched(reserved, &take).unwrap(), document);
}

/// Two that change the taints of one node all the time, each on what it saw last, which is often old.
#[test]
fn of_ten_thousand_edits_beside_another_writer_none_is_lost() {
    const EDITS: usize = 10_000;
    let keys = ["bulkhead.dev/fenced", "example.com/maintenance"];
    let taints = |document: &Value| -> Vec<Taint> {
        serde_json::from_value(document["spec"]["taints"].clone()).unwrap_or_default()
    };
    let mut server = node(&[taint("example.com/rack", "r1", "NoSchedule")]);
    let mut seen = [taints(&server), taints(&server)];
    let mut is_set = [false, false];
    let (mut edits, mut refused, mut random) = (0, 0, 1_u64);
    while edits < EDITS {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let writer = usize::from(random >> 63 == 1);
        let (key, present) = (keys[writer], &seen[writer]);
        let patch = match present.iter().any(|taint| taint.key == key) {
            true => remove_taint(NODE, present, key, "NoSchedule"),
            false => add_taint(NODE, present, &taint(key, &edits.to_string(), "NoSchedule")),
        };
        match patched(server.clone(), &patch.unwrap()) {
            Ok(changed) => {
                server = changed;
                is_set[writer] = !is_set[writer];
                edits += 1;
                // What was written it knows; what the other writes meanwhile it learns of when it is refused.
                seen[writer] = taints(&server);
            }
            Err(_) => {
                refused += 1;
                seen[writer] = taints(&server);
            }
        }
        let there = taints(&server);
        let has = |key: &str| there.iter().any(|taint| taint.key == key);
        assert_eq!([has(keys[0]), has(keys[1])], is_set, "after {edits} edits");
        assert!(has("example.com/rack") && there.len() <= 3, "after {edits} edits: {there:?}");
    }
    assert!(refused > EDITS / 10, "{refused} were refused: nobody was in anybody's way");
}
