//! A process that stands beside the one that started it: no child of it, in no terminal's reach, with one descriptor.
//!
//! In: a descriptor and what to do with it. Out: a process that does it ([`start`]), and copies of itself if it wants
//! somebody to fall in its place ([`child`]).
//!
//! 1. The process that starts it has no child afterwards that it did not have before: a command that it becomes by
//!    exec waits for no stranger.
//! 2. It leaves the session and the directory, closes all that it inherited, and holds `/dev/null` in the place of the
//!    standard streams: neither a pipe nor a mount waits for its end.
//! 3. It ignores whatever can be ignored. It has one reason to end, which its work knows.
//! 4. What it does runs in a copy of this program's memory, which is sound while there is no second thread; so a
//!    second thread is an error here.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};

use rustix::process::{Pid, WaitOptions, waitpid};

/// Starts a process that does `work` with `descriptor` and ends with its result.
///
/// # Errors
/// A second thread is running; out of processes.
pub fn spawn_detached(descriptor: OwnedFd, work: fn(OwnedFd) -> u8) -> io::Result<()> {
    // The one between ends at once, so that the other one has init for its parent.
    let intermediate = fork_child(|| match fork_child(|| run_detached(&descriptor, work)) {
        Ok(_) => 0,
        Err(_) => 1,
    })?;
    loop {
        match waitpid(Some(intermediate), WaitOptions::empty()) {
            Err(rustix::io::Errno::INTR) => {}
            Ok(Some((_, status))) if status.exit_status() == Some(0) => return Ok(()),
            // Whoever ignores SIGCHLD is not told how it ended.
            Err(rustix::io::Errno::CHILD) => return Ok(()),
            _ => return Err(io::Error::other("no further process can be started")),
        }
    }
}

/// A copy of this process that does `work` and ends with its result.
///
/// # Errors
/// A second thread is running; out of processes.
pub fn fork_child(work: impl FnOnce() -> u8) -> io::Result<Pid> {
    if fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("a process with several threads cannot be copied"));
    }
    // SAFETY: this is the only thread, so no lock is held by one that the copy lacks.
    let pid = super::check(unsafe { libc::fork() })?;
    if pid == 0 {
        let exit_guard = ExitOnDrop(1);
        let code = work();
        std::mem::forget(exit_guard);
        drop(ExitOnDrop(code));
    }
    Pid::from_raw(pid).ok_or_else(|| io::ErrorKind::Other.into())
}

/// Ends the process when it is dropped, by a panic too: whatever called `child` runs on in the original alone.
struct ExitOnDrop(u8);

impl Drop for ExitOnDrop {
    fn drop(&mut self) {
        // SAFETY: ends the process at once; exit handlers belong to the original.
        unsafe { libc::_exit(self.0.into()) }
    }
}

fn run_detached(descriptor: &OwnedFd, work: fn(OwnedFd) -> u8) -> u8 {
    let _ = rustix::process::setsid();
    let _ = rustix::process::chdir("/");
    for signal in 1..=libc::SIGRTMAX() {
        if signal != libc::SIGCHLD {
            // SAFETY: "ignore" is no handler: nothing will run.
            unsafe { libc::signal(signal, libc::SIG_IGN) };
        }
    }
    // SAFETY: the default for SIGCHLD, so that children can be waited for.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    work(keep_only(descriptor))
}

/// Moves the descriptor to the first place after the standard streams, and closes all others.
fn keep_only(descriptor: &OwnedFd) -> OwnedFd {
    let null = fs::OpenOptions::new().read(true).write(true).open("/dev/null");
    let null = null.map_or(-1, IntoRawFd::into_raw_fd);
    // SAFETY: none of the descriptors that are replaced or closed is used again, for `alone_with` runs in a process
    // that never returns to their owners. The new one belongs to nobody else.
    unsafe {
        for fd in 0..KEPT_FD {
            libc::dup2(null, fd);
        }
        libc::dup3(descriptor.as_raw_fd(), KEPT_FD, libc::O_CLOEXEC);
        libc::syscall(libc::SYS_close_range, KEPT_FD + 1, libc::c_uint::MAX, 0);
        OwnedFd::from_raw_fd(KEPT_FD)
    }
}

/// The first descriptor after the standard streams.
const KEPT_FD: libc::c_int = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_several_threads_is_not_copied() {
        std::thread::scope(|scope| {
            let other_thread = scope.spawn(std::thread::park);
            assert!(fork_child(|| 0).is_err());
            other_thread.thread().unpark();
        });
    }
}
