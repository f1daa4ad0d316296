//! Runs a command whose TCP sockets become MPTCP sockets (`marline run`), whatever kind of program it is.
//!
//! [`start`] prepares this process, which then becomes the command by `exec`.
//!
//! 1. A seccomp filter reports every `socket` call that would create a TCP socket to a supervisor process (seccomp
//!    user notification, `marline_sys::seccomp`). The supervisor creates an MPTCP socket and installs it as the
//!    result. This includes statically linked programs and those that make system calls directly (Go).
//! 2. This process becomes the command: exit code, signals, terminal and children are the command's own.
//! 3. Every failure ends in the plain TCP socket that the program requested. A command may lack MPTCP; it never lacks
//!    a socket.
//! 4. The decision depends only on the registers of the call, so another thread of the command cannot change it
//!    meanwhile.
//! 5. Nothing is changed before everything was tested: kernel, congestion control, `/proc`.
//!
//! Alternatives: `LD_PRELOAD` works neither for static programs nor for Go, nor for programs with raised privileges.
//! ptrace costs two stops per system call and occupies the debugger's place. BPF's `update_socket_protocol` affects
//! the whole host and needs a kernel that was built for it.

mod supervisor;

use std::io;
use std::os::fd::OwnedFd;

use marline_sys::{daemonize, seccomp};
use rustix::io::Errno;
use rustix::net::ipproto::MPTCP;
use rustix::net::sockopt::{set_tcp_congestion, socket_protocol};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket, socket_with, socketpair};

/// Options of the command's sockets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunOptions {
    /// Congestion control of each socket; none: the host's default.
    pub congestion: Option<CongestionControl>,
}

/// The name of a congestion control: 1 to 15 printable characters (`TCP_CA_NAME_MAX`, `net/tcp.h`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CongestionControl(String);

impl std::str::FromStr for CongestionControl {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        // The kernel truncates a longer name, which may then select another congestion control.
        let long = name.len() > MAX_NAME_LEN;
        if name.is_empty() || long || !name.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(format!("`{name}` is not a congestion control name (examples: cubic, bbr, reno)"));
        }
        Ok(Self(name.to_owned()))
    }
}

const MAX_NAME_LEN: usize = 15;

/// Result of [`start`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartOutcome {
    /// The command's sockets will be MPTCP sockets.
    Installed {
        /// Whether programs gain no privileges by set-user-ID bits in the command: without `CAP_SYS_ADMIN`, a filter
        /// requires that.
        no_new_privileges: bool,
    },
    /// They are already, because this process was started by `marline run`. The congestion control is not set then.
    AlreadyActive,
}

/// Why the command cannot use MPTCP sockets.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The kernel was built without MPTCP.
    #[error("this kernel has no MPTCP (CONFIG_MPTCP): {0}")]
    NoMptcp(io::Error),
    /// MPTCP is switched off.
    #[error("MPTCP is switched off in this network namespace: sysctl -w net.mptcp.enabled=1")]
    Disabled,
    /// The congestion control is unavailable.
    #[error("congestion control {name}: {why}")]
    Congestion {
        /// Name of the congestion control.
        name: String,
        /// The problem and the remedy.
        why: String,
    },
    /// Another supervisor handles this process's system calls.
    #[error("another supervisor already handles the sockets of this process (a container's, for example)")]
    HasSupervisor,
    /// A sandbox forbids seccomp filters.
    #[error("no seccomp filter may be installed here: {0}")]
    Refused(io::Error),
    /// The kernel lacks seccomp user notification.
    #[error(
        "this kernel cannot report system calls to another process (seccomp user notification, Linux 5.14): {0}"
    )]
    NoSeccomp(io::Error),
    /// Any other error.
    #[error("{operation}: {why}")]
    Io {
        /// The failed operation.
        operation: &'static str,
        /// The error of the system.
        why: io::Error,
    },
}

/// Prepares this process so that its TCP sockets become MPTCP sockets. It must be single-threaded, and should become
/// the command at once.
///
/// # Errors
/// Those of [`RunError`]; this process is then unchanged.
pub fn start(options: &RunOptions) -> Result<StartOutcome, RunError> {
    check_support(options)?;
    let tcp_socket = socket(AddressFamily::INET, SocketType::STREAM, None);
    if tcp_socket.is_ok_and(|socket| socket_protocol(&socket) == Ok(Some(MPTCP))) {
        return Ok(StartOutcome::AlreadyActive);
    }
    let io_error = |operation: &'static str| move |why: io::Error| RunError::Io { operation, why };
    supervisor::current_netns()
        .map_err(io_error("the network namespace of this process (/proc, or Linux 6.11)"))?;
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let (command_end, supervisor_end) =
        pair.map_err(|errno| io_error("creating a pair of sockets")(errno.into()))?;
    // The supervisor must start before the filter is installed: it would inherit the filter and wait for itself.
    daemonize::spawn_detached(supervisor_end, supervisor::supervise)
        .map_err(io_error("starting the supervisor process"))?;
    let installed = seccomp::install_filter().map_err(install_error)?;
    supervisor::send_listener(command_end, &installed.listener, options)
        .map_err(io_error("connecting to the supervisor process"))?;
    Ok(StartOutcome::Installed { no_new_privileges: installed.no_new_privileges })
}

/// Creates and closes sockets like those of the command.
fn check_support(options: &RunOptions) -> Result<(), RunError> {
    let opened = match mptcp_socket(AddressFamily::INET, SocketFlags::CLOEXEC) {
        // A host without IPv4.
        Err(Errno::AFNOSUPPORT) => mptcp_socket(AddressFamily::INET6, SocketFlags::CLOEXEC),
        made => made,
    };
    opened.map_err(|errno| match errno {
        Errno::NOPROTOOPT => RunError::Disabled,
        errno => RunError::NoMptcp(errno.into()),
    })?;
    let Some(CongestionControl(name)) = &options.congestion else { return Ok(()) };
    // An MPTCP socket without a subflow accepts any name, so the name is tested on a TCP socket.
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
    fn congestion_control_names_that_the_kernel_would_truncate_are_refused() {
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
    fn errors_of_the_installation_are_distinguished() {
        let message_of = |errno: Errno| install_error(errno.into()).to_string();
        assert!(message_of(Errno::BUSY).contains("another supervisor"));
        assert!(message_of(Errno::ACCESS).contains("no seccomp filter may be installed"));
        assert!(message_of(Errno::NOSYS).contains("this kernel cannot"));
    }
}
