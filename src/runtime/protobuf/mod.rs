//! Built-in kinds are asked for in protobuf, as Kubernetes' own components do, and handed on as JSON with the fields that are
//! read: it costs the API server a fraction of writing JSON, and us a fraction of reading it, for what is not used of an object
//! is skipped by its length. Definitions of custom resources have no protobuf.
//!
//! It sits between the connection and kube's watcher, which knows of none of it.
//!
//! The form: `k8s` and a zero byte, then an `Unknown` with kind and object; of a watch, messages of a four-byte length each, with
//! an event whose object has that form.

mod json;
mod sieve;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::body::Body;
use futures::{Stream, StreamExt as _, TryStreamExt as _};
use http::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response};
use kube::{Client, client};
use tokio_util::codec::{FramedRead, LengthDelimitedCodec};
use tokio_util::io::StreamReader;

pub use self::json::Malformed;
use self::json::{bytes_of, object, text};
pub use self::sieve::Sieve;
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
/// Which object it is, and where a watch goes on behind it.
static NAMED: Message = Message::of(&[field(1, "metadata", Kind::Object(&NAME))]);
static NAME: Message = Message::of(&[
    field(1, "name", Kind::Text),
    field(3, "namespace", Kind::Text),
    field(6, "resourceVersion", Kind::Text),
]);

/// Asks for one kind in protobuf.
#[derive(Clone)]
pub(crate) struct Protobuf {
    reading: Reading,
    /// A watch brought what is not as it should be: from then on JSON is asked for, so that a mistake of ours, or of a server's,
    /// costs time and no object.
    failed: Arc<AtomicBool>,
}

/// How the objects of a kind are read.
#[derive(Clone, Copy)]
struct Reading {
    message: &'static Message,
    sieve: Option<Sieve>,
}

/// A client that reads a kind in protobuf where that is asked for by its name, or as a list.
pub(crate) fn client(inner: &Client, message: &'static Message) -> Client {
    let (namespace, inner, protobuf) =
        (inner.default_namespace().to_owned(), inner.clone(), Protobuf::new(message, None));
    let service = tower::service_fn(move |request| {
        let (inner, protobuf) = (inner.clone(), protobuf.clone());
        async move { protobuf.send(&inner, request).await }
    });
    Client::new(service, namespace)
}

impl Protobuf {
    /// For objects that are written like `message`. Of those that do not pass the sieve only the name is handed on.
    pub fn new(message: &'static Message, sieve: Option<Sieve>) -> Self {
        Self { reading: Reading { message, sieve }, failed: Arc::default() }
    }

    /// Asks, and answers with JSON, whatever came.
    pub async fn send(&self, inner: &Client, request: Request<client::Body>) -> kube::Result<Response<Body>> {
        if request.method() != Method::GET || self.failed.load(Ordering::Relaxed) {
            return Ok(inner.send(request).await?.map(Body::new));
        }
        let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        let (mut parts, body) = request.into_parts();
        let as_json = parts.clone();
        parts.headers.insert(ACCEPT, WANTED);
        let response = inner.send(Request::from_parts(parts, body)).await?.map(Body::new);
        let form = response.headers().get(CONTENT_TYPE).and_then(|form| form.to_str().ok()).unwrap_or_default();
        if !form.starts_with(PROTOBUF) {
            return Ok(response);
        }
        let (mut head, body) = response.into_parts();
        head.headers.remove(CONTENT_LENGTH);
        head.headers.insert(CONTENT_TYPE, JSON);
        // A refusal is none.
        if is_watch && head.status.is_success() {
            return Ok(Response::from_parts(head, Body::from_stream(self.events(body))));
        }
        let unread = |error: axum::Error| kube::Error::Service(error.into());
        let bytes = axum::body::to_bytes(body, usize::MAX).await.map_err(unread)?;
        let mut json = Vec::new();
        match self.reading.enveloped(&bytes, &mut json) {
            Ok(()) => Ok(Response::from_parts(head, Body::from(json))),
            Err(error) => {
                tell(&error, &bytes);
                let again = Request::from_parts(as_json, client::Body::empty());
                Ok(inner.send(again).await?.map(Body::new))
            }
        }
    }

    /// One line for each event of a watch.
    fn events(&self, body: Body) -> impl Stream<Item = std::io::Result<Vec<u8>>> + use<> {
        let codec = LengthDelimitedCodec::builder().max_frame_length(LARGEST_EVENT).new_codec();
        let bytes = StreamReader::new(body.into_data_stream().map_err(std::io::Error::other));
        let this = self.clone();
        // Where one cannot be read those that came with it are lost too: the watch begins again behind what was handed on.
        FramedRead::new(bytes, codec).ready_chunks(TOGETHER).map(move |frames| {
            let mut lines = Vec::new();
            for frame in frames {
                let frame = frame.inspect_err(|error| {
                    // The codec refuses what is longer than any object.
                    if error.kind() == std::io::ErrorKind::InvalidData {
                        this.give_up(&Malformed::Wire(error.to_string()), b"");
                    }
                })?;
                this.reading.event(&frame, &mut lines).map_err(|error| {
                    this.give_up(&error, &frame);
                    std::io::Error::other(error)
                })?;
                lines.push(b'\n');
            }
            Ok(lines)
        })
    }

    /// From now on JSON is asked for.
    fn give_up(&self, error: &Malformed, bytes: &[u8]) {
        self.failed.store(true, Ordering::Relaxed);
        tell(error, bytes);
    }
}

/// Says what cannot be read, by how it begins: there are its kind and its name.
fn tell(error: &Malformed, bytes: &[u8]) {
    let begins: String = String::from_utf8_lossy(bytes).chars().filter(|it| it.is_ascii_graphic()).take(80).collect();
    tracing::warn!(%error, begins, "the API server's protobuf cannot be read: JSON is asked for; tell the developers");
}

/// An object, a list of them or a refusal, with what is around it.
pub fn enveloped(message: &'static Message, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Malformed> {
    Reading { message, sieve: None }.enveloped(bytes, out)
}

impl Reading {
    /// An event of a watch: its type and its object.
    fn event(self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Malformed> {
        let type_ = bytes_of(bytes, 1)?.unwrap_or_default();
        let raw = bytes_of(bytes_of(bytes, 2)?.unwrap_or_default(), 1)?.unwrap_or_default();
        // A bookmark says in its metadata what it has to say, and has nothing else.
        let sieve = self.sieve.filter(|_| type_ != b"BOOKMARK");
        out.extend_from_slice(b"{\"type\":");
        text(type_, out);
        out.extend_from_slice(b",\"object\":");
        Self { sieve, ..self }.enveloped(raw, out)?;
        out.push(b'}');
        Ok(())
    }

    fn enveloped(self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Malformed> {
        let unknown = bytes.strip_prefix(MAGIC).ok_or_else(|| Malformed::Wire("it is not Kubernetes'".into()))?;
        let type_meta = bytes_of(unknown, 1)?.unwrap_or_default();
        let raw = bytes_of(unknown, 2)?.unwrap_or_default();
        let kind = bytes_of(type_meta, 2)?.unwrap_or_default();
        let mut members = b"\"apiVersion\":".to_vec();
        text(bytes_of(type_meta, 1)?.unwrap_or_default(), &mut members);
        members.extend_from_slice(b",\"kind\":");
        text(kind, &mut members);
        match kind {
            b"Status" => object(&STATUS, raw, &members, out),
            list if list.ends_with(b"List") => self.objects(raw, &members, out),
            _ => self.object(raw, &members, out),
        }
    }

    /// A list: every kind's has its metadata first and its items second.
    fn objects(self, raw: &[u8], members: &[u8], out: &mut Vec<u8>) -> Result<(), Malformed> {
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
            self.object(item, b"", out)
        })?;
        out.extend_from_slice(b"]}");
        Ok(())
    }

    fn object(self, bytes: &[u8], members: &[u8], out: &mut Vec<u8>) -> Result<(), Malformed> {
        let passes = match self.sieve {
            Some(sieve) => sieve.passes(self.message, bytes)?,
            None => true,
        };
        object(if passes { self.message } else { &NAMED }, bytes, members, out)
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
