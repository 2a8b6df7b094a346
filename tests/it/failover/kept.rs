//! Our programs as a kubelet keeps them. One that loses its Lease ends, as it must: an API server that answers nobody for
//! ten seconds, on a loaded machine, is enough. On a shared cluster all later tests would wait for it in vain.

use std::time::Duration;

use bulkhead_testbed::process::Process;
use tokio::task::JoinSet;

/// A kubelet waits longer each time; nothing here ends so often.
const BACKOFF: Duration = Duration::from_secs(1);

/// A program that is started again, under its name, whenever it ends. Ended for good by being dropped.
pub struct Kept {
    _keeping: JoinSet<()>,
}

impl Kept {
    pub fn new(program: Process) -> Self {
        let mut keeping = JoinSet::new();
        keeping.spawn(keep(program));
        Self { _keeping: keeping }
    }
}

async fn keep(mut program: Process) {
    loop {
        tokio::time::sleep(BACKOFF).await;
        if program.exit_status().is_some() {
            match Process::spawn(program.launch().clone()) {
                Ok(next) => program = next,
                Err(error) => eprintln!("{} does not start again: {error}", program.launch().name),
            }
        }
    }
}
