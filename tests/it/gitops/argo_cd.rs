//! What Argo CD says, with its own code for health and differences: its controllers want more than this machine has.

use std::path::Path;
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

/// Which of these objects it would call out of sync, once it has applied them. As it does, this asks the server what each would
/// become.
pub async fn drift(testbed: &Testbed, folder: &Path, objects: &[Value]) -> Result<Vec<String>, Failed> {
    let mut desired = objects.to_vec();
    for object in &mut desired {
        // So it knows what is its own.
        object["metadata"]["annotations"]["argocd.argoproj.io/tracking-id"] = "bulkhead".into();
    }
    let path = file(folder, &desired)?;
    let name = path.to_string_lossy();
    let sync = ["apply", "--server-side", "--force-conflicts", "--field-manager=argocd-controller", "-o", "json"];
    let sync = [&sync[..], &["--show-managed-fields", "-f", &name]].concat();
    testbed.kubectl(&sync).await?;
    let openapi = folder.join("openapi.json");
    std::fs::write(&openapi, testbed.kubectl(&["get", "--raw", "/openapi/v2"]).await?)?;
    let live = live(testbed, &path).await?;
    let predicted = items(&testbed.kubectl(&[&sync[..], &["--dry-run=server"]].concat()).await?)?;
    assert_eq!((predicted.len(), live.len()), (desired.len(), desired.len()));
    let each = live.iter().zip(desired).zip(predicted);
    let questions: Vec<_> = each
        .map(|((live, desired), predicted)| json!({"live": live, "desired": desired, "predicted": predicted}))
        .collect();
    let openapi = openapi.display().to_string();
    let opinions = tokio::task::spawn_blocking(move || ask(&questions, &openapi)).await??;
    assert_eq!(opinions.len(), live.len());
    let differing = opinions.iter().zip(&live).filter(|(opinion, _)| opinion.modified);
    Ok(differing.map(|(it, live)| format!("{}: {} would become {}", told(live), it.is, it.becomes)).collect())
}

fn ask(items: &[Value], openapi: &str) -> Result<Vec<Opinion>, Failed> {
    let settings = kustomize("config/argo-cd")?;
    let binaries = Binaries::ensure_all(None, &[Program::ArgoCd])?;
    let question = json!({"settings": settings[0]["data"], "openapi": openapi, "items": items});
    let answer = feed(&mut Command::new(binaries.path(Program::ArgoCd)), &question)?;
    Ok(serde_json::from_slice(&answer)?)
}
