//! Volumes that people made: whenever claim and pod come together, each S3 volume gets a Mountpoint Pod, and no other does.

use bulkhead::api::s3;
use kube::ResourceExt;
use libtest_mimic::Failed;
use serde_json::{Value, json};

use super::lane::{FOREIGN, Lane, phase};
use super::world::World;

/// What comes late.
#[derive(Clone, Copy, Debug)]
pub enum Timing {
    Prebound,
    LateBinding,
    LateScheduling,
    BothLate,
}

impl Timing {
    pub const ALL: [Self; 4] = [Self::Prebound, Self::LateBinding, Self::LateScheduling, Self::BothLate];

    fn binds_late(self) -> bool {
        matches!(self, Self::LateBinding | Self::BothLate)
    }

    fn schedules_late(self) -> bool {
        matches!(self, Self::LateScheduling | Self::BothLate)
    }
}

const ONE: &[&str] = &["one"];
const TWO: &[&str] = &["first", "second"];
const FOREIGN_ONLY: &[&str] = &["foreign"];
const MIXED: &[&str] = &["mixed", "mixed-foreign"];

pub async fn every_s3_volume(world: &World, timing: Timing) -> Result<(), Failed> {
    let lane = Lane::new(world, &format!("provisioning-{timing:?}").to_lowercase(), 1).await?;
    let cases = [("single", ONE), ("double", TWO), ("foreign", FOREIGN_ONLY), ("mixed", MIXED)];
    let claims: Vec<&str> = cases.iter().flat_map(|(_, claims)| claims.iter().copied()).collect();
    let volume = async |claim: &str| {
        let driver = if claim.ends_with("foreign") { FOREIGN } else { s3::DRIVER };
        lane.volume(claim, json!({ "csi": { "driver": driver } })).await
    };
    for claim in &claims {
        if !timing.binds_late() {
            volume(claim).await?;
        }
        lane.claim(claim).await?;
    }
    for (pod, claims) in cases {
        if timing.schedules_late() {
            lane.unbound_pod(pod, claims, with_more_volumes(claims)).await?;
        } else {
            lane.pod(pod, 1, claims, with_more_volumes(claims)).await?;
        }
    }
    if timing.binds_late() {
        for claim in &claims {
            assert_eq!(lane.attachments_of(claim).await?, [], "{claim} is not bound yet");
            volume(claim).await?;
        }
    }
    for claim in &claims {
        lane.binds(claim).await?;
    }
    if timing.schedules_late() {
        for (pod, _) in cases {
            lane.schedule(pod, 1).await?;
        }
    }
    for (pod, claims) in cases {
        for claim in claims.iter().filter(|claim| !claim.ends_with("foreign")) {
            lane.shared(claim, &[&[pod]]).await?;
            assert_eq!(lane.mountpoint_pods_of(claim).await?.len(), 1);
            written_as_upstream_does(&lane, claim, pod).await?;
        }
    }
    lane.wait_for(&lane.pods(), "foreign", "running", |pod| pod.is_some_and(|pod| phase(pod) == "Running")).await?;
    for claim in claims.iter().filter(|claim| claim.ends_with("foreign")) {
        assert_eq!(lane.attachments_of(claim).await?, []);
        assert_eq!(lane.mountpoint_pods_of(claim).await?.len(), 0);
    }
    lane.delete(&cases.map(|(pod, _)| pod)).await?;
    for claim in &claims {
        lane.clean(claim).await?;
    }
    Ok(())
}

/// Besides them, volumes that are not our business.
fn with_more_volumes(claims: &[&str]) -> Value {
    let mut volumes: Vec<_> =
        claims.iter().map(|claim| json!({ "name": claim, "persistentVolumeClaim": { "claimName": claim } })).collect();
    volumes.push(json!({ "name": "empty", "emptyDir": {} }));
    volumes.push(json!({ "name": "host", "hostPath": { "path": "/tmp" } }));
    json!({ "securityContext": { "fsGroup": 1000 }, "volumes": volumes })
}

async fn written_as_upstream_does(lane: &Lane<'_>, claim: &str, pod: &str) -> Result<(), Failed> {
    let attachment = lane.attachment(claim).await?;
    let spec = &attachment.spec;
    let volume = lane.volume_name(claim);
    assert_eq!(attachment.name_any(), spec.mount().attachment_name());
    assert_eq!(attachment.finalizers(), [s3::FINALIZER]);
    assert!(attachment.labels().contains_key(s3::DRIVER_VERSION_LABEL));
    assert_eq!((&spec.node_name, &spec.persistent_volume_name), (&lane.node(1), &volume));
    assert_eq!((spec.volume_id.as_str(), spec.workload_fs_group.as_str()), (&*format!("handle-{volume}"), "1000"));
    let uid = lane.pods().get(pod).await?.uid().unwrap_or_default();
    let name = s3::mountpoint_pod_name(&uid, &volume, None);
    assert_eq!(spec.mountpoint_pod_of(&uid), Some(name.as_str()));
    Ok(())
}
