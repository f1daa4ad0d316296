//! 802.11 channel that both directions of a link share: the distributed coordination function.
//!
//! For each station it computes when the next frame starts and how long the channel is occupied.
//!
//! 1. There are two stations: the access point (downlink) and the client (uplink). After the channel has become
//!    idle, each waits DIFS and its own random number of backoff slots; the rest is kept while the other one sends
//!    (IEEE 802.11-2007 §9.2).
//! 2. After each exchange a station draws a new backoff, even if it has nothing to send. A packet that arrives at
//!    an idle channel after this backoff is sent at once; one that arrives at a busy channel draws a backoff.
//! 3. Stations whose backoffs end in the same slot collide. Both occupy the channel for the longer of their frames,
//!    double their contention windows and try again, at most seven times.
//! 4. A station at rate zero does not send; its packets are sent when it has a rate again.
//! 5. `phy` computes the airtime of frames. Nothing else is lost on the channel; random loss follows after it.
//!
//! A fixed share of the rate for each direction does not serve. Small frames cost nearly as much airtime as large
//! ones, so the ACKs of TCP take a quarter of a cell's capacity (Super-aggregation, figure 2), and this effect is
//! needed.

mod phy;

use marline_core::units::{Bitrate, DataSize, Duration, Instant};

use crate::rng::{Purpose, RandomStream};
use phy::Phy;
pub use phy::WifiPreset;

/// Retries before a frame is given up (dot11ShortRetryLimit).
const RETRY_LIMIT: u32 = 7;

/// A planned transmission of a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt {
    /// Start of the transmission.
    pub(crate) start: Instant,
    /// Slot number since the end of the last exchange; equal slots collide.
    slot: u64,
}

/// Fate of a frame after a collision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CollisionOutcome {
    /// The frame is sent again.
    Retry,
    /// The retry limit is reached.
    GivenUp,
}

/// One station of the channel.
#[derive(Clone, Debug)]
struct Station {
    rate: Bitrate,
    /// Time since which the rate has not been zero.
    usable_from: Instant,
    /// Remaining backoff; `None` if it is over and the station may send as soon as the channel is idle.
    backoff_slots: Option<u64>,
    contention_window: u64,
    attempts: u32,
    rng: RandomStream,
    airtime: Duration,
}

/// The channel with its two stations: 0 sends downlink, 1 uplink.
#[derive(Clone, Debug)]
pub(crate) struct WifiChannel {
    phy: Phy,
    stations: [Station; 2],
    idle_from: Instant,
}

impl WifiChannel {
    /// An idle channel; rates that are not given are those of the preset.
    pub(crate) fn new(preset: WifiPreset, rates: [Option<Bitrate>; 2], seed: u64, name: &str) -> Self {
        let phy = Phy::from_preset(preset);
        let station = |direction: usize| Station {
            rate: rates[direction].unwrap_or(phy.rates[direction]),
            usable_from: Instant::ZERO,
            backoff_slots: None,
            contention_window: phy.cw_min,
            attempts: 0,
            rng: RandomStream::new(seed, name, direction as u64, Purpose::Backoff),
            airtime: Duration::ZERO,
        };
        let stations = [station(0), station(1)];
        Self { phy, stations, idle_from: Instant::ZERO }
    }

    /// Sets the PHY rate of a station, from `now` on.
    pub(crate) fn set_rate(&mut self, direction: usize, rate: Bitrate, now: Instant) {
        let station = &mut self.stations[direction];
        if station.rate.is_zero() {
            // Otherwise a frame would start in the past, when the station could not send it.
            station.usable_from = now;
        }
        station.rate = rate;
    }

    /// Blocks the channel until this time.
    pub(crate) fn hold_until(&mut self, at: Instant) {
        self.idle_from = self.idle_from.max(at);
    }

    /// Airtime of a station's frames, including collisions and excluding waiting times.
    pub(crate) fn airtime(&self, direction: usize) -> Duration {
        self.stations[direction].airtime
    }

    /// When this station would send the packet queued at `queued_at`, if the other one does not send first; `None`
    /// at rate zero.
    pub(crate) fn next_attempt(&mut self, direction: usize, queued_at: Instant) -> Option<Attempt> {
        let slots_start = self.idle_from + self.phy.difs;
        let slot = self.phy.slot;
        let station = &mut self.stations[direction];
        if station.rate.is_zero() {
            return None;
        }
        let arrived = queued_at.max(station.usable_from);
        // Rule 2: only a packet that arrives at a busy channel draws a backoff.
        if station.backoff_slots.is_none() && arrived < self.idle_from {
            station.backoff_slots = Some(station.rng.below(station.contention_window + 1));
        }
        let ready = slots_start + slot * u32::try_from(station.backoff_slots.unwrap_or(0)).unwrap_or(u32::MAX);
        let start = ready.max(arrived);
        let slot = start.since(slots_start).as_nanos() / slot.as_nanos().max(1);
        Some(Attempt { start, slot: u64::try_from(slot).unwrap_or(u64::MAX) })
    }

    /// Whether the two transmissions collide.
    pub(crate) fn is_collision(a: Attempt, b: Attempt) -> bool {
        a.slot == b.slot
    }

    /// When a frame whose transmission starts at `start` has arrived.
    pub(crate) fn arrival(&self, direction: usize, size: DataSize, start: Instant) -> Instant {
        start + self.phy.time_to_data_end(size, self.stations[direction].rate)
    }

    /// Transmits the frame and returns when it has arrived.
    pub(crate) fn transmit(&mut self, direction: usize, size: DataSize, attempt: Attempt) -> Instant {
        let arrived = self.arrival(direction, size, attempt.start);
        let end = arrived + self.phy.ack_duration();
        let station = &mut self.stations[direction];
        station.airtime += end.since(attempt.start);
        station.contention_window = self.phy.cw_min;
        station.attempts = 0;
        station.backoff_slots = Some(station.rng.below(station.contention_window + 1));
        // The other station keeps the rest of its backoff.
        let other_station = &mut self.stations[1 - direction];
        other_station.backoff_slots =
            other_station.backoff_slots.and_then(|wait| wait.checked_sub(attempt.slot)).filter(|wait| *wait > 0);
        self.idle_from = end;
        arrived
    }

    /// Both frames are transmitted and lost.
    pub(crate) fn collide(&mut self, sizes: [DataSize; 2], attempts: [Attempt; 2]) -> [CollisionOutcome; 2] {
        let phy = &self.phy;
        let mut end = self.idle_from;
        let mut retries = [CollisionOutcome::Retry; 2];
        for (direction, station) in self.stations.iter_mut().enumerate() {
            let frame_time = phy.time_to_collision_end(sizes[direction], station.rate);
            station.airtime += frame_time;
            end = end.max(attempts[direction].start + frame_time);
            station.attempts += 1;
            station.contention_window = (station.contention_window * 2 + 1).min(phy.cw_max);
            if station.attempts > RETRY_LIMIT {
                retries[direction] = CollisionOutcome::GivenUp;
                station.attempts = 0;
                station.contention_window = phy.cw_min;
            }
            station.backoff_slots = Some(station.rng.below(station.contention_window + 1));
        }
        self.idle_from = end;
        retries
    }

    /// IP rate of one direction with packets of this size, if the other station does not send.
    pub(crate) fn solo_rate(&self, direction: usize, size: DataSize) -> Bitrate {
        match self.stations[direction].rate {
            Bitrate::ZERO => Bitrate::ZERO,
            rate => size / self.phy.mean_exchange(size, rate),
        }
    }
}
