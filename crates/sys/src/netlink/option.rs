//! Options of netlink sockets that neither `rustix` nor `socket2` supports. Each is one number.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Sets an option of the level `SOL_NETLINK`.
pub(super) fn set_option(socket: impl AsFd, option: libc::c_int, value: u32) -> io::Result<()> {
    let fd = socket.as_fd().as_raw_fd();
    let length = size_of::<u32>() as libc::socklen_t;
    // SAFETY: `fd` is open for the call, and `length` is the length of `value`.
    crate::check(unsafe { libc::setsockopt(fd, libc::SOL_NETLINK, option, (&raw const value).cast(), length) })?;
    Ok(())
}
