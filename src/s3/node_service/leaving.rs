//! Targets that are being left. Whoever publishes there, and only waits for something, gives up: a pod ends at once though
//! what is to serve its volume does not come.

use std::collections::BTreeMap;

use tokio::sync::watch;

/// Targets, and how many calls leave each.
#[derive(Default)]
pub struct Leaving {
    targets: watch::Sender<BTreeMap<String, usize>>,
}

/// A target is left as long as this lives.
pub struct Left<'a> {
    leaving: &'a Leaving,
    target: &'a str,
}

impl Leaving {
    /// Tells all who wait.
    pub fn announce<'a>(&'a self, target: &'a str) -> Left<'a> {
        self.targets.send_modify(|targets| *targets.entry(target.to_owned()).or_default() += 1);
        Left { leaving: self, target }
    }

    /// What comes of the work; nothing if its target is being left before. It must not matter where the work ends.
    pub async fn unless_left<T>(&self, target: &str, work: impl Future<Output = T>) -> Option<T> {
        let mut targets = self.targets.subscribe();
        let left = async { drop(targets.wait_for(|targets| targets.contains_key(target)).await) };
        tokio::select! {
            biased;
            () = left => None,
            done = work => Some(done),
        }
    }
}

impl Drop for Left<'_> {
    fn drop(&mut self) {
        self.leaving.targets.send_modify(|targets| match targets.get_mut(self.target) {
            Some(calls) if *calls > 1 => *calls -= 1,
            _ => drop(targets.remove(self.target)),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn whoever_waits_at_a_target_that_is_left_gives_up() {
        let leaving = Leaving::default();
        let waits = leaving.unless_left("a", std::future::pending::<()>());
        tokio::pin!(waits);
        assert!(futures::poll!(&mut waits).is_pending());
        let (one, two) = (leaving.announce("a"), leaving.announce("a"));
        assert_eq!(waits.await, None);
        drop(one);
        assert_eq!(leaving.unless_left("a", async {}).await, None);
        assert_eq!(leaving.unless_left("b", async {}).await, Some(()));
        drop(two);
        assert_eq!(leaving.unless_left("a", async {}).await, Some(()));
    }
}
