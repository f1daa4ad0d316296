//! Estimators: plain values that turn what was seen into what to expect.

mod course;
mod meter;

pub use course::{Course, Supply};
pub use meter::Meter;
