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
    Reached(Duration),
    /// It does not.
    Failed(LinkFailure),
    /// It shows the certificate of another server, and no other link shows that of the destination.
    Suspected,
    /// The certificate of another server, shown before, says nothing of the link: it is shown over all links, or no longer.
    Retracted,
}

/// A new connection. See the documentation of this module.
#[derive(Clone, Debug)]
pub struct Race {
    attempts: Vec<Attempt>,
    /// How many of them have begun.
    begun: usize,
    /// When the next one begins.
    next: Instant,
    winner: Option<usize>,
    /// The destination proves by its certificate what it is.
    proven: bool,
}

#[derive(Clone, Debug)]
struct Attempt {
    link: String,
    stagger: Duration,
    /// What was known against the link when this began.
    known: Option<LinkFailure>,
    began: Option<Instant>,
    outcome: Option<Outcome>,
    /// What was reported of it last.
    reported: Option<Outcome>,
}

impl Attempt {
    fn is_wrong(&self) -> bool {
        self.outcome == Some(Outcome::Failed(LinkFailure::WrongCertificate))
    }

    fn is_over_portal(&self) -> bool {
        self.known.is_some_and(LinkFailure::is_portal)
    }

    /// Shows that what answered in the destination's place does not answer any more.
    fn ends_portal(&self) -> bool {
        self.known == Some(LinkFailure::WrongCertificate)
            && matches!(self.outcome, Some(Outcome::Failed(kind)) if !matches!(kind, LinkFailure::WrongCertificate | LinkFailure::Names))
    }
}

impl Race {
    /// To a destination that proves by its certificate what it is: over all links, in the order of the evidence.
    pub fn new(now: Instant, choice: &LinkChoice) -> Self {
        let attempt = |link: String| {
            let (stagger, known) = (choice.stagger(&link), choice.failure(&link));
            Attempt { link, stagger, known, began: None, outcome: None, reported: None }
        };
        let attempts = choice.order().into_iter().map(attempt).collect();
        Self { attempts, begun: 0, next: now, winner: None, proven: true }
    }

    /// To a destination that proves nothing: not over a link with a captive portal, which would answer for a server that is slow, unless
    /// no other link carries.
    pub fn to_unproven(now: Instant, choice: &LinkChoice) -> Self {
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
        if self.winner.is_some() || now < self.next {
            return None;
        }
        let at = self.begun;
        let attempt = self.attempts.get_mut(at)?;
        attempt.began = Some(now);
        self.next = now + attempt.stagger;
        self.begun += 1;
        Some((at, attempt.link.clone()))
    }

    /// When to poll, and to ask for evidence, again without a result.
    pub fn deadline(&self) -> Option<Instant> {
        if self.winner.is_some() {
            return None;
        }
        if self.begun < self.attempts.len() {
            return Some(self.next);
        }
        // A wrong certificate counts when the last link has not shown one in time.
        let is_open = |attempt: &Attempt| attempt.is_wrong() && attempt.reported.is_none();
        let last = self.attempts.last().filter(|last| last.outcome.is_none())?;
        self.attempts.iter().any(is_open).then_some(last.began? + last.stagger)
    }

    /// The result of an attempt; `Ok` may name what the link lacks all the same. The first one that has reached the destination wins.
    pub fn handle(&mut self, now: Instant, attempt: usize, result: Result<Option<LinkFailure>, LinkFailure>) {
        let Some(ended) = self.attempts.get_mut(attempt) else { return };
        ended.outcome = Some(match result {
            Ok(Some(lacks)) => Outcome::Failed(lacks),
            Ok(None) => Outcome::Reached(now.since(ended.began.unwrap_or(now))),
            Err(kind) => Outcome::Failed(kind),
        });
        if result.is_ok() {
            self.winner.get_or_insert(attempt);
        } else {
            self.next = self.next.min(now);
        }
    }

    /// What is new about the links.
    pub fn evidence(&mut self, now: Instant) -> Vec<(String, Outcome)> {
        let is_late = |attempt: &Attempt| attempt.began.is_some_and(|began| now.since(began) >= attempt.stagger);
        let mut judged = self.attempts.iter().filter(|attempt| attempt.outcome.is_some() || is_late(attempt));
        let all_wrong = judged.all(Attempt::is_wrong);
        let is_over = self.begun == self.attempts.len();
        let destination_is_wrong = is_over && self.attempts.iter().all(Attempt::is_wrong);
        // What answers over a link with a portal need not be the destination.
        let winner = self.winner.and_then(|winner| self.attempts.get(winner));
        let winner = winner.filter(|winner| self.proven || !winner.is_over_portal());
        let (is_won, won_from) = (winner.is_some(), winner.and_then(|winner| winner.began));
        let mut news = Vec::new();
        for attempt in &mut self.attempts {
            let counts = match attempt.outcome {
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
                    .began
                    .filter(|began| {
                        won_from.is_some_and(|from| from > *began) && now.since(*began) >= attempt.stagger
                    })
                    .map(|_| Outcome::Failed(LinkFailure::Slow)),
            };
            if counts.is_some() && counts != attempt.reported {
                attempt.reported = counts;
                news.extend(counts.map(|outcome| (attempt.link.clone(), outcome)));
            }
        }
        news
    }
}
