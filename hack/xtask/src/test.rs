//! `xtask test`: the checks, then every test there is.

use std::path::Path;
use std::time::Instant;

use bulkhead_testbed::binaries::{Binaries, Program};
use bulkhead_testbed::csi_addons::real;
use bulkhead_testbed::{here, mount_s3, real_nodes};

use crate::room::{self, Builds};
use crate::steps::{Steps, cargo};
use crate::{Result, again, check, docs};

/// Tells the tests on the control plane that what takes long is to run too.
const WIDE: &str = "BULKHEAD_WIDE";
/// How many cases of each property `--wide` tries where the property itself does not say.
const WIDE_CASES: &str = "10000";

/// Runs everything and prints, last, how many tests ended how.
pub fn run(root: &Path, wide: bool) -> Result<()> {
    room::check(Builds::Tests)?;
    let mut steps = Steps::new(root);
    let started = Instant::now();
    let done = all(&mut steps, wide);
    println!("==> {:.0} s", started.elapsed().as_secs_f64());
    if let Err(error) = &done {
        println!("==> FAILED: {error}");
    }
    for test in &steps.unsteady {
        println!(
            "==> UNSTEADY: {} {} failed once and then passed {} times by itself",
            test.target,
            test.name,
            again::TIMES
        );
    }
    steps.tell_not_checked();
    println!("{}", steps.counts);
    done
}

fn all(steps: &mut Steps, wide: bool) -> Result<()> {
    check::run(steps)?;
    if wide {
        docs::build(steps)?;
    }
    let mut unit = cargo(&["test", "--workspace", "--no-fail-fast", "--lib", "--bins"]);
    if wide {
        unit.env("PROPTEST_CASES", WIDE_CASES);
    }
    steps.tests("unit and property tests", &mut unit, "a unit test failed: see above")?;
    steps.step("upstream programs", |_| {
        let of_others = [Program::Helm, Program::Kstatus, Program::ArgoCd];
        Ok(Binaries::ensure_all(None, &[&Program::BASE[..], &of_others].concat()).map(drop)?)
    })?;
    steps.step("csi-addons", csi_addons)?;
    // Where the tests on real nodes say themselves what is lacking, nothing is built for them.
    if real_nodes::check().is_ok() {
        steps.step("upstream programs of real nodes", |_| {
            let drivers = [Program::CsiAttacher, Program::CsiProvisioner];
            Ok(Binaries::ensure_all(None, &[&Program::REAL_NODES[..], &drivers].concat()).map(drop)?)
        })?;
        steps.step("mount-s3 of real nodes", |_| Ok(mount_s3::ensure().map(drop)?))?;
    }
    // One selection of packages for all runs of cargo: another would build the dependencies once more.
    let control_plane = &mut cargo(&["test", "--workspace", "--no-fail-fast", "--test", "*"]);
    if wide {
        control_plane.env(WIDE, "1");
    }
    let remedy = "a test on the control plane failed: see above; BULKHEAD_KEEP=1 keeps the folder with its logs";
    steps.tests_with_repeats("control-plane tests", control_plane, remedy)
}

/// One test needs it. Where it cannot run or cannot be had the other tests run, and it is told; in CI it must be there.
fn csi_addons(steps: &mut Steps) -> Result<()> {
    let ready = real::ensure();
    match here::lacking(false, || ready.as_ref()) {
        None => Ok(ready.map(drop)?),
        Some(lacking) => {
            println!("    NOT CHECKED: csi-addons itself ({lacking})");
            steps.not_checked.push(format!("csi-addons itself ({lacking})"));
            Ok(())
        }
    }
}
