//! The S3 driver: the CSI services (`node_service`, `controller_service`), the mounter that runs in each Mountpoint Pod
//! (`mounter`), what these say to each other (`socket_protocol`), the arguments of mount-s3 (`mount_options`), the keys
//! of S3 (`keys`), and what log lines of a volume carry (`spans`). Which Mountpoint Pods there are is decided elsewhere, in `controllers::mountpoint_s3_pod_attachment`.

pub mod controller_service;
pub mod keys;
pub mod mount_options;
pub mod mounter;
pub mod node_service;
pub mod socket_protocol;
mod spans;
