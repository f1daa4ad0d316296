//! Whether a connection speaks MPTCP, for drivers that own the socket.

use std::os::fd::AsFd;

use marline_sys::mptcp::Spoken;

/// Whether a connection that was begun with MPTCP speaks it, or fell back to plain TCP; none: it was begun without it, or the kernel does
/// not say.
pub fn is_spoken(socket: impl AsFd) -> Option<bool> {
    match Spoken::of(socket).ok()? {
        Spoken::Yes => Some(true),
        Spoken::FellBack => Some(false),
        Spoken::Never | Spoken::Asked => None,
    }
}
