//! Somebody who watches what the machine delivers: an emulated player.
//!
//! In: how far the machine lets it read. Out: how far it has read, and at the end how it was ([`Viewing`]).
//!
//! It reads everything at once that it is given and wants; between the machine and the player lies no network.

use marline_core::playback::{Player, PlayerState};
use marline_core::units::{Duration, Instant};

/// How it was to watch.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PlaybackOutcome {
    /// P; none: the end was not reached.
    pub playback_time: Option<Duration>,
    /// When the first picture was shown.
    pub first_frame: Option<Duration>,
    /// I: all time spent waiting, the first wait included.
    pub buffering_time: Duration,
    /// How often it ran dry after the start.
    pub stalls: u32,
    /// Each wait that ended, the first one included: when it ended and how long it was.
    pub buffering_periods: Vec<(Duration, Duration)>,
}

/// The player, and what it may read.
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

    /// Everything before `upto` may be read.
    pub(super) fn set_readable_end(&mut self, now: Instant, upto: u64) {
        self.readable_end = self.readable_end.max(upto);
        self.read(now);
    }

    /// Time has reached `now`: plays, and reads what it wants.
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

    /// How far it has read, if that is news.
    pub(super) fn unreported_end(&mut self) -> Option<u64> {
        let read_end = self.player.arrived();
        (read_end > self.reported_end).then(|| {
            self.reported_end = read_end;
            read_end
        })
    }

    /// When something happens although nothing is delivered.
    pub(super) fn next_event(&self) -> Option<Instant> {
        self.player.next_change()
    }

    /// Whether nothing happens any more without new bytes.
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
