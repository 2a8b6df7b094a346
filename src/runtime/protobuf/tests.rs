use std::sync::atomic::AtomicUsize;

use serde_json::{Value, json};

use super::*;

/// A message of these fields, each of bytes.
fn message(fields: &[(u32, &[u8])]) -> Vec<u8> {
    let mut written = Vec::new();
    for (number, bytes) in fields {
        prost::encoding::bytes::encode(*number, &bytes.to_vec(), &mut written);
    }
    written
}

fn envelope(version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let unknown = message(&[(1, &message(&[(1, version.as_bytes()), (2, kind.as_bytes())])), (2, raw)]);
    [MAGIC, &unknown].concat()
}

fn named(name: &str) -> Vec<u8> {
    message(&[(1, &message(&[(1, name.as_bytes())]))])
}

static OF_NAMES: Message = Message::of(&[field(1, "metadata", Kind::Object(&NAME))]);
static NAME: Message = Message::of(&[field(1, "name", Kind::Text)]);

/// A server that answers so whoever takes protobuf, and with the JSON whoever does not; and how often it was asked for each.
fn server(form: &'static str, body: Vec<Vec<u8>>) -> (Client, Arc<[AtomicUsize; 2]>) {
    let asked = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let count = asked.clone();
    let service = tower::service_fn(move |request: Request<client::Body>| {
        let takes = request.headers().get(ACCEPT) == Some(&WANTED);
        count[usize::from(takes)].fetch_add(1, Ordering::Relaxed);
        let parts = if takes { body.clone() } else { vec![b"{\"as\":\"JSON\"}".to_vec()] };
        let parts = futures::stream::iter(parts.into_iter().map(std::io::Result::Ok));
        let form = if takes { form } else { "application/json" };
        let response = Response::builder().header(CONTENT_TYPE, form).body(Body::from_stream(parts));
        async move { response }
    });
    (Client::new(service, "default"), asked)
}

/// What comes of asking once more by the same [`Protobuf`].
async fn answered(protobuf: &Protobuf, server: &Client) -> std::io::Result<String> {
    let request =
        Request::get("/api/v1/pods?&watch=true").body(client::Body::empty()).map_err(std::io::Error::other)?;
    answer_to(protobuf, server, request).await
}

async fn answer_to(protobuf: &Protobuf, server: &Client, request: Request<client::Body>) -> std::io::Result<String> {
    let response = protobuf.send(server, request).await.map_err(std::io::Error::other)?;
    let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.map_err(std::io::Error::other)?;
    String::from_utf8(bytes.to_vec()).map_err(std::io::Error::other)
}

async fn listed(protobuf: &Protobuf, server: &Client) -> std::io::Result<String> {
    answer_to(protobuf, server, Request::new(client::Body::empty())).await
}

fn counts(asked: &[AtomicUsize; 2]) -> (usize, usize) {
    (asked[1].load(Ordering::Relaxed), asked[0].load(Ordering::Relaxed))
}

const WATCH: &str = "application/vnd.kubernetes.protobuf;stream=watch";

fn frame(type_: &str, object: &[u8]) -> Vec<u8> {
    let event = message(&[(1, type_.as_bytes()), (2, &message(&[(1, object)]))]);
    let length = u32::try_from(event.len()).unwrap_or_default();
    [&length.to_be_bytes()[..], &event].concat()
}

#[tokio::test]
async fn events_become_lines_wherever_the_bytes_are_parted() {
    let status = message(&[(2, b"Failure"), (3, b"too old"), (4, b"Expired")]);
    let mut code = Vec::new();
    prost::encoding::int32::encode(6, &410, &mut code);
    let bytes = [
        frame("ADDED", &envelope("v1", "Pod", &named("a"))),
        frame("ERROR", &envelope("v1", "Status", &[status, code].concat())),
    ]
    .concat();
    let expected = [
        json!({ "type": "ADDED", "object": { "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "a" } } }),
        json!({ "type": "ERROR", "object": {
            "apiVersion": "v1", "kind": "Status", "status": "Failure", "message": "too old", "reason": "Expired", "code": 410,
        } }),
    ];
    for size in [1, 7, bytes.len()] {
        let (server, asked) = server(WATCH, bytes.chunks(size).map(<[u8]>::to_vec).collect());
        let text = answered(&Protobuf::new(&OF_NAMES, None), &server).await.unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((lines, counts(&asked)), (expected.to_vec(), (1, 0)), "parts of {size} bytes");
    }
}

#[tokio::test]
async fn a_list_keeps_where_it_goes_on() {
    let meta = message(&[(2, b"7"), (3, b"token")]);
    let raw = message(&[(1, &meta), (2, &named("a")), (2, &named("b"))]);
    let (server, _) = server(PROTOBUF, vec![envelope("v1", "PodList", &raw)]);
    let text = listed(&Protobuf::new(&OF_NAMES, None), &server).await.unwrap();
    let expected = json!({
        "apiVersion": "v1", "kind": "PodList", "metadata": { "resourceVersion": "7", "continue": "token" },
        "items": [{ "metadata": { "name": "a" } }, { "metadata": { "name": "b" } }],
    });
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expected);
}

/// An object with a note and a part, which is of gold, of tin or of what no table has.
static OF_PARTS: Message =
    Message::of(&[field(1, "metadata", Kind::Object(&NOTED)), field(2, "parts", Kind::Objects(&PART))]);
static NOTED: Message = Message::of(&[field(1, "name", Kind::Text), field(12, "note", Kind::Text)]);
static PART: Message = Message::telling_unknown(&[field(1, "gold", Kind::Presence), field(2, "tin", Kind::Presence)]);
const NOT_ONLY_TIN: Sieve = Sieve { path: &["parts"], wanted: |part| part != "tin" };

fn with_part(number: u32) -> Vec<u8> {
    message(&[(1, &message(&[(1, b"a"), (6, b"7"), (12, b"n")])), (2, &message(&[(number, b"")]))])
}

#[tokio::test]
async fn of_an_object_that_does_not_pass_the_sieve_only_the_name_is_told() {
    let (tin, gold, unknown) = (with_part(2), with_part(1), with_part(3));
    let name = json!({ "name": "a", "resourceVersion": "7" });
    let full = |part: &str| json!({ "metadata": { "name": "a", "note": "n" }, "parts": [{ part: {} }] });
    let expected = [json!({ "metadata": name }), full("gold"), full("field 3")];

    let raw = message(&[(2, &tin), (2, &gold), (2, &unknown)]);
    let (listing, _) = server(PROTOBUF, vec![envelope("v1", "PodList", &raw)]);
    let text = listed(&Protobuf::new(&OF_PARTS, Some(NOT_ONLY_TIN)), &listing).await.unwrap();
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["items"], json!(expected));

    let noted = message(&[(1, &message(&[(12, b"the end of the list")]))]);
    let events = [("ADDED", &tin), ("MODIFIED", &gold), ("DELETED", &unknown), ("BOOKMARK", &noted)];
    let frames = events.map(|(type_, object)| frame(type_, &envelope("v1", "Pod", object))).concat();
    let (watching, _) = server(WATCH, vec![frames]);
    let text = answered(&Protobuf::new(&OF_PARTS, Some(NOT_ONLY_TIN)), &watching).await.unwrap();
    let objects = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["object"].clone());
    let watched: Vec<_> = objects.map(|object| (object["metadata"].clone(), object.get("parts").cloned())).collect();
    let mut expected = expected.map(|object| (object["metadata"].clone(), object.get("parts").cloned())).to_vec();
    expected.push((json!({ "note": "the end of the list" }), None));
    assert_eq!(watched, expected);
}

#[tokio::test]
async fn what_is_not_protobuf_is_handed_on_as_it_is() {
    let (server, asked) = server("application/json", vec![b"{\"kind\":\"Status\"}".to_vec()]);
    let protobuf = Protobuf::new(&OF_NAMES, None);
    for times in 1..3 {
        assert_eq!(answered(&protobuf, &server).await.unwrap(), "{\"kind\":\"Status\"}");
        assert_eq!(counts(&asked), (times, 0));
    }
}

/// Else it would be asked for again and again, and nothing would ever be known of the kind.
#[tokio::test]
async fn after_a_watch_that_cannot_be_read_json_is_asked_for() {
    for body in [frame("ADDED", b"no envelope"), frame("ADDED", &envelope("v1", "Pod", &[0x0a, 0x05])), vec![0xff; 8]] {
        let (server, asked) = server(WATCH, vec![body]);
        let protobuf = Protobuf::new(&OF_NAMES, None);
        assert!(answered(&protobuf, &server).await.is_err());
        for times in 1..3 {
            assert_eq!(answered(&protobuf, &server).await.unwrap(), "{\"as\":\"JSON\"}");
            assert_eq!(counts(&asked), (1, times));
        }
    }
}

/// Before something is released a node is read: that must not fail for this.
#[tokio::test]
async fn an_answer_that_cannot_be_read_is_asked_for_in_json_at_once() {
    let (server, asked) = server(PROTOBUF, vec![b"no envelope".to_vec()]);
    assert_eq!(listed(&Protobuf::new(&OF_NAMES, None), &server).await.unwrap(), "{\"as\":\"JSON\"}");
    assert_eq!(counts(&asked), (1, 1));
}

/// The connection ended within an event: that is no reason to ask otherwise.
#[tokio::test]
async fn what_is_cut_off_is_an_error_of_the_connection() {
    let mut event = frame("ADDED", &envelope("v1", "Pod", &named("a")));
    event.truncate(event.len() - 1);
    let (server, asked) = server(WATCH, vec![event]);
    let protobuf = Protobuf::new(&OF_NAMES, None);
    for times in 1..3 {
        assert!(answered(&protobuf, &server).await.is_err());
        assert_eq!(counts(&asked), (times, 0));
    }
}

#[tokio::test]
async fn what_writes_is_sent_as_it_is() {
    let (server, asked) = server(PROTOBUF, Vec::new());
    let request = Request::patch("/").body(client::Body::empty()).unwrap();
    Protobuf::new(&OF_NAMES, None).send(&server, request).await.unwrap();
    assert_eq!(counts(&asked), (0, 1));
}
