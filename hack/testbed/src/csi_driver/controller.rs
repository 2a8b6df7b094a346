//! The controller's mode: every call on the socket goes to the array's management as it is, and so does the answer.
//!
//! Nothing is decoded: a field that this program does not know passes, too. A caller's deadline passes along and holds here.

use std::io;
use std::time::Duration;

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use bulkhead::csi::server;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::body::Body;
use tonic::service::Routes;
use tonic::transport::{Channel, Endpoint, Server};
use tower::ServiceExt;

use super::ControllerOptions;

/// How long the array may take to accept a connection, and to answer a ping on one: a link that was cut is noticed by it.
const REACHABLE: Duration = Duration::from_secs(3);
/// The deadline of a call that brings none.
const LONGEST_CALL: Duration = Duration::from_secs(120);

pub(super) async fn run(options: ControllerOptions, stop: CancellationToken) -> io::Result<()> {
    let array = Endpoint::from_shared(format!("http://{}", options.management))
        .map_err(io::Error::other)?
        .connect_timeout(REACHABLE)
        .http2_keep_alive_interval(REACHABLE)
        .keep_alive_timeout(REACHABLE)
        .keep_alive_while_idle(true)
        .connect_lazy();
    let router = axum::Router::new().fallback(move |request: Request| pass_on(array.clone(), request));
    let services = Server::builder().timeout(LONGEST_CALL).add_routes(Routes::from(router));
    server::on_socket(services, &options.socket, stop).await
}

async fn pass_on(array: Channel, request: Request) -> Response {
    match array.oneshot(request.map(Body::new)).await {
        Ok(answer) => answer.into_response(),
        Err(error) => {
            tracing::warn!(%error, "the array's management is not reached");
            let unavailable = Status::unavailable(format!("the array's management is not reached: {error}"));
            unavailable.into_http::<Body>().into_response()
        }
    }
}
