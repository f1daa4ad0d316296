//! Marline's planner of a stream: each piece where it comes in time, and no radio awake that need not be.
//!
//! In: the links' seats and courses, the player's model, the radios' models. Out: orders to the download.
//!
//! 1. *Pieces.* A link gets its next piece before its pipe runs dry, as in a download. If the piece would be there
//!    before the first missing byte is due, it is taken from the front. Otherwise it is taken from so far ahead as the
//!    other links will have come by then: nothing waits behind a slow link (earliest delivery first). While the player
//!    waits, all that it waits for is due at once, and what follows is played from when that is there.
//! 2. *Rescue.* Where the byte that the player needs next would come too late from the link that owes it, the link that
//!    could bring it first is asked as well.
//! 3. *Rest.* Each half second the dearest link in use asks whether it should go on ([`super::thrift`]). The price of
//!    a byte is its radio's at the link's rate. If another link in use has been nearly gone before, none rests until the
//!    buffer would outlast that for [`OUTAGE`]: the spread of such a link's rate does not tell of its holes.
//! 4. *Wake.* When the buffer falls below a guard and the links in use are not sure to bring the rest in time, the
//!    cheapest resting link wakes, and above none rests below it. The guard is what a link takes to come up, what a fade
//!    would take of the buffer while the resting links alone carry the video, and longer during one: while the links in
//!    use bring less than a third of their mean.
//! 5. *Sleep.* When the window is full, all rest until a quarter of it is left, if that is longer than the tails: a
//!    radio that trickles at the video's rate never sleeps.
//! 6. *Hold-back.* If all links together will not bring the rest while it is played, and that is beyond doubt, the
//!    player would stop again and again, each time until its low threshold is reached. One longer wait at the start, at
//!    most 30 s, is shorter than all of them: it may start when the rest is to be expected in time, or as soon as what
//!    is in doubt is more than what was lacking at first.
//! 7. Never a stall to save energy: while the player waits, every link works. Where metered bytes are to be few, metered
//!    links rest from the beginning, and the very first wait calls them after [`PATIENCE`] only.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use super::thrift::{MARGIN, Question};
use super::{Expected, Minimise, Promise, Said, Stream, Why};
use crate::energy::Direction;
use crate::fetch::{FIRST_BITE, Seat, Span};
use crate::link::LinkId;
use crate::playback::{Player, State};
use crate::predict::{Course, Supply};
use crate::units::{Bitrate, DataSize, Energy, Instant};

/// What the planner remembers.
#[derive(Clone, Debug, Default)]
pub(super) struct Planner {
    links: BTreeMap<LinkId, Seen>,
    next_step: Instant,
    sated: bool,
    /// Since when the start is held back, and how much was lacking then.
    held: Option<(Instant, DataSize)>,
}

/// What is remembered of a link.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    course: Course,
    /// Bytes of the present step.
    got: DataSize,
    /// It had nothing to do for a moment of this step, which therefore says nothing of the link.
    paused: bool,
    /// How many whole steps it has been in use.
    steps: u32,
    /// It has been nearly gone for a second.
    failed: bool,
    rests: bool,
}

impl Planner {
    pub(super) fn on_bytes(&mut self, link: LinkId, len: DataSize) {
        self.links.entry(link).or_insert(Seen { paused: true, ..Seen::default() }).got += len;
    }

    /// An earlier run's word counts as much as this one's first steps.
    pub(super) fn expect(&mut self, expected: Expected) {
        let seen = self.links.entry(expected.link).or_insert(Seen { paused: true, ..Seen::default() });
        // A link of which only that is known whether it rested has no rate.
        let steps = if expected.rate.is_zero() { 0 } else { LEAST_STEPS };
        (0..steps).for_each(|_| seen.course.add(expected.rate));
        seen.rests = expected.rests;
    }

    /// A link of which nothing is known begins at rest.
    pub(super) fn begin_at_rest(&mut self, link: LinkId) -> bool {
        let is_new = !self.links.contains_key(&link);
        if is_new {
            self.links.insert(link, Seen { paused: true, rests: true, ..Seen::default() });
        }
        is_new
    }

    /// What this run can say of the links.
    pub(super) fn learnt(&self) -> Vec<Expected> {
        let known = self.links.iter().filter(|(_, seen)| seen.course.steps() > 0);
        known.map(|(link, seen)| Expected { link: *link, rate: seen.course.mean(), rests: seen.rests }).collect()
    }

    /// When it looks at the links again.
    pub(super) const fn next_step(&self) -> Instant {
        self.next_step
    }

    fn rests(&self, link: LinkId) -> bool {
        self.links.get(&link).is_some_and(|seen| seen.rests)
    }

    fn course(&self, link: LinkId) -> Course {
        self.links.get(&link).map(|seen| seen.course).unwrap_or_default()
    }

    fn pause(&mut self, link: LinkId) {
        if let Some(seen) = self.links.get_mut(&link) {
            seen.paused = true;
        }
    }
}

impl Stream {
    /// Gives the orders that are due. Tells whether there were any.
    pub(super) fn plan(&mut self) -> bool {
        let mut any = false;
        if self.step() {
            any = self.choose_rest();
        }
        while self.next_piece() || self.rescue() {
            self.note();
            any = true;
        }
        any
    }

    /// Each half second: how the links were. Tells whether one is over. It is looked at before the video is known, too.
    pub(super) fn step(&mut self) -> bool {
        if self.now < self.planner.next_step {
            return false;
        }
        let late = self.now.since(self.planner.next_step);
        let time = Course::STEP.saturating_add(late);
        self.planner.next_step = self.now + Course::STEP;
        for (link, seen) in &mut self.planner.links {
            if !seen.paused && !seen.rests && late < Course::STEP {
                seen.steps += 1;
                if seen.steps > SETTLES {
                    seen.course.add(seen.got / time);
                    seen.failed |=
                        seen.course.steps() >= LEAST_STEPS && seen.course.present() * FAILS < seen.course.mean();
                }
            }
            seen.got = DataSize::ZERO;
            seen.paused = seen.rests || self.fetch.seat(*link).is_none();
        }
        true
    }

    /// Rule 1. Tells whether anything was asked for.
    fn next_piece(&mut self) -> bool {
        let end = self.fetch.may_ask_upto().min(self.fetch.total().unwrap_or(u64::MAX));
        self.be_sated(end);
        let mut hungry: Vec<(LinkId, Seat)> = self
            .seats()
            .into_iter()
            .filter(|(_, seat)| !seat.wants.is_zero() && seat.ahead / seat.pace.max(SLOWEST) < MOST_AHEAD)
            .collect();
        hungry.sort_by_key(|(_, seat)| seat.ahead / seat.pace);
        for (link, seat) in hungry {
            let piece = (!self.planner.sated).then(|| self.piece(link, seat, end)).flatten();
            if piece.is_some_and(|piece| self.fetch.ask(seat, piece).is_some()) {
                return true;
            }
            self.planner.pause(link);
        }
        false
    }

    /// What this link should bring next; none: the others bring all of it sooner.
    fn piece(&self, link: LinkId, seat: Seat, end: u64) -> Option<Span> {
        let first = self.fetch.unasked(Span::new(self.delivered, end))?;
        let due = self.due(first.start);
        let batch = if due > FAR { BULK } else { SOON };
        let size =
            if seat.pace.is_zero() { FIRST_PIECE } else { seat.wants.max(seat.pace * batch).max(LEAST_PIECE) };
        let size = if due > FAR { size } else { size.min((seat.pace * BULK).max(LEAST_PIECE)) };
        let size = if first.start == self.delivered && seat.is_untried() { FIRST_BITE } else { size };
        let ready = |seat: &Seat| (seat.ahead / seat.pace).max(seat.floor).min(UNKNOWN);
        let comes_on = |seat: &Seat| ready(seat).saturating_add((size / seat.pace).min(UNKNOWN));
        let comes = comes_on(&seat);
        let others: Vec<(LinkId, Seat)> = self.seats().into_iter().filter(|(other, _)| *other != link).collect();
        // Of links that are as soon, one must be the first.
        let first_of_all = others.iter().all(|(other, seat)| (comes_on(seat), *other) > (comes, link));
        if comes.saturating_add(MARGIN) <= due || first_of_all {
            return Some(Span::at(first.start, first.len().min(size)));
        }
        let ahead: DataSize = others.iter().map(|(_, seat)| seat.pace * comes.saturating_sub(ready(seat))).sum();
        let grain = LEAST_PIECE.bytes();
        let from = first.start.saturating_add(ahead.bytes() / grain * grain);
        let gap = self.fetch.unasked(Span::new(from, end))?;
        Some(Span::at(gap.start, gap.len().min(size)))
    }

    /// For how long the byte at `offset` is not needed.
    fn due(&self, offset: u64) -> Duration {
        let Some(player) = self.player.as_ref() else { return Duration::ZERO };
        let due = player.deadline(offset).since(self.now);
        if player.state() != State::Buffering {
            return due;
        }
        let starts_at = player.decoded().saturating_add(self.config.player.low.bytes());
        if offset < starts_at {
            return Duration::ZERO;
        }
        let pace: Bitrate = self.seats().iter().map(|(_, seat)| seat.pace).sum();
        let waits = DataSize::from_bytes(starts_at.saturating_sub(self.delivered)) / pace.max(SLOWEST);
        due.saturating_add(waits.min(LONGEST_HOLD))
    }

    /// Rule 2. Tells whether anything was asked for.
    fn rescue(&mut self) -> bool {
        let runs_for = self.player.as_ref().map_or(Duration::ZERO, |player| match player.state() {
            State::Buffering => Duration::ZERO,
            State::Playing | State::Ended => player.runs_for(),
        });
        runs_for < GUARD && self.fetch.hasten(self.delivered, runs_for.saturating_sub(MARGIN))
    }

    /// Rules 3, 4 and 7. Tells whether anything changed.
    fn choose_rest(&mut self) -> bool {
        let Some(player) = self.player.as_ref() else { return false };
        match player.state() {
            State::Ended => return false,
            State::Buffering if self.may_wait(player) => return false,
            State::Buffering => return self.wake_all(Why::Buffering),
            State::Playing => {}
        }
        let last = player.deadline(u64::MAX).since(self.now).saturating_add(self.beyond.1);
        let runs_for = player.runs_for();
        let used = self.used();
        if used.is_empty() {
            // Before the first link is there, none is lost.
            return self.fetch.hopeful_links().next().is_some() && self.wake_all(Why::Lost);
        }
        let rest =
            self.fetch.missing(Span::new(self.delivered, self.fetch.total().unwrap_or(u64::MAX))) + self.beyond.0;
        if runs_for < self.guard(&used) {
            let others = self.supply(&used, last.saturating_sub(MARGIN / 2));
            let known = used.iter().all(|link| self.planner.course(*link).steps() >= LEAST_STEPS);
            let enough = if known { rest <= others.mean - others.spread } else { self.keeps_up(player, &used) };
            return !enough && self.wake_cheapest();
        }
        let Some(dear) = used.iter().copied().max_by_key(|link| (self.price(*link, self.mean(*link)), *link))
        else {
            return false;
        };
        let others: Vec<LinkId> = used.into_iter().filter(|link| *link != dear).collect();
        let known = |link: &LinkId| self.planner.course(*link).steps() >= LEAST_STEPS;
        if others.is_empty() || !known(&dear) || !others.iter().all(known) {
            return false;
        }
        let failed = |link: &LinkId| self.planner.links.get(link).is_some_and(|seen| seen.failed);
        if others.iter().any(failed) && runs_for < OUTAGE.min(last) {
            return false;
        }
        let course = self.planner.course(dear);
        let cheap = others.iter().map(|link| self.price(*link, self.mean(*link))).min().unwrap_or_default();
        // Where nothing would be saved, nothing rests.
        if self.price(dear, course.mean()) <= cheap {
            return false;
        }
        let question = Question {
            rest: rest - self.fetch.seat(dear).map(|seat| seat.ahead).unwrap_or_default(),
            others: self.supply(&others, last.saturating_sub(MARGIN)),
            price_now: self.price(dear, course.lately()) - cheap,
            price: self.price(dear, course.mean()) - cheap,
            rate: course.lately(),
            wake: self.tariff(dear).map(|tariff| tariff.one_packet()).unwrap_or_default(),
        };
        !question.goes_on() && self.set_rest(dear, true, Why::Cheapest)
    }

    /// Rules 4 and 7 where there is nothing to choose yet: a link that was let rest before this stream began must not be
    /// missed. Tells whether one wakes.
    pub(super) fn wake_in_time(&mut self) -> bool {
        // Links come up one after the other: at first none is lost.
        let is_young = self.now < Instant::ZERO + Course::STEP;
        if is_young || !self.planner.links.values().any(|seen| seen.rests) {
            return false;
        }
        let Some(player) = self.player.as_ref() else {
            let lost = self.used().is_empty() || self.now > Instant::ZERO + STRANGER;
            return lost && self.wake_all(Why::Lost);
        };
        if self.may_wait(player) && !self.used().is_empty() {
            return false;
        }
        let (plays, runs_for) = (player.state() == State::Playing, player.runs_for());
        match (plays, self.used().is_empty()) {
            (false, _) => self.wake_all(Why::Buffering),
            (true, true) => self.wake_all(Why::Lost),
            (true, false) => runs_for < GUARD && self.wake_cheapest(),
        }
    }

    /// Whether a player that has not begun waits a moment longer, so that metered links stay untouched.
    pub(super) fn may_wait(&self, player: &Player) -> bool {
        self.config.minimise == Minimise::MeteredBytes
            && player.first_picture().is_none()
            && self.now < Instant::ZERO + PATIENCE
    }

    /// Whether links that are not known yet bring the video as fast as it is played at present.
    fn keeps_up(&self, player: &Player, links: &[LinkId]) -> bool {
        let pace: Bitrate = links.iter().filter_map(|link| self.fetch.seat(*link)).map(|seat| seat.pace).sum();
        pace > player.profile().mean() + player.profile().mean() / 10
    }

    /// What all links that may be used bring together; none: one of them is not known yet.
    pub fn promise(&self) -> Option<Promise> {
        let links = self.fetch.hopeful_links().filter(|link| self.fetch.may_use(*link));
        let courses: Vec<Course> = links.map(|link| self.planner.course(link)).collect();
        let known = !courses.is_empty() && courses.iter().all(|course| course.steps() >= LEAST_STEPS);
        let second = Duration::from_secs(1);
        known.then(|| Promise {
            rate: courses.iter().map(Course::mean).sum(),
            doubt: courses.iter().map(|course| course.doubt(second) / second).sum(),
        })
    }

    /// Rule 6. How far the player may be served of what has come in order.
    pub(super) fn serves_upto(&mut self, frontier: u64) -> u64 {
        let Some(player) = self.player.as_ref().filter(|player| player.first_picture().is_none()) else {
            return frontier;
        };
        let starts_at = player.arrived().max(self.config.player.low.bytes().saturating_sub(1));
        if !self.config.patient || frontier <= starts_at {
            return frontier;
        }
        let links: Vec<LinkId> = self.fetch.hopeful_links().collect();
        if links.iter().any(|link| self.planner.course(*link).steps() < LEAST_STEPS) {
            return frontier;
        }
        let rest = self.fetch.missing(Span::new(frontier, self.fetch.total().unwrap_or(u64::MAX)));
        let time = player.profile().duration().saturating_sub(player.position());
        let lacks = rest - self.supply(&links, time.saturating_sub(MARGIN)).mean;
        let doubt =
            links.iter().map(|link| self.planner.course(*link).doubt(time)).sum::<DataSize>() * BEYOND_DOUBT;
        let least = if self.planner.held.is_some() { DataSize::ZERO } else { doubt };
        if lacks <= least {
            return frontier;
        }
        let (since, lacked) = *self.planner.held.get_or_insert((self.now, lacks));
        if doubt > lacked || self.now.since(since) >= LONGEST_HOLD {
            return frontier;
        }
        starts_at
    }

    /// Rule 5.
    fn be_sated(&mut self, end: u64) {
        let Some(player) = self.player.as_ref().filter(|player| player.state() == State::Playing) else {
            self.planner.sated = false;
            return;
        };
        let full = self.fetch.total().is_some_and(|total| end < total)
            && self
                .fetch
                .unasked(Span::new(self.delivered, end))
                .is_none_or(|gap| gap.start + LEAST_PIECE.bytes() > end);
        let window = self.config.fetch.window.unwrap_or(DataSize::MAX);
        // Of the window, not of the player: one that takes all that it can get has room for more.
        let taken = self.fetch.may_ask_upto().saturating_sub(window.bytes());
        let left = DataSize::from_bytes(self.delivered.saturating_sub(taken));
        if full {
            let tails =
                self.used().into_iter().filter_map(|link| self.tariff(link)).map(|tariff| tariff.tail.time());
            let sleep = (window / 4 * 3) / player.profile().mean();
            self.planner.sated = sleep > tails.max().unwrap_or_default();
        } else if left < window / 4 || player.runs_for() < FADE_GUARD {
            self.planner.sated = false;
        }
    }

    /// Links that are in use and work.
    fn used(&self) -> Vec<LinkId> {
        let used = |link: &LinkId| !self.planner.rests(*link) && self.fetch.is_up(*link);
        self.fetch.hopeful_links().filter(used).collect()
    }

    /// Where links may be asked now.
    fn seats(&self) -> Vec<(LinkId, Seat)> {
        self.fetch.hopeful_links().filter_map(|link| Some((link, self.fetch.sure_seat(link)?))).collect()
    }

    fn mean(&self, link: LinkId) -> Bitrate {
        self.planner.course(link).mean()
    }

    fn supply(&self, links: &[LinkId], time: Duration) -> Supply {
        links.iter().map(|link| self.planner.course(*link).supply(time)).fold(Supply::default(), Supply::and)
    }

    /// What a megabyte costs at this rate.
    fn price(&self, link: LinkId, rate: Bitrate) -> Energy {
        let draw = self.tariff(link).map(|tariff| tariff.draw(Direction::Down));
        draw.map(|draw| draw.transfer(MEGABYTE, rate.max(SLOWEST))).unwrap_or_default()
    }

    /// Rule 4.
    fn guard(&self, used: &[LinkId]) -> Duration {
        let sum = |rate: fn(&Course) -> Bitrate| {
            used.iter().map(|link| rate(&self.planner.course(*link))).sum::<Bitrate>()
        };
        let fades = sum(Course::present) * 3 < sum(Course::mean);
        let needs = self.player.as_ref().map(|player| player.profile().mean()).unwrap_or_default();
        let resting = self.planner.links.values().filter(|seen| seen.rests).map(|seen| seen.course.mean());
        let lacks = needs - resting.sum::<Bitrate>();
        let guard = GUARD + (lacks * FADE) / needs;
        if fades { guard.max(FADE_GUARD) } else { guard }
    }

    fn wake_cheapest(&mut self) -> bool {
        let resting = self.planner.links.iter().filter(|(_, seen)| seen.rests).map(|(link, _)| *link);
        let cheapest = resting.min_by_key(|link| (self.price(*link, self.mean(*link)), *link));
        cheapest.is_some_and(|link| self.set_rest(link, false, Why::RunsDry))
    }

    pub(super) fn wake_all(&mut self, why: Why) -> bool {
        let resting: Vec<LinkId> =
            self.planner.links.iter().filter(|(_, seen)| seen.rests).map(|(link, _)| *link).collect();
        let mut any = false;
        for link in resting {
            any |= self.set_rest(link, false, why);
        }
        any
    }

    fn set_rest(&mut self, link: LinkId, rests: bool, why: Why) -> bool {
        let Some(seen) = self.planner.links.get_mut(&link) else { return false };
        (seen.rests, seen.paused) = (rests, true);
        if !self.fetch.rest_link(link, rests) {
            return false;
        }
        self.say(Said::Rest { link, rests, why });
        true
    }
}

const MEGABYTE: DataSize = DataSize::from_bytes(1_000_000);
/// A price at a lower rate would be no price.
const SLOWEST: Bitrate = Bitrate::from_bits_per_sec(300_000);
/// Below this buffer no link rests: a resting one takes a promotion, a round trip and a slow start to come up. chosen:
/// shorter ones end in interruptions on links that fade (`marline-lab reproduce greenbag --sim --case X-fluct`).
const GUARD: Duration = Duration::from_secs(3);
/// What a fade of the links in use may take of the buffer while the resting ones alone carry the video: of this long.
const FADE: Duration = Duration::from_secs(4);
/// In a fade.
const FADE_GUARD: Duration = Duration::from_secs(5);
/// A link that brings less than its mean divided by this is nearly gone. chosen: rates that wander by 40 % of their mean
/// do not get there (`marline-lab reproduce greenbag --sim --case X-fluct`); recorded links that drive do.
const FAILS: u64 = 5;
/// What a link that has been nearly gone may take of the buffer when that happens again.
const OUTAGE: Duration = Duration::from_secs(15);
/// The longest wait that is chosen freely.
const LONGEST_HOLD: Duration = Duration::from_secs(30);
/// Standard deviations of the links' means. chosen: the few seconds that are seen by then look steadier than the link is.
const BEYOND_DOUBT: u64 = 4;
/// The first steps of a link are its slow start and the emptying of what that queued.
const SETTLES: u32 = 4;
/// So many half seconds must have been seen of a link before anything rests or is held back.
const LEAST_STEPS: u32 = 6;
/// So long the start waits for links that cost nothing. chosen: what people take for a start.
const PATIENCE: Duration = Duration::from_secs(2);
/// So long it is waited for somebody to know the video.
const STRANGER: Duration = Duration::from_secs(3);
/// With the first missing byte due later than this, pieces are long.
const FAR: Duration = Duration::from_secs(4);
/// The time of its link that a piece takes: far from the deadline, and near it.
const BULK: Duration = Duration::from_millis(300);
const SOON: Duration = Duration::from_millis(60);
/// Smaller pieces are not worth their head.
const LEAST_PIECE: DataSize = DataSize::from_kib(16);
/// So much of a link's time may be on its way: what is asked for cannot be taken back.
const MOST_AHEAD: Duration = Duration::from_secs(1);
/// For a link of which nothing is known.
const FIRST_PIECE: DataSize = DataSize::from_kib(64);
/// And how long it may take.
const UNKNOWN: Duration = Duration::from_secs(1);
