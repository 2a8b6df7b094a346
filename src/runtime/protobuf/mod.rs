//! Built-in kinds are asked for in protobuf, as Kubernetes' own components do, and handed on as JSON with the fields that are
//! read: it costs the API server a fraction of writing JSON, and us a fraction of reading it, for what is not used of an object
//! is skipped by its length. Definitions of custom resources have no protobuf.
//!
//! It sits between the connection and kube's watcher, which knows of none of it.
//!
//! The form: `k8s` and a zero byte, then an `Unknown` with kind and object; of a watch, messages of a four-byte length each, with
//! an event whose object has that form.

mod json;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::body::Body;
use futures::{Stream, StreamExt as _, TryStreamExt as _};
use http::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use http::{Request, Response};
use tokio_util::codec::{FramedRead, LengthDelimitedCodec};
use tokio_util::io::StreamReader;

pub use self::json::Malformed;
use self::json::{bytes_of, object, text};
use crate::api::slim::protobuf::{Kind, Message, field};

/// First what we want, then what every server and everything between has.
const WANTED: HeaderValue = HeaderValue::from_static("application/vnd.kubernetes.protobuf,application/json");
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// What every object begins with.
const MAGIC: &[u8] = b"k8s\0";
/// No object is larger: etcd takes 1.5 MiB.
const LARGEST_EVENT: usize = 64 << 20;
/// So many events that are there already are handed on together.
const TOGETHER: usize = 64;

/// What the API server answers when it refuses.
static STATUS: Message = Message::of(&[
    field(2, "status", Kind::Text),
    field(3, "message", Kind::Text),
    field(4, "reason", Kind::Text),
    field(5, "details", Kind::Object(&STATUS_DETAILS)),
    field(6, "code", Kind::Number),
]);
static STATUS_DETAILS: Message = Message::of(&[
    field(1, "name", Kind::Text),
    field(2, "group", Kind::Text),
    field(3, "kind", Kind::Text),
    field(4, "causes", Kind::Objects(&STATUS_CAUSE)),
    field(5, "retryAfterSeconds", Kind::Number),
    field(6, "uid", Kind::Text),
]);
static STATUS_CAUSE: Message =
    Message::of(&[field(1, "reason", Kind::Text), field(2, "message", Kind::Text), field(3, "field", Kind::Text)]);
static LIST_META: Message = Message::of(&[
    field(2, "resourceVersion", Kind::Text),
    field(3, "continue", Kind::Text),
    field(4, "remainingItemCount", Kind::OptionalNumber),
]);

/// Asks for one kind in protobuf.
#[derive(Clone)]
pub(crate) struct Protobuf {
    message: &'static Message,
    informer: &'static str,
    /// Something came that was not as it should be: from then on JSON is asked for, so that a mistake of ours, or of a server's,
    /// costs time and no object.
    failed: Arc<AtomicBool>,
}

impl Protobuf {
    /// For objects that are written like `message`.
    pub fn new(message: &'static Message, informer: &'static str) -> Self {
        Self { message, informer, failed: Arc::default() }
    }

    /// Asks for protobuf.
    pub fn ask<B>(&self, request: &mut Request<B>) {
        if !self.failed.load(Ordering::Relaxed) {
            request.headers_mut().insert(ACCEPT, WANTED);
        }
    }

    /// The answer as JSON, whatever it came as.
    pub fn answer(&self, response: Response<Body>) -> Response<Body> {
        let (mut parts, body) = response.into_parts();
        let form = parts.headers.get(CONTENT_TYPE).and_then(|form| form.to_str().ok()).unwrap_or_default();
        if !form.starts_with(PROTOBUF) {
            return Response::from_parts(parts, body);
        }
        let is_watch = form.contains("stream=watch");
        parts.headers.remove(http::header::CONTENT_LENGTH);
        parts.headers.insert(CONTENT_TYPE, JSON);
        let body = if is_watch { Body::from_stream(self.events(body)) } else { Body::from_stream(self.whole(body)) };
        Response::from_parts(parts, body)
    }

    /// One line for each event of a watch.
    fn events(&self, body: Body) -> impl Stream<Item = std::io::Result<Vec<u8>>> + use<> {
        let codec = LengthDelimitedCodec::builder().max_frame_length(LARGEST_EVENT).new_codec();
        let bytes = StreamReader::new(body.into_data_stream().map_err(std::io::Error::other));
        let this = self.clone();
        FramedRead::new(bytes, codec).ready_chunks(TOGETHER).map(move |frames| {
            let mut lines = Vec::new();
            for frame in frames {
                this.checked(event(this.message, &frame?, &mut lines))?;
                lines.push(b'\n');
            }
            Ok(lines)
        })
    }

    /// A list, or a refusal.
    fn whole(&self, body: Body) -> impl Stream<Item = std::io::Result<Vec<u8>>> + use<> {
        let this = self.clone();
        futures::stream::once(async move {
            let bytes = axum::body::to_bytes(body, usize::MAX).await.map_err(std::io::Error::other)?;
            let mut json = Vec::new();
            this.checked(enveloped(this.message, &bytes, &mut json))?;
            Ok(json)
        })
    }

    fn checked(&self, result: Result<(), Malformed>) -> std::io::Result<()> {
        result.map_err(|error| {
            self.failed.store(true, Ordering::Relaxed);
            tracing::warn!(informer = self.informer, %error, "the API server's protobuf cannot be read: JSON is asked for");
            std::io::Error::other(error)
        })
    }
}

/// An event of a watch: its type and its object.
fn event(message: &'static Message, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Malformed> {
    let type_ = bytes_of(bytes, 1)?.unwrap_or_default();
    let raw = bytes_of(bytes_of(bytes, 2)?.unwrap_or_default(), 1)?.unwrap_or_default();
    out.extend_from_slice(b"{\"type\":");
    text(&String::from_utf8_lossy(type_), out);
    out.extend_from_slice(b",\"object\":");
    enveloped(message, raw, out)?;
    out.push(b'}');
    Ok(())
}

/// An object, a list of them or a refusal, with what is around it.
pub fn enveloped(message: &'static Message, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Malformed> {
    let unknown = bytes.strip_prefix(MAGIC).ok_or_else(|| Malformed::Wire("it is not Kubernetes'".into()))?;
    let type_meta = bytes_of(unknown, 1)?.unwrap_or_default();
    let raw = bytes_of(unknown, 2)?.unwrap_or_default();
    let kind = String::from_utf8_lossy(bytes_of(type_meta, 2)?.unwrap_or_default());
    let version = String::from_utf8_lossy(bytes_of(type_meta, 1)?.unwrap_or_default());
    let mut members = b"\"apiVersion\":".to_vec();
    text(&version, &mut members);
    members.extend_from_slice(b",\"kind\":");
    text(&kind, &mut members);
    match kind.as_ref() {
        "Status" => object(&STATUS, raw, &members, out),
        list if list.ends_with("List") => objects(message, raw, &members, out),
        _ => object(message, raw, &members, out),
    }
}

/// A list: every kind's has its metadata first and its items second.
fn objects(message: &'static Message, raw: &[u8], members: &[u8], out: &mut Vec<u8>) -> Result<(), Malformed> {
    out.push(b'{');
    out.extend_from_slice(members);
    out.extend_from_slice(b",\"metadata\":");
    object(&LIST_META, bytes_of(raw, 1)?.unwrap_or_default(), b"", out)?;
    out.extend_from_slice(b",\"items\":[");
    let mut is_first = true;
    json::each(raw, 2, |item| {
        if !std::mem::take(&mut is_first) {
            out.push(b',');
        }
        object(message, item, b"", out)
    })?;
    out.extend_from_slice(b"]}");
    Ok(())
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
