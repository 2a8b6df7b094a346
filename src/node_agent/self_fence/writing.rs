//! Writing to a disk that may not answer: one write at a time, and none is waited for for long.

use std::io;
use std::time::Duration;

use tokio::task::JoinHandle;

/// How long a write is waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// A write under way, of something.
pub struct Writing<T> {
    what: T,
    work: JoinHandle<io::Result<()>>,
}

impl<T> Writing<T> {
    /// Begins to write.
    pub fn begin(what: T, work: impl Future<Output = io::Result<()>> + Send + 'static) -> Self {
        Self { what, work: tokio::spawn(work) }
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.work.is_finished()
    }

    /// What was written, and how that ended; or itself, if it takes too long.
    pub async fn ended(mut self) -> Result<(T, io::Result<()>), Self> {
        match tokio::time::timeout(PATIENCE, &mut self.work).await {
            Ok(done) => Ok((self.what, done.unwrap_or_else(|panic| Err(io::Error::other(panic))))),
            Err(_) => Err(self),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_disk_that_does_not_answer_is_not_waited_for() {
        let (answer, answered) = tokio::sync::oneshot::channel();
        let began = tokio::time::Instant::now();
        let writing = Writing::begin("a", async move { answered.await.map_err(io::Error::other) });
        let Err(writing) = writing.ended().await else { panic!("it has not ended") };
        assert!(began.elapsed() >= PATIENCE && !writing.has_ended());
        answer.send(()).unwrap();
        let Ok((what, done)) = writing.ended().await else { panic!("it has ended") };
        assert!(what == "a" && done.is_ok());
    }
}
