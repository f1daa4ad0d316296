//! Delay queue for the ACKs of one flow on the primary link.
//!
//! 1. A sender whose ACKs come over a longer path has a window for that path in flight. If its ACKs suddenly come over
//!    the short path, it sends the difference at once, and that falls on a queue that is full at such a moment.
//! 2. While ACKs are queued, one may replace the one ahead of it if the receiver of only the newer one misses nothing
//!    ([`AckInfo`]). So they take little of the air, which they had for themselves before and which may be full of data
//!    now. Within `min_spacing` only one ACK is queued.
//! 3. Order is kept: no ACK is due before those ahead of it.
//! 4. The queue is bounded: `max_delay` at the longest, [`MAX_ACKS`] ACKs at the most; beyond that the oldest leaves
//!    early. If the process ends, the next ACK of the local stack repeats everything that was queued.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::accel::ack_offload::options::AckOffloadOptions;
use crate::units::{Duration, Instant};
use crate::wire::packet::{Ack, Flags, SeqRange};

/// The queue of one flow.
#[derive(Clone, Debug, Default)]
pub(crate) struct AckDelayQueue {
    options: &'static AckOffloadOptions,
    queue: VecDeque<QueuedAck>,
}

/// A delayed ACK: it was queued at `since` and is sent at `due`.
#[derive(Clone, Debug)]
struct QueuedAck {
    since: Instant,
    due: Instant,
    info: AckInfo,
    packet: Vec<u8>,
}

/// What an ACK acknowledges as it leaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckInfo {
    pub(crate) ack: Ack,
    /// Its timestamp echo was rewritten (Eifel undo).
    pub(crate) has_rewritten_echo: bool,
    /// The receiver's window scale, an exponent (RFC 7323).
    pub(crate) scale: u8,
}

impl AckInfo {
    /// Whether the receiver of only this one misses nothing of the older one.
    fn supersedes(&self, earlier: &Self) -> bool {
        let (new, before) = (&self.ack, &earlier.ack);
        let echo = |ack: &Ack| ack.timestamps.map(|timestamps| timestamps.ts_ecr);
        let is_covered = |block: &SeqRange| {
            let mut blocks = new.sack_blocks.blocks().iter();
            !block.end.is_after(new.ack)
                || blocks.any(|one| !one.start.is_after(block.start) && !one.end.is_before(block.end))
        };
        !new.ack.is_before(before.ack)
            && (new.ack.is_after(before.ack) || !new.sack_blocks.is_empty())
            && !new.right_edge(self.scale).is_before(before.right_edge(self.scale))
            && new.flags.only(Flags::ECN) == before.flags.only(Flags::ECN)
            && before.dsack_range().is_none()
            && before.sack_blocks.blocks().iter().all(is_covered)
            && (!earlier.has_rewritten_echo || echo(new) == echo(before))
    }
}

impl AckDelayQueue {
    /// With these options, and nothing observed yet.
    pub(crate) fn new(options: &'static AckOffloadOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// Queues an ACK for this delay. It is returned if it is to leave now.
    pub(crate) fn push(
        &mut self,
        now: Instant,
        packet: Vec<u8>,
        info: AckInfo,
        delay: Duration,
    ) -> Option<Vec<u8>> {
        let due = now + delay.min(self.options.max_delay);
        let due = self.queue.back().map_or(due, |last| due.max(last.due));
        if due <= now {
            return Some(packet);
        }
        if let Some(last) = self.queue.back_mut()
            && now.since(last.since) < self.options.min_spacing
            && info.supersedes(&last.info)
        {
            (last.packet, last.info) = (packet, info);
            return None;
        }
        if self.queue.len() >= MAX_ACKS
            && let Some(first) = self.queue.front_mut()
        {
            first.due = now;
        }
        self.queue.push_back(QueuedAck { since: now, due, info, packet });
        None
    }

    /// The next ACK that is due.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<Vec<u8>> {
        self.queue.front().filter(|first| first.due <= now)?;
        self.queue.pop_front().map(|first| first.packet)
    }

    /// All ACKs, whether due or not.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Vec<u8>> + '_ {
        self.queue.drain(..).map(|queued| queued.packet)
    }

    /// When the next one is due.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.queue.front().map(|first| first.due)
    }
}

/// Our choice: the ACKs of 150 ms at 100 Mbit/s.
const MAX_ACKS: usize = 640;

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::wire::packet::{SackBlocks, Seq, TcpTimestamp, Timestamps};

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    /// An ACK up to this number with these blocks, which echoes this timestamp.
    fn ack_info(number: u32, blocks: &[(u32, u32)], echo: u32) -> AckInfo {
        let ranges: Vec<SeqRange> = blocks.iter().map(|(a, b)| SeqRange::new(Seq::new(*a), Seq::new(*b))).collect();
        let timestamps = Some(Timestamps { ts_val: TcpTimestamp::new(1), ts_ecr: TcpTimestamp::new(echo) });
        let (seq, ack, sacks) = (Seq::new(1), Seq::new(number), SackBlocks::of(&ranges));
        let ack = Ack { seq, ack, window: 9, flags: Flags::ACK, timestamps, sack_blocks: sacks };
        AckInfo { ack, has_rewritten_echo: false, scale: 0 }
    }

    /// One that supersedes no other.
    fn alone() -> AckInfo {
        ack_info(100, &[], 1)
    }

    #[test]
    fn each_ack_has_its_delay_and_none_overtakes() {
        let (mut queue, ms) = (AckDelayQueue::default(), Duration::from_millis);
        assert_eq!(queue.push(at(0), vec![0], alone(), Duration::ZERO), Some(vec![0]), "the queue is empty");
        assert_eq!(queue.push(at(0), vec![1], alone(), ms(50)), None);
        assert_eq!(queue.push(at(10), vec![2], alone(), ms(20)), None);
        assert_eq!(queue.push(at(20), vec![3], alone(), Duration::ZERO), None, "two are ahead");
        assert_eq!((queue.due(), queue.pop(at(49))), (Some(at(50)), None));
        assert_eq!([queue.pop(at(50)), queue.pop(at(50)), queue.pop(at(50))], [1, 2, 3].map(|n| Some(vec![n])));
        assert_eq!((queue.pop(at(50)), queue.due()), (None, None));
    }

    #[test]
    fn delay_and_length_are_bounded() {
        let mut queue = AckDelayQueue::default();
        queue.push(at(0), vec![], alone(), Duration::from_secs(9));
        assert_eq!(queue.due(), Some(at(0) + AckOffloadOptions::DEFAULT.max_delay));
        for _ in 0..MAX_ACKS {
            queue.push(at(1), vec![7], alone(), AckOffloadOptions::DEFAULT.max_delay);
        }
        assert_eq!((queue.pop(at(1)), queue.pop(at(1))), (Some(vec![]), None));
        assert_eq!(queue.drain().count(), MAX_ACKS);
    }

    #[test]
    fn an_ack_replaces_another_if_it_supersedes_it() {
        let hole = ack_info(100, &[(200, 300)], 5);
        assert!(ack_info(100, &[(200, 400)], 6).supersedes(&hole), "more behind the same hole");
        assert!(ack_info(100, &[(500, 600), (200, 300)], 6).supersedes(&hole), "another hole");
        assert!(ack_info(400, &[], 6).supersedes(&hole), "closed");
        assert!(!ack_info(100, &[(500, 600)], 6).supersedes(&hole), "a block would be lost");
        assert!(!ack_info(100, &[], 6).supersedes(&ack_info(100, &[], 5)), "a duplicate counts");
        let marked = AckInfo { has_rewritten_echo: true, ..hole };
        assert!(
            !ack_info(400, &[], 6).supersedes(&marked) && ack_info(400, &[], 5).supersedes(&marked),
            "a rewritten echo must be kept"
        );
        let (mut queue, delay) = (AckDelayQueue::default(), Duration::from_millis(50));
        for n in 0..20_u32 {
            queue.push(at(u64::from(n)), vec![0], ack_info(100, &[(200, 300 + n)], n), delay);
        }
        assert_eq!(queue.drain().count(), 4, "one each five milliseconds");
    }
}
