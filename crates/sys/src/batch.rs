//! Many packets for one system call: `recvmmsg`.
//!
//! In: a socket that does not block. Out: what waits there, up to the batch's size, each cut at its room, and when it came
//! where the socket says so ([`stamp`]). At some ten thousand packets a second the calls themselves are what a reader spends
//! its time on.
//!
//! A call offers room for twice of what came last: where packets come one by one, headers for a whole batch would cost
//! more than the packet.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Room for some packets at once.
#[derive(Debug)]
pub struct Batch {
    bytes: Vec<u8>,
    /// Bytes for each packet.
    room: usize,
    came: Vec<Came>,
    /// For so many the last call had room.
    offered: usize,
}

/// A packet of the last call.
#[derive(Clone, Copy, Debug)]
struct Came {
    length: usize,
    at: Option<u64>,
}

/// What the kernel says beside a packet: room for a time and the words around it, aligned for them.
type Beside = [u64; 8];

impl Batch {
    /// Room for `packets` of at most `room` bytes.
    pub fn new(packets: usize, room: usize) -> Self {
        let (packets, room) = (packets.max(1), room.max(1));
        Self { bytes: vec![0; packets * room], room, came: Vec::with_capacity(packets), offered: 0 }
    }

    /// Takes what waits on `socket` in place of what was here; `WouldBlock` when there is nothing.
    ///
    /// # Errors
    /// Those of `recvmmsg`.
    pub fn receive(&mut self, socket: impl AsFd) -> io::Result<()> {
        let most = (2 * self.came.len()).max(AT_LEAST).min(self.bytes.len() / self.room);
        self.came.clear();
        let rooms = self.bytes.chunks_exact_mut(self.room).take(most);
        let mut parts: Vec<libc::iovec> =
            rooms.map(|room| libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() }).collect();
        let mut beside: Vec<Beside> = vec![Beside::default(); most];
        let mut headers: Vec<libc::mmsghdr> = parts.iter_mut().zip(&mut beside).map(header).collect();
        let (fd, flags, wait) = (socket.as_fd().as_raw_fd(), libc::MSG_DONTWAIT, std::ptr::null_mut());
        // SAFETY: `fd` is open for the call; each header names one part and one of `beside`, which live on behind it.
        let came = super::check(unsafe {
            libc::recvmmsg(fd, headers.as_mut_ptr(), most as libc::c_uint, flags as _, wait)
        })?;
        let room = self.room;
        let came = headers.iter().take(usize::try_from(came).unwrap_or(0));
        self.came.extend(came.map(|header| Came { length: room.min(header.msg_len as usize), at: time(header) }));
        self.offered = most;
        Ok(())
    }

    /// What the last call has brought.
    pub fn packets(&self) -> impl Iterator<Item = &[u8]> {
        self.stamped().map(|(packet, _)| packet)
    }

    /// The same, each with the nanoseconds of `CLOCK_REALTIME` when it came, if the socket has them ([`stamp`]).
    pub fn stamped(&self) -> impl Iterator<Item = (&[u8], Option<u64>)> {
        let rooms = self.bytes.chunks_exact(self.room);
        rooms.zip(&self.came).map(|(room, came)| (room.get(..came.length).unwrap_or(&[]), came.at))
    }

    /// Whether the last call has filled what it offered: then more may wait.
    pub fn is_full(&self) -> bool {
        self.came.len() == self.offered
    }
}

/// Has the kernel write beside each packet of this socket when it came.
///
/// # Errors
/// It is no socket.
pub fn stamp(socket: impl AsFd) -> io::Result<()> {
    let (fd, on) = (socket.as_fd().as_raw_fd(), 1_i32);
    let (value, size) = ((&raw const on).cast(), size_of_val(&on) as libc::socklen_t);
    // SAFETY: `fd` is open for the call, and `value` is as long as said.
    super::check(unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, value, size) })?;
    Ok(())
}

/// A header with one part and room for what is said beside it.
fn header((part, beside): (&mut libc::iovec, &mut Beside)) -> libc::mmsghdr {
    // SAFETY: an all-zero `mmsghdr` is valid: no address, no parts, no control data.
    let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
    header.msg_hdr.msg_iov = part;
    header.msg_hdr.msg_iovlen = 1;
    header.msg_hdr.msg_control = beside.as_mut_ptr().cast();
    header.msg_hdr.msg_controllen = size_of::<Beside>() as _;
    header
}

/// When a packet came, if that stands beside it.
fn time(header: &libc::mmsghdr) -> Option<u64> {
    // SAFETY: the kernel has written `msg_controllen` bytes of whole control messages where the header says.
    let first = unsafe { libc::CMSG_FIRSTHDR(&raw const header.msg_hdr).as_ref() }?;
    if (first.cmsg_level, first.cmsg_type) != (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS) {
        return None;
    }
    // SAFETY: a message of this kind holds a `timespec`, wherever it is aligned.
    let at: libc::timespec = unsafe { libc::CMSG_DATA(first).cast::<libc::timespec>().read_unaligned() };
    Some(u64::try_from(at.tv_sec).ok()? * 1_000_000_000 + u64::try_from(at.tv_nsec).ok()?)
}

/// chosen: a call's own cost is that of so many headers.
const AT_LEAST: usize = 8;

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
        assert!(batch.stamped().all(|(_, at)| at.is_none()), "nobody has asked when they came");
    }

    #[test]
    fn more_is_offered_where_more_comes_and_nothing_is_lost_between() {
        let ear = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut batch = Batch::new(64, 1);
        (0..100_u8).for_each(|n| assert_eq!(ear.send_to(&[n], ear.local_addr().unwrap()).unwrap(), 1));
        let mut all = Vec::new();
        while all.len() < 100 {
            batch.receive(&ear).unwrap();
            all.extend(batch.packets().map(|packet| packet[0]));
        }
        assert_eq!(all, (0..100).collect::<Vec<u8>>());
    }

    #[test]
    fn a_socket_that_is_asked_says_when_each_came() {
        let ear = UdpSocket::bind("127.0.0.1:0").unwrap();
        stamp(&ear).unwrap();
        for _ in 0..2 {
            ear.send_to(b"x", ear.local_addr().unwrap()).unwrap();
        }
        let mut batch = Batch::new(8, 8);
        batch.receive(&ear).unwrap();
        let times: Vec<u64> = batch.stamped().filter_map(|(_, at)| at).collect();
        // No order is asked for: the kernel takes the wall clock, which may be set back between two packets.
        assert!(times.len() == 2 && times.iter().all(|&at| at > 1_700_000_000_000_000_000), "{times:?}");
    }
}
