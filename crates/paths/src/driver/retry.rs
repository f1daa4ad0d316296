//! What fails and may heal: tried again, ever more seldom.
//!
//! In: what came of a try. Out: when the next one is due, or the error that ends the run, because it stays.
//!
//! A kernel that is short of memory, a list that changes while it is told, an interface that vanishes while it is asked
//! about: all these pass, and connections go on meanwhile. The first failure of a row is told, and its end.

use std::time::Duration;

use marline_core::units::Instant;

use super::super::PathsError;

/// Failures of one kind in a row.
#[derive(Debug)]
pub(super) struct Retry {
    operation: &'static str,
    /// How long was waited last, and until when.
    backoff: Option<(Duration, Instant)>,
}

impl Retry {
    /// None so far.
    pub(super) const fn new(operation: &'static str) -> Self {
        Self { operation, backoff: None }
    }

    /// Something was tried.
    ///
    /// # Errors
    /// What no waiting helps against.
    pub(super) fn record_result(&mut self, now: Instant, result: Result<(), PathsError>) -> Result<(), PathsError> {
        let operation = self.operation;
        match (result, self.backoff) {
            (Ok(()), None) => {}
            (Ok(()), Some(_)) => {
                tracing::info!("{operation}: well again");
                self.backoff = None;
            }
            (Err(error), _) if !error.is_transient() => return Err(error),
            (Err(error), previous) => {
                match previous {
                    None => tracing::warn!(%error, "{operation}: trying again until it works"),
                    Some(_) => tracing::debug!(%error, "{operation}"),
                }
                let delay = previous.map_or(MIN_RETRY_DELAY, |(delay, _)| (delay * 2).min(MAX_RETRY_DELAY));
                self.backoff = Some((delay, now + delay));
            }
        }
        Ok(())
    }

    /// When it is to be tried again; none: it worked last.
    pub(super) fn next_attempt(&self) -> Option<Instant> {
        self.backoff.map(|(_, due)| due)
    }

    /// Whether it may be tried.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.next_attempt().is_none_or(|due| due <= now)
    }
}

/// chosen: as long as a burst of changes takes.
pub(super) const MIN_RETRY_DELAY: Duration = Duration::from_millis(50);
/// chosen: what has failed for long costs next to nothing, and is well a moment after its cause has gone.
pub(super) const MAX_RETRY_DELAY: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn os_error(number: i32) -> Result<(), PathsError> {
        Err(PathsError::kernel("a test", io::Error::from_raw_os_error(number)))
    }

    #[test]
    fn what_heals_is_tried_ever_more_seldom_until_it_works() {
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
    fn what_is_not_permitted_or_not_there_ends_it() {
        for number in [1, 13, 2, 93, 95, 97] {
            assert!(Retry::new("a test").record_result(Instant::ZERO, os_error(number)).is_err(), "{number}");
        }
    }
}
