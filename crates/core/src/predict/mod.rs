//! Estimators: plain values that predict throughput from past measurements.

mod forecast;
mod holt_winters;
mod rate_window;

pub use forecast::{ExpectedBytes, Forecast};
pub use holt_winters::HoltWinters;
pub use rate_window::RateWindow;
