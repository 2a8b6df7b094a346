//! The agent's side of its children: each has a deadline, and no more than a few are alive at once. One that cannot be
//! killed (it waits in the kernel for a disk that is gone) keeps its place until it ends.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, watch};

use super::child::{Answer, CHILD, Order, Task};
use super::self_fence::cut;

/// Children alive at once.
pub const CHILDREN_MAX: usize = 24;
/// Places of these that only inventories and self-fencing may take: whatever hangs, the node can still be looked at, and its
/// pods be stopped.
const LOOKS: usize = 2;
/// What a child that was killed may take to end before it counts as hung.
const KILLED: Duration = Duration::from_millis(500);

/// Starts children; clones share the places.
#[derive(Clone)]
pub struct Children {
    program: PathBuf,
    host: String,
    places: Arc<Semaphore>,
    looks: Arc<Semaphore>,
    hung: Arc<watch::Sender<Hung>>,
}

/// How many children were killed and have not ended, by what they are about.
type Hung = BTreeMap<String, usize>;

/// Counts one that hangs, as long as this lives.
pub(super) struct Hangs {
    hung: Arc<watch::Sender<Hung>>,
    about: String,
}

impl Drop for Hangs {
    fn drop(&mut self) {
        self.hung.send_modify(|hung| {
            let left = hung.remove(&self.about).unwrap_or_default().saturating_sub(1);
            if left > 0 {
                hung.insert(self.about.clone(), left);
            }
        });
    }
}

/// A child that brought no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    /// All places are taken by children that hang.
    #[error("all {CHILDREN_MAX} children are at work or hang; a reboot of the node ends those that hang")]
    AtTheCap,
    /// It did not end in time and was killed.
    #[error("no answer within {0:?}: a file system or a process of the node hangs")]
    TimedOut(Duration),
    /// It could not be run.
    #[error("child process: {0}")]
    Failed(String),
}

impl Children {
    /// `program` is this program; `host` a process of the host, such as `/proc/1`.
    pub fn new(program: PathBuf, host: String) -> Self {
        let places = |number| Arc::new(Semaphore::new(number));
        Self { program, host, places: places(CHILDREN_MAX - LOOKS), looks: places(LOOKS), hung: Arc::default() }
    }

    /// How many were killed and still have not ended.
    pub fn hung(&self) -> usize {
        self.hung.borrow().values().sum()
    }

    /// How many of these are about that.
    pub fn hung_of(&self, about: &str) -> usize {
        self.hung.borrow().get(about).copied().unwrap_or_default()
    }

    /// How many are about something that begins like this.
    pub fn hung_like(&self, about: &str) -> usize {
        self.hung.borrow().iter().filter(|(one, _)| one.starts_with(about)).map(|(_, hung)| hung).sum()
    }

    /// Waits until none of these is about that any more; whether it came to that.
    pub async fn all_ended(&self, about: &str, within: Duration) -> bool {
        let mut hung = self.hung.subscribe();
        let ended = tokio::time::timeout(within, hung.wait_for(|hung| !hung.contains_key(about))).await;
        matches!(ended, Ok(Ok(_)))
    }

    pub(super) fn hangs(&self, about: &str) -> Hangs {
        self.hung.send_modify(|hung| *hung.entry(about.to_owned()).or_default() += 1);
        Hangs { hung: self.hung.clone(), about: about.to_owned() }
    }

    /// How many are alive.
    pub fn alive(&self) -> usize {
        CHILDREN_MAX.saturating_sub(self.places.available_permits() + self.looks.available_permits())
    }

    async fn place(&self, is_look: bool) -> Result<OwnedSemaphorePermit, AcquireError> {
        if !is_look {
            return self.places.clone().acquire_owned().await;
        }
        tokio::select! {
            biased;
            place = self.looks.clone().acquire_owned() => place,
            place = self.places.clone().acquire_owned() => place,
        }
    }

    /// Runs a task about a volume or the node, for at most `deadline` from its start, and as long at most until a place
    /// is free.
    pub async fn run(&self, about: &str, task: Task, deadline: Duration) -> Result<Answer, NoAnswer> {
        let place = tokio::time::timeout(deadline, self.place(is_reserved(&task)));
        let Ok(Ok(place)) = place.await else { return Err(NoAnswer::AtTheCap) };
        let name = task.name();
        let order = Order { host: self.host.clone(), task };
        let order = serde_json::to_vec(&order).map_err(|error| NoAnswer::Failed(error.to_string()))?;
        let mut child = Command::new(&self.program)
            .arg0("bulkhead-node-agent")
            .args([CHILD, name])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| NoAnswer::Failed(error.to_string()))?;
        match tokio::time::timeout(deadline, converse(&mut child, &order)).await {
            Ok(Ok(text)) => serde_json::from_slice(&text).map_err(|error| NoAnswer::Failed(error.to_string())),
            Ok(Err(error)) => Err(NoAnswer::Failed(error.to_string())),
            Err(_) => {
                self.kill(child, place, about).await;
                Err(NoAnswer::TimedOut(deadline))
            }
        }
    }

    /// Kills a child; one that does not end keeps its place.
    async fn kill(&self, mut child: Child, place: OwnedSemaphorePermit, about: &str) {
        // It may have ended by itself meanwhile.
        let _ = child.start_kill();
        if tokio::time::timeout(KILLED, child.wait()).await.is_ok() {
            return;
        }
        tracing::warn!(pid = child.id(), "a child process cannot be killed: it waits for a file system that hangs");
        let hangs = self.hangs(about);
        tokio::spawn(async move {
            let _ = child.wait().await;
            drop(place);
            drop(hangs);
        });
    }
}

/// Whether a task has places of its own. What waits for storage has none.
fn is_reserved(task: &Task) -> bool {
    match task {
        Task::Inventory(_) => true,
        Task::SelfFence(order) => !matches!(order, cut::Order::Sync(_) | cut::Order::Cover(_)),
        Task::Abort(_) | Task::Unmount(_) | Task::Probe(_) => false,
    }
}

async fn converse(child: &mut Child, order: &[u8]) -> std::io::Result<Vec<u8>> {
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(order).await?;
    }
    let mut text = Vec::new();
    if let Some(mut stdout) = child.stdout.take() {
        stdout.read_to_end(&mut text).await?;
    }
    child.wait().await?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT_ONCE: Duration = Duration::from_millis(10);

    fn children() -> Children {
        Children::new("/proc/self/exe".into(), "/proc/self".into())
    }

    #[tokio::test]
    async fn there_is_always_a_place_for_a_look() {
        let children = children();
        let mut taken = Vec::new();
        while let Ok(place) = tokio::time::timeout(AT_ONCE, children.place(false)).await {
            taken.push(place.unwrap());
        }
        assert_eq!((taken.len(), children.alive()), (CHILDREN_MAX - LOOKS, CHILDREN_MAX - LOOKS));
        for _ in 0..LOOKS {
            taken.push(tokio::time::timeout(AT_ONCE, children.place(true)).await.unwrap().unwrap());
        }
        assert!(tokio::time::timeout(AT_ONCE, children.place(true)).await.is_err());
    }

    #[tokio::test]
    async fn what_hangs_is_told_by_volume() {
        let children = children();
        let hang = [children.hangs("pvc-1"), children.hangs("pvc-1")];
        assert_eq!((children.hung(), children.hung_of("pvc-1"), children.hung_of("pvc-2")), (2, 2, 0));
        assert_eq!((children.hung_like("pvc"), children.hung_like("probe")), (2, 0));
        assert!(children.all_ended("pvc-2", AT_ONCE).await);
        let [first, last] = hang;
        drop(first);
        assert!(!children.all_ended("pvc-1", AT_ONCE).await);
        drop(last);
        assert!(children.all_ended("pvc-1", AT_ONCE).await);
        assert_eq!(children.hung(), 0);
    }
}
