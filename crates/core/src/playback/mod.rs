//! A video player, as far as whoever brings it bytes has to know it: what it has, what it plays, by when it needs more.
//!
//! In: the video's [`Profile`], the player's [`Thresholds`], and the moments at which in-order bytes reached it. Out:
//! when it plays, when it stands still and for how long, and the deadline of every byte.
//!
//! 1. The player of GreenBag §II-B: it *buffers* until B bytes wait in its buffer, *plays* until the buffer is empty,
//!    and buffers again. A(t) has arrived, D(t) is decoded, X(t) = A(t) − D(t) waits ([`Player`]).
//! 2. I(t), the interruption, is all time spent buffering, the first wait included; the playback time is the video's
//!    duration and the whole interruption.
//! 3. From any moment on, the playback time is the least possible if the first k bytes are there by the moment at which
//!    the decoder gets to them, plus I(t) ([`Player::deadline`]). With a variable bit rate k/Q becomes the profile's
//!    time of byte k.
//! 4. Everything is whole bytes and nanoseconds: the same arrivals give the same stalls on every machine.
//!
//! Frames were not modelled: GreenBag counts bits, a proxy sees bytes, and a frame (40 ms) is far below what a buffer of
//! megabytes decides.

mod media_profile;
mod player;

pub use media_profile::{MediaProfile, ProfileError, Timing};
pub use player::{BufferThresholds, Player, PlayerState};
