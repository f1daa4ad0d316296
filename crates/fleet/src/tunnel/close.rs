//! Controls whether the peer sees a connection end in order or with a reset.
//!
//! An interrupted transfer must not look like a complete one, because many protocols recognize the end only by the end
//! of the connection. A connection is therefore set to be reset from its beginning on, and to be closed in order only
//! after everything has been transferred. Whatever ends it in between (an error, a dropped task, a killed process) the
//! peer sees a reset.

use std::time::Duration;

use socket2::SockRef;
use tokio::net::TcpStream;

/// From now on closing the socket sends a reset (`SO_LINGER` with a timeout of zero).
pub(crate) fn reset_on_close(socket: &TcpStream) {
    let _ = SockRef::from(socket).set_linger(Some(Duration::ZERO));
}

/// From now on closing the socket ends the connection in order. Call this once everything has been transferred.
pub(crate) fn close_gracefully(socket: &TcpStream) {
    let _ = SockRef::from(socket).set_linger(None);
}
