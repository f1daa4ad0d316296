//! TUN devices: network interfaces whose peer is a file descriptor that reads and writes IP packets.
//!
//! Only plain mode is used (`IFF_TUN | IFF_NO_PI`): one packet per read and write, without header and offloads, so
//! that packets are as on the wire. The device belongs to the network namespace of the thread that opens it and lives
//! as long as the descriptor, which works from any namespace.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

/// An open TUN, non-blocking.
#[derive(Debug)]
pub struct Tun {
    file: File,
}

impl Tun {
    /// Path of the device node that creates TUN devices.
    pub const DEVICE_PATH: &'static str = "/dev/net/tun";

    /// Creates the device `name` in the network namespace of this thread.
    ///
    /// # Errors
    /// The node is absent or not permitted; the name is taken, empty or longer than 15 bytes; no CAP_NET_ADMIN in
    /// this namespace.
    pub fn create(name: &str) -> io::Result<Self> {
        let bytes = name.as_bytes();
        if bytes.is_empty() || bytes.len() >= libc::IFNAMSIZ {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let file =
            OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(Self::DEVICE_PATH)?;
        // The first 16 bytes are the name, then come the flags; the kernel reads 40 bytes (`struct ifreq`).
        let mut request = [0_u8; 40];
        request[..bytes.len()].copy_from_slice(bytes);
        let flags = (libc::IFF_TUN | libc::IFF_NO_PI) as u16;
        request[16..18].copy_from_slice(&flags.to_ne_bytes());
        // SAFETY: TUNSETIFF reads and writes one `struct ifreq`, at most 40 bytes long, which `request` holds.
        super::check(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, request.as_mut_ptr()) })?;
        Ok(Self { file })
    }

    /// Reads the next packet that the kernel sent to the device; `WouldBlock` if there is none.
    ///
    /// # Errors
    /// Those of `read`. A packet longer than `buffer` is no error, but truncated.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        (&self.file).read(buffer)
    }

    /// Passes a packet to the kernel as if it had arrived on the device.
    ///
    /// # Errors
    /// Those of `write`: no IP packet, too long, or the device is down.
    pub fn send(&self, packet: &[u8]) -> io::Result<()> {
        (&self.file).write(packet).map(|_| ())
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_name_is_refused_before_the_device_is_opened() {
        for name in ["", "sixteen_bytes_16"] {
            assert_eq!(Tun::create(name).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        }
    }
}
