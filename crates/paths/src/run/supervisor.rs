//! Supervisor process of `marline run`: creates the MPTCP sockets for as long as any process is under the filter.
//!
//! It receives the seccomp listener and the options over a local socket ([`send_listener`]). For each `socket` call
//! it installs an MPTCP socket, or lets the call continue with plain TCP.
//!
//! 1. There are two processes. One handles calls; the other sleeps and restarts the first one if it is killed.
//!    Without a handler the command's `socket` calls would fail with `ENOSYS`, because a filter cannot be removed.
//! 2. They end when no process is left under the filter. Until then they wait in the kernel without CPU time.
//! 3. Between a call and its reply there is no allocation, and no error ends the handler.
//! 4. A call from a thread in another network namespace continues unchanged: a socket created here would belong to
//!    the wrong namespace. The same holds for a thread that the supervisor may not inspect. The thread is blocked in
//!    its call meanwhile, so it cannot change its namespace. If it dies, its id becomes invalid, and installing the
//!    socket fails.

use std::io::{self, IoSlice, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use marline_sys::daemonize;
use marline_sys::namespace::netns_of_thread;
use marline_sys::seccomp::{SeccompListener, SyscallNotification};
use rustix::io::Errno;
use rustix::net::sockopt::set_tcp_congestion;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, recv, recvmsg, send, sendmsg,
};
use rustix::process::{WaitOptions, waitpid};

use super::{MAX_NAME_LEN, RunOptions, mptcp_socket};

/// Identity of a network namespace: device and inode of its file.
pub(super) type NetnsId = (u64, u64);

/// Sends the listener and the options to the supervisor, and waits for its confirmation.
///
/// # Errors
/// The supervisor has ended.
pub(super) fn send_listener(socket: OwnedFd, listener: &SeccompListener, options: &RunOptions) -> io::Result<()> {
    let name = options.congestion.as_ref().map_or("", |congestion| congestion.0.as_str());
    let fds = [listener.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&fds));
    // An empty message would mean the end of the connection, so the first byte is a placeholder.
    let message = [IoSlice::new(b"+"), IoSlice::new(name.as_bytes())];
    sendmsg(&socket, &message, &mut ancillary, SendFlags::NOSIGNAL)?;
    match recv(&socket, &mut [0_u8; 1], RecvFlags::empty())? {
        (_, 1) => Ok(()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Main function of the sleeping process; returns its exit code.
pub(super) fn supervise(socket: OwnedFd) -> u8 {
    let Ok((listener, congestion, length)) = receive_listener(&socket) else { return 1 };
    let congestion = congestion.get(..length).and_then(|name| std::str::from_utf8(name).ok());
    let congestion = congestion.filter(|name| !name.is_empty());
    // Best effort: values below zero require a privilege.
    let _ = std::fs::write("/proc/self/oom_score_adj", "-1000");
    let _ = rustix::thread::set_name(c"marline-run");
    listener.enable_sync_wakeup();
    if send(&socket, b"+", SendFlags::NOSIGNAL).is_err() {
        return 1;
    }
    drop(socket);
    loop {
        let Ok(answering) = daemonize::fork_child(|| handle_notifications(&listener, congestion)) else {
            // If no process can be created, the calls are handled here.
            return handle_notifications(&listener, congestion);
        };
        let ended = loop {
            match waitpid(Some(answering), WaitOptions::empty()) {
                Err(Errno::INTR) => {}
                ended => break ended,
            }
        };
        match ended {
            Ok(Some((_, status))) if status.exit_status() == Some(0) => return 0,
            // Repeated kills must not consume a CPU core.
            _ => std::thread::sleep(RESTART_DELAY),
        }
    }
}

fn receive_listener(socket: &OwnedFd) -> io::Result<(SeccompListener, [u8; MAX_NAME_LEN], usize)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let (mut first, mut name) = ([0], [0; MAX_NAME_LEN]);
    let mut message = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut name)];
    let received = recvmsg(socket, &mut message, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let fd = ancillary.drain().find_map(|item| match item {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    let listener = SeccompListener::from_fd(fd.ok_or(io::ErrorKind::UnexpectedEof)?);
    Ok((listener, name, received.bytes.saturating_sub(1)))
}

/// Main function of the handling process; returns its exit code.
fn handle_notifications(listener: &SeccompListener, congestion: Option<&str>) -> u8 {
    let Ok(own_netns) = current_netns() else { return 1 };
    loop {
        match listener.next_call() {
            Ok(Some(call)) => handle_call(listener, call, own_netns, congestion),
            Ok(None) => return 0,
            Err(_) => return 1,
        }
    }
}

fn handle_call(
    listener: &SeccompListener,
    call: SyscallNotification,
    own_netns: NetnsId,
    congestion: Option<&str>,
) {
    let is_same_netns = thread_netns(call.thread_id).is_ok_and(|netns| netns == own_netns);
    if let Some((socket, close_on_exec)) = is_same_netns.then(|| make_mptcp_socket(call, congestion)).flatten() {
        match listener.add_fd(call, socket.as_fd(), close_on_exec) {
            Ok(()) => return,
            Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => return,
            // The caller has no free descriptor: the kernel should report that.
            Err(_) => {}
        }
    }
    // A failure means that the caller has ended.
    let _ = listener.continue_syscall(call);
}

/// The requested socket, and whether the caller's descriptor closes on exec.
fn make_mptcp_socket(call: SyscallNotification, congestion: Option<&str>) -> Option<(OwnedFd, bool)> {
    let flags = SocketFlags::from_bits(u32::try_from(call.socket_type).ok()? & !SOCKET_TYPE_MASK)?;
    if !(SocketFlags::NONBLOCK | SocketFlags::CLOEXEC).contains(flags) {
        return None;
    }
    let family = AddressFamily::from_raw(u16::try_from(call.family).ok()?);
    let socket = mptcp_socket(family, flags | SocketFlags::CLOEXEC).ok()?;
    if let Some(name) = congestion {
        // The name was tested before the command started.
        let _ = set_tcp_congestion(&socket, name);
    }
    Some((socket, flags.contains(SocketFlags::CLOEXEC)))
}

/// The network namespace of this process.
pub(super) fn current_netns() -> io::Result<NetnsId> {
    thread_netns(std::process::id())
}

/// The network namespace of a thread, by a system call or, on older kernels, by `/proc`.
fn thread_netns(thread: u32) -> io::Result<NetnsId> {
    match netns_of_thread(thread) {
        Ok(fd) => {
            let stat = rustix::fs::fstat(fd)?;
            Ok((stat.st_dev, stat.st_ino))
        }
        Err(error) if is_unsupported(&error) => netns_from_proc(thread),
        Err(error) => Err(error),
    }
}

/// Whether the kernel is too old for the request.
fn is_unsupported(error: &io::Error) -> bool {
    let unknown = [Errno::NOTTY, Errno::INVAL, Errno::NOSYS].map(Errno::raw_os_error);
    error.raw_os_error().is_some_and(|number| unknown.contains(&number))
}

/// The network namespace from `/proc`, if that belongs to this process's PID namespace.
fn netns_from_proc(thread: u32) -> io::Result<NetnsId> {
    let mut own_pid = [0; 16];
    let length = rustix::fs::readlinkat_raw(rustix::fs::CWD, "/proc/self", own_pid.as_mut_slice())?;
    if own_pid
        .get(..length)
        .and_then(|own_pid| std::str::from_utf8(own_pid).ok())
        .and_then(|own_pid| own_pid.parse().ok())
        != Some(std::process::id())
    {
        return Err(io::Error::other("/proc is that of another PID namespace"));
    }
    let mut path = [0; 32];
    let mut unwritten = path.as_mut_slice();
    write!(unwritten, "/proc/{thread}/ns/net")?;
    let unused = unwritten.len();
    let written = path.len() - unused;
    let stat = rustix::fs::stat(path.get(..written).unwrap_or_default())?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Bits of the socket type; the remaining bits are flags (`linux/net.h`).
const SOCKET_TYPE_MASK: u32 = 0xf;
/// Our choice: not noticeable once, and at most 1 % of a core if it repeats without end.
const RESTART_DELAY: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    fn call(kind: u32) -> SyscallNotification {
        SyscallNotification { id: 1, thread_id: 0, family: 2, socket_type: kind as i32 }
    }

    #[test]
    fn known_flags_are_kept_and_others_left_to_the_kernel() {
        let stream = 1;
        let Some((socket, close)) = make_mptcp_socket(call(stream | SocketFlags::NONBLOCK.bits()), None) else {
            eprintln!("skipped: this kernel has no MPTCP");
            return;
        };
        assert!(!close);
        assert!(rustix::fs::fcntl_getfl(&socket).unwrap().contains(rustix::fs::OFlags::NONBLOCK));
        assert!(make_mptcp_socket(call(stream | SocketFlags::CLOEXEC.bits()), None).unwrap().1);
        assert!(make_mptcp_socket(call(stream | 0x100), None).is_none());
        assert!(make_mptcp_socket(call(stream | 1 << 31), None).is_none());
        assert!(make_mptcp_socket(SyscallNotification { family: -1, ..call(stream) }, None).is_none());
    }

    #[test]
    fn only_existing_threads_have_a_network_namespace() {
        let current = current_netns().unwrap();
        assert_eq!(thread_netns(std::process::id()).unwrap(), current);
        assert_eq!(netns_from_proc(std::process::id()).unwrap(), current, "/proc has another result");
        assert!(netns_from_proc(0).is_err());
        assert!(thread_netns(0).is_err());
        assert!(thread_netns(u32::MAX).is_err());
    }
}
