//! Captures the TCP segments that the local stack sends over a device: their acknowledgements show what the stack has
//! accepted. Packets of this program are excluded by its mark.

use std::io;
use std::os::fd::OwnedFd;

use marline_core::accel::SNAP_LENGTH;
use marline_sys::af_packet::{self, Instruction};
use marline_sys::netlink::is_overflow;
use marline_sys::recvmmsg::Batch;
use socket2::{Domain, Socket, Type};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::raw_socket::MARK;

/// An open packet socket.
pub(super) struct LocalSegments {
    socket: AsyncFd<OwnedFd>,
    batch: Batch,
}

impl LocalSegments {
    pub(super) fn open(device: &str) -> io::Result<Self> {
        let any = Socket::new(Domain::UNIX, Type::DGRAM, None)?;
        let index = rustix::net::netdevice::name_to_index(&any, device)?;
        let socket = af_packet::open_socket(index, &FILTER)?;
        #[allow(deprecated, reason = "its successor is unsafe because of descriptors that change; this one cannot")]
        let socket = AsyncFd::with_interest(socket, Interest::READABLE)?;
        Ok(Self { socket, batch: Batch::new(64, SNAP_LENGTH) })
    }

    /// Receives what was sent, each packet cut to its headers.
    ///
    /// # Errors
    /// The socket cannot be used any more.
    pub(super) fn receive(&mut self, mut each: impl FnMut(&[u8])) -> io::Result<()> {
        let Self { socket, batch } = self;
        for _ in 0..MAX_BATCHES {
            let received = socket.try_io(Interest::READABLE, |socket| match batch.receive(socket) {
                // Packets beyond the buffer are lost; the stack repeats its acknowledgements.
                Err(error) if is_overflow(&error) || error.kind() == io::ErrorKind::NetworkDown => Ok(false),
                Err(error) => Err(error),
                Ok(()) => Ok(true),
            });
            match received {
                Ok(true) => batch.packets().for_each(&mut each),
                Ok(false) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Waits until something was sent; for ever if nothing can be captured.
pub(super) async fn readable(segments: Option<&LocalSegments>) {
    match segments {
        Some(segments) => drop(segments.socket.readable().await),
        None => std::future::pending().await,
    }
}

/// Batches between two rounds of the repairs.
const MAX_BATCHES: usize = 16;

/// Passes the headers of TCP segments that leave without our mark (codes of `linux/bpf_common.h`).
const FILTER: [Instruction; 13] = {
    const BYTE: u16 = 0x30;
    const WORD: u16 = 0x20;
    const EQUAL: u16 = 0x15;
    const SHIFT: u16 = 0x74;
    const RETURN: u16 = 0x06;
    const AD_OFFSET: u32 = 0xffff_f000;
    [
        // PACKET_OUTGOING, by SKF_AD_PKTTYPE; then SKF_AD_MARK.
        (BYTE, 0, 0, AD_OFFSET + 4),
        (EQUAL, 0, 10, 4),
        (WORD, 0, 0, AD_OFFSET + 20),
        (EQUAL, 8, 0, MARK),
        (BYTE, 0, 0, 0),
        (SHIFT, 0, 0, 4),
        (EQUAL, 0, 2, 4),
        (BYTE, 0, 0, 9),
        (EQUAL, 2, 3, 6),
        (BYTE, 0, 0, 6),
        (EQUAL, 0, 1, 6),
        (RETURN, 0, 0, SNAP_LENGTH as u32),
        (RETURN, 0, 0, 0),
    ]
};
