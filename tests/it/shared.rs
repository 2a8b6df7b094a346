//! A cluster that the tests of one module share.

use libtest_mimic::Failed;
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;

/// What can be shared.
pub trait World: Sized {
    /// Starts all of it.
    async fn start_shared() -> Result<Self, Failed>;
}

/// The shared cluster, started by the first test that needs it.
pub struct Shared<W> {
    // Dropped before the runtime that its tasks run on.
    world: OnceCell<W>,
    runtime: Runtime,
}

impl<W: World> Shared<W> {
    pub fn new() -> std::io::Result<Self> {
        Ok(Self { world: OnceCell::new(), runtime: Runtime::new()? })
    }

    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }

    pub async fn world(&self) -> Result<&W, Failed> {
        self.world.get_or_try_init(W::start_shared).await
    }
}
