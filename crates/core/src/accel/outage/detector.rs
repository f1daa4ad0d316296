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
pub(in crate::accel) struct Detector {
    link: LinkId,
    state: State,
    last_sign: Option<Instant>,
    /// When its carrier went last.
    gone: Option<Instant>,
    /// Smoothed pause between signs.
    pause: Duration,
    /// Its count, and when that was.
    packets: Option<(u64, Instant)>,
    next_sequence: u16,
    asked: VecDeque<(u16, Instant)>,
    rtt: Option<Duration>,
    smoothed: Option<Duration>,
    blackouts: u64,
    dark: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Nothing is expected.
    Resting,
    /// If nothing comes until then, it is suspicious; so many times it was before.
    Light {
        until: Instant,
        refuted: u32,
    },
    /// The count was asked for.
    Counting {
        refuted: u32,
        since: Instant,
    },
    /// The gateway was asked once or twice; so long an answer is waited for.
    Asked {
        refuted: u32,
        until: Instant,
        again: bool,
    },
    Dark {
        since: Instant,
        next: Instant,
    },
}

/// What has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::accel) enum Turn {
    Dark,
    Light,
}

impl Detector {
    /// For this link.
    pub(in crate::accel) fn new(link: LinkId) -> Self {
        Self {
            link,
            state: State::Resting,
            last_sign: None,
            gone: None,
            pause: Duration::ZERO,
            packets: None,
            next_sequence: 0,
            asked: VecDeque::new(),
            rtt: None,
            smoothed: None,
            blackouts: 0,
            dark: Duration::ZERO,
        }
    }

    /// Something came over the link, or must have.
    pub(in crate::accel) fn on_sign(&mut self, now: Instant, outputs: &mut VecDeque<Output>) -> Option<Turn> {
        if self.smoothed.is_none() && self.asked.is_empty() {
            // How long a round trip to the gateway takes is to be known before it matters.
            self.ask(now, outputs);
        }
        if let Some(last) = self.last_sign {
            let pause = now.since(last).min(LONGEST);
            self.pause = (self.pause * 7 + pause) / 8;
        }
        self.last_sign = Some(now);
        // What came before the carrier went may be heard of behind that.
        let is_of_before = self.is_dark() && self.gone.is_some_and(|gone| now.since(gone) < SILENCE);
        if is_of_before { None } else { self.lighten(now, 0) }
    }

    /// The link has brought so many packets.
    pub(in crate::accel) fn on_count(
        &mut self,
        now: Instant,
        packets: u64,
        outputs: &mut VecDeque<Output>,
    ) -> Option<Turn> {
        let before = self.packets.replace((packets, now));
        let before = before.filter(|(_, at)| self.last_sign.is_none_or(|sign| *at > sign));
        match (self.state, before) {
            (State::Counting { refuted, .. }, None) => self.state = State::Light { until: now + COUNTED, refuted },
            (State::Counting { refuted, .. }, Some((before, _))) if packets > before => {
                return self.lighten(now, refuted + 1);
            }
            (State::Counting { refuted, .. }, Some(_)) => {
                self.ask(now, outputs);
                self.state = State::Asked { refuted, until: now + self.patience() / 2, again: false };
            }
            _ => {}
        }
        None
    }

    /// The gateway answers.
    pub(in crate::accel) fn on_answer(&mut self, now: Instant, sequence: u16) -> Option<Turn> {
        let at = self.asked.iter().position(|(asked, _)| *asked == sequence)?;
        let (_, asked) = self.asked.remove(at)?;
        let rtt = now.since(asked);
        // What waited through a blackout is no measure.
        if !self.is_dark() {
            self.smoothed = Some(self.smoothed.map_or(rtt, |smoothed| (smoothed * 7 + rtt) / 8));
        }
        self.rtt = Some(rtt);
        match self.state {
            State::Asked { refuted, .. } | State::Counting { refuted, .. } => self.lighten(now, refuted + 1),
            State::Dark { .. } => self.lighten(now, 0),
            State::Resting | State::Light { .. } => None,
        }
    }

    /// The carrier came or went.
    pub(in crate::accel) fn on_carrier(
        &mut self,
        now: Instant,
        is_up: bool,
        outputs: &mut VecDeque<Output>,
    ) -> Option<Turn> {
        match (is_up, self.is_dark()) {
            (false, false) => {
                self.gone = Some(now);
                Some(self.darken(now, outputs))
            }
            (true, true) => {
                self.ask_in_the_dark(now, outputs);
                None
            }
            _ => None,
        }
    }

    /// Time has passed.
    pub(in crate::accel) fn tick(&mut self, now: Instant, outputs: &mut VecDeque<Output>) -> Option<Turn> {
        if self.deadline().is_none_or(|due| now < due) {
            return None;
        }
        match self.state {
            State::Resting => None,
            State::Light { refuted, .. } => {
                self.state = State::Counting { refuted, since: now };
                outputs.push_back(Output::Count { link: self.link });
                None
            }
            // A driver that cannot count: the gateway is asked all the same.
            State::Counting { refuted, .. } | State::Asked { refuted, again: false, .. } => {
                self.ask(now, outputs);
                self.state = State::Asked { refuted, until: now + self.patience() / 2, again: true };
                None
            }
            // Who has never answered says nothing by silence.
            State::Asked { refuted, .. } if self.smoothed.is_none() => self.lighten(now, refuted + 1),
            State::Asked { .. } => Some(self.darken(now, outputs)),
            State::Dark { .. } => {
                self.ask_in_the_dark(now, outputs);
                None
            }
        }
    }

    /// When to tick next.
    pub(in crate::accel) fn deadline(&self) -> Option<Instant> {
        match self.state {
            State::Resting => None,
            State::Light { until, .. } => Some(until),
            State::Counting { since, .. } => Some(since + GRACE),
            State::Asked { until, .. } => Some(until),
            State::Dark { next, .. } => Some(next),
        }
    }

    /// Whether nothing comes.
    pub(in crate::accel) const fn is_dark(&self) -> bool {
        matches!(self.state, State::Dark { .. })
    }

    /// How often it was dark.
    pub(in crate::accel) const fn blackouts(&self) -> u64 {
        self.blackouts
    }

    /// For how long, all together.
    pub(in crate::accel) fn dark(&self, now: Instant) -> Duration {
        match self.state {
            State::Dark { since, .. } => self.dark + now.since(since),
            _ => self.dark,
        }
    }

    /// The last round trip to the gateway.
    pub(in crate::accel) const fn rtt(&self) -> Option<Duration> {
        self.rtt
    }

    /// Whether the gateway was asked several times and has never answered.
    pub(in crate::accel) fn is_deaf(&self) -> bool {
        self.smoothed.is_none() && self.next_sequence >= DEAF
    }

    fn lighten(&mut self, now: Instant, refuted: u32) -> Option<Turn> {
        let was = self.state;
        let silence = SILENCE.max(self.pause * 2).saturating_mul(1 << refuted.min(REFUTED));
        self.state =
            if refuted > REFUTED { State::Resting } else { State::Light { until: now + silence, refuted } };
        let State::Dark { since, .. } = was else { return None };
        self.dark += now.since(since);
        Some(Turn::Light)
    }

    fn darken(&mut self, now: Instant, outputs: &mut VecDeque<Output>) -> Turn {
        self.blackouts += 1;
        self.state = State::Dark { since: now, next: now };
        self.ask_in_the_dark(now, outputs);
        Turn::Dark
    }

    fn ask_in_the_dark(&mut self, now: Instant, outputs: &mut VecDeque<Output>) {
        let State::Dark { since, .. } = self.state else { return };
        self.ask(now, outputs);
        let dark = now.since(since);
        let pause = RHYTHM.iter().find(|(until, _)| dark < *until).map_or(SLOWEST, |(_, pause)| *pause);
        self.state = State::Dark { since, next: now + pause };
    }

    fn ask(&mut self, now: Instant, outputs: &mut VecDeque<Output>) {
        self.next_sequence = self.next_sequence.wrapping_add(1);
        if self.asked.len() == REMEMBERED {
            self.asked.pop_front();
        }
        self.asked.push_back((self.next_sequence, now));
        outputs.push_back(Output::Ask { link: self.link, sequence: self.next_sequence });
    }

    fn patience(&self) -> Duration {
        self.smoothed.map_or(UNKNOWN, |smoothed| (smoothed * 2).max(PATIENCE))
    }
}

/// §3.2.
const SILENCE: Duration = Duration::from_millis(200);
/// Between two counts. chosen: a link on which something goes on brings a packet meanwhile.
const COUNTED: Duration = Duration::from_millis(40);
/// For two questions (facts, B).
const PATIENCE: Duration = Duration::from_millis(40);
/// chosen: a gateway that was never heard may be as far as a satellite's.
const UNKNOWN: Duration = Duration::from_millis(600);
/// chosen: a driver answers a count at once.
const GRACE: Duration = Duration::from_millis(20);
/// chosen: a pause is no measure of how often signs come.
const LONGEST: Duration = Duration::from_secs(1);
/// A suspicion that was refuted so often is not raised again before the next sign: 200 ms to 3.2 s.
const REFUTED: u32 = 4;
/// How often is asked in the dark: until then, with such a pause (20 ms: facts, B).
const RHYTHM: [(Duration, Duration); 2] =
    [(Duration::from_secs(10), Duration::from_millis(20)), (Duration::from_secs(60), Duration::from_millis(100))];
const SLOWEST: Duration = Duration::from_secs(1);
/// Questions. chosen: one when the first packet comes, and two suspicions with two each.
const DEAF: u16 = 5;
/// Questions whose answers are waited for. chosen: those of 1.3 s in the dark.
const REMEMBERED: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: LinkId = LinkId(0);

    /// A detector with its outputs and a clock.
    struct Bench {
        detector: Detector,
        outputs: VecDeque<Output>,
        now: Instant,
    }

    impl Bench {
        fn new() -> Self {
            let mut bench =
                Self { detector: Detector::new(LINK), outputs: VecDeque::new(), now: Instant::from_millis(1000) };
            bench.detector.on_sign(bench.now, &mut bench.outputs);
            bench.now += Duration::from_millis(10);
            assert_eq!(bench.questions(), [1], "the first sign asks how far the gateway is");
            assert_eq!(bench.detector.on_answer(bench.now, 1), None);
            bench
        }

        fn tick(&mut self) -> Option<Turn> {
            self.now = self.detector.deadline().unwrap();
            self.detector.tick(self.now, &mut self.outputs)
        }

        fn questions(&mut self) -> alloc::vec::Vec<u16> {
            let each = self.outputs.drain(..).filter_map(|output| match output {
                Output::Ask { sequence, .. } => Some(sequence),
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
        assert_eq!(bench.outputs.drain(..).collect::<alloc::vec::Vec<_>>(), [Output::Count { link: LINK }]);
        assert_eq!(bench.detector.on_count(bench.now, 7, &mut bench.outputs), None);
        assert_eq!(bench.tick(), None);
        assert_eq!(bench.now, Instant::from_millis(1240), "it is counted again");
        assert_eq!(bench.outputs.drain(..).collect::<alloc::vec::Vec<_>>(), [Output::Count { link: LINK }]);
        assert_eq!(bench.detector.on_count(bench.now, 7, &mut bench.outputs), None);
        assert_eq!(bench.tick(), None);
        assert_eq!(bench.tick(), Some(Turn::Dark));
        assert_eq!(bench.now, Instant::from_millis(1280));
        assert_eq!(bench.questions(), [2, 3, 4]);
        for n in 5..100 {
            assert_eq!(bench.tick(), None);
            assert_eq!(bench.questions(), [n]);
        }
        assert_eq!(bench.detector.on_answer(bench.now, 98), Some(Turn::Light));
        assert_eq!(bench.detector.blackouts(), 1);
        assert_eq!(bench.detector.dark(bench.now), Duration::from_millis(20 * 95));
    }

    #[test]
    fn a_count_that_grows_or_a_gateway_that_answers_refutes_it_and_it_rests_at_last() {
        let mut bench = Bench::new();
        let mut times = 0;
        while bench.detector.deadline().is_some() {
            assert_eq!(bench.tick(), None);
            let outputs: alloc::vec::Vec<Output> = bench.outputs.drain(..).collect();
            match *outputs.first().unwrap() {
                Output::Count { .. } if times < 2 => {
                    assert_eq!(bench.detector.on_count(bench.now, 7 + times, &mut bench.outputs), None);
                }
                Output::Count { .. } => {
                    assert_eq!(bench.detector.on_count(bench.now, 8, &mut bench.outputs), None);
                    let sequence = bench.questions()[0];
                    assert_eq!(bench.detector.on_answer(bench.now, sequence), None);
                }
                ref other => panic!("{other:?}"),
            }
            times += 1;
        }
        assert_eq!(times, 6);
        assert!(bench.now < Instant::from_millis(8000) && !bench.detector.is_dark());
    }

    #[test]
    fn a_carrier_that_goes_is_a_blackout_at_once() {
        let mut bench = Bench::new();
        assert_eq!(bench.detector.on_carrier(bench.now, false, &mut bench.outputs), Some(Turn::Dark));
        assert_eq!(bench.detector.on_carrier(bench.now, false, &mut bench.outputs), None);
        bench.questions();
        assert_eq!(bench.detector.on_carrier(bench.now, true, &mut bench.outputs), None);
        assert_eq!(bench.questions(), [3], "asked at once");
        assert_eq!(bench.detector.on_answer(bench.now, 3), Some(Turn::Light));
    }

    #[test]
    fn a_gateway_that_never_answers_is_no_blackout_and_a_carrier_that_goes_is() {
        let (mut detector, mut outputs) = (Detector::new(LINK), VecDeque::new());
        let mut now = Instant::from_millis(1000);
        detector.on_sign(now, &mut outputs);
        while let Some(due) = detector.deadline() {
            now = due;
            assert_eq!(detector.tick(now, &mut outputs), None);
            if outputs.drain(..).any(|output| matches!(output, Output::Count { .. })) {
                assert_eq!(detector.on_count(now, 7, &mut outputs), None);
            }
        }
        assert!(now < Instant::from_millis(30_000), "it rests: {now}");
        assert!(detector.is_deaf() && !detector.is_dark());
        assert_eq!(detector.on_carrier(now, false, &mut outputs), Some(Turn::Dark));
        assert_eq!(detector.on_carrier(now, true, &mut outputs), None);
        assert_eq!(detector.on_sign(now + Duration::from_millis(199), &mut outputs), None, "it came before");
        assert_eq!(
            detector.on_sign(now + Duration::from_millis(200), &mut outputs),
            Some(Turn::Light),
            "data comes"
        );
    }

    #[test]
    fn a_far_gateway_has_its_time() {
        let mut bench = Bench::new();
        bench.detector.smoothed = Some(Duration::from_millis(200));
        for _ in 0..2 {
            bench.tick();
            bench.detector.on_count(bench.now, 7, &mut bench.outputs);
        }
        let asked = bench.now;
        bench.tick();
        assert_eq!(bench.tick(), Some(Turn::Dark));
        assert_eq!(bench.now.since(asked), Duration::from_millis(400));
    }
}
