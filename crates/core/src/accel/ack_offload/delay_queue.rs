//! A line that ACKs pass with a delay: they leave over the first link and are as late as over the second.
//!
//! In: ACKs, each with how long it is to be held. Out: those that are due, in the order in which they came.
//!
//! 1. A sender whose ACKs come over a longer way has a window of that length on its way. If they come over the short way
//!    of a sudden, the difference is sent at once, and falls on a queue that is full at such a moment.
//! 2. While they are held, one may take the place of the one ahead of it if whoever gets only the newer one misses nothing:
//!    so they take little of the air, which was theirs alone before and may be full of data now. One place stands for
//!    [`SPACING`] at the most.
//! 3. Order stays: nobody is due before those ahead of it.
//! 4. What is held is little: [`MOST`] at the longest, [`ROOM`] ACKs at the most; beyond that the oldest leaves early. Whoever
//!    comes after a line that was lost with its process says all of it again.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::units::{Duration, Instant};
use crate::wire::packet::{Ack, Flags, SeqRange};

/// One flow's line.
#[derive(Clone, Debug, Default)]
pub(in crate::accel) struct AckDelayQueue {
    queue: VecDeque<QueuedAck>,
}

#[derive(Clone, Debug)]
struct QueuedAck {
    since: Instant,
    due: Instant,
    info: AckInfo,
    packet: Vec<u8>,
}

/// What an ACK says, as it leaves.
#[derive(Clone, Copy, Debug)]
pub(in crate::accel) struct AckInfo {
    pub(in crate::accel) ack: Ack,
    /// The timestamp that it echoes was put there.
    pub(in crate::accel) has_rewritten_echo: bool,
    /// How its windows are shifted.
    pub(in crate::accel) scale: u8,
}

impl AckInfo {
    /// Whether this one says all that the one before does.
    fn supersedes(&self, old: &Self) -> bool {
        let (new, before) = (&self.ack, &old.ack);
        let echo = |ack: &Ack| ack.timestamps.map(|stamps| stamps.ts_ecr);
        let has = |block: &SeqRange| {
            let mut blocks = new.sack_blocks.blocks().iter();
            !block.end.is_after(new.ack)
                || blocks.any(|one| !one.start.is_after(block.start) && !one.end.is_before(block.end))
        };
        !new.ack.is_before(before.ack)
            && (new.ack.is_after(before.ack) || !new.sack_blocks.is_empty())
            && !new.right_edge(self.scale).is_before(before.right_edge(self.scale))
            && new.flags.only(Flags::ECN) == before.flags.only(Flags::ECN)
            && before.dsack_range().is_none()
            && before.sack_blocks.blocks().iter().all(has)
            && (!old.has_rewritten_echo || echo(new) == echo(before))
    }
}

impl AckDelayQueue {
    /// This one may be held for so long. It is given back if it is to leave now.
    pub(in crate::accel) fn push(
        &mut self,
        now: Instant,
        packet: Vec<u8>,
        info: AckInfo,
        delay: Duration,
    ) -> Option<Vec<u8>> {
        let due = now + delay.min(MAX_DELAY);
        let due = self.queue.back().map_or(due, |last| due.max(last.due));
        if due <= now {
            return Some(packet);
        }
        if let Some(last) = self.queue.back_mut()
            && now.since(last.since) < MIN_SPACING
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
        self.queue.push_back(QueuedAck { since: now, due, info: info, packet });
        None
    }

    /// The next one that is due.
    pub(in crate::accel) fn pop(&mut self, now: Instant) -> Option<Vec<u8>> {
        self.queue.front().filter(|first| first.due <= now)?;
        self.queue.pop_front().map(|first| first.packet)
    }

    /// All, whether due or not.
    pub(in crate::accel) fn drain(&mut self) -> impl Iterator<Item = Vec<u8>> + '_ {
        self.queue.drain(..).map(|queued| queued.packet)
    }

    /// When the next one is due.
    pub(in crate::accel) fn due(&self) -> Option<Instant> {
        self.queue.front().map(|first| first.due)
    }
}

/// chosen: two hundred ACKs a second are enough for any rate (facts, D), and 3 % of an 802.11g cell.
const MIN_SPACING: Duration = Duration::from_millis(5);
/// chosen: the way of a mobile link against that of a near access point; longer ones are no help.
pub(in crate::accel) const MAX_DELAY: Duration = Duration::from_millis(150);
/// chosen: what 150 ms of 100 Mbit/s are acknowledged with.
const MAX_ACKS: usize = 640;

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::wire::packet::{SackBlocks, Seq, TcpTimestamp, Timestamps};

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    /// An ACK of so many bytes with these blocks, which echoes this.
    fn says(number: u32, blocks: &[(u32, u32)], echo: u32) -> AckInfo {
        let ranges: Vec<SeqRange> = blocks.iter().map(|(a, b)| SeqRange::new(Seq::new(*a), Seq::new(*b))).collect();
        let timestamps = Some(Timestamps { ts_val: TcpTimestamp::new(1), ts_ecr: TcpTimestamp::new(echo) });
        let (seq, ack, sacks) = (Seq::new(1), Seq::new(number), SackBlocks::of(&ranges));
        let ack = Ack { seq, ack, window: 9, flags: Flags::ACK, timestamps, sack_blocks: sacks };
        AckInfo { ack, has_rewritten_echo: false, scale: 0 }
    }

    /// One that takes no other's place.
    fn alone() -> AckInfo {
        says(100, &[], 1)
    }

    #[test]
    fn each_is_as_late_as_it_is_to_be_and_none_overtakes() {
        let (mut queue, ms) = (AckDelayQueue::default(), Duration::from_millis);
        assert_eq!(queue.push(at(0), vec![0], alone(), Duration::ZERO), Some(vec![0]), "nobody is ahead");
        assert_eq!(queue.push(at(0), vec![1], alone(), ms(50)), None);
        assert_eq!(queue.push(at(10), vec![2], alone(), ms(20)), None);
        assert_eq!(queue.push(at(20), vec![3], alone(), Duration::ZERO), None, "two are ahead");
        assert_eq!((queue.due(), queue.pop(at(49))), (Some(at(50)), None));
        assert_eq!([queue.pop(at(50)), queue.pop(at(50)), queue.pop(at(50))], [1, 2, 3].map(|n| Some(vec![n])));
        assert_eq!((queue.pop(at(50)), queue.due()), (None, None));
    }

    #[test]
    fn it_holds_no_longer_and_no_more_than_it_may() {
        let mut queue = AckDelayQueue::default();
        queue.push(at(0), vec![], alone(), Duration::from_secs(9));
        assert_eq!(queue.due(), Some(at(0) + MAX_DELAY));
        for _ in 0..MAX_ACKS {
            queue.push(at(1), vec![7], alone(), MAX_DELAY);
        }
        assert_eq!((queue.pop(at(1)), queue.pop(at(1))), (Some(vec![]), None));
        assert_eq!(queue.drain().count(), MAX_ACKS);
    }

    #[test]
    fn one_takes_the_place_of_another_if_it_says_all_of_it() {
        let hole = says(100, &[(200, 300)], 5);
        assert!(says(100, &[(200, 400)], 6).supersedes(&hole), "more behind the same hole");
        assert!(says(100, &[(500, 600), (200, 300)], 6).supersedes(&hole), "another hole");
        assert!(says(400, &[], 6).supersedes(&hole), "closed");
        assert!(!says(100, &[(500, 600)], 6).supersedes(&hole), "a block would be lost");
        assert!(!says(100, &[], 6).supersedes(&says(100, &[], 5)), "a duplicate counts");
        let marked = AckInfo { has_rewritten_echo: true, ..hole };
        assert!(
            !says(400, &[], 6).supersedes(&marked) && says(400, &[], 5).supersedes(&marked),
            "what it echoes counts"
        );
        let (mut queue, delay) = (AckDelayQueue::default(), Duration::from_millis(50));
        for n in 0..20_u32 {
            queue.push(at(u64::from(n)), vec![0], says(100, &[(200, 300 + n)], n), delay);
        }
        assert_eq!(queue.drain().count(), 4, "one each five milliseconds");
    }
}
