//! Held packets: NFQUEUE, for packets that leave and for ACKs that come.
//!
//! 1. When it is dropped, packets that the rules lead to it pass at once (`--queue-bypass`); those that were waiting in
//!    it are lost, which TCP repairs.
//! 2. A full queue lets packets pass untouched.
//! 3. Verdicts are collected until [`NfQueue::flush`]: one system call for a whole batch, and one verdict for all
//!    packets in a row that are accepted. Packets are decided in the order of their ids, so that such a verdict
//!    concerns no other packet.
//! 4. All queues are read from one socket: polling a second one each time costs as much as a packet.
//!
//! The crate `nfq` was not used: one system call for each packet and each verdict is most of the cost of a packet, and
//! the socket and the netlink encoding exist here already.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use marline_core::wire::netlink::nfqueue::{NfqPacket, accept_up_to, verdict};
use marline_core::wire::netlink::{Request, messages};
use marline_sys::netlink::{Protocol, Socket, is_overflow};
use marline_sys::recvmmsg::Batch;

use super::{AccelError, privileges};

/// The queues that rules lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueNumbers {
    pub(super) outgoing: u16,
    /// None: incoming packets are not held.
    pub(super) incoming: Option<u16>,
}

/// The queues of this process.
#[derive(Debug)]
pub(super) struct NfQueue {
    socket: Socket,
    numbers: QueueNumbers,
    batch: Batch,
    verdicts: Vec<u8>,
}

/// Direction of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// From the local stack to the primary link.
    Outgoing,
    /// From the primary link to the local stack.
    Incoming,
}

/// What becomes of a held packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict<'a> {
    /// It passes unchanged.
    Accept,
    /// This packet passes instead.
    Replace(&'a [u8]),
    /// It is dropped.
    Drop,
}

impl NfQueue {
    /// Opens queues with these numbers in the network namespace of the calling thread.
    pub(super) fn open(numbers: QueueNumbers) -> Result<Self, AccelError> {
        let socket = Socket::open(Protocol::Netfilter).map_err(|error| open_error(numbers.outgoing, error))?;
        for number in [Some(numbers.outgoing), numbers.incoming].into_iter().flatten() {
            let request = Request::open_queue(number, MAX_PACKET as u32, QUEUE_LENGTH).finish(1);
            socket.request(&request).map_err(|error| open_error(number, error))?;
        }
        let failed = AccelError::kernel("a socket for packets");
        let ready = socket.set_rcvbuf(SOCKET_BUFFER).and_then(|_| socket.set_nonblocking());
        ready.map_err(failed)?;
        Ok(Self {
            socket,
            numbers,
            batch: Batch::new(MAX_BATCH, MAX_PACKET + MESSAGE_OVERHEAD),
            verdicts: Vec::new(),
        })
    }

    /// Receives a batch; false: nothing waits.
    pub(super) fn receive(&mut self) -> io::Result<bool> {
        match self.batch.receive(&self.socket) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            // Packets beyond the buffer have passed untouched.
            Err(error) if is_overflow(&error) || error.kind() == io::ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Hands each received packet to `each`, which gives its verdict.
    pub(super) fn decide(&mut self, mut each: impl FnMut(Direction, &[u8], &mut dyn FnMut(Verdict<'_>))) {
        let Self { batch, verdicts, numbers, .. } = self;
        // The last accepted packet of each queue whose verdict is not written yet.
        let (mut last_outgoing, mut last_incoming) = (None, None);
        for message in batch.packets().flat_map(messages) {
            let Some(NfqPacket { queue, id, packet }) = NfqPacket::parse(&message) else { continue };
            let direction = if queue == numbers.outgoing { Direction::Outgoing } else { Direction::Incoming };
            let last_accepted =
                if direction == Direction::Outgoing { &mut last_outgoing } else { &mut last_incoming };
            let mut decide = |decision: Verdict<'_>| {
                if let Some(last) = last_accepted.take().filter(|_| decision != Verdict::Accept) {
                    accept_up_to(verdicts, queue, last);
                }
                match decision {
                    Verdict::Accept => *last_accepted = Some(id),
                    Verdict::Replace(packet) => verdict(verdicts, queue, id, Some(packet)),
                    Verdict::Drop => verdict(verdicts, queue, id, None),
                }
            };
            if packet.is_empty() { decide(Verdict::Accept) } else { each(direction, packet, &mut decide) }
        }
        for (queue, last) in [(Some(numbers.outgoing), last_outgoing), (numbers.incoming, last_incoming)] {
            queue.zip(last).into_iter().for_each(|(queue, last)| accept_up_to(verdicts, queue, last));
        }
    }

    /// Whether more packets may wait than were received.
    pub(super) fn may_have_more(&self) -> bool {
        self.batch.is_full()
    }

    /// Number of received messages.
    pub(super) fn count(&self) -> usize {
        self.batch.packets().count()
    }

    /// Sends all verdicts to the kernel.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        if self.verdicts.is_empty() {
            return Ok(());
        }
        let result = self.socket.send(&self.verdicts);
        self.verdicts.clear();
        result
    }
}

impl AsFd for NfQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Why a queue cannot be opened.
fn open_error(number: u16, error: io::Error) -> AccelError {
    match error.raw_os_error() {
        // A queue that another socket has opened is refused so (`nfqnl_recv_config`).
        Some(EPERM) if privileges::check_privileges().is_ok() => AccelError::Unsupported(format!(
            "NFQUEUE {number}: another program has it already, or this network namespace is not this user's"
        )),
        Some(EINVAL | EPROTONOSUPPORT) => {
            AccelError::Unsupported("this kernel has no NFQUEUE (CONFIG_NETFILTER_NETLINK_QUEUE): `modprobe nfnetlink_queue` helps where it is a module".into())
        }
        _ => AccelError::kernel(format!("NFQUEUE {number}"))(error),
    }
}

/// Whether some process has opened queue `number`.
pub(super) fn is_open(number: u16) -> bool {
    match std::fs::read_to_string("/proc/thread-self/net/netfilter/nfnetlink_queue") {
        Ok(list) => list.lines().any(|line| line.split_whitespace().next() == Some(&number.to_string())),
        // Readable for root alone; but a queue that is open is refused to everybody else.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            NfQueue::open(QueueNumbers { outgoing: number, incoming: None }).is_err()
        }
        // Without the file there is no queue.
        Err(_) => false,
    }
}

const EPERM: i32 = rustix::io::Errno::PERM.raw_os_error();
const EINVAL: i32 = rustix::io::Errno::INVAL.raw_os_error();
const EPROTONOSUPPORT: i32 = rustix::io::Errno::PROTONOSUPPORT.raw_os_error();
/// Our choice: far above what the rules let through ([`crate::iptables::MAX_QUEUED_PACKET`]); longer packets pass
/// untouched.
const MAX_PACKET: usize = 1024;
/// What a message has beside its packet. Our choice: four times what kernels of today write.
const MESSAGE_OVERHEAD: usize = 512;
/// Our choice: the acknowledgements of a tenth of a second at 1 Gbit/s.
const MAX_BATCH: usize = 64;
/// Our choice: a process that does not run for a tenth of a second loses nothing.
const QUEUE_LENGTH: u32 = 8192;
/// Our choice: so many packets with all that the kernel accounts for each.
const SOCKET_BUFFER: usize = 8 << 20;

/// Whether a queue can be opened; it is closed again at once.
pub(super) fn check_available() -> Result<(), AccelError> {
    /// Our choice: no primary link's ([`crate::packet_loop`]).
    const SPARE: u16 = 0x5fff;
    NfQueue::open(QueueNumbers { outgoing: SPARE, incoming: None }).map(drop)
}
