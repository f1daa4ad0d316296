//! Both must beat the best single path.
//!
//! In: what a connection's paths bring together and what one of them brings alone. Out: trials of one path alone, glances
//! at the home link, and which rates are too small to help.
//!
//! The stock scheduler binds a burst to the slow path, and everything behind it waits: 1 + 20 Mbit/s were measured at 5 to
//! 6 together where the fast one alone brought 18.8 (cubic), 2 + 20 at 13; 4 + 20 at 22.5. So:
//!
//! 1. A link that is slower than [`DRAG`] of the fastest one adds nothing to a set ([`Conn::drags`]). That is about where
//!    energy alone would leave it out as well (the LTE-only threshold of `emptcp-s3` is 0.14 to 0.17 of LTE's rate).
//! 2. What the fast path would bring alone is not known while a slow one holds it up. Where the slow ones bring less than
//!    a fifth, or all bring less than the best one did alone, the fast one is tried alone ([`TRIAL`]). If it brings
//!    [`GAIN`] of what all did (in the throughput profile: as much), the share at which this was found is a drag as well,
//!    for [`FOUND`]. A trial that failed is tried again ever more seldom.
//! 3. A link that was never measured is met alone if the home link is slow beside what is assumed: beside a slow one its
//!    first second tells nothing (the data in the slow one's queue comes first).
//! 4. On a trial, and where a slow link is left out, its subflow is destroyed and not suspended: what waits in its queue (2
//!    to 3 s at 1 Mbit/s) would hold the others up as before; destroyed, it is sent again over them.
//! 5. Nobody sees what the home link does while it rests. From [`GLANCES`] on it carries for a moment, until so much has
//!    come that its rate is known; the longer it has been bad, the longer it is expected to be (as with sizes: rule 2 of
//!    `energy`), and the more seldom it is looked at.

use super::super::conn::{Alone, Conn};
use super::super::host::Host;
use super::super::links::Links;
use super::super::reason::Reason;
use super::Choice;
use crate::units::{Bitrate, DataSize, Duration, Instant, Ratio};

/// See rule 1: between the measured 2 of 20, which loses, and 4 of 20, which gains.
const DRAG: Ratio = Ratio::from_ppm(143_000);
/// See rule 2. A fast path that is held up seems slower than it is, so that a fifth seen is less in truth.
const SMALL: u64 = 5;
const WORSE: Ratio = Ratio::from_ppm(900_000);
/// How long both are seen before one is tried.
const FOR: Duration = Duration::from_secs(2);
/// The drain, slow start, then long enough for a mean. chosen: ten round trips of 150 ms.
const TRIAL: Duration = Duration::from_millis(1500);
const GAIN: Ratio = Ratio::from_ppm(1_080_000);
const FOUND: Duration = Duration::from_secs(60);
const AGAIN: Duration = Duration::from_secs(15);
/// See rule 5. chosen: at 0.8 Mbit/s a glance holds the connection up for some 0.4 s; a tenth of that lost, and the home
/// link's return is seen 2 s late on average.
const GLANCES: Duration = Duration::from_secs(4);
/// The time between glances as a part of the time for which the link has been resting: how much of a bad spell's length its
/// end is seen late at most. chosen: a quarter; and the longest time between them.
const LATE: u32 = 4;
const SELDOM: Duration = Duration::from_secs(30);
/// The longest glance, and what ends it sooner: the first window and a queue, ten times over.
const GLANCE: Duration = Duration::from_millis(700);
const GLANCED: DataSize = DataSize::from_kib(256);

impl Conn {
    /// Whether a link of this rate holds up one of that rate.
    pub(super) fn drags(&self, slow: Bitrate, fast: Bitrate, now: Instant) -> bool {
        let found = self.trial.drag.filter(|(_, until)| now < *until).map_or(DRAG, |(share, _)| share.max(DRAG));
        slow < fast.share(found)
    }

    /// A trial under way, or one that begins; none: the guard has nothing to say.
    pub(super) fn guarded(&mut self, host: &Host, usable: Links, now: Links, gain: bool) -> Option<Choice> {
        let time = host.now;
        if self.trial.open.is_some() {
            return self.on_trial(host, usable, gain);
        }
        let carrying = self.carrying().and(now);
        let young = carrying != now || time.since(self.since) < FOR || time < self.trial.next;
        if carrying.len() < 2 || young || self.trial.glance.is_some() {
            return None;
        }
        if carrying.iter().any(|at| self.paths.get(at).is_none_or(|path| path.pace.seen() < FOR / 2)) {
            return None;
        }
        let fast = carrying.iter().max_by_key(|at| self.lately(*at))?;
        let both: Bitrate = carrying.iter().map(|at| self.lately(at)).sum();
        let slow = both - self.lately(fast);
        let best = carrying.iter().filter_map(|at| Some((self.paths.get(at)?.alone?, at))).max();
        let worse = best.filter(|(alone, _)| both < alone.share(WORSE)).map(|(_, link)| link);
        let small = (slow * SMALL <= self.lately(fast)).then_some(fast);
        let link = worse.or(small)?;
        self.trial.open = Some(Alone { since: time, link, before: now, both, slow, first: false });
        Some(Choice::new(Links::one(link), Reason::Trial { link, both }))
    }

    /// Meets a link for the first time: alone, where the home link is slow.
    pub(super) fn meet(&mut self, host: &Host, link: usize, home: usize, set: Links) -> Option<Choice> {
        let both = self.lately(home);
        if both * SMALL > host.config.assumed || !set.has(home) {
            return None;
        }
        self.trial.open = Some(Alone { since: host.now, link, before: set, both, slow: both, first: true });
        Some(Choice::new(Links::one(link), Reason::Trial { link, both }))
    }

    fn on_trial(&mut self, host: &Host, usable: Links, gain: bool) -> Option<Choice> {
        let Alone { since, link, before, both, slow, first } = self.trial.open?;
        let time = host.now;
        if !usable.has(link) {
            self.trial.open = None;
            return None;
        }
        // It begins when the link carries.
        let began = self.on(link).filter(|sub| sub.proven).map(|sub| sub.active.max(since));
        if began.is_none_or(|began| time.since(began) < TRIAL) && time.since(since) < TRIAL * 3 {
            return Some(Choice::new(Links::one(link), Reason::Trial { link, both }));
        }
        self.trial.open = None;
        if first {
            self.rests(time);
            return None;
        }
        // The last third: the drain and the opening window are over.
        let alone = self.paths.get(link).and_then(|path| path.pace.mean(TRIAL / 3)).unwrap_or_default();
        let enough = if gain { both.share(GAIN) } else { both };
        if alone >= enough && !alone.is_zero() {
            let share = Ratio::of(slow.bits_per_sec().saturating_mul(6) / 5, alone.bits_per_sec());
            self.trial.drag = Some((share.min(Ratio::from_percent(50)), time + FOUND));
            self.trial.failed = 0;
            self.rests(time);
            return None;
        }
        self.trial.next = time + AGAIN.saturating_mul(1 << u32::from(self.trial.failed).min(5));
        self.trial.failed = self.trial.failed.saturating_add(1);
        let before = before.and(usable);
        Some(Choice::new(before, Reason::Fastest { links: before, rate: both }))
    }

    /// A glance at the home link, while others carry the connection.
    pub(super) fn glance(&mut self, host: &Host, now: Links, home: usize) -> Option<Choice> {
        let time = host.now;
        let (volume, proven) = self.on(home).map_or((0, false), |sub| (sub.volume(), sub.proven && !sub.backup));
        if let Some((since, before)) = self.trial.glance {
            let came = volume.saturating_sub(before);
            let path = self.paths.get_mut(home)?;
            // What came first only starts the clock.
            let rtt = path.glanced.map_or(Duration::ZERO, |from| time.since(from));
            if path.glanced.is_none() && proven && came > 0 {
                path.glanced = Some(time);
                self.trial.glance = Some((since, volume));
            }
            let enough =
                rtt >= GLANCE / 3 && came >= GLANCED.bytes() || rtt >= GLANCE || time.since(since) >= GLANCE * 2;
            if !enough {
                let links = now.with(home);
                return Some(Choice::new(links, Reason::Again { links, link: home }));
            }
            let rate = if rtt.is_zero() { Bitrate::ZERO } else { DataSize::from_bytes(came) / rtt };
            path.pace.begin_anew(rate);
            path.glanced = None;
            self.trial.glance = None;
            self.trial.found = Some((home, rate));
            let rested = time.since(self.trial.rests.unwrap_or(time));
            self.trial.next_glance = time + (rested / LATE).clamp(GLANCES, SELDOM);
            return None;
        }
        if now.has(home) {
            (self.trial.rests, self.trial.found) = (None, None);
        } else {
            self.trial.rests.get_or_insert(time);
        }
        let rests = !now.has(home) && self.on(home).is_some_and(|sub| sub.backup);
        if !rests || time < self.trial.next_glance || self.is_still(time, GLANCE) {
            return None;
        }
        self.trial.glance = Some((time, volume));
        let links = now.with(home);
        Some(Choice::new(links, Reason::Again { links, link: home }))
    }

    /// The home link rests from now on, if it did not before.
    fn rests(&mut self, time: Instant) {
        self.trial.rests.get_or_insert(time);
        self.trial.next_glance = time + GLANCES;
    }

    /// A path's rate over the last second.
    pub(super) fn lately(&self, link: usize) -> Bitrate {
        let path = self.paths.get(link);
        path.and_then(|path| path.pace.mean(Duration::from_secs(1))).unwrap_or_default()
    }
}
