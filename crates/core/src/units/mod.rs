//! Units as types: time, size, rate, power, energy and ratio. No other code represents them by bare integers.
//!
//! Numbers from outside are parsed together with their unit (`20Mbit/s`, `50ms`, `500KiB`, `0.5%`), and operators
//! exist only for combinations that make sense.
//!
//! 1. Kilo is 1000 and kibi is 1024. A rate counts bits, a size counts bytes.
//! 2. Everything is an integer (nanoseconds, bytes, bits per second, parts per million, microwatts, nanojoules), so
//!    that a replay on another computer gives the same result to the last bit.
//! 3. Arithmetic saturates at zero and at the type's maximum; it never panics and never wraps.
//! 4. `size / time` and `rate * time` round down, and so do powers and energies. `size / rate` rounds up, so that
//!    the predicted end of a transfer is never too early.
//!
//! A general crate of physical units was rejected: it knows meters and candelas, but not that a link's rate is in
//! bits while a file's size is in bytes.

mod arithmetic;
mod conversions;
mod energy;
mod instant;
mod parse;
mod power;
mod rate;
mod ratio;
mod size;

pub use core::time::Duration;
pub use energy::{Energy, EnergyPerBit};
pub use instant::Instant;
pub use parse::{ParseUnitError, UnknownName, parse_duration};
pub use power::Power;
pub use rate::Bitrate;
pub use ratio::Ratio;
pub use size::DataSize;
