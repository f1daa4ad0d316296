//! Estimators: plain values that turn what was seen into what to expect.

mod forecast;
mod holt_winters;
mod rate_window;

pub use forecast::{ExpectedBytes, Forecast};
pub use holt_winters::HoltWinters;
pub use rate_window::RateWindow;
