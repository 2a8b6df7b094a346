//! One at a time: for a target, and for a Mountpoint Pod. Whoever takes both takes the target's turn first.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::{Mutex as Turn, OwnedMutexGuard};

use crate::runtime::lock::lock;

/// Turns by name, each with what is told to the next. Those that nobody has or waits for are forgotten.
#[derive(Default)]
pub struct Turns<T = ()> {
    by_name: Mutex<HashMap<String, Weak<Turn<T>>>>,
}

impl<T: Default> Turns<T> {
    /// Waits for its turn, and has it as long as the answer lives.
    pub async fn take(&self, name: &str) -> OwnedMutexGuard<T> {
        let turn = {
            let mut by_name = lock(&self.by_name);
            by_name.retain(|_, turn| turn.strong_count() > 0);
            let turn = by_name.get(name).and_then(Weak::upgrade).unwrap_or_default();
            by_name.insert(name.to_owned(), Arc::downgrade(&turn));
            turn
        };
        turn.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn names_wait_for_themselves_only() {
        let turns = Turns::<()>::default();
        let first = turns.take("a").await;
        let _other = turns.take("b").await;
        let second = turns.take("a");
        tokio::pin!(second);
        assert!(futures::poll!(&mut second).is_pending());
        drop(first);
        drop(second.await);
        drop(turns.take("c").await);
        assert_eq!(lock(&turns.by_name).len(), 2);
    }
}
