//! `kubectl bulkhead support-bundle` where our programs are pods.
#![allow(clippy::indexing_slicing, reason = "of a JSON value, which is null where it is missing")]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use bulkhead_testbed::Identity;
use bulkhead_testbed::cluster::real::RealCluster;
use flate2::read::GzDecoder;
use libtest_mimic::Failed;
use serde_json::{Value, json};
use tokio::process::Command;

use super::Outcome;

/// The containers of our programs; that of the sidecar is in the pod of a driver.
const CONTAINERS: [&str; 4] = ["controller", "agent", "bulkhead-csi-sidecar", "s3-plugin"];

/// A log and a scrape of each program.
pub async fn has_logs_and_metrics(cluster: &RealCluster) -> Outcome {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("bundle.tar.gz");
    let Output { status, stdout, stderr } = Command::new(env!("CARGO_BIN_EXE_kubectl-bulkhead"))
        .args(["support-bundle", "-o", "json", "--file"])
        .arg(&file)
        .arg("--kubeconfig")
        .arg(cluster.testbed.kubeconfig(&Identity::Admin)?)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await?;
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    let index: Value = serde_json::from_slice(&stdout)?;
    assert_eq!(index["notRead"], json!([]), "{index:#}");
    let texts = texts(&file)?;
    for container in CONTAINERS {
        for (kind, end, word) in [("logs", "log", ""), ("metrics", "txt", "bulkhead_")] {
            let end = format!("/{container}.{end}");
            let is_there = texts.iter().any(|(path, text)| {
                path.starts_with(kind) && path.ends_with(&end) && !text.is_empty() && text.contains(word)
            });
            assert!(is_there, "{kind} of {container}: {index:#}");
        }
    }
    Ok(())
}

/// What is in the archive, by paths below its folder.
fn texts(archive: &Path) -> Result<BTreeMap<String, String>, Failed> {
    let mut texts = BTreeMap::new();
    for entry in tar::Archive::new(GzDecoder::new(File::open(archive)?)).entries()? {
        let mut entry = entry?;
        let path = entry.path()?.components().skip(1).collect::<PathBuf>();
        let mut text = String::new();
        entry.read_to_string(&mut text)?;
        texts.insert(path.to_string_lossy().into_owned(), text);
    }
    Ok(texts)
}
