//! One new connection over several links: when which link is tried, and what the results say of the links.
//!
//! Drive it with [`poll`](Race::poll) until it gives nothing, then wait for a result or for [`deadline`](Race::deadline). Attempts that
//! have lost run on to their own time limits: their results are evidence.

use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use super::{LinkChoice, LinkFailure};
use crate::units::Instant;

/// What an attempt or a probe shows of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The connection stands, after this time.
    Connected(Duration),
    /// It does not.
    Failed(LinkFailure),
    /// It shows the certificate of another server, and no other link shows that of the destination.
    Suspected,
    /// The certificate of another server, shown before, says nothing of the link: it is shown over all links, or no longer.
    Retracted,
}

/// A new connection. See the documentation of this module.
#[derive(Clone, Debug)]
pub struct HappyEyeballs {
    attempts: Vec<Attempt>,
    /// How many of them have begun.
    started: usize,
    /// When the next one begins.
    next_attempt: Instant,
    winner: Option<usize>,
    /// The destination proves by its certificate what it is.
    proven: bool,
}

#[derive(Clone, Debug)]
struct Attempt {
    link: String,
    delay: Duration,
    /// What was known against the link when this began.
    known: Option<LinkFailure>,
    started_at: Option<Instant>,
    outcome: Option<Outcome>,
    /// What was reported of it last.
    reported: Option<Outcome>,
}

impl Attempt {
    fn has_wrong_certificate(&self) -> bool {
        self.outcome == Some(Outcome::Failed(LinkFailure::WrongCertificate))
    }

    fn is_over_portal(&self) -> bool {
        self.known.is_some_and(LinkFailure::is_portal)
    }

    /// Shows that what answered in the destination's place does not answer any more.
    fn ends_portal(&self) -> bool {
        self.known == Some(LinkFailure::WrongCertificate)
            && matches!(self.outcome, Some(Outcome::Failed(kind)) if !matches!(kind, LinkFailure::WrongCertificate | LinkFailure::Dns))
    }
}

impl HappyEyeballs {
    /// To a destination that proves by its certificate what it is: over all links, in the order of the evidence.
    pub fn new(now: Instant, choice: &LinkChoice) -> Self {
        let attempt = |link: String| {
            let (stagger, known) = (choice.attempt_delay(&link), choice.failure(&link));
            Attempt { link, delay: stagger, known, started_at: None, outcome: None, reported: None }
        };
        let attempts = choice.order().into_iter().map(attempt).collect();
        Self { attempts, started: 0, next_attempt: now, winner: None, proven: true }
    }

    /// To a destination that proves nothing: not over a link with a captive portal, which would answer for a server that is slow, unless
    /// no other link carries.
    pub fn to_unauthenticated(now: Instant, choice: &LinkChoice) -> Self {
        let mut race = Self { proven: false, ..Self::new(now, choice) };
        if race.attempts.iter().any(|attempt| !attempt.known.is_some_and(LinkFailure::is_outage)) {
            race.attempts.retain(|attempt| !attempt.is_over_portal());
        }
        race
    }

    /// How many links there are.
    pub fn len(&self) -> usize {
        self.attempts.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.attempts.is_empty()
    }

    /// The number of an attempt that begins now, and its link.
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

    /// When to poll, and to ask for evidence, again without a result.
    pub fn deadline(&self) -> Option<Instant> {
        if self.winner.is_some() {
            return None;
        }
        if self.started < self.attempts.len() {
            return Some(self.next_attempt);
        }
        // A wrong certificate counts when the last link has not shown one in time.
        let is_open = |attempt: &Attempt| attempt.has_wrong_certificate() && attempt.reported.is_none();
        let last = self.attempts.last().filter(|last| last.outcome.is_none())?;
        self.attempts.iter().any(is_open).then_some(last.started_at? + last.delay)
    }

    /// The result of an attempt; `Ok` may name what the link lacks all the same. The first one that has reached the destination wins.
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
            self.next_attempt = self.next_attempt.min(now);
        }
    }

    /// What is new about the links.
    pub fn new_outcomes(&mut self, now: Instant) -> Vec<(String, Outcome)> {
        let is_late =
            |attempt: &Attempt| attempt.started_at.is_some_and(|started_at| now.since(started_at) >= attempt.delay);
        let mut decided = self.attempts.iter().filter(|attempt| attempt.outcome.is_some() || is_late(attempt));
        let all_wrong = decided.all(Attempt::has_wrong_certificate);
        let is_over = self.started == self.attempts.len();
        let destination_is_wrong = is_over && self.attempts.iter().all(Attempt::has_wrong_certificate);
        // What answers over a link with a portal need not be the destination.
        let winner = self.winner.and_then(|winner| self.attempts.get(winner));
        let winner = winner.filter(|winner| self.proven || !winner.is_over_portal());
        let (is_won, won_from) = (winner.is_some(), winner.and_then(|winner| winner.started_at));
        let mut outcomes = Vec::new();
        for attempt in &mut self.attempts {
            let evidence = match attempt.outcome {
                Some(Outcome::Failed(LinkFailure::WrongCertificate)) if is_won => attempt.outcome,
                Some(Outcome::Failed(LinkFailure::WrongCertificate)) if destination_is_wrong => {
                    let was_counted = attempt.reported.is_some() || attempt.is_over_portal();
                    was_counted.then_some(Outcome::Retracted)
                }
                Some(Outcome::Failed(LinkFailure::WrongCertificate)) if is_over && !all_wrong => {
                    Some(Outcome::Suspected)
                }
                Some(Outcome::Failed(kind)) if is_won && kind != LinkFailure::Other => attempt.outcome,
                Some(Outcome::Failed(_)) => (self.proven && attempt.ends_portal()).then_some(Outcome::Retracted),
                Some(_) => attempt.outcome.filter(|_| self.proven || !attempt.is_over_portal()),
                // Another one, which began later, was faster.
                None => attempt
                    .started_at
                    .filter(|started_at| {
                        won_from.is_some_and(|from| from > *started_at) && now.since(*started_at) >= attempt.delay
                    })
                    .map(|_| Outcome::Failed(LinkFailure::Slow)),
            };
            if evidence.is_some() && evidence != attempt.reported {
                attempt.reported = evidence;
                outcomes.extend(evidence.map(|outcome| (attempt.link.clone(), outcome)));
            }
        }
        outcomes
    }
}
