//! Startup gate: delays the start of playback once, if the links are too slow for the video, instead of stalling later.
//!
//! From the video's profile, the bytes that have arrived and the forecast of the links, it decides how many bytes the
//! player gets.
//!
//! 1. A real player starts when it likes, and a browser with almost no data. So it is held before its first picture or
//!    sound: it gets the container's head, from which the video is known, and nothing beyond.
//! 2. It is released as soon as the bytes arrive faster than they would be played, and [`MIN_START_BUFFER`] of the
//!    video has arrived in order. Over sufficient links that takes well under a second. Ranges of several links do not
//!    arrive evenly, so a player that starts without a buffer stalls at once. Otherwise the gate waits until the rates
//!    of all links are known, which takes a few seconds.
//! 3. Then the rest of the video is compared with the forecast ([`MediaProfile::timing_at_rate`]). The player is held
//!    only if it would certainly stall (at the forecast rate plus twice its standard error), and only if a delay of at
//!    most [`MAX_HOLD`] lets it play to the end without a stall: a longer delay would save none. Once this is decided,
//!    playback starts when the forecast rate delivers everything in time with [`START_MARGIN`] to spare, because a
//!    stall after a delay would make the delay pointless.
//! 4. Playback is never delayed after a seek, twice, without information from the container, or with `--start fast`.
//!
//! The low threshold of the modelled player ([`crate::playback::Player`]) cannot be used for this: a real player starts
//! with whatever data it gets, whatever its model does.

use alloc::borrow::ToOwned as _;
use alloc::collections::VecDeque;
use alloc::string::String;
use core::fmt;

use crate::playback::{MediaProfile, Timing};
use crate::stream::RateForecast;
use crate::units::{Bitrate, DataSize, Duration, Instant};

/// Whether the start of playback is delayed when the links are slower than the video.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum StartMode {
    /// One longer delay at the start instead of several stalls.
    #[default]
    Smooth,
    /// Start at once.
    Fast,
}

/// The name is not that of a [`StartMode`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a start mode; use smooth or fast")]
pub struct UnknownStartMode(String);

impl core::str::FromStr for StartMode {
    type Err = UnknownStartMode;
    fn from_str(name: &str) -> Result<Self, UnknownStartMode> {
        match name {
            "smooth" => Ok(Self::Smooth),
            "fast" => Ok(Self::Fast),
            _ => Err(UnknownStartMode(name.to_owned())),
        }
    }
}

/// The startup gate of one session.
#[derive(Debug)]
pub struct StartupGate {
    state: GateState,
}

#[derive(Debug)]
enum GateState {
    /// Nothing of the media data has been delivered. `index_bytes` counts what was read by responses that began beyond
    /// the start of the media data.
    Preroll { index_bytes: u64 },
    /// No byte from `held_from` on is delivered. `is_committed`: held because the player would stall for certain, not
    /// only until the forecast is known.
    Held { held_from: u64, since: Instant, samples: VecDeque<(Instant, u64)>, is_committed: bool },
    /// Playback has begun.
    Released,
}

/// State of a video that is held.
pub struct HeldVideo<'a> {
    /// Rate and duration of the video.
    pub profile: &'a MediaProfile,
    /// All bytes before this offset have arrived.
    pub in_order_end: u64,
    /// All bytes that have arrived, including those beyond a gap.
    pub received: u64,
    /// The window is full, so waiting longer brings no more data.
    pub is_full: bool,
    /// What the links are expected to deliver, once that is known.
    pub forecast: Option<RateForecast>,
}

/// The decision of the gate.
#[derive(Clone, PartialEq, Debug)]
pub enum StartDecision {
    /// Wait longer.
    Wait {
        /// How long playback has been delayed so far.
        waited: Duration,
        /// How long it will still be delayed; `None` while the rates of the links are not known.
        remaining: Option<Duration>,
        /// The rate of the links.
        supply: Bitrate,
        /// The mean rate of the video.
        demand: Bitrate,
    },
    /// Start playback, after this delay.
    Start(Duration),
}

impl StartupGate {
    /// A gate that is open from the start ([`StartMode::Fast`]), or closes at the first picture.
    pub fn new(start: StartMode) -> Self {
        let state =
            if start == StartMode::Smooth { GateState::Preroll { index_bytes: 0 } } else { GateState::Released };
        Self { state }
    }

    /// Whether the gate is closed now.
    pub fn is_held(&self) -> bool {
        matches!(self.state, GateState::Held { .. })
    }

    /// Whether the gate withholds bytes from a response that began at `from`.
    pub fn is_holding(&self, from: u64) -> bool {
        matches!(self.state, GateState::Held { held_from, .. } if from <= held_from)
    }

    /// Whether the gate is open for good.
    pub fn is_released(&self) -> bool {
        matches!(self.state, GateState::Released)
    }

    /// How many of `len` bytes at `offset` may go to the player, in a response that began at `from`. `media_start` is
    /// the offset of the media data, once it is known; before that, nothing is held.
    pub fn admit_bytes(&mut self, now: Instant, from: u64, offset: u64, len: u64, media_start: Option<u64>) -> u64 {
        match &mut self.state {
            GateState::Released => len,
            GateState::Held { held_from: limit, .. } if from <= *limit => limit.saturating_sub(offset).min(len),
            GateState::Held { .. } => len,
            GateState::Preroll { index_bytes } => match media_start {
                Some(media) if from <= media => {
                    if offset + len > media {
                        self.state = GateState::Held {
                            held_from: media,
                            since: now,
                            samples: VecDeque::new(),
                            is_committed: false,
                        };
                    }
                    media.saturating_sub(offset).min(len)
                }
                Some(_) => {
                    // The response began within the media data: the player reads an index at the end, or plays from
                    // there.
                    *index_bytes += len;
                    if *index_bytes > MAX_INDEX_BYTES {
                        self.state = GateState::Released;
                    }
                    len
                }
                None => len,
            },
        }
    }

    /// Decides about a video that is held; `None` if none is.
    pub fn poll_decision(&mut self, now: Instant, buffered: &HeldVideo<'_>) -> Option<StartDecision> {
        let decision = match &mut self.state {
            GateState::Held { since, samples, is_committed, .. } => {
                while samples.len() > 1 && samples.get(1).is_some_and(|(at, _)| now.since(*at) >= RATE_WINDOW) {
                    samples.pop_front();
                }
                samples.push_back((now, buffered.received));
                let decision = decide(now, *since, *is_committed, samples, buffered);
                *is_committed |= matches!(decision, StartDecision::Wait { remaining: Some(_), .. });
                decision
            }
            _ => return None,
        };
        if matches!(decision, StartDecision::Start(_)) {
            self.release();
        }
        Some(decision)
    }

    /// Opens the gate for good.
    pub fn release(&mut self) {
        self.state = GateState::Released;
    }
}

impl fmt::Display for StartDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wait { remaining, supply, demand, .. } => {
                f.write_str("held back: ")?;
                if let Some(wait) = remaining {
                    write!(f, "{:.0} s expected, ", libm::ceil(wait.as_secs_f64()))?;
                }
                let (supply_mbps, demand_mbps) = (supply.as_mbps_f64(), demand.as_mbps_f64());
                write!(f, "the links deliver {supply_mbps:.1} of {demand_mbps:.1} Mbit/s")
            }
            Self::Start(waited) => {
                write!(f, "ranges over all links; the start was held back for {:.1} s", waited.as_secs_f64())
            }
        }
    }
}

fn decide(
    now: Instant,
    since: Instant,
    is_committed: bool,
    samples: &VecDeque<(Instant, u64)>,
    buffered: &HeldVideo<'_>,
) -> StartDecision {
    let waited = now.since(since);
    let (video, in_order_end) = (buffered.profile, buffered.in_order_end);
    // How much later than now playback must start so that everything arrives in time at this rate, with this margin.
    let shortfall = |rate: Bitrate, margin: Duration| match video.timing_at_rate(in_order_end, rate, Duration::ZERO)
    {
        Timing::InTime(spare) => margin.saturating_sub(spare),
        Timing::Late(delay) => delay.saturating_add(margin),
    };
    let lateness = |rate: Bitrate| shortfall(rate, Duration::ZERO);
    let (first, received_then) = samples.front().copied().unwrap_or((now, buffered.received));
    let observed_rate =
        DataSize::from_bytes(buffered.received.saturating_sub(received_then)) / now.since(first).max(MIN_ELAPSED);
    let forecast = buffered.forecast;
    let supply = forecast.map_or(observed_rate, |forecast| forecast.rate);
    let remaining = forecast.map(|forecast| {
        let would_stall = is_committed || !lateness(forecast.rate + forecast.std_error * 2).is_zero();
        if would_stall { shortfall(forecast.rate, START_MARGIN) } else { Duration::ZERO }
    });
    // Early start: the observed rate minus a tenth keeps up with the video, and a minimum is buffered.
    let has_cushion = video.time_at(in_order_end) >= MIN_START_BUFFER.min(video.duration());
    let can_start_early = !is_committed
        && waited >= MIN_OBSERVATION
        && has_cushion
        && lateness(observed_rate - observed_rate / 10).is_zero();
    let can_start = buffered.is_full
        || can_start_early
        || match remaining {
            Some(wait) => wait.is_zero() || waited.saturating_add(wait) > MAX_HOLD,
            None => waited > FORECAST_TIMEOUT,
        };
    if can_start {
        StartDecision::Start(waited)
    } else {
        StartDecision::Wait { waited, remaining, supply, demand: video.mean_rate() }
    }
}

/// The longest deliberate delay.
const MAX_HOLD: Duration = Duration::from_secs(30);
/// Margin at the tightest point of the video. Our choice: as for the start delay of a stream. Over kernel TCP, whose rates
/// are known to one or two percent and rather underestimated, another second of margin only prolonged the delay.
const START_MARGIN: Duration = Duration::from_millis(300);
/// The shortest observation of a rate. Our choice: four RTTs of a good link.
const MIN_OBSERVATION: Duration = Duration::from_millis(200);
/// The minimum buffer at the start. Our choice: mpv, which starts with its first frame, then plays a video of 6 Mbit/s
/// without a stall over two links of 4 Mbit/s with 20 and 50 ms; with less it stalls within the first second.
const MIN_START_BUFFER: Duration = Duration::from_millis(500);
/// Time over which the rate of arriving bytes is observed; older samples are dropped.
const RATE_WINDOW: Duration = Duration::from_millis(1000);
const MIN_ELAPSED: Duration = Duration::from_millis(1);
/// If the links are not known by then, they will not be soon.
const FORECAST_TIMEOUT: Duration = Duration::from_secs(8);
/// A response that begins elsewhere and delivers no more than this is taken for an index at the end of the file.
/// Our choice: the index of an MP4 of one and a half hours.
const MAX_INDEX_BYTES: u64 = 4 << 20;
#[cfg(test)]
mod tests {
    use super::*;

    const HEAD_LEN: u64 = 10_000;

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn mbps(rate: u64) -> Bitrate {
        Bitrate::from_mbps(rate)
    }

    /// One minute at 8 Mbit/s, which is one byte per microsecond.
    fn video() -> MediaProfile {
        MediaProfile::constant(mbps(8), Duration::from_secs(60)).unwrap()
    }

    /// Runs the gate over links of this rate in Mbit/s, which are known after five seconds. Returns the first
    /// deliberate wait and the total delay.
    fn run_gate(rate: u64) -> (Option<StartDecision>, Duration) {
        let (mut gate, video) = (StartupGate::new(StartMode::Smooth), video());
        assert_eq!(gate.admit_bytes(at(0), 0, 0, 50_000, Some(HEAD_LEN)), HEAD_LEN);
        let mut first_wait = None;
        for millis in (0..60_000).step_by(100) {
            let received = rate * millis * 125;
            let forecast = (millis >= 5000).then(|| RateForecast { rate: mbps(rate), std_error: Bitrate::ZERO });
            let buffered =
                HeldVideo { profile: &video, in_order_end: received, received, is_full: false, forecast };
            match gate.poll_decision(at(millis), &buffered).unwrap() {
                StartDecision::Start(waited) => return (first_wait, waited),
                wait @ StartDecision::Wait { remaining: Some(_), .. } => first_wait = first_wait.or(Some(wait)),
                StartDecision::Wait { .. } => {}
            }
        }
        panic!("never");
    }

    #[test]
    fn sufficient_links_start_at_once() {
        assert_eq!(run_gate(10), (None, Duration::from_millis(400)));
        assert_eq!(run_gate(40), (None, MIN_OBSERVATION));
    }

    #[test]
    fn the_delay_is_as_short_as_possible() {
        let (known, waited) = run_gate(6);
        // 60 MB at 6 Mbit/s have arrived after 80 s.
        let remaining = Duration::from_secs(15) + START_MARGIN;
        assert_eq!(
            known,
            Some(StartDecision::Wait {
                waited: Duration::from_secs(5),
                remaining: Some(remaining),
                supply: mbps(6),
                demand: mbps(8)
            })
        );
        assert!(
            waited.abs_diff(Duration::from_secs(20) + START_MARGIN) <= Duration::from_millis(100),
            "{waited:?}"
        );
    }

    #[test]
    fn a_delay_that_would_not_prevent_a_stall_is_skipped() {
        // 60 MB at 4 Mbit/s would need 60 s more.
        assert_eq!(run_gate(4), (None, Duration::from_secs(5)));
    }

    #[test]
    fn a_committed_delay_is_not_shortened_by_bursts_or_uncertainty() {
        let (mut gate, video) = (StartupGate::new(StartMode::Smooth), video());
        gate.admit_bytes(at(0), 0, 0, 50_000, Some(HEAD_LEN));
        let forecast = |doubt| Some(RateForecast { rate: mbps(6), std_error: doubt });
        let mut decide = |millis: u64, doubt, burst: u64| {
            let received = 6 * millis * 125 + burst;
            let buffered = HeldVideo {
                profile: &video,
                in_order_end: received,
                received,
                is_full: false,
                forecast: forecast(doubt),
            };
            gate.poll_decision(at(millis), &buffered).unwrap()
        };
        assert!(matches!(decide(5000, Bitrate::ZERO, 0), StartDecision::Wait { .. }));
        for millis in (5100..20_000).step_by(100) {
            let burst = if millis % 1000 == 0 { 300_000 } else { 0 };
            let verdict = decide(millis, mbps(2), burst);
            assert!(matches!(verdict, StartDecision::Wait { .. }), "{millis}: {verdict:?}");
        }
        assert!(matches!(decide(20_400, mbps(2), 0), StartDecision::Start(_)));
    }

    #[test]
    fn the_container_head_passes_and_the_first_picture_is_held() {
        let mut gate = StartupGate::new(StartMode::Smooth);
        assert_eq!(gate.admit_bytes(at(0), 0, 0, 4000, None), 4000);
        assert_eq!(gate.admit_bytes(at(0), 0, 4000, 9000, Some(HEAD_LEN)), 6000);
        assert!(gate.is_held());
        assert_eq!(gate.admit_bytes(at(1), 0, HEAD_LEN, 3000, Some(HEAD_LEN)), 0);
        // An index at the end of the file is served.
        assert_eq!(gate.admit_bytes(at(2), 900_000, 900_000, 3000, Some(HEAD_LEN)), 3000);
        gate.release();
        assert_eq!(gate.admit_bytes(at(3), 0, HEAD_LEN, 3000, Some(HEAD_LEN)), 3000);
    }

    #[test]
    fn playback_that_begins_elsewhere_or_with_start_fast_is_never_held() {
        let mut gate = StartupGate::new(StartMode::Smooth);
        for n in 0..=MAX_INDEX_BYTES / 1000 {
            assert_eq!(gate.admit_bytes(at(0), 1 << 30, n * 1000, 1000, Some(HEAD_LEN)), 1000);
        }
        assert!(gate.is_released());
        assert_eq!(gate.admit_bytes(at(0), 0, HEAD_LEN, 1000, Some(HEAD_LEN)), 1000);
        assert_eq!(StartupGate::new(StartMode::Fast).admit_bytes(at(0), 0, HEAD_LEN, 1000, Some(HEAD_LEN)), 1000);
        assert_eq!("fast".parse(), Ok(StartMode::Fast));
        assert!("Fast".parse::<StartMode>().is_err());
    }
}
