//! What waits to be sent on a connection's subflows.
//!
//! In: a socket that speaks MPTCP. Out: whether it is to be given more now ([`marline_core::paths::queue`]), and a buffer that is
//! large enough for that to be the only bound; and what is not acknowledged.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use marline_core::paths::send_gate::{self, SubflowQueue};
use marline_core::units::{Bitrate, DataSize};
use marline_sys::mptcp::subflows;
use marline_sys::tcp_info::TcpInfo;
use rustix::net::sockopt::set_socket_send_buffer_size_force;

/// chosen: more than the window that a relay gives; what is not used takes no memory.
const SEND_BUFFER_LEN: usize = 4 * 1024 * 1024;

/// How long to wait before more is written; none: not at all.
///
/// # Errors
/// When it does not speak MPTCP, or the kernel cannot say (before 5.16).
pub fn write_delay(socket: impl AsFd) -> io::Result<Option<Duration>> {
    Ok(send_gate::wait(subflows(socket)?.iter().map(subflow_queue)))
}

/// Makes room for all that may be unacknowledged while a slow subflow holds up what came over a fast one: the buffer that the
/// kernel chooses is as long as the queues are short. Needs CAP_NET_ADMIN.
///
/// # Errors
/// Without it.
pub fn enlarge_send_buffer(socket: impl AsFd) -> io::Result<()> {
    Ok(set_socket_send_buffer_size_force(socket, SEND_BUFFER_LEN)?)
}

/// What a connection was given and the other end has not acknowledged yet; of MPTCP, whichever subflow carries it.
///
/// # Errors
/// It is no connected socket, or of a kernel that does not tell (MPTCP: before 5.17).
pub fn unacknowledged(socket: impl AsFd) -> io::Result<DataSize> {
    marline_sys::queue::unacknowledged(socket).map(DataSize::from_bytes)
}

fn subflow_queue(info: &TcpInfo) -> SubflowQueue {
    SubflowQueue {
        unsent: DataSize::from_bytes(info.unsent.into()),
        rate: Bitrate::from_bits_per_sec(info.pacing_rate.saturating_mul(8)),
        since_last_send: info.last_sent,
    }
}
