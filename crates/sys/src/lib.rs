//! What Linux offers, in safe wrappers: the only crate of marline with `unsafe` code.
//!
//! One small file per subject, no policy: what to do with a namespace, a TUN or a TCP counter is decided elsewhere.
//! Whatever `std`, `rustix` or `socket2` offers safely is used from there and not wrapped again.

pub mod af_packet;
pub mod bpf;
pub mod clock;
pub mod daemonize;
pub mod device;
pub mod memory;
pub mod mptcp;
pub mod namespace;
pub mod netlink;
pub mod pre_main;
pub mod priority;
pub mod process;
pub mod recvmmsg;
pub mod seccomp;
pub mod signal;
pub mod siocoutq;
pub mod tcp_info;
pub mod tcp_repair;
pub mod tun;

/// `0` or more is a result; `-1` is an error, whose number is in `errno`.
fn check(result: libc::c_int) -> std::io::Result<libc::c_int> {
    if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(result) }
}
