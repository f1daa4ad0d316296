//! Packets of the primary link as they pass: seen, never held.
//!
//! In: a device and how much of each packet is wanted. Out: TCP packets of both ways.
//!
//! 1. The kernel's filter passes what comes for this machine, and of what leaves only what the queue does not show anyway:
//!    what is longer than the queue's packets and has not the mark of our own.
//! 2. It is cut in the kernel; the real length is what the packet's own header says. Where the device joins segments (GRO),
//!    one packet stands for several.
//! 3. Each has the time when it came, so that nobody has to be woken for it at once ([`Eye::packets`]).
//! 4. What has no room is counted and gone: nothing depends on it.
//! 5. No packet waits for a change: another part of each packet is another filter of the same socket, and closing it takes a grace
//!    period of the kernel's (`synchronize_net` in `packet_release`), which a thread of its own waits for. A sender
//!    that starts would answer the acknowledgements of that time with a burst.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use marline_core::accel::{SIGHT, Sight};
use marline_sys::af_packet::{self, Instruction};
use marline_sys::clock;
use marline_sys::netlink::is_overflow;
use marline_sys::recvmmsg::{self, Batch};
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_recv_buffer_size_force};

use super::AccelError;
use super::raw::MARK;
use super::rules::SMALL;

/// An open eye.
#[derive(Debug)]
pub(super) struct Eye {
    socket: OwnedFd,
    batch: Batch,
    sight: Sight,
}

impl Eye {
    /// On the device with this name and number; none: nothing is to be seen.
    pub(super) fn open(device: &str, index: u32, sight: Sight) -> Result<Option<Self>, AccelError> {
        if sight == Sight::None {
            return Ok(None);
        }
        let failed = AccelError::kernel(format!("{device}: a packet socket"));
        let socket = af_packet::open_socket(index, &filter(part(sight))).map_err(failed)?;
        // Without it a packet has come when it is looked at.
        let _ = recvmmsg::enable_timestamps(&socket);
        if set_socket_recv_buffer_size_force(&socket, BUFFER).is_err() {
            // What the system allows anybody is better than nothing.
            let _ = set_socket_recv_buffer_size(&socket, BUFFER);
        }
        Ok(Some(Self { socket, batch: room(sight), sight }))
    }

    /// Sees more or less of each packet from now on.
    pub(super) fn turn(&mut self, sight: Sight) -> io::Result<()> {
        af_packet::attach_filter(&self.socket, &filter(part(sight)))?;
        // What passed before stays as it was cut.
        (self.batch, self.sight) = (room(sight), sight);
        Ok(())
    }

    /// Closes it, and does not wait for that.
    pub(super) fn close(self) {
        close_apart(self.socket);
    }

    pub(super) const fn sight(&self) -> Sight {
        self.sight
    }

    /// Takes what has passed; false: nothing more now.
    pub(super) fn receive(&mut self) -> io::Result<bool> {
        match self.batch.receive(&self.socket) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            // The device is down. When it is up again, so is this socket.
            Err(error) if error.kind() == io::ErrorKind::NetworkDown => Ok(false),
            Err(error) if is_overflow(&error) || error.kind() == io::ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// What was taken: each packet's beginning, how long it really is, and when it came ([`clock::now`]).
    pub(super) fn packets(&self) -> impl Iterator<Item = (&[u8], u32, u64)> {
        let (now, ahead) = (clock::now(), clock::realtime_offset());
        // A clock that is set in between moves no packet into the future.
        let came = move |at: Option<u64>| at.map_or(now, |at| at.saturating_sub(ahead).min(now));
        self.batch.packets_with_timestamps().map(move |(packet, at)| (packet, real_length(packet), came(at)))
    }

    /// Whether more may have passed than what was taken.
    pub(super) fn is_full(&self) -> bool {
        self.batch.is_full()
    }

    /// Packets that had no room since the last time this was asked.
    pub(super) fn drops(&self) -> u64 {
        af_packet::take_drop_count(&self.socket).unwrap_or(0).into()
    }
}

impl AsFd for Eye {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Closes packet sockets, which takes a while, by a thread of its own.
pub(super) fn close_apart(sockets: impl Send + 'static) {
    // Where no thread is to be had they are closed here.
    let _ = std::thread::Builder::new().name("closing".into()).spawn(move || drop(sockets));
}

/// How many bytes of each packet are shown.
const fn part(sight: Sight) -> usize {
    match sight {
        Sight::None => 0,
        Sight::Heads => SIGHT,
        Sight::Whole => LONGEST,
    }
}

/// For as many packets as are taken at once.
fn room(sight: Sight) -> Batch {
    Batch::new(if sight == Sight::Whole { 16 } else { 64 }, part(sight))
}

/// What the header says; of one that says nothing (jumbograms) what is here.
fn real_length(packet: &[u8]) -> u32 {
    let half =
        |at: usize| packet.get(at..at + 2).map_or(0, |half| u32::from(u16::from_be_bytes([half[0], half[1]])));
    let said = match packet.first().map(|first| first >> 4) {
        Some(4) => half(2),
        Some(6) if half(4) > 0 => half(4) + 40,
        _ => 0,
    };
    said.max(u32::try_from(packet.len()).unwrap_or(u32::MAX))
}

/// TCP without extension headers; of what leaves only what is large and has no mark. Passes `cut` bytes.
fn filter(cut: usize) -> [Instruction; 17] {
    let cut = u32::try_from(cut).unwrap_or(u32::MAX);
    // Codes of `linux/bpf_common.h`; numbers that the kernel adds stand at SKF_AD_OFF.
    const BYTE: u16 = 0x30;
    const WORD: u16 = 0x20;
    const LENGTH: u16 = 0x80;
    const EQUAL: u16 = 0x15;
    const GREATER: u16 = 0x25;
    const GO: u16 = 0x05;
    const SHIFT: u16 = 0x74;
    const GIVE: u16 = 0x06;
    const EXTRA: u32 = 0xffff_f000;
    const KIND: u32 = EXTRA + 4;
    const MARKED: u32 = EXTRA + 20;
    [
        (BYTE, 0, 0, 0),
        (SHIFT, 0, 0, 4),
        (EQUAL, 0, 2, 4),
        (BYTE, 0, 0, 9),
        (GO, 0, 0, 2),
        (EQUAL, 0, 10, 6),
        (BYTE, 0, 0, 6),
        (EQUAL, 0, 8, 6),
        // PACKET_HOST passes, PACKET_OUTGOING is looked at, all else is dropped.
        (BYTE, 0, 0, KIND),
        (EQUAL, 5, 0, 0),
        (EQUAL, 0, 5, 4),
        (WORD, 0, 0, MARKED),
        (EQUAL, 3, 0, MARK),
        (LENGTH, 0, 0, 0),
        (GREATER, 0, 1, SMALL),
        (GIVE, 0, 0, cut),
        (GIVE, 0, 0, 0),
    ]
}

/// chosen: the longest packet of IP.
const LONGEST: usize = 65_536;
/// chosen: a tenth of a second of heads at 1 Gbit/s, with what the kernel counts for each.
const BUFFER: usize = 8 << 20;
