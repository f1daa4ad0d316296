//! One 802.11 channel that both directions of a link share: the distributed coordination function.
//!
//! In: who has a packet waiting since when, and its size. Out: who sends when, and until when the channel is taken.
//!
//! 1. There are two stations: the access point (towards the client) and the client. Each waits DIFS and its own random
//!    number of slots after the channel became idle, and keeps what is left of it while the other sends
//!    (IEEE 802.11-2007 §9.2).
//! 2. After each of its exchanges a station waits a new random number of slots even if it has nothing to send. A
//!    packet that comes to an idle channel after that is sent at once; one that comes while the channel is taken
//!    waits a random number of slots.
//! 3. Stations whose waits end in the same slot collide: both take the channel for the longer of their frames, double
//!    their contention windows and try again, at most seven times.
//! 4. A station at rate zero has nothing to send; what waits for it comes when its rate does.
//! 5. Times of frames come from `phy`. Nothing else is lost on the air here; loss comes after the medium.
//!
//! A fixed share of the rate per direction was not used: what matters is that small frames cost nearly as much channel
//! time as large ones, so that the acknowledgements of TCP take a quarter of a cell (Super-aggregation, figure 2).

mod phy;

use marline_core::units::{Bitrate, DataSize, Duration, Instant};

use crate::rng::{Purpose, RandomStream};
use phy::Phy;
pub use phy::WifiPreset;

/// How often a frame is tried again before it is given up (dot11ShortRetryLimit).
const RETRY_LIMIT: u32 = 7;

/// A frame on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt {
    /// When it begins.
    pub(crate) start: Instant,
    /// Which slot after the end of the last exchange that is; equal slots collide.
    slot: u64,
}

/// What became of a collided frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CollisionOutcome {
    /// It is tried again.
    Retry,
    /// It was tried too often.
    GivenUp,
}

/// One side of the channel.
#[derive(Clone, Debug)]
struct Station {
    rate: Bitrate,
    /// Since when the rate is not zero.
    usable_from: Instant,
    /// Slots still to wait; none: the wait is over and the channel may be taken when it is idle.
    backoff_slots: Option<u64>,
    contention_window: u64,
    attempts: u32,
    rng: RandomStream,
    airtime: Duration,
}

/// The channel and its two stations: lane 0 sends towards the client, lane 1 from it.
#[derive(Clone, Debug)]
pub(crate) struct WifiChannel {
    phy: Phy,
    stations: [Station; 2],
    idle_from: Instant,
}

impl WifiChannel {
    /// An idle channel. Rates that are not given are the preset's.
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

    /// Sets a station's PHY rate, from `now` on.
    pub(crate) fn set_rate(&mut self, direction: usize, rate: Bitrate, now: Instant) {
        let station = &mut self.stations[direction];
        if station.rate.is_zero() {
            // Else a frame would begin in the past, where the station could not send it.
            station.usable_from = now;
        }
        station.rate = rate;
    }

    /// The channel is not usable before this time.
    pub(crate) fn hold_until(&mut self, at: Instant) {
        self.idle_from = self.idle_from.max(at);
    }

    /// Channel time that a station's frames took, collisions included, waits not.
    pub(crate) fn airtime(&self, direction: usize) -> Duration {
        self.stations[direction].airtime
    }

    /// When this station would send the packet that it has had since `arrived`, if the other does not come first;
    /// none at rate zero.
    pub(crate) fn next_attempt(&mut self, direction: usize, queued_at: Instant) -> Option<Attempt> {
        let slots_start = self.idle_from + self.phy.difs;
        let slot = self.phy.slot;
        let station = &mut self.stations[direction];
        if station.rate.is_zero() {
            return None;
        }
        let arrived = queued_at.max(station.usable_from);
        if station.backoff_slots.is_none() && arrived < self.idle_from {
            station.backoff_slots = Some(station.rng.below(station.contention_window + 1));
        }
        let ready = slots_start + slot * u32::try_from(station.backoff_slots.unwrap_or(0)).unwrap_or(u32::MAX);
        let start = ready.max(arrived);
        let slot = start.since(slots_start).as_nanos() / slot.as_nanos().max(1);
        Some(Attempt { start, slot: u64::try_from(slot).unwrap_or(u64::MAX) })
    }

    /// Whether the two would collide.
    pub(crate) fn is_collision(a: Attempt, b: Attempt) -> bool {
        a.slot == b.slot
    }

    /// When a frame that begins at `start` has arrived.
    pub(crate) fn arrival(&self, direction: usize, size: DataSize, start: Instant) -> Instant {
        start + self.phy.time_to_data_end(size, self.stations[direction].rate)
    }

    /// Sends the frame; the answer is when it has arrived.
    pub(crate) fn transmit(&mut self, direction: usize, size: DataSize, attempt: Attempt) -> Instant {
        let arrived = self.arrival(direction, size, attempt.start);
        let end = arrived + self.phy.ack_duration();
        let station = &mut self.stations[direction];
        station.airtime += end.since(attempt.start);
        station.contention_window = self.phy.cw_min;
        station.attempts = 0;
        station.backoff_slots = Some(station.rng.below(station.contention_window + 1));
        let other_station = &mut self.stations[1 - direction];
        other_station.backoff_slots =
            other_station.backoff_slots.and_then(|wait| wait.checked_sub(attempt.slot)).filter(|wait| *wait > 0);
        self.idle_from = end;
        arrived
    }

    /// Both frames are sent and neither arrives.
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

    /// What the channel carries one way, with the other silent and packets of this size: bits of IP per second.
    pub(crate) fn solo_rate(&self, direction: usize, size: DataSize) -> Bitrate {
        match self.stations[direction].rate {
            Bitrate::ZERO => Bitrate::ZERO,
            rate => size / self.phy.mean_exchange(size, rate),
        }
    }
}
