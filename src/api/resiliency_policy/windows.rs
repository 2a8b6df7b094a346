//! When no new fence is opened.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::api::time::Duration;

/// One window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct MaintenanceWindow {
    /// Name shown in status and Events.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Start as a five-field cron expression: minute, hour, day of month, month, day of week. A start that the clock skips
    /// when summer time begins is the first moment after the gap; of one that the clock shows twice it is the first, or
    /// both where minute or hour begins with a star.
    #[schemars(length(min = 9, max = 128), regex(pattern = r"^(\S+\s+){4}\S+$"))]
    #[x_kube(validation = Rule::new(r"self.matches('^([0-9*,/-]+)\\s+([0-9*,/-]+)\\s+([0-9*,/L-]+)\\s+([0-9A-Za-z*,/-]+)\\s+([0-9A-Za-z*,/#L-]+)$')").message("must be a five-field cron expression such as 0 2 * * SUN"))]
    pub schedule: String,
    /// Length of the window, as a duration from 1m to 168h. It is time that passes, whatever the clock shows.
    #[x_kube(validation = Rule::new("duration(self) >= duration('1m') && duration(self) <= duration('168h')").message("must be between 1m and 168h"))]
    pub duration: Duration,
    /// IANA time zone of schedule, such as Europe/Berlin.
    #[schemars(length(min = 1, max = 64))]
    #[x_kube(validation = Rule::new("self != 'Local' && timestamp('2026-01-01T00:00:00Z').getFullYear(self) > 2000").message("must be an IANA time zone name such as UTC or Europe/Berlin"))]
    pub time_zone: String,
}
