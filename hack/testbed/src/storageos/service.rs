//! The HTTP front: logins, lists, and the versioned publish of mount endpoints.

use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, RawQuery, Request as HttpRequest, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{get, post, put};
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::faults::Effect;
use super::volumes::Rule;
use super::{Shared, lock};

/// Length of the longest version.
const VERSION_MAX: usize = 30;

pub(super) fn routes(shared: Shared) -> Router {
    let guarded = Router::new()
        .route("/v2/auth/refresh", post(refresh))
        .route("/v2/namespaces", get(namespaces))
        .route("/v2/namespaces/{namespace}/volumes", get(volumes))
        .route("/v2/namespaces/{namespace}/volumes/{volume}", get(volume).put(update))
        .route("/v2/namespaces/{namespace}/volumes/{volume}/nfs/mount-endpoint", put(publish))
        .layer(middleware::from_fn_with_state(shared.clone(), authenticated));
    Router::new()
        .route("/v2/auth/login", post(login))
        .merge(guarded)
        .fallback(|| async { refused(StatusCode::NOT_FOUND, "there is no such path") })
        .layer(middleware::from_fn_with_state(shared.clone(), faulty))
        .with_state(shared)
}

/// Records the call, and lets go wrong what is to go wrong.
async fn faulty(State(shared): State<Shared>, request: HttpRequest, next: Next) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let place = shared.records.add(method.clone(), path.clone());
    let answer = match shared.faults.of(&method, &path) {
        None => next.run(request).await,
        Some(Effect::Status(code)) => refused(StatusCode::from_u16(code).unwrap_or_default(), "so it was injected"),
        Some(Effect::Delay(by)) => {
            tokio::time::sleep(by).await;
            next.run(request).await
        }
        Some(Effect::Silence) => std::future::pending().await,
        Some(Effect::Garbage) => respond(StatusCode::OK, "<html>no JSON</html>".to_owned()),
        Some(Effect::Overtaken) => {
            let mut parts = path.split('/').skip_while(|part| *part != "volumes");
            shared.volumes.touch(parts.nth(1).unwrap_or_default());
            next.run(request).await
        }
        Some(Effect::LostAnswer) => {
            next.run(request).await;
            refused(StatusCode::SERVICE_UNAVAILABLE, "the answer was lost")
        }
    };
    shared.records.answered(place, answer.status());
    answer
}

async fn authenticated(State(shared): State<Shared>, request: HttpRequest, next: Next) -> Response {
    let is_known = bearer(request.headers()).is_some_and(|token| {
        let sessions = lock(&shared.sessions);
        sessions.tokens.get(token).is_some_and(|expires| Instant::now() < *expires)
    });
    if is_known {
        next.run(request).await
    } else {
        refused(StatusCode::UNAUTHORIZED, "the token is unknown or expired")
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    headers.get(AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ")
}

#[derive(Deserialize)]
struct Login {
    username: String,
    password: String,
}

async fn login(State(shared): State<Shared>, body: Bytes) -> Response {
    let Ok(login) = serde_json::from_slice::<Login>(&body) else {
        return refused(StatusCode::BAD_REQUEST, "username and password are needed");
    };
    let is_right = lock(&shared.sessions).users.get(&login.username) == Some(&login.password);
    if is_right { token(&shared) } else { refused(StatusCode::UNAUTHORIZED, "user name or password is wrong") }
}

async fn refresh(State(shared): State<Shared>, headers: HeaderMap) -> Response {
    if let Some(old) = bearer(&headers) {
        lock(&shared.sessions).tokens.remove(old);
    }
    token(&shared)
}

/// The client reads the headers, people the body.
fn token(shared: &Shared) -> Response {
    let mut sessions = lock(&shared.sessions);
    sessions.issued += 1;
    let (token, life) = (format!("jwt-{}", sessions.issued), sessions.life);
    sessions.tokens.insert(token.clone(), Instant::now() + life);
    let seconds = seconds(life);
    let body =
        json!({ "id": "user", "username": "storageos", "session": { "expiresInSeconds": seconds, "token": token } });
    let mut answer = ok(&body);
    let headers =
        [(AUTHORIZATION.as_str(), format!("Bearer {token}")), ("authorization-expires-seconds", seconds.to_string())];
    for (name, value) in headers {
        if let (Ok(name), Ok(value)) = (http::HeaderName::try_from(name), http::HeaderValue::try_from(value)) {
            answer.headers_mut().insert(name, value);
        }
    }
    answer
}

/// Whole seconds, as the API says them.
fn seconds(life: Duration) -> u64 {
    life.as_secs()
}

async fn namespaces(State(shared): State<Shared>) -> Response {
    ok(&json!(shared.volumes.namespaces()))
}

async fn volumes(State(shared): State<Shared>, Path(namespace): Path<String>) -> Response {
    match shared.volumes.of(&namespace) {
        Some(volumes) => ok(&json!(volumes.iter().map(super::Volume::json).collect::<Vec<_>>())),
        None => refused(StatusCode::NOT_FOUND, "there is no such namespace"),
    }
}

async fn volume(State(shared): State<Shared>, Path((namespace, id)): Path<(String, String)>) -> Response {
    match shared.volumes.get(&id).filter(|volume| volume.namespace_id == namespace) {
        Some(volume) => ok(&volume.json()),
        None => refused(StatusCode::NOT_FOUND, "there is no such volume"),
    }
}

/// Labels with `storageos.com/` are the control plane's own: nobody sets the mount endpoint like this.
async fn update(State(shared): State<Shared>, Path((namespace, id)): Path<(String, String)>, body: Bytes) -> Response {
    #[derive(Deserialize)]
    struct Update {
        labels: std::collections::BTreeMap<String, String>,
        version: String,
    }
    let Ok(update) = serde_json::from_slice::<Update>(&body) else {
        return refused(StatusCode::BAD_REQUEST, "labels and version are needed");
    };
    let Some(volume) = shared.volumes.get(&id).filter(|volume| volume.namespace_id == namespace) else {
        return refused(StatusCode::NOT_FOUND, "there is no such volume");
    };
    if update.version != volume.version_text() {
        return refused(StatusCode::PRECONDITION_FAILED, "stale write");
    }
    let reserved = |labels: &std::collections::BTreeMap<String, String>| {
        labels
            .iter()
            .filter(|(key, _)| key.starts_with("storageos.com/"))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect::<Vec<_>>()
    };
    if reserved(&update.labels) != reserved(&volume.labels) {
        return refused(StatusCode::UNPROCESSABLE_ENTITY, "reserved labels cannot be changed");
    }
    shared.volumes.touch(&id);
    ok(&shared.volumes.get(&id).map(|volume| volume.json()).unwrap_or_default())
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MountEndpoint {
    mount_endpoint: String,
    #[serde(default)]
    version: String,
}

async fn publish(
    State(shared): State<Shared>,
    Path((namespace, id)): Path<(String, String)>,
    RawQuery(query): RawQuery,
    body: Bytes,
) -> Response {
    let Ok(MountEndpoint { mount_endpoint, version }) = serde_json::from_slice(&body) else {
        return refused(StatusCode::BAD_REQUEST, "mountEndpoint and version are needed");
    };
    let ignore_version = query.is_some_and(|query| query.split('&').any(|pair| pair == "ignore-version=true"));
    let is_endpoint = mount_endpoint.is_empty() || mount_endpoint.rsplit_once(':').is_some();
    if !is_endpoint || version.len() > VERSION_MAX || (version.is_empty() && !ignore_version) {
        return refused(StatusCode::BAD_REQUEST, "mountEndpoint or version is invalid");
    }
    if shared.volumes.get(&id).is_none_or(|volume| volume.namespace_id != namespace) {
        return refused(StatusCode::NOT_FOUND, "there is no such volume");
    }
    match shared.volumes.publish(&id, &mount_endpoint, (!ignore_version).then_some(version.as_str())) {
        Ok(()) => respond(StatusCode::OK, String::new()),
        Err(Rule::StaleWrite) => refused(StatusCode::PRECONDITION_FAILED, "stale write"),
        Err(error) => refused(StatusCode::NOT_FOUND, &error.to_string()),
    }
}

fn ok(body: &Value) -> Response {
    respond(StatusCode::OK, body.to_string())
}

fn refused(status: StatusCode, words: &str) -> Response {
    respond(status, json!({ "error": words }).to_string())
}

fn respond(status: StatusCode, body: String) -> Response {
    let mut answer = Response::new(Body::from(body));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    answer
}
