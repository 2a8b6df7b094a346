//! A writer: what an application does with its volume, without end and without looking at the API.

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use crate::array::io_protocol::{IoError, OpenVolume};

/// One volume of one pod, as it is written to.
pub(super) struct Writer {
    pub io_socket: PathBuf,
    pub volume: String,
    pub csi_node_id: String,
    /// The pod's uid.
    pub tag: String,
    pub every: Duration,
    pub frozen: watch::Receiver<bool>,
}

impl Writer {
    /// Writes until it is aborted. An application that gets I/O errors and does not end is the worst case, so this one
    /// tries on.
    pub async fn run(mut self) {
        let mut ticks = interval(self.every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut sequence = 0;
        loop {
            if let Err(error) = self.write_on(&mut ticks, &mut sequence).await {
                tracing::debug!(%error, volume = self.volume, "a writer connects again");
            }
            ticks.tick().await;
        }
    }

    async fn write_on(&mut self, ticks: &mut tokio::time::Interval, sequence: &mut u64) -> Result<(), IoError> {
        let mut disk = OpenVolume::open(&self.io_socket, &self.volume, &self.csi_node_id).await?;
        loop {
            ticks.tick().await;
            if self.frozen.wait_for(|frozen| !*frozen).await.is_err() {
                // The node is gone, and this task with it in a moment.
                return Ok(());
            }
            *sequence += 1;
            match disk.write(*sequence, &self.tag).await {
                Ok(()) | Err(IoError::Refused(_)) => {}
                Err(error) => return Err(error),
            }
        }
    }
}
