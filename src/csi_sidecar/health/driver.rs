//! The driver's words on volumes: ListVolumes, ControllerGetVolume, and the health calls of CSI 1.13. Every call has a
//! deadline; a list is whole, or it is a failure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tonic::transport::Channel;

use crate::api::hysteresis::Trouble;
use crate::api::volume::VolumeState;
use crate::csi::v1::controller_client::ControllerClient;
use crate::csi::v1::controller_service_capability::rpc::Type as Rpc;
use crate::csi::v1::volume_capability::access_mode::Mode;
use crate::csi::v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use crate::csi::v1::volume_health::VolumeHealthEntry;
use crate::csi::v1::{
    ControllerGetVolumeHealthRequest, ControllerGetVolumeRequest, ControllerListVolumeHealthRequest,
    ListVolumesRequest, ValidateVolumeCapabilitiesRequest, VolumeCapability, VolumeCondition, VolumeHealth,
    VolumeHealthErrorType,
};

use super::super::decide::{Failure, FailureClass};
use super::super::driver::{Driver, call, incomplete, timed};
use super::clean;
use super::decide::{Cause, List, Offer, Offers, Problem, Said, Watched};
use super::metrics::{Method, Metrics};

/// Entries of a page. Without a limit the answer of a large driver passes the size that a message may have.
const PAGE: i32 = 500;
/// More pages than any real list has.
const PAGES_MAX: usize = 10_000;
/// How often one page is asked for, and how often a list is begun anew when its token has become invalid.
const ATTEMPTS: usize = 3;
/// What a message may have: a list without pages of more volumes than one cluster has.
const MESSAGE_MAX: usize = 64 << 20;
/// Deadline of a page.
const PAGE_DEADLINE: Duration = Duration::from_secs(15);
/// Deadline of a whole list.
const LIST_DEADLINE: Duration = Duration::from_secs(120);

/// The driver, asked about volumes.
#[derive(Clone)]
pub struct Health {
    driver: Driver,
    metrics: Metrics,
}

/// One page: its entries, and the token of the next.
type Page = Result<(Vec<(String, Said)>, String), Failure>;

impl Health {
    /// Asks this driver.
    pub fn new(driver: Driver, metrics: Metrics) -> Self {
        Self { driver, metrics }
    }

    fn client(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.driver.channel()).max_decoding_message_size(MESSAGE_MAX)
    }

    /// What the driver offers.
    pub async fn offers(&self, deadline: Duration) -> Result<Offers, Failure> {
        let rpcs = self.driver.rpcs(deadline).await?;
        let offered = [
            (Rpc::ListVolumes, Offer::ListVolumes),
            (Rpc::GetVolume, Offer::GetVolume),
            (Rpc::ListVolumesPublishedNodes, Offer::PublishedNodes),
            (Rpc::VolumeCondition, Offer::Condition),
            (Rpc::GetVolumeHealth, Offer::GetHealth),
            // The list implies the call for one volume (csi.proto).
            (Rpc::ListVolumeHealth, Offer::GetHealth),
            (Rpc::ListVolumeHealth, Offer::ListHealth),
        ];
        Ok(offered.into_iter().filter(|(rpc, _)| rpcs.contains(&(*rpc as i32))).map(|(_, offer)| offer).collect())
    }

    /// Whether the driver itself answers, whatever becomes of its calls about volumes.
    pub async fn answers(&self, deadline: Duration) -> bool {
        self.driver.name(deadline).await.is_ok()
    }

    /// All volumes.
    pub async fn list_volumes(&self, offers: &Offers) -> List {
        whole(|max_entries, starting_token| async move {
            let request = timed(ListVolumesRequest { max_entries, starting_token }, PAGE_DEADLINE);
            let answer = call(PAGE_DEADLINE, self.client().list_volumes(request)).await;
            let page = self.metrics.called(Method::ListVolumes, answer)?;
            let entries = page.entries.into_iter().filter_map(|entry| {
                let status = entry.status.map(|status| (status.published_node_ids, status.volume_condition));
                Some((entry.volume?.volume_id, said(offers, status)))
            });
            Ok((entries.collect(), page.next_token))
        })
        .await
    }

    /// All volumes with which something is wrong.
    pub async fn list_health(&self) -> List {
        whole(|max_entries, starting_token| async move {
            let request = ControllerListVolumeHealthRequest { max_entries, starting_token, ..Default::default() };
            let request = timed(request, PAGE_DEADLINE);
            let answer = call(PAGE_DEADLINE, self.client().controller_list_volume_health(request)).await;
            let page = self.metrics.called(Method::ControllerListVolumeHealth, answer)?;
            let entries = page.entries.into_iter().map(|health| (health.volume_id.clone(), healthy_or_not(health)));
            Ok((entries.collect(), page.next_token))
        })
        .await
    }

    /// The health of one volume.
    pub async fn get_health(&self, handle: &str, deadline: Duration) -> Result<Said, Failure> {
        let request = ControllerGetVolumeHealthRequest { volume_id: handle.to_owned(), ..Default::default() };
        let answer = call(deadline, self.client().controller_get_volume_health(timed(request, deadline))).await;
        let answer = self.metrics.called(Method::ControllerGetVolumeHealth, answer)?;
        answer.volume_health.map(healthy_or_not).ok_or_else(|| Failure {
            code: "Internal",
            class: FailureClass::Retry,
            message: "the driver answers ControllerGetVolumeHealth without volume_health".into(),
        })
    }

    /// One volume.
    pub async fn get_volume(&self, offers: &Offers, handle: &str, deadline: Duration) -> Result<Said, Failure> {
        let request = ControllerGetVolumeRequest { volume_id: handle.to_owned() };
        let answer = call(deadline, self.client().controller_get_volume(timed(request, deadline))).await;
        let answer = self.metrics.called(Method::ControllerGetVolume, answer)?;
        Ok(said(offers, answer.status.map(|status| (status.published_node_ids, status.volume_condition))))
    }

    /// Whether one volume exists. What it can do is of no interest.
    pub async fn validate(&self, handle: &str, watched: &Watched, deadline: Duration) -> Result<Said, Failure> {
        let request = ValidateVolumeCapabilitiesRequest {
            volume_id: handle.to_owned(),
            volume_capabilities: watched.access_modes.iter().map(|mode| capability(mode, watched.block)).collect(),
            ..Default::default()
        };
        let answer = call(deadline, self.client().validate_volume_capabilities(timed(request, deadline))).await;
        self.metrics.called(Method::ValidateVolumeCapabilities, answer).map(|_| Said::default())
    }
}

fn capability(mode: &str, block: bool) -> VolumeCapability {
    let mode = match mode {
        "ReadWriteMany" => Mode::MultiNodeMultiWriter,
        "ReadOnlyMany" => Mode::MultiNodeReaderOnly,
        _ => Mode::SingleNodeWriter,
    };
    let access_type = if block { AccessType::Block(BlockVolume {}) } else { AccessType::Mount(MountVolume::default()) };
    VolumeCapability { access_mode: Some(AccessMode { mode: mode.into() }), access_type: Some(access_type) }
}

/// Reads a list page by page. A page that fails is asked for again with its token; a token that has become invalid
/// begins the list anew. Some drivers cut a list off at `max_entries` without a token: when the last page is exactly full,
/// the list is asked for once more in one piece.
pub(super) async fn whole<F: Future<Output = Page>>(page: impl Fn(i32, String) -> F) -> List {
    let reading = async {
        let (mut entries, full) = paged(PAGE, &page).await?;
        if full {
            (entries, _) = paged(0, &page).await?;
        }
        let mut list = BTreeMap::<String, Said>::new();
        for (handle, said) in entries {
            merge(list.entry(handle).or_default(), said);
        }
        Ok(list)
    };
    let cut_off = || Err(incomplete(&format!("the driver's list was not complete within {LIST_DEADLINE:?}")));
    tokio::time::timeout(LIST_DEADLINE, reading).await.unwrap_or_else(|_| cut_off())
}

/// All entries, and whether the last page had as many as it may.
async fn paged<F: Future<Output = Page>>(
    max_entries: i32,
    page: &impl Fn(i32, String) -> F,
) -> Result<(Vec<(String, Said)>, bool), Failure> {
    let (mut entries, mut tokens, mut token) = (Vec::new(), BTreeSet::new(), String::new());
    let (mut failed, mut begun) = (0, 1);
    for _ in 0..PAGES_MAX {
        match page(max_entries, token.clone()).await {
            Ok((more, next)) => {
                let full = max_entries > 0 && usize::try_from(max_entries) == Ok(more.len());
                entries.extend(more);
                if next.is_empty() {
                    return Ok((entries, full));
                }
                if !tokens.insert(next.clone()) {
                    return Err(incomplete("the driver repeats a page token"));
                }
                (token, failed) = (next, 0);
            }
            Err(failure) if failure.code == "Aborted" && !token.is_empty() && begun < ATTEMPTS => {
                begun += 1;
                (entries, tokens, token) = (Vec::new(), BTreeSet::new(), String::new());
            }
            Err(failure) if failure.class == FailureClass::Retry && failed + 1 < ATTEMPTS => failed += 1,
            Err(failure) => return Err(failure),
        }
    }
    Err(incomplete("the driver's list does not end"))
}

/// A volume may be on two pages.
fn merge(known: &mut Said, more: Said) {
    match (&mut known.health, more.health) {
        (Some(known), Some(more)) => known.extend(more),
        (known, more) => *known = known.take().or(more),
    }
    match (&mut known.nodes, more.nodes) {
        (Some(known), Some(more)) => known.extend(more),
        (known, more) => *known = known.take().or(more),
    }
}

/// What ListVolumes and ControllerGetVolume tell, as far as the driver vouches for it.
fn said(offers: &Offers, status: Option<(Vec<String>, Option<VolumeCondition>)>) -> Said {
    let Some((nodes, condition)) = status else { return Said::default() };
    // Some drivers write one empty id for a volume that is published nowhere.
    let nodes: BTreeSet<_> = nodes.into_iter().filter(|node| !node.is_empty()).collect();
    Said {
        health: condition.filter(|_| offers.contains(&Offer::Condition)).map(from_condition),
        nodes: offers.contains(&Offer::PublishedNodes).then_some(nodes),
    }
}

/// "Abnormal" is all that such a driver can say of the health of a volume: new users are kept off it.
fn from_condition(condition: VolumeCondition) -> Vec<Problem> {
    let abnormal = condition.abnormal.then(|| Trouble {
        state: VolumeState::Inaccessible,
        reason: "VolumeConditionAbnormal".into(),
        message: clean::message(&condition.message),
    });
    abnormal.into_iter().collect()
}

fn healthy_or_not(health: VolumeHealth) -> Said {
    Said { health: Some(health.health_statuses.into_iter().map(from_entry).collect()), nodes: None }
}

/// A value that we do not know is never healthy; its number is kept.
fn from_entry(entry: VolumeHealthEntry) -> Problem {
    let state = match VolumeHealthErrorType::try_from(entry.status) {
        Ok(VolumeHealthErrorType::Degraded) => VolumeState::Degraded,
        Ok(VolumeHealthErrorType::Inaccessible) => VolumeState::Inaccessible,
        Ok(VolumeHealthErrorType::DataLoss) => VolumeState::DataLoss,
        Ok(VolumeHealthErrorType::UnknownVolumeHealthType) | Err(_) => VolumeState::Unknown,
    };
    let raw_status = (state == VolumeState::Unknown).then_some(entry.status);
    let cause = Cause { reason: clean::reason(&entry.reason, state), raw_status };
    Trouble { state, reason: cause, message: clean::message(&entry.message) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_taints_where_the_driver_vouches_for_it() {
        let condition = |abnormal| Some(VolumeCondition { abnormal, message: "two disks of five".into() });
        let ill = Trouble {
            state: VolumeState::Inaccessible,
            reason: "VolumeConditionAbnormal".into(),
            message: "two disks of five".to_owned(),
        };
        let told = Offers::from([Offer::Condition]);
        for (offers, condition, expected) in [
            (&told, condition(true), Some(vec![ill])),
            (&told, condition(false), Some(vec![])),
            (&told, None, None),
            (&Offers::new(), condition(true), None),
        ] {
            assert_eq!(said(offers, Some((Vec::new(), condition.clone()))).health, expected, "{condition:?}");
        }
    }
}
