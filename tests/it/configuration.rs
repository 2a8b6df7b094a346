//! A program that is configured wrongly ends at once, with an error that names what is wrong and a status that a kubelet
//! takes for a failure. No control plane.

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};

/// A program, and what it cannot start without.
type Program = (&'static str, &'static [&'static str]);

const PROGRAMS: [Program; 3] = [
    (env!("CARGO_BIN_EXE_bulkhead-controller"), &[]),
    (env!("CARGO_BIN_EXE_bulkhead-csi-sidecar"), &[]),
    (env!("CARGO_BIN_EXE_bulkhead-node-agent"), &["--node-name=node-1"]),
];
/// Nothing is waited for.
const AT_ONCE: Duration = Duration::from_secs(20);

/// All tests of this module.
pub fn trials() -> Vec<Trial> {
    vec![
        Trial::test("configuration::a_wrong_flag_is_named_and_ends_the_program", wrong_flags),
        Trial::test("configuration::a_file_that_is_missing_is_named_and_ends_the_program", missing_file),
    ]
}

fn wrong_flags() -> Result<(), Failed> {
    for (program, needed) in PROGRAMS {
        for (wrong, named) in [
            ("--no-such-flag", "--no-such-flag"),
            ("--listen=everywhere", "--listen"),
            ("--log-format=poem", "--log-format"),
        ] {
            let (status, said) = ended(program, needed, &[wrong])?;
            assert_eq!(status, Some(2), "{program} {wrong}: {said}");
            assert!(said.contains(named), "{program} {wrong}: {said}");
        }
    }
    Ok(())
}

fn missing_file() -> Result<(), Failed> {
    for (program, needed) in PROGRAMS {
        let (status, said) = ended(program, needed, &["--kubeconfig=/nowhere/config", "--listen=127.0.0.1:0"])?;
        assert!(status.is_some_and(|status| status != 0), "{program} ended with {status:?}: {said}");
        assert!(said.contains("/nowhere/config"), "{program}: {said}");
    }
    Ok(())
}

/// The exit status of the program, and all that it said.
fn ended(program: &str, needed: &[&str], wrong: &[&str]) -> Result<(Option<i32>, String), Failed> {
    let mut command = Command::new(program);
    command.args(needed).args(wrong).env_clear().stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let began = Instant::now();
    while child.try_wait()?.is_none() {
        if began.elapsed() > AT_ONCE {
            child.kill()?;
            return Err(format!("{program} {wrong:?} does not end").into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let Output { status, stdout, stderr } = child.wait_with_output()?;
    let said = format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    Ok((status.code(), said))
}
