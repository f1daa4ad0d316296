//! Behavior that only the simulations of acceleration need, tested on a socket with handwritten segments.

use super::super::segment::Flags;
use super::super::*;
use marline_core::units::{DataSize, Duration, Instant};

const MSS: u64 = 1448;
const RTT: Duration = Duration::from_millis(50);

/// A server with much data to send, whose client's ACKs are written by hand.
struct TestServer {
    now: Instant,
    socket: Socket,
    sent: Vec<Segment>,
}

impl TestServer {
    /// In slow start after this many rounds, in each of which a whole window was acknowledged in order.
    fn new(config: TcpConfig, rounds: u32) -> Self {
        let config = TcpConfig { is_strict: true, ..config };
        let syn = Segment {
            flags: Flags { syn: true, ..Flags::default() },
            window: DataSize::from_mib(1),
            ..Segment::default()
        };
        let mut server =
            Self { now: Instant::ZERO, socket: Socket::accept(config, &syn, Instant::ZERO), sent: vec![] };
        server.flush();
        server.advance(RTT);
        server.receive_ack(0, Some(Instant::ZERO), &[], MIB);
        server.socket.write(DataSize::from_mib(10));
        server.flush();
        for _ in 0..rounds {
            server.advance(RTT);
            let (end, echo) = server.newest_sent();
            server.receive_ack(end, Some(echo), &[], MIB);
        }
        server
    }

    fn newest_sent(&self) -> (u64, Instant) {
        self.sent.last().map_or((0, Instant::ZERO), |last| (last.end(), last.ts_val))
    }

    /// The client acknowledges `ack` with these SACK blocks, in segments, and advertises `window` bytes.
    fn receive_ack(&mut self, ack: u64, ts_ecr: Option<Instant>, blocks: &[(u64, u64)], window: u64) {
        let mut sacks = SackBlocks::default();
        for (from, to) in blocks {
            sacks.push(SeqRange::new(from * MSS, to * MSS));
        }
        let flags = Flags { ack: true, ..Flags::default() };
        let window = DataSize::from_bytes(window);
        self.socket.on_segment(
            self.now,
            &Segment { flags, ack, sacks, window, ts_val: self.now, ts_ecr, ..Segment::default() },
        );
        self.flush();
    }

    /// Advances the time and runs the timers.
    fn advance(&mut self, duration: Duration) {
        let until = self.now + duration;
        while let Some(at) = self.socket.timer().filter(|at| *at <= until) {
            self.now = self.now.max(at);
            self.socket.on_timer(self.now);
            self.flush();
        }
        self.now = until;
    }

    fn flush(&mut self) {
        while let Some(segment) = self.socket.poll(self.now) {
            self.sent.push(segment);
        }
    }

    fn window(&self) -> u32 {
        self.socket.info().cwnd
    }

    /// Data segments sent after the first `n` packets, by their offset in segments.
    fn data_since(&self, n: usize) -> Vec<u64> {
        self.sent[n..].iter().filter(|sent| !sent.seqs.is_empty()).map(|sent| sent.seqs.start / MSS).collect()
    }
}

const MIB: u64 = 1 << 20;

/// Forty segments are in flight and the first of them is lost; the others were selectively acknowledged.
fn server_with_sack_hole(config: TcpConfig) -> (TestServer, u64, Instant) {
    let mut server = TestServer::new(config, 2);
    let (una, last_ts_val) = (server.socket.snd_una(), server.newest_sent().1);
    assert_eq!((server.window(), una), (40, 30 * MSS));
    server.advance(RTT);
    for n in 1..40 {
        server.receive_ack(una, Some(last_ts_val - RTT), &[(31, 31 + n)], MIB);
    }
    (server, una, last_ts_val)
}

#[test]
fn an_echo_from_before_the_retransmission_restores_the_window() {
    for (is_old_echo, window) in [(true, 40..=41), (false, 28..=28)] {
        let (mut server, una, before) = server_with_sack_hole(TcpConfig::default());
        assert!(server.window() < 40, "{}", server.window());
        server.advance(RTT);
        let repaired_at = server.now;
        let end = una + 40 * MSS;
        // Everything in flight when the loss was detected is acknowledged: recovery ends.
        server.receive_ack(end, Some(if is_old_echo { before } else { repaired_at }), &[], MIB);
        assert!(window.contains(&server.window()), "old echo: {is_old_echo}: {}", server.window());
    }
}

#[test]
fn without_timestamps_only_duplicates_restore_the_window() {
    let config = TcpConfig { timestamps: false, ..TcpConfig::default() };
    let (mut server, una, _) = server_with_sack_hole(config);
    server.advance(RTT);
    server.receive_ack(una + 40 * MSS, None, &[], MIB);
    assert_eq!(server.window(), 28);
    // The retransmission also arrives, after the original.
    server.receive_ack(una + 40 * MSS, None, &[(30, 31)], MIB);
    assert!(server.window() >= 40, "{}", server.window());
}

#[test]
fn a_timeout_is_undone_by_an_echo_from_before_it() {
    let mut server = TestServer::new(TcpConfig::default(), 2);
    let (end, before) = server.newest_sent();
    server.advance(Duration::from_secs(3));
    assert_eq!(server.window(), 1, "after timeouts");
    server.receive_ack(end, Some(before), &[], MIB);
    assert!(server.window() >= 40, "{}", server.window());
}

#[test]
fn an_unreachable_report_reverts_one_doubling_of_the_timer() {
    let mut server = TestServer::new(TcpConfig::default(), 2);
    let una = server.socket.snd_una();
    // Timeouts after 0.25, 0.75, 1.75 and 3.75 s; the next one is after 7.75 s.
    server.advance(Duration::from_millis(5000));
    let before = server.sent.len();
    let report_unreachable = |server: &mut TestServer, number: u64| {
        server.socket.on_unreachable(server.now, number);
        server.socket.on_timer(server.now);
        server.flush();
        server.sent.len() - before
    };
    assert_eq!(report_unreachable(&mut server, una + MSS), 0, "not the first unacknowledged segment");
    assert_eq!(report_unreachable(&mut server, una), 0, "the reverted timeout of 2 s has not passed");
    assert_eq!(report_unreachable(&mut server, una), 1, "that of one second has");
    assert_eq!(server.data_since(before), [una / MSS]);
    (0..9).for_each(|_| assert_eq!(report_unreachable(&mut server, una), 1));
    server.advance(Duration::from_millis(300));
    assert_eq!(server.data_since(before), [una / MSS; 2], "the timer is back at its first value");
}

#[test]
fn one_acked_segment_restarts_a_sender_after_timeouts() {
    let mut server = TestServer::new(TcpConfig::default(), 2);
    let una = server.socket.snd_una();
    server.advance(Duration::from_secs(3));
    let (sent, timeout_before) = (server.sent.len(), server.socket.timer().expect("a timeout"));
    assert!(
        timeout_before > server.now + Duration::from_millis(500),
        "without an ACK it would be idle until {timeout_before}"
    );
    // The withheld ACK: of the data in flight, only the rest of one segment is acknowledged.
    server.receive_ack(una + MSS, Some(server.now), &[], MIB);
    assert!(server.data_since(sent).len() >= 2, "{:?}", server.data_since(sent));
    assert!(server.socket.timer().expect("a timeout") < timeout_before);
}

#[test]
fn a_zero_window_with_data_outstanding_reduces_the_threshold_at_each_timeout() {
    let mut server = TestServer::new(TcpConfig::default(), 3);
    let una = server.socket.snd_una();
    assert_eq!(server.window(), 80);
    server.receive_ack(una, Some(server.now), &[], 0);
    server.advance(Duration::from_secs(10));
    server.receive_ack(una, Some(server.now), &[], MIB);
    // One window of segments is acknowledged per round. If the threshold had been reduced only once, to 56, slow
    // start would have reached it by now.
    server.advance(Duration::from_secs(20));
    for _ in 0..7 {
        server.advance(RTT);
        let ack = server.socket.snd_una() + u64::from(server.window()) * MSS;
        server.receive_ack(ack, Some(server.now), &[], MIB);
    }
    assert!(server.window() < 28, "{}", server.window());
}

#[test]
fn a_zero_window_with_nothing_outstanding_is_probed_without_a_reduction() {
    let mut server = TestServer::new(TcpConfig::default(), 2);
    let (end, echo) = server.newest_sent();
    server.advance(RTT);
    let sent = server.sent.len();
    server.receive_ack(end, Some(echo), &[], 0);
    server.advance(Duration::from_secs(2));
    let probes =
        server.sent[sent..].iter().filter(|sent| sent.seqs.is_empty() && sent.seqs.start == end - 1).count();
    assert!((2..=4).contains(&probes), "{probes} probes in 2 s");
    assert!(server.data_since(sent).is_empty());
    server.receive_ack(end, Some(echo), &[], MIB);
    assert!(server.data_since(sent).len() >= 10, "it continues at once");
}

#[test]
fn an_ack_of_unsent_data_gets_at_most_two_challenge_acks_per_second() {
    let mut server = TestServer::new(TcpConfig::default(), 2);
    let (una, sent) = (server.socket.snd_una(), server.sent.len());
    for _ in 0..50 {
        server.receive_ack(una + 500 * MSS, Some(server.now), &[], MIB);
        server.advance(Duration::from_millis(1));
    }
    let challenge_acks = server.sent[sent..].iter().filter(|sent| sent.seqs.is_empty()).count();
    assert_eq!((server.socket.snd_una(), challenge_acks), (una, 1));
}

#[test]
fn an_ack_with_an_old_timestamp_is_dropped() {
    let mut server = TestServer::new(TcpConfig::default(), 2);
    let (end, echo) = server.newest_sent();
    let una = server.socket.snd_una();
    let flags = Flags { ack: true, ..Flags::default() };
    let window = DataSize::from_mib(1);
    let late_segment =
        Segment { flags, ack: end, window, ts_val: Instant::ZERO, ts_ecr: Some(echo), ..Segment::default() };
    server.socket.on_segment(server.now, &late_segment);
    assert_eq!(server.socket.snd_una(), una);
}

#[test]
fn without_sack_three_duplicate_acks_mean_a_loss() {
    let mut server = TestServer::new(TcpConfig { sack: false, ..TcpConfig::default() }, 2);
    let (una, echo, sent) = (server.socket.snd_una(), server.newest_sent().1, server.sent.len());
    server.advance(RTT);
    for n in 1..=3 {
        server.receive_ack(una, Some(echo), &[], MIB);
        let repeated = server.data_since(sent).contains(&(una / MSS));
        assert_eq!(repeated, n == 3, "after {n}");
    }
}

#[test]
fn a_reset_is_accepted_only_at_the_next_sequence_number() {
    let mut server = TestServer::new(TcpConfig::default(), 1);
    let reset = |at: u64| Segment {
        flags: Flags { rst: true, ..Flags::default() },
        seqs: SeqRange::new(at, at),
        ..Segment::default()
    };
    server.socket.on_segment(server.now, &reset(7));
    assert_eq!(server.socket.state(), TcpState::Established);
    server.socket.on_segment(server.now, &reset(0));
    assert_eq!(server.socket.state(), TcpState::Closed(TcpCloseReason::Reset));
}
