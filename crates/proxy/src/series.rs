//! Segments that follow one another, as one playing: where the player stands, and how much of the rendition is to come.
//!
//! In: which segments a player asks for, how much of each has come and was taken. Out: for the stream of each segment
//! what it must know of its player ([`Viewer::Part`]).
//!
//! 1. The clock of a series is the time of the video since the segment with which it began. A segment that was expected
//!    goes on with it; any other one is a seek, which begins it anew.
//! 2. The player is the same model as a film's, with milliseconds in the place of bytes, because the size of a segment is
//!    known only when it comes. It starts with a second of the video, and has played no more than it has taken.
//! 3. What follows a segment is its time, by the playlist, at the mean rate of those that have come, and a tenth to be
//!    sure; half as much again where the player may choose between renditions, so that it finds the links no slower than
//!    it would without a rest. Of a live playlist nobody knows the rest: the next [`HORIZON`] counts.
//! 4. What is learnt of links is of the player ([`Viewing`]), not of a segment, which is over before it knows anything.
//!
//! One stream over all segments was not used: each is a resource with a size, a validator and redirects of its own, and
//! that is what a download is.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::{Rc, Weak};

use marline_core::playback::{BufferThresholds, MediaProfile, Player, PlayerState};
use marline_core::stream::{PlayerInput, Stream};
use marline_core::units::{Bitrate, DataSize, Duration, Instant};

use super::lines::Lines;
use super::pieces::{Piece, Spot};

/// All that one player plays from playlists.
#[derive(Debug, Default)]
pub(super) struct Viewing {
    pub(super) lines: RefCell<Lines>,
    series: RefCell<BTreeMap<(String, usize), Rc<Series>>>,
}

/// One rendition after the other of what belongs together: the pictures, or the sound.
#[derive(Debug, Default)]
pub(super) struct Series(RefCell<Playing>);

#[derive(Debug, Default)]
struct Playing {
    player: Option<Player>,
    /// Where the segments begin that may come next, and how much time follows each; none: nobody knows.
    expected: BTreeMap<Key, (Duration, Option<Duration>)>,
    parts: BTreeMap<Duration, Rc<Part>>,
    /// What has come whole: bytes and their time.
    known: (u64, Duration),
    choice: bool,
    /// The end of the last segment of all.
    ends: Option<Duration>,
    seen: Instant,
}

type Key = (String, Option<(u64, u64)>);

/// One segment of a series.
#[derive(Debug)]
pub(super) struct Part {
    series: Weak<Series>,
    at: Duration,
    lasts: Duration,
    follows: Option<Duration>,
    /// Bytes that are here in order, and that the player has taken; all there are, once that is known.
    got: Cell<u64>,
    taken: Cell<u64>,
    len: Cell<Option<u64>>,
}

/// How a series stands, for people.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Standing {
    pub(super) state: PlayerState,
    pub(super) buffer: Duration,
    pub(super) stalls: u32,
    pub(super) rate: Bitrate,
}

impl Viewing {
    /// The series of a playlist (or of one of several that the player chooses between) and a set of renditions.
    pub(super) fn series(&self, family: &str, set: usize) -> Rc<Series> {
        let mut all = self.series.borrow_mut();
        if all.len() >= MOST {
            all.clear();
        }
        Rc::clone(all.entry((family.to_owned(), set)).or_default())
    }

    /// The memory it takes up, in bytes.
    pub(super) fn size(&self) -> usize {
        let all = self.series.borrow();
        let series = all.iter().map(|((family, _), series)| {
            let playing = series.0.borrow();
            let urls = playing.expected.keys().map(|(url, _)| url.len() + ENTRY);
            family.len() + ENTRY + playing.parts.len() * (size_of::<Part>() + ENTRY) + urls.sum::<usize>()
        });
        size_of::<Self>() + self.lines.borrow().size() + series.sum::<usize>() + all.len() * size_of::<Playing>()
    }

    /// A segment is asked for, and these may follow it.
    pub(super) fn asks(
        &self,
        series: &Rc<Series>,
        now: Instant,
        (piece, spot): (&Piece, Spot),
        next: &[Piece],
        choice: bool,
    ) -> Rc<Part> {
        let (part, seeks) = series.asks(now, (piece, spot), next, choice);
        if seeks {
            self.lines.borrow_mut().wake();
        }
        part
    }

    /// What the stream of a part should hear that stands as it does.
    pub(super) fn news(
        &self,
        part: &Part,
        now: Instant,
        from: u64,
        total: Option<u64>,
        stream: &Stream,
    ) -> Option<PlayerInput> {
        let own = part.series.upgrade()?;
        let others = self
            .series
            .borrow()
            .values()
            .filter(|other| !Rc::ptr_eq(other, &own))
            .map(|other| other.needs(now))
            .sum();
        own.news(part, now, (from, total), others, stream)
    }
}

impl Series {
    fn asks(
        self: &Rc<Self>,
        now: Instant,
        (piece, spot): (&Piece, Spot),
        next: &[Piece],
        choice: bool,
    ) -> (Rc<Part>, bool) {
        let mut playing = self.0.borrow_mut();
        playing.look(now);
        let known = playing.expected.get(&key(piece)).map(|(at, _)| *at);
        let here =
            known.filter(|at| playing.player.as_ref().is_some_and(|player| player.position() <= *at + spot.lasts));
        let seeks = here.is_none();
        if seeks {
            let (known, choice) = (playing.known, playing.choice);
            *playing = Playing { known, choice, player: Some(model(now)), ..Playing::default() };
        }
        let at = here.unwrap_or_default();
        playing.expected.clear();
        let (mut begins, mut follows) = (at, spot.left);
        playing.expected.insert(key(piece), (begins, follows));
        begins += spot.lasts;
        for next in next {
            follows = follows.map(|left| left.saturating_sub(next.duration));
            playing.expected.insert(key(next), (begins, follows));
            begins += next.duration;
        }
        (playing.choice, playing.seen) = (choice, now);
        playing.ends = spot.left.map(|left| at + spot.lasts + left);
        let position = playing.player.as_ref().map_or(Duration::ZERO, Player::position);
        playing.parts.retain(|_, part| part.at + part.lasts >= position);
        let follows = spot.left;
        let part = playing.parts.entry(at).or_insert_with(|| Rc::new(Part::new(self, at, spot.lasts, follows)));
        (Rc::clone(part), seeks)
    }

    /// A segment that is fetched before it is asked for; none: it does not follow what was.
    pub(super) fn ahead(self: &Rc<Self>, piece: &Piece) -> Option<Rc<Part>> {
        let mut playing = self.0.borrow_mut();
        let (at, follows) = *playing.expected.get(&key(piece))?;
        let part = playing.parts.entry(at).or_insert_with(|| Rc::new(Part::new(self, at, piece.duration, follows)));
        Some(Rc::clone(part))
    }

    /// How it stands; none: nothing was asked for.
    pub(super) fn standing(&self, now: Instant) -> Option<Standing> {
        let mut playing = self.0.borrow_mut();
        playing.look(now);
        let player = playing.player.as_ref()?;
        let (mut state, buffer, mut stalls) = (player.state(), player.buffered_time(), player.stalls());
        // With everything played it waits for nothing.
        if state == PlayerState::Buffering && playing.ends.is_some_and(|end| player.position() >= end) {
            (state, stalls) = (PlayerState::Ended, stalls.saturating_sub(1));
        }
        Some(Standing { state, buffer, stalls, rate: playing.rate().unwrap_or_default() })
    }

    /// What it needs over the same links, if anybody plays it.
    fn needs(&self, now: Instant) -> Bitrate {
        let playing = self.0.borrow();
        playing.rate().filter(|_| now.since(playing.seen) < ACTIVE).unwrap_or_default()
    }

    fn news(
        &self,
        part: &Part,
        now: Instant,
        (from, total): (u64, Option<u64>),
        others: Bitrate,
        stream: &Stream,
    ) -> Option<PlayerInput> {
        let mut playing = self.0.borrow_mut();
        playing.look(now);
        // Of another playing, before a seek.
        playing.parts.get(&part.at).filter(|own| std::ptr::eq(own.as_ref(), part) && !part.lasts.is_zero())?;
        let own_rate = match part.len.get() {
            Some(len) if playing.known.1.is_zero() => Some(DataSize::from_bytes(len) / part.lasts),
            _ => playing.rate(),
        };
        // Before anything is known of sizes nothing was let rest.
        let rate = own_rate?;
        let len = part.len.get().unwrap_or((rate * part.lasts).bytes()).max(1);
        let rest = total.unwrap_or(from + len).saturating_sub(from + len);
        let pieces = [(TICK, from), (part.lasts, len), (TICK, rest)];
        let video = MediaProfile::variable(pieces.map(|(time, size)| (time, DataSize::from_bytes(size)))).ok()?;
        let plays_on = part.follows.unwrap_or(HORIZON);
        let margin = if playing.choice { 15 } else { 11 };
        let later =
            playing.parts.range(part.at + TICK..).map(|(_, later)| DataSize::from_bytes(later.got.get())).sum();
        let beyond = ((rate + others) * plays_on).bytes() / 10 * margin;
        let beyond = DataSize::from_bytes(beyond) - later;
        let player = playing.player.as_ref()?;
        let (lead, position) =
            (part.at.saturating_sub(player.position()), player.position().saturating_sub(part.at).min(part.lasts));
        let plays = player.state() == PlayerState::Playing;
        let low = video.mean_rate() * Duration::from_secs(1);
        if let Some(seen) = stream.player().filter(|seen| *seen.profile() == video) {
            let runs = lead + video.time_at(from + part.got.get()).saturating_sub(position);
            let apart =
                seen.buffered_time().abs_diff(runs) > WORTH || (seen.state() == PlayerState::Playing) != plays;
            let other = stream.following_bytes().bytes().abs_diff(beyond.bytes()) > beyond.bytes() / 20;
            if !(apart || other) {
                return None;
            }
        }
        Some(PlayerInput::MediaSegment {
            video,
            player: BufferThresholds { low, high: None },
            lead_time: lead,
            position,
            is_playing: plays,
            following_bytes: beyond,
            following_time: plays_on,
        })
    }
}

impl Playing {
    /// What has come and was taken by now.
    fn look(&mut self, now: Instant) {
        let Some(player) = &mut self.player else { return };
        let reached = |amount: fn(&Part) -> u64| {
            let mut upto = Duration::ZERO;
            for part in self.parts.values().skip_while(|part| part.at + part.lasts < player.position()) {
                if upto != Duration::ZERO && part.at != upto {
                    break;
                }
                let share = part.len.get().map_or(0.0, |len| amount(part) as f64 / len.max(1) as f64).min(1.0);
                upto = part.at + part.lasts.mul_f64(share);
                if share < 1.0 {
                    break;
                }
            }
            upto
        };
        let (came, taken) = (reached(|part| part.got.get()), reached(|part| part.taken.get()));
        player.on_arrival(now, came.as_millis() as u64);
        if came > taken && player.position() > taken && player.state() == PlayerState::Playing {
            player.on_report(now, taken, true);
        }
    }

    fn rate(&self) -> Option<Bitrate> {
        let (bytes, time) = self.known;
        (!time.is_zero()).then(|| DataSize::from_bytes(bytes) / time)
    }
}

impl Part {
    fn new(series: &Rc<Series>, at: Duration, lasts: Duration, follows: Option<Duration>) -> Self {
        let series = Rc::downgrade(series);
        Self { series, at, lasts, follows, got: Cell::new(0), taken: Cell::new(0), len: Cell::new(None) }
    }

    /// How much of it has come in order, and was taken, of the bytes that its answer is of.
    pub(super) fn came(&self, span: &Range<u64>, total: Option<u64>, (taken, ready): (u64, u64)) {
        let end = total.map_or(span.end, |total| span.end.min(total));
        let len = (end != u64::MAX).then(|| end.saturating_sub(span.start));
        self.moved(taken.saturating_sub(span.start), (taken + ready).saturating_sub(span.start), len);
    }

    /// The player has taken so much of it, and that is all if so.
    pub(super) fn is_taken(&self, bytes: u64, all: bool) {
        self.moved(bytes, bytes, all.then_some(bytes));
    }

    fn moved(&self, taken: u64, got: u64, len: Option<u64>) {
        let was_there = self.is_there();
        self.len.set(len.or(self.len.get()));
        self.taken.set(self.taken.get().max(taken));
        self.got.set(self.got.get().max(got));
        if self.is_there()
            && !was_there
            && let Some(series) = self.series.upgrade()
        {
            let mut playing = series.0.borrow_mut();
            let (bytes, time) = &mut playing.known;
            if *time > LATELY {
                (*bytes, *time) = (*bytes / 2, *time / 2);
            }
            *bytes += self.got.get();
            *time += self.lasts;
        }
    }

    fn is_there(&self) -> bool {
        self.len.get().is_some_and(|len| self.got.get() >= len)
    }
}

fn key(piece: &Piece) -> Key {
    (piece.url.to_string(), piece.span.as_ref().map(|span| (span.start, span.end)))
}

/// A player whose bytes are milliseconds of any video.
fn model(now: Instant) -> Player {
    let (millis, low) = (Bitrate::from_bits_per_sec(8000), DataSize::from_bytes(1000));
    let video = MediaProfile::constant(millis, LONGEST).expect("a month has some milliseconds");
    Player::new(video, BufferThresholds { low, high: None }, now)
}

/// Of a live playlist so much is taken to be still to come. chosen: what a radio's tail costs is worth it.
const HORIZON: Duration = Duration::from_secs(60);
/// A mean rate is of about so much: renditions change.
const LATELY: Duration = Duration::from_secs(60);
const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);
/// A rendition that nobody asks for is not played. chosen: a player with a full buffer asks within a segment's time.
const ACTIVE: Duration = Duration::from_secs(30);
/// A stream's model may be this far off before it is told.
const WORTH: Duration = Duration::from_millis(250);
/// A time for bytes that are no part of it.
const TICK: Duration = Duration::from_nanos(1);
/// chosen: more than a player plays at once.
const MOST: usize = 50;
/// About what an entry of a map takes up beside its text.
const ENTRY: usize = 64;

#[cfg(test)]
mod tests {
    use marline_core::stream::Config;
    use url::Url;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn piece(n: u64) -> Piece {
        Piece { url: Url::parse(&format!("http://h/{n}")).unwrap(), span: None, duration: SECOND * 2 }
    }

    /// Asks for a segment of twenty.
    fn asks(viewing: &Viewing, series: &Rc<Series>, now: Instant, n: u64, ends: bool) -> Rc<Part> {
        let next: Vec<Piece> = (n + 1..20).take(3).map(piece).collect();
        let left = ends.then_some(SECOND * 2 * (19 - n as u32));
        viewing.asks(series, now, (&piece(n), Spot { lasts: SECOND * 2, left }), &next, false)
    }

    fn told(viewing: &Viewing, part: &Part, now: Instant) -> (Duration, Duration, bool, u64, Duration) {
        let stream = Stream::new(Config::default());
        match viewing.news(part, now, 0, None, &stream) {
            Some(PlayerInput::MediaSegment {
                lead_time: lead,
                position,
                is_playing: plays,
                following_bytes: beyond,
                following_time: plays_on,
                ..
            }) => (lead, position, plays, beyond.bytes(), plays_on),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_segment_knows_what_the_player_has_and_what_follows() {
        let viewing = Viewing::default();
        let series = viewing.series("list", 0);
        let first = asks(&viewing, &series, at(0), 0, true);
        first.came(&(0..1000), None, (0, 100));
        assert_eq!(told(&viewing, &first, at(100)), (Duration::ZERO, Duration::ZERO, false, 20_900, SECOND * 38));
        first.came(&(0..1000), None, (1000, 0));
        // It plays from here on.
        assert_eq!(series.standing(at(1000)).unwrap().state, PlayerState::Playing);
        let second = series.ahead(&piece(1)).unwrap();
        let third = series.ahead(&piece(2)).unwrap();
        second.came(&(0..2000), None, (0, 1000));
        assert!(series.ahead(&piece(9)).is_none());
        // 1000 bytes for two seconds, 36 s to come, a tenth to be sure.
        assert_eq!(told(&viewing, &second, at(1500)), (SECOND * 3 / 2, Duration::ZERO, true, 19_800, SECOND * 36));
        assert_eq!(told(&viewing, &third, at(1500)).0, SECOND * 7 / 2);
        // Half of the second one is there, and none of it was taken.
        assert_eq!(series.standing(at(3500)).unwrap().buffer, SECOND);
        assert!(Rc::ptr_eq(&asks(&viewing, &series, at(3600), 1, true), &second), "it was expected");
        // Another one is a seek, which all links serve.
        viewing.lines.borrow_mut().rest("lte", true);
        let far = asks(&viewing, &series, at(3700), 15, true);
        assert_eq!(told(&viewing, &far, at(3700)), (Duration::ZERO, Duration::ZERO, false, 4400, SECOND * 8));
        assert!(!viewing.lines.borrow().rests("lte"));
        let last = asks(&viewing, &series, at(4000), 19, true);
        last.came(&(0..1000), None, (1000, 0));
        let standing = |millis| series.standing(at(millis)).map(|standing| (standing.state, standing.stalls));
        assert_eq!(
            (standing(4500), standing(9000)),
            (Some((PlayerState::Playing, 0)), Some((PlayerState::Ended, 0)))
        );
        let stream = Stream::new(Config::default());
        assert_eq!(viewing.news(&second, at(3700), 0, None, &stream), None, "it is of no use any more");
    }

    #[test]
    fn of_a_live_playlist_the_next_minute_counts_and_of_sound_beside_it_too() {
        let viewing = Viewing::default();
        let (pictures, sound) = (viewing.series("list", 0), viewing.series("list", 1));
        let part = asks(&viewing, &pictures, at(0), 0, false);
        part.came(&(0..1000), None, (1000, 0));
        assert_eq!(told(&viewing, &part, at(0)).3, 500 * 60 / 10 * 11);
        let other = asks(&viewing, &sound, at(0), 0, false);
        other.came(&(0..100), None, (100, 0));
        assert_eq!(told(&viewing, &part, at(0)).3, 550 * 60 / 10 * 11);
        assert_eq!(told(&viewing, &part, at(40_000)).3, 500 * 60 / 10 * 11, "nobody plays that any more");
    }
}
