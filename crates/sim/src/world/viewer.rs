//! Somebody who watches what the machine delivers: an emulated player.
//!
//! In: how far the machine lets it read. Out: how far it has read, and at the end how it was ([`Viewing`]).
//!
//! It reads everything at once that it is given and wants; between the machine and the player lies no network.

use marline_core::playback::{Player, PlayerState};
use marline_core::units::{Duration, Instant};

/// How it was to watch.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Viewing {
    /// P; none: the end was not reached.
    pub playback_time: Option<Duration>,
    /// When the first picture was shown.
    pub first_picture: Option<Duration>,
    /// I: all time spent waiting, the first wait included.
    pub interrupted: Duration,
    /// How often it ran dry after the start.
    pub stalls: u32,
    /// Each wait that ended, the first one included: when it ended and how long it was.
    pub waits: Vec<(Duration, Duration)>,
}

/// The player, and what it may read.
#[derive(Debug)]
pub(super) struct Viewer {
    player: Player,
    offered: u64,
    told: u64,
    waits: Vec<(Duration, Duration)>,
}

impl Viewer {
    pub(super) const fn new(player: Player) -> Self {
        Self { player, offered: 0, told: 0, waits: Vec::new() }
    }

    /// Everything before `upto` may be read.
    pub(super) fn offer(&mut self, now: Instant, upto: u64) {
        self.offered = self.offered.max(upto);
        self.read(now);
    }

    /// Time has reached `now`: plays, and reads what it wants.
    pub(super) fn read(&mut self, now: Instant) {
        self.player.advance(now);
        let before = self.player.state();
        self.player.on_arrival(now, self.offered.min(self.player.read_limit()));
        if before == PlayerState::Buffering && self.player.state() != before {
            let waited = self.player.buffering_time() - self.waits.iter().map(|(_, wait)| *wait).sum::<Duration>();
            self.waits.push((now.since(Instant::ZERO), waited));
        }
    }

    /// How far it has read, if that is news.
    pub(super) fn news(&mut self) -> Option<u64> {
        let read = self.player.arrived();
        (read > self.told).then(|| {
            self.told = read;
            read
        })
    }

    /// When something happens although nothing is delivered.
    pub(super) fn next(&self) -> Option<Instant> {
        self.player.next_change()
    }

    /// Whether nothing happens any more without new bytes.
    pub(super) fn is_over(&self) -> bool {
        self.player.next_change().is_none()
    }

    pub(super) fn viewing(self) -> Viewing {
        let since = |at: Instant| at.since(Instant::ZERO);
        Viewing {
            playback_time: self.player.playback_time(),
            first_picture: self.player.first_frame().map(since),
            interrupted: self.player.buffering_time(),
            stalls: self.player.stalls(),
            waits: self.waits,
        }
    }
}
