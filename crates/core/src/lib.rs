//! The decisions of marline: deterministic state machines, estimators and policies without I/O.
//!
//! The crate is `no_std`, so the compiler rejects clocks, sockets, threads, files and hash maps. Events and
//! measurements come in as values, and commands go out as values. All state machines follow one contract
//! ([`machine::Machine`]). Drivers run them on real networks, `marline-sim` runs them in virtual time, and a log of
//! inputs ([`decision_log`]) replays every decision.
//!
//! Modules may use only the modules named before them in this list:
//! [`units`] → [`machine`] → [`wire`] → [`link`] → [`predict`] → [`energy`] → [`fetch`] → [`playback`] →
//! [`stream`] → [`proxy`].
//! Beside it, [`batch`] uses `fetch`; [`paths`] uses `energy`; [`accel`] uses `wire` and `link`; [`assign`] and
//! [`link_choice`] use only `units`; [`fleet`] uses `assign`; [`decision_log`] uses `machine`. [`printable`] and
//! [`finding`] use none of them: every crate that prints text from outside escapes it with the one, and every check of a
//! host reports with the other.
#![no_std]

extern crate alloc;

pub mod accel;
pub mod assign;
pub mod batch;
pub mod decision_log;
pub mod energy;
pub mod fetch;
pub mod finding;
pub mod fleet;
pub mod link;
pub mod link_choice;
pub mod machine;
pub mod paths;
pub mod playback;
pub mod predict;
pub mod printable;
pub mod proxy;
pub mod stream;
pub mod units;
pub mod wire;
