//! Network, user and mount namespaces without names, which leave nothing behind.
//!
//! A namespace is represented by a descriptor. It exists while a descriptor, a process or a device holds it, and the
//! kernel removes it afterwards. Nothing is mounted under `/run/netns`, and `ip netns` is not needed.
//!
//! 1. Namespaces belong to threads: code inside a namespace runs on a thread that ends with it.
//! 2. A user namespace can be entered only while the process has a single thread: at the start of `main`, before any
//!    runtime.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::thread;

use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

/// Whether this process may create and configure network namespaces: effective CAP_SYS_ADMIN and CAP_NET_ADMIN.
pub fn is_privileged() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let capabilities = capabilities.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    capabilities & REQUIRED_CAPABILITIES == REQUIRED_CAPABILITIES
}

/// `CAP_NET_ADMIN` (12) and `CAP_SYS_ADMIN` (21).
const REQUIRED_CAPABILITIES: u64 = 1 << 12 | 1 << 21;

/// Enters a new user namespace in which this user is root, as the basis for rootless operation.
///
/// # Errors
/// `EINVAL` if the process has a second thread; `EPERM`, `ENOSPC` or `EUSERS` if the host forbids it
/// (`kernel.apparmor_restrict_unprivileged_userns`, `user.max_user_namespaces`).
pub fn enter_user_namespace() -> io::Result<()> {
    let (user, group) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    unshare(UnshareFlags::NEWUSER)?;
    // Otherwise an unprivileged process may not map its group.
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/gid_map", format!("0 {group} 1"))?;
    fs::write("/proc/self/uid_map", format!("0 {user} 1"))
}

/// Gives the calling thread its own mount namespace: mounts of it and its children are invisible to others and end
/// with them.
///
/// # Errors
/// Not permitted.
pub fn unshare_mounts() -> io::Result<()> {
    unshare(UnshareFlags::FS | UnshareFlags::NEWNS)?;
    Ok(mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?)
}

/// Mounts a `/sys` for the calling thread's network namespace. Requires [`unshare_mounts`].
///
/// # Errors
/// Not permitted, as in a container with parts of `/sys` masked.
pub fn mount_sysfs() -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    Ok(mount("sysfs", "/sys", "sysfs", flags, None::<&std::ffi::CStr>)?)
}

/// A network namespace.
#[derive(Debug)]
pub struct NetNs {
    fd: OwnedFd,
}

impl NetNs {
    /// Creates a namespace, which contains only a loopback interface that is down.
    ///
    /// # Errors
    /// Not permitted, or out of namespaces.
    pub fn new() -> io::Result<Self> {
        on_new_thread(|| {
            unshare(UnshareFlags::NEWNET)?;
            Ok(Self { fd: fs::File::open("/proc/thread-self/ns/net")?.into() })
        })
    }

    /// Runs `work` on a new thread inside and returns its result.
    ///
    /// # Errors
    /// Those of entering, and those of `work`.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        on_new_thread(|| {
            self.enter()?;
            work()
        })
    }

    /// Moves the calling thread into the namespace, for the rest of its life.
    ///
    /// # Errors
    /// Not permitted.
    pub fn enter(&self) -> io::Result<()> {
        Ok(move_into_link_name_space(self.fd.as_fd(), Some(LinkNameSpaceType::Network))?)
    }
}

impl AsFd for NetNs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The network namespace of a thread, by its id as this process sees it. It does not use `/proc`, which may belong to
/// another PID namespace, where the same id means another thread.
///
/// # Errors
/// `ESRCH`, or `NotFound` for an impossible id: there is no such thread. `EACCES`: this process may not inspect it.
/// `ENOTTY`, `EINVAL`: a kernel before 6.11.
pub fn netns_of_thread(thread: u32) -> io::Result<OwnedFd> {
    let thread = i32::try_from(thread).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::NotFound)?;
    let pidfd = pidfd_open(thread, PidfdFlags::from_bits_retain(PIDFD_THREAD))?;
    // SAFETY: this request takes no argument but zero.
    let fd = super::check(unsafe { libc::ioctl(pidfd.as_raw_fd(), PIDFD_GET_NET_NAMESPACE, 0_usize) })?;
    // SAFETY: the kernel has just created this descriptor, which has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `linux/pidfd.h`: the thread, and not its process (Linux 6.9); its network namespace (Linux 6.11).
const PIDFD_THREAD: u32 = libc::O_EXCL as u32;
const PIDFD_GET_NET_NAMESPACE: libc::Ioctl = 0xff04;

/// Moves the calling thread into new namespaces.
pub(crate) fn unshare(flags: UnshareFlags) -> io::Result<()> {
    // SAFETY: only namespaces and the thread's working directory are ever separated here, never the table of
    // descriptors, on which the soundness of `OwnedFd` rests.
    Ok(unsafe { rustix::thread::unshare_unsafe(flags) }?)
}

/// Runs `work` on a new thread and returns its result.
fn on_new_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| match scope.spawn(work).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_network_namespace_contains_only_a_loopback() {
        if !is_privileged() {
            eprintln!("skipped: needs CAP_SYS_ADMIN");
            return;
        }
        let netns = NetNs::new().unwrap();
        let devices = netns.run(|| fs::read_to_string("/proc/thread-self/net/dev")).unwrap();
        assert_eq!(devices.lines().skip(2).count(), 1, "{devices}");
        assert!(devices.contains("lo:"));
    }

    #[test]
    fn network_namespaces_of_threads_are_distinguished() {
        let inode_of = |fd: io::Result<OwnedFd>| fd.and_then(|fd| Ok(rustix::fs::fstat(fd)?.st_ino));
        let own_inode = match inode_of(netns_of_thread(std::process::id())) {
            Ok(own_inode) => own_inode,
            Err(error) => return eprintln!("skipped: a kernel before 6.11: {error}"),
        };
        assert_eq!(own_inode, rustix::fs::stat("/proc/self/ns/net").unwrap().st_ino);
        assert!(netns_of_thread(0).is_err() && netns_of_thread(u32::MAX).is_err());
        if !is_privileged() {
            return eprintln!("skipped: needs CAP_SYS_ADMIN");
        }
        let inner_inode = NetNs::new().unwrap().run(|| {
            let thread = rustix::thread::gettid().as_raw_nonzero().get();
            inode_of(netns_of_thread(thread.unsigned_abs()))
        });
        assert_ne!(inner_inode.unwrap(), own_inode);
    }

    #[test]
    fn a_panic_inside_is_propagated() {
        let result = std::panic::catch_unwind(|| on_new_thread(|| -> io::Result<()> { panic!("inside") }));
        assert!(result.is_err());
    }
}
