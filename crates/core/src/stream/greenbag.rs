//! GreenBag's download planner (§IV-B), on a download that somebody else carries out.
//!
//! In: lanes, the player's model, the radios' meter. Out: orders to the download.
//!
//! 1. Whenever a link is about to finish its subsegment, in this order: (1) is the subsegment that everything waits for
//!    lagging on another link? Then it is recovered; (2) the next segment's size is chosen; (3) the link mode; (4) the
//!    segment is divided, the earlier part to the faster link. The next request leaves one round trip before the end.
//! 2. *Recovery*: `w_r × T_P ≤ T_R`, T_P how long the player can go on with what it has, T_R how long the lagging link
//!    takes for the rest at its present goodput. Its requests are taken back and both links share the rest. The paper's
//!    second principle (few recoveries) has no formula; two conditions of ours stand for it: with a new connection both together
//!    end sooner, and the lagging request is older than two round trips.
//! 3. *Link mode*: of all modes in which the rest of the video comes in time by the predicted goodput, the one with the
//!    least energy, tails counted by the radios' present states; all links if no single one suffices. Leaving the others needs a
//!    margin, and the segment to come must not break rule 4: both are ours. While the player
//!    waits, every byte is late and all links are used.
//! 4. *Fall-back*: all links at once if `w_e × T_P ≤ T_R`, T_R for what the single link is being asked for. The chooser
//!    keeps the same rule for the segment to come, or it would undo the fall-back at once.
//! 5. A link out of use finishes what it was allotted, then rests.
//!
//! What the paper leaves open and what was chosen: see [`super::GreenBag`]. It has two links; here "dual" is all.

use alloc::vec::Vec;
use core::time::Duration;

use super::balance::{Hand, divide};
use super::{Mode, Policy, Said, Stream, Why};
use crate::energy::{Direction, Load};
use crate::fetch::{Seat, Span};
use crate::link::LinkId;
use crate::playback::State;
use crate::units::{Bitrate, DataSize, Energy, Ratio};

impl Stream {
    /// Gives the orders that are due. Tells whether there were any.
    pub(super) fn arrange(&mut self) -> bool {
        let mut any = self.fall_back();
        // What a link was to be asked for that is gone or silent, or that cannot be asked, is somebody else's now.
        for (link, lane) in &mut self.lanes {
            let asks = self.fetch.seat(*link).is_some() || lane.asked().next().is_some();
            if !self.fetch.is_up(*link) || !asks {
                lane.reserved.clear();
            }
        }
        loop {
            any |= self.let_rest();
            let mut ends: Vec<(LinkId, Seat)> =
                self.fetch.hopeful_links().filter_map(|link| Some((link, self.fetch.seat(link)?))).collect();
            ends.retain(|(_, seat)| seat.ahead <= seat.pace * (seat.rtt + AT_ONCE));
            ends.sort_by_key(|(_, seat)| seat.ahead / seat.pace);
            if !ends.into_iter().any(|(link, seat)| self.serve(link, seat)) {
                return any;
            }
            any = true;
        }
    }

    /// A link is about to have nothing to do. Tells whether anything was ordered.
    fn serve(&mut self, link: LinkId, seat: Seat) -> bool {
        if let Some(orphan) = self.orphan() {
            self.allot(orphan, link, true);
        }
        if let Some(span) = self.lane(link).reserved.pop_front() {
            return self.ask(link, seat, span);
        }
        match self.mode {
            Mode::Only(only) if only != link => false,
            _ => self.recover(link, seat) || self.next_segment(link),
        }
    }

    /// Asks for a subsegment, or for the part of it that may be asked for now.
    fn ask(&mut self, link: LinkId, seat: Seat, span: Span) -> bool {
        let Some(free) = self.fetch.unasked(span) else {
            // It has come, or somebody brings it; or the reader's window ends before it.
            if span.end > self.fetch.may_ask_upto() {
                self.lane(link).reserved.push_front(span);
                return false;
            }
            return true;
        };
        let Some(asked) = self.fetch.ask(seat, free) else {
            self.lane(link).reserved.push_front(span);
            return false;
        };
        if asked.end < span.end {
            self.lane(link).reserved.push_front(Span::new(asked.end, span.end));
        }
        self.note();
        true
    }

    /// The first bytes of earlier segments that nobody brings and that nobody is to be asked for.
    fn orphan(&self) -> Option<Span> {
        let mut from = self.delivered;
        loop {
            let gap = self.fetch.unasked(Span::new(from, self.arranged))?;
            let reserved = || self.lanes.values().flat_map(|lane| lane.reserved.iter());
            match reserved().find(|span| span.contains(gap.start)) {
                Some(span) => from = span.end,
                None => {
                    let next = reserved().map(|span| span.start).filter(|start| *start > gap.start).min();
                    return Some(Span::new(gap.start, gap.end.min(next.unwrap_or(u64::MAX))));
                }
            }
        }
    }

    /// Eq. 1 to 4: divides `span` between the links in use. What was left behind comes before what was allotted.
    fn allot(&mut self, span: Span, by: LinkId, first: bool) {
        let links: Vec<LinkId> = match self.mode {
            Mode::Only(only) if self.works(only) => Vec::from([only]),
            _ => self.fetch.hopeful_links().filter(|link| *link == by || self.works(*link)).collect(),
        };
        let hand = |link: &LinkId| {
            let lane = self.lanes.get(link);
            Hand {
                link: *link,
                goodput: match (lane, self.config.greenbag.adapts) {
                    (_, false) => Bitrate::from_mbps(1),
                    (lane, true) => lane.map(|lane| lane.goodput(self.now)).unwrap_or_default(),
                },
                unfinished: match lane {
                    Some(lane) if !first && self.config.greenbag.adapts => lane.unfinished(),
                    _ => DataSize::ZERO,
                },
            }
        };
        let hands: Vec<Hand> = links.iter().map(hand).collect();
        for (link, part) in divide(span, by, &hands) {
            let reserved = &mut self.lane(link).reserved;
            if first {
                reserved.push_front(part);
            } else {
                reserved.push_back(part);
            }
        }
    }

    /// Whether a link can be given a part of a segment.
    fn works(&self, link: LinkId) -> bool {
        self.fetch.is_up(link)
            && (self.fetch.seat(link).is_some() || self.lanes.get(&link).is_some_and(|lane| !lane.is_idle()))
    }

    /// Cuts the next segment.
    fn next_segment(&mut self, link: LinkId) -> bool {
        let Some(total) = self.fetch.total() else { return false };
        let end = self.arranged.saturating_add(self.config.greenbag.segment.bytes().max(1)).min(total);
        if self.arranged >= total.min(self.fetch.may_ask_upto()) {
            return false;
        }
        let before = self.mode;
        self.choose_mode();
        let segment = Span::new(self.arranged, end);
        self.arranged = end;
        self.allot(segment, link, false);
        if before != self.mode {
            self.let_rest();
        }
        true
    }

    /// Relieves another link of the subsegment that everything waits for, if it lags.
    fn recover(&mut self, link: LinkId, seat: Seat) -> bool {
        let policy = self.config.greenbag;
        let Some(player) = self.player.as_ref().filter(|player| player.state() != State::Ended) else {
            return false;
        };
        if !policy.recovers || self.mode != Mode::All {
            return false;
        }
        let holds = |other: LinkId| {
            let sub = self.lanes.get(&other)?.asked().find(|sub| sub.span.contains(self.delivered))?;
            Some((other, self.fetch.missing(sub.span), self.now.since(sub.began)))
        };
        let others = self.lanes.keys().copied().filter(|other| *other != link);
        let Some((other, rest, age)) = others.into_iter().find_map(holds) else { return false };
        let (own, lagging) = (self.goodput(link), self.goodput(other));
        let takes = rest / lagging;
        let again = self.fetch.seat(other).map_or(AGAIN, |seat| seat.rtt * 2);
        let together = (seat.rtt + again).saturating_add(rest / (own + lagging));
        // What has not had the time of a new connection yet does not lag.
        if weighted(policy.recovery, player.runs_for()) > takes || together >= takes || age < again {
            return false;
        }
        self.fetch.take_from(other);
        self.say(Said::Recovered { link: other });
        self.note();
        true
    }

    /// Rule 3.
    fn choose_mode(&mut self) {
        let (mode, why) = self.best_mode();
        self.set_mode(mode, why);
    }

    fn best_mode(&self) -> (Mode, Why) {
        let Some(player) = self.player.as_ref() else { return (Mode::All, Why::NotInTime) };
        if self.config.policy == Policy::GreenbagP {
            return (Mode::All, Why::NotInTime);
        }
        if player.state() == State::Buffering {
            return (Mode::All, Why::Buffering);
        }
        let unfinished: DataSize = self.lanes.values().map(|lane| lane.unfinished()).sum();
        let from = self.arranged.saturating_sub(unfinished.bytes());
        let rest = DataSize::from_bytes(self.fetch.total().unwrap_or(from).saturating_sub(from));
        let policy = self.config.greenbag;
        // The fall-back's own rule with the segment to come, or the two would undo each other for ever.
        let soon = |link: LinkId| {
            let asked = self.lanes.get(&link).map(|lane| lane.unfinished()).unwrap_or_default();
            let takes = (asked + policy.segment.min(rest)) / self.goodput(link).min(self.predicted(link));
            weighted(policy.fall_back, player.runs_for()) > takes
        };
        let suffices = |link: &LinkId| {
            // The margin is for leaving the others; a link that is used alone already stays while it suffices.
            let margin = if self.mode == Mode::Only(*link) { Ratio::ONE } else { policy.margin };
            let rate = self.predicted(*link).share(margin);
            self.works(*link) && soon(*link) && player.profile().keeps_up(from, rate, player.position()).in_time()
        };
        let single = self.lanes.keys().filter(|link| suffices(link)).map(|link| {
            let load = self.load(*link, rest);
            (self.meter.cost(self.now, &[load]), *link)
        });
        let Some((least, link)) = single.min() else { return (Mode::All, Why::NotInTime) };
        if self.cost_of_all(rest) < least { (Mode::All, Why::Cheapest) } else { (Mode::Only(link), Why::Cheapest) }
    }

    /// What the rest costs if all links share it by their goodput.
    fn cost_of_all(&self, rest: DataSize) -> Energy {
        let links: Vec<LinkId> = self.lanes.keys().copied().filter(|link| self.works(*link)).collect();
        let sum: Bitrate = links.iter().map(|link| self.predicted(*link)).sum();
        let share = |link: &LinkId| {
            let own = u128::from(self.predicted(*link).bits_per_sec());
            let bytes = u128::from(rest.bytes()) * own / u128::from(sum.bits_per_sec()).max(1);
            self.load(*link, DataSize::from_bytes(u64::try_from(bytes).unwrap_or(u64::MAX)))
        };
        let plan: Vec<Load> = links.iter().map(share).collect();
        self.meter.cost(self.now, &plan)
    }

    fn load(&self, link: LinkId, size: DataSize) -> Load {
        Load { link, direction: Direction::Down, size, rate: self.predicted(link) }
    }

    /// Rule 4.
    fn fall_back(&mut self) -> bool {
        let Mode::Only(only) = self.mode else { return false };
        let lost = !self.works(only);
        let dry = self.player.as_ref().is_none_or(|player| {
            let takes = self.lanes.get(&only).map_or(Duration::MAX, |lane| lane.time_left(self.now));
            player.state() == State::Buffering
                || weighted(self.config.greenbag.fall_back, player.runs_for()) <= takes && !takes.is_zero()
        });
        if lost || dry {
            self.set_mode(Mode::All, if lost { Why::Lost } else { Why::RunsDry });
        }
        lost || dry
    }

    pub(super) fn set_mode(&mut self, mode: Mode, why: Why) {
        if mode != self.mode {
            self.mode = mode;
            self.say(Said::Mode { mode, why });
        }
    }

    /// Lets links rest that are out of use and have nothing to do, and wakes the others. Tells whether any was woken.
    fn let_rest(&mut self) -> bool {
        let mut woken = false;
        let links: Vec<LinkId> = self.fetch.hopeful_links().collect();
        for link in links {
            let idle = self.lanes.get(&link).is_none_or(|lane| lane.is_idle());
            let rests = matches!(self.mode, Mode::Only(only) if only != link) && idle;
            woken |= self.fetch.rest_link(link, rests) && !rests;
        }
        woken
    }

    fn goodput(&self, link: LinkId) -> Bitrate {
        self.lanes.get(&link).map(|lane| lane.goodput(self.now)).unwrap_or_default()
    }

    fn predicted(&self, link: LinkId) -> Bitrate {
        self.lanes.get(&link).map(|lane| lane.predicted(self.now)).unwrap_or_default()
    }

    fn lane(&mut self, link: LinkId) -> &mut super::Lane {
        self.lanes.entry(link).or_default()
    }
}

/// `weight × time`, rounded down.
fn weighted(weight: Ratio, time: Duration) -> Duration {
    let nanos = time.as_nanos().saturating_mul(u128::from(weight.ppm())) / 1_000_000;
    u64::try_from(nanos).map_or(Duration::MAX, Duration::from_nanos)
}

/// A request leaves this much before the round trip that it takes: servers think, machines are busy.
const AT_ONCE: Duration = Duration::from_millis(20);
/// A new connection on a link of which nothing is known takes this long.
const AGAIN: Duration = Duration::from_millis(200);
