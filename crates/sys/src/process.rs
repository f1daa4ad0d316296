//! Processes: a room that ends with all who are in it, and what a process used when it ends.
//!
//! A [`Room`] is a PID namespace. Its first process is a fork of the caller that only waits; when it dies (and it is
//! made to die with the thread that made the room, `PR_SET_PDEATHSIG`), the kernel kills every process inside, however
//! deep, however it was started. That holds even after `kill -9` of the caller: no clean-up of ours need run.
//!
//! Process groups and `PR_SET_PDEATHSIG` on each child were not used: neither reaches the children of children.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use crate::namespace::unshare;

/// A PID namespace whose processes die together.
#[derive(Debug)]
pub struct PidNamespace {
    init_pid: Pid,
    ns_fd: OwnedFd,
}

impl PidNamespace {
    /// Opens a room on the calling thread. The room dies with this thread, which can start no more threads.
    ///
    /// # Errors
    /// Not permitted, or out of processes.
    pub fn create() -> io::Result<Self> {
        unshare(UnshareFlags::NEWPID)?;
        // SAFETY: the child calls nothing but async-signal-safe functions and never returns.
        let child = super::check(unsafe { libc::fork() })?;
        if child == 0 {
            run_init();
        }
        let init_pid = Pid::from_raw(child).ok_or(io::ErrorKind::Other)?;
        Ok(Self { init_pid, ns_fd: fs::File::open(format!("/proc/{child}/ns/pid"))?.into() })
    }

    /// Children that the calling thread starts from now on are born in this room. It can start no more threads.
    ///
    /// # Errors
    /// Not permitted.
    pub fn enter(&self) -> io::Result<()> {
        Ok(move_into_link_name_space(self.ns_fd.as_fd(), Some(LinkNameSpaceType::ProcessID))?)
    }
}

impl PidNamespace {
    /// Kills everybody inside. Their parents must still wait for them.
    pub fn kill_all(&self) {
        let _ = kill_process(self.init_pid, Signal::KILL);
    }
}

impl Drop for PidNamespace {
    fn drop(&mut self) {
        self.kill_all();
        // The first process ends after all the others have been waited for, which may never happen if the caller
        // forgot one of them: then it stays behind as an entry in the table of processes, until the caller ends.
        for _ in 0..100 {
            match waitpid(Some(self.init_pid), WaitOptions::NOHANG) {
                Ok(None) => std::thread::sleep(Duration::from_millis(1)),
                Ok(Some(_)) | Err(_) => break,
            }
        }
    }
}

/// The life of a room's first process: reap, and die with the thread that made it.
fn run_init() -> ! {
    // SAFETY: all of these are async-signal-safe system calls on plain values.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::signal(libc::SIGCHLD, libc::SIG_IGN);
        libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, 0);
        loop {
            libc::pause();
        }
    }
}

/// What a process used in its life, with the children that it waited for.
#[derive(Clone, Copy, Debug)]
pub struct ProcessUsage {
    /// How it ended.
    pub status: ExitStatus,
    /// Processor time in its own code.
    pub user: Duration,
    /// Processor time in the kernel on its behalf.
    pub system: Duration,
    /// The most memory that it held at once, in bytes.
    pub peak_memory: u64,
}

/// Waits for the end of a child, and tells what it used. The child must not have been waited for.
///
/// # Errors
/// When `pid` is no child of this process.
pub fn wait_with_usage(pid: u32) -> io::Result<ProcessUsage> {
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut status = 0;
    // SAFETY: an all-zero `rusage` is valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: `status` and `usage` outlive the call.
        match super::check(unsafe { libc::wait4(pid, &mut status, 0, &mut usage) }) {
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(ProcessUsage {
        status: ExitStatus::from_raw(status),
        user: to_duration(usage.ru_utime),
        system: to_duration(usage.ru_stime),
        // Linux counts it in KiB.
        peak_memory: u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1024,
    })
}

fn to_duration(time: libc::timeval) -> Duration {
    Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0))
        + Duration::from_micros(u64::try_from(time.tv_usec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespace::is_privileged;
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_tells_what_it_used() {
        let mut child = Command::new("sh").args(["-c", "exit 3"]).spawn().unwrap();
        let usage = wait_with_usage(child.id()).unwrap();
        assert_eq!(usage.status.code(), Some(3));
        assert!(usage.peak_memory > 100_000);
        assert!(child.wait().is_err(), "waited for twice");
    }

    #[test]
    fn whoever_is_in_a_room_dies_with_it() {
        if !is_privileged() {
            eprintln!("skipped: needs CAP_SYS_ADMIN");
            return;
        }
        let worker = std::thread::spawn(|| {
            let namespace = PidNamespace::create().unwrap();
            // The grandchild is left alone by its parent; it holds the pipe for as long as it lives.
            let mut child = Command::new("sh")
                .args(["-c", "sleep 1000 & echo started; exit 0"])
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut lines = BufReader::new(child.stdout.take().unwrap());
            let mut line = String::new();
            lines.read_line(&mut line).unwrap();
            assert_eq!(line, "started\n");
            assert!(child.wait().unwrap().success());
            namespace.kill_all();
            line.clear();
            assert_eq!(lines.read_line(&mut line).unwrap(), 0, "the pipe is closed because its holder died");
            drop(namespace);
        });
        worker.join().unwrap();
    }
}
