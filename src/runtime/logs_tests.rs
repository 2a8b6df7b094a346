use std::io;
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::runtime::queue::{self, Next, QueueConfig};
use crate::runtime::store::ObjectKey;
use crate::runtime::telemetry::Telemetry;

/// A place for lines.
#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    /// Those of this thread, as long as the guard lives.
    pub(crate) fn of_this_thread() -> (Self, tracing::subscriber::DefaultGuard) {
        Self::at("bulkhead=info")
    }

    /// The same of what this filter lets through.
    fn at(filter: &str) -> (Self, tracing::subscriber::DefaultGuard) {
        let lines = Self::default();
        let filter = filter_of(filter).unwrap();
        let subscriber = subscriber("test", LogFormat::Json, filter, &silent(), lines.clone());
        (lines, tracing::subscriber::set_default(subscriber))
    }

    fn parsed(&self) -> Vec<Value> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    pub(crate) fn of(&self, message: &str) -> Vec<Value> {
        self.parsed().into_iter().filter(|line| line["fields"]["message"] == message).collect()
    }

    /// Whether a line's span has the id of a trace.
    pub(crate) fn have_trace(span: &Value) -> bool {
        let id = span["trace_id"].as_str().unwrap_or_default();
        id.len() == 32 && id.chars().all(|c| c.is_ascii_hexdigit()) && id.chars().any(|c| c != '0')
    }
}

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Lines {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

#[test]
fn a_bad_filter_names_itself() {
    let error = init("test", LogFormat::Text, "bulkhead=nonsense=x", None).err().unwrap();
    assert!(error.to_string().contains("bulkhead=nonsense=x"), "{error}");
}

#[test]
fn the_most_verbose_filter_leaves_out_what_would_show_a_key() {
    for filter in ["trace", "info,aws_sigv4=trace"] {
        let (lines, _logging) = Lines::at(filter);
        tracing::trace!(target: "aws_sigv4::http_request::sign", access_key_id = "KEY", "signing request");
        tracing::debug!(target: "aws_sigv4::http_request::sign", "signed");
        assert_eq!((lines.of("signing request").len(), lines.of("signed").len()), (0, 1), "{filter}");
    }
    let (lines, _logging) = Lines::at("trace");
    tracing::trace!("said");
    assert_eq!(lines.of("said").len(), 1);
}

/// Runs two keys of a queue, the second of which fails once, and returns what was logged.
async fn reconciled() -> Lines {
    // This test runs on one thread, and so does everything that it starts.
    let (lines, _logging) = Lines::of_this_thread();
    let (queue, receiver) = queue::queue();
    let cancel = CancellationToken::new();
    let config = QueueConfig { kind: "SharedVolume", ..QueueConfig::test("shared_volume") };
    let failed = Arc::new(Mutex::new(false));
    let end = cancel.clone();
    let reconcile = move |key: ObjectKey| {
        let (failed, end) = (failed.clone(), end.clone());
        async move {
            if key.name == "sound" {
                note_policies(["databases", "rest"]);
                tracing::info!(step = "switch", "worked on");
                return Ok(Next::Await);
            }
            if !std::mem::replace(&mut *failed.lock().unwrap(), true) {
                return Err(Error::Invalid("no".into()));
            }
            end.cancel();
            Ok(Next::Await)
        }
    };
    queue.add(ObjectKey::namespaced("shop", "sound"));
    queue.add(ObjectKey::cluster("failing"));
    queue::run(config, receiver, &Telemetry::new(), cancel, None, reconcile).await;
    lines
}

#[tokio::test(start_paused = true)]
async fn lines_of_a_reconcile_carry_object_policy_and_trace() {
    let lines = reconciled().await;
    let worked = lines.of("worked on");
    assert_eq!(worked.len(), 1, "{:?}", lines.parsed());
    let (fields, span) = (&worked[0]["fields"], &worked[0]["span"]);
    assert_eq!(fields["step"], "switch");
    for (field, value) in [
        ("name", "reconcile"),
        ("queue", "shared_volume"),
        ("object_kind", "SharedVolume"),
        ("object_namespace", "shop"),
        ("object_name", "sound"),
        ("policy", "databases,rest"),
    ] {
        assert_eq!(span[field], value, "{field} in {span}");
    }
    assert!(Lines::have_trace(span), "{span}");
    // What the queue itself says of a failure belongs to the reconcile that failed.
    let failed = lines.of("reconcile failed; it is tried again");
    assert_eq!(failed.len(), 1);
    let other = &failed[0]["span"];
    assert_eq!((&other["object_name"], &other["object_namespace"]), (&Value::from("failing"), &Value::Null));
    assert!(Lines::have_trace(other) && other["trace_id"] != span["trace_id"], "{other}");
}
