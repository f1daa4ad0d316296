//! Safe wrappers of Linux features: the only crate of marline with `unsafe` code.
//!
//! There is one small file per subject, without policy: other crates decide what to do with a namespace, a TUN device
//! or a TCP counter. Features that `std`, `rustix` or `socket2` offer safely are used from there.
//!
//! - Connections: [`mptcp`], [`tcp_info`], [`siocoutq`] (unacknowledged bytes), [`tcp_repair`] (a connection without
//!   packets), [`device`] (binds a socket to an interface).
//! - Packets and kernel: [`af_packet`] (capture), [`recvmmsg`] (many packets per call), [`tun`], [`netlink`], [`bpf`]
//!   (test runs).
//! - Processes: [`namespace`], [`process`], [`daemonize`] (detached processes), [`seccomp`] (other programs' `socket`
//!   calls), [`signal`], [`pre_main`] (whether standard output was closed).
//! - Time and memory: [`clock`], [`priority`] (scheduling), [`memory`] (allocator).

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

/// Converts a C result: 0 or more is a value, and -1 is an error whose number is in `errno`.
fn check(result: libc::c_int) -> std::io::Result<libc::c_int> {
    if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(result) }
}
