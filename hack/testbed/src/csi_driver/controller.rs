//! The controller's mode: every call on the socket goes to the array's management as it is, and so does the answer.
//!
//! Nothing is decoded: a field that this program does not know passes, too. A caller's deadline passes along and holds here.

use std::io;
use std::time::Duration;

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use bulkhead::csi::server;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::service::Routes;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Status, TimeoutExpired};
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
            tracing::warn!(%error, "the array's management gave no answer");
            no_answer(&error).into_http::<Body>().into_response()
        }
    }
}

/// The caller's deadline holds at three places: in the caller, in this server, which says `Cancelled`, and in the channel to the array.
/// Where that one is first, the caller must not read that the array cannot be reached.
fn no_answer(error: &(dyn std::error::Error + 'static)) -> Status {
    if std::iter::successors(Some(error), |link| link.source()).any(|link| link.is::<TimeoutExpired>()) {
        return Status::deadline_exceeded("the array's management did not answer before the call's deadline");
    }
    Status::unavailable(format!("the array's management is not reached: {error}"))
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    /// As a channel tells it: tonic's `transport::Error` cannot be made here.
    #[derive(Debug, thiserror::Error)]
    #[error("transport error")]
    struct OfTransport(#[source] TimeoutExpired);

    #[test]
    fn a_deadline_is_no_array_that_is_not_reached() {
        assert_eq!(no_answer(&TimeoutExpired(())).code(), Code::DeadlineExceeded);
        assert_eq!(no_answer(&OfTransport(TimeoutExpired(()))).code(), Code::DeadlineExceeded);
        assert_eq!(no_answer(&io::Error::from(io::ErrorKind::ConnectionRefused)).code(), Code::Unavailable);
    }
}
