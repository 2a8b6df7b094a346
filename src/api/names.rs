//! Names that Bulkhead puts on other objects, and those of Kubernetes that it reads.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sha2::{Digest, Sha256};

/// Namespace of the operator; our Leases live there.
pub const OPERATOR_NAMESPACE: &str = "bulkhead-system";

/// Our own taint; its value is the episode. Only the controller removes it.
pub const FENCED_TAINT: &str = "bulkhead.dev/fenced";
/// Prefix of our taint for a driver whose node plugin is not ready; the driver's name follows.
pub const DRIVER_DOWN_PREFIX: &str = "driver-down.bulkhead.dev/";
/// Makes attach/detach and podGC act at once on a failed node. One without our value is never touched.
pub const OUT_OF_SERVICE_TAINT: &str = "node.kubernetes.io/out-of-service";
/// Set by the node lifecycle controller when a kubelet is silent.
pub const UNREACHABLE_TAINT: &str = "node.kubernetes.io/unreachable";
/// Set by the node lifecycle controller when a kubelet reports itself not ready.
pub const NOT_READY_TAINT: &str = "node.kubernetes.io/not-ready";
/// Set by a cordon.
pub const UNSCHEDULABLE_TAINT: &str = "node.kubernetes.io/unschedulable";

/// Annotation of a ResiliencyPolicy or a Node, by a person: no new fence, and running ones stop before the next destructive
/// step. Its value is the reason.
pub const PAUSED_ANNOTATION: &str = "bulkhead.dev/paused";

/// Label of an active NodeFence: while it is there admission denies new VolumeAttachments for the node.
pub const ACTIVE_LABEL: &str = "bulkhead.dev/active";

/// Finalizer of a ResiliencyPolicy: its deletion first finishes, or safely holds, its NodeFences.
pub const POLICY_FINALIZER: &str = "bulkhead.dev/policy";
/// Finalizer of a NodeFence, until Recovered.
pub const NODE_CLEAN_FINALIZER: &str = "bulkhead.dev/node-clean";
/// Finalizer of a FenceRequest, until the fencer answered Unfenced.
pub const FENCE_OPEN_FINALIZER: &str = "bulkhead.dev/fence-open";

/// Annotation of a NodeFence, by whoever knows it: the machine of a Node that was deleted is off, or exists no more. Its value is
/// [`NodeFence::machine_off_word`](super::node_fence::NodeFence::machine_off_word).
pub const MACHINE_OFF_ANNOTATION: &str = "bulkhead.dev/machine-is-off";

/// Label of a NetworkFence of ours: the uid of the FenceRequest it is for.
pub const FENCE_REQUEST_LABEL: &str = "bulkhead.dev/fence-request-uid";
/// Label of a NetworkFence of ours: the episode it was made in.
pub const EPISODE_LABEL: &str = "bulkhead.dev/episode";
/// Annotation of a NetworkFence of ours: the node that is shut out, for people.
pub const FENCED_NODE_ANNOTATION: &str = "bulkhead.dev/node";
/// Annotation of a NetworkFence of ours: the addresses that it was made with, separated by commas. Others it may name by then.
pub const FENCED_ADDRESSES_ANNOTATION: &str = "bulkhead.dev/addresses";
/// Annotation of a NetworkFence of ours: the cluster of the storage that its class named when it was made, empty where it named none.
/// By then the class may name another.
pub const FENCED_CLUSTER_ANNOTATION: &str = "bulkhead.dev/cluster";
/// Annotation of a NetworkFence of ours: the uid of its class when it was made. One of that name that was made anew has another.
pub const FENCED_CLASS_ANNOTATION: &str = "bulkhead.dev/class-uid";
/// Label of a NetworkFence of ours: its addresses are about to be let in, unless somebody else wants them out.
pub const UNFENCING_LABEL: &str = "bulkhead.dev/unfencing";

/// Annotation of a NetworkFence of ours that has ever carried that label, or whose addresses somebody else let in. They may be in
/// whatever csi-addons says of it: that does not count any more.
pub const ANNOUNCED_ANNOTATION: &str = "bulkhead.dev/unfencing-announced";

/// Label of a PersistentVolume with any taint (projection of its VolumeHealth).
pub const TAINTED_LABEL: &str = "bulkhead.dev/tainted";
/// Label of a PersistentVolume with a taint of effect NoAttachOrMount.
pub const NO_ATTACH_LABEL: &str = "bulkhead.dev/no-attach-or-mount";
/// Annotation of a PersistentVolume: its taints as JSON.
pub const VOLUME_TAINTS_ANNOTATION: &str = "bulkhead.dev/volume-taints";
/// Scheduling gate of a pod that waits for a tainted volume.
pub const VOLUME_TAINTED_GATE: &str = "bulkhead.dev/volume-tainted";
/// Claim for which tainted volumes without a claim are reserved, in [`OPERATOR_NAMESPACE`]. There is none of that name:
/// an admission policy forbids it.
pub const RESERVED_CLAIM: &str = "reserved-by-bulkhead";
/// Field manager of what is shown on PersistentVolumes.
pub const PROJECTION_MANAGER: &str = "bulkhead-controller/projection";
/// Finalizer of a VolumeHealth: labels, annotation, reservation and gates are taken back before it goes.
pub const PROJECTION_FINALIZER: &str = "bulkhead.dev/projection";

/// Label of the pods that run `bulkhead-node-agent`, whoever deploys them: without a Ready one on a node nobody looks at
/// the volumes there.
pub const NODE_AGENT_LABEL: &str = "bulkhead.dev/node-agent";
/// Bindings of the admission policies without which nothing is enforced: those that keep new users off, and those without
/// which anybody could take away what they rest on.
pub const ENFORCING_POLICIES: [&str; 6] = [
    "tainted-volume-attach.bulkhead.dev",
    "tainted-volume-bind.bulkhead.dev",
    "tainted-volume-pods.bulkhead.dev",
    "reserved-claim.bulkhead.dev",
    "volume-projection.bulkhead.dev",
    "volume-health-label.bulkhead.dev",
];

/// On a VolumeAttachment, by the external-attacher: the node id that was really published.
pub const ATTACHED_NODE_ID_ANNOTATION: &str = "csi.alpha.kubernetes.io/node-id";
/// Prefix of the external-attacher's finalizer; the driver's name follows, in its spelling.
pub const ATTACHER_FINALIZER_PREFIX: &str = "external-attacher/";
/// On static (mirror) pods, by the kubelet.
pub const MIRROR_POD_ANNOTATION: &str = "kubernetes.io/config.mirror";

/// Key of our taint for a driver whose node plugin is not ready.
pub fn driver_down_taint(driver: &str) -> String {
    format!("{DRIVER_DOWN_PREFIX}{driver}")
}

/// The reason for which the object is paused; an empty one pauses it too.
pub fn paused(object: &ObjectMeta) -> Option<&str> {
    object.annotations.as_ref()?.get(PAUSED_ANNOTATION).map(String::as_str)
}

/// The value of our out-of-service taint in an episode.
pub fn out_of_service_value(episode: i64) -> String {
    format!("bulkhead-{episode}")
}

/// The VolumeAttachment finalizer of a driver's attacher. It writes all but letters, digits and `-` as `-`, and ends a
/// name that would end so with `X` (external-attacher, `SanitizeDriverName`).
pub fn attacher_finalizer(driver: &str) -> String {
    let kept = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let driver: String = driver.chars().map(kept).collect();
    let end = if driver.ends_with('-') { "X" } else { "" };
    format!("{ATTACHER_FINALIZER_PREFIX}{driver}{end}")
}

/// Name of the FenceRequest for a node and a fencer: the node's, shortened to 244 characters, and eight hex digits of
/// the SHA-256 of node, a zero byte and fencer.
pub fn fence_request(node: &str, fencer: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(node);
    hash.update([0]);
    hash.update(fencer);
    format!("{}-{}", node.get(..244).unwrap_or(node), hex(&hash.finalize(), 4))
}

/// Name of the NetworkFence that a FenceRequest asks for with a class, in an episode, from a round on: csi-addons tells of an
/// object how its last operation ended and not which that was, so none is used twice.
pub fn network_fence(request_uid: &str, class: &str, episode: i64, round: i32) -> String {
    let mut hash = Sha256::new();
    for part in [request_uid, class, &episode.to_string(), &round.to_string()] {
        hash.update(part);
        hash.update([0]);
    }
    format!("bulkhead-{}", hex(&hash.finalize(), 16))
}

/// Name of the leader Lease of a driver's sidecar.
pub fn fencer_lease(driver: &str) -> String {
    format!("bulkhead-fencer-{}", hex(&Sha256::digest(driver), 4))
}

/// Longest name of a Service.
const SERVICE_MAX: usize = 63;

/// The name itself if a Service may have it (a DNS-1035 label); else its readable part, `-` and eight hex digits of its
/// SHA-256.
pub fn service_label(name: &str) -> String {
    let is_inside = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_first = |c: char| c.is_ascii_lowercase();
    if name.len() <= SERVICE_MAX && name.starts_with(is_first) && !name.ends_with('-') && name.chars().all(is_inside) {
        return name.to_owned();
    }
    let readable: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let readable = readable.trim_start_matches(|c| !is_first(c));
    let readable = readable.get(..SERVICE_MAX - 9).unwrap_or(readable).trim_end_matches('-');
    let readable = if readable.is_empty() { "volume" } else { readable };
    format!("{readable}-{}", hex(&Sha256::digest(name), 4))
}

/// The first `bytes` bytes as lower-case hexadecimal digits.
pub fn hex(digest: &[u8], bytes: usize) -> String {
    digest.iter().take(bytes).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_enforcement_rests_on_is_what_is_installed() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("config/policies");
        let files =
            std::fs::read_dir(folder).unwrap().map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap());
        let all: Vec<_> = files.collect();
        let objects: Vec<_> = all.iter().flat_map(|file| file.split("\n---\n")).collect();
        for name in ENFORCING_POLICIES {
            let is_binding = |text: &&&str| {
                text.contains("kind: ValidatingAdmissionPolicyBinding\n")
                    && text.contains(&format!("\n  name: {name}\n"))
            };
            let found: Vec<_> = objects.iter().filter(is_binding).collect();
            assert_eq!(found.len(), 1, "{name}");
            assert!(found[0].contains("validationActions: [Deny]"), "{name}");
        }
    }

    #[test]
    fn the_attachers_finalizer_is_spelled_as_the_attacher_does() {
        assert_eq!(attacher_finalizer("csi.block.example.com"), "external-attacher/csi-block-example-com");
        assert_eq!(attacher_finalizer("odd."), "external-attacher/odd-X");
    }

    #[test]
    fn a_service_has_the_name_or_one_that_is_like_it() {
        for name in ["media", "data-0", "a"] {
            assert_eq!(service_label(name), name);
        }
        let long = "n".repeat(64);
        for name in ["data.v2", "0data", "1", &long, "pvc.with-dots.and-more"] {
            let label = service_label(name);
            assert!(label.len() <= 63 && service_label(&label) == label && label != name, "{name}: {label}");
        }
        assert_eq!(service_label("data.v2"), service_label("data.v2"));
        assert_ne!(service_label("data.v2"), service_label("data-v2."));
        assert!(service_label("data.v2").starts_with("data-v2-"));
    }

    #[test]
    fn fence_requests_are_named_as_the_api_says() {
        assert_eq!(fence_request("worker-3", "csi.block.example.com"), "worker-3-fc98d69d");
        assert!(fence_request(&"n".repeat(253), "x").len() <= 253);
    }
}
