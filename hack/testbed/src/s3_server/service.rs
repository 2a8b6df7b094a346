//! The way of a request: written down, befallen by a fault or not, carried out.

use std::io;
use std::path::Path;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request as HttpRequest;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{S3Error, S3ErrorCode};
use s3s_fs::FileSystem;
use tokio::net::TcpListener;

use super::faults::{Effect, Faults};
use super::keys::{Access, Keys};
use super::records::{Records, Request};
use super::tagged::Tagged;

/// What each request passes through.
pub(super) struct Front {
    pub s3: S3Service,
    pub faults: Faults,
    pub records: Records,
}

/// The server behind: signatures, checksums and buckets.
pub(super) fn build(folder: &Path, keys: &Keys) -> io::Result<S3Service> {
    let files = FileSystem::new(folder).map_err(|error| io::Error::other(format!("{error:?}")))?;
    let mut builder = S3ServiceBuilder::new(Tagged(files));
    builder.set_auth(keys.clone());
    builder.set_access(Access { keys: keys.clone(), folder: folder.to_owned() });
    Ok(builder.build())
}

/// Serves until the future is dropped.
pub(super) async fn serve(listener: TcpListener, front: Arc<Front>) {
    let router = axum::Router::new().fallback(move |request: HttpRequest| {
        let front = front.clone();
        // In a task of its own: what came in is carried out also when the client has given up.
        async move { tokio::spawn(async move { front.pass(request).await }).await.unwrap_or_else(broken) }
    });
    if let Err(error) = axum::serve(listener, router).await {
        tracing::error!(%error, "the S3 server's address failed");
    }
}

impl Front {
    async fn pass(&self, request: HttpRequest) -> Response {
        let (parts, body) = request.into_parts();
        let record = Request::of(&parts);
        let befallen = self.faults.befall(&record);
        let place = self.records.add(record);
        let request = http::Request::from_parts(parts, s3s::Body::http_body_unsync(body));
        let answer = match befallen {
            None => self.carry_out(request).await,
            Some((_, Effect::Fail(code))) => refusal(code),
            Some((id, Effect::Hang)) => {
                self.faults.removed(id).await;
                self.carry_out(request).await
            }
            Some((id, Effect::DoThenHang)) => {
                let answer = self.carry_out(request).await;
                self.faults.removed(id).await;
                answer
            }
        };
        self.records.answered(place, answer.status());
        answer
    }

    async fn carry_out(&self, request: s3s::HttpRequest) -> Response {
        match self.s3.call(request).await {
            Ok(answer) => answer.map(Body::new),
            Err(error) => broken(error),
        }
    }
}

fn refusal(code: S3ErrorCode) -> Response {
    match S3Error::new(code).to_http_response() {
        Ok(answer) => answer.map(Body::new),
        Err(error) => broken(error),
    }
}

fn broken(error: impl std::fmt::Debug) -> Response {
    (StatusCode::INTERNAL_SERVER_ERROR, format!("{error:?}")).into_response()
}
