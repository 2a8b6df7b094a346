//! The sending side of a queue: takes keys one by one, or those that changes concern.

use std::time::Duration;

use tokio::sync::mpsc;

use super::queue::Key;

/// Changes that are taken at once where all are for one key.
const BATCH: usize = 1024;

/// The sending side; clones share the queue.
pub struct Queue<K>(pub(super) mpsc::UnboundedSender<Request<K>>);

impl<K> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// That a key is to be looked at.
pub(super) struct Request<K> {
    pub key: K,
    /// `None`: something relevant changed, look now.
    pub after: Option<Duration>,
}

impl<K> Queue<K> {
    /// Something relevant to this key changed: it runs as soon as a worker is free. Cuts a backoff short,
    /// down to a small floor. Nothing happens once the queue has ended.
    pub fn add(&self, key: K) {
        let _ = self.0.send(Request { key, after: None });
    }

    /// Looks at this key after `delay` at the latest. Does not cut a backoff short.
    pub fn add_after(&self, key: K, delay: Duration) {
        let _ = self.0.send(Request { key, after: Some(delay) });
    }
}

impl<K: Key> Queue<K> {
    /// Adds the keys that each change concerns, in a task, until the changes end. With a `pace` they are gathered for so long,
    /// where changes come in crowds.
    pub fn follow<C, I>(
        &self,
        mut changes: mpsc::UnboundedReceiver<C>,
        pace: Option<Duration>,
        keys: impl Fn(&C) -> I + Send + 'static,
    ) where
        C: Send + 'static,
        I: IntoIterator<Item = K>,
    {
        let queue = self.clone();
        tokio::spawn(async move {
            while let Some(change) = changes.recv().await {
                for key in keys(&change) {
                    queue.add_at(key, pace);
                }
            }
        });
    }

    /// The same where every change concerns this one key. The first list of a large cluster comes by the ten thousand: one
    /// look is for all that are there.
    pub fn follow_all<C>(&self, mut changes: mpsc::UnboundedReceiver<C>, pace: Option<Duration>, key: K)
    where
        C: Send + 'static,
    {
        let queue = self.clone();
        tokio::spawn(async move {
            let mut batch = Vec::new();
            while changes.recv_many(&mut batch, BATCH).await > 0 {
                batch.clear();
                queue.add_at(key.clone(), pace);
            }
        });
    }

    fn add_at(&self, key: K, pace: Option<Duration>) {
        match pace {
            None => self.add(key),
            Some(pace) => self.add_after(key, pace),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn of_each_change_the_keys_that_it_concerns_are_added() {
        let (sender, mut requests) = mpsc::unbounded_channel();
        let queue = Queue(sender);
        for pace in [None, Some(Duration::from_secs(1))] {
            let (changed, changes) = mpsc::unbounded_channel();
            queue.follow(changes, pace, |change: &Vec<&'static str>| change.clone());
            for change in [vec![], vec!["a", "b"], vec!["a"]] {
                changed.send(change).unwrap();
            }
            for expected in ["a", "b", "a"] {
                let Request { key, after } = requests.recv().await.unwrap();
                assert_eq!((key, after), (expected, pace));
            }
        }
    }

    #[tokio::test]
    async fn one_look_is_for_all_changes_that_are_there() {
        let (sender, mut requests) = mpsc::unbounded_channel();
        let (changed, changes) = mpsc::unbounded_channel();
        for change in 0..BATCH * 2 {
            changed.send(change).unwrap();
        }
        drop(changed);
        Queue(sender).follow_all(changes, None, "all");
        let mut looks = Vec::new();
        while let Some(Request { key, after }) = requests.recv().await {
            looks.push((key, after));
        }
        assert_eq!(looks, [("all", None), ("all", None)]);
    }
}
