//! Locks of the service's shared state.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks; a thread that has panicked with the lock has changed nothing halfway.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
