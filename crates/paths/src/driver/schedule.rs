//! When the driver does its periodic tasks, its retries, and the dumps after lost events.

use std::time::Duration;

use marline_core::units::Instant;

use super::super::PathsError;
use super::retry::Retry;

/// Times of the driver's own tasks. The deadline of the machine is not among them.
#[derive(Debug)]
pub(super) struct Schedule {
    next_second: Instant,
    next_full_check: Instant,
    /// When the budgets are written to disk next.
    next_save: Instant,
    /// Set after events were lost: when the sockets are dumped again.
    next_resync: Option<Instant>,
    /// No resynchronization before this time, so that dumps do not take all the CPU time.
    resync_not_before: Instant,
    /// The interfaces are not listed again before this time.
    survey_not_before: Instant,
    /// Retry state of listing interfaces, of dumps, and of reading events.
    pub(super) survey: Retry,
    pub(super) dump: Retry,
    pub(super) events: Retry,
}

impl Default for Schedule {
    fn default() -> Self {
        Self {
            next_second: Instant::ZERO,
            next_full_check: Instant::ZERO + FULL_CHECK_INTERVAL,
            next_save: Instant::ZERO + SAVE_INTERVAL,
            next_resync: None,
            resync_not_before: Instant::ZERO,
            survey_not_before: Instant::ZERO,
            survey: Retry::new("listing interfaces"),
            dump: Retry::new("dumping sockets"),
            events: Retry::new("reading MPTCP events"),
        }
    }
}

impl Schedule {
    /// Whether the tasks of a second are due; schedules the next ones.
    pub(super) fn take_second(&mut self, now: Instant) -> bool {
        let is_due = now >= self.next_second;
        if is_due {
            self.next_second = now + SECOND;
        }
        is_due
    }

    /// Whether a full check is due; schedules the next one.
    pub(super) fn take_full_check(&mut self, now: Instant) -> bool {
        let is_due = now >= self.next_full_check;
        if is_due {
            self.next_full_check = now + FULL_CHECK_INTERVAL;
        }
        is_due
    }

    /// Moves the next full check to this time if that is earlier.
    pub(super) fn check_fully_at(&mut self, at: Instant) {
        self.next_full_check = self.next_full_check.min(at);
    }

    /// Moves the next full check to shortly after the next permitted dump if that is earlier.
    pub(super) fn check_fully_after_fallback(&mut self) {
        self.check_fully_at(self.resync_not_before + FALLBACK_CHECK_DELAY);
    }

    /// Whether the budgets are to be saved.
    pub(super) fn is_save_due(&self, now: Instant) -> bool {
        now >= self.next_save
    }

    /// Schedules the next save. After a failure it is an hour away, because each failure writes a line to the log.
    pub(super) fn on_saved(&mut self, now: Instant, is_success: bool) {
        self.next_save = now + if is_success { SAVE_INTERVAL } else { SAVE_INTERVAL * 360 };
    }

    /// Events were lost: the sockets are dumped as soon as that is permitted.
    pub(super) fn on_events_lost(&mut self) {
        self.next_resync = Some(self.next_resync.unwrap_or(self.resync_not_before));
    }

    /// Whether lost events make a dump due. A failed dump is retried on its own schedule.
    pub(super) fn is_resync_due(&self, now: Instant) -> bool {
        self.next_resync.is_some_and(|due| due <= now) && self.dump.next_attempt().is_none()
    }

    /// A dump is complete that began at `start`. The pause until the next one is a multiple of its duration.
    pub(super) fn on_resynced(&mut self, start: Instant, now: Instant) {
        self.next_resync = None;
        self.resync_not_before = now + now.since(start) * RESYNC_PAUSE_FACTOR;
    }

    /// Whether a change of the interfaces may be examined now.
    pub(super) fn can_survey(&self, now: Instant) -> bool {
        now >= self.survey_not_before
    }

    /// Records the result of a survey after a change.
    ///
    /// # Errors
    /// An error that is not transient.
    pub(super) fn on_change_surveyed(
        &mut self,
        now: Instant,
        result: Result<(), PathsError>,
    ) -> Result<(), PathsError> {
        self.survey_not_before = now + SURVEY_INTERVAL;
        self.survey.record_result(now, result)
    }

    /// The earliest time at which one of these tasks is due.
    pub(super) fn deadline(&self, now: Instant) -> Instant {
        let mut next = self.next_second.min(self.next_full_check);
        next = match self.dump.next_attempt() {
            Some(due) => next.min(due),
            None => self.next_resync.map_or(next, |due| next.min(due)),
        };
        // Events are not polled: once reading is permitted again, they wake the loop. Therefore only future times
        // count.
        let events_at = self.events.next_attempt().filter(|due| *due > now);
        next = self.survey.next_attempt().into_iter().chain(events_at).fold(next, Instant::min);
        if self.survey_not_before > now { next.min(self.survey_not_before) } else { next }
    }
}

pub(super) const SECOND: Duration = Duration::from_secs(1);
/// Our choice: a dump of ten thousand connections takes 0.15 s, so the checks cost half a percent of a core at that
/// size.
const FULL_CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// Delay of the full check after a fallback. Our choice: a host whose servers all lack MPTCP sees fallbacks all the
/// time.
const FALLBACK_CHECK_DELAY: Duration = Duration::from_secs(3);
/// Shortest interval between two surveys after changes. Our choice: a burst of changes (DHCP) counts as one, and a
/// lost carrier is noticed after this time at the latest.
const SURVEY_INTERVAL: Duration = Duration::from_millis(50);
/// Our choice: a crash loses the budget use of this interval, and the load on the disk is negligible.
const SAVE_INTERVAL: Duration = Duration::from_secs(10);
/// Pause after a dump, in multiples of its duration. Our choice: a fifth of a core at most, and less than a second with
/// ten thousand connections.
const RESYNC_PAUSE_FACTOR: u32 = 4;
