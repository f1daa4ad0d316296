//! Model of a video player, as the component that delivers its bytes needs it: what it has, what it plays, and when it
//! needs more.
//!
//! From the video's [`MediaProfile`], the player's [`BufferThresholds`] and the times at which in-order bytes arrive,
//! the model computes when the player plays, when and how long it stalls, and the deadline of every byte.
//!
//! 1. The player is that of GreenBag §II-B: it *buffers* until its buffer holds B bytes, *plays* until the buffer is
//!    empty, and buffers again. A(t) bytes have arrived, D(t) are decoded, X(t) = A(t) − D(t) are buffered
//!    ([`Player`]).
//! 2. The interruption I(t) is all time spent buffering, including the initial wait. The playback time is the duration
//!    of the video plus the whole interruption.
//! 3. From any time on, the playback time is minimal if for every k the first k bytes arrive before the decoder reaches
//!    them, shifted by I(t) ([`Player::deadline`]). With a variable bit rate, k/Q becomes the profile's time of byte k.
//! 4. All arithmetic uses whole bytes and nanoseconds, so equal arrivals give equal stalls on every machine.
//!
//! Frames are not modeled: GreenBag counts bits, a proxy sees bytes, and a frame (40 ms) is negligible compared with
//! buffers of megabytes.

mod media_profile;
mod player;

pub use media_profile::{MediaProfile, ProfileError, Timing};
pub use player::{BufferThresholds, Player, PlayerState};
