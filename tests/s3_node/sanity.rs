//! The conformance suite of CSI on the node plugin.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::sync::Arc;

use bulkhead_testbed::binaries::{Binaries, Program};
use libtest_mimic::Trial;

use super::world::{Shared, World, trial};

/// What the suite cannot ask of this driver, and why.
const SKIPPED: &str = "NodePublishVolume should fail when the volume is missing|Node Service should work|Node Service should be idempotent";

pub fn trials(shared: &Arc<Shared>) -> Vec<Trial> {
    vec![trial(shared, "sanity::csi_sanity_passes", csi_sanity_passes)]
}

async fn csi_sanity_passes(world: World) {
    let plugin = world.plugin().await;
    let programs =
        tokio::task::spawn_blocking(|| Binaries::ensure_all(None, &[Program::CsiSanity]).unwrap()).await.unwrap();
    // The suite makes up its targets; this has them where the kubelet has them.
    let script = world.folder.path().join("target.sh");
    let folder = world.kubelet.join("pods/11111111-1111-4111-8111-111111111111/volumes/kubernetes.io~csi/sanity");
    fs::write(&script, format!("#!/bin/sh\nmkdir -p {0}\necho {0}/mount\n", folder.display())).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let mut suite = Command::new(programs.path(Program::CsiSanity));
    suite
        .arg(format!("--csi.endpoint={}", plugin.socket.display()))
        .arg(format!("--csi.createmountpathcmd={}", script.display()))
        .arg(format!("--csi.stagingdir={}", world.folder.path().join("staging").display()))
        .arg(format!("--ginkgo.skip={SKIPPED}"))
        .args(["--ginkgo.focus=Identity Service|Node Service", "--ginkgo.no-color"]);
    let output = tokio::task::spawn_blocking(move || suite.output().unwrap()).await.unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("Passed"), "{said}");
}
