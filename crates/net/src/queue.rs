//! What a connection has been given and the other end has not acknowledged yet.

use std::io;
use std::os::fd::AsFd;

use marline_core::units::DataSize;

/// Asks the kernel: of MPTCP what the whole connection waits for.
///
/// # Errors
/// It is no connected socket, or of a kernel that does not tell (MPTCP: before 5.17).
pub fn unacknowledged(socket: impl AsFd) -> io::Result<DataSize> {
    marline_sys::queue::unacknowledged(socket).map(DataSize::from_bytes)
}
