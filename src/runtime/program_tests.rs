use std::sync::atomic::Ordering;

use tokio::time::{Instant, sleep};

use super::super::leader::{Leadership, tests::Server};
use super::*;

/// A leader that works so once it is told to end, and is told so at once. Returns whether the Lease was lost.
async fn end<Work: Future<Output = ()>>(
    server: &Server,
    work: impl FnOnce(CancellationToken, Leadership) -> Work,
) -> bool {
    let (leadership, election, withdraw) = server.candidate("a");
    leadership.acquired().await;
    let cancel = CancellationToken::new();
    let work = work(cancel.clone(), leadership);
    serve_until(std::future::ready(()), cancel, Candidacy { election, withdraw }, work).await
}

#[tokio::test(start_paused = true)]
async fn the_lease_is_released_after_the_work_has_ended() {
    let server = Server::default();
    let lost = end(&server, async |cancel: CancellationToken, leadership: Leadership| {
        cancel.cancelled().await;
        for _ in 0..20 {
            sleep(Duration::from_millis(100)).await;
            assert!(leadership.remaining().is_some(), "it leads while it drains");
            assert!(server.holder().starts_with("a_"));
        }
    });
    assert!(!lost.await);
    assert_eq!(server.holder(), "", "nobody has to wait for the next leader");
}

#[tokio::test(start_paused = true)]
async fn work_that_hangs_and_a_server_that_is_down_do_not_delay_the_end() {
    let server = Server::default();
    let told = Instant::now();
    let lost = end(&server, async |cancel: CancellationToken, _| {
        cancel.cancelled().await;
        server.down.store(true, Ordering::SeqCst);
        std::future::pending().await
    });
    assert!(!lost.await);
    assert!(told.elapsed() < Duration::from_secs(5), "{:?}", told.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_ends_the_work_and_is_a_failure() {
    let server = Server::default();
    let (leadership, election, withdraw) = server.candidate("a");
    leadership.acquired().await;
    server.down.store(true, Ordering::SeqCst);
    let cancel = CancellationToken::new();
    let work = cancel.clone().cancelled_owned();
    assert!(serve_until(std::future::pending(), cancel, Candidacy { election, withdraw }, work).await);
}
