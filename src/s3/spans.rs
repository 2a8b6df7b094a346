//! What every line carries that is written for one volume: the call or the work, the volume, the pod, and the trace id, as those of
//! a reconcile carry its object.

use tracing::Span;
use tracing::field::Empty;

use crate::runtime::logs::note_trace;

/// Of a call of CSI: for the volume with this id, or of this name where it is to be made; and for a pod.
pub(super) fn call(method: &'static str, volume: &str, pod: Option<&str>) -> Span {
    noted(tracing::info_span!("call", method, volume, pod, trace_id = Empty))
}

/// Of a volume that is mounted again for a pod, which nobody asks for.
pub(super) fn repair(volume: &str, pod: &str) -> Span {
    noted(tracing::info_span!("repair", volume, pod, trace_id = Empty))
}

/// Of the end of a Mountpoint Pod's mount on its node.
pub(super) fn unmount(mountpoint_pod: &str) -> Span {
    noted(tracing::info_span!("unmount", mountpoint_pod, trace_id = Empty))
}

/// Of all that a Mountpoint Pod does once it knows its bucket.
pub(super) fn mount(bucket: &str) -> Span {
    noted(tracing::info_span!("mount", bucket, trace_id = Empty))
}

fn noted(span: Span) -> Span {
    note_trace(&span);
    span
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::logs::tests::Lines;

    #[test]
    fn lines_of_the_work_on_a_volume_say_what_work_it_is() {
        let (lines, _logging) = Lines::of_this_thread();
        call("NodePublishVolume", "handle", Some("shop/web")).in_scope(|| tracing::info!("called"));
        call("DeleteVolume", "handle", None).in_scope(|| tracing::info!("asked"));
        repair("data", "shop/web").in_scope(|| tracing::info!("repaired"));
        unmount("mp-1").in_scope(|| tracing::info!("unmounted"));
        mount("bucket").in_scope(|| tracing::info!("mounted"));
        type Fields = &'static [(&'static str, &'static str)];
        let cases: [(&str, &str, Fields); 5] = [
            ("called", "call", &[("method", "NodePublishVolume"), ("volume", "handle"), ("pod", "shop/web")]),
            ("asked", "call", &[("method", "DeleteVolume"), ("volume", "handle")]),
            ("repaired", "repair", &[("volume", "data"), ("pod", "shop/web")]),
            ("unmounted", "unmount", &[("mountpoint_pod", "mp-1")]),
            ("mounted", "mount", &[("bucket", "bucket")]),
        ];
        for (message, name, fields) in cases {
            let line = lines.of(message).pop().unwrap();
            let span = line["span"].as_object().unwrap();
            assert_eq!(span["name"], name);
            assert!(fields.iter().all(|(field, value)| span[*field] == *value), "{line}");
            // These, its name and the trace.
            assert_eq!(span.len(), fields.len() + 2, "{line}");
            assert!(Lines::have_trace(&line["span"]), "{line}");
        }
    }
}
