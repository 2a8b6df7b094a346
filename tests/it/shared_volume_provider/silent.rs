//! What is ignored silently, as StorageOS describes it: no object, no Event, no line in the log that is there by default; a count.

use bulkhead_testbed::storageos::NewVolume;
use libtest_mimic::Failed;
use serde_json::json;

use super::lane::Lane;

/// What a volume lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    LabelOfVolume,
    LabelOfClaim,
    LabelOfNamespace,
    Endpoint,
    ValidEndpoint,
    Claim,
    BoundClaim,
}

impl Lack {
    pub const ALL: [Self; 7] = [
        Self::LabelOfVolume,
        Self::LabelOfClaim,
        Self::LabelOfNamespace,
        Self::Endpoint,
        Self::ValidEndpoint,
        Self::Claim,
        Self::BoundClaim,
    ];
}

pub async fn without(lane: &Lane<'_>, lack: Lack) -> Result<(), Failed> {
    let (mut volume_name, mut claim_name, mut claim_namespace) = ("pv-lacking", "lacking", lane.name.as_str());
    match lack {
        Lack::LabelOfVolume => volume_name = "",
        Lack::LabelOfClaim => claim_name = "",
        Lack::LabelOfNamespace => claim_namespace = "",
        Lack::BoundClaim => volume_name = "pv-of-an-earlier-claim",
        Lack::Endpoint | Lack::ValidEndpoint | Lack::Claim => {}
    }
    if lack != Lack::Claim {
        lane.claim("lacking").await?;
    }
    let id = lane.attached(&lane.namespace, &NewVolume { volume_name, claim_name, claim_namespace });
    match lack {
        Lack::Endpoint => lane.server.volumes().lose_server(&id)?,
        Lack::ValidEndpoint => lane.server.volumes().serve(&id, "n1", "nfs.example.com:2049")?,
        _ => {}
    }
    lane.claim("good").await?;
    lane.volume("good");
    lane.provider(json!({})).await?;
    lane.discovered("good").await?;
    lane.polled(2).await?;
    assert_eq!(lane.all().await?, ["good"]);
    let counts = |status: &bulkhead::api::shared_volume_provider::SharedVolumeProviderStatus| {
        (status.volumes, status.shared_volumes, status.unmanaged) == (Some(2), Some(1), Some(1))
    };
    lane.reports("it is counted, and that is all", counts).await?;
    let about = |note: &str| note.contains("lacking") || note.contains(&id) || note.contains("nfs.example.com");
    let told = lane.told().await?;
    assert!(!told.iter().any(|(_, note)| about(note)), "{told:?}");
    let log = std::fs::read_to_string(lane.world.testbed.folder().join("bulkhead-controller.log"))?;
    let said: Vec<_> = log.lines().filter(|line| line.contains(&lane.name) && !line.contains("DEBUG")).collect();
    assert!(!said.iter().any(|line| about(line)), "{said:#?}");
    Ok(())
}
