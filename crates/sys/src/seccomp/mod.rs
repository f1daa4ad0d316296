//! Answering for another process's `socket` calls: seccomp's user notification (seccomp_unotify(2)).
//!
//! In: a thread that is about to become a command ([`install`]). Out: a [`Listener`] for somebody else, who hears of
//! each TCP socket that the command and its descendants make ([`Listener::next`]), and gives them one of his own
//! ([`Listener::give`]) or lets the kernel go on ([`Listener::go_on`]).
//!
//! 1. The filter stays for the life of the thread and is inherited by fork and exec; it cannot be taken off.
//! 2. When the last process that has it is gone, [`Listener::next`] says so.
//! 3. When the last descriptor of the listener is gone, the calls that it is asked about fail with `ENOSYS`.
//! 4. A call that has been heard of waits for its answer and is interrupted by nothing but death (since kernel 5.19).
//!
//! Needs kernel 5.14, where giving a descriptor and ending the call became one step.

mod program;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

/// Hears of the calls, and answers them.
#[derive(Debug)]
pub struct SeccompListener {
    fd: OwnedFd,
}

/// One `socket` call that waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyscallNotification {
    /// By which to answer.
    pub id: u64,
    /// The thread that waits, as this process sees it; 0 when it does not see it.
    pub thread_id: u32,
    /// The address family.
    pub family: i32,
    /// The type, with its flags.
    pub socket_type: i32,
}

/// How the filter came into force.
#[derive(Debug)]
pub struct InstalledFilter {
    /// For whoever answers.
    pub listener: SeccompListener,
    /// It was only allowed in exchange for `PR_SET_NO_NEW_PRIVS`: set-user-ID programs have no effect from here on.
    pub no_new_privileges: bool,
}

/// Puts the calling thread, and whatever it starts, under the filter that shows its TCP sockets.
///
/// # Errors
/// `EBUSY` when it is under such a filter already; `EACCES`, `EPERM` where a sandbox forbids filters; `ENOSYS`,
/// `EINVAL` where the kernel has none.
pub fn install_filter() -> io::Result<InstalledFilter> {
    if !are_struct_sizes_known() {
        return Err(io::Error::from(io::ErrorKind::Unsupported));
    }
    match install_with_listener() {
        // Without CAP_SYS_ADMIN the kernel wants the promise first (seccomp(2)).
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
    // SAFETY: the kernel has just made this descriptor, and nobody else has it.
    Ok(SeccompListener { fd: unsafe { OwnedFd::from_raw_fd(fd?) } })
}

/// Whether the kernel's messages have the length that is written here.
fn are_struct_sizes_known() -> bool {
    let mut sizes = libc::seccomp_notif_sizes { seccomp_notif: 0, seccomp_notif_resp: 0, seccomp_data: 0 };
    // SAFETY: the kernel fills the one structure, which outlives the call.
    let result = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_NOTIF_SIZES, 0, &raw mut sizes) };
    result == 0
        && usize::from(sizes.seccomp_notif) == size_of::<libc::seccomp_notif>()
        && usize::from(sizes.seccomp_notif_resp) == size_of::<libc::seccomp_notif_resp>()
}

impl SeccompListener {
    /// A listener that another process has sent.
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Has the kernel hand over to the listener at once, without a detour over another processor. A favour of kernel
    /// 6.6: whether it is done is not told.
    pub fn enable_sync_wakeup(&self) {
        // SAFETY: this request takes a plain number and no pointer.
        let _ = unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS, SYNC_WAKE_UP) };
    }

    /// Waits for the next call; none: nobody is left who could call.
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
                // Whoever called is dead, or a signal came: nothing is lost.
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
        // The kernel takes the lower halves, too.
        let [family, socket_type, ..] = notification.data.args;
        Ok(SyscallNotification {
            id: notification.id,
            thread_id: notification.pid,
            family: family as i32,
            socket_type: socket_type as i32,
        })
    }

    /// Gives the caller a copy of `fd`, whose number is what its call returns.
    ///
    /// # Errors
    /// `ENOENT`: the caller is gone. Any other, such as `EMFILE`: it waits on, and must be answered otherwise.
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

    /// Lets the kernel do what the caller asked for.
    ///
    /// # Errors
    /// `ENOENT`: the caller is gone.
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

    /// A thread under the filter, and its listener: `work` runs there, the rest of the process stays as it is.
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
    fn a_call_is_answered_with_another_socket_and_the_end_is_told() {
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
        assert_eq!(listener.next_call().unwrap(), None, "nobody is left under the filter");
        assert!(listener.continue_syscall(call).is_err(), "answered twice");
    }

    #[test]
    fn what_is_not_wanted_goes_on() {
        let Some((listener, thread)) = spawn_filtered(|| socket(AddressFamily::INET6, SocketType::STREAM, None))
        else {
            return;
        };
        let call = listener.next_call().unwrap().unwrap();
        assert_eq!(call.family, libc::AF_INET6);
        listener.continue_syscall(call).unwrap();
        // The machine may have no IPv6; the call has ended either way.
        if let Ok(received_socket) = thread.join().unwrap() {
            assert_eq!(rustix::net::sockopt::socket_domain(&received_socket).unwrap(), AddressFamily::INET6);
        }
    }
}
