//! Retries operations of the driver that failed with a transient error, with exponential backoff.
//!
//! Transient are: a kernel that is short of memory, a list that changes during a dump, an interface that vanishes
//! while it is queried. Connections continue meanwhile. Other errors end the run. Only the first failure of a series
//! and the recovery are logged.

use std::time::Duration;

use marline_core::units::Instant;

use super::super::PathsError;

/// Retry state of one operation.
#[derive(Debug)]
pub(super) struct Retry {
    operation: &'static str,
    /// The last delay and the time of the next attempt; none: the last attempt succeeded.
    backoff: Option<(Duration, Instant)>,
}

impl Retry {
    /// Starts without failures.
    pub(super) const fn new(operation: &'static str) -> Self {
        Self { operation, backoff: None }
    }

    /// Records the result of an attempt.
    ///
    /// # Errors
    /// An error that is not transient.
    pub(super) fn record_result(&mut self, now: Instant, result: Result<(), PathsError>) -> Result<(), PathsError> {
        let operation = self.operation;
        match (result, self.backoff) {
            (Ok(()), None) => {}
            (Ok(()), Some(_)) => {
                tracing::info!("{operation}: recovered");
                self.backoff = None;
            }
            (Err(error), _) if !error.is_transient() => return Err(error),
            (Err(error), previous) => {
                match previous {
                    None => tracing::warn!(%error, "{operation}: failed; retrying until it succeeds"),
                    Some(_) => tracing::debug!(%error, "{operation}"),
                }
                let delay = previous.map_or(MIN_RETRY_DELAY, |(delay, _)| (delay * 2).min(MAX_RETRY_DELAY));
                self.backoff = Some((delay, now + delay));
            }
        }
        Ok(())
    }

    /// Time of the next attempt; none: the last one succeeded.
    pub(super) fn next_attempt(&self) -> Option<Instant> {
        self.backoff.map(|(_, due)| due)
    }

    /// Whether an attempt is permitted now.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.next_attempt().is_none_or(|due| due <= now)
    }
}

/// Our choice: the duration of a burst of interface changes.
pub(super) const MIN_RETRY_DELAY: Duration = Duration::from_millis(50);
/// Our choice: attempts at this interval cost next to nothing, and recovery is noticed soon after the cause has gone.
pub(super) const MAX_RETRY_DELAY: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn os_error(number: i32) -> Result<(), PathsError> {
        Err(PathsError::kernel("a test", io::Error::from_raw_os_error(number)))
    }

    #[test]
    fn transient_errors_are_retried_with_growing_delays_until_success() {
        let (mut retry, mut now, mut delays) = (Retry::new("a test"), Instant::ZERO, Vec::new());
        for number in [105, 4, 11, 16, 12, 19, 105, 105, 105] {
            retry.record_result(now, os_error(number)).unwrap();
            let next = retry.next_attempt().unwrap();
            assert!(!retry.is_due(now) && retry.is_due(next));
            delays.push(next.since(now).as_millis());
            now = next;
        }
        assert_eq!(delays, [50, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        retry.record_result(now, Ok(())).unwrap();
        assert_eq!(retry.next_attempt(), None);
    }

    #[test]
    fn permanent_errors_end_the_run() {
        for number in [1, 13, 2, 93, 95, 97] {
            assert!(Retry::new("a test").record_result(Instant::ZERO, os_error(number)).is_err(), "{number}");
        }
    }
}
