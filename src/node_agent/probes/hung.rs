//! Requests that nobody answers. Pure.

use std::time::Duration;

use super::{HostView, Seen, Subject, inaccessible};
use crate::api::hysteresis::Sample;
use crate::api::volume::Check;

/// How long requests may wait without a single one completed: a device under load completes some.
pub const STALLED: Duration = Duration::from_secs(60);

/// Looks at the requests that wait for the device.
pub fn look(view: &HostView, subject: &Subject) -> Vec<Seen> {
    let facts = view.device_of(subject).and_then(|device| view.devices.get(&device)?.as_ref());
    let Some(facts) = facts else { return Vec::new() };
    let sample = match facts.stalled {
        Some(time) if time >= STALLED => {
            inaccessible("IOHung", format!("{} has completed no request for {} s", facts.name, time.as_secs()))
        }
        _ => Sample::Good,
    };
    vec![Seen::of(subject, Check::HungIO, sample)]
}
