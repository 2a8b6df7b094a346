//! What Argo CD says, with its own code for health and differences: its controllers want more than this machine has.

use std::path::{Path, PathBuf};
use std::process::Command;

use bulkhead_testbed::Testbed;
use bulkhead_testbed::binaries::{Binaries, Program};
use libtest_mimic::Failed;
use serde::Deserialize;
use serde_json::{Value, json};

use super::world::{feed, file, items, live, told};
use crate::chart::render::kustomize;

/// What it says of one object.
#[derive(Debug, Deserialize)]
pub struct Opinion {
    /// `Healthy`, `Progressing`, `Degraded` …
    pub health: String,
    /// Why.
    pub message: String,
    /// Whether git has something else.
    pub modified: bool,
    /// The object, and what it would become.
    pub is: String,
    pub becomes: String,
}

/// How healthy each object is, with the settings that we ship.
pub fn health(objects: &[Value]) -> Result<Vec<Opinion>, Failed> {
    ask(&objects.iter().map(|live| json!({"live": live})).collect::<Vec<_>>(), "")
}

/// What Argo CD has synced.
pub struct Synced {
    /// What it has from git, with its own mark.
    desired: Vec<Value>,
    /// The same as a file.
    file: PathBuf,
    /// The file that holds how the server describes its kinds.
    openapi: PathBuf,
}

/// Applies these objects as it does.
pub async fn sync(testbed: &Testbed, folder: &Path, objects: &[Value]) -> Result<Synced, Failed> {
    let mut desired = objects.to_vec();
    for object in &mut desired {
        // So it knows what is its own.
        object["metadata"]["annotations"]["argocd.argoproj.io/tracking-id"] = "bulkhead".into();
    }
    let synced = Synced { file: file(folder, &desired)?, desired, openapi: folder.join("openapi.json") };
    synced.apply(testbed, &[]).await?;
    std::fs::write(&synced.openapi, testbed.kubectl(&["get", "--raw", "/openapi/v2"]).await?)?;
    Ok(synced)
}

impl Synced {
    /// Which of the objects it would call out of sync now. As it does, this asks the server what each would become; nothing is
    /// written.
    pub async fn drift(&self, testbed: &Testbed) -> Result<Vec<String>, Failed> {
        let live = live(testbed, &self.file).await?;
        let mut predicted = items(&self.apply(testbed, &["--dry-run=server"]).await?)?;
        assert_eq!((predicted.len(), live.len()), (self.desired.len(), self.desired.len()));
        // It compares no status (`ignoreResourceStatusField: all`, the default), and wants to see it all the same, for health: what a
        // controller takes out of one between these two looks is no drift.
        for (live, predicted) in live.iter().zip(&mut predicted) {
            predicted["status"] = live["status"].clone();
            if let Some(fields) = predicted.as_object_mut().filter(|fields| fields["status"].is_null()) {
                fields.remove("status");
            }
        }
        let each = live.iter().zip(&self.desired).zip(&predicted);
        let questions: Vec<_> = each
            .map(|((live, desired), predicted)| json!({"live": live, "desired": desired, "predicted": predicted}))
            .collect();
        let openapi = self.openapi.display().to_string();
        let opinions = tokio::task::spawn_blocking(move || ask(&questions, &openapi)).await??;
        assert_eq!(opinions.len(), live.len());
        let differing = opinions.iter().zip(&live).filter(|(opinion, _)| opinion.modified);
        Ok(differing.map(|(it, live)| format!("{}: {} would become {}", told(live), it.is, it.becomes)).collect())
    }

    /// Applies all of it, and returns what the objects are then.
    async fn apply(&self, testbed: &Testbed, further: &[&str]) -> Result<String, Failed> {
        let name = self.file.to_string_lossy();
        let sync = ["apply", "--server-side", "--force-conflicts", "--field-manager=argocd-controller", "-o", "json"];
        let sync = [&sync[..], &["--show-managed-fields", "-f", &name], further].concat();
        Ok(testbed.kubectl(&sync).await?)
    }
}

fn ask(items: &[Value], openapi: &str) -> Result<Vec<Opinion>, Failed> {
    let settings = kustomize("config/argo-cd")?;
    let binaries = Binaries::ensure_all(None, &[Program::ArgoCd])?;
    let question = json!({"settings": settings[0]["data"], "openapi": openapi, "items": items});
    let answer = feed(&mut Command::new(binaries.path(Program::ArgoCd)), &question)?;
    Ok(serde_json::from_slice(&answer)?)
}
