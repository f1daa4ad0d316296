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
pub(super) struct DelayWindow(VecDeque<Duration>);

impl DelayWindow {
    fn push(&mut self, delay: Duration) {
        self.0.push_back(delay);
        if self.0.len() > WINDOW_LEN {
            self.0.pop_front();
        }
    }

    /// The shortest of them.
    fn shortest(&self) -> Duration {
        self.0.iter().min().copied().unwrap_or_default()
    }
}

/// What a connection knows of its server's pauses.
#[derive(Clone, Debug, Default)]
pub(super) struct ServerDelay {
    delays: DelayWindow,
    /// The shortest of the last pauses on its link, when it had its own last one.
    link_shortest: Duration,
    /// Since when the server could have been answering the first request.
    waiting_since: Option<Instant>,
    /// Time that the clock has stood still.
    excluded: Duration,
}

impl Conn {
    /// How long the server thinks before each answer; zero: not noticeably.
    pub(super) fn server_delay(&self) -> Duration {
        let shortest = self.server_delay.delays.shortest().min(self.server_delay.link_shortest);
        if shortest < MIN_DELAY + self.min_rtt() / 2 { Duration::ZERO } else { shortest }
    }

    /// The time in which bytes could have come.
    pub(super) fn transfer_clock(&self, now: Instant) -> Instant {
        let current = self.server_delay.waiting_since.map_or(Duration::ZERO, |since| now.since(since));
        now - self.server_delay.excluded - current.min(self.server_delay() * 2)
    }

    /// A request that was sent at `sent` is the next one that the server answers.
    pub(super) fn start_server_delay(&mut self, now: Instant, sent: Instant) {
        self.server_delay.waiting_since = Some((sent + self.rtt()).max(now));
    }

    /// The head of an answer came.
    pub(super) fn end_server_delay(&mut self, now: Instant, link: &mut DelayWindow) {
        let Some(since) = self.server_delay.waiting_since.take() else { return };
        let delay = now.since(since);
        self.server_delay.excluded += delay.min(self.server_delay() * 2);
        self.server_delay.delays.push(delay);
        link.push(delay);
        self.server_delay.link_shortest = link.shortest();
    }

    /// How long the server thinks of `count` requests that it has yet to answer.
    pub(super) fn server_delay_for(&self, count: usize) -> Duration {
        let delay = self.server_delay();
        match self.protocol {
            Some(Protocol::Http1) => delay * u32::try_from(count).unwrap_or(u32::MAX),
            // Side by side.
            _ if count == 0 => Duration::ZERO,
            _ => delay,
        }
    }
}

/// Shorter pauses are a path's: packets that queue, a processor that wakes up.
const MIN_DELAY: Duration = Duration::from_millis(15);
/// Pauses that are looked at.
const WINDOW_LEN: usize = 4;
