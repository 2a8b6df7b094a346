//! The fault script: what goes wrong in which calls. It decides nothing about the array's own rules.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use tonic::Code;

use super::calls::Method;
use crate::ledger::Stamp;
use crate::lock::lock;

/// Every code but OK.
pub const FAILURE_CODES: [Code; 16] = [
    Code::Cancelled,
    Code::Unknown,
    Code::InvalidArgument,
    Code::DeadlineExceeded,
    Code::NotFound,
    Code::AlreadyExists,
    Code::PermissionDenied,
    Code::ResourceExhausted,
    Code::FailedPrecondition,
    Code::Aborted,
    Code::OutOfRange,
    Code::Unimplemented,
    Code::Internal,
    Code::Unavailable,
    Code::DataLoss,
    Code::Unauthenticated,
];

/// What goes wrong.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// The operation takes this long, and other operations on its volume are `Aborted` meanwhile.
    Latency(Duration),
    /// Nothing is done and this code is answered.
    Fail(Code),
    /// The operation is done and this code is answered.
    DoThenFail(Code),
    /// OK is answered and nothing was done.
    DoNothing,
    /// The call waits until the fault is removed and is then carried out, also if the caller gave up long ago.
    Hang,
    /// The driver crashes before it does anything.
    CrashBefore,
    /// The operation is done, then the driver crashes before it answers.
    CrashAfter,
    /// `ListVolumes` and `ControllerGetVolume` show what was true this long ago.
    StaleBy(Duration),
    /// `ListVolumes` and `ControllerGetVolume` show what was true at this moment.
    StaleSince(Stamp),
    /// `ListVolumes` leaves these volumes out.
    OmitVolumes(BTreeSet<String>),
    /// `ListVolumes` and `ControllerGetVolume` show volumes without their published nodes.
    OmitNodes,
    /// `ListVolumes` leaves out the entries of its n-th page, counted from 0, but passes on to the next.
    OmitPage(usize),
    /// `ListVolumes` shows one empty node id for a volume that is published nowhere, as does `ControllerGetVolume`.
    EmptyNodeId,
    /// `ListVolumes` cuts the list off at `max_entries` without a token, as if that were all.
    NoToken,
    /// `ListVolumes` answers every page with the token that asked for it, so that the list never ends.
    RepeatToken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    All,
    Gateway,
    Method(Method),
}

/// One line of the fault script: which calls, what effect, how often.
#[derive(Clone, Debug)]
pub struct Fault {
    scope: Scope,
    volume: Option<String>,
    node: Option<String>,
    left: Option<u32>,
    effect: Effect,
}

impl Fault {
    fn new(scope: Scope, effect: Effect) -> Self {
        Fault { scope, volume: None, node: None, left: None, effect }
    }

    /// In calls of `method`.
    pub fn on(method: Method, effect: Effect) -> Self {
        Fault::new(Scope::Method(method), effect)
    }

    /// In all calls.
    pub fn everywhere(effect: Effect) -> Self {
        Fault::new(Scope::All, effect)
    }

    /// In all calls that need the array's management: the Controller, the podmon service, and csi-addons' fences.
    pub fn gateway(effect: Effect) -> Self {
        Fault::new(Scope::Gateway, effect)
    }

    /// Only in calls about `volume`.
    pub fn volume(mut self, volume: &str) -> Self {
        self.volume = Some(volume.to_owned());
        self
    }

    /// Only in calls about `node`, a CSI node id.
    pub fn node(mut self, node: &str) -> Self {
        self.node = Some(node.to_owned());
        self
    }

    /// Only in the next `calls` calls it fits.
    pub fn times(mut self, calls: u32) -> Self {
        self.left = Some(calls);
        self
    }

    fn fits(&self, method: Method, volume: &str, node: &str) -> bool {
        let scope = match self.scope {
            Scope::All => true,
            Scope::Gateway => method.needs_gateway(),
            Scope::Method(own) => own == method,
        };
        let volume = self.volume.as_deref().is_none_or(|own| own == volume);
        scope && volume && self.node.as_deref().is_none_or(|own| own == node)
    }
}

/// A fault that was added; [`FaultScript::remove`] takes it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultId(u64);

/// All faults of one array. Cheap to clone; all clones are the same script.
#[derive(Clone, Debug)]
pub struct FaultScript(Arc<Script>);

#[derive(Debug)]
struct Script {
    next: AtomicU64,
    faults: Mutex<Vec<(FaultId, Fault)>>,
    /// Faults that were removed release the calls that hang in them.
    released: watch::Sender<BTreeSet<u64>>,
}

impl Default for FaultScript {
    fn default() -> Self {
        FaultScript(Arc::new(Script {
            next: AtomicU64::new(0),
            faults: Mutex::default(),
            released: watch::Sender::new(BTreeSet::new()),
        }))
    }
}

impl FaultScript {
    /// Adds a fault; it holds for calls that begin from now on. Faults that fit one call all take effect.
    pub fn add(&self, fault: Fault) -> FaultId {
        let id = FaultId(self.0.next.fetch_add(1, Ordering::Relaxed));
        lock(&self.0.faults).push((id, fault));
        id
    }

    /// Takes a fault back, and lets the calls go that hang in it.
    pub fn remove(&self, fault: FaultId) {
        lock(&self.0.faults).retain(|(id, _)| *id != fault);
        self.release(fault);
    }

    fn release(&self, fault: FaultId) {
        self.0.released.send_modify(|released| {
            released.insert(fault.0);
        });
    }

    /// Puts a fault in the place of another, so that no call comes between that meets neither, and lets the calls go
    /// that hang in the old one.
    pub fn replace(&self, old: FaultId, fault: Fault) -> FaultId {
        let id = FaultId(self.0.next.fetch_add(1, Ordering::Relaxed));
        {
            let mut faults = lock(&self.0.faults);
            faults.retain(|(id, _)| *id != old);
            faults.push((id, fault));
        }
        self.release(old);
        id
    }

    /// Takes all faults back, and lets all hanging calls go.
    pub fn clear(&self) {
        lock(&self.0.faults).clear();
        let all = 0..self.0.next.load(Ordering::Relaxed);
        self.0.released.send_modify(|released| released.extend(all));
    }

    /// What befalls this call; counts it.
    pub(super) fn befall(&self, method: Method, volume: &str, node: &str) -> Vec<(FaultId, Effect)> {
        let mut befallen = Vec::new();
        for (id, fault) in lock(&self.0.faults).iter_mut() {
            if fault.fits(method, volume, node) && fault.left != Some(0) {
                fault.left = fault.left.map(|left| left - 1);
                befallen.push((*id, fault.effect.clone()));
            }
        }
        befallen
    }

    /// Returns when the fault is removed.
    pub(super) async fn released(&self, fault: FaultId) {
        let mut released = self.0.released.subscribe();
        // The sender lives in `self`, so this cannot fail.
        let _ = released.wait_for(|all| all.contains(&fault.0)).await;
    }
}
