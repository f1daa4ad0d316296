//! How a connection ends for who is on its other side: in order, or with a reset.
//!
//! In: a connection, and whether what it carries is whole. Out: what the kernel does when it is closed.
//!
//! Bytes that break off must not look like bytes that end, for many protocols know a whole by its end alone. So a connection is to
//! be reset from its beginning on, and closed in order only when all has been carried: whatever ends it in between, an error, a
//! task that is dropped, a process that is killed, is heard on the other side.

use std::time::Duration;

use socket2::SockRef;
use tokio::net::TcpStream;

/// Whenever it is closed from now on, that is a reset.
pub(crate) fn reset_on_close(socket: &TcpStream) {
    let _ = SockRef::from(socket).set_linger(Some(Duration::ZERO));
}

/// It has carried all: it is closed in order.
pub(crate) fn close_gracefully(socket: &TcpStream) {
    let _ = SockRef::from(socket).set_linger(None);
}
