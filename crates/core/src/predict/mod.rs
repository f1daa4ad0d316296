//! Estimators: plain values that turn what was seen into what to expect.

mod meter;

pub use meter::Meter;
