//! Records state that is visible only before the Rust runtime starts: whether standard output is closed.
//!
//! The runtime opens `/dev/null` in place of a closed standard stream, so that no file is mistaken for one. A program
//! that writes its result to a closed stream would therefore see no error. So the stream is checked by a constructor,
//! which the loader runs before the runtime (System V ABI, `.init_array`).
//!
//! A later check of the stream would not do: a closed stream and one that is redirected to `/dev/null` look the same.

use std::sync::atomic::{AtomicBool, Ordering};

static STDOUT_CLOSED: AtomicBool = AtomicBool::new(false);

// SAFETY: the loader calls the functions of this section once, with C's convention; this one takes nothing, touches
// nothing but its own atomic, and needs nothing of Rust's runtime.
#[used]
#[unsafe(link_section = ".init_array")]
static INIT_HOOK: extern "C" fn() = record_stdout_state;

extern "C" fn record_stdout_state() {
    // SAFETY: F_GETFD reads a flag of a descriptor; of a closed one it is an error and nothing else.
    let is_closed = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) } < 0;
    STDOUT_CLOSED.store(is_closed, Ordering::Relaxed);
}

/// Whether standard output was closed when this process started.
pub fn is_stdout_closed() -> bool {
    STDOUT_CLOSED.load(Ordering::Relaxed)
}
