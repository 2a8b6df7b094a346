//! The table: which call of the driver fails how, at which stage of a failover, under which proof, and what is to be seen
//! while it does. Only data; how a cell is run stands in `paper` (all cells) and in `real` (those of one call, with the
//! whole control plane).

use bulkhead::api::fence_request::FenceOutcome;
use bulkhead::api::fencing::Proof;
use bulkhead_testbed::array::{Effect, FAILURE_CODES, Method};
use bulkhead_testbed::ledger::Stamp;
use tonic::Code;

/// Codes that the sidecar takes for an answer; after the others it tries again by itself.
const FINAL: [Code; 9] = [
    Code::InvalidArgument,
    Code::NotFound,
    Code::AlreadyExists,
    Code::PermissionDenied,
    Code::FailedPrecondition,
    Code::OutOfRange,
    Code::Unimplemented,
    Code::DataLoss,
    Code::Unauthenticated,
];

/// One code of each kind that the sidecar tells apart: to be tried again, final, of a volume that is not there, and of a
/// call that is not. The others run with `--wide`; for the fence call all run on the whole control plane, always.
const SAMPLED: [Code; 4] = [Code::Unavailable, Code::PermissionDenied, Code::NotFound, Code::Unimplemented];

/// When a call is in trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The sidecar starts, and the incident finds it so.
    Start,
    /// The read before the first fence call.
    Before,
    /// The fence call.
    Fence,
    /// The read-back.
    After,
    /// The fence call is under way; the call in trouble is none that it needs.
    Middle,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Trouble {
    /// This code; nothing is done.
    Fails(Code),
    /// This code, though it was done.
    DoneThenFails(Code),
    /// No answer.
    Hangs,
    /// OK, and nothing was done: an empty answer.
    Nothing,
    /// The driver dies before it does anything.
    CrashesBefore,
    /// The driver dies when it was done.
    CrashesAfter,
    /// What was true before the failover began.
    Stale,
    /// The volume is left out.
    LacksVolume,
    /// The published nodes are left out.
    LacksNodes,
    /// A page is left out.
    LacksPage,
    /// The list never ends.
    NeverEnds,
}

/// One line of the table: a call in trouble at a stage, under a policy.
struct Line {
    call: Method,
    stage: Stage,
    minimum: Proof,
    troubles: Vec<Trouble>,
}

/// One cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// The call.
    pub call: Method,
    /// When.
    pub stage: Stage,
    /// The policy's minimum proof; the method is Unpublish.
    pub minimum: Proof,
    /// How.
    pub trouble: Trouble,
}

/// What is to be seen while the trouble lasts.
#[derive(Clone, Debug, PartialEq)]
pub enum Met {
    /// The fencer's answer: one of these results with its proof, and one of these reasons. The pod stays.
    Answer(Vec<(FenceOutcome, Proof)>, Vec<String>),
    /// No fencer is asked, for one of these reasons. The pod stays.
    NotAsked(&'static [&'static str]),
    /// It does not touch what is proved: the pod is released, with this proof.
    Released(Proof),
    /// The answer under way is a full proof. It counts while it is young; then no fencer is asked again.
    Proved,
}

fn any_call() -> Vec<Trouble> {
    let codes = FAILURE_CODES.into_iter().map(Trouble::Fails);
    codes.chain([Trouble::Hangs, Trouble::Nothing, Trouble::CrashesBefore, Trouble::CrashesAfter]).collect()
}

fn and(mut troubles: Vec<Trouble>, more: &[Trouble]) -> Vec<Trouble> {
    troubles.extend_from_slice(more);
    troubles
}

/// The whole table.
pub fn cells() -> Vec<Cell> {
    use Method::{
        ControllerGetCapabilities, ControllerGetVolume, ControllerUnpublishVolume, GetPluginInfo, ListVolumes, Probe,
    };
    let lists = [Trouble::Stale, Trouble::LacksVolume, Trouble::LacksPage, Trouble::NeverEnds];
    // A read that was done and fails is one that fails.
    let done: Vec<_> = FAILURE_CODES.into_iter().map(Trouble::DoneThenFails).collect();
    let line = |call, stage, troubles| Line { call, stage, minimum: Proof::Verified, troubles };
    let lines = [
        line(ControllerUnpublishVolume, Stage::Fence, and(any_call(), &done)),
        Line { minimum: Proof::Acknowledged, ..line(ControllerUnpublishVolume, Stage::Fence, and(any_call(), &done)) },
        line(ListVolumes, Stage::Before, and(and(any_call(), &lists), &[Trouble::LacksNodes])),
        // After an unpublish that was done, a list without nodes is a true one.
        line(ListVolumes, Stage::After, and(any_call(), &lists)),
        line(ControllerGetVolume, Stage::Before, and(any_call(), &[Trouble::Stale])),
        line(ControllerGetVolume, Stage::After, and(any_call(), &[Trouble::Stale])),
        line(ControllerGetCapabilities, Stage::Before, any_call()),
        line(ControllerGetCapabilities, Stage::After, any_call()),
        line(ControllerGetCapabilities, Stage::Start, any_call()),
        line(Probe, Stage::Start, any_call()),
        line(Probe, Stage::Middle, any_call()),
        line(GetPluginInfo, Stage::Start, any_call()),
        line(GetPluginInfo, Stage::Middle, any_call()),
    ];
    let cells = lines.iter().flat_map(|line| {
        let Line { call, stage, minimum, .. } = *line;
        line.troubles.iter().map(move |trouble| Cell { call, stage, minimum, trouble: *trouble })
    });
    cells.collect()
}

impl Cell {
    /// A name for its objects; of at most 57 characters, since a driver's name has at most 63.
    pub fn id(&self) -> String {
        let text = format!("{:?}-{:?}-{:?}-{:?}", self.call, self.stage, self.minimum, self.trouble);
        let kept =
            text.replace("Controller", "").replace("Volumes", "").replace("Volume", "").replace("Acknowledged", "ack");
        let kept = kept.replace(['(', ')'], "-");
        kept.to_lowercase().trim_matches('-').to_owned()
    }

    /// The line that it stands in, as a name.
    pub fn line(&self) -> String {
        Self { trouble: Trouble::Nothing, ..*self }.id().trim_end_matches("-nothing").to_owned()
    }

    /// The effect on the driver; `begun` is when nothing was published yet or, for the read-back, when it still was.
    pub fn effect(&self, handle: &str, begun: Stamp) -> Effect {
        match self.trouble {
            Trouble::Fails(code) => Effect::Fail(code),
            Trouble::DoneThenFails(code) => Effect::DoThenFail(code),
            Trouble::Hangs => Effect::Hang,
            Trouble::Nothing => Effect::DoNothing,
            Trouble::CrashesBefore => Effect::CrashBefore,
            Trouble::CrashesAfter => Effect::CrashAfter,
            Trouble::Stale => Effect::StaleSince(begun),
            Trouble::LacksVolume => Effect::OmitVolumes([handle.to_owned()].into()),
            Trouble::LacksNodes => Effect::OmitNodes,
            Trouble::LacksPage => Effect::OmitPage(0),
            Trouble::NeverEnds => Effect::RepeatToken,
        }
    }

    /// What is to be seen while it lasts.
    pub fn met(&self) -> Met {
        match (self.stage, self.trouble) {
            (Stage::Start, Trouble::Nothing) if self.call == Method::Probe => Met::Released(self.minimum),
            (Stage::Start, _) => Met::NotAsked(&["FencerMissing", "DriverUnavailable", "Unimplemented"]),
            // The call under way is lost with the driver.
            (Stage::Middle, Trouble::CrashesBefore | Trouble::CrashesAfter) => Met::Answer(vec![STARTED], lost()),
            (Stage::Middle, Trouble::Nothing) if self.call == Method::Probe => Met::Released(self.minimum),
            (Stage::Middle, _) => Met::Proved,
            (Stage::Fence, Trouble::Nothing) if self.minimum == Proof::Acknowledged => {
                Met::Released(Proof::Acknowledged)
            }
            (Stage::Fence, Trouble::Nothing) => Met::Answer(vec![FAILED], vec!["StillPublished".into()]),
            (Stage::Fence, Trouble::Fails(code) | Trouble::DoneThenFails(code)) if FINAL.contains(&code) => {
                Met::Answer(vec![FAILED], self.reasons())
            }
            (Stage::Fence, _) => Met::Answer(vec![STARTED], self.reasons()),
            (Stage::Before, _) => Met::Answer(vec![FAILED], self.reasons()),
            (Stage::After, Trouble::Stale) => Met::Answer(vec![FAILED], vec!["StillPublished".into()]),
            // When it is asked anew, the fence call is what is lost.
            (Stage::After, _) if self.crashes() => Met::Answer(vec![ACKNOWLEDGED, STARTED], lost()),
            (Stage::After, _) => Met::Answer(vec![ACKNOWLEDGED], self.reasons()),
        }
    }

    /// What the sidecar calls the trouble.
    fn reasons(&self) -> Vec<String> {
        let one = |reason: &str| vec![reason.to_owned()];
        match (self.call, self.trouble) {
            (Method::ControllerGetVolume, Trouble::Fails(Code::NotFound)) => one("NotListed"),
            (_, Trouble::Fails(code) | Trouble::DoneThenFails(code)) => vec![format!("{code:?}")],
            (_, Trouble::Hangs) => one("DeadlineExceeded"),
            (_, Trouble::CrashesBefore | Trouble::CrashesAfter) => lost(),
            (Method::ControllerGetCapabilities, Trouble::Nothing) => one("Unimplemented"),
            (_, Trouble::LacksNodes) => one("NeverPublished"),
            (_, Trouble::Stale) => vec!["NeverPublished".into(), "NotListed".into()],
            (_, Trouble::NeverEnds) => one("IncompleteList"),
            (_, Trouble::Nothing | Trouble::LacksVolume | Trouble::LacksPage) => one("NotListed"),
        }
    }

    /// Whether the failover goes on by itself when the trouble is over. `Unimplemented` is for good: a driver does not
    /// learn a call while it runs.
    pub fn ends(&self) -> bool {
        let unimplemented = self.reasons().iter().any(|reason| reason == "Unimplemented");
        !(unimplemented && matches!(self.met(), Met::Answer(..)))
    }

    /// Whether it runs without `--wide`.
    pub fn is_sampled(&self) -> bool {
        match self.trouble {
            Trouble::Fails(code) | Trouble::DoneThenFails(code) => SAMPLED.contains(&code),
            _ => true,
        }
    }

    /// Whether the driver must be started again.
    pub fn crashes(&self) -> bool {
        matches!(self.trouble, Trouble::CrashesBefore | Trouble::CrashesAfter)
    }
}

const STARTED: (FenceOutcome, Proof) = (FenceOutcome::Started, Proof::None);
const FAILED: (FenceOutcome, Proof) = (FenceOutcome::Failed, Proof::None);
/// The call said OK; the proof that the policy wants is lacking.
const ACKNOWLEDGED: (FenceOutcome, Proof) = (FenceOutcome::Fenced, Proof::Acknowledged);

/// How a call ends whose driver dies or is not there.
fn lost() -> Vec<String> {
    ["Unavailable", "Unknown", "Cancelled", "Internal", "DeadlineExceeded"].map(str::to_owned).into()
}
