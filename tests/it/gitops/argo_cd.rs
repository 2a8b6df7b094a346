//! What Argo CD says, with its own code for health and differences: its controllers want more than this machine has.

use std::path::Path;
use std::process::Command;

use bulkhead_testbed::Testbed;
use bulkhead_testbed::binaries::{Binaries, Program};
use libtest_mimic::Failed;
use serde::Deserialize;
use serde_json::{Value, json};

use super::world::{feed, told};
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

/// Which objects it would call out of sync, if git has these. As Argo CD does it asks the server what each would become.
pub async fn drift(testbed: &Testbed, folder: &Path, desired: &[Value], live: &[Value]) -> Result<Vec<String>, Failed> {
    let openapi = folder.join("openapi.json");
    std::fs::write(&openapi, testbed.kubectl(&["get", "--raw", "/openapi/v2"]).await?)?;
    let (mut found, file) = (Vec::new(), folder.join("desired.json"));
    let mut questions = Vec::new();
    for (desired, live) in desired.iter().zip(live) {
        std::fs::write(&file, desired.to_string())?;
        let dry =
            ["apply", "--server-side", "--dry-run=server", "--force-conflicts", "--field-manager=argocd-controller"];
        let show = ["--show-managed-fields", "-o", "json", "-f", &file.to_string_lossy()];
        let predicted: Value = serde_json::from_str(&testbed.kubectl(&[&dry[..], &show].concat()).await?)?;
        questions.push(json!({"live": live, "desired": desired, "predicted": predicted}));
    }
    let openapi = openapi.display().to_string();
    let opinions = tokio::task::spawn_blocking(move || ask(&questions, &openapi)).await??;
    assert_eq!(opinions.len(), live.len());
    for (opinion, live) in opinions.iter().zip(live) {
        if opinion.modified {
            found.push(format!("{}: {} would become {}", told(live), opinion.is, opinion.becomes));
        }
    }
    Ok(found)
}

fn ask(items: &[Value], openapi: &str) -> Result<Vec<Opinion>, Failed> {
    let settings = kustomize("config/argo-cd")?;
    let binaries = Binaries::ensure_all(None, &[Program::ArgoCd])?;
    let question = json!({"settings": settings[0]["data"], "openapi": openapi, "items": items});
    let answer = feed(&mut Command::new(binaries.path(Program::ArgoCd)), &question)?;
    Ok(serde_json::from_slice(&answer)?)
}
