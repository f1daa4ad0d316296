//! Receives many packets in one system call: `recvmmsg`.
//!
//! A [`Batch`] reads the waiting packets of a non-blocking socket, up to its size. Packets are truncated to the slot
//! size, and have timestamps if the socket provides them ([`enable_timestamps`]). At some ten thousand packets per
//! second, system calls dominate the cost of a reader.
//!
//! Each call offers twice as many slots as the last call received packets, but at least eight if the batch has them.
//! When packets arrive singly, headers for a whole batch would cost more than the packet.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Buffer for several packets.
#[derive(Debug)]
pub struct Batch {
    bytes: Vec<u8>,
    /// Slot size in bytes.
    packet_size: usize,
    received: Vec<ReceivedPacket>,
    /// Number of slots of the last call.
    offered_slots: usize,
}

/// Metadata of a packet of the last call; its bytes are in the slot of the same index.
#[derive(Clone, Copy, Debug)]
struct ReceivedPacket {
    length: usize,
    timestamp: Option<u64>,
}

/// Control data of a packet: space for a timestamp with its header, suitably aligned.
type ControlBuffer = [u64; 8];

impl Batch {
    /// Creates a buffer for `packets` packets of at most `packet_size` bytes.
    pub fn new(packets: usize, packet_size: usize) -> Self {
        let (packets, packet_size) = (packets.max(1), packet_size.max(1));
        Self {
            bytes: vec![0; packets * packet_size],
            packet_size,
            received: Vec::with_capacity(packets),
            offered_slots: 0,
        }
    }

    /// Replaces the contents by packets that wait on `socket`; `WouldBlock` if there are none. After an error there
    /// are no contents.
    ///
    /// # Errors
    /// Those of `recvmmsg`.
    pub fn receive(&mut self, socket: impl AsFd) -> io::Result<()> {
        let slot_count = (2 * self.received.len()).max(MIN_SLOTS).min(self.bytes.len() / self.packet_size);
        self.received.clear();
        let slots = self.bytes.chunks_exact_mut(self.packet_size).take(slot_count);
        let mut iovecs: Vec<libc::iovec> =
            slots.map(|slot| libc::iovec { iov_base: slot.as_mut_ptr().cast(), iov_len: slot.len() }).collect();
        let mut control_buffers: Vec<ControlBuffer> = vec![ControlBuffer::default(); slot_count];
        let mut headers: Vec<libc::mmsghdr> =
            iovecs.iter_mut().zip(&mut control_buffers).map(message_header).collect();
        let (fd, flags, timeout) = (socket.as_fd().as_raw_fd(), libc::MSG_DONTWAIT, std::ptr::null_mut());
        // SAFETY: `fd` is open for the call; each header points to one part and one control buffer, which outlive it.
        let count = super::check(unsafe {
            libc::recvmmsg(fd, headers.as_mut_ptr(), slot_count as libc::c_uint, flags as _, timeout)
        })?;
        let packet_size = self.packet_size;
        let filled = headers.iter().take(usize::try_from(count).unwrap_or(0));
        self.received.extend(filled.map(|header| ReceivedPacket {
            length: packet_size.min(header.msg_len as usize),
            timestamp: packet_timestamp(header),
        }));
        self.offered_slots = slot_count;
        Ok(())
    }

    /// Packets of the last call.
    pub fn packets(&self) -> impl Iterator<Item = &[u8]> {
        self.packets_with_timestamps().map(|(packet, _)| packet)
    }

    /// Packets of the last call with their receive times in nanoseconds of `CLOCK_REALTIME`, if the socket provides
    /// them ([`enable_timestamps`]).
    pub fn packets_with_timestamps(&self) -> impl Iterator<Item = (&[u8], Option<u64>)> {
        let slots = self.bytes.chunks_exact(self.packet_size);
        slots.zip(&self.received).map(|(slot, info)| (slot.get(..info.length).unwrap_or(&[]), info.timestamp))
    }

    /// Whether the last call filled all offered slots, so that more packets may wait.
    pub fn is_full(&self) -> bool {
        self.received.len() == self.offered_slots
    }
}

/// Makes the kernel provide the receive time of each packet.
///
/// # Errors
/// Not a socket.
pub fn enable_timestamps(socket: impl AsFd) -> io::Result<()> {
    let (fd, enable) = (socket.as_fd().as_raw_fd(), 1_i32);
    let (value, size) = ((&raw const enable).cast(), size_of_val(&enable) as libc::socklen_t);
    // SAFETY: `fd` is open for the call, and `size` is the length of `value`.
    super::check(unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, value, size) })?;
    Ok(())
}

/// A message header with one part and control data.
fn message_header((iovec, control): (&mut libc::iovec, &mut ControlBuffer)) -> libc::mmsghdr {
    // SAFETY: an all-zero `mmsghdr` is valid: no address, no parts, no control data.
    let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
    header.msg_hdr.msg_iov = iovec;
    header.msg_hdr.msg_iovlen = 1;
    header.msg_hdr.msg_control = control.as_mut_ptr().cast();
    header.msg_hdr.msg_controllen = size_of::<ControlBuffer>() as _;
    header
}

/// Receive time of a packet, if the control data contain it.
fn packet_timestamp(header: &libc::mmsghdr) -> Option<u64> {
    // SAFETY: the kernel has written `msg_controllen` bytes of whole control messages where the header says.
    let control_message = unsafe { libc::CMSG_FIRSTHDR(&raw const header.msg_hdr).as_ref() }?;
    if (control_message.cmsg_level, control_message.cmsg_type) != (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS) {
        return None;
    }
    // SAFETY: a message of this kind holds a `timespec`, wherever it is aligned.
    let timestamp: libc::timespec =
        unsafe { libc::CMSG_DATA(control_message).cast::<libc::timespec>().read_unaligned() };
    Some(u64::try_from(timestamp.tv_sec).ok()? * 1_000_000_000 + u64::try_from(timestamp.tv_nsec).ok()?)
}

/// Fewest slots that a call offers. Our choice: headers for this number cost as much as the call itself.
const MIN_SLOTS: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn packets_arrive_in_order_and_truncated() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut batch = Batch::new(3, 4);
        let error = batch.receive(&socket).unwrap_err();
        assert_eq!((error.kind(), batch.packets().count()), (io::ErrorKind::WouldBlock, 0));
        for payload in ["one", "three", "two", "", "six"] {
            socket.send_to(payload.as_bytes(), socket.local_addr().unwrap()).unwrap();
        }
        batch.receive(&socket).unwrap();
        assert!(batch.is_full());
        assert_eq!(batch.packets().collect::<Vec<_>>(), [&b"one"[..], b"thre", b"two"]);
        batch.receive(&socket).unwrap();
        assert!(!batch.is_full());
        assert_eq!(batch.packets().collect::<Vec<_>>(), [&b""[..], b"six"]);
        assert!(
            batch.packets_with_timestamps().all(|(_, timestamp)| timestamp.is_none()),
            "timestamps were not enabled"
        );
    }

    #[test]
    fn slots_grow_with_the_load_and_no_packet_is_lost() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut batch = Batch::new(64, 1);
        (0..100_u8).for_each(|n| assert_eq!(socket.send_to(&[n], socket.local_addr().unwrap()).unwrap(), 1));
        let mut received = Vec::new();
        while received.len() < 100 {
            batch.receive(&socket).unwrap();
            received.extend(batch.packets().map(|packet| packet[0]));
        }
        assert_eq!(received, (0..100).collect::<Vec<u8>>());
    }

    #[test]
    fn timestamps_are_returned_when_enabled() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        enable_timestamps(&socket).unwrap();
        for _ in 0..2 {
            socket.send_to(b"x", socket.local_addr().unwrap()).unwrap();
        }
        let mut batch = Batch::new(8, 8);
        batch.receive(&socket).unwrap();
        let times: Vec<u64> = batch.packets_with_timestamps().filter_map(|(_, timestamp)| timestamp).collect();
        // Their order is not checked: the kernel uses the wall clock, which may be set back between two packets.
        assert!(
            times.len() == 2 && times.iter().all(|&timestamp| timestamp > 1_700_000_000_000_000_000),
            "{times:?}"
        );
    }
}
