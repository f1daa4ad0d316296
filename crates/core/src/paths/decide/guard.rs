//! Both must beat the best single path.
//!
//! In: what a connection's paths bring together and what one of them brings alone. Out: trials of one path alone, glances
//! at the home link, and which rates are too small to help.
//!
//! The stock scheduler binds a burst to the slow path, and everything behind it waits: 1 + 20 Mbit/s were measured at 5 to
//! 6 together where the fast one alone brought 18.8 (cubic), 2 + 20 at 13; 4 + 20 at 22.5. So:
//!
//! 1. A link that is slower than a part of the fastest one's rate adds nothing to a set: what trials have found, else a
//!    seventh (`trials`). That is about where energy alone would leave it out as well (the LTE-only threshold of
//!    `emptcp-s3` is 0.14 to 0.17 of LTE's rate).
//! 2. What the fast path would bring alone is not known while a slow one holds it up. Where the slow ones bring less than
//!    a fifth, or all bring less than the best one did alone, the fast one is tried alone ([`TRIAL`]). If it brings
//!    [`GAIN`] of what all did (in the throughput profile: as much), the share at which this was found is a drag.
//! 3. A link that was never measured is met alone if the home link is no faster than it is assumed to be: beside a slow one
//!    its first seconds tell nothing. What the server has queued for the slow one (megabytes, if that was fast before) comes
//!    first and holds the receiver's window; destroyed, it comes over the new one. One connection meets it at a time, and
//!    the others take the set at once. A home link that has fallen is on its way somewhere: it carries beside the new one
//!    after a glance has told what it brings now.
//! 4. On a trial, and where a slow link is left out, its subflow is destroyed and not suspended: what waits in its queue (2
//!    to 3 s at 1 Mbit/s) would hold the others up as before; destroyed, it is sent again over them.
//! 5. Nobody sees what the home link does while it rests. From [`GLANCES`] on it carries for a moment, until so much has
//!    come that its rate is known; the longer it has been bad, the longer it is expected to be (as with sizes: rule 2 of
//!    `energy`), and the more seldom it is looked at.
//! 6. Whether a slow link helps is no matter of its share alone: 2 + 20 lose what 5 + 50 gain. Where speed is the aim, one
//!    that would bring [`LEAST`] of the others, or of which nobody knows what it would bring, is tried beside them, once they
//!    have shown what they bring without it.

use super::super::conn::{Alone, Beside, Conn, Path};
use super::super::host::Host;
use super::super::links::{Link, Links};
use super::super::pace::Pace;
use super::super::reason::Reason;
use super::Choice;
use super::trials::{DRAG, Verdict};
use crate::units::{Bitrate, DataSize, Duration, Instant, Ratio};

/// See rule 2. A fast path that is held up seems slower than it is, so that a fifth seen is less in truth.
const SMALL: u64 = 5;
const WORSE: Ratio = Ratio::from_ppm(900_000);
/// How long both are seen before one is tried; in the energy profile twice as long. chosen: where a fast home link becomes slow
/// and another one joins, what waits at the server stalls both for up to 3 s, once.
const FOR: Duration = Duration::from_secs(2);
/// The drain, slow start, then long enough for a mean. chosen: ten round trips of 150 ms.
const TRIAL: Duration = Duration::from_millis(1500);
/// See rule 2: the last second beside the last two. chosen: half of what is a gain.
const GROWS: Ratio = Ratio::from_ppm(1_040_000);
const GAIN: Ratio = Ratio::from_ppm(1_080_000);
/// The most that a trial makes of the limit.
const MOST: Ratio = Ratio::from_percent(50);
/// See rule 6, of what was seen while its window opened. measured over the kernel: 6 to 8 % where it can bring 10 and helps,
/// 3 to 4 % where it can bring 5 and takes three quarters for a second.
const LEAST: Ratio = Ratio::from_ppm(55_000);
/// A trial beside the others ends soon if all bring less than this of what these did, and else lasts until they bring more, up
/// to twice [`TRIAL`]. measured over the kernel: 1 of 20 leaves a quarter; but the packets that are lost when the window of
/// one that helps has opened too far leave 75 to 85 % for half a second (5 of 50, 8 of 61).
const COLLAPSE: Ratio = Ratio::from_percent(60);
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
    /// A trial under way, or one that begins; none: the guard has nothing to say.
    pub(super) fn guarded(&mut self, host: &Host, usable: Links, now: Links, gain: bool) -> Option<Choice> {
        let time = host.now;
        if self.trial.open.is_some() {
            return self.on_trial(host, usable, gain);
        }
        let carrying = self.carrying().and(now);
        let young = carrying != now || time.since(self.since) < if gain { FOR * 2 } else { FOR };
        if carrying.len() < 2 || young || self.trial.glance.is_some() {
            return None;
        }
        let unknown = |path: &Path| path.pace.seen() < FOR / 2 || path.is_returning();
        if carrying.iter().any(|at| self.paths.get(at).is_none_or(unknown)) {
            return None;
        }
        let fast = carrying.iter().max_by_key(|at| self.lately(*at))?;
        // One bad second is a lost packet, or a queue that comes late.
        let rates = |time| (self.brought(carrying, time), self.brought(carrying.without(Links::one(fast)), time));
        let (both, slow) = rates(Pace::MEMORY).max(rates(Pace::MEMORY / 2));
        let best = carrying.iter().filter_map(|at| Some((self.paths.get(at)?.alone?, at))).max();
        let worse = best.filter(|(alone, _)| both < alone.share(WORSE)).map(|(_, link)| link);
        // A slow one that holds nobody up is not taken away to see what the fast one brings: that costs more than it tells.
        let small = (slow * SMALL <= both - slow && !self.sends_short(host)).then_some(fast);
        let link = worse.or(small)?;
        let others = now.without(Links::one(link));
        if self.grows(carrying) || !host.trials.are_due(time, self.id, others, link) {
            return None;
        }
        let slow = others.iter().filter_map(|at| host.link(at)).map(|link| link.rate(&host.config, time)).sum();
        self.trial.open = Some(Alone { since: time, link, before: now, both, slow, first: false });
        Some(Choice::new(Links::one(link), Reason::Trial { link, both }))
    }

    /// Meets a link for the first time: alone, where the home link is slow and no other connection uses it.
    pub(super) fn meet(&mut self, host: &Host, link: usize, home: usize, set: Links) -> Option<Choice> {
        let both = self.lately(home);
        let met = host.link(link).is_some_and(Link::used) || !host.trials.are_free(host.now, self.id);
        if both > host.config.assumed || !set.has(home) || met {
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
        // What did not come up in time is not said to be slow.
        began?;
        // The last third: the drain and the opening window are over. What came before them tells nothing.
        let path = self.paths.get_mut(link)?;
        let alone = path.pace.mean(TRIAL / 3).unwrap_or_default();
        path.pace.begin_anew(alone);
        let (others, before) = (before.without(Links::one(link)), before.and(usable));
        if first {
            let fallen = others.iter().any(|other| self.has_fallen(host, other));
            let drags = others.iter().any(|other| host.trials.drags(time, (other, slow), (link, alone)));
            if fallen {
                self.rests(time);
            }
            let links = if fallen || drags { Links::one(link) } else { before };
            return Some(Choice::new(links, Reason::Fastest { links, rate: alone }));
        }
        let enough = if gain { both.share(GAIN) } else { both };
        let drags = alone >= enough && !alone.is_zero();
        let all = host.link(link).map_or(alone, |link| link.rate(&host.config, time).max(alone));
        let limit = match drags {
            true => Some(held_up(slow, all)),
            // Energy asks for more than that both bring more.
            false => (!gain).then(|| helped(slow, all)),
        };
        self.trial.verdict = Some(Verdict { slow: others, fast: link, limit });
        if drags {
            self.rests(time);
        }
        let links = if drags { Links::one(link) } else { before };
        Some(Choice::new(links, Reason::Fastest { links, rate: if drags { alone } else { both } }))
    }

    /// Links with the best rate, and beside them one that was left out: on trial, or one that begins.
    pub(super) fn beside(
        &mut self,
        host: &Host,
        links: Links,
        left_out: Option<(Bitrate, usize)>,
        fast: usize,
    ) -> Option<Choice> {
        let time = host.now;
        let Some(Beside { since, slow, rate, before }) = self.trial.beside else {
            let (rate, slow) = left_out?;
            let before = self.brought(links, Pace::MEMORY);
            let settled = self.carrying() == links && links.iter().all(|at| self.is_ripe(at, time));
            let settled = settled && time.since(self.since) >= FOR && self.trial.open.is_none();
            let due = !self.grows(links) && host.trials.are_due(time, self.id, Links::one(slow), fast);
            // What others know of it stands for one that carried nothing here.
            let known = self.paths.get(slow).is_none_or(|path| path.filled || path.pace.seen().is_zero());
            // A rate of zero tells of a path that was down or was given nothing, and not of a slow one.
            let little = known && !rate.is_zero() && rate < before.share(LEAST);
            if !settled || !due || little || self.is_still(time, GLANCE) {
                return None;
            }
            self.trial.beside = Some(Beside { since: time, slow, rate, before });
            let all = links.with(slow);
            return Some(Choice::new(all, Reason::Again { links: all, link: slow }));
        };
        let all = links.with(slow);
        let began = self.on(slow).filter(|sub| sub.proven).map(|sub| sub.active.max(since));
        let carried = began.map_or(Duration::ZERO, |began| time.since(began));
        let worse = carried >= TRIAL / 2 && self.brought(all, TRIAL / 2) < before.share(COLLAPSE);
        let helps = carried >= TRIAL && self.brought(all, TRIAL / 2) > before;
        if !worse && !helps && carried < TRIAL * 2 && time.since(since) < TRIAL * 3 {
            return Some(Choice::new(all, Reason::Again { links: all, link: slow }));
        }
        self.trial.beside = None;
        let told = worse || carried >= TRIAL;
        let limit = if helps { helped(rate, before) } else { held_up(rate, before) };
        self.trial.verdict = Some(Verdict { slow: Links::one(slow), fast, limit: told.then_some(limit) });
        let links = if helps { all } else { links };
        Some(Choice::new(links, Reason::Fastest { links, rate: self.brought(links, TRIAL / 2) }))
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
        let rests = self.home == Some(home) && !now.has(home) && self.on(home).is_some_and(|sub| sub.backup);
        if !rests || time < self.trial.next_glance || self.is_still(time, GLANCE) {
            return None;
        }
        if let Some(path) = self.paths.get_mut(home) {
            path.glanced = None;
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

    /// What some links brought together, over the last `time` of each.
    fn brought(&self, links: Links, time: Duration) -> Bitrate {
        links.iter().filter_map(|at| self.paths.get(at)?.pace.mean(time)).sum()
    }

    /// Whether more comes over them from one second to the next: a window that opens is no path that was set free.
    fn grows(&self, links: Links) -> bool {
        self.brought(links, Pace::MEMORY / 2) > self.brought(links, Pace::MEMORY).share(GROWS)
    }

    /// A path's rate over the last second.
    pub(super) fn lately(&self, link: usize) -> Bitrate {
        let path = self.paths.get(link);
        path.and_then(|path| path.pace.mean(Duration::from_secs(1))).unwrap_or_default()
    }
}

/// Up to where a slow link holds a fast one up if it did with these rates.
fn held_up(slow: Bitrate, fast: Bitrate) -> Ratio {
    Ratio::of(slow.bits_per_sec().saturating_mul(6) / 5, fast.bits_per_sec()).min(MOST).max(DRAG)
}

/// From where on a slow link helps if it did with these rates. chosen: a third of that share.
fn helped(slow: Bitrate, fast: Bitrate) -> Ratio {
    Ratio::of(slow.bits_per_sec() / 3, fast.bits_per_sec()).min(DRAG)
}
