//! State of one subflow: its counters, its requested priority, and whether the priority has taken effect.
//!
//! 1. MP_PRIO is sent once, in a pure ACK that is not retransmitted, and many servers may ignore it. So a subflow
//!    counts as suspended only when its byte counters stop, and as resumed only when bytes arrive.
//! 2. Data that the server had queued for a suspended subflow still arrives over it: the drain. If bytes continue to
//!    arrive, MP_PRIO may be lost: it is sent again up to [`PriorityCheck::MAX_ATTEMPTS`] times, also during the
//!    drain. If they continue after the drain, the subflow is destroyed.
//! 3. Bytes on a suspended subflow while no active one receives data are correct: the peer's scheduler fails over
//!    to the backup.

use super::event::{Counters, EstablishedSubflow, SubflowId};
use crate::energy::Direction;
use crate::units::{DataSize, Duration, Instant};

/// An existing subflow.
#[derive(Clone, Debug)]
pub(super) struct Subflow {
    pub(super) id: SubflowId,
    /// Index of its link; `None`: an unknown link.
    pub(super) link: Option<usize>,
    pub(super) initial: bool,
    /// The priority requested last.
    pub(super) backup: bool,
    pub(super) established_at: Instant,
    /// Time since when it is requested to carry data.
    pub(super) active_since: Instant,
    /// Whether bytes were received over it, or sent and acknowledged, since then.
    pub(super) has_carried: bool,
    /// Whether its first bytes since then arrived so late, in the last poll, that they may have waited behind a
    /// lost packet.
    pub(super) is_late_start: bool,
    /// It is being closed.
    pub(super) is_closing: bool,
    handshake_rtt: Option<Duration>,
    receiver_rtt: Option<Duration>,
    counters: Option<Counters>,
    /// Time of the last poll.
    pub(super) polled_at: Option<Instant>,
    /// Bytes that it had carried when it was last found to be suspended.
    suspended_volume: u64,
    /// Time at which its byte counters last increased.
    pub(super) last_progress: Option<Instant>,
    /// Whether the poll in progress has reported it.
    pub(super) is_polled: bool,
    /// Bytes since the last complete poll.
    pub(super) new_bytes: u64,
    pub(super) timeouts: u8,
    /// Time since when sent data waits for a response while nothing is received or acknowledged; `None`: nothing is
    /// outstanding.
    pub(super) unanswered_since: Option<Instant>,
    /// Time since when retransmission timeouts follow each other without any ACK, with more outstanding data than a
    /// small packet holds.
    pub(super) rto_since: Option<Instant>,
    /// Number of these timeouts when another subflow proved that small packets pass.
    pub(super) timeouts_at_probe: Option<u8>,
    /// Time since when a later retransmission waits for its ACK.
    pub(super) retransmitted_since: Option<Instant>,
    /// Receive progress of the connection when this subflow was requested to carry data.
    pub(super) start_progress: Option<ReceiveProgress>,
    /// Time since when the peer is known to have sent data over it, while only small packets have arrived.
    pub(super) missing_since: Option<Instant>,
    /// Bytes that the connection had carried when this subflow was requested to carry data.
    pub(super) volume_at_start: u64,
    pub(super) priority_check: Option<PriorityCheck>,
}

/// Position in a connection's data, and the number of bytes received up to then, over all subflows.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct ReceiveProgress {
    pub(super) data_seq: DataSize,
    pub(super) received: DataSize,
}

/// A requested priority that has not shown its effect yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct PriorityCheck {
    /// Time of the first request.
    requested_at: Instant,
    /// Time from which on the effect is checked.
    check_from: Instant,
    /// Expected time until queued data has arrived.
    drain_time: Duration,
    /// Time and byte count of the first poll after `check_from`.
    baseline: Option<(Instant, u64)>,
    attempts: u8,
}

/// Result of a priority check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PriorityVerdict {
    /// No result yet, or no check in progress.
    Pending,
    /// The requested priority is in effect.
    Effective,
    /// Send MP_PRIO again.
    Repeat,
    /// The peer does not follow the request.
    Unresponsive,
}

impl PriorityCheck {
    /// Repetitions before the subflow is destroyed. Our choice: five consecutive losses at 5 % loss rate have a
    /// probability of one in three million.
    const MAX_ATTEMPTS: u8 = 5;
    /// How long bytes are observed. Our choice: three times the distance between packets at 150 kbit/s.
    const OBSERVATION_TIME: Duration = Duration::from_millis(150);
    /// Bytes that do not count as continued use: one retransmitted or late packet.
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

    /// Updates the counters and returns the bytes received and sent since the previous ones. The first counters of
    /// an adopted subflow describe its past, which counts as volume but not as new.
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
        // The shortest RTT seen replaces that of the handshake, which may have waited in a queue.
        self.handshake_rtt = self.handshake_rtt.or(counters.rtt).into_iter().chain(self.receiver_rtt).min();
        self.timeouts = counters.timeouts;
        self.is_polled = true;
        self.polled_at = Some(now);
        let moved = (received + sent).bytes();
        // Outstanding data without progress is unanswered. Any progress restarts the time.
        let waiting = self.timeouts > 0 || !counters.outstanding.is_zero();
        self.unanswered_since = waiting.then(|| self.unanswered_since.filter(|_| moved == 0).unwrap_or(now));
        // Timeouts without an ACK for more than a small packet: full-sized packets may be lost (see `black_hole`).
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

    /// Bytes carried so far, in both directions.
    pub(super) fn volume(&self) -> u64 {
        self.counters.map_or(0, |counters| (counters.received + counters.sent).bytes())
    }

    /// Bytes received from the peer.
    pub(super) fn received(&self) -> DataSize {
        self.counters.map_or(DataSize::ZERO, |counters| counters.received)
    }

    /// Whether no full-sized packet has arrived over it. The last packet of a burst may be smaller, so a few bytes
    /// do not count.
    pub(super) fn has_no_full_packet(&self) -> bool {
        self.received() < FULL_PACKET
    }

    /// The shortest RTT seen, at first that of the handshake. A handshake that waited in the queue of another
    /// subflow on the same link (607 ms instead of 150 ms were seen) says nothing about the path.
    pub(super) fn handshake_rtt(&self) -> Duration {
        self.handshake_rtt.unwrap_or(DEFAULT_RTT)
    }

    /// Shortest time to wait for the ACK of a retransmission, by all RTTs that were measured.
    pub(super) fn ack_wait(&self) -> Duration {
        let sender = self.counters.and_then(|counters| counters.rtt).unwrap_or_default();
        (self.handshake_rtt().max(sender).min(MAX_RTT) * 2).max(MIN_ACK_WAIT)
    }

    /// Position in the connection's data that it has reached: [`Counters::data_seq`].
    pub(super) fn data_seq(&self) -> Option<DataSize> {
        self.counters.and_then(|counters| counters.data_seq)
    }

    /// RTT including queueing delay, as far as the receiver sees it.
    pub(super) fn rtt(&self) -> Duration {
        self.receiver_rtt.unwrap_or_default().max(self.handshake_rtt()).min(MAX_RTT)
    }

    /// Whether its packets wait in a queue: the RTT is a quarter longer than that of the handshake. Our choice:
    /// more than the variation of a receiver's estimate. Measured with the kernel: 1.7 to 2.1 times on a full link,
    /// 1.04 times on one with little traffic.
    pub(super) fn is_queueing(&self) -> bool {
        self.rtt() * 4 > self.handshake_rtt() * 5
    }

    /// Expected time until the data queued by the server has arrived, if the subflow is suspended now.
    pub(super) fn drain_time(&self) -> Duration {
        (self.rtt() * DRAIN_IN_RTTS).clamp(MIN_DRAIN, MAX_DRAIN)
    }

    /// Records that it was requested to be a backup or not, and starts the check of the priority.
    pub(super) fn request_backup(&mut self, now: Instant, backup: bool) {
        let is_repeated = self.backup == backup;
        if !is_repeated && !backup {
            (self.active_since, self.has_carried) = (now, false);
        }
        self.backup = backup;
        // A repetition keeps the time of the first request and counts the attempts.
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

    /// Checks at a complete poll whether the requested priority is in effect. `others_progressed`: other active
    /// subflows have carried data since the last poll.
    pub(super) fn check_priority(&mut self, now: Instant, others_progressed: bool) -> PriorityVerdict {
        let volume = self.volume();
        let Some(check) = &mut self.priority_check else {
            if !self.backup || !others_progressed {
                // While no other subflow carries data, this one may carry it as a backup.
                self.suspended_volume = volume;
                return PriorityVerdict::Pending;
            }
            // A suspended subflow that carries data again while others do too: the server has lost its priority.
            let leaks = volume.saturating_sub(self.suspended_volume) > PriorityCheck::TOLERATED_BYTES;
            return if leaks { PriorityVerdict::Repeat } else { PriorityVerdict::Pending };
        };
        if !self.backup {
            if self.has_carried || check.attempts >= PriorityCheck::MAX_ATTEMPTS {
                // A resumption is in effect with the first bytes. After the last attempt it is left as it is.
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
            // A suspension is in effect if hardly any bytes arrive during the observation time. The clock starts
            // with the first poll after `check_from`, about one RTT after the request.
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
                // Nothing else carries data, so this is fail-over: observe again.
                check.baseline = Some((now, volume));
                PriorityVerdict::Pending
            }
            // A superfluous repetition costs only one packet, so it does not wait for the end of the drain.
            // Destroying the subflow does.
            Some(_) if check.attempts < PriorityCheck::MAX_ATTEMPTS => PriorityVerdict::Repeat,
            Some(_) if now.since(check.requested_at) < check.drain_time * 2 + FINAL_WAIT => {
                check.baseline = Some((now, volume));
                PriorityVerdict::Pending
            }
            Some(_) => PriorityVerdict::Unresponsive,
        }
    }

    /// Time after which its rate shows what the path can carry: [`SETTLE_TIME`], or ten RTTs if longer.
    pub(super) fn settle_time(&self) -> Duration {
        SETTLE_TIME.max(self.handshake_rtt() * 10)
    }

    /// Time for which it has carried nothing, in either direction, although it is requested to: since its last byte
    /// or since the request.
    pub(super) fn stalled_for(&self, now: Instant) -> Duration {
        now.since(self.last_progress.unwrap_or(self.established_at).max(self.active_since))
    }

    /// Predicted duration of its drain, while a priority check is in progress.
    pub(super) fn pending_drain(&self) -> Option<Duration> {
        self.priority_check.map(|check| check.drain_time)
    }

    /// Whether the peer uses it only as a backup.
    pub(super) fn peer_backup(&self) -> bool {
        self.counters.is_some_and(|counters| counters.peer_backup)
    }

    /// The kernel's value of the own backup flag; `None`: not polled yet.
    pub(super) fn kernel_backup(&self) -> Option<bool> {
        self.counters.map(|counters| counters.backup)
    }
}

/// Size of outstanding or received data that contains at least one full-sized packet. Our choice: less than a
/// segment at the smallest MTU of IPv6, and more than a request.
pub(super) const FULL_PACKET: DataSize = DataSize::from_bytes(1200);
/// Shortest wait for the ACK of a retransmission. Our choice: a delayed ACK (40 ms with Linux) and a late driver.
const MIN_ACK_WAIT: Duration = Duration::from_millis(200);
/// First bytes later than this may have waited behind a lost packet, which the kernel retransmits after at least
/// 200 ms.
const LATE_START: Duration = Duration::from_millis(500);
/// Time after which a path that was requested to carry data shows its capacity, or ten RTTs if longer (eq. 1: the
/// rounds of slow start up to its rate, and φ = 10 samples). Measured with the kernel: 0.85 of 8 Mbit/s in the
/// first second of LTE beside slow Wi-Fi.
const SETTLE_TIME: Duration = Duration::from_secs(2);
/// RTT assumed where the kernel reports none. Our choice: between that of a near and of a distant server.
const DEFAULT_RTT: Duration = Duration::from_millis(100);
/// A receiver's RTT estimate above this is a pause of the sender and not a queue.
const MAX_RTT: Duration = Duration::from_millis(2000);
/// Drain in RTTs that include queueing delay. Measured with cubic: 132 ms of drain at 40 ms of queueing delay (20
/// Mbit/s, 100 kB).
const DRAIN_IN_RTTS: u32 = 3;
/// Shortest drain. Our choice: the median of the drains measured with cubic.
const MIN_DRAIN: Duration = Duration::from_millis(130);
/// Longest drain: that of a full queue on a 1 Mbit/s LTE link is 2 to 3 s.
const MAX_DRAIN: Duration = Duration::from_secs(3);
/// Additional time after the drain before a subflow is destroyed.
const FINAL_WAIT: Duration = Duration::from_secs(1);
/// Shortest time after which the effect of a resumption is checked, or two RTTs if longer, and longest time for that of
/// a suspension. Measured: the first data after a resumption arrives 3 to 8 ms after an RTT; a window that restarts
/// needs another one.
const RESUME_WAIT: Duration = Duration::from_millis(300);

#[cfg(test)]
mod tests {
    use super::*;

    /// A subflow that carries data from 0 ms on, after a handshake with this RTT.
    fn test_subflow(rtt_ms: u64) -> Subflow {
        let rtt = Some(Duration::from_millis(rtt_ms));
        let subflow = EstablishedSubflow { id: SubflowId(1), link: None, initial: true, backup: false, rtt };
        Subflow::new(&subflow, Some(0), Instant::ZERO)
    }

    /// A poll at this time finds `received` bytes in total.
    fn poll(sub: &mut Subflow, ms: u64, received: u64) {
        sub.new_bytes = 0;
        let counters = Counters { received: DataSize::from_bytes(received), ..Counters::default() };
        sub.on_counters(Instant::from_millis(ms), counters, false);
    }

    /// The same, then a check of the priority; `others`: other active subflows have carried data since the last poll.
    fn poll_and_check(sub: &mut Subflow, ms: u64, received: u64, others: bool) -> PriorityVerdict {
        poll(sub, ms, received);
        sub.check_priority(Instant::from_millis(ms), others)
    }

    #[test]
    fn bytes_of_the_drain_do_not_count_against_a_suspension() {
        let mut sub = test_subflow(40);
        poll(&mut sub, 1000, 1_000_000);
        sub.request_backup(Instant::from_millis(1000), true);
        assert_eq!(poll_and_check(&mut sub, 1100, 1_200_000, true), PriorityVerdict::Pending);
        assert_eq!(poll_and_check(&mut sub, 1140, 1_300_000, true), PriorityVerdict::Pending);
        assert_eq!(poll_and_check(&mut sub, 1300, 1_300_000, true), PriorityVerdict::Effective);
        assert!(sub.pending_drain().is_none());
    }

    #[test]
    fn a_lost_priority_is_repeated_five_times_before_the_subflow_is_unresponsive() {
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
                    // Upper bound for the first repetition: 0.5 s and twice the predicted drain.
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
    fn a_backup_that_carries_alone_counts_as_fail_over() {
        let mut sub = test_subflow(40);
        sub.request_backup(Instant::from_millis(0), true);
        for n in 2..40 {
            assert_eq!(poll_and_check(&mut sub, n * 100, n * 100_000, false), PriorityVerdict::Pending);
        }
    }

    #[test]
    fn a_shorter_rtt_replaces_that_of_a_handshake_that_waited_in_a_queue() {
        let mut sub = test_subflow(607);
        let millis = |ms| Some(Duration::from_millis(ms));
        for (queued, handshake, rtt) in [(700, 607, 700), (150, 150, 150), (400, 150, 400)] {
            let counters = Counters { rtt: millis(607), receiver_rtt: millis(queued), ..Counters::default() };
            sub.on_counters(Instant::from_millis(1000), counters, false);
            assert_eq!((Some(sub.handshake_rtt()), Some(sub.rtt())), (millis(handshake), millis(rtt)));
        }
    }

    #[test]
    fn a_resumption_is_effective_when_bytes_arrive() {
        let mut sub = test_subflow(40);
        sub.request_backup(Instant::from_millis(0), true);
        sub.request_backup(Instant::from_millis(1000), false);
        assert_eq!(poll_and_check(&mut sub, 1200, 0, true), PriorityVerdict::Pending);
        assert_eq!(poll_and_check(&mut sub, 1400, 0, true), PriorityVerdict::Repeat);
        sub.request_backup(Instant::from_millis(1400), false);
        assert_eq!(poll_and_check(&mut sub, 1500, 5000, true), PriorityVerdict::Effective);
    }
}
