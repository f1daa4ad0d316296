//! Packets of our own making: over a link that is named, or into the own stack.
//!
//! In: whole packets of IP. Out: they leave as they are (IPv4's header gets its checksum from the kernel).
//!
//! 1. What leaves has the mark that the queue's rules pass over: nothing is intercepted twice.
//! 2. Over a link: the socket is bound to the device, so that no route says otherwise; the packet's own source stays.
//! 3. Into the own stack: a packet for an address of this machine has a route of the kind `local`, goes over the loopback,
//!    and is taken there with that very route: reverse-path filters are not asked, whosever source it has. A TCP socket
//!    that is bound to a device does not take what comes over the loopback.

use std::io;
use std::net::SocketAddr;

use marline_core::wire::packet::{Packet, Pair};
use marline_sys::device::bind_to_device;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::AccelError;

/// What marks our own packets. chosen: `macc`, which no list of marks knows.
pub(super) const MARK: u32 = 0x6d61_6363;

/// Sends whole packets.
#[derive(Debug)]
pub(super) struct Raw {
    v4: Socket,
    /// None: this kernel has no IPv6.
    v6: Option<Socket>,
}

impl Raw {
    /// Over the device of this name; without one, to wherever routes lead.
    pub(super) fn open(device: Option<&str>) -> Result<Self, AccelError> {
        let open = |domain| -> io::Result<Socket> {
            let socket = Socket::new(domain, Type::RAW.nonblocking().cloexec(), Some(Protocol::from(WHOLE)))?;
            socket.set_mark(MARK)?;
            if let Some(device) = device {
                bind_to_device(&socket, device)?;
            }
            // It hears nothing, and is to hold nothing up.
            socket.set_send_buffer_size(BUFFER)?;
            Ok(socket)
        };
        let failed = || AccelError::kernel(format!("a raw socket on {}", device.unwrap_or("this machine")));
        let v4 = open(Domain::IPV4).map_err(failed())?;
        let v6 = match open(Domain::IPV6) {
            Ok(socket) => Some(socket),
            Err(error) if error.raw_os_error() == Some(NO_FAMILY) => None,
            Err(error) => return Err(failed()(error)),
        };
        Ok(Self { v4, v6 })
    }

    /// Sends one.
    ///
    /// # Errors
    /// No whole packet; no room or no way now: it is lost, as packets are.
    pub(super) fn send(&self, packet: &[u8]) -> io::Result<()> {
        let read = Packet::parse(packet).map_err(|refusal| io::Error::new(io::ErrorKind::InvalidInput, refusal))?;
        let (socket, to) = match read.pair() {
            Pair::V4(_, to) => (&self.v4, SocketAddr::from((to, 0))),
            Pair::V6(_, to) => (self.v6.as_ref().ok_or(io::ErrorKind::Unsupported)?, SocketAddr::from((to, 0))),
        };
        socket.send_to(read.bytes(), &SockAddr::from(to)).map(drop)
    }
}

/// `IPPROTO_RAW`: packets come with their header, in both families.
const WHOLE: i32 = 255;
const NO_FAMILY: i32 = rustix::io::Errno::AFNOSUPPORT.raw_os_error();
/// chosen: a second of a thin link's packets; what does not fit is lost, as on any full link.
const BUFFER: usize = 1 << 20;
