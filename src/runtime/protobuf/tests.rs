use futures::StreamExt as _;
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

async fn answered(protobuf: &Protobuf, form: &'static str, body: Vec<Vec<u8>>) -> std::io::Result<String> {
    let parts = body.into_iter().map(std::io::Result::Ok);
    let response = Response::builder().header(CONTENT_TYPE, form).body(Body::from_stream(futures::stream::iter(parts)));
    let mut text = Vec::new();
    let mut read = protobuf.answer(response.unwrap_or_default()).into_body().into_data_stream();
    while let Some(part) = read.next().await {
        text.extend_from_slice(&part.map_err(std::io::Error::other)?);
    }
    String::from_utf8(text).map_err(std::io::Error::other)
}

fn asked(protobuf: &Protobuf) -> bool {
    let mut request = Request::new(());
    protobuf.ask(&mut request);
    request.headers().get(ACCEPT) == Some(&WANTED)
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
        let protobuf = Protobuf::new(&OF_NAMES, "pods");
        let text = answered(&protobuf, WATCH, bytes.chunks(size).map(<[u8]>::to_vec).collect()).await.unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines, expected, "parts of {size} bytes");
        assert!(asked(&protobuf));
    }
}

#[tokio::test]
async fn a_list_keeps_where_it_goes_on() {
    let meta = message(&[(2, b"7"), (3, b"token")]);
    let raw = message(&[(1, &meta), (2, &named("a")), (2, &named("b"))]);
    let body = vec![envelope("v1", "PodList", &raw)];
    let text = answered(&Protobuf::new(&OF_NAMES, "pods"), PROTOBUF, body).await.unwrap();
    let expected = json!({
        "apiVersion": "v1", "kind": "PodList", "metadata": { "resourceVersion": "7", "continue": "token" },
        "items": [{ "metadata": { "name": "a" } }, { "metadata": { "name": "b" } }],
    });
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expected);
}

#[tokio::test]
async fn what_is_not_protobuf_is_handed_on_as_it_is() {
    let protobuf = Protobuf::new(&OF_NAMES, "pods");
    let text = answered(&protobuf, "application/json", vec![b"{\"kind\":\"Status\"}".to_vec()]).await.unwrap();
    assert_eq!(text, "{\"kind\":\"Status\"}");
    assert!(asked(&protobuf));
}

/// Else it would be asked for again and again, and nothing would ever be known of the kind.
#[tokio::test]
async fn after_what_cannot_be_read_json_is_asked_for() {
    for (form, body) in [
        (PROTOBUF, b"no envelope".to_vec()),
        (WATCH, frame("ADDED", b"no envelope")),
        (WATCH, frame("ADDED", &envelope("v1", "Pod", &[0x0a, 0x05]))),
    ] {
        let protobuf = Protobuf::new(&OF_NAMES, "pods");
        assert!(answered(&protobuf, form, vec![body]).await.is_err(), "{form}");
        assert!(!asked(&protobuf), "{form}");
    }
}

/// The connection ended within an event: that is no reason to ask otherwise.
#[tokio::test]
async fn what_is_cut_off_is_an_error_of_the_connection() {
    let protobuf = Protobuf::new(&OF_NAMES, "pods");
    let mut event = frame("ADDED", &envelope("v1", "Pod", &named("a")));
    event.truncate(event.len() - 1);
    assert!(answered(&protobuf, WATCH, vec![event]).await.is_err());
    assert!(asked(&protobuf));
}
