//! What can only be seen before Rust's runtime begins.
//!
//! The runtime opens `/dev/null` in the place of a standard stream that is closed, so that no file is ever taken for
//! one. Whoever writes his result there is then told that all went well. So it is looked at by a constructor, which the
//! loader runs before all else (System V ABI, `.init_array`).
//!
//! A look at what stands there later was not used: a closed stream and one that somebody sent to `/dev/null` look alike.

use std::sync::atomic::{AtomicBool, Ordering};

static STDOUT_CLOSED: AtomicBool = AtomicBool::new(false);

// SAFETY: what stands in this section is called once, by the loader, with C's convention; `look` takes nothing, touches
// nothing but its own atomic, and needs nothing of Rust's runtime.
#[used]
#[unsafe(link_section = ".init_array")]
static INIT_HOOK: extern "C" fn() = record_stdout_state;

extern "C" fn record_stdout_state() {
    // SAFETY: F_GETFD reads a flag of a descriptor; of a closed one it is an error and nothing else.
    let is_closed = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) } < 0;
    STDOUT_CLOSED.store(is_closed, Ordering::Relaxed);
}

/// Whether standard output was closed when this process began.
pub fn is_stdout_closed() -> bool {
    STDOUT_CLOSED.load(Ordering::Relaxed)
}
