//! The way to a CSI driver: gRPC on a Unix socket of its own, passed on as it is.

use axum::response::IntoResponse;
use http::{Request, Response};
use tokio::net::UnixListener;
use tonic::Status;
use tonic::body::Body;
use tonic::service::Routes;
use tonic::transport::{Channel, Server};
use tower::ServiceExt;

use super::{Heard, Tap};
use crate::array::accepted;

/// Serves until the future is dropped; what is under way then ends with the tap.
pub(crate) async fn serve(listener: UnixListener, driver: Channel, tap: Tap) {
    let router = axum::Router::new()
        .fallback(move |request: axum::extract::Request| forward(driver.clone(), tap.clone(), request.map(Body::new)));
    if let Err(error) = Server::builder().add_routes(Routes::from(router)).serve_with_incoming(accepted(listener)).await {
        tracing::error!(%error, "the proxy to the CSI driver ended");
    }
}

async fn forward(driver: Channel, tap: Tap, request: Request<Body>) -> axum::response::Response {
    let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
    let heard = Heard { what: method, object: None };
    let answer: Option<Result<Response<Body>, _>> = tap.pass(Some(heard), driver.oneshot(request)).await;
    match answer {
        Some(Ok(answer)) => answer.into_response(),
        Some(Err(error)) => Status::unavailable(error.to_string()).into_http::<Body>().into_response(),
        None => Status::unavailable("the process is dead").into_http::<Body>().into_response(),
    }
}
