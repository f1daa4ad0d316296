//! Packets that leave or come, and wait for a word: NFQUEUE.
//!
//! In: the numbers of queues, to which rules lead packets. Out: the packets, each of which gets one verdict.
//!
//! 1. When it is dropped, packets that rules lead to it pass at once, because the rules say so (`--queue-bypass`); those that
//!    waited in it are lost, which TCP mends.
//! 2. A queue that is full lets packets pass untouched.
//! 3. Verdicts are kept until [`Queue::flush`]: one system call for all of a batch, and one word for all that leave as they came
//!    one behind the other. Packets are decided in the order of their numbers, so that such a word means no other packet.
//! 4. All queues are read from one socket: asking a second one each time whether it has something costs as much as a packet.
//!
//! The crate `nfq` was not used: one system call for each packet and each verdict is most of what a packet costs, and the
//! socket and the grammar of netlink are here already.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use marline_core::wire::netlink::nfqueue::{NfqPacket, accept_up_to, verdict};
use marline_core::wire::netlink::{Request, messages};
use marline_sys::netlink::{Protocol, Socket, is_overflow};
use marline_sys::recvmmsg::Batch;

use super::rules::Numbers;
use super::{AccelError, needs};

/// The queues of this process.
#[derive(Debug)]
pub(super) struct Queue {
    socket: Socket,
    numbers: Numbers,
    batch: Batch,
    verdicts: Vec<u8>,
}

/// Which way a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Going {
    /// It leaves.
    Out,
    /// It comes.
    In,
}

/// What is to become of a packet that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate<'a> {
    /// It leaves as it came.
    Leave,
    /// This leaves instead.
    Change(&'a [u8]),
    /// It does not leave.
    Drop,
}

impl Queue {
    /// Opens queues of these numbers in the network namespace of the calling thread.
    pub(super) fn open(numbers: Numbers) -> Result<Self, AccelError> {
        let socket = Socket::open(Protocol::Netfilter).map_err(|error| refused(numbers.leaving, error))?;
        for number in [Some(numbers.leaving), numbers.arriving].into_iter().flatten() {
            let request = Request::open_queue(number, LONGEST as u32, WAITING).finish(1);
            socket.request(&request).map_err(|error| refused(number, error))?;
        }
        let failed = AccelError::kernel("a socket for packets");
        let ready = socket.set_rcvbuf(BUFFER).and_then(|_| socket.set_nonblocking());
        ready.map_err(failed)?;
        Ok(Self { socket, numbers, batch: Batch::new(AT_ONCE, LONGEST + OVERHEAD), verdicts: Vec::new() })
    }

    /// Takes what waits; false: nothing does.
    pub(super) fn receive(&mut self) -> io::Result<bool> {
        match self.batch.receive(&self.socket) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            // What had no room has passed untouched.
            Err(error) if is_overflow(&error) || error.kind() == io::ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Hands each packet that was received to `each`, which says what becomes of it.
    pub(super) fn decide(&mut self, mut each: impl FnMut(Going, &[u8], &mut dyn FnMut(Fate<'_>))) {
        let Self { batch, verdicts, numbers, .. } = self;
        // The last packet of each queue that leaves as it came, and of which nothing was said yet.
        let (mut leaves, mut comes) = (None, None);
        for message in batch.packets().flat_map(messages) {
            let Some(NfqPacket { queue, id, packet }) = NfqPacket::parse(&message) else { continue };
            let going = if queue == numbers.leaving { Going::Out } else { Going::In };
            let passes = if going == Going::Out { &mut leaves } else { &mut comes };
            let mut give = |fate: Fate<'_>| {
                if let Some(last) = passes.take().filter(|_| fate != Fate::Leave) {
                    accept_up_to(verdicts, queue, last);
                }
                match fate {
                    Fate::Leave => *passes = Some(id),
                    Fate::Change(packet) => verdict(verdicts, queue, id, Some(packet)),
                    Fate::Drop => verdict(verdicts, queue, id, None),
                }
            };
            if packet.is_empty() { give(Fate::Leave) } else { each(going, packet, &mut give) }
        }
        for (queue, last) in [(Some(numbers.leaving), leaves), (numbers.arriving, comes)] {
            queue.zip(last).into_iter().for_each(|(queue, last)| accept_up_to(verdicts, queue, last));
        }
    }

    /// Whether more may wait than what was received.
    pub(super) fn is_full(&self) -> bool {
        self.batch.is_full()
    }

    /// How many messages were received.
    pub(super) fn count(&self) -> usize {
        self.batch.packets().count()
    }

    /// Tells the kernel all verdicts.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        if self.verdicts.is_empty() {
            return Ok(());
        }
        let told = self.socket.send(&self.verdicts);
        self.verdicts.clear();
        told
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Why there is no such queue.
fn refused(number: u16, error: io::Error) -> AccelError {
    match error.raw_os_error() {
        // What another socket has is refused so (`nfqnl_recv_config`).
        Some(EPERM) if needs::privileges().is_ok() => AccelError::Unfit(format!(
            "NFQUEUE {number}: another program has it already, or this network namespace is not this user's"
        )),
        Some(EINVAL | EPROTONOSUPPORT) => {
            AccelError::Unfit("this kernel has no NFQUEUE (CONFIG_NETFILTER_NETLINK_QUEUE): `modprobe nfnetlink_queue` helps where it is a module".into())
        }
        _ => AccelError::kernel(format!("NFQUEUE {number}"))(error),
    }
}

/// Whether some process has opened queue `number`.
pub(super) fn is_open(number: u16) -> bool {
    match std::fs::read_to_string("/proc/thread-self/net/netfilter/nfnetlink_queue") {
        Ok(list) => list.lines().any(|line| line.split_whitespace().next() == Some(&number.to_string())),
        // Shown to root alone; but a queue that somebody has is refused to everybody else.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Queue::open(Numbers { leaving: number, arriving: None }).is_err()
        }
        // Nobody can have one.
        Err(_) => false,
    }
}

const EPERM: i32 = rustix::io::Errno::PERM.raw_os_error();
const EINVAL: i32 = rustix::io::Errno::INVAL.raw_os_error();
const EPROTONOSUPPORT: i32 = rustix::io::Errno::PROTONOSUPPORT.raw_os_error();
/// chosen: far above what the rules let through ([`super::rules::SMALL`]); what is longer leaves as it came.
const LONGEST: usize = 1024;
/// What a message has beside its packet. chosen: four times what kernels of today write.
const OVERHEAD: usize = 512;
/// chosen: the acknowledgements of a tenth of a second at 1 Gbit/s.
const AT_ONCE: usize = 64;
/// chosen: a process that is not let run for a tenth of a second loses nothing.
const WAITING: u32 = 8192;
/// chosen: so many packets with all that the kernel counts for each.
const BUFFER: usize = 8 << 20;

/// Whether a queue can be had; it is closed again at once.
pub(super) fn try_out() -> Result<(), AccelError> {
    /// chosen: no primary link's ([`super::engine`]).
    const SPARE: u16 = 0x5fff;
    Queue::open(Numbers { leaving: SPARE, arriving: None }).map(drop)
}
