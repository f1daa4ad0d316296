//! Server delay: the time that a server needs before each response, and a clock that excludes it.
//!
//! 1. The server can process a request one RTT after it was sent, and not before the previous response has ended, since
//!    HTTP/1.1 servers handle one request at a time. The time from then until the response head arrives is one delay
//!    sample.
//! 2. The server delay is the shortest of the last few samples of the connection and of its link, if that is too long
//!    for a property of the path. Losses and full queues add to some samples, but not to all of them.
//! 3. A connection's rate is measured over the time in which bytes could flow. If delays counted as well, each delay
//!    would lower the rate, a lower rate would shrink the requests, and smaller requests would mean more delays.
//!
//! More pipelined requests are no remedy: a server that processes them one after another adds up the delays all the
//! same.

use alloc::collections::VecDeque;
use core::time::Duration;

use super::Protocol;
use super::conn::Conn;
use crate::units::Instant;

/// The last few delay samples, newest last.
#[derive(Clone, Debug, Default)]
pub(super) struct DelayWindow(VecDeque<Duration>);

impl DelayWindow {
    fn push(&mut self, delay: Duration) {
        self.0.push_back(delay);
        if self.0.len() > WINDOW_LEN {
            self.0.pop_front();
        }
    }

    /// The shortest sample; zero if there is none.
    fn shortest(&self) -> Duration {
        self.0.iter().min().copied().unwrap_or_default()
    }
}

/// Delay measurement of one connection.
#[derive(Clone, Debug, Default)]
pub(super) struct ServerDelay {
    delays: DelayWindow,
    /// Shortest recent sample of the link, as of this connection's last sample.
    link_shortest: Duration,
    /// Since when the server could have been working on the first unanswered request.
    waiting_since: Option<Instant>,
    /// Total time that the transfer clock was stopped.
    excluded: Duration,
}

impl Conn {
    /// Server delay before each response; zero if not noticeable.
    pub(super) fn server_delay(&self) -> Duration {
        let shortest = self.server_delay.delays.shortest().min(self.server_delay.link_shortest);
        if shortest < MIN_DELAY + self.min_rtt() / 2 { Duration::ZERO } else { shortest }
    }

    /// Clock that runs only while bytes could arrive; the origin of the rate measurement.
    pub(super) fn transfer_clock(&self, now: Instant) -> Instant {
        // A delay that is in progress counts up to twice the known one: beyond that, the connection has stalled.
        let current = self.server_delay.waiting_since.map_or(Duration::ZERO, |since| now.since(since));
        now - self.server_delay.excluded - current.min(self.server_delay() * 2)
    }

    /// The request that was sent at `sent` is the next one that the server responds to: starts a delay sample.
    pub(super) fn start_server_delay(&mut self, now: Instant, sent: Instant) {
        self.server_delay.waiting_since = Some((sent + self.rtt()).max(now));
    }

    /// A response head has arrived: ends the delay sample.
    pub(super) fn end_server_delay(&mut self, now: Instant, link: &mut DelayWindow) {
        let Some(since) = self.server_delay.waiting_since.take() else { return };
        let delay = now.since(since);
        self.server_delay.excluded += delay.min(self.server_delay() * 2);
        self.server_delay.delays.push(delay);
        link.push(delay);
        self.server_delay.link_shortest = link.shortest();
    }

    /// Total server delay of `count` requests without a response.
    pub(super) fn server_delay_for(&self, count: usize) -> Duration {
        let delay = self.server_delay();
        match self.protocol {
            Some(Protocol::Http1) => delay * u32::try_from(count).unwrap_or(u32::MAX),
            // HTTP/2: the server processes requests in parallel.
            _ if count == 0 => Duration::ZERO,
            _ => delay,
        }
    }
}

/// Shorter delays may be a property of the path or the host: queueing, scheduling of a process.
const MIN_DELAY: Duration = Duration::from_millis(15);
/// Number of samples of which the shortest counts.
const WINDOW_LEN: usize = 4;
