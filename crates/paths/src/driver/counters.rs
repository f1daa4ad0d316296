//! Reads a subflow's socket: whether it belongs to a connection, and its counters.

use std::time::Duration;

use marline_core::paths::{ConnId, Counters};
use marline_core::units::DataSize;
use marline_core::wire::netlink::diag;

/// Whether the socket is an open subflow of this connection. Another socket may use its port by now.
pub(super) fn is_open_subflow_of(socket: &diag::Socket, conn: ConnId) -> bool {
    socket.subflow.is_some_and(|subflow| subflow.token == conn.0) && socket.is_open()
}

/// The counters as the policy expects them; none: the kernel did not report TCP info.
pub(super) fn to_counters(socket: &diag::Socket) -> Option<Counters> {
    let tcp = socket.tcp_info?;
    let nonzero = |time: Duration| (!time.is_zero()).then_some(time);
    Some(Counters {
        received: DataSize::from_bytes(tcp.bytes_received),
        // The acknowledged SYN counts as one byte and is no payload.
        sent: DataSize::from_bytes(tcp.bytes_acked.saturating_sub(1)),
        outstanding: DataSize::from_bytes(socket.unacknowledged.into()),
        rtt: nonzero(tcp.rtt),
        receiver_rtt: nonzero(tcp.receiver_rtt),
        timeouts: tcp.timeouts,
        backup: socket.subflow.is_some_and(|subflow| subflow.is_local_backup()),
        peer_backup: socket.subflow.is_some_and(|subflow| subflow.is_peer_backup()),
        data_seq: None,
    })
}
