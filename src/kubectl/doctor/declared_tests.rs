//! When a policy declares a dead node failed.

use serde_json::{Value, json};

use crate::controllers::testing::{now, policy};

use super::*;

/// What tells, the array after so many seconds.
fn tellers(heartbeats: bool, array: Option<f64>, fencer: bool) -> Tellers {
    Tellers { heartbeats, array: array.map(Duration::from_secs_f64), fencer }
}

/// Name, policy, who tells, and when it is declared by what.
type Case<'a> = (&'a str, Value, Tellers, Option<(f64, &'a str)>);

#[test]
fn a_node_is_declared_when_the_controller_does_it() {
    const LEASE: &str = "two renewals";
    const AGENTS: &str = "detection.agent.suspectAfter 3s";
    let (nobody, beats) = (Tellers::default(), tellers(true, None, false));
    let late = json!({ "detection": { "kubelet": { "decisiveAfter": "90s" } } });
    let taint = json!({ "detection": { "decisiveChannels": ["Taint"], "kubelet": { "decisiveAfter": "90s" } } });
    let none = json!({ "detection": { "decisiveChannels": [], "taints": [{ "key": "example.com/broken" }] } });
    let three = json!({ "detection": { "requiredChannels": 3 } });
    let patient = json!({ "detection": { "agent": { "suspectAfter": "30s" } } });
    let hasty = json!({ "detection": { "kubelet": { "suspectAfter": "15s" } } });
    let itself = |after: &str| {
        let kubelet = json!({ "decisiveAfter": "90s" });
        json!({ "detection": { "kubelet": kubelet }, "selfFencing": { "mode": "Enabled", "after": after } })
    };
    let cases: Vec<Case> = vec![
        ("by Kubernetes' word", json!({}), nobody, Some((55.0, GRACE_PERIOD))),
        ("which lasts as long as the policy says", late.clone(), nobody, Some((146.0, "decisiveAfter 90s"))),
        ("by its taint too", taint, nobody, Some((146.0, "decisiveAfter 90s"))),
        ("which is not enough everywhere", none.clone(), nobody, None),
        ("heartbeats alone wait for the Lease", json!({}), beats, Some((27.0, LEASE))),
        ("where nothing is decisive too", none.clone(), beats, Some((27.0, LEASE))),
        ("and for a patient policy", patient, beats, Some((31.6, "detection.agent.suspectAfter 30s"))),
        ("the array is a second sign", json!({}), tellers(true, Some(2.2), false), Some((4.6, AGENTS))),
        ("when it says so", json!({}), tellers(true, Some(12.0), false), Some((12.0, "detection.storage: period 15s"))),
        ("unless the Lease is sooner", json!({}), tellers(true, Some(49.5), false), Some((27.0, LEASE))),
        (
            "beside no heartbeats it is Kubernetes' word",
            json!({}),
            tellers(false, Some(2.2), false),
            Some((55.0, GRACE_PERIOD)),
        ),
        ("that it confirms", none.clone(), tellers(false, Some(70.0), false), Some((70.0, "lossThreshold 3"))),
        ("a fencer is a second sign", json!({}), tellers(true, None, true), Some((4.6, AGENTS))),
        ("and without heartbeats beside the Lease", json!({}), tellers(false, None, true), Some((30.0, LEASE))),
        ("sooner where it is suspected sooner", hasty, tellers(false, None, true), Some((27.0, LEASE))),
        ("self-fencing is waited for", itself("15s"), tellers(true, None, true), Some((21.0, "selfFencing.after 15s"))),
        ("where it is later than the Lease", itself("45s"), beats, Some((51.0, "selfFencing.after 45s"))),
        ("but not after Kubernetes' word", itself("60s"), beats, Some((55.0, GRACE_PERIOD))),
        ("nor without heartbeats", itself("15s"), nobody, Some((146.0, "decisiveAfter 90s"))),
        ("three channels want the Lease too", three.clone(), tellers(true, Some(2.2), false), Some((27.0, LEASE))),
        ("or Kubernetes, which decides alone", three, beats, Some((55.0, GRACE_PERIOD))),
    ];
    for (name, spec, tellers, wanted) in cases {
        let found = declared(&policy("db", &spec), tellers, now());
        let seconds = found.as_ref().map(|it| it.after.as_secs_f64());
        assert_eq!(seconds, wanted.map(|(seconds, _)| seconds), "{name}: {found:?}");
        let (by, wanted) = (found.map(|it| it.by).unwrap_or_default(), wanted.map_or("", |(_, by)| by));
        assert!(by.contains(wanted), "{name}: {by} instead of {wanted}");
    }
}
