//! What is asked of marline in a case, and what the best other client reached there.
//!
//! | written | met when |
//! |---|---|
//! | `{ ideal = 1.045 }` | the median time is at most so many times the ideal |
//! | `{ paired = 1.0, worst = 1.015 }` | over all cases of the file, time ÷ aria2's best setting's: the median, and the largest |
//! | `{ rss = "12MB" }` | the most memory that any run had is at most that |
//! | `{ curl = 1.02, extra_time = "3ms", max_time = "560ms" }` | the median time is at most `curl` times curl's plus `extra_time`; and at most `max_time`, if named |

use marline_core::units::{DataSize, Duration};
use serde::Serialize;

/// The bound.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Threshold {
    /// Times the ideal.
    TimesIdeal(f64),
    /// Times the best setting of aria2 in the same runs.
    TimesAria2 {
        /// The median of all cases.
        median: f64,
        /// Each case.
        worst: f64,
    },
    /// The most memory.
    MaxRss(DataSize),
    /// Against curl on the best single link.
    TimesCurl {
        /// Times curl's.
        factor: f64,
        /// And so much more.
        extra_time: Duration,
        /// Never more than this.
        max_time: Option<Duration>,
    },
}

/// The best other client that was measured on such links.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Baseline {
    /// Which client and setting.
    pub name: String,
    /// Its time divided by the ideal.
    pub times_ideal: f64,
}
