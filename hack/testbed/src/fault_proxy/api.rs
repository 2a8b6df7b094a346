//! The way to the API server: plain HTTP on a port of this machine, passed on under the identity of the program.

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use http::header::{CONNECTION, HOST, TRANSFER_ENCODING};
use http::{HeaderMap, Method, StatusCode};
use kube::Client;
use serde_json::Value;
use tokio::net::TcpListener;

use super::{Heard, Tap};

/// More than any request of ours has.
const BODY_MAX: usize = 16 << 20;

/// Serves until the future is dropped; what is under way then ends with the tap.
pub(crate) async fn serve(listener: TcpListener, client: Client, tap: Tap) {
    let router = axum::Router::new().fallback(move |request: Request| forward(client.clone(), tap.clone(), request));
    if let Err(error) = axum::serve(listener, router).await {
        tracing::error!(%error, "the proxy to the API server ended");
    }
}

async fn forward(client: Client, tap: Tap, request: Request) -> Response {
    let (mut parts, body) = request.into_parts();
    let body = match to_bytes(body, BODY_MAX).await {
        Ok(body) => body,
        Err(error) => return (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    };
    hop_by_hop(&mut parts.headers);
    let heard = change(&parts.method, parts.uri.path(), &body);
    let request = http::Request::from_parts(parts, body.into());
    // In a task of its own: what was stopped arrives also when the caller has given up.
    let answer = tokio::spawn(async move { tap.pass(heard, client.send(request)).await }).await;
    match answer {
        Ok(Some(Ok(answer))) => {
            let (mut parts, body) = answer.into_parts();
            hop_by_hop(&mut parts.headers);
            Response::from_parts(parts, Body::new(body))
        }
        Ok(Some(Err(error))) => (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
        Ok(None) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// These are about one connection, and there are two.
fn hop_by_hop(headers: &mut HeaderMap) {
    for name in [CONNECTION, HOST, TRANSFER_ENCODING] {
        headers.remove(name);
    }
}

/// A request that changes something, but for Leases and Events.
fn change(method: &Method, path: &str, body: &Bytes) -> Option<Heard> {
    let verb = match method.as_str() {
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => return None,
    };
    let mut segments: Vec<&str> = path.trim_matches('/').split('/').collect();
    // api/v1 or apis/group/version; then namespaces/name for what is in one.
    segments.drain(..segments.len().min(if path.starts_with("/apis/") { 3 } else { 2 }));
    if let ["namespaces", _, _, ..] = segments.as_slice() {
        segments.drain(..2);
    }
    let (resource, subresource) = (segments.first()?, segments.get(2));
    if ["leases", "events"].contains(resource) {
        return None;
    }
    let created = || {
        let body: Value = serde_json::from_slice(body).ok()?;
        Some(body.pointer("/metadata/name")?.as_str()?.to_owned())
    };
    let object = segments.get(1).map(|name| (*name).to_owned()).or_else(created);
    let what = match subresource {
        Some(subresource) => format!("{verb} {resource}/{subresource}"),
        None => format!("{verb} {resource}"),
    };
    // These are called after a hash: who is told by their names cannot be told by theirs.
    Some(Heard { what, object: object.filter(|_| !["volumeattachments", "networkfences"].contains(resource)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(method: Method, path: &str, body: &str) -> Option<(String, Option<String>)> {
        change(&method, path, &Bytes::from(body.to_owned())).map(|heard| (heard.what, heard.object))
    }

    #[test]
    fn writes_are_told_by_verb_resource_and_name() {
        let cases = [
            (Method::PATCH, "/api/v1/nodes/a", "patch nodes", Some("a")),
            (Method::DELETE, "/api/v1/namespaces/default/pods/b", "delete pods", Some("b")),
            (Method::PUT, "/apis/bulkhead.dev/v1alpha1/nodefences/c/status", "update nodefences/status", Some("c")),
            (Method::POST, "/apis/bulkhead.dev/v1alpha1/fencerequests", "create fencerequests", Some("d")),
            (Method::DELETE, "/apis/storage.k8s.io/v1/volumeattachments/e", "delete volumeattachments", None),
            (Method::PUT, "/apis/csiaddons.openshift.io/v1alpha1/networkfences/g", "update networkfences", None),
            (Method::DELETE, "/api/v1/namespaces/f", "delete namespaces", Some("f")),
        ];
        for (method, path, what, object) in cases {
            let found = heard(method, path, r#"{"metadata":{"name":"d"}}"#);
            assert_eq!(found, Some((what.to_owned(), object.map(str::to_owned))), "{path}");
        }
    }

    #[test]
    fn reads_leases_and_events_are_none() {
        for (method, path) in [
            (Method::GET, "/api/v1/nodes/a"),
            (Method::PUT, "/apis/coordination.k8s.io/v1/namespaces/bulkhead-system/leases/a"),
            (Method::POST, "/apis/events.k8s.io/v1/namespaces/default/events"),
        ] {
            assert_eq!(heard(method, path, ""), None, "{path}");
        }
    }
}
