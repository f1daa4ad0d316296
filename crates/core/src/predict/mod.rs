//! Estimators: plain values that predict throughput from past measurements.
//!
//! [`Forecast`]: bytes that a link delivers within seconds to minutes, with their standard deviation (streams).
//! [`HoltWinters`]: next throughput sample of a path, from level and trend (eMPTCP, `paths`).
//! [`RateWindow`]: mean rate over any part of the last two seconds (downloads).

mod forecast;
mod holt_winters;
mod rate_window;

pub use forecast::{ExpectedBytes, Forecast};
pub use holt_winters::HoltWinters;
pub use rate_window::RateWindow;
