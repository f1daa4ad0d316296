//! One subflow: what was asked for, what the kernel counts, and whether the one agrees with the other.
//!
//! In: counters and commands. Out: bytes that are new, and whether a suspension or a resumption has taken effect.
//!
//! 1. MP_PRIO rides in one pure acknowledgement that is never sent again, and many servers may not care for it. So a
//!    subflow counts as suspended when its bytes stand still, and as resumed when bytes come.
//! 2. What was queued at the server for a suspended subflow still comes over it: the drain. Bytes after it are a lost
//!    MP_PRIO, and it is sent again, [`Check::TRIES`] times; then the subflow is destroyed.
//! 3. Bytes on a suspended subflow while none of the active ones moves are the kernel's own fail-over, and right.

use super::conn::ReceiveProgress;
use super::event::{Counters, EstablishedSubflow, SubflowId};
use crate::energy::Direction;
use crate::units::{DataSize, Duration, Instant};

/// A subflow that exists.
#[derive(Clone, Debug)]
pub(super) struct Subflow {
    pub(super) id: SubflowId,
    /// Its link's place; none: a link that nobody told of.
    pub(super) link: Option<usize>,
    pub(super) initial: bool,
    /// What was asked for last.
    pub(super) backup: bool,
    pub(super) established_at: Instant,
    /// Since when it is asked to carry data.
    pub(super) active_since: Instant,
    /// Whether bytes have come since.
    pub(super) has_carried: bool,
    /// Whether its first bytes since then came so late, at the last look, that they may have waited behind a lost packet.
    pub(super) is_late_start: bool,
    /// It proves that a path works, and is to go.
    pub(super) is_closing: bool,
    handshake_rtt: Option<Duration>,
    receiver_rtt: Option<Duration>,
    counters: Option<Counters>,
    /// When it was looked at last.
    pub(super) polled_at: Option<Instant>,
    /// What it had carried when it was last found to be suspended.
    suspended_volume: u64,
    /// When its bytes last grew.
    pub(super) last_progress: Option<Instant>,
    /// Whether the look under way was answered for it.
    pub(super) is_polled: bool,
    /// Bytes since the last whole look.
    pub(super) new_bytes: u64,
    pub(super) timeouts: u8,
    /// Since when what was sent over it waits for an answer, with nothing coming or going; none: nothing waits.
    pub(super) unanswered_since: Option<Instant>,
    /// Since when retransmission timeouts follow each other and nothing is acknowledged of what was sent, which is more than
    /// a small packet holds.
    pub(super) rto_since: Option<Instant>,
    /// How many of these timeouts there had been when another subflow showed that small packets pass.
    pub(super) timeouts_at_probe: Option<u8>,
    /// Since when a further retransmission, which was sent after that, waits for its answer.
    pub(super) retransmitted_since: Option<Instant>,
    /// How far the connection's data reached and what of it had come when this subflow was asked to carry.
    pub(super) start_progress: Option<ReceiveProgress>,
    /// Since when it is known that the peer has sent data over it, as long as nothing but small packets has come.
    pub(super) missing_since: Option<Instant>,
    /// What the connection had carried when this one was asked to carry.
    pub(super) volume_at_start: u64,
    pub(super) priority_check: Option<PriorityCheck>,
}

/// A priority that was asked for and has not shown yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct PriorityCheck {
    /// When it was asked for first.
    requested_at: Instant,
    /// From when on it is looked whether it shows.
    check_from: Instant,
    /// How long what is queued takes to come.
    drain_time: Duration,
    /// Bytes at the first look after that.
    baseline: Option<(Instant, u64)>,
    attempts: u8,
}

/// What a check found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PriorityVerdict {
    /// Nothing yet, or nothing is being checked.
    Pending,
    /// As it was asked for.
    Effective,
    /// Ask again.
    Repeat,
    /// It does not obey.
    Unresponsive,
}

impl PriorityCheck {
    /// Repetitions before the last resort. chosen: five losses in a row at 5 % are one in three million.
    const MAX_ATTEMPTS: u8 = 5;
    /// How long bytes are watched after the drain. chosen: three times the gap between packets at 150 kbit/s.
    const OBSERVATION_TIME: Duration = Duration::from_millis(150);
    /// Bytes that are no payload worth a repetition: a retransmitted packet or one late one.
    const TOLERATED_BYTES: u64 = 3000;
}

impl Subflow {
    pub(super) fn new(subflow: &EstablishedSubflow, link: Option<usize>, now: Instant) -> Self {
        Self {
            id: subflow.id,
            link,
            initial: subflow.initial,
            backup: subflow.backup,
            established_at: now,
            active_since: now,
            has_carried: false,
            is_late_start: false,
            is_closing: false,
            handshake_rtt: subflow.rtt,
            receiver_rtt: None,
            counters: None,
            polled_at: None,
            suspended_volume: 0,
            last_progress: None,
            is_polled: false,
            new_bytes: 0,
            timeouts: 0,
            unanswered_since: None,
            rto_since: None,
            timeouts_at_probe: None,
            retransmitted_since: None,
            start_progress: None,
            missing_since: None,
            volume_at_start: 0,
            priority_check: None,
        }
    }

    /// Its counters; the answer is what has come and gone since the last ones. The first ones of an adopted subflow
    /// tell its past, which is counted as volume and not as new.
    pub(super) fn on_counters(
        &mut self,
        now: Instant,
        counters: Counters,
        is_adopted: bool,
    ) -> [(Direction, DataSize); 2] {
        let before = self.counters.replace(counters);
        let before = match before {
            Some(before) => before,
            None if is_adopted => counters,
            None => Counters::default(),
        };
        let (received, sent) = (counters.received - before.received, counters.sent - before.sent);
        self.receiver_rtt = counters.receiver_rtt.filter(|rtt| !rtt.is_zero()).or(self.receiver_rtt);
        self.handshake_rtt = self.handshake_rtt.or(counters.rtt).into_iter().chain(self.receiver_rtt).min();
        self.timeouts = counters.timeouts;
        self.is_polled = true;
        self.polled_at = Some(now);
        let moved = (received + sent).bytes();
        let waiting = self.timeouts > 0 || !counters.outstanding.is_zero();
        self.unanswered_since = waiting.then(|| self.unanswered_since.filter(|_| moved == 0).unwrap_or(now));
        let stuck = self.timeouts > 0 && sent.is_zero() && counters.outstanding >= FULL_PACKET;
        self.rto_since = stuck.then(|| self.rto_since.unwrap_or(now));
        self.timeouts_at_probe = self.timeouts_at_probe.filter(|_| stuck);
        let is_retransmitted = self.timeouts_at_probe.is_some_and(|timeouts| self.timeouts > timeouts);
        self.retransmitted_since = is_retransmitted.then(|| self.retransmitted_since.unwrap_or(now));
        self.new_bytes = self.new_bytes.saturating_add(moved);
        let is_first_data = moved > 0 && !self.has_carried && !self.backup;
        self.is_late_start =
            is_first_data && now.since(self.active_since) > LATE_START.max(self.handshake_rtt() * 2);
        if moved > 0 {
            self.last_progress = Some(now);
            self.has_carried |= !self.backup;
        }
        [(Direction::Down, received), (Direction::Up, sent)]
    }

    /// All that it ever carried.
    pub(super) fn volume(&self) -> u64 {
        self.counters.map_or(0, |counted| (counted.received + counted.sent).bytes())
    }

    /// What the peer has sent over it.
    pub(super) fn received(&self) -> DataSize {
        self.counters.map_or(DataSize::ZERO, |counted| counted.received)
    }

    /// Whether no full-sized packet has come over it. The last packet of what the peer sends at once may be smaller.
    pub(super) fn has_no_full_packet(&self) -> bool {
        self.received() < FULL_PACKET
    }

    /// The round trip of the handshake, as the paper takes it, or less: one that had to wait in the queue of another subflow
    /// on its link (607 ms of 150 were seen) tells nothing of the path.
    pub(super) fn handshake_rtt(&self) -> Duration {
        self.handshake_rtt.unwrap_or(DEFAULT_RTT)
    }

    /// How long the answer to a retransmission may take at least, by all round trips that were measured.
    pub(super) fn ack_wait(&self) -> Duration {
        let sender = self.counters.and_then(|counted| counted.rtt).unwrap_or_default();
        (self.handshake_rtt().max(sender).min(MAX_RTT) * 2).max(MIN_ACK_WAIT)
    }

    /// How far the connection's data have come over it: [`Counters::reached`].
    pub(super) fn data_seq(&self) -> Option<DataSize> {
        self.counters.and_then(|counted| counted.data_seq)
    }

    /// The round trip with the queue, as far as the receiver sees it.
    pub(super) fn rtt(&self) -> Duration {
        self.receiver_rtt.unwrap_or_default().max(self.handshake_rtt()).min(MAX_RTT)
    }

    /// Whether packets wait in its queue: a round trip lasts a quarter longer than the handshake did. chosen: more than a receiver's
    /// estimate differs by itself; over the kernel 1.7 to 2.1 times where a link was full, 1.04 where it was given little.
    pub(super) fn is_queueing(&self) -> bool {
        self.rtt() * 4 > self.handshake_rtt() * 5
    }

    /// How long what the server has queued for it takes to come, if it is suspended now.
    pub(super) fn drain_time(&self) -> Duration {
        (self.rtt() * DRAIN_IN_RTTS).clamp(MIN_DRAIN, MAX_DRAIN)
    }

    /// It was asked to be a backup, or to be none.
    pub(super) fn request_backup(&mut self, now: Instant, backup: bool) {
        let is_repeated = self.backup == backup;
        if !is_repeated && !backup {
            (self.active_since, self.has_carried) = (now, false);
        }
        self.backup = backup;
        let before = self.priority_check.filter(|_| is_repeated);
        let attempts = before.map_or(0, |check| check.attempts.saturating_add(1));
        let drain = before.map_or_else(|| self.drain_time(), |check| check.drain_time);
        let wait = if backup {
            self.handshake_rtt().max(MIN_DRAIN).min(RESUME_WAIT)
        } else {
            RESUME_WAIT.max(self.rtt() * 2)
        };
        let requested_at = before.map_or(now, |check| check.requested_at);
        self.priority_check = Some(PriorityCheck {
            requested_at,
            check_from: now + wait,
            drain_time: drain,
            baseline: None,
            attempts,
        });
    }

    /// Whether what was asked for has happened, at a whole look. `others`: active subflows have moved since the last one.
    pub(super) fn check_priority(&mut self, now: Instant, others_progressed: bool) -> PriorityVerdict {
        let volume = self.volume();
        let Some(check) = &mut self.priority_check else {
            if !self.backup || !others_progressed {
                self.suspended_volume = volume;
                return PriorityVerdict::Pending;
            }
            // A suspended one that begins to carry again while others move has lost its flag at the server.
            let leaks = volume.saturating_sub(self.suspended_volume) > PriorityCheck::TOLERATED_BYTES;
            return if leaks { PriorityVerdict::Repeat } else { PriorityVerdict::Pending };
        };
        if !self.backup {
            if self.has_carried || check.attempts >= PriorityCheck::MAX_ATTEMPTS {
                self.priority_check = None;
                return PriorityVerdict::Effective;
            }
            return if now < check.check_from || !others_progressed {
                PriorityVerdict::Pending
            } else {
                PriorityVerdict::Repeat
            };
        }
        match check.baseline {
            _ if now < check.check_from => PriorityVerdict::Pending,
            None => {
                check.baseline = Some((now, volume));
                PriorityVerdict::Pending
            }
            Some((since, _)) if now.since(since) < PriorityCheck::OBSERVATION_TIME => PriorityVerdict::Pending,
            Some((_, before)) if volume.saturating_sub(before) <= PriorityCheck::TOLERATED_BYTES => {
                (self.priority_check, self.suspended_volume) = (None, volume);
                PriorityVerdict::Effective
            }
            Some(_) if !others_progressed => {
                check.baseline = Some((now, volume));
                PriorityVerdict::Pending
            }
            // Asking once too often costs a packet, so the whole drain is not waited for; it is before the last resort.
            Some(_) if check.attempts < PriorityCheck::MAX_ATTEMPTS => PriorityVerdict::Repeat,
            Some(_) if now.since(check.requested_at) < check.drain_time * 2 + FINAL_WAIT => {
                check.baseline = Some((now, volume));
                PriorityVerdict::Pending
            }
            Some(_) => PriorityVerdict::Unresponsive,
        }
    }

    /// How long its drain is predicted to last, while it is being checked.
    pub(super) fn pending_drain(&self) -> Option<Duration> {
        self.priority_check.map(|check| check.drain_time)
    }

    /// Whether the other end uses it only when no other one works.
    pub(super) fn peer_backup(&self) -> bool {
        self.counters.is_some_and(|counted| counted.peer_backup)
    }

    /// What the kernel says of our own flag; none: nothing was read.
    pub(super) fn kernel_backup(&self) -> Option<bool> {
        self.counters.map(|counted| counted.backup)
    }
}

/// What waits on a subflow is at least one full-sized packet. chosen: less than a segment of the smallest MTU of IPv6, and more
/// than a request.
pub(super) const FULL_PACKET: DataSize = DataSize::from_bytes(1200);
/// chosen: a delayed acknowledgement (40 ms with Linux) and a driver that is late.
const MIN_ACK_WAIT: Duration = Duration::from_millis(200);
/// First bytes that come later than this may have waited behind a lost packet, which the kernel sends again after 200 ms
/// at least.
const LATE_START: Duration = Duration::from_millis(500);
/// Taken where the kernel knows no handshake. chosen: between a near and a far server.
const DEFAULT_RTT: Duration = Duration::from_millis(100);
/// A receiver's estimate above this is a pause of the sender and no queue.
const MAX_RTT: Duration = Duration::from_millis(2000);
/// Measured: 132 ms of drain with 40 ms of queue (20 Mbit/s, 100 KB), cubic.
const DRAIN_IN_RTTS: u32 = 3;
/// The median that was measured with cubic.
const MIN_DRAIN: Duration = Duration::from_millis(130);
/// "2-3 s on a 1 Mbit/s LTE".
const MAX_DRAIN: Duration = Duration::from_secs(3);
/// What a subflow gets beyond its drain before it is destroyed.
const FINAL_WAIT: Duration = Duration::from_secs(1);
/// First data after a resumption came after 3 to 8 ms beside the round trip; doubled for a window that starts anew.
const RESUME_WAIT: Duration = Duration::from_millis(300);

#[cfg(test)]
mod tests {
    use super::*;

    fn test_subflow(rtt_ms: u64) -> Subflow {
        let rtt = Some(Duration::from_millis(rtt_ms));
        let subflow = EstablishedSubflow { id: SubflowId(1), link: None, initial: true, backup: false, rtt };
        Subflow::new(&subflow, Some(0), Instant::ZERO)
    }

    fn poll(sub: &mut Subflow, ms: u64, received: u64) {
        sub.new_bytes = 0;
        let counters = Counters { received: DataSize::from_bytes(received), ..Counters::default() };
        sub.on_counters(Instant::from_millis(ms), counters, false);
    }

    fn poll_and_check(sub: &mut Subflow, ms: u64, received: u64, others: bool) -> PriorityVerdict {
        poll(sub, ms, received);
        sub.check_priority(Instant::from_millis(ms), others)
    }

    #[test]
    fn bytes_of_the_drain_are_no_disobedience() {
        let mut sub = test_subflow(40);
        poll(&mut sub, 1000, 1_000_000);
        sub.request_backup(Instant::from_millis(1000), true);
        assert_eq!(poll_and_check(&mut sub, 1100, 1_200_000, true), PriorityVerdict::Pending);
        assert_eq!(poll_and_check(&mut sub, 1140, 1_300_000, true), PriorityVerdict::Pending);
        assert_eq!(poll_and_check(&mut sub, 1300, 1_300_000, true), PriorityVerdict::Effective);
        assert!(sub.pending_drain().is_none());
    }

    #[test]
    fn a_lost_option_is_sent_again_five_times_and_then_the_subflow_must_go() {
        let mut sub = test_subflow(40);
        poll(&mut sub, 1000, 0);
        sub.request_backup(Instant::from_millis(1000), true);
        let (mut ms, mut bytes, mut again) = (1000, 0, 0);
        loop {
            ms += 100;
            bytes += 100_000;
            match poll_and_check(&mut sub, ms, bytes, true) {
                PriorityVerdict::Pending => {}
                PriorityVerdict::Repeat => {
                    // The floor: 0.5 s and twice the predicted drain.
                    assert!(again > 0 || ms <= 1000 + 500 + 2 * 130);
                    again += 1;
                    sub.request_backup(Instant::from_millis(ms), true);
                }
                verdict => {
                    assert_eq!((verdict, again), (PriorityVerdict::Unresponsive, 5));
                    break;
                }
            }
        }
    }

    #[test]
    fn a_backup_that_carries_alone_is_a_fail_over() {
        let mut sub = test_subflow(40);
        sub.request_backup(Instant::from_millis(0), true);
        for n in 2..40 {
            assert_eq!(poll_and_check(&mut sub, n * 100, n * 100_000, false), PriorityVerdict::Pending);
        }
    }

    #[test]
    fn a_handshake_that_waited_in_a_queue_is_forgotten() {
        let mut sub = test_subflow(607);
        let millis = |ms| Some(Duration::from_millis(ms));
        for (queued, handshake, rtt) in [(700, 607, 700), (150, 150, 150), (400, 150, 400)] {
            let counters = Counters { rtt: millis(607), receiver_rtt: millis(queued), ..Counters::default() };
            sub.on_counters(Instant::from_millis(1000), counters, false);
            assert_eq!((Some(sub.handshake_rtt()), Some(sub.rtt())), (millis(handshake), millis(rtt)));
        }
    }

    #[test]
    fn a_resumption_shows_in_bytes() {
        let mut sub = test_subflow(40);
        sub.request_backup(Instant::from_millis(0), true);
        sub.request_backup(Instant::from_millis(1000), false);
        assert_eq!(poll_and_check(&mut sub, 1200, 0, true), PriorityVerdict::Pending);
        assert_eq!(poll_and_check(&mut sub, 1400, 0, true), PriorityVerdict::Repeat);
        sub.request_backup(Instant::from_millis(1400), false);
        assert_eq!(poll_and_check(&mut sub, 1500, 5000, true), PriorityVerdict::Effective);
    }
}
