//! Hold-back: one longer wait at the start, where the links cannot carry a video while it plays.
//!
//! In: what is known of the video, what has come of it, what the links promise. Out: how far the player is served.
//!
//! 1. A real player starts when it likes, and a browser with next to nothing. So it is held before its first picture or
//!    sound: it gets the container's head, from which the video is known, and nothing behind that.
//! 2. It is let go as soon as the bytes come faster than they would be played and [`CUSHION`] of the video is there in
//!    order, well within a second over links that are good enough: pieces of several links do not come evenly, and who
//!    starts with nothing stops at once. Otherwise it waits until all links are known, a few seconds.
//! 3. Then the whole rest is looked at ([`Profile::keeps_up`]). It is held only if it would stop for sure (by the rates
//!    that were seen and twice their doubt), and only if [`LONGEST`] is enough for it to play to its end in one go: a
//!    longer wait would save no stall. Once it is, it starts when the rates that were seen bring everything in time with
//!    [`MARGIN`] to spare: who has waited and stops all the same has waited for nothing.
//! 4. Never after a seek, never twice, never without a container's word, and not with `--start fast`.
//!
//! The core's own hold-back (at the low threshold of a player that it models) was not used: what a real player has got it
//! has, and no model keeps it from starting with that.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::task::{Context, Waker};

use marline_core::playback::{MediaProfile, Timing};
use marline_core::stream::RateForecast;
use marline_core::units::{Bitrate, DataSize, Duration, Instant};

use super::session::Session;

/// Whether a player that the links cannot carry is held back at its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Start {
    /// One longer wait instead of several.
    #[default]
    Smooth,
    /// At once, whatever comes.
    Fast,
}

/// The word is no start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no start: smooth or fast")]
pub struct UnknownStart(String);

impl std::str::FromStr for Start {
    type Err = UnknownStart;
    fn from_str(word: &str) -> Result<Self, UnknownStart> {
        match word {
            "smooth" => Ok(Self::Smooth),
            "fast" => Ok(Self::Fast),
            _ => Err(UnknownStart(word.to_owned())),
        }
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Hold {
    state: RefCell<State>,
    waiting: RefCell<Vec<Waker>>,
}

#[derive(Debug)]
enum State {
    /// Nothing of the video itself has been served. How much was read beyond its beginning by answers that began there.
    Before { elsewhere: u64 },
    /// Nothing from this offset on is served. `chosen`: because it would stop for sure, not only until that is known.
    Held { at: u64, since: Instant, came: VecDeque<(Instant, u64)>, chosen: bool },
    /// It has begun.
    Over,
}

/// What is known of a video that is held.
pub(super) struct Seen<'a> {
    pub(super) video: &'a MediaProfile,
    /// Everything before it is here.
    pub(super) frontier: u64,
    /// All bytes that are here, those beyond a gap as well.
    pub(super) came: u64,
    /// No more can be held.
    pub(super) full: bool,
    pub(super) promise: Option<RateForecast>,
}

/// What follows from it.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Verdict {
    /// It goes on waiting: how long yet, if that is known; what the links bring, and what the video needs.
    Waits { waited: Duration, yet: Option<Duration>, brings: Bitrate, needs: Bitrate },
    /// It starts, after this time.
    Starts(Duration),
}

impl Hold {
    pub(super) fn new(start: Start) -> Self {
        let state = if start == Start::Smooth { State::Before { elsewhere: 0 } } else { State::Over };
        Self { state: RefCell::new(state), waiting: RefCell::default() }
    }

    /// Whether it is held now.
    pub(super) fn is_held(&self) -> bool {
        matches!(*self.state.borrow(), State::Held { .. })
    }

    /// Whether an answer that began at `from` is held.
    pub(super) fn holds(&self, from: u64) -> bool {
        matches!(*self.state.borrow(), State::Held { at, .. } if from <= at)
    }

    /// Whether there is nothing left to hold.
    pub(super) fn is_over(&self) -> bool {
        matches!(*self.state.borrow(), State::Over)
    }

    /// How many of `len` bytes at `at` may go to the player, in an answer that began at `from`. `media`: where the video
    /// itself begins, once it is known; before that nothing is held.
    pub(super) fn room(&self, now: Instant, from: u64, at: u64, len: u64, media: Option<u64>) -> u64 {
        let mut state = self.state.borrow_mut();
        match &mut *state {
            State::Over => len,
            State::Held { at: held, .. } if from <= *held => held.saturating_sub(at).min(len),
            State::Held { .. } => len,
            State::Before { elsewhere } => match media {
                Some(media) if from <= media => {
                    if at + len > media {
                        *state = State::Held { at: media, since: now, came: VecDeque::new(), chosen: false };
                    }
                    media.saturating_sub(at).min(len)
                }
                Some(_) => {
                    *elsewhere += len;
                    if *elsewhere > INDEX {
                        *state = State::Over;
                    }
                    len
                }
                None => len,
            },
        }
    }

    /// Whoever waits for more room is called when there is some.
    pub(super) fn wait(&self, cx: &Context<'_>) {
        let mut waiting = self.waiting.borrow_mut();
        if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            waiting.push(cx.waker().clone());
        }
    }

    /// Looks at a video that is held; none: none is.
    pub(super) fn look(&self, now: Instant, seen: &Seen<'_>) -> Option<Verdict> {
        let verdict = match &mut *self.state.borrow_mut() {
            State::Held { since, came, chosen, .. } => {
                while came.len() > 1 && came.get(1).is_some_and(|(at, _)| now.since(*at) >= WINDOW) {
                    came.pop_front();
                }
                came.push_back((now, seen.came));
                let verdict = judge(now, *since, *chosen, came, seen);
                *chosen |= matches!(verdict, Verdict::Waits { yet: Some(_), .. });
                verdict
            }
            _ => return None,
        };
        if matches!(verdict, Verdict::Starts(_)) {
            self.release();
        }
        Some(verdict)
    }

    /// The player is served from now on.
    pub(super) fn release(&self) {
        *self.state.borrow_mut() = State::Over;
        self.look_again();
    }

    /// Calls whoever waits.
    pub(super) fn look_again(&self) {
        self.waiting.borrow_mut().drain(..).for_each(Waker::wake);
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Waits { yet, brings, needs, .. } => {
                f.write_str("held back: ")?;
                if let Some(yet) = yet {
                    write!(f, "{:.0} s expected, ", yet.as_secs_f64().ceil())?;
                }
                let (brings, needs) = (brings.as_mbps_f64(), needs.as_mbps_f64());
                write!(f, "the links bring {brings:.1} of {needs:.1} Mbit/s")
            }
            Self::Starts(waited) => {
                write!(f, "ranges over all links; the start was held back for {:.1} s", waited.as_secs_f64())
            }
        }
    }
}

impl Session {
    /// How many of `len` bytes at `at` may go to the player now, in an answer that began at `from`.
    pub(super) fn room(&self, from: u64, at: u64, len: u64) -> u64 {
        // Segments of a list are no video of their own.
        if self.hold.is_over() || self.most.get() != DataSize::MAX {
            return len;
        }
        let was_held = self.hold.is_held();
        let media = self.watching.borrow().media(self.total());
        let room = self.hold.room(self.now(), from, at, len, media);
        if self.hold.is_held() && !was_held {
            self.watching.borrow_mut().hold(self.now(), true);
        }
        room
    }

    /// Looks at whether an answer should go on waiting, with so much room for what waits; none: it does not wait.
    pub(super) fn judge(&self, id: u64, promise: Option<RateForecast>, window: DataSize) -> Option<Verdict> {
        let (taken, ready, beyond) = {
            let plays = self.plays.borrow();
            let (span, reader) = plays.get(&id)?;
            reader.upgrade().filter(|_| self.hold.holds(span.start))?.held()
        };
        let verdict = {
            let watching = self.watching.borrow();
            let came = taken + ready + beyond;
            let full = DataSize::from_bytes(ready + beyond) + ALL_BUT >= window;
            let seen = Seen { video: watching.video()?, frontier: taken + ready, came, full, promise };
            self.hold.look(self.now(), &seen)?
        };
        if matches!(verdict, Verdict::Starts(_)) {
            self.let_go();
        }
        Some(verdict)
    }

    /// The player is served.
    pub(super) fn let_go(&self) {
        self.hold.release();
        self.watching.borrow_mut().hold(self.now(), false);
    }
}

fn judge(now: Instant, since: Instant, chosen: bool, came: &VecDeque<(Instant, u64)>, seen: &Seen<'_>) -> Verdict {
    let waited = now.since(since);
    let (video, frontier) = (seen.video, seen.frontier);
    let lacks = |rate: Bitrate, margin: Duration| match video.timing_at_rate(frontier, rate, Duration::ZERO) {
        Timing::Spare(spare) => margin.saturating_sub(spare),
        Timing::Late(late) => late.saturating_add(margin),
    };
    let late = |rate: Bitrate| lacks(rate, Duration::ZERO);
    let (first, had) = came.front().copied().unwrap_or((now, seen.came));
    let pace = DataSize::from_bytes(seen.came.saturating_sub(had)) / now.since(first).max(TICK);
    let known = seen.promise;
    let brings = known.map_or(pace, |promise| promise.rate);
    let yet = known.map(|promise| {
        let is_sure = chosen || !late(promise.rate + promise.std_error * 2).is_zero();
        if is_sure { lacks(promise.rate, MARGIN) } else { Duration::ZERO }
    });
    let has_cushion = video.time_at(frontier) >= CUSHION.min(video.duration());
    let is_quick = !chosen && waited >= QUICK && has_cushion && late(pace - pace / 10).is_zero();
    let starts = seen.full
        || is_quick
        || match yet {
            Some(yet) => yet.is_zero() || waited.saturating_add(yet) > LONGEST,
            None => waited > UNKNOWN,
        };
    if starts { Verdict::Starts(waited) } else { Verdict::Waits { waited, yet, brings, needs: video.mean_rate() } }
}

/// The longest wait that is chosen freely.
const LONGEST: Duration = Duration::from_secs(30);
/// What is left of the video at its tightest point. chosen: as the core's own hold-back has it; over kernel TCP, where
/// rates are known to a hundredth or two and rather too low, a second more was only waited for.
const MARGIN: Duration = Duration::from_millis(300);
/// A rate is looked at for at least so long. chosen: four round trips of a good link.
const QUICK: Duration = Duration::from_millis(200);
/// What a player starts with. chosen: mpv, which starts with its first frame, then plays on over two links of 4 Mbit/s and
/// 20 and 50 ms a video of 6 Mbit/s; with less it stops within the first second.
const CUSHION: Duration = Duration::from_millis(500);
/// And forgotten after this.
const WINDOW: Duration = Duration::from_millis(1000);
const TICK: Duration = Duration::from_millis(1);
/// Links that are not known by then will not be soon.
const UNKNOWN: Duration = Duration::from_secs(8);
/// An answer that begins elsewhere and takes no more than this is for an index at the end of the file. chosen: the
/// index of an MP4 of an hour and a half.
const INDEX: u64 = 4 << 20;
/// A window with less room than that is full: a piece of a few links.
const ALL_BUT: DataSize = DataSize::from_kib(256);

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: u64 = 10_000;

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn mbps(rate: u64) -> Bitrate {
        Bitrate::from_mbps(rate)
    }

    /// A minute of 8 Mbit/s: a byte a microsecond.
    fn video() -> MediaProfile {
        MediaProfile::constant(mbps(8), Duration::from_secs(60)).unwrap()
    }

    /// Held from its first picture on, over links that bring so many Mbit/s and are known after five seconds: how it goes on.
    fn verdicts(rate: u64) -> (Option<Verdict>, Duration) {
        let (hold, video) = (Hold::new(Start::Smooth), video());
        assert_eq!(hold.room(at(0), 0, 0, 50_000, Some(HEAD)), HEAD);
        let mut known = None;
        for millis in (0..60_000).step_by(100) {
            let came = rate * millis * 125;
            let promise = (millis >= 5000).then(|| RateForecast { rate: mbps(rate), std_error: Bitrate::ZERO });
            let seen = Seen { video: &video, frontier: came, came, full: false, promise };
            match hold.look(at(millis), &seen).unwrap() {
                Verdict::Starts(waited) => return (known, waited),
                waits @ Verdict::Waits { yet: Some(_), .. } => known = known.or(Some(waits)),
                Verdict::Waits { .. } => {}
            }
        }
        panic!("never");
    }

    #[test]
    fn links_that_are_good_enough_start_at_once() {
        assert_eq!(verdicts(10), (None, Duration::from_millis(400)));
        assert_eq!(verdicts(40), (None, QUICK));
    }

    #[test]
    fn one_wait_is_as_long_as_it_must_be() {
        let (known, waited) = verdicts(6);
        // 60 MB at 6 Mbit/s are there after 80 s.
        let yet = Duration::from_secs(15) + MARGIN;
        assert_eq!(
            known,
            Some(Verdict::Waits {
                waited: Duration::from_secs(5),
                yet: Some(yet),
                brings: mbps(6),
                needs: mbps(8)
            })
        );
        assert!(waited.abs_diff(Duration::from_secs(20) + MARGIN) <= Duration::from_millis(100), "{waited:?}");
    }

    #[test]
    fn a_wait_that_would_save_nothing_is_none() {
        // 60 MB at 4 Mbit/s would take 60 s more.
        assert_eq!(verdicts(4), (None, Duration::from_secs(5)));
    }

    #[test]
    fn once_it_waits_neither_a_burst_nor_a_doubt_lets_it_start_too_early() {
        let (hold, video) = (Hold::new(Start::Smooth), video());
        hold.room(at(0), 0, 0, 50_000, Some(HEAD));
        let promise = |doubt| Some(RateForecast { rate: mbps(6), std_error: doubt });
        let look = |millis: u64, doubt, burst: u64| {
            let came = 6 * millis * 125 + burst;
            let seen = Seen { video: &video, frontier: came, came, full: false, promise: promise(doubt) };
            hold.look(at(millis), &seen).unwrap()
        };
        assert!(matches!(look(5000, Bitrate::ZERO, 0), Verdict::Waits { .. }));
        for millis in (5100..20_000).step_by(100) {
            let burst = if millis % 1000 == 0 { 300_000 } else { 0 };
            let verdict = look(millis, mbps(2), burst);
            assert!(matches!(verdict, Verdict::Waits { .. }), "{millis}: {verdict:?}");
        }
        assert!(matches!(look(20_400, mbps(2), 0), Verdict::Starts(_)));
    }

    #[test]
    fn the_head_passes_and_the_first_picture_does_not() {
        let hold = Hold::new(Start::Smooth);
        assert_eq!(hold.room(at(0), 0, 0, 4000, None), 4000);
        assert_eq!(hold.room(at(0), 0, 4000, 9000, Some(HEAD)), 6000);
        assert!(hold.is_held());
        assert_eq!(hold.room(at(1), 0, HEAD, 3000, Some(HEAD)), 0);
        // An index at the end of the file is served.
        assert_eq!(hold.room(at(2), 900_000, 900_000, 3000, Some(HEAD)), 3000);
        hold.release();
        assert_eq!(hold.room(at(3), 0, HEAD, 3000, Some(HEAD)), 3000);
    }

    #[test]
    fn who_begins_elsewhere_or_wants_no_wait_is_never_held() {
        let hold = Hold::new(Start::Smooth);
        for n in 0..=INDEX / 1000 {
            assert_eq!(hold.room(at(0), 1 << 30, n * 1000, 1000, Some(HEAD)), 1000);
        }
        assert!(hold.is_over());
        assert_eq!(hold.room(at(0), 0, HEAD, 1000, Some(HEAD)), 1000);
        assert_eq!(Hold::new(Start::Fast).room(at(0), 0, HEAD, 1000, Some(HEAD)), 1000);
        assert_eq!("fast".parse(), Ok(Start::Fast));
        assert!("Fast".parse::<Start>().is_err());
    }
}
