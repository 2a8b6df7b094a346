//! Locks that outlive a panic of their holder.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Takes a lock, whether or not somebody has panicked with it: what is guarded so is replaced as a whole, never half.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_outlives_a_panic_of_its_holder() {
        let mutex = Mutex::new(1);
        std::thread::scope(|scope| {
            let holder = scope.spawn(|| {
                *lock(&mutex) = 2;
                let _held = lock(&mutex);
                panic!("with the lock in its hands");
            });
            assert!(holder.join().is_err());
        });
        assert!(mutex.is_poisoned());
        assert_eq!(*lock(&mutex), 2);
    }
}
