//! A Kubernetes API for unit tests that answers in memory, so that paused time works with it.

use std::{collections::HashMap, convert::Infallible, sync::Arc};

use axum::body::Body;
use futures::{FutureExt as _, future::BoxFuture};
use http::{Method, Request, Response, StatusCode};
use kube::Client;
use serde_json::{Value, json};

use super::client::Clients;

/// One request, taken apart.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub method: Method,
    pub path: String,
    pub query: HashMap<String, String>,
    pub content_type: String,
    /// `Null` when there is no body.
    pub body: Value,
}

impl Call {
    pub fn is_watch(&self) -> bool {
        self.query.get("watch").is_some_and(|watch| watch == "true")
    }

    /// A watch that asks for a streaming list.
    pub fn is_streaming_list(&self) -> bool {
        self.query.contains_key("sendInitialEvents")
    }
}

/// An answer, perhaps later, perhaps never.
pub(crate) type Reply = BoxFuture<'static, Response<Body>>;

/// All clients of a process, of this one.
pub(crate) fn clients(client: &Client) -> Clients {
    Clients { reads: client.clone(), writes: client.clone(), leases: client.clone(), watches: client.clone() }
}

/// A client whose requests `answer` answers.
pub(crate) fn client(answer: impl Fn(Call) -> Reply + Send + Sync + 'static) -> Client {
    let answer = Arc::new(answer);
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let answer = answer.clone();
        async move { Ok::<_, Infallible>(answer(call(request).await).await) }
    });
    Client::new(service, "default")
}

async fn call(request: Request<kube::client::Body>) -> Call {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(Body::new(body), usize::MAX).await.unwrap();
    let query = parts.uri.query().unwrap_or_default();
    Call {
        method: parts.method,
        path: parts.uri.path().to_owned(),
        query: query
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
        content_type: parts
            .headers
            .get("content-type")
            .map(|value| value.to_str().unwrap().to_owned())
            .unwrap_or_default(),
        body: if body.is_empty() { Value::Null } else { serde_json::from_slice(&body).unwrap() },
    }
}

/// An answer with a JSON body.
pub(crate) fn ok(body: Value) -> Reply {
    respond(StatusCode::OK, body.to_string())
}

/// A refusal.
pub(crate) fn refuse(code: u16, reason: &str) -> Reply {
    refuse_with(code, reason, json!({}))
}

/// A refusal with details.
pub(crate) fn refuse_with(code: u16, reason: &str, details: Value) -> Reply {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "code": code, "reason": reason, "message": format!("refused: {reason}"), "details": details,
    });
    respond(StatusCode::from_u16(code).unwrap(), status.to_string())
}

/// A watch that sends these events and ends.
pub(crate) fn watch(events: &[Value]) -> Reply {
    // An API server writes the type of an event first; only so can its object be read from the text.
    let line = |event: &Value| format!("{{\"type\":{},\"object\":{}}}\n", event["type"], event["object"]);
    respond(StatusCode::OK, events.iter().map(line).collect())
}

/// No answer, ever.
pub(crate) fn silence() -> Reply {
    std::future::pending().boxed()
}

fn respond(code: StatusCode, body: String) -> Reply {
    let response =
        Response::builder().status(code).header("content-type", "application/json").body(Body::from(body)).unwrap();
    std::future::ready(response).boxed()
}
