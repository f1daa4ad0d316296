//! Whether the machine was calm: waiting for data is a fault of ours, waiting for a processor is not.

use std::time::{Duration, Instant};

/// The time from here on.
pub(crate) struct Calm {
    began: Instant,
    waited: Option<Duration>,
}

impl Calm {
    pub(crate) fn begin() -> Self {
        Self { began: Instant::now(), waited: waited() }
    }

    /// Whether work had a processor for most of the time since. If not, or if nobody can say, it says so, and what
    /// depends on the clock decides nothing.
    pub(crate) fn held(&self) -> bool {
        let share = self
            .waited
            .zip(waited())
            .map(|(before, now)| now.saturating_sub(before).as_secs_f64() / self.began.elapsed().as_secs_f64());
        let calm = share.is_some_and(|share| share < 0.2);
        if !calm {
            eprintln!("skipped: waits are not judged, the machine was busy ({share:?} of the time)");
        }
        calm
    }
}

/// How long work has waited for a processor since the machine began (PSI).
fn waited() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/pressure/cpu").ok()?;
    let total = text.lines().find(|line| line.starts_with("some"))?.rsplit_once("total=")?.1;
    total.trim().parse().ok().map(Duration::from_micros)
}
