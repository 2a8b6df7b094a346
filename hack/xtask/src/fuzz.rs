//! `xtask fuzz`: feeds the parsers of outside input with anything, for a time each.

use std::path::Path;
use std::process::Command;

use crate::Result;
use crate::steps::{Steps, cargo};

/// What to feed.
#[derive(clap::Args)]
pub struct Options {
    /// One parser, by the name of its folder in hack/fuzzing/seeds. Without it all, one after the other.
    target: Option<String>,
    /// How long each is fed.
    #[arg(long, default_value_t = 60)]
    seconds: u32,
}

/// Builds our own crates with what libFuzzer needs to know, and runs it.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let mut steps = Steps::new(root);
    let mut build = cargo(&["build", "--workspace", "--bin", "fuzz", "--features", "bulkhead-fuzzing/libfuzzer"]);
    build.env("RUSTC_WORKSPACE_WRAPPER", root.join("hack/fuzzing/instrument"));
    steps.command("build", &mut build, "libFuzzer needs a C++ compiler, such as the package g++")?;
    // It is built beside this program.
    let program = std::env::current_exe()?.with_file_name("fuzz");
    let built = root.join("target/fuzz");
    for name in targets(root, options.target.as_deref())? {
        let (corpus, found) = (built.join("corpus").join(&name), built.join("found").join(&name));
        std::fs::create_dir_all(&corpus)?;
        std::fs::create_dir_all(&found)?;
        let mut fuzzer = Command::new(&program);
        fuzzer.env("BULKHEAD_FUZZ_TARGET", &name);
        fuzzer.args(["-max_len=4096", "-timeout=10", "-print_final_stats=1"]);
        fuzzer.arg(format!("-max_total_time={}", options.seconds));
        fuzzer.arg(format!("-artifact_prefix={}/", found.display()));
        fuzzer.arg(&corpus).arg(root.join("hack/fuzzing/seeds").join(&name));
        let remedy =
            "an input that its parser does not take is in target/fuzz/found: mend the parser, and keep it as a seed";
        steps.command(&format!("fuzz {name}"), &mut fuzzer, remedy)?;
    }
    Ok(())
}

/// The targets that are meant.
fn targets(root: &Path, one: Option<&str>) -> Result<Vec<String>> {
    let entries = std::fs::read_dir(root.join("hack/fuzzing/seeds"))?;
    let mut names =
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect::<Result<Vec<_>>>()?;
    names.sort();
    match one {
        None => Ok(names),
        Some(one) if names.iter().any(|name| name == one) => Ok(vec![one.to_owned()]),
        Some(one) => Err(format!("{one:?} is no target: name one of {}", names.join(", ")).into()),
    }
}
