//! Happy Eyeballs over links (RFC 8305): starts the attempts of one new connection and derives outcomes for the
//! links.
//!
//! Call [`poll`](HappyEyeballs::poll) until it returns `None`, then wait for a result or for
//! [`deadline`](HappyEyeballs::deadline). Attempts that lost the race continue to their own time limits, because
//! their results show the state of their links.

use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use super::{LinkChoice, LinkFailure};
use crate::units::Instant;

/// Outcome of an attempt or a probe for the record of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The connection was established, after this time.
    Connected(Duration),
    /// The attempt failed, and the link is the cause.
    Failed(LinkFailure),
    /// The link showed the certificate of another server, and no other link showed that of the destination.
    Suspected,
    /// The earlier certificate of another server is not the link's fault, or is no longer shown: all links show it,
    /// or this link does not any more.
    Retracted,
}

/// One new connection over several links. See the module documentation.
#[derive(Clone, Debug)]
pub struct HappyEyeballs {
    attempts: Vec<Attempt>,
    /// Number of attempts started so far.
    started: usize,
    /// Time at which the next attempt starts.
    next_attempt: Instant,
    winner: Option<usize>,
    /// Whether the destination proves its identity by a certificate.
    is_authenticated: bool,
}

#[derive(Clone, Debug)]
struct Attempt {
    link: String,
    delay: Duration,
    /// Failure of the link when this attempt started.
    known_failure: Option<LinkFailure>,
    started_at: Option<Instant>,
    outcome: Option<Outcome>,
    /// Outcome that was last reported for the link.
    reported: Option<Outcome>,
}

impl Attempt {
    fn has_wrong_certificate(&self) -> bool {
        self.outcome == Some(Outcome::Failed(LinkFailure::WrongCertificate))
    }

    fn is_over_portal(&self) -> bool {
        self.known_failure.is_some_and(LinkFailure::is_portal)
    }

    /// Whether the result shows that the server which intercepted connections over this link no longer does so.
    fn ends_portal(&self) -> bool {
        self.known_failure == Some(LinkFailure::WrongCertificate)
            && matches!(self.outcome, Some(Outcome::Failed(kind)) if !matches!(kind, LinkFailure::WrongCertificate | LinkFailure::Dns))
    }
}

impl HappyEyeballs {
    /// Starts a connection to a destination that proves its identity by a certificate: over all links, in the order
    /// of their records.
    pub fn new(now: Instant, choice: &LinkChoice) -> Self {
        let attempt = |link: String| {
            let (delay, known_failure) = (choice.attempt_delay(&link), choice.failure(&link));
            Attempt { link, delay, known_failure, started_at: None, outcome: None, reported: None }
        };
        let attempts = choice.order().into_iter().map(attempt).collect();
        Self { attempts, started: 0, next_attempt: now, winner: None, is_authenticated: true }
    }

    /// Starts a connection to a destination without authentication. A link with a captive portal is not used,
    /// because the portal would win against a slow server, unless all other links have an outage.
    pub fn to_unauthenticated(now: Instant, choice: &LinkChoice) -> Self {
        let mut connection = Self { is_authenticated: false, ..Self::new(now, choice) };
        if connection.attempts.iter().any(|attempt| !attempt.known_failure.is_some_and(LinkFailure::is_outage)) {
            connection.attempts.retain(|attempt| !attempt.is_over_portal());
        }
        connection
    }

    /// Number of links that may be tried.
    pub fn len(&self) -> usize {
        self.attempts.len()
    }

    /// Whether no link may be tried.
    pub fn is_empty(&self) -> bool {
        self.attempts.is_empty()
    }

    /// Returns the number of the attempt that the driver must start now, and its link.
    pub fn poll(&mut self, now: Instant) -> Option<(usize, String)> {
        if self.winner.is_some() || now < self.next_attempt {
            return None;
        }
        let index = self.started;
        let attempt = self.attempts.get_mut(index)?;
        attempt.started_at = Some(now);
        self.next_attempt = now + attempt.delay;
        self.started += 1;
        Some((index, attempt.link.clone()))
    }

    /// Time at which to call `poll` and `new_outcomes` again if no result arrives.
    pub fn deadline(&self) -> Option<Instant> {
        if self.winner.is_some() {
            return None;
        }
        if self.started < self.attempts.len() {
            return Some(self.next_attempt);
        }
        // A wrong certificate is counted once the last link had time to show one as well and has not.
        let is_open = |attempt: &Attempt| attempt.has_wrong_certificate() && attempt.reported.is_none();
        let last = self.attempts.last().filter(|last| last.outcome.is_none())?;
        self.attempts.iter().any(is_open).then_some(last.started_at? + last.delay)
    }

    /// Records the result of an attempt. `Ok` may contain a defect of the link with which the destination was
    /// reached all the same. The first attempt that reached the destination wins.
    pub fn handle(&mut self, now: Instant, attempt: usize, result: Result<Option<LinkFailure>, LinkFailure>) {
        let Some(finished) = self.attempts.get_mut(attempt) else { return };
        finished.outcome = Some(match result {
            Ok(Some(failure)) => Outcome::Failed(failure),
            Ok(None) => Outcome::Connected(now.since(finished.started_at.unwrap_or(now))),
            Err(kind) => Outcome::Failed(kind),
        });
        if result.is_ok() {
            self.winner.get_or_insert(attempt);
        } else {
            // RFC 8305: after a failure the next attempt starts without waiting for its delay.
            self.next_attempt = self.next_attempt.min(now);
        }
    }

    /// Returns outcomes that have not been reported yet.
    ///
    /// An outcome depends on the other attempts: a failure is the link's fault only if another link reached the
    /// destination. Outcomes can therefore change while attempts finish, and a changed outcome is reported again.
    pub fn new_outcomes(&mut self, now: Instant) -> Vec<(String, Outcome)> {
        let is_late =
            |attempt: &Attempt| attempt.started_at.is_some_and(|started_at| now.since(started_at) >= attempt.delay);
        let mut decided = self.attempts.iter().filter(|attempt| attempt.outcome.is_some() || is_late(attempt));
        let all_wrong = decided.all(Attempt::has_wrong_certificate);
        let is_over = self.started == self.attempts.len();
        let destination_is_wrong = is_over && self.attempts.iter().all(Attempt::has_wrong_certificate);
        // Over a link with a portal, the portal may have answered instead of an unauthenticated destination.
        let winner = self.winner.and_then(|winner| self.attempts.get(winner));
        let winner = winner.filter(|winner| self.is_authenticated || !winner.is_over_portal());
        let (is_won, won_from) = (winner.is_some(), winner.and_then(|winner| winner.started_at));
        let mut outcomes = Vec::new();
        for attempt in &mut self.attempts {
            let outcome = match attempt.outcome {
                // Another link reached the destination, so the link intercepts the connection.
                Some(Outcome::Failed(LinkFailure::WrongCertificate)) if is_won => attempt.outcome,
                // All links show a wrong certificate: the destination's own is wrong. Earlier reports are
                // retracted.
                Some(Outcome::Failed(LinkFailure::WrongCertificate)) if destination_is_wrong => {
                    let was_counted = attempt.reported.is_some() || attempt.is_over_portal();
                    was_counted.then_some(Outcome::Retracted)
                }
                // Not all links show a wrong certificate, and none has reached the destination: this link is only
                // suspected.
                Some(Outcome::Failed(LinkFailure::WrongCertificate)) if is_over && !all_wrong => {
                    Some(Outcome::Suspected)
                }
                // Any other failure counts only if another link reached the destination.
                Some(Outcome::Failed(kind)) if is_won && kind != LinkFailure::Other => attempt.outcome,
                Some(Outcome::Failed(_)) => {
                    (self.is_authenticated && attempt.ends_portal()).then_some(Outcome::Retracted)
                }
                Some(_) => attempt.outcome.filter(|_| self.is_authenticated || !attempt.is_over_portal()),
                // A link that was tried later won, and this one is past its delay.
                None => attempt
                    .started_at
                    .filter(|started_at| {
                        won_from.is_some_and(|from| from > *started_at) && now.since(*started_at) >= attempt.delay
                    })
                    .map(|_| Outcome::Failed(LinkFailure::Slow)),
            };
            if outcome.is_some() && outcome != attempt.reported {
                attempt.reported = outcome;
                outcomes.extend(outcome.map(|outcome| (attempt.link.clone(), outcome)));
            }
        }
        outcomes
    }
}
