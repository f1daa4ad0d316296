//! Servers that think before each answer.
//!
//! In: when a request could be worked on, and when its head came. Out: how long the server thinks, and a clock that
//! stands still meanwhile.
//!
//! 1. A request can be worked on a round trip after it was sent, and not before the answer ahead of it has ended: so
//!    HTTP/1.1 servers do, one request at a time. What passes from then until its head comes is a pause.
//! 2. The server *thinks* for the shortest of the last few pauses of the connection and of its link, if that is too
//!    long for a path's whim: whatever a loss or a full queue adds, it does not add to each of them.
//! 3. A connection's pace is taken over the time in which bytes could flow. Over pauses, too, each pause would lower
//!    the pace, the pace shrink the requests, and smaller requests mean more pauses.
//!
//! Asking several times ahead was not used against it: where requests are worked on one after the other, the pauses
//! add up all the same.

use alloc::collections::VecDeque;
use core::time::Duration;

use super::Protocol;
use super::conn::Conn;
use crate::units::Instant;

/// The last pauses, newest last.
#[derive(Clone, Debug, Default)]
pub(super) struct Pauses(VecDeque<Duration>);

impl Pauses {
    fn add(&mut self, pause: Duration) {
        self.0.push_back(pause);
        if self.0.len() > MEMORY {
            self.0.pop_front();
        }
    }

    /// The shortest of them.
    fn least(&self) -> Duration {
        self.0.iter().min().copied().unwrap_or_default()
    }
}

/// What a connection knows of its server's pauses.
#[derive(Clone, Debug, Default)]
pub(super) struct Thinking {
    pauses: Pauses,
    /// The shortest of the last pauses on its link, when it had its own last one.
    least_of_link: Duration,
    /// Since when the server could have been answering the first request.
    since: Option<Instant>,
    /// Time that the clock has stood still.
    thought: Duration,
}

impl Conn {
    /// How long the server thinks before each answer; zero: not noticeably.
    pub(super) fn thinks(&self) -> Duration {
        let least = self.thinking.pauses.least().min(self.thinking.least_of_link);
        if least < LEAST + self.floor_rtt() / 2 { Duration::ZERO } else { least }
    }

    /// The time in which bytes could have come.
    pub(super) fn clock(&self, now: Instant) -> Instant {
        let pause = self.thinking.since.map_or(Duration::ZERO, |since| now.since(since));
        now - self.thinking.thought - pause.min(self.thinks() * 2)
    }

    /// A request that was sent at `sent` is the next one that the server answers.
    pub(super) fn on_next(&mut self, now: Instant, sent: Instant) {
        self.thinking.since = Some((sent + self.rtt()).max(now));
    }

    /// The head of an answer came.
    pub(super) fn on_head(&mut self, now: Instant, link: &mut Pauses) {
        let Some(since) = self.thinking.since.take() else { return };
        let pause = now.since(since);
        self.thinking.thought += pause.min(self.thinks() * 2);
        self.thinking.pauses.add(pause);
        link.add(pause);
        self.thinking.least_of_link = link.least();
    }

    /// How long the server thinks of `count` requests that it has yet to answer.
    pub(super) fn thinks_of(&self, count: usize) -> Duration {
        let thinks = self.thinks();
        match self.protocol {
            Some(Protocol::Http1) => thinks * u32::try_from(count).unwrap_or(u32::MAX),
            // Side by side.
            _ if count == 0 => Duration::ZERO,
            _ => thinks,
        }
    }
}

/// Shorter pauses are a path's: packets that queue, a processor that wakes up.
const LEAST: Duration = Duration::from_millis(15);
/// Pauses that are looked at.
const MEMORY: usize = 4;
