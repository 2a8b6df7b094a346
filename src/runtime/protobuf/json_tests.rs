use prost::Message as _;
use serde_json::{Value, json};

use super::*;
use crate::api::slim::protobuf::field;

/// Written by prost: what it writes is what others write.
#[derive(Clone, PartialEq, prost::Message)]
struct Written {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(int64, optional, tag = "2")]
    number: Option<i64>,
    #[prost(int32, optional, tag = "3")]
    pointed: Option<i32>,
    #[prost(bool, optional, tag = "4")]
    flag: Option<bool>,
    #[prost(bool, optional, tag = "5")]
    pointed_flag: Option<bool>,
    #[prost(message, optional, tag = "6")]
    time: Option<Stamp>,
    #[prost(message, optional, tag = "7")]
    micro: Option<Stamp>,
    #[prost(message, optional, tag = "8")]
    quantity: Option<Quantity>,
    #[prost(message, optional, boxed, tag = "9")]
    inner: Option<Box<Written>>,
    #[prost(message, optional, boxed, tag = "10")]
    inline: Option<Box<Written>>,
    #[prost(string, repeated, tag = "11")]
    texts: Vec<String>,
    #[prost(message, repeated, tag = "12")]
    objects: Vec<Written>,
    #[prost(btree_map = "string, string", tag = "13")]
    map: std::collections::BTreeMap<String, String>,
    #[prost(btree_map = "string, message", tag = "14")]
    quantities: std::collections::BTreeMap<String, Quantity>,
    #[prost(fixed64, optional, tag = "15")]
    fixed: Option<u64>,
    #[prost(float, optional, tag = "16")]
    float: Option<f32>,
    #[prost(string, optional, tag = "900")]
    not_read: Option<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Stamp {
    #[prost(int64, optional, tag = "1")]
    seconds: Option<i64>,
    #[prost(int32, optional, tag = "2")]
    nanos: Option<i32>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Quantity {
    #[prost(string, optional, tag = "1")]
    string: Option<String>,
}

static READ: Message = Message::of(&[
    field(1, "name", Kind::Text),
    field(2, "number", Kind::Number),
    field(3, "pointed", Kind::OptionalNumber),
    field(4, "flag", Kind::Flag),
    field(5, "pointedFlag", Kind::OptionalFlag),
    field(6, "time", Kind::Time),
    field(7, "micro", Kind::MicroTime),
    field(8, "quantity", Kind::Quantity),
    field(9, "inner", Kind::Object(&READ)),
    field(10, "inline", Kind::Inline(&INLINE)),
    field(11, "texts", Kind::Texts),
    field(12, "objects", Kind::Objects(&READ)),
    field(13, "map", Kind::TextMap),
    field(14, "quantities", Kind::QuantityMap),
]);
static INLINE: Message = Message::telling_unknown(&[field(9, "source", Kind::Presence)]);

fn read(bytes: &[u8]) -> Result<Value, Malformed> {
    let mut out = Vec::new();
    object(&READ, bytes, b"", &mut out)?;
    Ok(serde_json::from_slice(&out).unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&out))))
}

fn quantity(text: &str) -> Quantity {
    Quantity { string: Some(text.into()) }
}

#[test]
fn each_kind_of_field_is_written_as_the_api_writes_it() {
    let stamp = || Stamp { seconds: Some(1_767_323_045), nanos: Some(60_708_000) };
    let named = |name: &str| Written { name: Some(name.into()), ..Written::default() };
    let written = Written {
        name: Some("a \"b\"\n\u{1}é".into()),
        number: Some(-5),
        pointed: Some(0),
        flag: Some(true),
        pointed_flag: Some(false),
        time: Some(stamp()),
        micro: Some(stamp()),
        quantity: Some(quantity("1Gi")),
        inner: Some(Box::new(named("inner"))),
        inline: Some(Box::new(Written { inner: Some(Box::default()), number: Some(3), ..Written::default() })),
        texts: vec!["x".into(), String::new()],
        objects: vec![named("one"), Written::default()],
        map: [("a".into(), "b".into()), ("empty".into(), String::new())].into(),
        quantities: [("storage".into(), quantity("5"))].into(),
        fixed: Some(1),
        float: Some(1.5),
        not_read: Some("x".into()),
    };
    let expected = json!({
        "name": "a \"b\"\n\u{1}é", "number": -5, "pointed": 0, "flag": true, "pointedFlag": false,
        "time": "2026-01-02T03:04:05Z", "micro": "2026-01-02T03:04:05.060708Z", "quantity": "1Gi",
        "inner": { "name": "inner" }, "source": {}, "field 2": {},
        "texts": ["x", ""], "objects": [{ "name": "one" }, {}],
        "map": { "a": "b", "empty": "" }, "quantities": { "storage": "5" },
    });
    assert_eq!(read(&written.encode_to_vec()), Ok(expected));
}

/// Go writes what has no pointer even if it is empty.
#[test]
fn what_is_empty_and_has_no_pointer_is_left_out() {
    let empty = Written {
        name: Some(String::new()),
        number: Some(0),
        flag: Some(false),
        time: Some(Stamp::default()),
        inner: Some(Box::default()),
        inline: Some(Box::default()),
        ..Written::default()
    };
    assert_eq!(read(&empty.encode_to_vec()), Ok(json!({ "inner": {} })));
    assert_eq!(read(b""), Ok(json!({})));
}

#[test]
fn a_list_is_ended_before_the_next_field_and_not_begun_again() {
    let texts =
        |texts: &[&str]| Written { texts: texts.iter().map(|text| (*text).to_owned()).collect(), ..Written::default() };
    let name = Written { name: Some("n".into()), ..Written::default() };
    let joined = |parts: &[Written]| parts.iter().flat_map(prost::Message::encode_to_vec).collect::<Vec<_>>();
    assert_eq!(read(&joined(&[texts(&["a"]), name.clone()])), Ok(json!({ "texts": ["a"], "name": "n" })));
    assert_eq!(read(&joined(&[texts(&["a"]), name.clone(), texts(&["b"])])), Err(Malformed::Twice("texts")));
    assert_eq!(read(&joined(&[name.clone(), name])), Err(Malformed::Twice("name")));
}

#[test]
fn what_is_not_as_it_should_be_is_refused() {
    let deep =
        (0..40).fold(Written::default(), |inner, _| Written { inner: Some(Box::new(inner)), ..Written::default() });
    assert_eq!(read(&deep.encode_to_vec()), Err(Malformed::Depth));
    assert_eq!(read(&[0x08, 0x01]), Err(Malformed::Type("name")), "a number for a name");
    assert_eq!(read(&[0x4a, 0x05, 0x00]), Err(Malformed::Wire("it ends too early".into())));
    assert!(matches!(read(&[0x0b]), Err(Malformed::Wire(_))), "a group");
}

/// Anybody who may create an object may write them.
#[test]
fn what_is_no_text_and_no_time_spoils_nothing() {
    assert_eq!(read(&[0x0a, 0x01, 0xff]), Ok(json!({ "name": "\u{fffd}" })));
    let never = Stamp { seconds: Some(i64::MAX), nanos: Some(-1) };
    let written = Written { pointed: Some(1), time: Some(never), ..Written::default() };
    assert_eq!(read(&written.encode_to_vec()), Ok(json!({ "pointed": 1 })));
}
