//! The way to a CSI driver: gRPC on a Unix socket of its own, passed on as it is.

use axum::body::to_bytes;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use tokio::net::UnixListener;
use tonic::Status;
use tonic::body::Body;
use tonic::service::Routes;
use tonic::transport::{Channel, Server};
use tower::ServiceExt;

use super::{Heard, Tap};
use crate::array::accepted;

/// More than any request has.
const BODY_MAX: usize = 1 << 20;

/// Serves until the future is dropped; what is under way then ends with the tap.
pub(crate) async fn serve(listener: UnixListener, driver: Channel, tap: Tap) {
    let router = axum::Router::new().fallback(move |request: Request| forward(driver.clone(), tap.clone(), request));
    if let Err(error) = Server::builder().add_routes(Routes::from(router)).serve_with_incoming(accepted(listener)).await
    {
        tracing::error!(%error, "the proxy to the CSI driver ended");
    }
}

async fn forward(driver: Channel, tap: Tap, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = match to_bytes(body, BODY_MAX).await {
        Ok(body) => body,
        Err(error) => return Status::internal(error.to_string()).into_http::<Body>().into_response(),
    };
    let method = parts.uri.path().rsplit('/').next().unwrap_or_default().to_owned();
    let heard = Heard { what: method, object: None };
    let request = http::Request::from_parts(parts, Body::new(axum::body::Body::from(body)));
    // In a task of its own: what was stopped arrives also when the caller has given up.
    let answer = tokio::spawn(async move { tap.pass(Some(heard), driver.oneshot(request)).await }).await;
    match answer {
        Ok(Some(Ok(answer))) => answer.into_response(),
        Ok(Some(Err(error))) => Status::unavailable(error.to_string()).into_http::<Body>().into_response(),
        Ok(None) => Status::unavailable("the process is dead").into_http::<Body>().into_response(),
        Err(error) => Status::internal(error.to_string()).into_http::<Body>().into_response(),
    }
}
