//! Detects unanswered packets on one interface from its packet counters, and decides when a probe is due (rules 1 and 2 of the
//! [parent module](super)).

use std::time::Duration;

use marline_core::units::Instant;

use super::ATTEMPT_PAUSES;
use crate::edge::backoff::MAX_IDLE_PACKETS;

/// Our choice: longer than a slow RTT over LTE; together with the probe, traffic leaves an unresponsive link within three seconds.
const UNANSWERED_TIME: Duration = Duration::from_millis(800);
/// Sent packets per received packet up to which a stream counts as answered. Our choice: streams with feedback have at least this share,
/// and the broadcasts of a provider's network are fewer.
const MAX_SENT_PER_RECEIVED: u64 = 10;
/// Our choice: an unused host sends so many packets that are not answered, or not soon (mDNS, MLD, a keep-alive), within
/// [`STRAY_PERIOD`].
const MAX_STRAY_PACKETS: u64 = 3;
const STRAY_PERIOD: Duration = Duration::from_secs(5);
/// Interval of probes by rule 2. Our choice: a probe without TLS is about 400 bytes.
const PERIODIC_INTERVAL: Duration = Duration::from_secs(10);
/// Packets, or time, after which a probe includes a TLS handshake. Our choice: it is about 5 kB, which is little compared with so many
/// packets, and little per minute.
const TLS_AFTER_PACKETS: u64 = 200;
const TLS_AFTER_TIME: Duration = Duration::from_secs(60);

/// Packets that an interface has sent and received since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::edge) struct PacketCounters {
    pub(in crate::edge) sent: u64,
    pub(super) received: u64,
}

/// Why a probe is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbeReason {
    /// Packets are sent and nothing is received (rule 1).
    Unanswered,
    /// Packets are sent, and the last probe was long ago (rule 2).
    Periodic {
        /// Whether the probe includes a TLS handshake.
        includes_tls: bool,
    },
    /// The link is unresponsive; the probe detects whether it has recovered.
    Recheck,
}

impl ProbeReason {
    pub(super) fn uses_tls(self) -> bool {
        self != Self::Periodic { includes_tls: false }
    }
}

/// Detects unanswered packets on one interface.
#[derive(Debug)]
pub(super) struct UnansweredDetector {
    /// Counters at the last answer, or at the end of the last probe.
    last_answered: PacketCounters,
    /// Since when packets are sent without an answer.
    unanswered_since: Option<Instant>,
    next_attempt: Option<Instant>,
    pause: Option<Duration>,
    /// When rule 2 began to count packets, and the count of sent packets then.
    last_periodic: (Instant, u64),
    /// The same for probes with TLS.
    last_tls: (Instant, u64),
}

impl UnansweredDetector {
    pub(super) fn new(now: Instant, packets: PacketCounters) -> Self {
        let last_probe = (now, packets.sent);
        Self {
            last_answered: packets,
            unanswered_since: None,
            next_attempt: None,
            pause: None,
            last_periodic: last_probe,
            last_tls: last_probe,
        }
    }

    /// Evaluates a sample of the counters; returns a probe that is due. `receives`: connections to relays receive data over this link.
    pub(super) fn sample(&mut self, now: Instant, packets: PacketCounters, receives: bool) -> Option<ProbeReason> {
        if packets.sent < self.last_answered.sent || packets.received < self.last_answered.received {
            // The interface was removed and created again.
            *self = Self::new(now, packets);
        }
        if receives {
            (self.last_periodic, self.last_tls) = ((now, packets.sent), (now, packets.sent));
        }
        if self.is_unanswered(now, packets) {
            return Some(ProbeReason::Unanswered);
        }
        let (started_at, sent) = self.last_periodic;
        if now.since(started_at) < PERIODIC_INTERVAL {
            return None;
        }
        self.last_periodic = (now, packets.sent);
        let (started_at, sent_at_tls) = self.last_tls;
        let includes_tls = now.since(started_at) >= TLS_AFTER_TIME
            || packets.sent.saturating_sub(sent_at_tls) >= TLS_AFTER_PACKETS;
        (packets.sent.saturating_sub(sent) > MAX_IDLE_PACKETS).then_some(ProbeReason::Periodic { includes_tls })
    }

    /// A probe has ended: its packets do not count as traffic (rule 4).
    pub(super) fn probe_ended(&mut self, now: Instant, packets: PacketCounters, due: ProbeReason) {
        (self.last_answered, self.unanswered_since, self.last_periodic) = (packets, None, (now, packets.sent));
        if due.uses_tls() {
            self.last_tls = (now, packets.sent);
        }
    }

    /// Whether packets are unanswered long enough for a probe (rule 1). Sets the time of the next one.
    fn is_unanswered(&mut self, now: Instant, packets: PacketCounters) -> bool {
        let sent = packets.sent.saturating_sub(self.last_answered.sent);
        let received = packets.received.saturating_sub(self.last_answered.received);
        // A single packet among several may come from a neighbor, for instance an ARP reply.
        let is_answer = received * MAX_SENT_PER_RECEIVED >= sent && (received > 1 || sent <= MAX_STRAY_PACKETS);
        if received > 0 && is_answer {
            *self = Self { last_periodic: self.last_periodic, last_tls: self.last_tls, ..Self::new(now, packets) };
            return false;
        }
        if sent == 0 {
            return false;
        }
        let since = *self.unanswered_since.get_or_insert(now);
        // Rare feedback or broadcasts of others: the probes of rule 2 distinguish them.
        if received > 1 || (sent <= MAX_STRAY_PACKETS && now.since(since) >= STRAY_PERIOD) {
            (self.last_answered, self.unanswered_since) = (packets, None);
            return false;
        }
        if sent <= MAX_STRAY_PACKETS
            || now.since(since) < UNANSWERED_TIME
            || self.next_attempt.is_some_and(|next| now < next)
        {
            return false;
        }
        let pause = self.pause.unwrap_or(ATTEMPT_PAUSES.min);
        self.next_attempt = Some(now + pause);
        self.pause = Some((2 * pause).min(ATTEMPT_PAUSES.max));
        true
    }
}

/// Reads the packet counters of an interface of this network namespace.
pub(in crate::edge) fn read_counters(link: &str) -> Option<PacketCounters> {
    parse_counters(&std::fs::read_to_string("/proc/thread-self/net/dev").ok()?, link)
}

/// Parses one interface's line of `/proc/net/dev` (proc_pid_net(5)): name, then received bytes, packets and six more fields, then sent
/// bytes and packets.
fn parse_counters(text: &str, link: &str) -> Option<PacketCounters> {
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(link)?.strip_prefix(':'))?;
    let numbers: Vec<u64> = line.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    Some(PacketCounters { received: *numbers.get(1)?, sent: *numbers.get(9)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    /// Takes `sample_count` samples, one per 250 ms, where the packets grow by `each`; returns the times of probes by rule 1, and those
    /// of rule 2. Each probe sends 12 packets itself and receives 10.
    fn attempts(
        unanswered: &mut UnansweredDetector,
        from: PacketCounters,
        each: (u64, u64),
        sample_count: u64,
    ) -> (Vec<u64>, Vec<(u64, bool)>) {
        let (mut due, mut periodic, mut packets) = (Vec::new(), Vec::new(), from);
        for sample_index in 1..=sample_count {
            packets.sent += each.0;
            packets.received += each.1;
            let now = unanswered.sample(at(sample_index * 250), packets, false);
            match now {
                Some(ProbeReason::Unanswered) => due.push(sample_index * 250),
                Some(ProbeReason::Periodic { includes_tls }) => periodic.push((sample_index * 250, includes_tls)),
                Some(ProbeReason::Recheck) | None => {}
            }
            if let Some(now) = now {
                (packets.sent, packets.received) = (packets.sent + 12, packets.received + 10);
                unanswered.probe_ended(at(sample_index * 250), packets, now);
            }
        }
        (due, periodic)
    }

    fn new() -> UnansweredDetector {
        UnansweredDetector::new(Instant::ZERO, PacketCounters::default())
    }

    #[test]
    fn unanswered_packets_cause_probes_at_growing_intervals() {
        let mut unanswered = new();
        let (due, _) = attempts(&mut unanswered, PacketCounters::default(), (3, 0), 80);
        assert_eq!(due, [1250, 2500, 4500, 8500, 16_500]);
        let packets = |n: u64, received: u64| PacketCounters { sent: 1000 + n, received: 1000 + received };
        unanswered.probe_ended(at(20_000), packets(0, 0), ProbeReason::Unanswered);
        assert_eq!(unanswered.sample(at(20_250), packets(10, 10), false), None);
        assert_eq!(unanswered.pause, None, "the next outage is detected as fast as the first one");
    }

    #[test]
    fn answered_packets_and_an_idle_link_cause_no_such_probes() {
        for each in [(5, 1), (1, 1), (100, 30), (0, 0), (0, 4)] {
            assert_eq!(attempts(&mut new(), PacketCounters::default(), each, 100).0, [0; 0], "{each:?}");
        }
    }

    #[test]
    fn an_upload_with_little_feedback_is_probed_like_answered_traffic() {
        // ACKs that a router thins out, or RTCP receiver reports: one to five packets in a hundred.
        for each in [(100, 2), (40, 2), (60, 3)] {
            let (due, periodic) = attempts(&mut new(), PacketCounters::default(), each, 4 * 60);
            assert_eq!((due, periodic.len()), (vec![], 6), "{each:?}");
        }
        // A report each five seconds does not reset the growing intervals.
        let (mut unanswered, mut packets, mut due) = (new(), PacketCounters::default(), Vec::new());
        for sample_index in 1..=4 * 60 {
            packets.sent += 25;
            packets.received += u64::from(sample_index % 20 == 0);
            if let Some(now) = unanswered.sample(at(sample_index * 250), packets, false) {
                due.extend((now == ProbeReason::Unanswered).then_some(sample_index * 250));
                unanswered.probe_ended(at(sample_index * 250), packets, now);
            }
        }
        assert!(due.len() <= 7, "{due:?}");
    }

    #[test]
    fn an_idle_lan_causes_no_probe_whatever_the_last_probe_sent() {
        let mut unanswered = new();
        let (_, periodic) = attempts(&mut unanswered, PacketCounters::default(), (10, 10), 40);
        assert_eq!(periodic.len(), 1);
        let packets = PacketCounters { sent: 5000, received: 5000 };
        unanswered.probe_ended(at(10_000), packets, ProbeReason::Periodic { includes_tls: true });
        assert!((1..4 * 3600).all(|n| unanswered.sample(at(10_000 + n * 250), packets, false).is_none()));
        // An upload that was not answered has ended.
        let mut unanswered = new();
        assert_eq!(attempts(&mut unanswered, PacketCounters::default(), (30, 0), 5).0, [1250]);
        let packets = PacketCounters { sent: 162, received: 10 };
        assert!((6..4 * 3600).all(|n| unanswered.sample(at(n * 250), packets, false).is_none()));
        // ARP requests, a group membership report, a NAT keep-alive: some packets a minute, which are not answered.
        let (mut unanswered, packets) = (new(), |n| PacketCounters { sent: n / 40, received: 0 });
        assert!((1..4 * 3600).all(|n| unanswered.sample(at(n * 250), packets(n), false).is_none()));
    }

    #[test]
    fn answered_traffic_causes_a_probe_each_ten_seconds_and_one_with_tls_after_many_packets_or_a_minute() {
        let probe_attempts = |each| attempts(&mut new(), PacketCounters::default(), each, 4 * 75).1;
        // With the packets of the attempts these are 248 in 50 s.
        let few: Vec<(u64, bool)> = (1..=7).map(|n| (n * 10_000, n == 5)).collect();
        assert_eq!(probe_attempts((1, 1)), few);
        let many: Vec<(u64, bool)> = (1..=7).map(|n| (n * 10_000, true)).collect();
        assert_eq!(probe_attempts((10, 10)), many);
        assert_eq!(probe_attempts((0, 9)), []);
        let mut packets = PacketCounters::default();
        let mut seldom = new();
        let full_probes = (1..=7).map(|n| {
            packets = PacketCounters { sent: packets.sent + 21, received: packets.received + 21 };
            seldom
                .sample(at(n * 10_000), packets, false)
                .inspect(|due| seldom.probe_ended(at(n * 10_000), packets, *due))
        });
        assert_eq!(full_probes.filter(|due| *due == Some(ProbeReason::Periodic { includes_tls: true })).count(), 1);
        // Connections to relays receive data.
        let packets = |n| PacketCounters { sent: n, received: n };
        let mut unanswered = new();
        assert!((1..400).all(|n| unanswered.sample(at(n * 250), packets(n), true).is_none()));
        assert_eq!(unanswered.sample(at(100_000), packets(400), false), None);
        assert_eq!(
            unanswered.sample(at(110_000), packets(421), false),
            Some(ProbeReason::Periodic { includes_tls: false })
        );
    }

    #[test]
    fn counters_that_start_again_at_zero_are_no_traffic() {
        let mut unanswered = UnansweredDetector::new(Instant::ZERO, PacketCounters { sent: 1000, received: 1000 });
        assert_eq!(unanswered.sample(at(5000), PacketCounters { sent: 10, received: 0 }, false), None);
        assert_eq!(unanswered.sample(at(14_000), PacketCounters { sent: 10, received: 0 }, false), None);
    }

    #[test]
    fn packet_counters_are_parsed_by_interface_name() {
        let text = "Inter-|   Receive                          |  Transmit\n face |bytes    packets\n    lo:  1 2 0 0 0 0 0 0 3 4 0 0 0 0 0 0\n\
                    wwan10: 9 8 0 0 0 0 0 0 7 6 0 0 0 0 0 0\n wwan1: 10 20 0 0 0 0 0 0 30 40 0 0 0 0 0 0\n";
        assert_eq!(parse_counters(text, "wwan1"), Some(PacketCounters { sent: 40, received: 20 }));
        assert_eq!((parse_counters(text, "wwan"), parse_counters("wwan1: 1 2", "wwan1")), (None, None));
    }
}
