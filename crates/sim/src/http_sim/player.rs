//! Emulated player that watches what the machine delivers.
//!
//! It immediately reads everything that is readable and that its buffer takes, because there is no network between
//! machine and player. At the end it returns a [`PlaybackOutcome`].

use marline_core::playback::{Player, PlayerState};
use marline_core::units::{Duration, Instant};

/// Quality of one playback, with the symbols of GreenBag.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PlaybackOutcome {
    /// P: total playback time, if the end was reached.
    pub playback_time: Option<Duration>,
    /// When the first frame was shown.
    pub first_frame: Option<Duration>,
    /// I: total time of buffering, including the initial one.
    pub buffering_time: Duration,
    /// Number of interruptions after the start.
    pub stalls: u32,
    /// Each finished period of buffering, including the initial one: its end and its length.
    pub buffering_periods: Vec<(Duration, Duration)>,
}

/// The player with its read position.
#[derive(Debug)]
pub(super) struct SimPlayer {
    player: Player,
    readable_end: u64,
    reported_end: u64,
    buffering_periods: Vec<(Duration, Duration)>,
}

impl SimPlayer {
    pub(super) const fn new(player: Player) -> Self {
        Self { player, readable_end: 0, reported_end: 0, buffering_periods: Vec::new() }
    }

    /// Makes all bytes before `end` readable.
    pub(super) fn set_readable_end(&mut self, now: Instant, end: u64) {
        self.readable_end = self.readable_end.max(end);
        self.read(now);
    }

    /// Advances playback to `now` and reads what the buffer takes.
    pub(super) fn read(&mut self, now: Instant) {
        self.player.advance(now);
        let before = self.player.state();
        self.player.on_arrival(now, self.readable_end.min(self.player.read_limit()));
        if before == PlayerState::Buffering && self.player.state() != before {
            let waiting = self.player.buffering_time()
                - self.buffering_periods.iter().map(|(_, wait)| *wait).sum::<Duration>();
            self.buffering_periods.push((now.since(Instant::ZERO), waiting));
        }
    }

    /// End of the bytes read, if it has changed since the last call.
    pub(super) fn unreported_end(&mut self) -> Option<u64> {
        let read_end = self.player.arrived();
        (read_end > self.reported_end).then(|| {
            self.reported_end = read_end;
            read_end
        })
    }

    /// When the player's state changes without new data.
    pub(super) fn next_event(&self) -> Option<Instant> {
        self.player.next_change()
    }

    /// Whether nothing can happen without new data.
    pub(super) fn is_over(&self) -> bool {
        self.player.next_change().is_none()
    }

    pub(super) fn into_outcome(self) -> PlaybackOutcome {
        let since = |at: Instant| at.since(Instant::ZERO);
        PlaybackOutcome {
            playback_time: self.player.playback_time(),
            first_frame: self.player.first_frame().map(since),
            buffering_time: self.player.buffering_time(),
            stalls: self.player.stalls(),
            buffering_periods: self.buffering_periods,
        }
    }
}
