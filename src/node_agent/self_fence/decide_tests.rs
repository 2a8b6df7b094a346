use serde_json::{Value, json};

use super::*;

fn policy(name: &str, spec: &Value) -> Arc<ResiliencyPolicy> {
    let mut whole = json!({
        "mode": "Enforce", "selector": { "podSelector": { "matchLabels": { "app": "db" } } },
        "selfFencing": { "mode": "Enabled" },
    });
    if let (Value::Object(whole), Value::Object(spec)) = (&mut whole, spec.clone()) {
        whole.extend(spec);
    }
    let policy = json!({
        "apiVersion": "bulkhead.dev/v1alpha1", "kind": "ResiliencyPolicy", "metadata": { "name": name }, "spec": whole,
    });
    Arc::new(serde_json::from_value(policy).unwrap())
}

fn pod(uid: &str, app: &str) -> Value {
    json!({
        "metadata": { "uid": uid, "namespace": "shop", "name": uid, "labels": { "app": app },
                      "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "s", "uid": "s", "controller": true }] },
        "status": { "phase": "Running" },
    })
}

fn pods(pods: &[Value]) -> Vec<Arc<Pod>> {
    pods.iter().map(|pod| Arc::new(serde_json::from_value(pod.clone()).unwrap())).collect()
}

fn volume(pod: &str, volume: &str) -> PodVolume {
    PodVolume { pod: pod.into(), volume: volume.into(), driver: "csi.example.com".into() }
}

fn stopped(policies: &[Arc<ResiliencyPolicy>], pods: Vec<Arc<Pod>>) -> Vec<(String, u64)> {
    let namespaces = BTreeMap::from([("shop".to_owned(), BTreeMap::from([("tier".to_owned(), "1".to_owned())]))]);
    let known = Known { policies: policies.to_vec(), pods, namespaces };
    let found = protected(&known, &[volume("db", "pvc-1"), volume("other", "pvc-1"), volume("set", "pvc-1")]);
    found.into_iter().map(|pod| (pod.uid, pod.after.as_secs())).collect()
}

/// What is played, the policies, and who is protected after how many seconds.
type Case<'a> = (&'a str, Vec<Value>, &'a [(&'a str, u64)]);

#[test]
fn whom_policies_protect() {
    let on = |after: &str| json!({ "selfFencing": { "mode": "Enabled", "after": after } });
    let off = json!({ "selfFencing": { "mode": "Disabled" } });
    let cases: [Case; 13] = [
        ("no policy", vec![], &[]),
        ("the default deadline", vec![json!({})], &[("db", 15)]),
        ("disabled", vec![off.clone()], &[]),
        ("of several the first deadline", vec![on("18s"), on("5s"), off], &[("db", 5)]),
        ("a rehearsal stops nobody", vec![json!({ "mode": "DryRun" })], &[]),
        ("nor does it where another policy acts", vec![json!({}), json!({ "mode": "DryRun", "selfFencing": {} })], &[]),
        ("nobody could approve it", vec![json!({ "mode": "RequireApproval" })], &[("db", 15)]),
        ("what stays anyway", vec![json!({ "triggers": { "nodeFailure": "Ignore" } })], &[]),
        (
            "its driver",
            vec![json!({ "selector": { "podSelector": {}, "drivers": ["csi.example.com"] } })],
            &[("db", 15), ("other", 15)],
        ),
        ("another driver", vec![json!({ "selector": { "podSelector": {}, "drivers": ["other.example.com"] } })], &[]),
        (
            "its namespace",
            vec![json!({ "selector": { "namespaceSelector": { "matchLabels": { "tier": "1" } } } })],
            &[("db", 15), ("other", 15)],
        ),
        (
            "another namespace",
            vec![json!({ "selector": { "namespaceSelector": { "matchLabels": { "tier": "2" } } } })],
            &[],
        ),
        ("who shares its volume", vec![json!({ "sharers": "CleanAll" })], &[("db", 15), ("other", 15)]),
    ];
    for (name, specs, expected) in cases {
        let policies: Vec<_> =
            specs.iter().enumerate().map(|(number, spec)| policy(&number.to_string(), spec)).collect();
        let mut set = pod("set", "db");
        set["metadata"]["ownerReferences"][0]["kind"] = json!("DaemonSet");
        let mut done = pod("done", "db");
        done["status"]["phase"] = json!("Succeeded");
        let all = pods(&[pod("db", "db"), pod("other", "web"), pod("empty", "db"), set, done]);
        let expected: Vec<_> = expected.iter().map(|(uid, after)| ((*uid).to_owned(), *after)).collect();
        assert_eq!(stopped(&policies, all), expected, "{name}");
    }
    let mut bare = pod("db", "db");
    bare["metadata"]["ownerReferences"] = json!([]);
    let alone = |spec: Value| stopped(&[policy("p", &spec)], pods(std::slice::from_ref(&bare)));
    assert_eq!(alone(json!({})), [], "nothing makes a bare pod anew");
    assert_eq!(alone(json!({ "release": { "barePods": "Delete" } })), [("db".to_owned(), 15)]);
    let mut paused = ResiliencyPolicy::clone(&policy("p", &json!({})));
    paused.metadata.annotations = Some([(names::PAUSED_ANNOTATION.to_owned(), "why".to_owned())].into());
    assert_eq!(stopped(&[Arc::new(paused)], pods(&[pod("db", "db")])), []);
}

#[test]
fn whose_time_has_come() {
    let of = |uid: &str, after| Protected {
        uid: uid.into(),
        namespace: "n".into(),
        name: uid.into(),
        after: Duration::from_secs(after),
    };
    let all = [of("a", 5), of("b", 15)];
    let due = |alone: Option<u64>| {
        due(&all, alone.map(Duration::from_secs)).into_iter().map(|pod| pod.uid).collect::<Vec<_>>()
    };
    assert_eq!(due(None), [] as [&str; 0]);
    assert_eq!(due(Some(4)), [] as [&str; 0]);
    assert_eq!(due(Some(5)), ["a"]);
    assert_eq!(due(Some(15)), ["a", "b"]);
}

#[test]
fn covers_of_which_nothing_is_written_down() {
    let set = |uids: &[&str]| uids.iter().map(|uid| (*uid).to_owned()).collect::<BTreeSet<_>>();
    let found = unrecorded(&set(&["a", "b"]), &set(&["b", "c"]));
    assert_eq!(found.iter().map(|pod| pod.uid.as_str()).collect::<Vec<_>>(), ["a"]);
}

#[test]
fn who_gets_its_access_back() {
    let bound = |change: fn(&mut Value)| {
        let mut pod = pod("db", "db");
        change(&mut pod);
        vec![serde_json::from_value::<Pod>(pod).unwrap()]
    };
    let fence = |is_active: bool| {
        let labels = if is_active { json!({ names::ACTIVE_LABEL: "true" }) } else { json!({}) };
        serde_json::from_value::<NodeFence>(json!({
            "apiVersion": "bulkhead.dev/v1alpha1", "kind": "NodeFence", "metadata": { "name": "n", "labels": labels },
            "spec": { "episode": 1, "node": { "uid": "u" }, "policies": [],
                      "plan": { "decidedAt": "2026-11-21T02:39:00Z", "digest": "sha256:0", "evidence": [], "pods": [], "volumes": [] } },
        }))
        .unwrap()
    };
    let (active, over) = (fence(true), fence(false));
    let well = bound(|_| {});
    for (name, pods, fence, expected) in [
        ("as before", &well, None, Fate::GetsItBack),
        ("an incident that is over", &well, Some(&over), Fate::GetsItBack),
        ("an incident", &well, Some(&active), Fate::Waits),
        ("released", &vec![], Some(&active), Fate::Gone),
        ("moved without us", &vec![], None, Fate::Gone),
        ("another of its name", &bound(|pod| pod["metadata"]["uid"] = json!("later")), None, Fate::Gone),
        (
            "it ends",
            &bound(|pod| pod["metadata"]["deletionTimestamp"] = json!("2026-11-21T02:39:00Z")),
            None,
            Fate::Gone,
        ),
        ("it has ended", &bound(|pod| pod["status"]["phase"] = json!("Failed")), None, Fate::HasEnded),
        (
            "it has ended, and goes",
            &bound(|pod| {
                pod["status"]["phase"] = json!("Succeeded");
                pod["metadata"]["deletionTimestamp"] = json!("2026-11-21T02:39:00Z");
            }),
            None,
            Fate::Gone,
        ),
    ] {
        assert_eq!(fate("db", pods, fence), expected, "{name}");
    }
}
