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

use crate::rng::{Purpose, Stream};
use phy::Phy;
pub use phy::Preset;

/// How often a frame is tried again before it is given up (dot11ShortRetryLimit).
const RETRIES: u32 = 7;

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
pub(crate) enum Retry {
    /// It is tried again.
    Again,
    /// It was tried too often.
    GivenUp,
}

/// One side of the channel.
#[derive(Clone, Debug)]
struct Station {
    rate: Bitrate,
    /// Since when the rate is not zero.
    able_from: Instant,
    /// Slots still to wait; none: the wait is over and the channel may be taken when it is idle.
    wait: Option<u64>,
    window: u64,
    tries: u32,
    random: Stream,
    airtime: Duration,
}

/// The channel and its two stations: lane 0 sends towards the client, lane 1 from it.
#[derive(Clone, Debug)]
pub(crate) struct Medium {
    phy: Phy,
    stations: [Station; 2],
    idle_from: Instant,
}

impl Medium {
    /// An idle channel. Rates that are not given are the preset's.
    pub(crate) fn new(preset: Preset, rates: [Option<Bitrate>; 2], seed: u64, name: &str) -> Self {
        let phy = Phy::of(preset);
        let station = |lane: usize| Station {
            rate: rates[lane].unwrap_or(phy.rates[lane]),
            able_from: Instant::ZERO,
            wait: None,
            window: phy.window_min,
            tries: 0,
            random: Stream::new(seed, name, lane as u64, Purpose::Backoff),
            airtime: Duration::ZERO,
        };
        let stations = [station(0), station(1)];
        Self { phy, stations, idle_from: Instant::ZERO }
    }

    /// Sets a station's PHY rate, from `now` on.
    pub(crate) fn set_rate(&mut self, lane: usize, rate: Bitrate, now: Instant) {
        let station = &mut self.stations[lane];
        if station.rate.is_zero() {
            // Else a frame would begin in the past, where the station could not send it.
            station.able_from = now;
        }
        station.rate = rate;
    }

    /// The channel is not usable before this time.
    pub(crate) fn hold_until(&mut self, at: Instant) {
        self.idle_from = self.idle_from.max(at);
    }

    /// Channel time that a station's frames took, collisions included, waits not.
    pub(crate) fn airtime(&self, lane: usize) -> Duration {
        self.stations[lane].airtime
    }

    /// When this station would send the packet that it has had since `arrived`, if the other does not come first;
    /// none at rate zero.
    pub(crate) fn attempt(&mut self, lane: usize, arrived: Instant) -> Option<Attempt> {
        let from = self.idle_from + self.phy.difs;
        let slot = self.phy.slot;
        let station = &mut self.stations[lane];
        if station.rate.is_zero() {
            return None;
        }
        let arrived = arrived.max(station.able_from);
        if station.wait.is_none() && arrived < self.idle_from {
            station.wait = Some(station.random.below(station.window + 1));
        }
        let ready = from + slot * u32::try_from(station.wait.unwrap_or(0)).unwrap_or(u32::MAX);
        let start = ready.max(arrived);
        let slot = start.since(from).as_nanos() / slot.as_nanos().max(1);
        Some(Attempt { start, slot: u64::try_from(slot).unwrap_or(u64::MAX) })
    }

    /// Whether the two would collide.
    pub(crate) fn collide(a: Attempt, b: Attempt) -> bool {
        a.slot == b.slot
    }

    /// When a frame that begins at `start` has arrived.
    pub(crate) fn arrival(&self, lane: usize, size: DataSize, start: Instant) -> Instant {
        start + self.phy.until_data_ends(size, self.stations[lane].rate)
    }

    /// Sends the frame; the answer is when it has arrived.
    pub(crate) fn send(&mut self, lane: usize, size: DataSize, attempt: Attempt) -> Instant {
        let arrived = self.arrival(lane, size, attempt.start);
        let end = arrived + self.phy.acknowledgement();
        let station = &mut self.stations[lane];
        station.airtime += end.since(attempt.start);
        station.window = self.phy.window_min;
        station.tries = 0;
        station.wait = Some(station.random.below(station.window + 1));
        let other = &mut self.stations[1 - lane];
        other.wait = other.wait.and_then(|wait| wait.checked_sub(attempt.slot)).filter(|wait| *wait > 0);
        self.idle_from = end;
        arrived
    }

    /// Both frames are sent and neither arrives.
    pub(crate) fn clash(&mut self, sizes: [DataSize; 2], attempts: [Attempt; 2]) -> [Retry; 2] {
        let phy = &self.phy;
        let mut end = self.idle_from;
        let mut retries = [Retry::Again; 2];
        for (lane, station) in self.stations.iter_mut().enumerate() {
            let frame = phy.until_clash_ends(sizes[lane], station.rate);
            station.airtime += frame;
            end = end.max(attempts[lane].start + frame);
            station.tries += 1;
            station.window = (station.window * 2 + 1).min(phy.window_max);
            if station.tries > RETRIES {
                retries[lane] = Retry::GivenUp;
                station.tries = 0;
                station.window = phy.window_min;
            }
            station.wait = Some(station.random.below(station.window + 1));
        }
        self.idle_from = end;
        retries
    }

    /// What the channel carries one way, with the other silent and packets of this size: bits of IP per second.
    pub(crate) fn solo_rate(&self, lane: usize, size: DataSize) -> Bitrate {
        match self.stations[lane].rate {
            Bitrate::ZERO => Bitrate::ZERO,
            rate => size / self.phy.mean_exchange(size, rate),
        }
    }
}
