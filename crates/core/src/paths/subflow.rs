//! One subflow: what was asked for, what the kernel counts, and whether the one agrees with the other.
//!
//! In: counters and commands. Out: bytes that are new, and whether a suspension or a resumption has taken effect.
//!
//! 1. MP_PRIO rides in one pure acknowledgement that is never sent again, and many servers may not care for it. So a
//!    subflow counts as suspended when its bytes stand still, and as resumed when bytes come.
//! 2. What was queued at the server for a suspended subflow still comes over it: the drain. Bytes after it are a lost
//!    MP_PRIO, and it is sent again, [`Check::TRIES`] times; then the subflow is destroyed.
//! 3. Bytes on a suspended subflow while none of the active ones moves are the kernel's own fail-over, and right.

use super::conn::Reached;
use super::event::{Counters, Subflow, SubflowId};
use crate::energy::Direction;
use crate::units::{DataSize, Duration, Instant};

/// A subflow that exists.
#[derive(Clone, Debug)]
pub(super) struct Sub {
    pub(super) id: SubflowId,
    /// Its link's place; none: a link that nobody told of.
    pub(super) link: Option<usize>,
    pub(super) initial: bool,
    /// What was asked for last.
    pub(super) backup: bool,
    pub(super) up: Instant,
    /// Since when it is asked to carry data.
    pub(super) active: Instant,
    /// Whether bytes have come since.
    pub(super) proven: bool,
    /// Whether its first bytes since then came so late, at the last look, that they may have waited behind a lost packet.
    pub(super) late: bool,
    /// It proves that a path works, and is to go.
    pub(super) leaving: bool,
    handshake: Option<Duration>,
    queued: Option<Duration>,
    counted: Option<Counters>,
    /// When it was looked at last.
    pub(super) seen: Option<Instant>,
    /// What it had carried when it was last found to be suspended.
    held: u64,
    /// When its bytes last grew.
    pub(super) moved: Option<Instant>,
    /// Whether the look under way was answered for it.
    pub(super) answered: bool,
    /// Bytes since the last whole look.
    pub(super) fresh: u64,
    pub(super) timeouts: u8,
    /// Since when what was sent over it waits for an answer, with nothing coming or going; none: nothing waits.
    pub(super) waits: Option<Instant>,
    /// Since when retransmission timeouts follow each other and nothing is acknowledged of what was sent, which is more than
    /// a small packet holds.
    pub(super) stuck: Option<Instant>,
    /// How many of these timeouts there had been when another subflow showed that small packets pass.
    pub(super) stuck_at_proof: Option<u8>,
    /// Since when a further retransmission, which was sent after that, waits for its answer.
    pub(super) sent_again: Option<Instant>,
    /// How far the connection's data reached and what of it had come when this subflow was asked to carry.
    pub(super) given_from: Option<Reached>,
    /// Since when it is known that the peer has sent data over it, as long as nothing but small packets has come.
    pub(super) given: Option<Instant>,
    /// What the connection had carried when this one was asked to carry.
    pub(super) beside: u64,
    pub(super) check: Option<Check>,
}

/// A priority that was asked for and has not shown yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Check {
    /// When it was asked for first.
    asked: Instant,
    /// From when on it is looked whether it shows.
    from: Instant,
    /// How long what is queued takes to come.
    drain: Duration,
    /// Bytes at the first look after that.
    mark: Option<(Instant, u64)>,
    tries: u8,
}

/// What a check found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// Nothing yet, or nothing is being checked.
    Open,
    /// As it was asked for.
    Held,
    /// Ask again.
    Again,
    /// It does not obey.
    Deaf,
}

impl Check {
    /// Repetitions before the last resort. chosen: five losses in a row at 5 % are one in three million.
    const TRIES: u8 = 5;
    /// How long bytes are watched after the drain. chosen: three times the gap between packets at 150 kbit/s.
    const WATCH: Duration = Duration::from_millis(150);
    /// Bytes that are no payload worth a repetition: a retransmitted packet or one late one.
    const SLACK: u64 = 3000;
}

impl Sub {
    pub(super) fn new(subflow: &Subflow, link: Option<usize>, now: Instant) -> Self {
        Self {
            id: subflow.id,
            link,
            initial: subflow.initial,
            backup: subflow.backup,
            up: now,
            active: now,
            proven: false,
            late: false,
            leaving: false,
            handshake: subflow.rtt,
            queued: None,
            counted: None,
            seen: None,
            held: 0,
            moved: None,
            answered: false,
            fresh: 0,
            timeouts: 0,
            waits: None,
            stuck: None,
            stuck_at_proof: None,
            sent_again: None,
            given_from: None,
            given: None,
            beside: 0,
            check: None,
        }
    }

    /// Its counters; the answer is what has come and gone since the last ones. The first ones of an adopted subflow
    /// tell its past, which is counted as volume and not as new.
    pub(super) fn on_seen(&mut self, now: Instant, counters: Counters, past: bool) -> [(Direction, DataSize); 2] {
        let before = self.counted.replace(counters);
        let before = match before {
            Some(before) => before,
            None if past => counters,
            None => Counters::default(),
        };
        let (came, went) = (counters.received - before.received, counters.sent - before.sent);
        self.queued = counters.receiver_rtt.filter(|rtt| !rtt.is_zero()).or(self.queued);
        self.handshake = self.handshake.or(counters.rtt).into_iter().chain(self.queued).min();
        self.timeouts = counters.timeouts;
        self.answered = true;
        self.seen = Some(now);
        let moved = (came + went).bytes();
        let waiting = self.timeouts > 0 || !counters.outstanding.is_zero();
        self.waits = waiting.then(|| self.waits.filter(|_| moved == 0).unwrap_or(now));
        let stuck = self.timeouts > 0 && went.is_zero() && counters.outstanding >= FULL;
        self.stuck = stuck.then(|| self.stuck.unwrap_or(now));
        self.stuck_at_proof = self.stuck_at_proof.filter(|_| stuck);
        let again = self.stuck_at_proof.is_some_and(|timeouts| self.timeouts > timeouts);
        self.sent_again = again.then(|| self.sent_again.unwrap_or(now));
        self.fresh = self.fresh.saturating_add(moved);
        let first = moved > 0 && !self.proven && !self.backup;
        self.late = first && now.since(self.active) > LATE.max(self.handshake() * 2);
        if moved > 0 {
            self.moved = Some(now);
            self.proven |= !self.backup;
        }
        [(Direction::Down, came), (Direction::Up, went)]
    }

    /// All that it ever carried.
    pub(super) fn volume(&self) -> u64 {
        self.counted.map_or(0, |counted| (counted.received + counted.sent).bytes())
    }

    /// What the peer has sent over it.
    pub(super) fn received(&self) -> DataSize {
        self.counted.map_or(DataSize::ZERO, |counted| counted.received)
    }

    /// Whether no full-sized packet has come over it. The last packet of what the peer sends at once may be smaller.
    pub(super) fn has_received_nothing(&self) -> bool {
        self.received() < FULL
    }

    /// The round trip of the handshake, as the paper takes it, or less: one that had to wait in the queue of another subflow
    /// on its link (607 ms of 150 were seen) tells nothing of the path.
    pub(super) fn handshake(&self) -> Duration {
        self.handshake.unwrap_or(UNKNOWN_RTT)
    }

    /// How long the answer to a retransmission may take at least, by all round trips that were measured.
    pub(super) fn answer_time(&self) -> Duration {
        let sender = self.counted.and_then(|counted| counted.rtt).unwrap_or_default();
        (self.handshake().max(sender).min(LONGEST_RTT) * 2).max(ANSWERED)
    }

    /// How far the connection's data have come over it: [`Counters::reached`].
    pub(super) fn reached(&self) -> Option<DataSize> {
        self.counted.and_then(|counted| counted.reached)
    }

    /// The round trip with the queue, as far as the receiver sees it.
    pub(super) fn rtt(&self) -> Duration {
        self.queued.unwrap_or_default().max(self.handshake()).min(LONGEST_RTT)
    }

    /// Whether packets wait in its queue: a round trip lasts a quarter longer than the handshake did. chosen: more than a receiver's
    /// estimate differs by itself; over the kernel 1.7 to 2.1 times where a link was full, 1.04 where it was given little.
    pub(super) fn fills(&self) -> bool {
        self.rtt() * 4 > self.handshake() * 5
    }

    /// How long what the server has queued for it takes to come, if it is suspended now.
    pub(super) fn drain(&self) -> Duration {
        (self.rtt() * DRAIN_IN_RTTS).clamp(SHORTEST_DRAIN, LONGEST_DRAIN)
    }

    /// It was asked to be a backup, or to be none.
    pub(super) fn ask(&mut self, now: Instant, backup: bool) {
        let again = self.backup == backup;
        if !again && !backup {
            (self.active, self.proven) = (now, false);
        }
        self.backup = backup;
        let before = self.check.filter(|_| again);
        let tries = before.map_or(0, |check| check.tries.saturating_add(1));
        let drain = before.map_or_else(|| self.drain(), |check| check.drain);
        let wait =
            if backup { self.handshake().max(SHORTEST_DRAIN).min(RESUME) } else { RESUME.max(self.rtt() * 2) };
        let asked = before.map_or(now, |check| check.asked);
        self.check = Some(Check { asked, from: now + wait, drain, mark: None, tries });
    }

    /// Whether what was asked for has happened, at a whole look. `others`: active subflows have moved since the last one.
    pub(super) fn judge(&mut self, now: Instant, others: bool) -> Verdict {
        let volume = self.volume();
        let Some(check) = &mut self.check else {
            if !self.backup || !others {
                self.held = volume;
                return Verdict::Open;
            }
            // A suspended one that begins to carry again while others move has lost its flag at the server.
            let leaks = volume.saturating_sub(self.held) > Check::SLACK;
            return if leaks { Verdict::Again } else { Verdict::Open };
        };
        if !self.backup {
            if self.proven || check.tries >= Check::TRIES {
                self.check = None;
                return Verdict::Held;
            }
            return if now < check.from || !others { Verdict::Open } else { Verdict::Again };
        }
        match check.mark {
            _ if now < check.from => Verdict::Open,
            None => {
                check.mark = Some((now, volume));
                Verdict::Open
            }
            Some((since, _)) if now.since(since) < Check::WATCH => Verdict::Open,
            Some((_, before)) if volume.saturating_sub(before) <= Check::SLACK => {
                (self.check, self.held) = (None, volume);
                Verdict::Held
            }
            Some(_) if !others => {
                check.mark = Some((now, volume));
                Verdict::Open
            }
            // Asking once too often costs a packet, so the whole drain is not waited for; it is before the last resort.
            Some(_) if check.tries < Check::TRIES => Verdict::Again,
            Some(_) if now.since(check.asked) < check.drain * 2 + LAST => {
                check.mark = Some((now, volume));
                Verdict::Open
            }
            Some(_) => Verdict::Deaf,
        }
    }

    /// How long its drain is predicted to last, while it is being checked.
    pub(super) fn checking(&self) -> Option<Duration> {
        self.check.map(|check| check.drain)
    }

    /// Whether the other end uses it only when no other one works.
    pub(super) fn peer_backup(&self) -> bool {
        self.counted.is_some_and(|counted| counted.peer_backup)
    }

    /// What the kernel says of our own flag; none: nothing was read.
    pub(super) fn kernel_backup(&self) -> Option<bool> {
        self.counted.map(|counted| counted.backup)
    }
}

/// What waits on a subflow is at least one full-sized packet. chosen: less than a segment of the smallest MTU of IPv6, and more
/// than a request.
pub(super) const FULL: DataSize = DataSize::from_bytes(1200);
/// chosen: a delayed acknowledgement (40 ms with Linux) and a driver that is late.
const ANSWERED: Duration = Duration::from_millis(200);
/// First bytes that come later than this may have waited behind a lost packet, which the kernel sends again after 200 ms
/// at least.
const LATE: Duration = Duration::from_millis(500);
/// Taken where the kernel knows no handshake. chosen: between a near and a far server.
const UNKNOWN_RTT: Duration = Duration::from_millis(100);
/// A receiver's estimate above this is a pause of the sender and no queue.
const LONGEST_RTT: Duration = Duration::from_millis(2000);
/// Measured: 132 ms of drain with 40 ms of queue (20 Mbit/s, 100 KB), cubic.
const DRAIN_IN_RTTS: u32 = 3;
/// The median that was measured with cubic.
const SHORTEST_DRAIN: Duration = Duration::from_millis(130);
/// "2-3 s on a 1 Mbit/s LTE".
const LONGEST_DRAIN: Duration = Duration::from_secs(3);
/// What a subflow gets beyond its drain before it is destroyed.
const LAST: Duration = Duration::from_secs(1);
/// First data after a resumption came after 3 to 8 ms beside the round trip; doubled for a window that starts anew.
const RESUME: Duration = Duration::from_millis(300);

#[cfg(test)]
mod tests {
    use super::*;

    fn sub(rtt_ms: u64) -> Sub {
        let rtt = Some(Duration::from_millis(rtt_ms));
        let subflow = Subflow { id: SubflowId(1), link: None, initial: true, backup: false, rtt };
        Sub::new(&subflow, Some(0), Instant::ZERO)
    }

    fn seen(sub: &mut Sub, ms: u64, received: u64) {
        sub.fresh = 0;
        let counters = Counters { received: DataSize::from_bytes(received), ..Counters::default() };
        sub.on_seen(Instant::from_millis(ms), counters, false);
    }

    fn judge(sub: &mut Sub, ms: u64, received: u64, others: bool) -> Verdict {
        seen(sub, ms, received);
        sub.judge(Instant::from_millis(ms), others)
    }

    #[test]
    fn bytes_of_the_drain_are_no_disobedience() {
        let mut sub = sub(40);
        seen(&mut sub, 1000, 1_000_000);
        sub.ask(Instant::from_millis(1000), true);
        assert_eq!(judge(&mut sub, 1100, 1_200_000, true), Verdict::Open);
        assert_eq!(judge(&mut sub, 1140, 1_300_000, true), Verdict::Open);
        assert_eq!(judge(&mut sub, 1300, 1_300_000, true), Verdict::Held);
        assert!(sub.checking().is_none());
    }

    #[test]
    fn a_lost_option_is_sent_again_five_times_and_then_the_subflow_must_go() {
        let mut sub = sub(40);
        seen(&mut sub, 1000, 0);
        sub.ask(Instant::from_millis(1000), true);
        let (mut ms, mut bytes, mut again) = (1000, 0, 0);
        loop {
            ms += 100;
            bytes += 100_000;
            match judge(&mut sub, ms, bytes, true) {
                Verdict::Open => {}
                Verdict::Again => {
                    // The floor: 0.5 s and twice the predicted drain.
                    assert!(again > 0 || ms <= 1000 + 500 + 2 * 130);
                    again += 1;
                    sub.ask(Instant::from_millis(ms), true);
                }
                verdict => {
                    assert_eq!((verdict, again), (Verdict::Deaf, 5));
                    break;
                }
            }
        }
    }

    #[test]
    fn a_backup_that_carries_alone_is_a_fail_over() {
        let mut sub = sub(40);
        sub.ask(Instant::from_millis(0), true);
        for n in 2..40 {
            assert_eq!(judge(&mut sub, n * 100, n * 100_000, false), Verdict::Open);
        }
    }

    #[test]
    fn a_handshake_that_waited_in_a_queue_is_forgotten() {
        let mut sub = sub(607);
        let millis = |ms| Some(Duration::from_millis(ms));
        for (queued, handshake, rtt) in [(700, 607, 700), (150, 150, 150), (400, 150, 400)] {
            let counters = Counters { rtt: millis(607), receiver_rtt: millis(queued), ..Counters::default() };
            sub.on_seen(Instant::from_millis(1000), counters, false);
            assert_eq!((Some(sub.handshake()), Some(sub.rtt())), (millis(handshake), millis(rtt)));
        }
    }

    #[test]
    fn a_resumption_shows_in_bytes() {
        let mut sub = sub(40);
        sub.ask(Instant::from_millis(0), true);
        sub.ask(Instant::from_millis(1000), false);
        assert_eq!(judge(&mut sub, 1200, 0, true), Verdict::Open);
        assert_eq!(judge(&mut sub, 1400, 0, true), Verdict::Again);
        sub.ask(Instant::from_millis(1400), false);
        assert_eq!(judge(&mut sub, 1500, 5000, true), Verdict::Held);
    }
}
