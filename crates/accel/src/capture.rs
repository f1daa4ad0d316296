//! Captures packets of the primary link as they pass (AF_PACKET); they are never held.
//!
//! 1. The kernel's filter passes what comes for this host, and of what leaves only what the queue does not show:
//!    packets longer than the queued ones and without our mark.
//! 2. Packets are cut in the kernel; their real length is that of their own header. Where the device merges segments
//!    (GRO), one packet stands for several.
//! 3. Each has the time when it came, so that the thread need not be woken for it at once ([`Capture::packets`]).
//! 4. Packets beyond the buffer are counted and lost: nothing depends on them.
//! 5. No packet waits for a change: another snap length is another filter of the same socket, and closing the socket
//!    takes a grace period of the kernel (`synchronize_net` in `packet_release`), which a thread of its own waits for.
//!    Otherwise a sender in slow start would answer the acknowledgements of that time with a burst.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use marline_core::accel::{CaptureLevel, SNAP_LENGTH};
use marline_sys::af_packet::{self, Instruction};
use marline_sys::clock;
use marline_sys::netlink::is_overflow;
use marline_sys::recvmmsg::{self, Batch};
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_recv_buffer_size_force};

use super::AccelError;
use crate::iptables::MAX_QUEUED_PACKET;
use crate::raw_socket::MARK;

/// An open capture.
#[derive(Debug)]
pub(super) struct Capture {
    socket: OwnedFd,
    batch: Batch,
    level: CaptureLevel,
}

impl Capture {
    /// On the device with this name and index; none: nothing is to be captured.
    pub(super) fn open(device: &str, index: u32, level: CaptureLevel) -> Result<Option<Self>, AccelError> {
        if level == CaptureLevel::None {
            return Ok(None);
        }
        let failed = AccelError::kernel(format!("{device}: a packet socket"));
        let socket = af_packet::open_socket(index, &filter(snap_length(level))).map_err(failed)?;
        // Without timestamps a packet counts as received when it is read.
        let _ = recvmmsg::enable_timestamps(&socket);
        if set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER).is_err() {
            // The unprivileged limit is better than nothing.
            let _ = set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER);
        }
        Ok(Some(Self { socket, batch: batch_for(level), level }))
    }

    /// Captures more or less of each packet from now on.
    pub(super) fn set_level(&mut self, level: CaptureLevel) -> io::Result<()> {
        af_packet::attach_filter(&self.socket, &filter(snap_length(level)))?;
        // Packets in the buffer stay as they were cut.
        (self.batch, self.level) = (batch_for(level), level);
        Ok(())
    }

    /// Closes it without waiting for that.
    pub(super) fn close_in_background(self) {
        close_in_background(self.socket);
    }

    pub(super) const fn level(&self) -> CaptureLevel {
        self.level
    }

    /// Receives a batch; false: nothing more now.
    pub(super) fn receive(&mut self) -> io::Result<bool> {
        match self.batch.receive(&self.socket) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            // The device is down; the socket works again when it is up.
            Err(error) if error.kind() == io::ErrorKind::NetworkDown => Ok(false),
            Err(error) if is_overflow(&error) || error.kind() == io::ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// The received packets: the beginning of each, its real length, and when it came ([`clock::now`]).
    pub(super) fn packets(&self) -> impl Iterator<Item = (&[u8], u32, u64)> {
        let (now, ahead) = (clock::now(), clock::realtime_offset());
        // A clock that is set meanwhile must not move a packet into the future.
        let received_at = move |at: Option<u64>| at.map_or(now, |at| at.saturating_sub(ahead).min(now));
        self.batch.packets_with_timestamps().map(move |(packet, at)| (packet, real_length(packet), received_at(at)))
    }

    /// Whether more packets may have passed than were received.
    pub(super) fn is_full(&self) -> bool {
        self.batch.is_full()
    }

    /// Packets that were lost since the last call.
    pub(super) fn drops(&self) -> u64 {
        af_packet::take_drop_count(&self.socket).unwrap_or(0).into()
    }
}

impl AsFd for Capture {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Closes packet sockets, which takes a while, on a thread of its own.
pub(super) fn close_in_background(sockets: impl Send + 'static) {
    // Without a thread they are closed here.
    let _ = std::thread::Builder::new().name("closing".into()).spawn(move || drop(sockets));
}

/// How many bytes of each packet are captured.
const fn snap_length(level: CaptureLevel) -> usize {
    match level {
        CaptureLevel::None => 0,
        CaptureLevel::Headers => SNAP_LENGTH,
        CaptureLevel::Full => MAX_PACKET,
    }
}

/// Memory for the packets of one batch.
fn batch_for(level: CaptureLevel) -> Batch {
    Batch::new(if level == CaptureLevel::Full { 16 } else { 64 }, snap_length(level))
}

/// The length in the header; for a jumbogram, which has none, that of the captured bytes.
fn real_length(packet: &[u8]) -> u32 {
    let half =
        |at: usize| packet.get(at..at + 2).map_or(0, |half| u32::from(u16::from_be_bytes([half[0], half[1]])));
    let stated_length = match packet.first().map(|first| first >> 4) {
        Some(4) => half(2),
        Some(6) if half(4) > 0 => half(4) + 40,
        _ => 0,
    };
    stated_length.max(u32::try_from(packet.len()).unwrap_or(u32::MAX))
}

/// TCP without extension headers; of what leaves only large packets without our mark. Passes `cut` bytes.
fn filter(cut: usize) -> [Instruction; 17] {
    let cut = u32::try_from(cut).unwrap_or(u32::MAX);
    // Codes of `linux/bpf_common.h`; ancillary data is at SKF_AD_OFF.
    const BYTE: u16 = 0x30;
    const WORD: u16 = 0x20;
    const LENGTH: u16 = 0x80;
    const EQUAL: u16 = 0x15;
    const GREATER: u16 = 0x25;
    const JUMP: u16 = 0x05;
    const SHIFT: u16 = 0x74;
    const RETURN: u16 = 0x06;
    const AD_OFFSET: u32 = 0xffff_f000;
    const KIND: u32 = AD_OFFSET + 4;
    const MARKED: u32 = AD_OFFSET + 20;
    [
        (BYTE, 0, 0, 0),
        (SHIFT, 0, 0, 4),
        (EQUAL, 0, 2, 4),
        (BYTE, 0, 0, 9),
        (JUMP, 0, 0, 2),
        (EQUAL, 0, 10, 6),
        (BYTE, 0, 0, 6),
        (EQUAL, 0, 8, 6),
        // PACKET_HOST passes, PACKET_OUTGOING is examined, all else is dropped.
        (BYTE, 0, 0, KIND),
        (EQUAL, 5, 0, 0),
        (EQUAL, 0, 5, 4),
        (WORD, 0, 0, MARKED),
        (EQUAL, 3, 0, MARK),
        (LENGTH, 0, 0, 0),
        (GREATER, 0, 1, MAX_QUEUED_PACKET),
        (RETURN, 0, 0, cut),
        (RETURN, 0, 0, 0),
    ]
}

/// The longest IP packet.
const MAX_PACKET: usize = 65_536;
/// Our choice: a tenth of a second of headers at 1 Gbit/s, with what the kernel accounts for each.
const RECEIVE_BUFFER: usize = 8 << 20;
