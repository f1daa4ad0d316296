//! What one connection has carried: its volume, bursts of activity, responses and direction.
//!
//! A burst begins after a pause of the connection, and a response after a pause or a request of this host. The
//! policies derive from them how much data is expected to follow, and the liveness check whether a pause is one of
//! the application.

use super::config::{Config, Policy};
use super::links::direction_index;
use crate::energy::Direction;
use crate::units::{DataSize, Duration, Instant, Ratio};

/// Bytes sent between two polls that count as a new request of a connection that mainly receives. Our choice: less
/// than a browser's request, more than a window update (HTTP/2 over TLS: 35 bytes each).
const MIN_REQUEST: u64 = 100;
/// The recent byte counts of both directions are halved when one of them exceeds this. Our choice: κ (the
/// bytes after which another link may be joined); a request and its response are smaller.
const RECENT_LIMIT: u64 = 1_000_000;
/// Pause after which a new burst of activity begins.
pub(super) const BURST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause within one response, or six RTTs if longer. Our choice: a link of 10 kbit/s delivers a packet in 1.2
/// s, and a lost packet is retransmitted after the same time.
const RESPONSE_PAUSE: Duration = Duration::from_secs(3);
/// Share of polls with new bytes from which on a response counts as steady. Our choice: at 120 kbit/s a packet arrives
/// every 100 ms, as often as the connection is polled; small responses over an RTT of 120 ms leave every second poll
/// empty.
const STEADY_POLLS: Ratio = Ratio::from_percent(75);

/// Traffic of one connection, over all its subflows.
#[derive(Clone, Debug)]
pub(super) struct Traffic {
    opened: Instant,
    /// Bytes carried in both directions by all its subflows, past and present.
    pub(super) volume: u64,
    /// Recent bytes, down and up, of which old ones are forgotten by halving.
    recent_bytes: [u64; 2],
    /// All bytes received.
    pub(super) received: DataSize,
    /// Bytes since it was last idle: those of the present burst of activity.
    pub(super) burst_bytes: u64,
    /// Whether further links may be joined, because κ bytes or the time τ have passed (eMPTCP §3.5): since the
    /// connection was opened, or with marline's policy within one response of the present burst.
    pub(super) is_eligible: bool,
    /// Time at which bytes were last seen.
    pub(super) last_progress: Option<Instant>,
    /// Start of the present burst, after a pause.
    pub(super) burst_start: Instant,
    /// Start and bytes of the present response. A response begins after a pause or after a request of this host.
    response: (Instant, u64),
    /// Polls since the start of the response, and those of them that found new bytes.
    polls: (u32, u32),
    /// Bytes sent since the last complete poll.
    sent_since_poll: u64,
    /// Durations of the last two bursts; `None` if a burst did not end with a pause of the application.
    pub(super) last_bursts: [Option<Duration>; 2],
}

impl Traffic {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            opened: now,
            volume: 0,
            recent_bytes: [0; 2],
            received: DataSize::ZERO,
            burst_bytes: 0,
            is_eligible: false,
            last_progress: None,
            burst_start: now,
            response: (now, 0),
            polls: (0, 0),
            sent_since_poll: 0,
            last_bursts: [None; 2],
        }
    }

    /// Time at which the connection was opened.
    pub(super) const fn opened(&self) -> Instant {
        self.opened
    }

    /// Counts bytes received and sent by a subflow.
    pub(super) fn on_bytes(&mut self, moved: &[(Direction, DataSize); 2]) {
        for (direction, size) in moved {
            let recent = &mut self.recent_bytes[direction_index(*direction)];
            *recent = recent.saturating_add(size.bytes());
            if *direction == Direction::Up {
                self.sent_since_poll = self.sent_since_poll.saturating_add(size.bytes());
            } else {
                self.received += *size;
            }
        }
        if self.recent_bytes.iter().any(|bytes| *bytes > RECENT_LIMIT) {
            self.recent_bytes = self.recent_bytes.map(|bytes| bytes / 2);
        }
    }

    /// Adds bytes to the volume of the connection and of its burst.
    pub(super) fn count_bytes(&mut self, bytes: u64) {
        self.volume = self.volume.saturating_add(bytes);
        self.burst_bytes = self.burst_bytes.saturating_add(bytes);
    }

    /// The direction in which most bytes went recently; energy is computed for this direction.
    pub(super) fn direction(&self) -> Direction {
        let [down, up] = self.recent_bytes;
        if up > down { Direction::Up } else { Direction::Down }
    }

    /// Whether most of its bytes are sent by this host, and the sender keeps the queues of subflows short.
    pub(super) fn sends_with_short_queues(&self, config: &Config) -> bool {
        config.short_queues && self.direction() == Direction::Up
    }

    /// Whether bytes that arrive now begin a burst.
    pub(super) fn begins_burst(&self, now: Instant) -> bool {
        self.last_progress.is_none_or(|moved| now.since(moved) > BURST_PAUSE)
    }

    /// Starts a burst. `is_application_pause`: no path died in the pause before it.
    pub(super) fn start_burst(&mut self, now: Instant, is_application_pause: bool) {
        if let Some(moved) = self.last_progress {
            self.last_bursts = [is_application_pause.then(|| moved.since(self.burst_start)), self.last_bursts[0]];
        }
        self.burst_start = now;
    }

    /// Forgets the size of the last burst: the connection was idle, and the size of the next one says nothing yet.
    pub(super) fn reset_burst(&mut self) {
        (self.burst_bytes, self.is_eligible) = (0, false);
    }

    /// Assigns the bytes since the last complete poll to the present response, or starts a new one.
    pub(super) fn track_response(&mut self, now: Instant, new_bytes: u64, min_rtt: Duration) {
        let pause = RESPONSE_PAUSE.max(min_rtt * 6);
        let is_after_pause = self.last_progress.is_none_or(|moved| now.since(moved) > pause);
        let sent = core::mem::take(&mut self.sent_since_poll);
        let requested = sent >= MIN_REQUEST && self.direction() == Direction::Down;
        if is_after_pause || requested {
            (self.response, self.polls) = ((now, 0), (0, 0));
        }
        if !requested {
            self.response.1 = self.response.1.saturating_add(new_bytes);
        }
        self.polls.1 = self.polls.1.saturating_add(1);
    }

    /// Counts a complete poll.
    pub(super) fn count_poll(&mut self) {
        self.polls.0 = self.polls.0.saturating_add(1);
    }

    /// Whether no bytes were transferred during an estimated RTT (eMPTCP §3.5), which is at least two intervals
    /// between polls.
    pub(super) fn is_quiet(&self, now: Instant, min_rtt: Duration, interval: Duration) -> bool {
        let rtt = min_rtt.max(interval * 2);
        self.last_progress.is_none_or(|moved| now.since(moved) > rtt)
    }

    /// Whether the present response has lasted for this time without interruption: [`STEADY_POLLS`] of the polls
    /// found bytes, or fewer because packets are queued in the network.
    pub(super) fn is_steady(&self, now: Instant, time: Duration, is_queueing: bool) -> bool {
        let (polls, with_data) = self.polls;
        let is_steady = u64::from(with_data) * 1_000_000 >= u64::from(polls) * u64::from(STEADY_POLLS.ppm());
        now.since(self.response.0) >= time && (is_steady || is_queueing)
    }

    /// Sets `is_eligible` when κ bytes or the time τ have passed (eMPTCP §3.5), so that another link may be joined.
    /// With marline's policy they must belong to one response: what a connection carried before a pause says nothing
    /// about what follows, and many small responses over a long RTT are no slow link and end before another radio
    /// saves energy.
    pub(super) fn update_eligibility(&mut self, config: &Config, now: Instant, is_quiet: bool, is_queueing: bool) {
        let (carried_bytes, is_old) = match config.policy {
            Policy::Marline => (self.response.1, self.is_steady(now, config.tau, is_queueing)),
            _ => (self.volume, self.volume > 0 && now.since(self.opened) >= config.tau),
        };
        self.is_eligible |= carried_bytes >= config.kappa.bytes() || is_old && !is_quiet;
    }
}
