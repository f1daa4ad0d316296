//! Many packets for one system call: `recvmmsg`.
//!
//! In: a socket that does not block. Out: what waits there, up to the batch's size, each cut at its room. At some ten
//! thousand packets a second the calls themselves are what a reader spends its time on.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Room for some packets at once.
#[derive(Debug)]
pub struct Batch {
    bytes: Vec<u8>,
    /// Bytes for each packet.
    room: usize,
    lengths: Vec<usize>,
}

impl Batch {
    /// Room for `packets` of at most `room` bytes.
    pub fn new(packets: usize, room: usize) -> Self {
        let (packets, room) = (packets.max(1), room.max(1));
        Self { bytes: vec![0; packets * room], room, lengths: Vec::with_capacity(packets) }
    }

    /// Takes what waits on `socket` in place of what was here; `WouldBlock` when there is nothing.
    ///
    /// # Errors
    /// Those of `recvmmsg`.
    pub fn receive(&mut self, socket: impl AsFd) -> io::Result<()> {
        self.lengths.clear();
        let mut parts: Vec<libc::iovec> = self
            .bytes
            .chunks_exact_mut(self.room)
            .map(|room| libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() })
            .collect();
        let mut headers: Vec<libc::mmsghdr> = parts.iter_mut().map(header).collect();
        let (fd, most) = (socket.as_fd().as_raw_fd(), headers.len() as libc::c_uint);
        let (flags, wait) = (libc::MSG_DONTWAIT, std::ptr::null_mut());
        // SAFETY: `fd` is open for the call; each header names one part, and each part room of this batch alone.
        let came = super::check(unsafe { libc::recvmmsg(fd, headers.as_mut_ptr(), most, flags as _, wait) })?;
        let room = self.room;
        let came = headers.iter().take(usize::try_from(came).unwrap_or(0));
        self.lengths.extend(came.map(|header| room.min(header.msg_len as usize)));
        Ok(())
    }

    /// What the last call has brought.
    pub fn packets(&self) -> impl Iterator<Item = &[u8]> {
        self.bytes
            .chunks_exact(self.room)
            .zip(&self.lengths)
            .map(|(room, length)| room.get(..*length).unwrap_or(&[]))
    }

    /// Whether the last call has filled it: then more may wait.
    pub fn is_full(&self) -> bool {
        self.lengths.len() == self.bytes.len() / self.room
    }
}

/// A header with one part and nothing else.
fn header(part: &mut libc::iovec) -> libc::mmsghdr {
    // SAFETY: an all-zero `mmsghdr` is valid: no address, no parts, no control data.
    let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
    header.msg_hdr.msg_iov = part;
    header.msg_hdr.msg_iovlen = 1;
    header
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn what_waits_comes_in_its_order_and_cut_at_its_room() {
        let ear = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut batch = Batch::new(3, 4);
        let nothing = batch.receive(&ear).unwrap_err();
        assert_eq!((nothing.kind(), batch.packets().count()), (io::ErrorKind::WouldBlock, 0));
        for word in ["one", "three", "two", "", "six"] {
            ear.send_to(word.as_bytes(), ear.local_addr().unwrap()).unwrap();
        }
        batch.receive(&ear).unwrap();
        assert!(batch.is_full());
        assert_eq!(batch.packets().collect::<Vec<_>>(), [&b"one"[..], b"thre", b"two"]);
        batch.receive(&ear).unwrap();
        assert!(!batch.is_full());
        assert_eq!(batch.packets().collect::<Vec<_>>(), [&b""[..], b"six"]);
    }
}
