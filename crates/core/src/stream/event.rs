//! What the driver tells a stream, and what the stream asks of the driver: the download's words, and a few more.
//!
//! In a log the download's lines look as they do in a download's own log.

use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::fetch;
use crate::link::LinkId;
use crate::playback::{BufferThresholds, MediaProfile};
use crate::units::DataSize;

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Input {
    /// On the network, or the reader has taken something.
    Fetch(fetch::Input),
    /// In the player.
    Player(PlayerInput),
}

/// What happened in the player.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "in")]
pub enum PlayerInput {
    /// It reads on at this offset, which the driver cannot serve from what it holds.
    Seek {
        /// The first byte that it wants.
        offset: u64,
    },
    /// What it plays has become known, or is known better. Until then all links are used as for a download.
    Video {
        /// The video.
        video: MediaProfile,
        /// When the player starts and has enough.
        player: BufferThresholds,
        /// Time of the video at which it stands.
        position: Duration,
        /// Whether it plays.
        is_playing: bool,
    },
    /// What it plays is one part of several that follow one another, each with a stream of its own (HLS, DASH).
    MediaSegment {
        /// This part, from the first byte of the resource on.
        video: MediaProfile,
        /// When the player starts and has enough.
        player: BufferThresholds,
        /// What it has yet to play before this part.
        lead_time: Duration,
        /// Time of this part at which it stands.
        position: Duration,
        /// Whether it plays.
        is_playing: bool,
        /// What follows this part: bytes that come over the same links.
        following_bytes: DataSize,
        /// And how long that plays.
        following_time: Duration,
    },
    /// It says of itself where it stands. Without this the stream reckons with the player's model.
    Position {
        /// Time of the video.
        position: Duration,
        /// Whether it plays.
        is_playing: bool,
    },
}

impl From<fetch::Input> for Input {
    fn from(input: fetch::Input) -> Self {
        Self::Fetch(input)
    }
}

impl From<PlayerInput> for Input {
    fn from(input: PlayerInput) -> Self {
        Self::Player(input)
    }
}

/// What the driver is to do.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Output {
    /// On the network, or for the user.
    Fetch(fetch::Output),
    /// For the player and for those who watch.
    Stream(StreamEvent),
}

/// What only a stream says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "out")]
pub enum StreamEvent {
    /// The player may have everything before this offset.
    Deliver {
        /// One past the last byte.
        end: u64,
    },
    /// From now on these links are used. For reports; nothing is to be done.
    Mode {
        /// Which.
        mode: LinkMode,
        /// Why.
        reason: ModeReason,
    },
    /// A link rests from now on, or works again. For reports.
    Standby {
        /// The link.
        link: LinkId,
        /// Whether it rests.
        standby: bool,
        /// Why.
        reason: ModeReason,
    },
    /// A lagging link was relieved of the bytes that everything waits for. For reports.
    Recovered {
        /// The lagging link.
        link: LinkId,
    },
}

/// Which links are used: GreenBag's link mode, for any number of links.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkMode {
    /// All of them: GreenBag's dual-link mode.
    #[default]
    All,
    /// Only this one.
    Only(LinkId),
}

/// Why a mode was chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModeReason {
    /// The player waits: every byte is late.
    Buffering,
    /// No single link would bring everything in time.
    SingleLinkTooSlow,
    /// It brings everything in time on the least energy.
    Cheapest,
    /// The buffer would run dry before the present segment is there.
    BufferLow,
    /// The only link that was used does not work.
    LinkLost,
}

impl From<fetch::Output> for Output {
    fn from(output: fetch::Output) -> Self {
        Self::Fetch(output)
    }
}
