//! The S3 driver: the CSI services (`node_service`, `controller_service`), the mounter that runs in each Mountpoint Pod
//! (`mounter`), and what these say to each other (`socket_protocol`). Which Mountpoint Pods there are is decided elsewhere, in
//! `controllers::mountpoint_s3_pod_attachment`.

pub mod controller_service;
pub mod mount_options;
pub mod mounter;
pub mod node_service;
pub mod socket_protocol;
