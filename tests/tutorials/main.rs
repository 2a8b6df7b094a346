//! The pages of `docs/tutorials`, carried out as they are written, on the cluster that `hack/tutorial` gives to people. One
//! page after the other. Needs Linux, root and nfs-ganesha.

mod page;
mod shell;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bulkhead_testbed::cluster::tutorial::Tutorial;
use bulkhead_testbed::here;
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;

use shell::Shell;

/// Why a test failed.
type Outcome = Result<(), Failed>;

/// The pages that are carried out.
const PAGES: [&str; 4] = ["failover", "volume-health", "s3-mounts", "shared-volume"];
/// The one that is carried out in every run; the others take minutes each, and wait for `cargo xtask test --wide`.
const IN_EVERY_RUN: &str = "failover";
/// What is in the folder besides.
const OVERVIEW: &str = "README";

fn main() {
    let mut arguments = Arguments::from_args();
    // Each breaks nodes that all share.
    arguments.test_threads = Some(1);
    let bed = Arc::new(Bed { tutorial: OnceCell::new(), runtime: Runtime::new() });
    let wide = std::env::var_os("BULKHEAD_WIDE").is_some();
    let page = |name| trial(&bed, name).with_ignored_flag(!wide && name != IN_EVERY_RUN);
    let mut trials: Vec<_> = PAGES.into_iter().map(page).collect();
    if let Some(lacking) = here::lacking(arguments.list, Tutorial::check) {
        trials = trials.into_iter().map(|trial| here::unless(Some(&lacking), trial)).collect();
    }
    trials.push(Trial::test("every_page_is_carried_out", every_page_is_carried_out));
    trials.extend(page::trials());
    let conclusion = libtest_mimic::run(&arguments, trials);
    // The nodes end before this process does.
    drop(bed);
    conclusion.exit();
}

/// The cluster, started by the first page that needs it.
struct Bed {
    // Dropped before the runtime that its tasks run on.
    tutorial: OnceCell<Tutorial>,
    runtime: std::io::Result<Runtime>,
}

fn trial(bed: &Arc<Bed>, name: &'static str) -> Trial {
    let bed = bed.clone();
    Trial::test(name, move || {
        let runtime = bed.runtime.as_ref().map_err(|error| error.to_string())?;
        runtime.block_on(async {
            let tutorial = bed.tutorial.get_or_try_init(start).await?;
            let done = tokio::select! {
                done = carry_out(tutorial, name) => done,
                served = tutorial.serve() => Ok(served?),
            };
            // What a page that failed leaves broken must be mended too.
            tutorial.cluster.heal_all().await?;
            done?;
            Ok(tutorial.cluster.judge()?)
        })
    })
}

async fn start() -> Result<Tutorial, Failed> {
    let programs =
        Path::new(env!("CARGO_BIN_EXE_bulkhead-controller")).parent().ok_or("the programs are in no folder")?;
    Ok(Tutorial::start(programs).await?)
}

/// Runs the commands of a page in one shell, and compares what they print with what the page shows.
async fn carry_out(tutorial: &Tutorial, name: &str) -> Outcome {
    let file = folder().join(format!("{name}.md"));
    let steps = page::steps(&std::fs::read_to_string(&file)?);
    if steps.is_empty() {
        return Err(format!("{} has no commands", file.display()).into());
    }
    let mut shell = Shell::start(tutorial.command("bash")?)?;
    for step in steps {
        let at = format!("docs/tutorials/{name}.md, line {}:\n{}", step.line, step.commands);
        let printed = shell.run(&step.commands).await.map_err(|why| format!("{at}\n{why}"))?;
        step.compare(&printed).map_err(|missing| {
            format!("{at}\nThe page shows a line that it did not print:\n{missing}\nIt printed:\n{printed}")
        })?;
    }
    Ok(())
}

fn every_page_is_carried_out() -> Outcome {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder())? {
        let path = entry?.path();
        found.extend(path.file_stem().map(|name| name.to_string_lossy().into_owned()));
    }
    found.retain(|name| name != OVERVIEW);
    found.sort();
    let mut pages = PAGES.to_vec();
    pages.sort_unstable();
    if found == pages { Ok(()) } else { Err(format!("the folder has {found:?}, the test {pages:?}").into()) }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/tutorials")
}
