//! The send queue of an MPTCP connection: when to write more, the buffer size, and the unacknowledged bytes.
//!
//! [`marline_core::paths::send_gate`] decides from the queues of the subflows how long a writer should wait, so that
//! data does not pile up on a slow subflow. The send buffer is enlarged so that this decision is the only bound.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use marline_core::paths::send_gate::{self, SubflowQueue};
use marline_core::units::{Bitrate, DataSize};
use marline_sys::mptcp::subflow_infos;
use marline_sys::tcp_info::TcpInfo;
use rustix::net::sockopt::set_socket_send_buffer_size_force;

/// Our choice: more than the receive window of a relay; unused buffer space takes no memory.
const SEND_BUFFER_LEN: usize = 4 * 1024 * 1024;

/// How long to wait before writing more; `None`: write now.
///
/// # Errors
/// The socket does not use MPTCP, or the kernel does not report its subflows (before 5.16).
pub fn write_delay(socket: impl AsFd) -> io::Result<Option<Duration>> {
    Ok(send_gate::wait(subflow_infos(socket)?.iter().map(subflow_queue)))
}

/// Sets the send buffer to 4 MiB, enough for all data that may be unacknowledged while a slow subflow holds up data
/// sent later over a fast one. The buffer size that the kernel chooses is too small when the queues are short. Needs
/// CAP_NET_ADMIN.
///
/// # Errors
/// The process lacks CAP_NET_ADMIN.
pub fn enlarge_send_buffer(socket: impl AsFd) -> io::Result<()> {
    Ok(set_socket_send_buffer_size_force(socket, SEND_BUFFER_LEN)?)
}

/// Bytes that were written to a connection and that the peer has not acknowledged; for MPTCP on all subflows
/// together.
///
/// # Errors
/// The socket is not connected, or the kernel does not report it (for MPTCP before 5.17).
pub fn unacknowledged(socket: impl AsFd) -> io::Result<DataSize> {
    marline_sys::siocoutq::unacknowledged_bytes(socket).map(DataSize::from_bytes)
}

fn subflow_queue(info: &TcpInfo) -> SubflowQueue {
    SubflowQueue {
        unsent: DataSize::from_bytes(info.notsent_bytes.into()),
        rate: Bitrate::from_bits_per_sec(info.pacing_rate.saturating_mul(8)),
        since_last_send: info.last_sent,
    }
}
