//! Handles `socket` calls of another process: seccomp's user notification (seccomp_unotify(2)).
//!
//! A thread that is about to become a command installs the filter ([`install_filter`]). A [`SeccompListener`] in
//! another process receives each creation of a TCP socket by the command and its descendants
//! ([`SeccompListener::next_call`]). It installs another socket as the result ([`SeccompListener::add_fd`]), or lets
//! the kernel continue ([`SeccompListener::continue_syscall`]).
//!
//! 1. The filter remains for the life of the thread and is inherited by fork and exec; it cannot be removed.
//! 2. When the last process under it has ended, [`SeccompListener::next_call`] returns none.
//! 3. When the last descriptor of the listener is closed, notified calls fail with `ENOSYS`.
//! 4. A call that the listener has received waits for its reply and can be interrupted only by a fatal signal (since
//!    kernel 5.19; before, by any signal).
//!
//! Requires kernel 5.14, where installing a descriptor and ending the call became one step.

mod program;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

/// Receives notified calls and replies to them.
#[derive(Debug)]
pub struct SeccompListener {
    fd: OwnedFd,
}

/// A `socket` call that waits for a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyscallNotification {
    /// Id for the reply.
    pub id: u64,
    /// Id of the waiting thread, as this process sees it; 0 if it does not see it.
    pub thread_id: u32,
    /// Address family argument.
    pub family: i32,
    /// Type argument, including flags.
    pub socket_type: i32,
}

/// The installed filter.
#[derive(Debug)]
pub struct InstalledFilter {
    /// Listener for the handling process.
    pub listener: SeccompListener,
    /// Whether installation required `PR_SET_NO_NEW_PRIVS`: programs gain no privileges by their set-user-ID bits from
    /// now on.
    pub no_new_privileges: bool,
}

/// Installs the filter for the calling thread and its descendants.
///
/// # Errors
/// `EBUSY` if a filter with a listener is installed already; `EACCES`, `EPERM` if a sandbox forbids filters; `ENOSYS`,
/// `EINVAL` if the kernel lacks support; `Unsupported` on an unknown architecture, or if the kernel's structures differ
/// in size.
pub fn install_filter() -> io::Result<InstalledFilter> {
    if !are_struct_sizes_known() {
        return Err(io::Error::from(io::ErrorKind::Unsupported));
    }
    match install_with_listener() {
        // Without CAP_SYS_ADMIN the kernel requires the promise to gain no privileges first (seccomp(2)).
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => {
            rustix::thread::set_no_new_privs(true)?;
            Ok(InstalledFilter { listener: install_with_listener()?, no_new_privileges: true })
        }
        listener => Ok(InstalledFilter { listener: listener?, no_new_privileges: false }),
    }
}

fn install_with_listener() -> io::Result<SeccompListener> {
    let mut program = program::tcp_socket_filter().ok_or(io::ErrorKind::Unsupported)?;
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    let set_filter = |flags: libc::c_ulong| {
        // SAFETY: `program` describes instructions that outlive the call, which copies them.
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) }
    };
    let (listener, wait_killable) =
        (libc::SECCOMP_FILTER_FLAG_NEW_LISTENER, libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV);
    let mut fd = super::check(set_filter(listener | wait_killable) as libc::c_int);
    if fd.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EINVAL)) {
        fd = super::check(set_filter(listener) as libc::c_int);
    }
    // SAFETY: the kernel has just created this descriptor, which has no other owner.
    Ok(SeccompListener { fd: unsafe { OwnedFd::from_raw_fd(fd?) } })
}

/// Whether the kernel's structures have the sizes of this program.
fn are_struct_sizes_known() -> bool {
    let mut sizes = libc::seccomp_notif_sizes { seccomp_notif: 0, seccomp_notif_resp: 0, seccomp_data: 0 };
    // SAFETY: the kernel fills the one structure, which outlives the call.
    let result = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_NOTIF_SIZES, 0, &raw mut sizes) };
    result == 0
        && usize::from(sizes.seccomp_notif) == size_of::<libc::seccomp_notif>()
        && usize::from(sizes.seccomp_notif_resp) == size_of::<libc::seccomp_notif_resp>()
}

impl SeccompListener {
    /// Takes a listener that another process has sent.
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Makes the kernel wake the listener on the CPU of the call, and the caller on that of the listener (kernel 6.6).
    /// Best effort: success is not reported.
    pub fn enable_sync_wakeup(&self) {
        // SAFETY: this request takes a plain number and no pointer.
        let _ = unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS, SYNC_WAKE_UP) };
    }

    /// Waits for the next call; none: no process is left under the filter.
    ///
    /// # Errors
    /// None that a correct kernel gives.
    pub fn next_call(&self) -> io::Result<Option<SyscallNotification>> {
        loop {
            let mut ready = [PollFd::new(&self.fd, PollFlags::IN)];
            match poll(&mut ready, None) {
                Err(Errno::INTR) => continue,
                polled => polled?,
            };
            let events = ready[0].revents();
            if !events.contains(PollFlags::IN) {
                return Ok(None);
            }
            match self.receive() {
                // The caller has died, or a signal arrived: nothing is lost.
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => {}
                call => return call.map(Some),
            }
        }
    }

    fn receive(&self) -> io::Result<SyscallNotification> {
        // SAFETY: numbers alone; the kernel wants the structure zeroed.
        let mut notification: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel fills the one structure, whose length was compared with its own.
        super::check(unsafe {
            libc::ioctl(self.fd.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut notification)
        })?;
        // The kernel uses only the lower halves, too.
        let [family, socket_type, ..] = notification.data.args;
        Ok(SyscallNotification {
            id: notification.id,
            thread_id: notification.pid,
            family: family as i32,
            socket_type: socket_type as i32,
        })
    }

    /// Installs a copy of `fd` in the process that made the call. Its number there becomes the result of the call.
    ///
    /// # Errors
    /// `ENOENT`: the caller has ended. Any other, such as `EMFILE`: it still waits and needs another reply.
    pub fn add_fd(&self, call: SyscallNotification, fd: BorrowedFd<'_>, close_on_exec: bool) -> io::Result<()> {
        let mut addfd = libc::seccomp_notif_addfd {
            id: call.id,
            flags: libc::SECCOMP_ADDFD_FLAG_SEND as u32,
            srcfd: fd.as_raw_fd() as u32,
            newfd: 0,
            newfd_flags: if close_on_exec { libc::O_CLOEXEC as u32 } else { 0 },
        };
        // SAFETY: the kernel reads the one structure, which outlives the call.
        super::check(unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ADDFD, &raw mut addfd) })?;
        Ok(())
    }

    /// Lets the kernel execute the call unchanged.
    ///
    /// # Errors
    /// `ENOENT`: the caller has ended.
    pub fn continue_syscall(&self, call: SyscallNotification) -> io::Result<()> {
        let flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
        let mut response = libc::seccomp_notif_resp { id: call.id, val: 0, error: 0, flags };
        // SAFETY: the kernel reads the one structure, which outlives the call.
        super::check(unsafe {
            libc::ioctl(self.fd.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut response)
        })?;
        Ok(())
    }
}

impl AsFd for SeccompListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// `SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP` (`linux/seccomp.h`).
const SYNC_WAKE_UP: libc::c_ulong = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketType, socket};
    use std::sync::mpsc::channel;
    use std::thread;

    /// Runs `work` on a thread under the filter; returns its listener. The rest of the process is unaffected.
    fn spawn_filtered<T: Send + 'static>(work: fn() -> T) -> Option<(SeccompListener, thread::JoinHandle<T>)> {
        let (result_tx, result_rx) = channel();
        let thread = thread::spawn(move || {
            let installed = install_filter();
            let skip = installed.is_err();
            result_tx.send(installed).unwrap();
            if skip { None } else { Some(work()) }
        });
        match result_rx.recv().unwrap() {
            Ok(installed) => Some((installed.listener, thread::spawn(move || thread.join().unwrap().unwrap()))),
            Err(error) => {
                eprintln!("skipped: no seccomp listener here: {error}");
                None
            }
        }
    }

    #[test]
    fn a_call_gets_another_socket_and_the_end_is_reported() {
        let Some((listener, thread)) = spawn_filtered(|| socket(AddressFamily::INET, SocketType::STREAM, None))
        else {
            return;
        };
        let call = listener.next_call().unwrap().unwrap();
        assert_eq!((call.family, call.socket_type & 0xf), (libc::AF_INET, libc::SOCK_STREAM));
        let replacement = socket(AddressFamily::UNIX, SocketType::DGRAM, None).unwrap();
        listener.add_fd(call, replacement.as_fd(), true).unwrap();
        let received_socket = thread.join().unwrap().unwrap();
        assert_eq!(rustix::net::sockopt::socket_domain(&received_socket).unwrap(), AddressFamily::UNIX);
        assert!(rustix::io::fcntl_getfd(&received_socket).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        assert_eq!(listener.next_call().unwrap(), None, "no process is left under the filter");
        assert!(listener.continue_syscall(call).is_err(), "answered twice");
    }

    #[test]
    fn a_declined_call_continues() {
        let Some((listener, thread)) = spawn_filtered(|| socket(AddressFamily::INET6, SocketType::STREAM, None))
        else {
            return;
        };
        let call = listener.next_call().unwrap().unwrap();
        assert_eq!(call.family, libc::AF_INET6);
        listener.continue_syscall(call).unwrap();
        // The host may lack IPv6; the call has ended in any case.
        if let Ok(received_socket) = thread.join().unwrap() {
            assert_eq!(rustix::net::sockopt::socket_domain(&received_socket).unwrap(), AddressFamily::INET6);
        }
    }
}
