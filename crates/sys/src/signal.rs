//! Catches SIGINT, SIGTERM and SIGHUP in a program without a runtime: the signal is only recorded.
//!
//! A handler is used, not `SIG_IGN`: `exec` resets handlers to the default action, while started programs would inherit
//! `SIG_IGN`. Interrupted reads and writes are restarted, so the program must call [`last_caught`] regularly.

use std::io;
use std::sync::atomic::{AtomicI32, Ordering};

/// The last caught signal; 0 for none.
static LAST_SIGNAL: AtomicI32 = AtomicI32::new(0);

/// Installs the handlers: the signals do not end the process any more but are recorded for [`last_caught`].
///
/// # Errors
/// None that a correct kernel gives.
pub fn install_handlers() -> io::Result<()> {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: an all-zero `sigaction` is valid: no flags, an empty mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = record_signal as extern "C" fn(libc::c_int) as libc::sighandler_t;
        action.sa_flags = libc::SA_RESTART;
        // SAFETY: `action` outlives the call, and the handler does nothing but an atomic store.
        super::check(unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) })?;
    }
    Ok(())
}

/// The last signal that was caught since the process started, if any. It is never reset.
pub fn last_caught() -> Option<i32> {
    Some(LAST_SIGNAL.load(Ordering::Relaxed)).filter(|&signal| signal != 0)
}

extern "C" fn record_signal(signal: libc::c_int) {
    LAST_SIGNAL.store(signal, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caught_signal_is_remembered() {
        install_handlers().unwrap();
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM).unwrap();
        for _ in 0..1000 {
            if last_caught() == Some(libc::SIGTERM) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        panic!("the signal was lost");
    }
}
