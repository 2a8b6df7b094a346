//! One volume that is to be fenced.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::DateTime;

use crate::api::fence_request::{
    Desired, FenceOutcome, FenceRequest, FenceRequestSpec, FenceResult, FencerMethod, FencerMethodType, RequestedVolume,
};
use crate::api::fencing::{NodeIdentity, Proof};
use crate::api::resiliency_policy::CheckSwitch;
use crate::api::time::{self, Now};

use super::super::decide::{Call, Decision, Effect, Failure, FailureClass, Reading, RowKey, Seen, decide};
use super::super::io::Busy;
use super::super::status;

pub const VOLUME: &str = "pv-1";
pub const HANDLE: &str = "vol-1";
pub const NODE: &str = "csi-node-1";

/// A request for one volume, and everything the sidecar knows about it.
pub struct Case {
    pub desired: Desired,
    pub minimum: Proof,
    pub round: i32,
    pub row: Option<FenceResult>,
    pub call: Option<Call>,
    pub reading: Option<Reading>,
    pub io: CheckSwitch,
    pub busy: Option<Busy>,
    pub now: Now,
}

impl Case {
    pub fn new() -> Self {
        let now = Now {
            wall: DateTime::from_timestamp(1_700_000_000, 0).unwrap(),
            mono: Instant::now() + Duration::from_secs(3600),
        };
        Self {
            desired: Desired::Fenced,
            minimum: Proof::Verified,
            round: 1,
            row: None,
            call: None,
            reading: None,
            io: CheckSwitch::Disabled,
            busy: None,
            now,
        }
    }

    pub fn request(&self) -> FenceRequest {
        let volume = RequestedVolume {
            episode: 1,
            name: VOLUME.into(),
            round: self.round,
            uid: None,
            volume_handle: HANDLE.into(),
            node_id: NODE.into(),
            attachment_uid: None,
            attach_required: None,
            cluster_id: None,
            minimum_proof: self.minimum,
            methods: vec![FencerMethod { type_: FencerMethodType::Unpublish, class_name: None }],
        };
        let spec = FenceRequestSpec {
            fencer_name: "csi.example.com".into(),
            node_name: "node-1".into(),
            episode: 1,
            node: NodeIdentity { uid: "u".into(), boot_id: None, provider_id: None, addresses: Vec::new() },
            desired: self.desired,
            call_timeout: time::Duration::seconds(30),
            io_in_progress_check: self.io,
            volumes: vec![volume],
        };
        let mut request = FenceRequest::new("node-1-x", spec);
        request.status = self.row.clone().map(|row| status::compute(&request, vec![row], self.now));
        request
    }

    pub fn decide(&self) -> Decision {
        decide(&self.seen(), self.now)
    }

    pub fn seen(&self) -> Seen {
        let key: RowKey = (1, VOLUME.into());
        Seen {
            request: Arc::new(self.request()),
            calls: self.call.clone().map(|call| (key, call)).into_iter().collect(),
            reading: self.reading.clone(),
            busy: self.busy.clone(),
            let_in: None,
            holds: None,
            looked: None,
        }
    }

    /// Its request wants to know about I/O.
    pub fn asks_about_io(mut self) -> Self {
        self.io = CheckSwitch::Enabled;
        self
    }

    /// The driver was asked, and said that these nodes are doing I/O.
    pub fn busy(mut self, nodes: &[&str]) -> Self {
        self.busy = Some(nodes.iter().map(|node| (*node).to_owned()).collect());
        self
    }

    pub fn minimum(self, minimum: Proof) -> Self {
        Self { minimum, ..self }
    }

    /// What was answered is on record.
    pub fn answered(self, row: FenceResult) -> Self {
        Self { row: Some(row), ..self }
    }

    /// The next round is asked for; nothing that was read or answered before is at hand.
    pub fn asked_again(self, round: i32) -> Self {
        Self { round, busy: None, ..self }
    }

    /// The driver cannot list.
    pub fn unreadable(mut self) -> Self {
        let failure = Failure { code: "Unimplemented", class: FailureClass::Stop, message: "because".into() };
        self.reading = Some(Reading { began: self.now.mono, ended: self.now.wall, published: Err(failure) });
        self
    }

    /// What a pass sees that has read these volumes with their nodes.
    pub fn lists(&self, listed: &[(&str, &[&str])]) -> Seen {
        let nodes = |nodes: &[&str]| Ok(nodes.iter().map(|node| (*node).to_owned()).collect());
        let published = listed.iter().map(|(handle, them)| ((*handle).to_owned(), nodes(them))).collect();
        let reading = Reading { began: self.now.mono, ended: self.now.wall, published: Ok(published) };
        Seen { reading: Some(reading), ..self.seen() }
    }

    /// The one row that is answered.
    pub fn answer(&self) -> FenceResult {
        let decision = self.decide();
        match decision.effects.as_slice() {
            [Effect::Answer(rows)] if rows.len() == 1 => rows[0].clone(),
            other => panic!("no single answer but {other:?}, read: {:?}", decision.read),
        }
    }

    pub fn ago(&self, seconds: u64) -> Instant {
        self.now.mono - Duration::from_secs(seconds)
    }

    /// A read that began so many seconds ago and lists the volume with these nodes.
    pub fn read(mut self, seconds_ago: u64, nodes: &[&str]) -> Self {
        let nodes: BTreeSet<_> = nodes.iter().map(|node| (*node).to_owned()).collect();
        let published = BTreeMap::from([(HANDLE.to_owned(), Ok(nodes))]);
        self.reading = Some(Reading { began: self.ago(seconds_ago), ended: self.now.wall, published: Ok(published) });
        self
    }

    pub fn begun(mut self, round: i32) -> Self {
        let mut row = row(FenceOutcome::Started, round);
        row.published_before_at = Some(self.now.wall);
        self.row = Some(row);
        self.call = Some(Call::Recorded);
        self
    }

    pub fn acknowledged(mut self, seconds_ago: u64, round: i32) -> Self {
        self.call = Some(Call::Acknowledged { at: self.ago(seconds_ago), round });
        self
    }

    pub fn failed(mut self, code: &'static str, class: FailureClass, seconds_ago: u64) -> Self {
        let failure = Failure { code, class, message: "because".into() };
        self.call = Some(Call::Failed { failure, attempts: 1, at: self.ago(seconds_ago), round: self.round });
        self
    }
}

/// A row of the volume that was begun.
pub fn row(result: FenceOutcome, round: i32) -> FenceResult {
    FenceResult {
        episode: 1,
        name: VOLUME.into(),
        round,
        result,
        proof: Proof::None,
        method: None,
        started_at: DateTime::from_timestamp(1_600_000_000, 0),
        published_before_at: None,
        read_back_at: None,
        reason: None,
        message: None,
    }
}
