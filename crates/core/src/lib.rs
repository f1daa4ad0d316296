//! What to do: the decisions of marline, as pure machines.
//!
//! Nothing here knows the operating system. The crate is `no_std`, so the compiler itself refuses clocks, sockets,
//! threads, files and hash maps; what the world knows comes in as values, and what is to be done goes out as values.
//! One contract ([`machine::Machine`]) serves every feature, one pump (in `marline-net`) and one simulated world (in
//! `marline-sim`) drive them all, and a log of inputs replays any decision ever taken.
//!
//! The rooms form a ladder; each may use only those named before it:
//! [`units`] → [`machine`] → [`wire`] → [`link`] → [`predict`] → [`energy`] → [`fetch`] → [`playback`] →
//! [`stream`]; [`batch`] stands on `fetch`, [`paths`] on `energy`, [`accel`] on `wire` and `link`, and [`assign`] and
//! [`link_choice`] on `units` alone. [`printable`] uses none of them: every crate that shows text from outside escapes it there.
#![no_std]

extern crate alloc;

pub mod accel;
pub mod assign;
pub mod batch;
pub mod decision_log;
pub mod energy;
pub mod fetch;
pub mod link;
pub mod link_choice;
pub mod machine;
pub mod paths;
pub mod playback;
pub mod predict;
pub mod printable;
pub mod stream;
pub mod units;
pub mod wire;
