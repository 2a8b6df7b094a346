//! Reads the apiserver's audit log: who asked for what, when, and with which answer. Tests and
//! benchmarks count API requests here. A record is written just before its response ends, so a
//! client may see its answer a moment earlier.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use serde::Deserialize;
use serde_json::Value;

/// The audit log of one apiserver.
#[derive(Clone, Debug)]
pub struct Audit {
    path: PathBuf,
}

/// One finished request.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Who asked.
    pub user: String,
    /// The verb, such as `patch`.
    pub verb: String,
    /// The plural name of the kind; empty for requests such as `/readyz`.
    pub resource: String,
    /// Such as `status`; empty for the object itself.
    pub subresource: String,
    /// The object's namespace; empty for cluster-wide kinds.
    pub namespace: String,
    /// The object's name; empty for lists, and for creations with a generated name.
    pub name: String,
    /// The HTTP status of the answer; 0 where there was none.
    pub code: u16,
    /// When the request came in, to the microsecond.
    pub received: DateTime<Utc>,
    /// When it was finished, to the microsecond.
    pub finished: DateTime<Utc>,
    /// What was sent; kept for patches and updates of nodes and NodeFences, and for deletions of pods
    /// and attachments.
    pub body: Option<Value>,
}

impl Record {
    /// Whether the request asks for a change, whatever the answer.
    pub fn is_write(&self) -> bool {
        matches!(self.verb.as_str(), "create" | "update" | "patch" | "delete" | "deletecollection")
    }

    /// Whether the request was granted and done.
    pub fn succeeded(&self) -> bool {
        (200..300).contains(&self.code)
    }

    /// Whether this is a successful write of a node whose taints include this one, or a JSON patch that adds it.
    pub fn writes_taint(&self, key: &str, effect: &str) -> bool {
        let is_it = |taint: &Value| {
            let field = |name| taint.get(name).and_then(Value::as_str);
            field("key") == Some(key) && field("effect") == Some(effect)
        };
        self.succeeded() && self.body.as_ref().is_some_and(|body| written_taints(body).any(is_it))
    }
}

/// The taints in a node or a patch of one.
fn written_taints(body: &Value) -> impl Iterator<Item = &Value> {
    let whole = body.pointer("/spec/taints").and_then(Value::as_array);
    let operations = body.as_array().into_iter().flatten().filter(|operation| {
        let is = |name, wanted: fn(&str) -> bool| operation.get(name).and_then(Value::as_str).is_some_and(wanted);
        is("op", |op| op == "add" || op == "replace") && is("path", |path| path.starts_with("/spec/taints"))
    });
    let added = operations.filter_map(|operation| operation.get("value")).flat_map(|value| match value {
        Value::Array(taints) => taints.as_slice(),
        taint => std::slice::from_ref(taint),
    });
    whole.into_iter().flatten().chain(added)
}

impl Audit {
    /// The log in this file, which need not be there yet.
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// The log's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All records so far, in the order in which the requests were finished.
    ///
    /// # Errors
    /// When the file cannot be opened; a testbed without an audit log has none.
    pub fn records(&self) -> io::Result<impl Iterator<Item = Record> + use<>> {
        Ok(read(BufReader::new(File::open(&self.path)?)))
    }

    /// Where the log ends now, for [`Audit::records_since`].
    ///
    /// # Errors
    /// When there is no such file.
    pub fn end(&self) -> io::Result<u64> {
        Ok(std::fs::metadata(&self.path)?.len())
    }

    /// The records of requests that were finished after the log ended there.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn records_since(&self, end: u64) -> io::Result<impl Iterator<Item = Record> + use<>> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(end))?;
        Ok(read(BufReader::new(file)))
    }

    /// The first record that matches.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn first(&self, matches: impl FnMut(&Record) -> bool) -> io::Result<Option<Record>> {
        Ok(self.records()?.find(matches))
    }

    /// How many writes each user asked for, by resource with subresource (`nodes/status`).
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn writes(&self) -> io::Result<BTreeMap<(String, String), usize>> {
        let mut counts = BTreeMap::new();
        for record in self.records()?.filter(Record::is_write) {
            let resource = match record.subresource.as_str() {
                "" => record.resource,
                subresource => format!("{}/{subresource}", record.resource),
            };
            *counts.entry((record.user, resource)).or_default() += 1;
        }
        Ok(counts)
    }
}

/// A line that is not a whole record is one that is just being written: it is left out.
fn read(lines: impl BufRead) -> impl Iterator<Item = Record> {
    lines.lines().map_while(Result::ok).filter_map(|line| serde_json::from_str::<Event>(&line).ok()).map(Record::from)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    verb: String,
    user: User,
    #[serde(default)]
    object_ref: ObjectRef,
    #[serde(default)]
    response_status: Status,
    request_received_timestamp: DateTime<Utc>,
    stage_timestamp: DateTime<Utc>,
    request_object: Option<Value>,
}

#[derive(Deserialize)]
struct User {
    #[serde(default)]
    username: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ObjectRef {
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    code: u16,
}

impl From<Event> for Record {
    fn from(event: Event) -> Self {
        Self {
            user: event.user.username,
            verb: event.verb,
            resource: event.object_ref.resource,
            subresource: event.object_ref.subresource,
            namespace: event.object_ref.namespace,
            name: event.object_ref.name,
            code: event.response_status.code,
            received: event.request_received_timestamp,
            finished: event.stage_timestamp,
            body: event.request_object,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATCH: &str = r#"{"kind":"Event","level":"Request","stage":"ResponseComplete",
        "verb":"patch","user":{"username":"system:serviceaccount:kube-system:node-controller"},
        "objectRef":{"resource":"nodes","name":"node-1","apiVersion":"v1"},
        "responseStatus":{"metadata":{},"code":200},
        "requestObject":{"spec":{"taints":[{"key":"node.kubernetes.io/unreachable","effect":"NoSchedule"}]}},
        "requestReceivedTimestamp":"2026-01-02T03:04:05.000006Z",
        "stageTimestamp":"2026-01-02T03:04:05.000789Z"}"#;

    #[test]
    fn a_taint_and_its_time_are_read() {
        let lines = PATCH.replace('\n', "");
        // The second line is cut off, as one that is just being written.
        let text = format!("{lines}\n{}", lines.get(..100).unwrap());
        let records: Vec<_> = read(text.as_bytes()).collect();
        assert_eq!(records.len(), 1);
        assert!(records[0].is_write());
        assert!(records[0].writes_taint("node.kubernetes.io/unreachable", "NoSchedule"));
        assert!(!records[0].writes_taint("node.kubernetes.io/unreachable", "NoExecute"));
        assert_eq!(records[0].finished.timestamp_subsec_micros(), 789);
    }

    #[test]
    fn a_taint_in_a_json_patch_is_read() {
        let taint = r#"{"key":"bulkhead.dev/fenced","effect":"NoSchedule","value":"1"}"#;
        let object = r#"{"spec":{"taints":[{"key":"node.kubernetes.io/unreachable","effect":"NoSchedule"}]}}"#;
        for operation in [
            format!(r#"{{"op":"add","path":"/spec/taints/-","value":{taint}}}"#),
            format!(r#"{{"op":"add","path":"/spec/taints","value":[{taint}]}}"#),
        ] {
            let text = PATCH.replace('\n', "").replace(object, &format!("[{operation}]"));
            let record = read(text.as_bytes()).next().unwrap();
            assert!(record.writes_taint("bulkhead.dev/fenced", "NoSchedule"), "{operation}");
        }
        let test = format!(r#"[{{"op":"test","path":"/spec/taints","value":[{taint}]}}]"#);
        let text = PATCH.replace('\n', "").replace(object, &test);
        let record = read(text.as_bytes()).next().unwrap();
        assert!(!record.writes_taint("bulkhead.dev/fenced", "NoSchedule"), "a test writes nothing");
    }

    #[test]
    fn a_refused_write_taints_nothing() {
        let text = PATCH.replace('\n', "").replace("\"code\":200", "\"code\":409");
        let record = read(text.as_bytes()).next().unwrap();
        assert!(!record.writes_taint("node.kubernetes.io/unreachable", "NoSchedule"));
    }
}
