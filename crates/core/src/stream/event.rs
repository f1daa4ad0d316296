//! Inputs and outputs of a stream: those of the download, and a few for the player.
//!
//! The download's events are serialized as in a download's own decision log.

use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::fetch;
use crate::link::LinkId;
use crate::playback::{BufferThresholds, MediaProfile};
use crate::units::DataSize;

/// An input of the stream.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Input {
    /// An event of the download: on the network, or data consumed by the reader.
    Fetch(fetch::Input),
    /// An event of the player.
    Player(PlayerInput),
}

/// An event in the player.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "in")]
pub enum PlayerInput {
    /// The player continues reading at this offset, which the driver cannot serve from the bytes that it holds.
    Seek {
        /// Offset of the first byte that the player requests.
        offset: u64,
    },
    /// The video has become known, or better known. Until then all links are used as in a plain download.
    Video {
        /// Profile of the video.
        video: MediaProfile,
        /// Thresholds of the player's buffer.
        player: BufferThresholds,
        /// Media time of the current playback position.
        position: Duration,
        /// Whether the player is playing.
        is_playing: bool,
    },
    /// The resource is one part of several that are played in sequence, each with a stream of its own (HLS, DASH).
    MediaSegment {
        /// Profile of this part, beginning with the first byte of the resource.
        video: MediaProfile,
        /// Thresholds of the player's buffer.
        player: BufferThresholds,
        /// Playing time of earlier parts that the player still has in its buffer.
        lead_time: Duration,
        /// Playback position within this part.
        position: Duration,
        /// Whether the player is playing.
        is_playing: bool,
        /// Bytes of the parts that follow this one and arrive over the same links.
        following_bytes: DataSize,
        /// Playing time of those bytes.
        following_time: Duration,
    },
    /// The player reports its state. Without such reports the stream relies on its player model.
    Position {
        /// Media time of the current playback position.
        position: Duration,
        /// Whether the player is playing.
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

/// A command for the driver, or a report.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Output {
    /// A command of the download, for the network or the user.
    Fetch(fetch::Output),
    /// A stream event: for the player, or for reports.
    Stream(StreamEvent),
}

/// A stream event that a plain download does not have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "out")]
pub enum StreamEvent {
    /// All bytes before this offset may be delivered to the player.
    Deliver {
        /// Offset one past the last deliverable byte.
        end: u64,
    },
    /// The link mode has changed. For reports; the driver also closes idle connections of links that are out of use.
    Mode {
        /// The new mode.
        mode: LinkMode,
        /// Reason of the change.
        reason: ModeReason,
    },
    /// A link goes on standby or becomes active again. For reports; the driver also closes the idle connections of a link
    /// on standby.
    Standby {
        /// The link.
        link: LinkId,
        /// Whether the link is now on standby.
        standby: bool,
        /// Reason of the change.
        reason: ModeReason,
    },
    /// A lagging link lost the bytes that block in-order delivery to other links. For reports.
    Recovered {
        /// The lagging link.
        link: LinkId,
    },
}

/// Links in use: GreenBag's link mode, extended to any number of links.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkMode {
    /// All links: GreenBag's dual-link mode.
    #[default]
    All,
    /// One link alone.
    Only(LinkId),
}

/// Reason for a change of mode or standby state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModeReason {
    /// The player is buffering, so every byte is late.
    Buffering,
    /// No single link would deliver everything in time.
    SingleLinkTooSlow,
    /// The link or links in use deliver everything in time at the least cost.
    Cheapest,
    /// The buffer may run empty before the outstanding bytes arrive.
    BufferLow,
    /// The only active link is down.
    LinkLost,
}

impl From<fetch::Output> for Output {
    fn from(output: fetch::Output) -> Self {
        Self::Fetch(output)
    }
}
