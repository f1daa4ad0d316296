//! `marline run`: the TCP sockets of a command are MPTCP sockets, whatever the command is made of.
//!
//! In: [`Options`]. Out: this process and whatever it becomes by exec make MPTCP sockets from here on, or one reason
//! why not.
//!
//! 1. The kernel shows every `socket` call that would make a TCP socket to a process beside this one, the
//!    keeper, which makes an MPTCP socket and puts it in the place of the result (seccomp's user notification,
//!    `marline_sys::seccomp`). Programs that were linked statically and those that make their system calls themselves
//!    (Go) ask the kernel, too, so they are no exception.
//! 2. This process becomes the command: its exit code, signals, terminal and children are the command's own.
//! 3. Whatever does not succeed ends in the plain TCP socket that was asked for. A command may be without MPTCP; it
//!    is never without a socket.
//! 4. The call is decided by its registers alone, so a second thread of the command can change nothing in between.
//! 5. Nothing is changed before everything has been tried: kernel, congestion control, `/proc`.
//!
//! `LD_PRELOAD` was not used (no static programs, no Go, none with other privileges than its user), nor ptrace (it
//! costs two stops for every system call, and takes the debugger's place), nor BPF's `update_socket_protocol` (it is for
//! the whole machine, and needs a kernel that was built for it).

mod supervisor;

use std::io;
use std::os::fd::OwnedFd;

use marline_sys::{daemonize, seccomp};
use rustix::io::Errno;
use rustix::net::ipproto::MPTCP;
use rustix::net::sockopt::{set_tcp_congestion, socket_protocol};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket, socket_with, socketpair};

/// How the sockets shall be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunOptions {
    /// The congestion control of each; none: the machine's.
    pub congestion: Option<CongestionControl>,
}

/// The name of a congestion control: 1 to 15 printable characters (`TCP_CA_NAME_MAX`, `net/tcp.h`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CongestionControl(String);

impl std::str::FromStr for CongestionControl {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        // The kernel would cut a longer name, and take another control for it.
        let long = name.len() > MAX_NAME_LEN;
        if name.is_empty() || long || !name.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(format!("`{name}` is no congestion control: a name such as cubic, bbr or reno"));
        }
        Ok(Self(name.to_owned()))
    }
}

const MAX_NAME_LEN: usize = 15;

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartOutcome {
    /// The command's sockets will be MPTCP sockets.
    Installed {
        /// Set-user-ID programs have no effect below the command: that was the price without `CAP_SYS_ADMIN`.
        no_new_privileges: bool,
    },
    /// They are already: this process was started by `marline run`. With a congestion control that is not set.
    AlreadyActive,
}

/// Why the command cannot have MPTCP sockets.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The kernel was built without it.
    #[error("this kernel has no MPTCP (CONFIG_MPTCP): {0}")]
    NoMptcp(io::Error),
    /// It was switched off.
    #[error("MPTCP is switched off in this network: sysctl -w net.mptcp.enabled=1")]
    Disabled,
    /// A congestion control that cannot be had.
    #[error("congestion control {name}: {why}")]
    Congestion {
        /// Its name.
        name: String,
        /// Why not, and what helps.
        why: String,
    },
    /// Somebody else supervises this process's system calls.
    #[error("another supervisor decides about the sockets of this process already (a container's, for example)")]
    HasSupervisor,
    /// A sandbox forbids it.
    #[error("no filter on system calls may be installed here (seccomp): {0}")]
    Refused(io::Error),
    /// The kernel cannot do it.
    #[error("this kernel cannot show system calls to another process (seccomp user notification, Linux 5.14): {0}")]
    NoSeccomp(io::Error),
    /// Anything else on the way.
    #[error("{what}: {why}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// What came of it.
        why: io::Error,
    },
}

/// Makes this process one whose TCP sockets are MPTCP sockets. It must have no second thread, and should become the
/// command at once.
///
/// # Errors
/// Those of [`RunError`]; this process is then as it was.
pub fn start(options: &RunOptions) -> Result<StartOutcome, RunError> {
    check_support(options)?;
    let tcp_socket = socket(AddressFamily::INET, SocketType::STREAM, None);
    if tcp_socket.is_ok_and(|socket| socket_protocol(&socket) == Ok(Some(MPTCP))) {
        return Ok(StartOutcome::AlreadyActive);
    }
    let io_error = |what: &'static str| move |why: io::Error| RunError::Io { what, why };
    supervisor::current_netns()
        .map_err(io_error("the network namespace of this process (/proc, or Linux 6.11)"))?;
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let (command_end, supervisor_end) = pair.map_err(|errno| io_error("a pair of sockets")(errno.into()))?;
    daemonize::spawn_detached(supervisor_end, supervisor::supervise)
        .map_err(io_error("a process beside the command"))?;
    let installed = seccomp::install_filter().map_err(install_error)?;
    supervisor::send_listener(command_end, &installed.listener, options)
        .map_err(io_error("the process beside the command"))?;
    Ok(StartOutcome::Installed { no_new_privileges: installed.no_new_privileges })
}

/// Makes sockets as the command's will be, and throws them away.
fn check_support(options: &RunOptions) -> Result<(), RunError> {
    let opened = match mptcp_socket(AddressFamily::INET, SocketFlags::CLOEXEC) {
        // A machine without IPv4.
        Err(Errno::AFNOSUPPORT) => mptcp_socket(AddressFamily::INET6, SocketFlags::CLOEXEC),
        made => made,
    };
    opened.map_err(|errno| match errno {
        Errno::NOPROTOOPT => RunError::Disabled,
        errno => RunError::NoMptcp(errno.into()),
    })?;
    let Some(CongestionControl(name)) = &options.congestion else { return Ok(()) };
    // An MPTCP socket without a subflow takes any name.
    let tcp_socket = socket(AddressFamily::INET, SocketType::STREAM, None);
    let tcp_socket = tcp_socket.or_else(|_| socket(AddressFamily::INET6, SocketType::STREAM, None));
    tcp_socket.and_then(|tcp_socket| set_tcp_congestion(&tcp_socket, name)).map_err(|errno| RunError::Congestion {
        name: name.clone(),
        why: match errno {
            Errno::NOENT => format!("this kernel does not have it loaded: modprobe tcp_{name}"),
            Errno::PERM => "not permitted: needs CAP_NET_ADMIN, or its name in \
                 net.ipv4.tcp_allowed_congestion_control"
                .into(),
            errno => io::Error::from(errno).to_string(),
        },
    })
}

fn mptcp_socket(family: AddressFamily, flags: SocketFlags) -> rustix::io::Result<OwnedFd> {
    socket_with(family, SocketType::STREAM, flags, Some(MPTCP))
}

fn install_error(error: io::Error) -> RunError {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::BUSY) => RunError::HasSupervisor,
        Some(Errno::ACCESS | Errno::PERM) => RunError::Refused(error),
        _ => RunError::NoSeccomp(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_the_kernel_would_cut_is_none() {
        assert_eq!("cubic".parse::<CongestionControl>().unwrap().0, "cubic");
        for name in ["", "a-very-long-name", "two words", "tab\t", "größe"] {
            assert!(name.parse::<CongestionControl>().is_err(), "{name}");
        }
    }

    #[test]
    fn a_congestion_control_that_does_not_exist_is_refused_before_anything_starts() {
        let options = RunOptions { congestion: Some("nosuch".parse().unwrap()) };
        match check_support(&options) {
            Err(RunError::Congestion { name, why }) => {
                assert_eq!(name, "nosuch");
                assert!(why.contains("modprobe tcp_nosuch") || why.contains("not permitted"), "{why}");
            }
            Err(error) => eprintln!("skipped: {error}"),
            Ok(()) => panic!("there is a congestion control `nosuch`"),
        }
    }

    #[test]
    fn refusals_are_told_apart() {
        let of = |errno: Errno| install_error(errno.into()).to_string();
        assert!(of(Errno::BUSY).contains("another supervisor"));
        assert!(of(Errno::ACCESS).contains("no filter"));
        assert!(of(Errno::NOSYS).contains("this kernel cannot"));
    }
}
