//! Estimators: plain values that turn what was seen into what to expect.

mod course;
mod holt;
mod meter;

pub use course::{Course, Supply};
pub use holt::Holt;
pub use meter::Meter;
