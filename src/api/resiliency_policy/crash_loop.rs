//! What a crash loop of a protected pod means, and the record of what was done about it.

use chrono::{DateTime, Utc};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::time::Duration;

/// Protected pod in CrashLoopBackOff.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CrashLoop {
    /// Reschedule deletes the pod gracefully so that it can start on another node; Ignore leaves it. Pods without a
    /// controller and pods of DaemonSets are always left.
    #[serde(default = "CrashLoop::default_action")]
    pub action: CrashLoopAction,
    /// Always, or only when the loop began within window after a NodeFence of its node or former node.
    #[serde(default = "CrashLoop::default_when")]
    pub when: CrashLoopWhen,
    /// Deletes per owner object within window; counts survive pod incarnations.
    #[serde(default = "CrashLoop::default_max_deletes")]
    #[schemars(range(min = 1, max = 100))]
    pub max_deletes: i32,
    /// Length of the budget window, as a duration from 1m to 168h.
    #[serde(default = "CrashLoop::default_window")]
    #[x_kube(validation = Rule::new("duration(self) >= duration('1m') && duration(self) <= duration('168h')").message("must be between 1m and 168h"))]
    pub window: Duration,
}

impl CrashLoop {
    fn default_action() -> CrashLoopAction {
        CrashLoopAction::Reschedule
    }

    fn default_when() -> CrashLoopWhen {
        CrashLoopWhen::Always
    }

    fn default_max_deletes() -> i32 {
        3
    }

    fn default_window() -> Duration {
        Duration::hours(1)
    }
}

impl Default for CrashLoop {
    fn default() -> Self {
        Self {
            action: Self::default_action(),
            when: Self::default_when(),
            max_deletes: Self::default_max_deletes(),
            window: Self::default_window(),
        }
    }
}

/// What is done about a pod in CrashLoopBackOff.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum CrashLoopAction {
    /// It is deleted, gracefully, so that it can start on another node.
    Reschedule,
    /// It stays.
    Ignore,
}

/// When something is done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum CrashLoopWhen {
    /// Whatever the cause.
    Always,
    /// Only when the loop began within the window after a NodeFence of its node or former node.
    AfterIncident,
}

/// One pod that was deleted, or is to be, because of its crash loop. Written before the deletion: what is recorded counts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CrashLoopDelete {
    /// Uid of the object that owns the pod; the budget is its.
    #[serde(rename = "ownerUID")]
    #[schemars(length(min = 1, max = 36))]
    pub owner_uid: String,
    /// Uid of the pod.
    #[serde(rename = "podUID")]
    #[schemars(length(min = 1, max = 36))]
    pub pod_uid: String,
    /// Namespace and name of the pod, for people.
    #[schemars(length(min = 1, max = 317))]
    pub pod: String,
    /// When it was decided.
    pub at: DateTime<Utc>,
}
