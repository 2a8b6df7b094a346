//! `xtask test`: the checks, then every test there is.

use std::io;
use std::path::Path;
use std::time::Instant;

use bulkhead_testbed::csi_addons::real;
use bulkhead_testbed::{here, mount_s3, real_nodes};

use crate::ahead::{self, Ahead};
use crate::room::{self, Builds};
use crate::steps::{Steps, cargo};
use crate::{Result, again, check, docs};

/// One selection of packages for all runs of cargo: another would build the dependencies once more.
const TEST: [&str; 3] = ["test", "--workspace", "--no-fail-fast"];
/// Of all programs only this one has tests in its own files. Those of the others are in their libraries; `--bins` would link an
/// empty test program for each, whatever `test = false` says.
const UNIT: [&str; 3] = ["--lib", "--bin", "xtask"];
/// All that is in folders `tests`.
const CONTROL_PLANE: [&str; 2] = ["--test", "*"];

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
    let mut upstream = Ahead::begin()?;
    check::run(steps)?;
    if wide {
        docs::build(steps)?;
    }
    // All of them before any is run. A test has the machine for itself: what is built ahead has until then, and is waited for.
    let programs = &mut cargo(&[&TEST[..], &UNIT, &CONTROL_PLANE, &["--no-run"]].concat());
    steps.command("test programs", programs, "a test does not compile: see above")?;
    steps.step("upstream programs", |_| {
        upstream.wait(&mut io::stdout())?;
        ahead::programs()
    })?;
    steps.step("csi-addons", csi_addons)?;
    if real_nodes::check().is_ok() {
        steps.step("mount-s3 of real nodes", |_| Ok(mount_s3::ensure().map(drop)?))?;
    }
    let mut unit = cargo(&[&TEST[..], &UNIT].concat());
    if wide {
        unit.env("PROPTEST_CASES", WIDE_CASES);
    }
    steps.tests("unit and property tests", &mut unit, "a unit test failed: see above")?;
    let control_plane = &mut cargo(&[&TEST[..], &CONTROL_PLANE].concat());
    if wide {
        control_plane.env(WIDE, "1");
    }
    let remedy = "a test on the control plane failed: see above; BULKHEAD_KEEP=1 keeps the folder with its logs";
    steps.tests_with_repeats("control-plane tests", control_plane, remedy)
}

/// One test needs it. Where it cannot run or cannot be had the other tests run, and it is told; in CI it must be there.
fn csi_addons(steps: &mut Steps) -> Result<()> {
    match real::ensure() {
        Err(lacking) if !here::is_ci() => {
            println!("    NOT CHECKED: csi-addons itself ({lacking})");
            steps.not_checked.push(format!("csi-addons itself ({lacking})"));
            Ok(())
        }
        ready => Ok(ready.map(drop)?),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn no_other_program_has_tests_in_its_own_files() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let members = fs::read_dir(root.join("hack")).unwrap().map(|entry| entry.unwrap().path());
        let others = members.chain([root]).filter(|member| !member.ends_with("xtask"));
        let mut programs = 0;
        for member in others {
            let beside = fs::read_dir(member.join("src/bin")).into_iter().flatten().map(|entry| entry.unwrap().path());
            for program in beside.chain([member.join("src/main.rs")]).filter(|program| program.is_file()) {
                let text = fs::read_to_string(&program).unwrap();
                let declared = text.lines().filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'));
                let modules = declared.map(|name| program.with_file_name(format!("{name}.rs")));
                for file in modules.chain([program.clone()]) {
                    let text = fs::read_to_string(&file).unwrap();
                    let has_none = !text.contains("test]") && !text.contains("cfg(test)");
                    assert!(has_none, "{}: its tests belong in the library, nothing runs them here", file.display());
                }
                programs += 1;
            }
        }
        assert!(programs > 10, "only {programs} programs were found");
    }
}
