//! GreenBag's download planner (§IV-B), which schedules the requests of a [`Fetch`](crate::fetch::Fetch) machine.
//!
//! It decides from the state of the links, the player model and the energy meter, and gives commands to the download.
//!
//! 1. Whenever a link is about to finish its subsegment, in this order: (1) if the subsegment that blocks in-order
//!    delivery lags on another link, it is recovered; (2) the next segment's size is chosen; (3) the link mode; (4) the
//!    segment is divided, the earlier part to the faster link. The next request is sent one RTT before the subsegment
//!    ends.
//! 2. *Recovery* if `w_r × T_P ≤ T_R`. T_P is how long the buffer lasts, T_R how long the lagging link takes for the
//!    rest at its present goodput. The link's requests are canceled and both links share the rest. The paper's second
//!    principle (few recoveries) has no formula. Two conditions of our own stand for it: both links together finish
//!    sooner even with a new connection, and the lagging request is older than two RTTs.
//! 3. *Link mode*: of all modes that deliver the rest of the video in time at the predicted goodput, the one with the
//!    least energy. Tails are counted by the present state of the radios. If no single link suffices, all are used. Two
//!    conditions are our own: a link must suffice with a margin before the others are left, and the next segment must
//!    not trigger rule 4. While the player is buffering, every byte is late and all links are used.
//! 4. *Fall-back* to all links at once if `w_e × T_P ≤ T_R`, with T_R for the backlog of the single link. The chooser
//!    applies the same rule to the next segment; otherwise it would undo the fall-back at once.
//! 5. A link out of use finishes what was allocated to it, then goes on standby.
//!
//! [`super::GreenBagParams`] lists what the paper leaves open and the values chosen. The paper has two links; here its
//! "dual" mode means all links.

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
    /// Gives the commands that are due; returns whether there were any.
    pub(super) fn schedule_greenbag(&mut self) -> bool {
        let mut changed = self.fall_back();
        // Reserved ranges of links that are down, stalled or have no usable connection become free for other links.
        for (link, state) in &mut self.links {
            let can_request =
                self.fetch.transfers().conn_slot(*link).is_some() || state.requested().next().is_some();
            if !self.fetch.transfers().is_up(*link) || !can_request {
                state.reserved.clear();
            }
        }
        // Serve the link that finishes first, then evaluate all links again: each command changes the state of all links.
        loop {
            changed |= self.update_standby();
            let mut finishing: Vec<(LinkId, ConnSlot)> = self
                .fetch
                .transfers()
                .links_in_service()
                .filter_map(|link| Some((link, self.fetch.transfers().conn_slot(link)?)))
                .collect();
            finishing.retain(|(_, slot)| slot.in_flight <= slot.rate * (slot.rtt + REQUEST_LEAD_TIME));
            finishing.sort_by_key(|(_, slot)| slot.in_flight / slot.rate);
            if !finishing.into_iter().any(|(link, slot)| self.serve_link(link, slot)) {
                return changed;
            }
            changed = true;
        }
    }

    /// Gives work to a link that is about to become idle; returns whether any command was given.
    fn serve_link(&mut self, link: LinkId, slot: ConnSlot) -> bool {
        if let Some(unallocated) = self.unallocated_range() {
            self.allocate(unallocated, link, true);
        }
        if let Some(range) = self.link_mut(link).reserved.pop_front() {
            return self.request_subsegment(link, slot, range);
        }
        match self.mode {
            LinkMode::Only(only) if only != link => false,
            _ => self.recover(link, slot) || self.cut_next_segment(link),
        }
    }

    /// Requests a subsegment, or as much of it as may be requested now; the rest stays reserved.
    fn request_subsegment(&mut self, link: LinkId, slot: ConnSlot, range: ByteRange) -> bool {
        let Some(unrequested) = self.fetch.transfers().next_unrequested(range) else {
            // It has arrived or is already requested, or the reader's window ends before it.
            if range.end > self.fetch.transfers().request_limit() {
                self.link_mut(link).reserved.push_front(range);
                return false;
            }
            return true;
        };
        let Some(requested) = self.fetch.transfers_mut().request_on(slot, unrequested) else {
            self.link_mut(link).reserved.push_front(range);
            return false;
        };
        if requested.end < range.end {
            self.link_mut(link).reserved.push_front(ByteRange::new(requested.end, range.end));
        }
        self.forward_outputs();
        true
    }

    /// First range of earlier segments that is neither received nor requested nor reserved.
    fn unallocated_range(&self) -> Option<ByteRange> {
        let mut from = self.delivered_end;
        loop {
            let gap = self.fetch.transfers().next_unrequested(ByteRange::new(from, self.allocated_end))?;
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

    /// Eq. 1 to 4: divides `range` among the links in use. `at_front` puts the parts before the links' reserved ranges;
    /// this serves ranges left behind by a failed link.
    fn allocate(&mut self, range: ByteRange, requester: LinkId, at_front: bool) {
        let links: Vec<LinkId> = match self.mode {
            LinkMode::Only(only) if self.is_working(only) => Vec::from([only]),
            _ => self
                .fetch
                .transfers()
                .links_in_service()
                .filter(|link| *link == requester || self.is_working(*link))
                .collect(),
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
        self.fetch.transfers().is_up(link)
            && (self.fetch.transfers().conn_slot(link).is_some()
                || self.links.get(&link).is_some_and(|state| !state.is_idle()))
    }

    /// Chooses the link mode, then cuts and divides the next segment; returns whether there was one.
    fn cut_next_segment(&mut self, link: LinkId) -> bool {
        let Some(total) = self.fetch.transfers().total() else { return false };
        let end = self.allocated_end.saturating_add(self.config.greenbag.segment_size.bytes().max(1)).min(total);
        if self.allocated_end >= total.min(self.fetch.transfers().request_limit()) {
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

    /// Rule 2: cancels the requests of another link if its subsegment blocks in-order delivery and lags.
    fn recover(&mut self, link: LinkId, slot: ConnSlot) -> bool {
        let policy = self.config.greenbag;
        let Some(player) = self.player.as_ref().filter(|player| player.state() != PlayerState::Ended) else {
            return false;
        };
        if !policy.recovery_enabled || self.mode != LinkMode::All {
            return false;
        }
        let blocking_subsegment = |other: LinkId| {
            let sub = self.links.get(&other)?.requested().find(|sub| sub.range.contains(self.delivered_end))?;
            Some((other, self.fetch.transfers().missing_bytes(sub.range), self.now.since(sub.started_at)))
        };
        let others = self.links.keys().copied().filter(|other| *other != link);
        let Some((other, remaining, age)) = others.into_iter().find_map(blocking_subsegment) else { return false };
        let (goodput, lagging_goodput) = (self.goodput(link), self.goodput(other));
        let lagging_time = remaining / lagging_goodput;
        let reconnect_time =
            self.fetch.transfers().conn_slot(other).map_or(DEFAULT_RECONNECT_TIME, |slot| slot.rtt * 2);
        let joint_time = (slot.rtt + reconnect_time).saturating_add(remaining / (goodput + lagging_goodput));
        // A request younger than the time of a new connection does not count as lagging.
        if weighted(policy.recovery_weight, player.buffered_time()) > lagging_time
            || joint_time >= lagging_time
            || age < reconnect_time
        {
            return false;
        }
        self.fetch.transfers_mut().cancel_link(other);
        self.emit(StreamEvent::Recovered { link: other });
        self.forward_outputs();
        true
    }

    /// Rule 3: sets the link mode.
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
        // The rest of the video includes what is allocated to links and has not arrived.
        let backlog: DataSize = self.links.values().map(|state| state.backlog()).sum();
        let from = self.allocated_end.saturating_sub(backlog.bytes());
        let remaining = DataSize::from_bytes(self.fetch.transfers().total().unwrap_or(from).saturating_sub(from));
        let policy = self.config.greenbag;
        // Apply the fall-back rule to the next segment as well. Otherwise fall-back and chooser would alternate
        // forever.
        let avoids_fall_back = |link: LinkId| {
            let backlog = self.links.get(&link).map(|state| state.backlog()).unwrap_or_default();
            let transfer_time = (backlog + policy.segment_size.min(remaining))
                / self.goodput(link).min(self.predicted_goodput(link));
            weighted(policy.fall_back_weight, player.buffered_time()) > transfer_time
        };
        let suffices = |link: &LinkId| {
            // The margin applies to leaving the other links; a link that is used alone stays so while it suffices.
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

    /// Energy that the rest costs if all links share it in proportion to their goodput.
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

    /// Rule 4: switches to all links if the single one is lost or too slow; returns whether it did.
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

    /// Rule 5: puts idle links that are out of use on standby and activates the others; returns whether any was
    /// activated.
    fn update_standby(&mut self) -> bool {
        let mut activated = false;
        let links: Vec<LinkId> = self.fetch.transfers().links_in_service().collect();
        for link in links {
            let idle = self.links.get(&link).is_none_or(|state| state.is_idle());
            let standby = matches!(self.mode, LinkMode::Only(only) if only != link) && idle;
            activated |= self.fetch.transfers_mut().set_standby(link, standby) && !standby;
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

/// A request is sent this much earlier than one RTT before the end, for processing delays of server and host.
const REQUEST_LEAD_TIME: Duration = Duration::from_millis(20);
/// Assumed time of a new connection on a link without any measurement.
const DEFAULT_RECONNECT_TIME: Duration = Duration::from_millis(200);
