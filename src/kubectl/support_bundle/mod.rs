//! `kubectl bulkhead support-bundle`: what somebody who helps needs to see, in one archive: our objects, what runs and says
//! what, the Events, and what the other commands answer. No Secret is read, what looks like a credential is masked, and
//! what could not be read is named. It is bounded in time and size.

mod archive;
mod collect;
mod ours;
mod redact;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tokio::time::Instant;

use crate::api::time;
use crate::kubectl::error::{Error, Result};
use crate::kubectl::gather::Cluster;
use crate::kubectl::print::{Page, Report};
use crate::runtime::clock::Clock;

pub use archive::Index;

use archive::Archive;
use collect::Collector;

/// What is collected, and within which bounds.
#[derive(Debug, Args)]
pub struct SupportBundle {
    /// The archive. Without it: bulkhead-support-TIME.tar.gz in the current folder.
    #[arg(long)]
    file: Option<PathBuf>,
    /// Collect no longer than this.
    #[arg(long, default_value = "2m")]
    timeout: time::Duration,
    /// Collect no more than this many mebibytes, before they are compressed.
    #[arg(long, default_value_t = 200)]
    max_size: u32,
    /// Of each log the last this many kibibytes.
    #[arg(long, default_value_t = 2048)]
    log_size: u32,
}

impl SupportBundle {
    /// Collects.
    pub async fn run(&self, cluster: &Cluster) -> Result<Index> {
        let at = time::stamp(Clock::system().now().wall);
        let named = || PathBuf::from(format!("bulkhead-support-{}.tar.gz", at.format("%Y%m%dT%H%M%SZ")));
        let path = self.file.clone().unwrap_or_else(named);
        let unwritable = |error| Error::Unwritable(format!("{}: {error}; --file names another place", path.display()));
        let room = usize::try_from(self.max_size).unwrap_or(usize::MAX).saturating_mul(1 << 20);
        let archive = Archive::create(&path, room, at).map_err(unwritable)?;
        let end = Instant::now() + self.timeout.get().max(Duration::from_secs(1));
        let mut collector = Collector { cluster, archive, end, log_bytes: i64::from(self.log_size) << 10 };
        collector.all().await.map_err(unwritable)?;
        collector.archive.finish().map_err(unwritable)
    }
}

impl Report for Index {
    fn text(&self) -> String {
        let bytes: usize = self.files.iter().map(|file| file.bytes).sum();
        let page = Page::default().line(format!(
            "{}: {} files, {} KiB before compression. Values that look like credentials are masked: look through it all the \
             same before you pass it on",
            self.file.display(),
            self.files.len(),
            bytes.div_ceil(1024)
        ));
        let page = if self.not_read.is_empty() { page } else { page.line("").line("NOT IN IT") };
        page.list(self.not_read.iter().map(|it| format!("{}: {}", it.what, it.why))).end()
    }
}
