//! Blackout Detector: is the primary link dark? (Super-aggregation §3.2)
//!
//! In: signs of life, the count of the link's packets, its gateway's answers, its carrier, the time. Out: questions, and
//! whether the link is dark.
//!
//! 1. Passive first: nothing for 200 ms, or for twice the usual pause between signs where that is longer, makes a
//!    suspicion. Then the link's own count is looked at, which sees what no flow of ours does: twice, for what it was at the last
//!    sign of life is not known.
//! 2. If that stands still, the gateway is asked, twice. No answer within 40 ms, or within twice its usual round trip:
//!    dark. Then it is asked every 20 ms until something comes; after ten seconds less often.
//! 3. A suspicion that was refuted is raised again after twice the time, and no more after some seconds: a link on
//!    which nothing is wanted is not kept awake. The next sign of life arms it again.
//! 4. A carrier that goes is a blackout at once; one that comes back is asked for at once.
//! 5. A gateway that has never answered says nothing by its silence: many answer no pings. Then the carrier alone tells
//!    of blackouts ([`Detector::is_deaf`]).

use alloc::collections::VecDeque;

use crate::accel::event::Output;
use crate::link::LinkId;
use crate::units::{Duration, Instant};

/// One link's detector.
#[derive(Clone, Debug)]
pub(in crate::accel) struct OutageDetector {
    link: LinkId,
    state: State,
    last_activity: Option<Instant>,
    /// When its carrier went last.
    carrier_lost: Option<Instant>,
    /// Smoothed pause between signs.
    mean_gap: Duration,
    /// Its count, and when that was.
    last_count: Option<(u64, Instant)>,
    next_sequence: u16,
    probes: VecDeque<(u16, Instant)>,
    rtt: Option<Duration>,
    smoothed_rtt: Option<Duration>,
    outages: u64,
    outage_time: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Nothing is expected.
    Idle,
    /// If nothing comes until then, it is suspicious; so many times it was before.
    Up {
        until: Instant,
        refuted: u32,
    },
    /// The count was asked for.
    Counting {
        refuted: u32,
        since: Instant,
    },
    /// The gateway was asked once or twice; so long an answer is waited for.
    Probing {
        refuted: u32,
        until: Instant,
        again: bool,
    },
    Down {
        since: Instant,
        next: Instant,
    },
}

/// What has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::accel) enum OutageEvent {
    Started,
    Ended,
}

impl OutageDetector {
    /// For this link.
    pub(in crate::accel) fn new(link: LinkId) -> Self {
        Self {
            link,
            state: State::Idle,
            last_activity: None,
            carrier_lost: None,
            mean_gap: Duration::ZERO,
            last_count: None,
            next_sequence: 0,
            probes: VecDeque::new(),
            rtt: None,
            smoothed_rtt: None,
            outages: 0,
            outage_time: Duration::ZERO,
        }
    }

    /// Something came over the link, or must have.
    pub(in crate::accel) fn on_activity(
        &mut self,
        now: Instant,
        outputs: &mut VecDeque<Output>,
    ) -> Option<OutageEvent> {
        if self.smoothed_rtt.is_none() && self.probes.is_empty() {
            // How long a round trip to the gateway takes is to be known before it matters.
            self.probe(now, outputs);
        }
        if let Some(last) = self.last_activity {
            let pause = now.since(last).min(MAX_GAP);
            self.mean_gap = (self.mean_gap * 7 + pause) / 8;
        }
        self.last_activity = Some(now);
        // What came before the carrier went may be heard of behind that.
        let is_old = self.is_down() && self.carrier_lost.is_some_and(|gone| now.since(gone) < QUIET_TIME);
        if is_old { None } else { self.set_up(now, 0) }
    }

    /// The link has brought so many packets.
    pub(in crate::accel) fn on_count(
        &mut self,
        now: Instant,
        packets: u64,
        outputs: &mut VecDeque<Output>,
    ) -> Option<OutageEvent> {
        let before = self.last_count.replace((packets, now));
        let before = before.filter(|(_, at)| self.last_activity.is_none_or(|sign| *at > sign));
        match (self.state, before) {
            (State::Counting { refuted, .. }, None) => {
                self.state = State::Up { until: now + COUNT_INTERVAL, refuted }
            }
            (State::Counting { refuted, .. }, Some((before, _))) if packets > before => {
                return self.set_up(now, refuted + 1);
            }
            (State::Counting { refuted, .. }, Some(_)) => {
                self.probe(now, outputs);
                self.state = State::Probing { refuted, until: now + self.reply_timeout() / 2, again: false };
            }
            _ => {}
        }
        None
    }

    /// The gateway answers.
    pub(in crate::accel) fn on_probe_reply(&mut self, now: Instant, sequence: u16) -> Option<OutageEvent> {
        let at = self.probes.iter().position(|(probe, _)| *probe == sequence)?;
        let (_, probe) = self.probes.remove(at)?;
        let rtt = now.since(probe);
        // What waited through a blackout is no measure.
        if !self.is_down() {
            self.smoothed_rtt = Some(self.smoothed_rtt.map_or(rtt, |smoothed| (smoothed * 7 + rtt) / 8));
        }
        self.rtt = Some(rtt);
        match self.state {
            State::Probing { refuted, .. } | State::Counting { refuted, .. } => self.set_up(now, refuted + 1),
            State::Down { .. } => self.set_up(now, 0),
            State::Idle | State::Up { .. } => None,
        }
    }

    /// The carrier came or went.
    pub(in crate::accel) fn on_carrier(
        &mut self,
        now: Instant,
        is_up: bool,
        outputs: &mut VecDeque<Output>,
    ) -> Option<OutageEvent> {
        match (is_up, self.is_down()) {
            (false, false) => {
                self.carrier_lost = Some(now);
                Some(self.set_down(now, outputs))
            }
            (true, true) => {
                self.probe_while_down(now, outputs);
                None
            }
            _ => None,
        }
    }

    /// Time has passed.
    pub(in crate::accel) fn tick(&mut self, now: Instant, outputs: &mut VecDeque<Output>) -> Option<OutageEvent> {
        if self.deadline().is_none_or(|due| now < due) {
            return None;
        }
        match self.state {
            State::Idle => None,
            State::Up { refuted, .. } => {
                self.state = State::Counting { refuted, since: now };
                outputs.push_back(Output::CountPackets { link: self.link });
                None
            }
            // A driver that cannot count: the gateway is asked all the same.
            State::Counting { refuted, .. } | State::Probing { refuted, again: false, .. } => {
                self.probe(now, outputs);
                self.state = State::Probing { refuted, until: now + self.reply_timeout() / 2, again: true };
                None
            }
            // Who has never answered says nothing by silence.
            State::Probing { refuted, .. } if self.smoothed_rtt.is_none() => self.set_up(now, refuted + 1),
            State::Probing { .. } => Some(self.set_down(now, outputs)),
            State::Down { .. } => {
                self.probe_while_down(now, outputs);
                None
            }
        }
    }

    /// When to tick next.
    pub(in crate::accel) fn deadline(&self) -> Option<Instant> {
        match self.state {
            State::Idle => None,
            State::Up { until, .. } => Some(until),
            State::Counting { since, .. } => Some(since + COUNT_TIMEOUT),
            State::Probing { until, .. } => Some(until),
            State::Down { next, .. } => Some(next),
        }
    }

    /// Whether nothing comes.
    pub(in crate::accel) const fn is_down(&self) -> bool {
        matches!(self.state, State::Down { .. })
    }

    /// How often it was dark.
    pub(in crate::accel) const fn outages(&self) -> u64 {
        self.outages
    }

    /// For how long, all together.
    pub(in crate::accel) fn outage_time(&self, now: Instant) -> Duration {
        match self.state {
            State::Down { since, .. } => self.outage_time + now.since(since),
            _ => self.outage_time,
        }
    }

    /// The last round trip to the gateway.
    pub(in crate::accel) const fn rtt(&self) -> Option<Duration> {
        self.rtt
    }

    /// Whether the gateway was asked several times and has never answered.
    pub(in crate::accel) fn is_unresponsive(&self) -> bool {
        self.smoothed_rtt.is_none() && self.next_sequence >= UNRESPONSIVE_PROBES
    }

    fn set_up(&mut self, now: Instant, refuted: u32) -> Option<OutageEvent> {
        let was = self.state;
        let quiet_time = QUIET_TIME.max(self.mean_gap * 2).saturating_mul(1 << refuted.min(MAX_REFUTED));
        self.state =
            if refuted > MAX_REFUTED { State::Idle } else { State::Up { until: now + quiet_time, refuted } };
        let State::Down { since, .. } = was else { return None };
        self.outage_time += now.since(since);
        Some(OutageEvent::Ended)
    }

    fn set_down(&mut self, now: Instant, outputs: &mut VecDeque<Output>) -> OutageEvent {
        self.outages += 1;
        self.state = State::Down { since: now, next: now };
        self.probe_while_down(now, outputs);
        OutageEvent::Started
    }

    fn probe_while_down(&mut self, now: Instant, outputs: &mut VecDeque<Output>) {
        let State::Down { since, .. } = self.state else { return };
        self.probe(now, outputs);
        let outage = now.since(since);
        let pause = DOWN_PROBE_INTERVALS
            .iter()
            .find(|(until, _)| outage < *until)
            .map_or(MAX_PROBE_INTERVAL, |(_, pause)| *pause);
        self.state = State::Down { since, next: now + pause };
    }

    fn probe(&mut self, now: Instant, outputs: &mut VecDeque<Output>) {
        self.next_sequence = self.next_sequence.wrapping_add(1);
        if self.probes.len() == MAX_PENDING_PROBES {
            self.probes.pop_front();
        }
        self.probes.push_back((self.next_sequence, now));
        outputs.push_back(Output::Probe { link: self.link, sequence: self.next_sequence });
    }

    fn reply_timeout(&self) -> Duration {
        self.smoothed_rtt.map_or(UNKNOWN_REPLY_TIMEOUT, |smoothed| (smoothed * 2).max(MIN_REPLY_TIMEOUT))
    }
}

/// §3.2.
const QUIET_TIME: Duration = Duration::from_millis(200);
/// Between two counts. chosen: a link on which something goes on brings a packet meanwhile.
const COUNT_INTERVAL: Duration = Duration::from_millis(40);
/// For two questions (facts, B).
const MIN_REPLY_TIMEOUT: Duration = Duration::from_millis(40);
/// chosen: a gateway that was never heard may be as far as a satellite's.
const UNKNOWN_REPLY_TIMEOUT: Duration = Duration::from_millis(600);
/// chosen: a driver answers a count at once.
const COUNT_TIMEOUT: Duration = Duration::from_millis(20);
/// chosen: a pause is no measure of how often signs come.
const MAX_GAP: Duration = Duration::from_secs(1);
/// A suspicion that was refuted so often is not raised again before the next sign: 200 ms to 3.2 s.
const MAX_REFUTED: u32 = 4;
/// How often is asked in the dark: until then, with such a pause (20 ms: facts, B).
const DOWN_PROBE_INTERVALS: [(Duration, Duration); 2] =
    [(Duration::from_secs(10), Duration::from_millis(20)), (Duration::from_secs(60), Duration::from_millis(100))];
const MAX_PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Questions. chosen: one when the first packet comes, and two suspicions with two each.
const UNRESPONSIVE_PROBES: u16 = 5;
/// Questions whose answers are waited for. chosen: those of 1.3 s in the dark.
const MAX_PENDING_PROBES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: LinkId = LinkId(0);

    /// A detector with its outputs and a clock.
    struct Bench {
        detector: OutageDetector,
        outputs: VecDeque<Output>,
        now: Instant,
    }

    impl Bench {
        fn new() -> Self {
            let mut bench = Self {
                detector: OutageDetector::new(LINK),
                outputs: VecDeque::new(),
                now: Instant::from_millis(1000),
            };
            bench.detector.on_activity(bench.now, &mut bench.outputs);
            bench.now += Duration::from_millis(10);
            assert_eq!(bench.questions(), [1], "the first sign asks how far the gateway is");
            assert_eq!(bench.detector.on_probe_reply(bench.now, 1), None);
            bench
        }

        fn tick(&mut self) -> Option<OutageEvent> {
            self.now = self.detector.deadline().unwrap();
            self.detector.tick(self.now, &mut self.outputs)
        }

        fn questions(&mut self) -> alloc::vec::Vec<u16> {
            let each = self.outputs.drain(..).filter_map(|output| match output {
                Output::Probe { sequence, .. } => Some(sequence),
                _ => None,
            });
            each.collect()
        }
    }

    #[test]
    fn silence_and_no_answer_is_a_blackout_and_an_answer_ends_it() {
        let mut bench = Bench::new();
        assert_eq!(bench.tick(), None);
        assert_eq!(bench.now, Instant::from_millis(1200), "200 ms of silence");
        assert_eq!(bench.outputs.drain(..).collect::<alloc::vec::Vec<_>>(), [Output::CountPackets { link: LINK }]);
        assert_eq!(bench.detector.on_count(bench.now, 7, &mut bench.outputs), None);
        assert_eq!(bench.tick(), None);
        assert_eq!(bench.now, Instant::from_millis(1240), "it is counted again");
        assert_eq!(bench.outputs.drain(..).collect::<alloc::vec::Vec<_>>(), [Output::CountPackets { link: LINK }]);
        assert_eq!(bench.detector.on_count(bench.now, 7, &mut bench.outputs), None);
        assert_eq!(bench.tick(), None);
        assert_eq!(bench.tick(), Some(OutageEvent::Started));
        assert_eq!(bench.now, Instant::from_millis(1280));
        assert_eq!(bench.questions(), [2, 3, 4]);
        for n in 5..100 {
            assert_eq!(bench.tick(), None);
            assert_eq!(bench.questions(), [n]);
        }
        assert_eq!(bench.detector.on_probe_reply(bench.now, 98), Some(OutageEvent::Ended));
        assert_eq!(bench.detector.outages(), 1);
        assert_eq!(bench.detector.outage_time(bench.now), Duration::from_millis(20 * 95));
    }

    #[test]
    fn a_count_that_grows_or_a_gateway_that_answers_refutes_it_and_it_rests_at_last() {
        let mut bench = Bench::new();
        let mut times = 0;
        while bench.detector.deadline().is_some() {
            assert_eq!(bench.tick(), None);
            let outputs: alloc::vec::Vec<Output> = bench.outputs.drain(..).collect();
            match *outputs.first().unwrap() {
                Output::CountPackets { .. } if times < 2 => {
                    assert_eq!(bench.detector.on_count(bench.now, 7 + times, &mut bench.outputs), None);
                }
                Output::CountPackets { .. } => {
                    assert_eq!(bench.detector.on_count(bench.now, 8, &mut bench.outputs), None);
                    let sequence = bench.questions()[0];
                    assert_eq!(bench.detector.on_probe_reply(bench.now, sequence), None);
                }
                ref other => panic!("{other:?}"),
            }
            times += 1;
        }
        assert_eq!(times, 6);
        assert!(bench.now < Instant::from_millis(8000) && !bench.detector.is_down());
    }

    #[test]
    fn a_carrier_that_goes_is_a_blackout_at_once() {
        let mut bench = Bench::new();
        assert_eq!(bench.detector.on_carrier(bench.now, false, &mut bench.outputs), Some(OutageEvent::Started));
        assert_eq!(bench.detector.on_carrier(bench.now, false, &mut bench.outputs), None);
        bench.questions();
        assert_eq!(bench.detector.on_carrier(bench.now, true, &mut bench.outputs), None);
        assert_eq!(bench.questions(), [3], "asked at once");
        assert_eq!(bench.detector.on_probe_reply(bench.now, 3), Some(OutageEvent::Ended));
    }

    #[test]
    fn a_gateway_that_never_answers_is_no_blackout_and_a_carrier_that_goes_is() {
        let (mut detector, mut outputs) = (OutageDetector::new(LINK), VecDeque::new());
        let mut now = Instant::from_millis(1000);
        detector.on_activity(now, &mut outputs);
        while let Some(due) = detector.deadline() {
            now = due;
            assert_eq!(detector.tick(now, &mut outputs), None);
            if outputs.drain(..).any(|output| matches!(output, Output::CountPackets { .. })) {
                assert_eq!(detector.on_count(now, 7, &mut outputs), None);
            }
        }
        assert!(now < Instant::from_millis(30_000), "it rests: {now}");
        assert!(detector.is_unresponsive() && !detector.is_down());
        assert_eq!(detector.on_carrier(now, false, &mut outputs), Some(OutageEvent::Started));
        assert_eq!(detector.on_carrier(now, true, &mut outputs), None);
        assert_eq!(detector.on_activity(now + Duration::from_millis(199), &mut outputs), None, "it came before");
        assert_eq!(
            detector.on_activity(now + Duration::from_millis(200), &mut outputs),
            Some(OutageEvent::Ended),
            "data comes"
        );
    }

    #[test]
    fn a_far_gateway_has_its_time() {
        let mut bench = Bench::new();
        bench.detector.smoothed_rtt = Some(Duration::from_millis(200));
        for _ in 0..2 {
            bench.tick();
            bench.detector.on_count(bench.now, 7, &mut bench.outputs);
        }
        let probe = bench.now;
        bench.tick();
        assert_eq!(bench.tick(), Some(OutageEvent::Started));
        assert_eq!(bench.now.since(probe), Duration::from_millis(400));
    }
}
