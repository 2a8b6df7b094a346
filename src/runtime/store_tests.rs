use super::*;
use crate::runtime::places::Places;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ObjectMeta;

fn object(name: &str, version: &str, node: &str) -> ConfigMap {
    let meta = ObjectMeta {
        namespace: Some("ns".into()),
        name: Some(name.into()),
        uid: Some(format!("uid-{name}")),
        resource_version: Some(version.into()),
        labels: Some([("node".to_owned(), node.to_owned())].into()),
        ..Default::default()
    };
    ConfigMap { metadata: meta, ..Default::default() }
}

fn store() -> Store<ConfigMap> {
    Store::new_detached(vec![("node", |object: &ConfigMap| {
        object.metadata.labels.iter().flatten().map(|(_, node)| node.clone()).collect()
    })])
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::namespaced("ns", name)
}

/// Short form of all changes that are waiting.
fn drain(changes: &mut mpsc::UnboundedReceiver<Change<ConfigMap>>) -> Vec<String> {
    let version = |object: &Option<Arc<ConfigMap>>| {
        object.as_ref().map_or("-".to_owned(), |it| it.metadata.resource_version.clone().unwrap())
    };
    let mut seen = Vec::new();
    while let Ok(change) = changes.try_recv() {
        seen.push(format!("{} {}>{}", change.key, version(&change.old), version(&change.new)));
    }
    seen.sort();
    seen
}

#[test]
fn an_index_follows_an_object_that_moves_and_goes() {
    let store = store();
    store.insert(object("a", "1", "n1"));
    store.insert(object("a", "2", "n2"));
    assert!(store.by_index("node", "n1").is_empty());
    assert_eq!(store.by_index("node", "n2").len(), 1);
    store.remove(&key("a"));
    assert!(store.by_index("node", "n2").is_empty() && store.is_empty());
    assert!(store.read().indexes.iter().all(Places::is_empty), "empty values must not pile up");
}

#[test]
fn a_change_says_whether_what_counts_is_another() {
    let of = |old: Option<ConfigMap>, new: Option<ConfigMap>| Change {
        key: key("a"),
        old: old.map(Arc::new),
        new: new.map(Arc::new),
    };
    let at = |node: &str, version: &str| Some(object("a", version, node));
    for (change, sides, differs) in [
        (of(None, at("n1", "1")), 1, true),
        (of(at("n1", "1"), None), 1, true),
        (of(at("n1", "1"), at("n2", "2")), 2, true),
        (of(at("n1", "1"), at("n1", "2")), 2, false),
    ] {
        assert_eq!(change.both().count(), sides, "{change:?}");
        assert_eq!(change.differs(|it| &it.metadata.labels), differs, "{change:?}");
    }
}

#[test]
fn a_packed_object_is_found_changed_and_forgotten_like_any_other() {
    let store = Store::with(
        vec![("node", |object: &ConfigMap| {
            object.metadata.labels.iter().flatten().map(|(_, node)| node.clone()).collect()
        })],
        Packer::json(),
    );
    // More than what is left as it is.
    for number in 0..200 {
        store.insert(object(&format!("o{number:03}"), "1", "n1"));
    }
    let mut changes = store.subscribe();
    assert_eq!(drain(&mut changes).len(), 200);
    store.insert(object("o150", "1", "n1"));
    store.insert(object("o150", "2", "n2"));
    store.remove(&key("o151"));
    assert_eq!(drain(&mut changes), ["ns/o150 1>2", "ns/o151 1>-"]);
    assert_eq!(store.get(&key("o150")).as_deref(), Some(&object("o150", "2", "n2")));
    assert_eq!((store.get(&key("o151")), store.len()), (None, 199));
    let names: Vec<_> = store.by_index("node", "n1").iter().map(|it| it.metadata.name.clone().unwrap()).collect();
    assert_eq!((names.len(), names.is_sorted()), (198, true));
    store.list_begins();
    store.list_done();
    assert!(store.is_empty() && store.list().is_empty() && store.read().keys.is_empty());
}

#[tokio::test]
async fn all_are_gone_through_part_by_part() {
    for count in [0, 1, PART - 1, PART, PART + 1, 3 * PART] {
        let store = store();
        (0..count).for_each(|number| store.insert(object(&format!("o{number}"), "1", "n1")));
        store.remove(&key("o0"));
        let mut names = std::collections::BTreeSet::new();
        let looked = store.each(|object| {
            // Who looks may ask the store.
            assert!(store.get(&ObjectKey::from(object.as_ref())).is_some());
            assert!(names.insert(object.metadata.name.clone()), "each once");
        });
        looked.await;
        assert_eq!((names.len(), store.len()), (count.saturating_sub(1), count.saturating_sub(1)));
    }
}

#[test]
fn who_listens_from_now_on_hears_nothing_of_what_is_there() {
    let store = store();
    store.insert(object("a", "1", "n1"));
    let mut changes = store.changes_from_now();
    assert!(drain(&mut changes).is_empty());
    store.insert(object("a", "2", "n1"));
    store.insert(object("b", "1", "n1"));
    assert_eq!(drain(&mut changes), ["ns/a 1>2", "ns/b ->1"]);
}

#[test]
fn the_count_of_changes_stays_while_nothing_changes() {
    let store = store();
    store.insert(object("a", "1", "n1"));
    let before = store.changes();
    store.insert(object("a", "1", "n1"));
    store.remove(&key("b"));
    assert_eq!(store.changes(), before);
    store.insert(object("a", "2", "n1"));
    assert_eq!(store.changes(), before + 1);
}

#[test]
fn deletes_and_updates_reach_the_subscriber_with_old_and_new() {
    let store = store();
    let mut changes = store.subscribe();
    store.insert(object("a", "1", "n1"));
    store.insert(object("a", "2", "n1"));
    store.insert(object("a", "2", "n1"));
    store.remove(&key("a"));
    assert_eq!(drain(&mut changes), ["ns/a ->1", "ns/a 1>2", "ns/a 2>-"]);
}

#[test]
fn what_a_relist_no_longer_holds_is_delivered_as_deleted() {
    let store = store();
    store.list_begins();
    store.insert(object("stays", "1", "n1"));
    store.insert(object("vanishes", "1", "n1"));
    store.list_done();
    let mut changes = store.subscribe();
    drain(&mut changes);

    store.list_begins();
    store.insert(object("stays", "1", "n1"));
    assert!(drain(&mut changes).is_empty(), "an unchanged object is no change");
    store.list_done();
    assert_eq!(drain(&mut changes), ["ns/vanishes 1>-"]);
    assert_eq!(store.relists(), 2);
}

#[test]
fn a_list_that_starts_over_forgets_only_what_the_last_one_misses() {
    let store = store();
    store.list_begins();
    store.insert(object("a", "1", "n1"));
    store.list_begins();
    store.insert(object("b", "1", "n1"));
    store.list_done();
    assert_eq!(store.get(&key("a")), None);
    assert!(store.get(&key("b")).is_some());
}

#[test]
fn an_object_that_cannot_be_read_is_not_a_deleted_one() {
    let store = store();
    store.insert(object("a", "1", "n1"));
    store.list_begins();
    store.keep(&key("a"));
    store.list_done();
    assert!(store.get(&key("a")).is_some());
}

#[test]
fn a_late_subscriber_gets_what_is_there_first() {
    let store = store();
    store.insert(object("a", "1", "n1"));
    let mut changes = store.subscribe();
    store.insert(object("b", "1", "n1"));
    assert_eq!(drain(&mut changes), ["ns/a ->1", "ns/b ->1"]);
}

#[test]
fn a_subscriber_that_left_is_forgotten() {
    let store = store();
    drop(store.subscribe());
    store.insert(object("a", "1", "n1"));
    assert!(store.read().subscribers.is_empty());
}

#[tokio::test]
async fn synced_only_after_the_first_complete_list() {
    let store = store();
    store.list_begins();
    store.insert(object("a", "1", "n1"));
    assert!(!store.synced());
    let waiting = tokio::spawn({
        let store = store.clone();
        async move { store.wait_synced().await }
    });
    store.list_done();
    waiting.await.unwrap();
}
