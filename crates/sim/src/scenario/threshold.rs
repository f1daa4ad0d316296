//! Result that marline must reach in a case, and the best result of another client there.
//!
//! | text | condition |
//! |---|---|
//! | `{ ideal = 1.045 }` | the median time is at most this multiple of the ideal time |
//! | `{ paired = 1.0, worst = 1.015 }` | ratio to the time of aria2's best setting: median and maximum over all cases |
//! | `{ rss = "12MB" }` | the peak memory of every run is at most this |
//! | `{ curl = 1.02, extra_time = "3ms", max_time = "560ms" }` | median ≤ curl's × `curl` + `extra_time`, and ≤ `max_time` if given |

use marline_core::units::{DataSize, Duration};
use serde::Serialize;

/// A condition on the result of a case.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Threshold {
    /// Maximum ratio to the ideal time.
    TimesIdeal(f64),
    /// Maximum ratio to the best setting of aria2 in the same runs.
    TimesAria2 {
        /// For the median of all cases.
        median: f64,
        /// Maximum ratio in every single case.
        worst: f64,
    },
    /// Maximum resident memory of marline in any run.
    MaxRss(DataSize),
    /// Comparison with curl on the best single link.
    TimesCurl {
        /// Factor applied to curl's time.
        factor: f64,
        /// Time added to the multiple of curl's time.
        extra_time: Duration,
        /// Absolute limit, if there is one.
        max_time: Option<Duration>,
    },
}

/// The best result of another client on such links.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Baseline {
    /// Client and setting, such as `aria2-s2`.
    pub name: String,
    /// Its time divided by the ideal time.
    pub times_ideal: f64,
}
