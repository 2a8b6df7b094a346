//! `testbed-writer` as a container runs it.

use std::fs;
use std::path::Path;

use bulkhead_testbed::process::{Launch, Process, Signal};
use tokio::time::timeout;

use crate::bed::{SOON, WRITER, wait};

fn start(log: &Path, args: &[&str]) -> Process {
    Process::spawn(Launch {
        name: "writer".to_owned(),
        program: WRITER.into(),
        args: args.iter().map(Into::into).collect(),
        env: Vec::new(),
        log: log.to_owned(),
    })
    .unwrap()
}

pub async fn a_writer_goes_on_until_it_is_told_to_end() {
    let folder = tempfile::tempdir().unwrap();
    let (log, journal) = (folder.path().join("log"), folder.path().join("missing/journal"));
    let journal = journal.to_str().unwrap();
    let once = start(&log, &["--journal", journal, "--exit-on-error"]).ended_by_itself().await;
    assert_eq!(once.unwrap().code(), Some(1));

    let mut writer = start(&log, &["--journal", journal, "--every", "10ms"]);
    wait("three refusals", || fs::read_to_string(&log).unwrap().matches("refused to open").count() > 3);
    fs::create_dir(folder.path().join("missing")).unwrap();
    wait("a record", || fs::read_to_string(&log).unwrap().contains("wrote 1\n"));
    writer.signal(Signal::Terminate).unwrap();
    let ended = timeout(SOON, writer.ended_by_itself()).await.unwrap();
    assert_eq!(ended.unwrap().code(), Some(0));

    let _again = start(&log, &["--journal", journal]);
    wait("the journal is found again", || {
        let text = fs::read_to_string(&log).unwrap();
        let last = text.lines().filter_map(|line| line.strip_prefix("opened records=")).next_back();
        last.is_some_and(|records| records != "0")
    });
}
