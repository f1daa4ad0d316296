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

use super::load_balancer::{LinkBacklog, divide_segment};
use super::{LinkMode, ModeReason, Policy, Stream, StreamEvent};
use crate::energy::{Direction, LinkLoad};
use crate::fetch::{ByteRange, ConnSlot};
use crate::link::LinkId;
use crate::playback::PlayerState;
use crate::units::{Bitrate, DataSize, Energy, Ratio};

impl Stream {
    /// Gives the orders that are due. Tells whether there were any.
    pub(super) fn schedule_greenbag(&mut self) -> bool {
        let mut changed = self.fall_back();
        // What a link was to be asked for that is gone or silent, or that cannot be asked, is somebody else's now.
        for (link, state) in &mut self.links {
            let can_request = self.fetch.conn_slot(*link).is_some() || state.requested().next().is_some();
            if !self.fetch.is_up(*link) || !can_request {
                state.reserved.clear();
            }
        }
        loop {
            changed |= self.update_standby();
            let mut finishing: Vec<(LinkId, ConnSlot)> = self
                .fetch
                .links_in_service()
                .filter_map(|link| Some((link, self.fetch.conn_slot(link)?)))
                .collect();
            finishing.retain(|(_, slot)| slot.in_flight <= slot.rate * (slot.rtt + REQUEST_LEAD_TIME));
            finishing.sort_by_key(|(_, slot)| slot.in_flight / slot.rate);
            if !finishing.into_iter().any(|(link, slot)| self.serve_link(link, slot)) {
                return changed;
            }
            changed = true;
        }
    }

    /// A link is about to have nothing to do. Tells whether anything was ordered.
    fn serve_link(&mut self, link: LinkId, slot: ConnSlot) -> bool {
        if let Some(orphan) = self.unallocated_range() {
            self.allocate(orphan, link, true);
        }
        if let Some(range) = self.link_mut(link).reserved.pop_front() {
            return self.request_subsegment(link, slot, range);
        }
        match self.mode {
            LinkMode::Only(only) if only != link => false,
            _ => self.recover(link, slot) || self.cut_next_segment(link),
        }
    }

    /// Asks for a subsegment, or for the part of it that may be asked for now.
    fn request_subsegment(&mut self, link: LinkId, slot: ConnSlot, range: ByteRange) -> bool {
        let Some(free) = self.fetch.next_unrequested(range) else {
            // It has come, or somebody brings it; or the reader's window ends before it.
            if range.end > self.fetch.request_limit() {
                self.link_mut(link).reserved.push_front(range);
                return false;
            }
            return true;
        };
        let Some(asked) = self.fetch.request_on(slot, free) else {
            self.link_mut(link).reserved.push_front(range);
            return false;
        };
        if asked.end < range.end {
            self.link_mut(link).reserved.push_front(ByteRange::new(asked.end, range.end));
        }
        self.forward_outputs();
        true
    }

    /// The first bytes of earlier segments that nobody brings and that nobody is to be asked for.
    fn unallocated_range(&self) -> Option<ByteRange> {
        let mut from = self.delivered_end;
        loop {
            let gap = self.fetch.next_unrequested(ByteRange::new(from, self.allocated_end))?;
            let reserved = || self.links.values().flat_map(|state| state.reserved.iter());
            match reserved().find(|range| range.contains(gap.start)) {
                Some(range) => from = range.end,
                None => {
                    let next = reserved().map(|range| range.start).filter(|start| *start > gap.start).min();
                    return Some(ByteRange::new(gap.start, gap.end.min(next.unwrap_or(u64::MAX))));
                }
            }
        }
    }

    /// Eq. 1 to 4: divides `span` between the links in use. What was left behind comes before what was allotted.
    fn allocate(&mut self, range: ByteRange, requester: LinkId, at_front: bool) {
        let links: Vec<LinkId> = match self.mode {
            LinkMode::Only(only) if self.is_working(only) => Vec::from([only]),
            _ => {
                self.fetch.links_in_service().filter(|link| *link == requester || self.is_working(*link)).collect()
            }
        };
        let backlog_of = |link: &LinkId| {
            let state = self.links.get(link);
            LinkBacklog {
                link: *link,
                goodput: match (state, self.config.greenbag.adaptive_subsegments) {
                    (_, false) => Bitrate::from_mbps(1),
                    (state, true) => state.map(|state| state.goodput(self.now)).unwrap_or_default(),
                },
                backlog: match state {
                    Some(state) if !at_front && self.config.greenbag.adaptive_subsegments => state.backlog(),
                    _ => DataSize::ZERO,
                },
            }
        };
        let backlogs: Vec<LinkBacklog> = links.iter().map(backlog_of).collect();
        for (link, part) in divide_segment(range, requester, &backlogs) {
            let reserved = &mut self.link_mut(link).reserved;
            if at_front {
                reserved.push_front(part);
            } else {
                reserved.push_back(part);
            }
        }
    }

    /// Whether a link can be given a part of a segment.
    fn is_working(&self, link: LinkId) -> bool {
        self.fetch.is_up(link)
            && (self.fetch.conn_slot(link).is_some() || self.links.get(&link).is_some_and(|state| !state.is_idle()))
    }

    /// Cuts the next segment.
    fn cut_next_segment(&mut self, link: LinkId) -> bool {
        let Some(total) = self.fetch.total() else { return false };
        let end = self.allocated_end.saturating_add(self.config.greenbag.segment_size.bytes().max(1)).min(total);
        if self.allocated_end >= total.min(self.fetch.request_limit()) {
            return false;
        }
        let before = self.mode;
        self.choose_mode();
        let segment = ByteRange::new(self.allocated_end, end);
        self.allocated_end = end;
        self.allocate(segment, link, false);
        if before != self.mode {
            self.update_standby();
        }
        true
    }

    /// Relieves another link of the subsegment that everything waits for, if it lags.
    fn recover(&mut self, link: LinkId, slot: ConnSlot) -> bool {
        let policy = self.config.greenbag;
        let Some(player) = self.player.as_ref().filter(|player| player.state() != PlayerState::Ended) else {
            return false;
        };
        if !policy.recovery_enabled || self.mode != LinkMode::All {
            return false;
        }
        let blocking_subsegment = |other: LinkId| {
            let sub = self.links.get(&other)?.requested().find(|sub| sub.span.contains(self.delivered_end))?;
            Some((other, self.fetch.missing_bytes(sub.span), self.now.since(sub.started)))
        };
        let others = self.links.keys().copied().filter(|other| *other != link);
        let Some((other, remaining, age)) = others.into_iter().find_map(blocking_subsegment) else { return false };
        let (goodput, lagging_goodput) = (self.goodput(link), self.goodput(other));
        let lagging_time = remaining / lagging_goodput;
        let reconnect_time = self.fetch.conn_slot(other).map_or(DEFAULT_RECONNECT_TIME, |slot| slot.rtt * 2);
        let joint_time = (slot.rtt + reconnect_time).saturating_add(remaining / (goodput + lagging_goodput));
        // What has not had the time of a new connection yet does not lag.
        if weighted(policy.recovery_weight, player.buffered_time()) > lagging_time
            || joint_time >= lagging_time
            || age < reconnect_time
        {
            return false;
        }
        self.fetch.cancel_link(other);
        self.emit(StreamEvent::Recovered { link: other });
        self.forward_outputs();
        true
    }

    /// Rule 3.
    fn choose_mode(&mut self) {
        let (mode, reason) = self.best_mode();
        self.set_mode(mode, reason);
    }

    fn best_mode(&self) -> (LinkMode, ModeReason) {
        let Some(player) = self.player.as_ref() else { return (LinkMode::All, ModeReason::SingleLinkTooSlow) };
        if self.config.policy == Policy::GreenbagP {
            return (LinkMode::All, ModeReason::SingleLinkTooSlow);
        }
        if player.state() == PlayerState::Buffering {
            return (LinkMode::All, ModeReason::Buffering);
        }
        let unfinished: DataSize = self.links.values().map(|state| state.backlog()).sum();
        let from = self.allocated_end.saturating_sub(unfinished.bytes());
        let remaining = DataSize::from_bytes(self.fetch.total().unwrap_or(from).saturating_sub(from));
        let policy = self.config.greenbag;
        // The fall-back's own rule with the segment to come, or the two would undo each other for ever.
        let avoids_fall_back = |link: LinkId| {
            let backlog = self.links.get(&link).map(|state| state.backlog()).unwrap_or_default();
            let transfer_time = (backlog + policy.segment_size.min(remaining))
                / self.goodput(link).min(self.predicted_goodput(link));
            weighted(policy.fall_back_weight, player.buffered_time()) > transfer_time
        };
        let suffices = |link: &LinkId| {
            // The margin is for leaving the others; a link that is used alone already stays while it suffices.
            let margin = if self.mode == LinkMode::Only(*link) { Ratio::ONE } else { policy.goodput_margin };
            let rate = self.predicted_goodput(*link).share(margin);
            self.is_working(*link)
                && avoids_fall_back(*link)
                && player.profile().timing_at_rate(from, rate, player.position()).is_in_time()
        };
        let single = self.links.keys().filter(|link| suffices(link)).map(|link| {
            let load = self.transfer_load(*link, remaining);
            (self.energy_meter.plan_energy(self.now, &[load]), *link)
        });
        let Some((least, link)) = single.min() else { return (LinkMode::All, ModeReason::SingleLinkTooSlow) };
        if self.cost_of_all(remaining) < least {
            (LinkMode::All, ModeReason::Cheapest)
        } else {
            (LinkMode::Only(link), ModeReason::Cheapest)
        }
    }

    /// What the rest costs if all links share it by their goodput.
    fn cost_of_all(&self, remaining: DataSize) -> Energy {
        let links: Vec<LinkId> = self.links.keys().copied().filter(|link| self.is_working(*link)).collect();
        let sum: Bitrate = links.iter().map(|link| self.predicted_goodput(*link)).sum();
        let share = |link: &LinkId| {
            let goodput = u128::from(self.predicted_goodput(*link).bits_per_sec());
            let bytes = u128::from(remaining.bytes()) * goodput / u128::from(sum.bits_per_sec()).max(1);
            self.transfer_load(*link, DataSize::from_bytes(u64::try_from(bytes).unwrap_or(u64::MAX)))
        };
        let plan: Vec<LinkLoad> = links.iter().map(share).collect();
        self.energy_meter.plan_energy(self.now, &plan)
    }

    fn transfer_load(&self, link: LinkId, size: DataSize) -> LinkLoad {
        LinkLoad { link, direction: Direction::Down, size, rate: self.predicted_goodput(link) }
    }

    /// Rule 4.
    fn fall_back(&mut self) -> bool {
        let LinkMode::Only(only) = self.mode else { return false };
        let is_lost = !self.is_working(only);
        let is_buffer_low = self.player.as_ref().is_none_or(|player| {
            let transfer_time = self.links.get(&only).map_or(Duration::MAX, |state| state.time_left(self.now));
            player.state() == PlayerState::Buffering
                || weighted(self.config.greenbag.fall_back_weight, player.buffered_time()) <= transfer_time
                    && !transfer_time.is_zero()
        });
        if is_lost || is_buffer_low {
            self.set_mode(LinkMode::All, if is_lost { ModeReason::LinkLost } else { ModeReason::BufferLow });
        }
        is_lost || is_buffer_low
    }

    pub(super) fn set_mode(&mut self, mode: LinkMode, reason: ModeReason) {
        if mode != self.mode {
            self.mode = mode;
            self.emit(StreamEvent::Mode { mode, reason });
        }
    }

    /// Lets links rest that are out of use and have nothing to do, and wakes the others. Tells whether any was woken.
    fn update_standby(&mut self) -> bool {
        let mut activated = false;
        let links: Vec<LinkId> = self.fetch.links_in_service().collect();
        for link in links {
            let idle = self.links.get(&link).is_none_or(|state| state.is_idle());
            let standby = matches!(self.mode, LinkMode::Only(only) if only != link) && idle;
            activated |= self.fetch.set_standby(link, standby) && !standby;
        }
        activated
    }

    fn goodput(&self, link: LinkId) -> Bitrate {
        self.links.get(&link).map(|state| state.goodput(self.now)).unwrap_or_default()
    }

    fn predicted_goodput(&self, link: LinkId) -> Bitrate {
        self.links.get(&link).map(|state| state.predicted_goodput(self.now)).unwrap_or_default()
    }

    fn link_mut(&mut self, link: LinkId) -> &mut super::StreamLink {
        self.links.entry(link).or_default()
    }
}

/// `weight × time`, rounded down.
fn weighted(weight: Ratio, time: Duration) -> Duration {
    let nanos = time.as_nanos().saturating_mul(u128::from(weight.ppm())) / 1_000_000;
    u64::try_from(nanos).map_or(Duration::MAX, Duration::from_nanos)
}

/// A request leaves this much before the round trip that it takes: servers think, machines are busy.
const REQUEST_LEAD_TIME: Duration = Duration::from_millis(20);
/// A new connection on a link of which nothing is known takes this long.
const DEFAULT_RECONNECT_TIME: Duration = Duration::from_millis(200);
