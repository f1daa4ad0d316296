//! Processes: PID namespaces that end with all their processes, and the resource use of an ended process.
//!
//! The first process of a [`PidNamespace`] is a fork of the caller that only waits. It is set to die with the thread
//! that created the namespace (`PR_SET_PDEATHSIG`). When this process dies, the kernel kills every process inside,
//! including all descendants. That holds even after `kill -9` of the caller, without any cleanup code.
//!
//! Process groups and `PR_SET_PDEATHSIG` on each child would not do: neither affects children of children.

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
    /// Creates a namespace on the calling thread. It ends with this thread, whose later children belong to it and which
    /// cannot start threads afterwards.
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

    /// Children that the calling thread starts from now on belong to this namespace. The thread cannot start threads
    /// afterwards.
    ///
    /// # Errors
    /// Not permitted.
    pub fn enter(&self) -> io::Result<()> {
        Ok(move_into_link_name_space(self.ns_fd.as_fd(), Some(LinkNameSpaceType::ProcessID))?)
    }
}

impl PidNamespace {
    /// Kills all processes inside. The caller must still wait for those that are its children.
    pub fn kill_all(&self) {
        let _ = kill_process(self.init_pid, Signal::KILL);
    }
}

impl Drop for PidNamespace {
    fn drop(&mut self) {
        self.kill_all();
        // The first process ends after all others were waited for. If the caller has not waited for one of them, the
        // first process is abandoned after 100 ms, and remains as a zombie until the caller ends.
        for _ in 0..100 {
            match waitpid(Some(self.init_pid), WaitOptions::NOHANG) {
                Ok(None) => std::thread::sleep(Duration::from_millis(1)),
                Ok(Some(_)) | Err(_) => break,
            }
        }
    }
}

/// Main function of the first process: reaps children, and dies with the thread that created it.
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

/// Resource use of an ended process, including children that it waited for.
#[derive(Clone, Copy, Debug)]
pub struct ProcessUsage {
    /// Exit status.
    pub status: ExitStatus,
    /// CPU time in user mode.
    pub user: Duration,
    /// CPU time in the kernel.
    pub system: Duration,
    /// Peak resident memory in bytes: the largest of the process and these children, not their sum.
    pub peak_memory: u64,
}

/// Waits for the end of a child and returns its resource use. The child must not have been waited for.
///
/// # Errors
/// `pid` is no child of this process, or was waited for.
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
        // Linux reports KiB.
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
    fn the_resource_use_of_a_process_is_reported() {
        let mut child = Command::new("sh").args(["-c", "exit 3"]).spawn().unwrap();
        let usage = wait_with_usage(child.id()).unwrap();
        assert_eq!(usage.status.code(), Some(3));
        assert!(usage.peak_memory > 100_000);
        assert!(child.wait().is_err(), "waited for twice");
    }

    #[test]
    fn all_processes_die_with_their_pid_namespace() {
        if !is_privileged() {
            eprintln!("skipped: needs CAP_SYS_ADMIN");
            return;
        }
        let worker = std::thread::spawn(|| {
            let namespace = PidNamespace::create().unwrap();
            // The grandchild is orphaned; it holds the pipe for as long as it lives.
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
