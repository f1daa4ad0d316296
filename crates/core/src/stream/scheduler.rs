//! Marline's stream scheduler: assigns each piece to a link that delivers it in time, and keeps radios on standby where
//! possible.
//!
//! It decides from the links' connection slots and rate forecasts, the player model and the radio models, and gives
//! commands to the download.
//!
//! 1. *Pieces.* A link gets its next piece before its pipe runs empty, as in a download. If the piece would arrive
//!    before the first missing byte is due, it is taken from the front. Otherwise it starts beyond the bytes that the
//!    other links will have delivered by then, so that nothing waits behind a slow link (earliest delivery first).
//!    While the player is buffering, all bytes up to its start threshold are due at once; later bytes are due relative
//!    to the expected start.
//! 2. *Duplicates.* If the byte that the player needs next would arrive too late on its link, the link that could
//!    deliver it first requests it as well.
//! 3. *Standby.* Every half second the costliest active link is checked ([`super::newsvendor`]). The price of a byte is
//!    the energy of its radio at the link's rate. If another active link has nearly failed before, none goes on standby
//!    until the buffer would outlast another such outage ([`OUTAGE_BUFFER`]): the variance of the rate does not show
//!    outages.
//! 4. *Activation.* If the buffer falls below a guard and the active links are not certain to deliver the rest in time,
//!    the cheapest standby link is activated. Links go on standby only above the guard. The guard covers the time to
//!    activate a link, plus what a fade of the active links would take from the buffer while the standby links alone
//!    carry the video. During a fade, while the active links deliver less than a third of their mean, it is longer.
//! 5. *Full window.* When the reader's window is full, all links pause until a quarter of it is left, if that takes
//!    longer than the radio tails. A radio that trickles at the video's rate never sleeps.
//! 6. *Start delay.* If all links together certainly cannot deliver the rest while it is played, the player would stall
//!    repeatedly, each time until its low threshold is reached. One longer wait at the start, at most 30 s, is shorter
//!    than the sum of the stalls. Playback starts when the rest is expected in time, or as soon as the uncertainty
//!    exceeds the initial shortfall.
//! 7. Energy is never saved at the price of a stall: while the player is buffering, every link is active. With
//!    [`Objective::MeteredBytes`], metered links begin on standby, and the initial buffering activates them only after
//!    [`METERED_START_DELAY`].

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use super::newsvendor::{DEADLINE_MARGIN, Newsvendor};
use super::{InitialEstimate, ModeReason, Objective, RateForecast, Stream, StreamEvent};
use crate::energy::Direction;
use crate::fetch::{ByteRange, ConnSlot, FIRST_CHUNK};
use crate::link::LinkId;
use crate::playback::{Player, PlayerState};
use crate::predict::{ExpectedBytes, Forecast};
use crate::units::{Bitrate, DataSize, Energy, Instant};

#[derive(Clone, Debug, Default)]
pub(super) struct Scheduler {
    links: BTreeMap<LinkId, LinkHistory>,
    next_sample_at: Instant,
    is_window_full: bool,
    /// Since when the start is held back, and the shortfall at that time.
    start_held: Option<(Instant, DataSize)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct LinkHistory {
    forecast: Forecast,
    /// Bytes received in the present sampling interval.
    received: DataSize,
    /// Whether the link was idle at some time in this interval, so that the interval does not measure it.
    had_idle: bool,
    /// Number of complete intervals in which the link was in use.
    samples: u32,
    /// Whether the link's current rate has ever dropped to a small part of its mean ([`OUTAGE_DIVISOR`]).
    had_outage: bool,
    is_standby: bool,
}

impl Scheduler {
    pub(super) fn on_bytes(&mut self, link: LinkId, len: DataSize) {
        self.links.entry(link).or_insert(LinkHistory { had_idle: true, ..LinkHistory::default() }).received += len;
    }

    /// Adds an estimate of an earlier stream. It counts as much as [`MIN_SAMPLES`] samples of this one.
    pub(super) fn add_estimate(&mut self, expected: InitialEstimate) {
        let history =
            self.links.entry(expected.link).or_insert(LinkHistory { had_idle: true, ..LinkHistory::default() });
        // An estimate without a rate only states whether the link was on standby.
        let steps = if expected.rate.is_zero() { 0 } else { MIN_SAMPLES };
        (0..steps).for_each(|_| history.forecast.add(expected.rate));
        history.is_standby = expected.is_standby;
    }

    /// Puts a link without any history on standby; returns whether it did.
    pub(super) fn start_in_standby(&mut self, link: LinkId) -> bool {
        let is_new = !self.links.contains_key(&link);
        if is_new {
            self.links.insert(link, LinkHistory { had_idle: true, is_standby: true, ..LinkHistory::default() });
        }
        is_new
    }

    /// Estimates of the links that have been sampled.
    pub(super) fn estimates(&self) -> Vec<InitialEstimate> {
        let sampled = self.links.iter().filter(|(_, history)| history.forecast.steps() > 0);
        sampled
            .map(|(link, history)| InitialEstimate {
                link: *link,
                rate: history.forecast.mean_rate(),
                is_standby: history.is_standby,
            })
            .collect()
    }

    /// When the links are sampled next.
    pub(super) const fn next_sample_at(&self) -> Instant {
        self.next_sample_at
    }

    fn is_standby(&self, link: LinkId) -> bool {
        self.links.get(&link).is_some_and(|history| history.is_standby)
    }

    fn forecast(&self, link: LinkId) -> Forecast {
        self.links.get(&link).map(|history| history.forecast).unwrap_or_default()
    }

    fn mark_idle(&mut self, link: LinkId) {
        if let Some(history) = self.links.get_mut(&link) {
            history.had_idle = true;
        }
    }
}

impl Stream {
    /// Gives the commands that are due; returns whether there were any.
    pub(super) fn schedule(&mut self) -> bool {
        let mut changed = false;
        if self.sample_links() {
            changed = self.choose_standby();
        }
        while self.request_next_piece() || self.duplicate_blocking_byte() {
            self.forward_outputs();
            changed = true;
        }
        changed
    }

    /// Samples the links every half second; returns whether an interval has ended. Runs also before the video is known.
    pub(super) fn sample_links(&mut self) -> bool {
        if self.now < self.scheduler.next_sample_at {
            return false;
        }
        let delay = self.now.since(self.scheduler.next_sample_at);
        let time = Forecast::SAMPLE_INTERVAL.saturating_add(delay);
        self.scheduler.next_sample_at = self.now + Forecast::SAMPLE_INTERVAL;
        for (link, history) in &mut self.scheduler.links {
            // Intervals in which the link was idle, or whose tick came much too late, measure nothing.
            if !history.had_idle && !history.is_standby && delay < Forecast::SAMPLE_INTERVAL {
                history.samples += 1;
                if history.samples > WARM_UP_SAMPLES {
                    history.forecast.add(history.received / time);
                    history.had_outage |= history.forecast.steps() >= MIN_SAMPLES
                        && history.forecast.current_rate() * OUTAGE_DIVISOR < history.forecast.mean_rate();
                }
            }
            history.received = DataSize::ZERO;
            history.had_idle = history.is_standby || self.fetch.transfers().conn_slot(*link).is_none();
        }
        true
    }

    /// Rule 1: requests the next piece; returns whether anything was requested.
    fn request_next_piece(&mut self) -> bool {
        let end = self.fetch.transfers().request_limit().min(self.fetch.transfers().total().unwrap_or(u64::MAX));
        self.pause_all_when_full(end);
        let mut ready_links: Vec<(LinkId, ConnSlot)> = self
            .conn_slots()
            .into_iter()
            .filter(|(_, slot)| !slot.deficit.is_zero() && slot.in_flight / slot.rate.max(MIN_RATE) < MAX_IN_FLIGHT)
            .collect();
        ready_links.sort_by_key(|(_, slot)| slot.in_flight / slot.rate);
        for (link, slot) in ready_links {
            let piece = (!self.scheduler.is_window_full).then(|| self.choose_piece(link, slot, end)).flatten();
            if piece.is_some_and(|piece| self.fetch.transfers_mut().request_on(slot, piece).is_some()) {
                return true;
            }
            self.scheduler.mark_idle(link);
        }
        false
    }

    /// The range that this link should request next; `None` if the other links deliver all of it sooner.
    fn choose_piece(&self, link: LinkId, slot: ConnSlot, end: u64) -> Option<ByteRange> {
        let first = self.fetch.transfers().next_unrequested(ByteRange::new(self.delivered_end, end))?;
        let due = self.time_until_due(first.start);
        let batch = if due > LONG_DEADLINE { LONG_PIECE } else { SHORT_PIECE };
        let size =
            if slot.rate.is_zero() { FIRST_PIECE } else { slot.deficit.max(slot.rate * batch).max(MIN_PIECE) };
        let size = if due > LONG_DEADLINE { size } else { size.min((slot.rate * LONG_PIECE).max(MIN_PIECE)) };
        let size = if first.start == self.delivered_end && slot.is_untried() { FIRST_CHUNK } else { size };
        let ready_in = |slot: &ConnSlot| (slot.in_flight / slot.rate).max(slot.min_rtt).min(DEFAULT_ARRIVAL);
        let arrival_on = |slot: &ConnSlot| ready_in(slot).saturating_add((size / slot.rate).min(DEFAULT_ARRIVAL));
        let arrival = arrival_on(&slot);
        let others: Vec<(LinkId, ConnSlot)> =
            self.conn_slots().into_iter().filter(|(other, _)| *other != link).collect();
        // Of links with equal arrival times, exactly one must be the first.
        let is_earliest = others.iter().all(|(other, slot)| (arrival_on(slot), *other) > (arrival, link));
        if arrival.saturating_add(DEADLINE_MARGIN) <= due || is_earliest {
            return Some(ByteRange::at(first.start, first.len().min(size)));
        }
        // Start behind the bytes that the other links will have delivered when this piece arrives.
        let by_others: DataSize =
            others.iter().map(|(_, slot)| slot.rate * arrival.saturating_sub(ready_in(slot))).sum();
        let alignment = MIN_PIECE.bytes();
        let from = first.start.saturating_add(by_others.bytes() / alignment * alignment);
        let gap = self.fetch.transfers().next_unrequested(ByteRange::new(from, end))?;
        Some(ByteRange::at(gap.start, gap.len().min(size)))
    }

    /// Time until the byte at `offset` is needed.
    fn time_until_due(&self, offset: u64) -> Duration {
        let Some(player) = self.player.as_ref() else { return Duration::ZERO };
        let due = player.deadline(offset).since(self.now);
        if player.state() != PlayerState::Buffering {
            return due;
        }
        let starts_at = player.decoded().saturating_add(self.config.player.low.bytes());
        if offset < starts_at {
            return Duration::ZERO;
        }
        // Playback starts once the threshold has arrived; later bytes are due relative to that time.
        let rate: Bitrate = self.conn_slots().iter().map(|(_, slot)| slot.rate).sum();
        let start_delay = DataSize::from_bytes(starts_at.saturating_sub(self.delivered_end)) / rate.max(MIN_RATE);
        due.saturating_add(start_delay.min(MAX_START_DELAY))
    }

    /// Rule 2: requests a late blocking byte twice; returns whether anything was requested.
    fn duplicate_blocking_byte(&mut self) -> bool {
        let buffered_time = self.player.as_ref().map_or(Duration::ZERO, |player| match player.state() {
            PlayerState::Buffering => Duration::ZERO,
            PlayerState::Playing | PlayerState::Ended => player.buffered_time(),
        });
        buffered_time < BUFFER_GUARD
            && self
                .fetch
                .transfers_mut()
                .duplicate_if_late(self.delivered_end, buffered_time.saturating_sub(DEADLINE_MARGIN))
    }

    /// Rules 3, 4 and 7; returns whether any link changed its state.
    fn choose_standby(&mut self) -> bool {
        let Some(player) = self.player.as_ref() else { return false };
        match player.state() {
            PlayerState::Ended => return false,
            PlayerState::Buffering if self.can_defer(player) => return false,
            PlayerState::Buffering => return self.activate_all(ModeReason::Buffering),
            PlayerState::Playing => {}
        }
        let time_to_end = player.deadline(u64::MAX).since(self.now).saturating_add(self.following.1);
        let buffered_time = player.buffered_time();
        let active = self.active_links();
        if active.is_empty() {
            // At the start no link is up yet, and none counts as lost.
            return self.fetch.transfers().links_in_service().next().is_some()
                && self.activate_all(ModeReason::LinkLost);
        }
        let remaining = self
            .fetch
            .transfers()
            .missing_bytes(ByteRange::new(self.delivered_end, self.fetch.transfers().total().unwrap_or(u64::MAX)))
            + self.following.0;
        // Rule 4: below the guard, activate a link unless the active ones certainly suffice.
        if buffered_time < self.buffer_guard(&active) {
            let others = self.expected_bytes(&active, time_to_end.saturating_sub(DEADLINE_MARGIN / 2));
            let known = active.iter().all(|link| self.scheduler.forecast(*link).steps() >= MIN_SAMPLES);
            let suffices = if known {
                remaining <= others.mean - others.std_dev
            } else {
                self.sustains_playback(player, &active)
            };
            return !suffices && self.activate_cheapest();
        }
        // Rule 3: the costliest active link is the candidate for standby.
        let Some(costly) = active
            .iter()
            .copied()
            .max_by_key(|link| (self.price_per_megabyte(*link, self.mean_rate(*link)), *link))
        else {
            return false;
        };
        let others: Vec<LinkId> = active.into_iter().filter(|link| *link != costly).collect();
        let is_known = |link: &LinkId| self.scheduler.forecast(*link).steps() >= MIN_SAMPLES;
        if others.is_empty() || !is_known(&costly) || !others.iter().all(is_known) {
            return false;
        }
        // If a remaining link may have an outage, the buffer must be able to bridge it.
        let had_outage = |link: &LinkId| self.scheduler.links.get(link).is_some_and(|history| history.had_outage);
        if others.iter().any(had_outage) && buffered_time < OUTAGE_BUFFER.min(time_to_end) {
            return false;
        }
        let forecast = self.scheduler.forecast(costly);
        let cheapest_price = others
            .iter()
            .map(|link| self.price_per_megabyte(*link, self.mean_rate(*link)))
            .min()
            .unwrap_or_default();
        // If the costliest link is no more expensive than the cheapest, nothing can be saved.
        if self.price_per_megabyte(costly, forecast.mean_rate()) <= cheapest_price {
            return false;
        }
        let newsvendor = Newsvendor {
            remaining: remaining
                - self.fetch.transfers().conn_slot(costly).map(|slot| slot.in_flight).unwrap_or_default(),
            others_expected: self.expected_bytes(&others, time_to_end.saturating_sub(DEADLINE_MARGIN)),
            current_price: self.price_per_megabyte(costly, forecast.recent_rate()) - cheapest_price,
            usual_price: self.price_per_megabyte(costly, forecast.mean_rate()) - cheapest_price,
            rate: forecast.recent_rate(),
            activation_cost: self.tariff(costly).map(|tariff| tariff.single_packet_energy()).unwrap_or_default(),
        };
        !newsvendor.should_keep_link() && self.set_standby(costly, true, ModeReason::Cheapest)
    }

    /// Rules 4 and 7 before the scheduler controls the download: a link that an earlier stream put on standby must be
    /// activated when it is needed. Returns whether any link was activated.
    pub(super) fn activate_before_control(&mut self) -> bool {
        // Links come up one after the other; at the start none counts as lost.
        let is_young = self.now < Instant::ZERO + Forecast::SAMPLE_INTERVAL;
        if is_young || !self.scheduler.links.values().any(|history| history.is_standby) {
            return false;
        }
        let Some(player) = self.player.as_ref() else {
            let is_lost = self.active_links().is_empty() || self.now > Instant::ZERO + UNKNOWN_MEDIA_TIMEOUT;
            return is_lost && self.activate_all(ModeReason::LinkLost);
        };
        if self.can_defer(player) && !self.active_links().is_empty() {
            return false;
        }
        let (is_playing, buffered_time) = (player.state() == PlayerState::Playing, player.buffered_time());
        match (is_playing, self.active_links().is_empty()) {
            (false, _) => self.activate_all(ModeReason::Buffering),
            (true, true) => self.activate_all(ModeReason::LinkLost),
            (true, false) => buffered_time < BUFFER_GUARD && self.activate_cheapest(),
        }
    }

    /// Whether a player that has not started may buffer a little longer to spare metered links.
    pub(super) fn can_defer(&self, player: &Player) -> bool {
        self.config.objective == Objective::MeteredBytes
            && player.first_frame().is_none()
            && self.now < Instant::ZERO + METERED_START_DELAY
    }

    /// Whether links without a forecast deliver the video 10 % faster than its mean rate, by their present rates.
    fn sustains_playback(&self, player: &Player, links: &[LinkId]) -> bool {
        let rate: Bitrate =
            links.iter().filter_map(|link| self.fetch.transfers().conn_slot(*link)).map(|slot| slot.rate).sum();
        rate > player.profile().mean_rate() + player.profile().mean_rate() / 10
    }

    /// Expected rate of all links that may be used together; `None` while one of them has too few samples.
    pub fn rate_forecast(&self) -> Option<RateForecast> {
        let links = self.fetch.transfers().links_in_service().filter(|link| self.fetch.transfers().may_use(*link));
        let forecasts: Vec<Forecast> = links.map(|link| self.scheduler.forecast(link)).collect();
        let known = !forecasts.is_empty() && forecasts.iter().all(|forecast| forecast.steps() >= MIN_SAMPLES);
        let second = Duration::from_secs(1);
        known.then(|| RateForecast {
            rate: forecasts.iter().map(Forecast::mean_rate).sum(),
            std_error: forecasts.iter().map(|forecast| forecast.std_error(second) / second).sum(),
        })
    }

    /// Rule 6: end of the in-order bytes that may be delivered to the player.
    pub(super) fn delivery_limit(&mut self, in_order_end: u64) -> u64 {
        let Some(player) = self.player.as_ref().filter(|player| player.first_frame().is_none()) else {
            return in_order_end;
        };
        let starts_at = player.arrived().max(self.config.player.low.bytes().saturating_sub(1));
        if !self.config.may_delay_start || in_order_end <= starts_at {
            return in_order_end;
        }
        let links: Vec<LinkId> = self.fetch.transfers().links_in_service().collect();
        if links.iter().any(|link| self.scheduler.forecast(*link).steps() < MIN_SAMPLES) {
            return in_order_end;
        }
        // Compare the missing bytes with what the links deliver while the video plays.
        let remaining = self
            .fetch
            .transfers()
            .missing_bytes(ByteRange::new(in_order_end, self.fetch.transfers().total().unwrap_or(u64::MAX)));
        let time = player.profile().duration().saturating_sub(player.position());
        let shortfall = remaining - self.expected_bytes(&links, time.saturating_sub(DEADLINE_MARGIN)).mean;
        let max_error = links.iter().map(|link| self.scheduler.forecast(*link).std_error(time)).sum::<DataSize>()
            * CONFIDENCE_STD_ERRORS;
        // Begin to hold back only if the shortfall is certain; continue as long as one is expected.
        let threshold = if self.scheduler.start_held.is_some() { DataSize::ZERO } else { max_error };
        if shortfall <= threshold {
            return in_order_end;
        }
        let (since, initial_shortfall) = *self.scheduler.start_held.get_or_insert((self.now, shortfall));
        if max_error > initial_shortfall || self.now.since(since) >= MAX_START_DELAY {
            return in_order_end;
        }
        starts_at
    }

    /// Rule 5: pauses all links while the reader's window is full.
    fn pause_all_when_full(&mut self, end: u64) {
        let Some(player) = self.player.as_ref().filter(|player| player.state() == PlayerState::Playing) else {
            self.scheduler.is_window_full = false;
            return;
        };
        let full = self.fetch.transfers().total().is_some_and(|total| end < total)
            && self
                .fetch
                .transfers()
                .next_unrequested(ByteRange::new(self.delivered_end, end))
                .is_none_or(|gap| gap.start + MIN_PIECE.bytes() > end);
        let window = self.config.fetch.reader_window.unwrap_or(DataSize::MAX);
        // Measured in the window, not in the player's buffer: a player that reads everything at once still has
        // capacity.
        let consumed = self.fetch.transfers().request_limit().saturating_sub(window.bytes());
        let left = DataSize::from_bytes(self.delivered_end.saturating_sub(consumed));
        if full {
            let tails = self
                .active_links()
                .into_iter()
                .filter_map(|link| self.tariff(link))
                .map(|tariff| tariff.tail.time());
            let sleep = (window / 4 * 3) / player.profile().mean_rate();
            self.scheduler.is_window_full = sleep > tails.max().unwrap_or_default();
        } else if left < window / 4 || player.buffered_time() < FADING_BUFFER_GUARD {
            self.scheduler.is_window_full = false;
        }
    }

    /// Links that are up and not on standby.
    fn active_links(&self) -> Vec<LinkId> {
        let used = |link: &LinkId| !self.scheduler.is_standby(*link) && self.fetch.transfers().is_up(*link);
        self.fetch.transfers().links_in_service().filter(used).collect()
    }

    /// Links that can send a request now, with their connection slots.
    fn conn_slots(&self) -> Vec<(LinkId, ConnSlot)> {
        self.fetch
            .transfers()
            .links_in_service()
            .filter_map(|link| Some((link, self.fetch.transfers().conservative_slot(link)?)))
            .collect()
    }

    fn mean_rate(&self, link: LinkId) -> Bitrate {
        self.scheduler.forecast(link).mean_rate()
    }

    fn expected_bytes(&self, links: &[LinkId], time: Duration) -> ExpectedBytes {
        links
            .iter()
            .map(|link| self.scheduler.forecast(*link).expected_bytes(time))
            .fold(ExpectedBytes::default(), ExpectedBytes::combined)
    }

    /// Price of a megabyte at this rate.
    fn price_per_megabyte(&self, link: LinkId, rate: Bitrate) -> Energy {
        let draw = self.tariff(link).map(|tariff| tariff.curve(Direction::Down));
        draw.map(|draw| draw.transfer_energy(MEGABYTE, rate.max(MIN_RATE))).unwrap_or_default()
    }

    /// Rule 4: buffer below which standby links may be activated.
    fn buffer_guard(&self, used: &[LinkId]) -> Duration {
        let sum = |rate: fn(&Forecast) -> Bitrate| {
            used.iter().map(|link| rate(&self.scheduler.forecast(*link))).sum::<Bitrate>()
        };
        let is_fading = sum(Forecast::current_rate) * 3 < sum(Forecast::mean_rate);
        let media_rate = self.player.as_ref().map(|player| player.profile().mean_rate()).unwrap_or_default();
        let standby_rates = self
            .scheduler
            .links
            .values()
            .filter(|history| history.is_standby)
            .map(|history| history.forecast.mean_rate());
        // What the standby links alone lack during a fade, converted to playing time below.
        let shortfall = media_rate - standby_rates.sum::<Bitrate>();
        let guard = BUFFER_GUARD + (shortfall * FADE_TIME) / media_rate;
        if is_fading { guard.max(FADING_BUFFER_GUARD) } else { guard }
    }

    fn activate_cheapest(&mut self) -> bool {
        let standby = self.scheduler.links.iter().filter(|(_, history)| history.is_standby).map(|(link, _)| *link);
        let cheapest = standby.min_by_key(|link| (self.price_per_megabyte(*link, self.mean_rate(*link)), *link));
        cheapest.is_some_and(|link| self.set_standby(link, false, ModeReason::BufferLow))
    }

    pub(super) fn activate_all(&mut self, reason: ModeReason) -> bool {
        let standby: Vec<LinkId> =
            self.scheduler.links.iter().filter(|(_, history)| history.is_standby).map(|(link, _)| *link).collect();
        let mut changed = false;
        for link in standby {
            changed |= self.set_standby(link, false, reason);
        }
        changed
    }

    fn set_standby(&mut self, link: LinkId, standby: bool, reason: ModeReason) -> bool {
        let Some(history) = self.scheduler.links.get_mut(&link) else { return false };
        (history.is_standby, history.had_idle) = (standby, true);
        if !self.fetch.transfers_mut().set_standby(link, standby) {
            return false;
        }
        self.emit(StreamEvent::Standby { link, standby, reason });
        true
    }
}

const MEGABYTE: DataSize = DataSize::from_bytes(1_000_000);
/// Lower bound of rates in divisions; prices at lower rates would be meaningless.
const MIN_RATE: Bitrate = Bitrate::from_bits_per_sec(300_000);
/// Below this buffer no link goes on standby: activating one takes a promotion, a round trip and a slow start. Our
/// choice: shorter guards end in stalls on fading links (`marline-lab reproduce greenbag --sim --case X-fluct`).
const BUFFER_GUARD: Duration = Duration::from_secs(3);
/// Duration of a fade of the active links, during which the standby links alone carry the video.
const FADE_TIME: Duration = Duration::from_secs(4);
/// The guard during a fade.
const FADING_BUFFER_GUARD: Duration = Duration::from_secs(5);
/// A link that delivers less than its mean divided by this has an outage. Our choice: rates that fluctuate by 40 % of
/// their mean do not reach it (`marline-lab reproduce greenbag --sim --case X-fluct`); recorded links in moving
/// vehicles do.
const OUTAGE_DIVISOR: u64 = 5;
/// Buffer needed to outlast the next outage of a link that has had one.
const OUTAGE_BUFFER: Duration = Duration::from_secs(15);
/// Longest start delay that the scheduler chooses, and bound of the estimated one.
const MAX_START_DELAY: Duration = Duration::from_secs(30);
/// Standard errors of the rate forecasts that count as certainty. Our choice: the few seconds sampled by then look
/// steadier than the link is.
const CONFIDENCE_STD_ERRORS: u64 = 4;
/// The first samples of a link show its slow start and the draining of the queue that it built.
const WARM_UP_SAMPLES: u32 = 4;
/// Number of half-second samples required of a link before anything goes on standby or the start is held back.
const MIN_SAMPLES: u32 = 6;
/// How long the start waits to spare metered links. Our choice: a start delay that viewers accept.
const METERED_START_DELAY: Duration = Duration::from_secs(2);
/// How long standby links wait for the video to become known.
const UNKNOWN_MEDIA_TIMEOUT: Duration = Duration::from_secs(3);
/// If the first missing byte is due later than this, pieces are long.
const LONG_DEADLINE: Duration = Duration::from_secs(4);
/// Transfer time of a piece on its link: long pieces far from the deadline, short ones near it.
const LONG_PIECE: Duration = Duration::from_millis(300);
const SHORT_PIECE: Duration = Duration::from_millis(60);
/// Smaller pieces are not worth a request head.
const MIN_PIECE: DataSize = DataSize::from_kib(16);
/// Most transfer time of requested data on one link. Requests cannot be shortened later.
const MAX_IN_FLIGHT: Duration = Duration::from_secs(1);
/// Size of the first piece on a link without a measured rate.
const FIRST_PIECE: DataSize = DataSize::from_kib(64);
/// Upper bound of an arrival estimate.
const DEFAULT_ARRIVAL: Duration = Duration::from_secs(1);
