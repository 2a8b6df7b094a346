//! Events, on the SharedVolume and on its claim: who looks at a pod that does not start finds its claim.

use crate::controllers::{Context, reference};
use crate::runtime::events::EventType;

use super::decide::{Note, Seen};

/// What a pass has done or found.
pub fn tell(cx: &Context, seen: &Seen, notes: &[Note]) {
    for note in notes {
        let shared_volume = seen.shared_volume.metadata.name.as_deref().unwrap_or_default();
        tracing::info!(shared_volume, reason = note.reason, note = note.text, "told");
        let kind = || if note.is_warning { EventType::Warning } else { EventType::Normal };
        let claim = seen.claim.as_deref().map(reference);
        for regarding in [reference(seen.shared_volume.as_ref())].into_iter().chain(claim) {
            cx.events.publish(regarding, kind(), note.reason, "Serve", note.text.clone());
        }
    }
}
