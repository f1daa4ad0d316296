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

impl ServerDelay {
    /// Server delay before each response; zero if not noticeable on a path with this minimum RTT.
    pub(super) fn typical(&self, min_rtt: Duration) -> Duration {
        let shortest = self.delays.shortest().min(self.link_shortest);
        if shortest < MIN_DELAY + min_rtt / 2 { Duration::ZERO } else { shortest }
    }

    /// Clock that runs only while bytes could arrive; the origin of the rate measurement.
    pub(super) fn transfer_clock(&self, now: Instant, min_rtt: Duration) -> Instant {
        // A delay that is in progress counts up to twice the known one: beyond that, the connection has stalled.
        let current = self.waiting_since.map_or(Duration::ZERO, |since| now.since(since));
        now - self.excluded - current.min(self.typical(min_rtt) * 2)
    }

    /// The server can begin with the next request at `since`: starts a delay sample.
    pub(super) fn start(&mut self, since: Instant) {
        self.waiting_since = Some(since);
    }

    /// A response head has arrived: ends the delay sample.
    pub(super) fn end(&mut self, now: Instant, min_rtt: Duration, link: &mut DelayWindow) {
        let Some(since) = self.waiting_since.take() else { return };
        let delay = now.since(since);
        self.excluded += delay.min(self.typical(min_rtt) * 2);
        self.delays.push(delay);
        link.push(delay);
        self.link_shortest = link.shortest();
    }
}

/// Shorter delays may be a property of the path or the host: queueing, scheduling of a process.
const MIN_DELAY: Duration = Duration::from_millis(15);
/// Number of samples of which the shortest counts.
const WINDOW_LEN: usize = 4;
