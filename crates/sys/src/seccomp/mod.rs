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
pub struct Listener {
    fd: OwnedFd,
}

/// One `socket` call that waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// By which to answer.
    pub id: u64,
    /// The thread that waits, as this process sees it; 0 when it does not see it.
    pub thread: u32,
    /// The address family.
    pub family: i32,
    /// The type, with its flags.
    pub kind: i32,
}

/// How the filter came into force.
#[derive(Debug)]
pub struct Installed {
    /// For whoever answers.
    pub listener: Listener,
    /// It was only allowed in exchange for `PR_SET_NO_NEW_PRIVS`: set-user-ID programs have no effect from here on.
    pub no_new_privileges: bool,
}

/// Puts the calling thread, and whatever it starts, under the filter that shows its TCP sockets.
///
/// # Errors
/// `EBUSY` when it is under such a filter already; `EACCES`, `EPERM` where a sandbox forbids filters; `ENOSYS`,
/// `EINVAL` where the kernel has none.
pub fn install() -> io::Result<Installed> {
    if !sizes_are_known() {
        return Err(io::Error::from(io::ErrorKind::Unsupported));
    }
    match under_filter() {
        // Without CAP_SYS_ADMIN the kernel wants the promise first (seccomp(2)).
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => {
            rustix::thread::set_no_new_privs(true)?;
            Ok(Installed { listener: under_filter()?, no_new_privileges: true })
        }
        listener => Ok(Installed { listener: listener?, no_new_privileges: false }),
    }
}

fn under_filter() -> io::Result<Listener> {
    let mut program = program::tcp_sockets().ok_or(io::ErrorKind::Unsupported)?;
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    let install = |flags: libc::c_ulong| {
        // SAFETY: `program` describes instructions that outlive the call, which copies them.
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) }
    };
    let (listener, killable) =
        (libc::SECCOMP_FILTER_FLAG_NEW_LISTENER, libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV);
    let mut fd = super::check(install(listener | killable) as libc::c_int);
    if fd.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EINVAL)) {
        fd = super::check(install(listener) as libc::c_int);
    }
    // SAFETY: the kernel has just made this descriptor, and nobody else has it.
    Ok(Listener { fd: unsafe { OwnedFd::from_raw_fd(fd?) } })
}

/// Whether the kernel's messages have the length that is written here.
fn sizes_are_known() -> bool {
    let mut sizes = libc::seccomp_notif_sizes { seccomp_notif: 0, seccomp_notif_resp: 0, seccomp_data: 0 };
    // SAFETY: the kernel fills the one structure, which outlives the call.
    let asked = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_NOTIF_SIZES, 0, &raw mut sizes) };
    asked == 0
        && usize::from(sizes.seccomp_notif) == size_of::<libc::seccomp_notif>()
        && usize::from(sizes.seccomp_notif_resp) == size_of::<libc::seccomp_notif_resp>()
}

impl Listener {
    /// A listener that another process has sent.
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Has the kernel hand over to the listener at once, without a detour over another processor. A favour of kernel
    /// 6.6: whether it is done is not told.
    pub fn hurry(&self) {
        // SAFETY: this request takes a plain number and no pointer.
        let _ = unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS, SYNC_WAKE_UP) };
    }

    /// Waits for the next call; none: nobody is left who could call.
    ///
    /// # Errors
    /// None that a correct kernel gives.
    pub fn next(&self) -> io::Result<Option<Call>> {
        loop {
            let mut ready = [PollFd::new(&self.fd, PollFlags::IN)];
            match poll(&mut ready, None) {
                Err(Errno::INTR) => continue,
                polled => polled?,
            };
            let seen = ready[0].revents();
            if !seen.contains(PollFlags::IN) {
                return Ok(None);
            }
            match self.receive() {
                // Whoever called is dead, or a signal came: nothing is lost.
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => {}
                call => return call.map(Some),
            }
        }
    }

    fn receive(&self) -> io::Result<Call> {
        // SAFETY: numbers alone; the kernel wants the structure zeroed.
        let mut told: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel fills the one structure, whose length was compared with its own.
        super::check(unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut told) })?;
        // The kernel takes the lower halves, too.
        let [family, kind, ..] = told.data.args;
        Ok(Call { id: told.id, thread: told.pid, family: family as i32, kind: kind as i32 })
    }

    /// Gives the caller a copy of `fd`, whose number is what its call returns.
    ///
    /// # Errors
    /// `ENOENT`: the caller is gone. Any other, such as `EMFILE`: it waits on, and must be answered otherwise.
    pub fn give(&self, call: Call, fd: BorrowedFd<'_>, close_on_exec: bool) -> io::Result<()> {
        let mut gift = libc::seccomp_notif_addfd {
            id: call.id,
            flags: libc::SECCOMP_ADDFD_FLAG_SEND as u32,
            srcfd: fd.as_raw_fd() as u32,
            newfd: 0,
            newfd_flags: if close_on_exec { libc::O_CLOEXEC as u32 } else { 0 },
        };
        // SAFETY: the kernel reads the one structure, which outlives the call.
        super::check(unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ADDFD, &raw mut gift) })?;
        Ok(())
    }

    /// Lets the kernel do what the caller asked for.
    ///
    /// # Errors
    /// `ENOENT`: the caller is gone.
    pub fn go_on(&self, call: Call) -> io::Result<()> {
        let flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
        let mut answer = libc::seccomp_notif_resp { id: call.id, val: 0, error: 0, flags };
        // SAFETY: the kernel reads the one structure, which outlives the call.
        super::check(unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut answer) })?;
        Ok(())
    }
}

impl AsFd for Listener {
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
    fn filtered<T: Send + 'static>(work: fn() -> T) -> Option<(Listener, thread::JoinHandle<T>)> {
        let (tell, told) = channel();
        let thread = thread::spawn(move || {
            let installed = install();
            let skip = installed.is_err();
            tell.send(installed).unwrap();
            if skip { None } else { Some(work()) }
        });
        match told.recv().unwrap() {
            Ok(installed) => Some((installed.listener, thread::spawn(move || thread.join().unwrap().unwrap()))),
            Err(error) => {
                eprintln!("skipped: no seccomp listener here: {error}");
                None
            }
        }
    }

    #[test]
    fn a_call_is_answered_with_another_socket_and_the_end_is_told() {
        let Some((listener, thread)) = filtered(|| socket(AddressFamily::INET, SocketType::STREAM, None)) else {
            return;
        };
        let call = listener.next().unwrap().unwrap();
        assert_eq!((call.family, call.kind & 0xf), (libc::AF_INET, libc::SOCK_STREAM));
        let gift = socket(AddressFamily::UNIX, SocketType::DGRAM, None).unwrap();
        listener.give(call, gift.as_fd(), true).unwrap();
        let made = thread.join().unwrap().unwrap();
        assert_eq!(rustix::net::sockopt::socket_domain(&made).unwrap(), AddressFamily::UNIX);
        assert!(rustix::io::fcntl_getfd(&made).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        assert_eq!(listener.next().unwrap(), None, "nobody is left under the filter");
        assert!(listener.go_on(call).is_err(), "answered twice");
    }

    #[test]
    fn what_is_not_wanted_goes_on() {
        let Some((listener, thread)) = filtered(|| socket(AddressFamily::INET6, SocketType::STREAM, None)) else {
            return;
        };
        let call = listener.next().unwrap().unwrap();
        assert_eq!(call.family, libc::AF_INET6);
        listener.go_on(call).unwrap();
        // The machine may have no IPv6; the call has ended either way.
        if let Ok(made) = thread.join().unwrap() {
            assert_eq!(rustix::net::sockopt::socket_domain(&made).unwrap(), AddressFamily::INET6);
        }
    }
}
