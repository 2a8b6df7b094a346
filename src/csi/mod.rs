//! The CSI and podmon gRPC definitions, how a driver is reached, and how to be one.
//!
//! `generated/` is made by `xtask generate` from `proto/` and never edited. No policy lives here: who calls what, and when,
//! is for the callers.

use std::fmt;

pub mod authority;
pub mod client;
pub mod plugin;
pub mod server;

/// The Container Storage Interface, package `csi.v1`.
#[allow(missing_docs, clippy::all, clippy::pedantic, unused_qualifications)]
#[rustfmt::skip]
pub mod v1 {
    include!("generated/csi.v1.rs");
}

/// Dell's connectivity extension of the CSI socket, package `podmon.v1`.
#[allow(missing_docs, clippy::all, clippy::pedantic, unused_qualifications)]
#[rustfmt::skip]
pub mod podmon {
    include!("generated/podmon.v1.rs");
}

/// How a CSI node plugin makes itself known to the kubelet, package `pluginregistration`.
#[allow(missing_docs, clippy::all, clippy::pedantic, unused_qualifications)]
#[rustfmt::skip]
pub mod plugin_registration {
    include!("generated/pluginregistration.rs");
}

// The generator leaves `Debug` out for the messages whose secrets we handle: a log line shows how many there are, no more.

impl fmt::Debug for v1::ControllerPublishVolumeRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControllerPublishVolumeRequest")
            .field("volume_id", &self.volume_id)
            .field("node_id", &self.node_id)
            .field("volume_capability", &self.volume_capability)
            .field("readonly", &self.readonly)
            .field("secrets", &Redacted(self.secrets.len()))
            .field("volume_context", &self.volume_context)
            .finish()
    }
}

impl fmt::Debug for v1::NodePublishVolumeRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodePublishVolumeRequest")
            .field("volume_id", &self.volume_id)
            .field("target_path", &self.target_path)
            .field("volume_capability", &self.volume_capability)
            .field("readonly", &self.readonly)
            .field("secrets", &Redacted(self.secrets.len()))
            // A driver's tokens for a pod are here.
            .field("volume_context", &Redacted(self.volume_context.len()))
            .finish()
    }
}

impl fmt::Debug for v1::ControllerUnpublishVolumeRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControllerUnpublishVolumeRequest")
            .field("volume_id", &self.volume_id)
            .field("node_id", &self.node_id)
            .field("secrets", &Redacted(self.secrets.len()))
            .finish()
    }
}

impl fmt::Debug for v1::CreateVolumeRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CreateVolumeRequest")
            .field("name", &self.name)
            .field("capacity_range", &self.capacity_range)
            .field("volume_capabilities", &self.volume_capabilities)
            .field("parameters", &self.parameters)
            .field("secrets", &Redacted(self.secrets.len()))
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for v1::DeleteVolumeRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeleteVolumeRequest")
            .field("volume_id", &self.volume_id)
            .field("secrets", &Redacted(self.secrets.len()))
            .finish()
    }
}

impl fmt::Debug for v1::ValidateVolumeCapabilitiesRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ValidateVolumeCapabilitiesRequest")
            .field("volume_id", &self.volume_id)
            .field("volume_capabilities", &self.volume_capabilities)
            .field("secrets", &Redacted(self.secrets.len()))
            .finish_non_exhaustive()
    }
}

struct Redacted(usize);

impl fmt::Debug for Redacted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{} redacted>", self.0)
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::podmon::{ValidateVolumeHostConnectivityRequest, ValidateVolumeHostConnectivityResponse};
    use super::{podmon, v1};

    #[test]
    fn debug_output_never_shows_a_secret() {
        let secrets = [("password".to_owned(), "hunter2".to_owned())];
        let publish = v1::ControllerPublishVolumeRequest { secrets: secrets.clone().into(), ..Default::default() };
        let node = v1::NodePublishVolumeRequest { secrets: secrets.clone().into(), ..Default::default() };
        let unpublish = v1::ControllerUnpublishVolumeRequest { secrets: secrets.clone().into(), ..Default::default() };
        let create = v1::CreateVolumeRequest { secrets: secrets.clone().into(), ..Default::default() };
        let delete = v1::DeleteVolumeRequest { secrets: secrets.clone().into(), ..Default::default() };
        let validate = v1::ValidateVolumeCapabilitiesRequest { secrets: secrets.into(), ..Default::default() };
        let attaching = [format!("{publish:?}"), format!("{unpublish:?}"), format!("{node:?}")];
        let provisioning = [format!("{create:?}"), format!("{delete:?}"), format!("{validate:?}")];
        for text in attaching.into_iter().chain(provisioning) {
            assert!(text.contains("<1 redacted>"), "{text}");
            assert!(!text.contains("hunter2") && !text.contains("password"), "{text}");
        }
    }

    /// Our array and our client share what was generated, so a wrong number would pass between those two.
    #[test]
    fn podmon_is_on_the_wire_what_dells_drivers_speak() {
        let request = ValidateVolumeHostConnectivityRequest {
            volume_ids: vec!["v".to_owned(), "w".to_owned()],
            node_id: "n".to_owned(),
            io_sample_time_seconds: 5,
            array_id: "a".to_owned(),
        };
        assert_eq!(request.encode_to_vec(), b"\x0a\x01v\x0a\x01w\x12\x01n\x18\x05\x22\x01a");
        let answer: &[u8] = b"\x08\x01\x10\x01\x1a\x01m";
        let expected = ValidateVolumeHostConnectivityResponse {
            connected: true,
            ios_in_progress: true,
            messages: vec!["m".to_owned()],
        };
        assert_eq!(ValidateVolumeHostConnectivityResponse::decode(answer).unwrap(), expected);
        assert_eq!(podmon::podmon_server::SERVICE_NAME, "podmon.v1.Podmon");
        let path = "\"/podmon.v1.Podmon/ValidateVolumeHostConnectivity\"";
        assert_eq!(include_str!("generated/podmon.v1.rs").matches(path).count(), 2, "of the client and of the server");
    }
}
