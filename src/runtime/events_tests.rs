use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio::time::sleep;

use super::*;
use crate::runtime::{
    fake_api::{self, ok, refuse, silence},
    leader::tests::Switch,
};

/// Events over a fake API, the bodies it got, and the metrics.
fn events(leadership: Leadership) -> (Events, Arc<Mutex<Vec<Value>>>, Telemetry) {
    let (bodies, telemetry) = (Arc::new(Mutex::new(Vec::new())), Telemetry::new());
    let client = fake_api::client({
        let bodies = bodies.clone();
        move |call| {
            bodies.lock().unwrap().push(call.body.clone());
            ok(call.body)
        }
    });
    let events = Events::spawn(client, "bulkhead", "pod-0", leadership, &telemetry, CancellationToken::new());
    (events, bodies, telemetry)
}

fn about(uid: &str) -> ObjectReference {
    ObjectReference { kind: Some("Node".into()), name: Some("n1".into()), uid: Some(uid.into()), ..Default::default() }
}

fn publish(events: &Events, uid: &str, note: &str) {
    events.publish(about(uid), EventType::Warning, "Held", "Decide", note.to_owned());
}

fn count(telemetry: &Telemetry, result: &str) -> usize {
    let text = telemetry.encode().unwrap();
    let start = format!("bulkhead_events_total{{result=\"{result}\"}} ");
    text.lines().find_map(|line| line.strip_prefix(&start)).map_or(0, |count| count.parse().unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_repetition_is_dropped_but_another_note_is_news() {
    let (events, bodies, telemetry) = events(Leadership::always());
    for note in ["first", "first", "second"] {
        publish(&events, "u1", note);
    }
    sleep(Duration::from_secs(1)).await;
    let notes: Vec<_> = bodies.lock().unwrap().iter().map(|it| it["note"].as_str().unwrap().to_owned()).collect();
    assert_eq!(notes, ["first", "second"]);
    assert_eq!((count(&telemetry, "Published"), count(&telemetry, "DroppedRepeated")), (2, 1));
    let body = bodies.lock().unwrap()[0].clone();
    assert_eq!(
        (&body["reason"], &body["type"], &body["reportingInstance"]),
        (&"Held".into(), &"Warning".into(), &"pod-0".into())
    );

    sleep(REPEAT).await;
    publish(&events, "u1", "first");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(count(&telemetry, "Published"), 3, "after a while it may be said again");
}

#[tokio::test(start_paused = true)]
async fn one_object_cannot_flood_and_does_not_silence_others() {
    let (events, _, telemetry) = events(Leadership::always());
    for number in 0..40 {
        publish(&events, "noisy", &number.to_string());
    }
    publish(&events, "quiet", "once");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(
        (count(&telemetry, "Published"), count(&telemetry, "DroppedRate")),
        (BURST as usize + 1, 40 - BURST as usize)
    );
    sleep(REFILL).await;
    publish(&events, "noisy", "later");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(count(&telemetry, "Published"), BURST as usize + 2);
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_drops_and_counts_and_never_waits() {
    let telemetry = Telemetry::new();
    let client = fake_api::client(|_| silence());
    let events = Events::spawn(client, "b", "p", Leadership::always(), &telemetry, CancellationToken::new());
    for number in 0..QUEUE + 10 {
        publish(&events, &number.to_string(), "x");
    }
    assert_eq!(count(&telemetry, "DroppedFull"), 10);
}

#[tokio::test(start_paused = true)]
async fn followers_send_none_and_a_refused_one_is_counted() {
    let (_switch, leadership) = Switch::new();
    let (events, bodies, telemetry) = events(leadership);
    publish(&events, "u1", "x");
    sleep(Duration::from_secs(1)).await;
    assert!(bodies.lock().unwrap().is_empty());
    assert_eq!(count(&telemetry, "DroppedNotLeader"), 1);

    let client = fake_api::client(|_| refuse(403, "Forbidden"));
    let events = Events::spawn(client, "b", "p", Leadership::always(), &telemetry, CancellationToken::new());
    publish(&events, "u1", "x");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(count(&telemetry, "Failed"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_slow_moment_of_the_server_loses_no_event() {
    // What the server answers first, how often it is asked, and what is counted.
    for (bad, code, posts, result) in [
        (2, 503, 3, "Published"),
        (3, 429, 4, "Published"),
        (9, 500, 4, "Failed"),
        (1, 0, 2, "Published"),
        (1, 403, 1, "Failed"),
    ] {
        let (seen, telemetry) = (Arc::new(Mutex::new(0)), Telemetry::new());
        let client = fake_api::client({
            let seen = seen.clone();
            move |call| {
                let mut seen = seen.lock().unwrap();
                *seen += 1;
                match code {
                    _ if *seen > bad => ok(call.body),
                    0 => silence(),
                    code => refuse(code, "Because"),
                }
            }
        });
        let events = Events::spawn(client, "b", "p", Leadership::always(), &telemetry, CancellationToken::new());
        publish(&events, "u1", "told once");
        sleep(Duration::from_secs(60)).await;
        assert_eq!((*seen.lock().unwrap(), count(&telemetry, result)), (posts, 1), "{code}");
    }
}

#[test]
fn a_long_note_is_cut_between_characters() {
    let note = shortened("é".repeat(600));
    assert!(note.len() <= NOTE_MAX && note.ends_with('…'), "{}", note.len());
    assert_eq!(shortened("short".into()), "short");
}

#[test]
fn memory_of_what_was_sent_is_bounded_by_time() {
    let mut filter = Filter::default();
    let now = Instant::now();
    for number in 0..100 {
        let event = Pending {
            regarding: about(&number.to_string()),
            kind: EventType::Normal,
            reason: "R",
            action: "A",
            note: String::new(),
        };
        filter.admit(&event, now).unwrap();
    }
    filter.forget_old(now + REFILL.mul_f64(BURST));
    assert!(filter.sent.is_empty() && filter.budget.is_empty());
}
