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
pub(super) struct Trouble {
    what: &'static str,
    /// How long was waited last, and until when.
    waiting: Option<(Duration, Instant)>,
}

impl Trouble {
    /// None so far.
    pub(super) const fn of(what: &'static str) -> Self {
        Self { what, waiting: None }
    }

    /// Something was tried.
    ///
    /// # Errors
    /// What no waiting helps against.
    pub(super) fn came_to(&mut self, now: Instant, tried: Result<(), PathsError>) -> Result<(), PathsError> {
        let what = self.what;
        match (tried, self.waiting) {
            (Ok(()), None) => {}
            (Ok(()), Some(_)) => {
                tracing::info!("{what}: well again");
                self.waiting = None;
            }
            (Err(error), _) if !error.heals() => return Err(error),
            (Err(error), before) => {
                match before {
                    None => tracing::warn!(%error, "{what}: trying again until it works"),
                    Some(_) => tracing::debug!(%error, "{what}"),
                }
                let pause = before.map_or(FIRST, |(pause, _)| (pause * 2).min(LONGEST));
                self.waiting = Some((pause, now + pause));
            }
        }
        Ok(())
    }

    /// When it is to be tried again; none: it worked last.
    pub(super) fn again(&self) -> Option<Instant> {
        self.waiting.map(|(_, at)| at)
    }

    /// Whether it may be tried.
    pub(super) fn may(&self, now: Instant) -> bool {
        self.again().is_none_or(|at| at <= now)
    }
}

/// chosen: as long as a burst of changes takes.
pub(super) const FIRST: Duration = Duration::from_millis(50);
/// chosen: what has failed for long costs next to nothing, and is well a moment after its cause has gone.
pub(super) const LONGEST: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn failed(number: i32) -> Result<(), PathsError> {
        Err(PathsError::kernel("a test", io::Error::from_raw_os_error(number)))
    }

    #[test]
    fn what_heals_is_tried_ever_more_seldom_until_it_works() {
        let (mut trouble, mut now, mut pauses) = (Trouble::of("a test"), Instant::ZERO, Vec::new());
        for number in [105, 4, 11, 16, 12, 19, 105, 105, 105] {
            trouble.came_to(now, failed(number)).unwrap();
            let next = trouble.again().unwrap();
            assert!(!trouble.may(now) && trouble.may(next));
            pauses.push(next.since(now).as_millis());
            now = next;
        }
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        trouble.came_to(now, Ok(())).unwrap();
        assert_eq!(trouble.again(), None);
    }

    #[test]
    fn what_is_not_permitted_or_not_there_ends_it() {
        for number in [1, 13, 2, 93, 95, 97] {
            assert!(Trouble::of("a test").came_to(Instant::ZERO, failed(number)).is_err(), "{number}");
        }
    }
}
