//! The Node service: from calls to steps.

use std::sync::Arc;

use tonic::{Request, Response, Status};
use tracing::{Instrument as _, Span};

use crate::csi::v1::node_server::Node as NodeCalls;
use crate::csi::v1::node_service_capability::{Rpc, Type, rpc};
use crate::csi::v1::*;
use crate::runtime::clock::monotonic;
use crate::s3::spans;

use super::{Node, publish, request, stats, unpublish};

/// Answers the kubelet.
pub struct NodeService(pub Arc<Node>);

type Answer<T> = Result<Response<T>, Status>;

/// A caller that hangs up does not leave half of the work.
async fn to_the_end<T: Send + 'static>(
    span: Span,
    work: impl Future<Output = Result<T, Status>> + Send + 'static,
) -> Answer<T> {
    let done = tokio::spawn(work.instrument(span)).await;
    done.unwrap_or_else(|panic| Err(Status::internal(format!("the node plugin failed: {panic}")))).map(Response::new)
}

#[tonic::async_trait]
impl NodeCalls for NodeService {
    async fn node_get_info(&self, _: Request<NodeGetInfoRequest>) -> Answer<NodeGetInfoResponse> {
        Ok(Response::new(NodeGetInfoResponse {
            node_id: self.0.settings.node_id.clone(),
            max_volumes_per_node: self.0.settings.volumes_max.unwrap_or_default(),
            ..NodeGetInfoResponse::default()
        }))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Answer<NodeGetCapabilitiesResponse> {
        // With the first the kubelet leaves fsGroup to us, instead of changing the owner of every object of a bucket.
        let has = [rpc::Type::VolumeMountGroup, rpc::Type::GetVolumeStats, rpc::Type::VolumeCondition];
        let capabilities =
            has.into_iter().map(|kind| NodeServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: kind.into() })) });
        Ok(Response::new(NodeGetCapabilitiesResponse { capabilities: capabilities.collect() }))
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Answer<NodePublishVolumeResponse> {
        let begun = monotonic();
        let node = self.0.clone();
        let (publication, keys) = request::publication(request.get_ref(), &node.settings.kubelet_root)?;
        let span = spans::call("NodePublishVolume", &publication.volume_id, Some(&publication.pod()));
        to_the_end(span, async move {
            let what = (publication.volume.clone(), publication.pod());
            let done = publish::publish(&node, publication, keys, node.settings.patience).await;
            node.metrics.published(done.is_ok(), monotonic().saturating_duration_since(begun));
            if let Err(status) = &done {
                tracing::warn!(volume = what.0, pod = what.1, error = status.message(), "not published");
            }
            done.map(|()| NodePublishVolumeResponse {})
        })
        .await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Answer<NodeUnpublishVolumeResponse> {
        let NodeUnpublishVolumeRequest { volume_id, target_path } = request.into_inner();
        request::volume_id(&volume_id)?;
        let node = self.0.clone();
        let (pod, volume) = request::target(&target_path, &node.settings.kubelet_root)?;
        let (pod, volume) = (pod.to_owned(), volume.to_owned());
        let span = spans::call("NodeUnpublishVolume", &volume_id, Some(&format!("pod {pod}")));
        to_the_end(span, async move {
            unpublish::unpublish(&node, &volume_id, &pod, &volume).await.map(|()| NodeUnpublishVolumeResponse {})
        })
        .await
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Answer<NodeGetVolumeStatsResponse> {
        let NodeGetVolumeStatsRequest { volume_id, volume_path, .. } = request.into_inner();
        request::volume_id(&volume_id)?;
        if volume_path.is_empty() {
            return Err(Status::invalid_argument("volume_path is missing"));
        }
        let not_there = || Status::not_found(format!("volume {volume_id} is not mounted at {volume_path:?}"));
        let target = request::target(&volume_path, &self.0.settings.kubelet_root);
        let (pod, volume) = target.map_err(|_| not_there())?;
        let span = spans::call("NodeGetVolumeStats", &volume_id, Some(&format!("pod {pod}")));
        stats::stats(&self.0, &volume_id, pod, volume).instrument(span).await.map(Response::new)
    }
}
