//! Reads of proc and sysfs. They do not wait for storage, but a kernel in trouble may keep even them: nobody waits for ever,
//! and what does not end is not begun again.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

/// What takes longer is not known.
const DEADLINE: Duration = Duration::from_secs(10);

/// One kind of read, one at a time.
#[derive(Clone)]
pub struct Reads {
    what: &'static str,
    deadline: Duration,
    place: Arc<Semaphore>,
}

impl Reads {
    /// `what` is for people.
    pub fn new(what: &'static str) -> Self {
        Self { what, deadline: DEADLINE, place: Arc::new(Semaphore::new(1)) }
    }

    /// What was read; nothing if it is not there in time, or an earlier read has not ended.
    pub async fn run<T: Send + 'static>(&self, read: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let Ok(place) = self.place.clone().try_acquire_owned() else {
            tracing::warn!(what = self.what, "an earlier read has not ended: nothing is known of it");
            return None;
        };
        let reading = tokio::task::spawn_blocking(move || {
            let read = read();
            drop(place);
            read
        });
        match tokio::time::timeout(self.deadline, reading).await {
            Ok(Ok(read)) => Some(read),
            Ok(Err(panic)) => {
                tracing::error!(what = self.what, %panic, "a read ended without an answer");
                None
            }
            Err(_) => {
                tracing::warn!(what = self.what, deadline = ?self.deadline, "no answer of the kernel: nothing is known of it");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn nobody_waits_for_ever_and_what_does_not_end_is_not_begun_again() {
        let reads = Reads { deadline: Duration::from_millis(50), ..Reads::new("test") };
        assert_eq!(reads.run(|| 1).await, Some(1));
        let (go_on, told) = mpsc::channel::<()>();
        assert_eq!(reads.run(move || told.recv().is_ok()).await, None, "it takes too long");
        assert_eq!(reads.run(|| 2).await, None, "the first has not ended");
        go_on.send(()).unwrap();
        drop(reads.place.acquire().await.unwrap());
        assert_eq!(reads.run(|| 3).await, Some(3));
        let reads = Reads::new("test");
        assert_eq!(reads.run(|| -> u8 { panic!("as the test says") }).await, None);
        assert_eq!(reads.run(|| 4).await, Some(4), "a panic gives the place back");
    }
}
