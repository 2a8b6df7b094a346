//! The way from a node to the API server, which can be cut.

use tokio::sync::{RwLock, RwLockReadGuard, watch};

/// Everything a node asks of the API goes through here.
#[derive(Debug)]
pub(super) struct Network {
    up: watch::Sender<bool>,
    under_way: RwLock<()>,
}

impl Default for Network {
    fn default() -> Self {
        Network { up: watch::Sender::new(true), under_way: RwLock::new(()) }
    }
}

impl Network {
    /// Waits until the network is up. While the passage is held, a cut waits.
    pub async fn pass(&self) -> RwLockReadGuard<'_, ()> {
        let mut up = self.up.subscribe();
        loop {
            // The sender lives in `self`, so this cannot fail.
            let _ = up.wait_for(|up| *up).await;
            let passage = self.under_way.read().await;
            if *self.up.borrow() {
                return passage;
            }
        }
    }

    /// Cuts the network and waits for what is under way.
    pub async fn cut(&self) {
        self.up.send_replace(false);
        let _ = self.under_way.write().await;
    }

    /// The network is back.
    pub fn restore(&self) {
        self.up.send_replace(true);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    const MOMENT: Duration = Duration::from_millis(20);

    #[tokio::test]
    async fn a_cut_waits_for_what_is_under_way_and_lets_nothing_more_through() {
        let network = Network::default();
        let passage = network.pass().await;
        assert!(timeout(MOMENT, network.cut()).await.is_err());
        drop(passage);
        network.cut().await;
        assert!(timeout(MOMENT, network.pass()).await.is_err());
        network.restore();
        let passage = timeout(MOMENT, network.pass()).await.expect("the network is up");
        drop(passage);
    }
}
