//! Measures whether the machine was idle enough to judge stalls: a stall for lack of data is a bug, one for lack of CPU time is not.

use std::time::{Duration, Instant};

/// A measurement that begins with [`Self::begin`].
pub(crate) struct CpuPressure {
    began: Instant,
    waited: Option<Duration>,
}

impl CpuPressure {
    pub(crate) fn begin() -> Self {
        Self { began: Instant::now(), waited: total_cpu_wait() }
    }

    /// Whether tasks waited for a CPU for less than a fifth of the time since [`Self::begin`]. If not, or if the kernel has no pressure
    /// information, this prints a message, and the caller must not check times.
    pub(crate) fn was_low(&self) -> bool {
        let share = self
            .waited
            .zip(total_cpu_wait())
            .map(|(before, now)| now.saturating_sub(before).as_secs_f64() / self.began.elapsed().as_secs_f64());
        let calm = share.is_some_and(|share| share < 0.2);
        if !calm {
            eprintln!("skipped: stalls are not checked, the machine was busy ({share:?} of the time)");
        }
        calm
    }
}

/// How long tasks have waited for a CPU since boot (pressure stall information, `/proc/pressure/cpu`).
fn total_cpu_wait() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/pressure/cpu").ok()?;
    let total = text.lines().find(|line| line.starts_with("some"))?.rsplit_once("total=")?.1;
    total.trim().parse().ok().map(Duration::from_micros)
}
