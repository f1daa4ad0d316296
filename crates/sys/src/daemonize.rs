//! Starts a process that is independent of its creator: not its child, without a terminal, with a single descriptor of
//! its creator's.
//!
//! [`spawn_detached`] starts it with a descriptor and a function. It can fork children of its own, which it
//! supervises ([`fork_child`]).
//!
//! 1. The creator has no additional child afterwards, so a command that it becomes by `exec` does not wait for an
//!    unknown process.
//! 2. The process leaves the session and the directory, closes all other inherited descriptors, and has `/dev/null` as
//!    standard streams, so no pipe or mount waits for its end.
//! 3. It ignores all signals that can be ignored, except SIGCHLD, which has no effect by default. It ends only by its
//!    own function.
//! 4. Its code runs in a copy of this program's memory (fork without exec), which is sound only if the program has no
//!    second thread at the fork; a second thread is an error.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};

use rustix::process::{Pid, WaitOptions, waitpid};

/// Starts a process that runs `work` with `descriptor` and exits with the result of `work` as its status.
///
/// # Errors
/// A second thread is running; out of processes.
pub fn spawn_detached(descriptor: OwnedFd, work: fn(OwnedFd) -> u8) -> io::Result<()> {
    // The intermediate process ends at once, so that init becomes the parent of the other one.
    let intermediate = fork_child(|| match fork_child(|| run_detached(&descriptor, work)) {
        Ok(_) => 0,
        Err(_) => 1,
    })?;
    loop {
        match waitpid(Some(intermediate), WaitOptions::empty()) {
            Err(rustix::io::Errno::INTR) => {}
            Ok(Some((_, status))) if status.exit_status() == Some(0) => return Ok(()),
            // A process that ignores SIGCHLD gets no exit status.
            Err(rustix::io::Errno::CHILD) => return Ok(()),
            _ => return Err(io::Error::other("cannot start another process")),
        }
    }
}

/// Forks a child that runs `work` and exits with the result as its status. Returns only in the parent.
///
/// # Errors
/// A second thread is running; out of processes.
pub fn fork_child(work: impl FnOnce() -> u8) -> io::Result<Pid> {
    if fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("a process with several threads cannot be forked"));
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

/// Exits the process on drop, also during a panic: only the original continues in the caller of `fork_child`.
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

/// Moves the descriptor to the first number after the standard streams, which become `/dev/null`, and closes all
/// others.
fn keep_only(descriptor: &OwnedFd) -> OwnedFd {
    let null = fs::OpenOptions::new().read(true).write(true).open("/dev/null");
    let null = null.map_or(-1, IntoRawFd::into_raw_fd);
    // SAFETY: none of the descriptors that are replaced or closed is used again, because `keep_only` runs in a process
    // that never returns to their owners. The new one has no other owner.
    unsafe {
        for fd in 0..INHERITED_FD {
            libc::dup2(null, fd);
        }
        libc::dup3(descriptor.as_raw_fd(), INHERITED_FD, libc::O_CLOEXEC);
        libc::syscall(libc::SYS_close_range, INHERITED_FD + 1, libc::c_uint::MAX, 0);
        OwnedFd::from_raw_fd(INHERITED_FD)
    }
}

/// The first descriptor after the standard streams.
const INHERITED_FD: libc::c_int = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_several_threads_is_not_forked() {
        std::thread::scope(|scope| {
            let other_thread = scope.spawn(std::thread::park);
            assert!(fork_child(|| 0).is_err());
            other_thread.thread().unpark();
        });
    }
}
