//! Locking without panics: a test that panicked while it held a lock must not take the others down with it.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks `mutex`, also when a holder panicked.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
