//! Schedule of one connection's polls: whether it is busy, when its counters are read next, and its entries in the
//! machine's queues.
//!
//! Active connections share [`MAX_POLLS_PER_SECOND`] polls; idle ones are polled in rotation (see
//! [`super::idle_poll`]).

use super::config::Policy;
use super::event::{ConnId, Output};
use super::host_state::HostState;
use super::subflow::Subflow;
use super::subflow_set::SubflowSet;
use super::traffic::BURST_PAUSE;
use crate::units::{Duration, Instant};

/// Polls per second of all active connections together. Our choice: at 15 µs per subflow, two subflows each, and
/// the same time for decisions, 2 % of a core.
const MAX_POLLS_PER_SECOND: u32 = 300;
/// Poll interval of marline's policy. Our choice: a fifth of the shortest time after which a path counts as stalled
/// (500 ms, see [`super::liveness`]); costs 0.03 % of a core per subflow.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Poll interval of published policies that measure nothing.
const SLOW_POLL_INTERVAL: Duration = Duration::from_millis(250);
/// eMPTCP's shortest sample: the resolution of the kernel's clock and the driver's jitter would dominate a shorter
/// one.
pub(super) const MIN_SAMPLE_TIME: Duration = Duration::from_millis(50);
/// A poll that was not answered within this time is repeated.
const POLL_TIMEOUT: Duration = Duration::from_secs(1);

/// Whether a connection transfers data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Activity {
    /// Data was transferred a moment ago.
    Busy,
    /// No data for a while: polled only in the rotation of idle connections.
    Idle,
}

/// Schedule of a connection's polls.
#[derive(Clone, Debug)]
pub(super) struct Polling {
    activity: Activity,
    /// It became idle because none of its paths worked (see [`super::outage`]).
    pub(super) stalled: bool,
    /// Time of the next poll, while it is busy.
    pub(super) next_poll: Instant,
    /// Start of the poll in progress.
    sent_at: Option<Instant>,
    /// Keys of the connection in the machine's timer queue and in its queue of idle connections; `None`: not in it.
    pub(super) timer: Option<Instant>,
    pub(super) idle_poll_key: Option<Instant>,
}

impl Polling {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            activity: Activity::Busy,
            stalled: false,
            next_poll: now,
            sent_at: None,
            timer: None,
            idle_poll_key: None,
        }
    }

    pub(super) const fn activity(&self) -> Activity {
        self.activity
    }

    pub(super) fn is_busy(&self) -> bool {
        self.activity == Activity::Busy
    }

    /// Whether the paths are watched: data is being transferred, or would be if a path worked.
    pub(super) fn is_awake(&self) -> bool {
        self.is_busy() || self.stalled
    }

    pub(super) fn set_activity(&mut self, host: &mut HostState, activity: Activity) {
        match (self.activity, activity) {
            (Activity::Busy, Activity::Idle) => host.busy_conns = host.busy_conns.saturating_sub(1),
            (Activity::Idle, Activity::Busy) => host.busy_conns += 1,
            _ => {}
        }
        self.activity = activity;
    }

    /// Requests the counters of all subflows from the driver.
    pub(super) fn request(
        &mut self,
        host: &mut HostState,
        conn: ConnId,
        subflows: &mut SubflowSet,
        interval: Duration,
    ) {
        for sub in &mut subflows.all {
            sub.is_polled = false;
        }
        if subflows.all.is_empty() {
            // Without subflows nothing would answer the request.
            self.next_poll = host.now + POLL_TIMEOUT;
            return;
        }
        self.sent_at = Some(host.now);
        self.next_poll = host.now + interval;
        host.outputs.push_back(Output::Poll { conn });
    }

    /// Whether a poll is due. One without an answer counts as lost after [`POLL_TIMEOUT`].
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        if !self.is_busy() {
            return false;
        }
        self.sent_at = self.sent_at.filter(|sent_at| now.since(*sent_at) < POLL_TIMEOUT);
        now >= self.next_poll && self.sent_at.is_none()
    }

    /// Whether the poll in progress has reported all subflows.
    pub(super) fn is_complete(&self, subflows: &SubflowSet) -> bool {
        self.sent_at.is_some() && subflows.all.iter().all(|sub| sub.is_polled)
    }

    /// The poll in progress is complete.
    pub(super) fn finish(&mut self) {
        self.sent_at = None;
    }

    /// Time of the next poll or of its timeout; `None`: the connection is idle.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.is_busy().then(|| self.sent_at.map_or(self.next_poll, |sent_at| sent_at + POLL_TIMEOUT))
    }
}

/// Interval until the next poll of a connection. A reprobe (a short measurement of the initial link on standby) halves
/// it. All intervals grow with the number of busy connections.
pub(super) fn poll_interval(host: &HostState, subflows: &SubflowSet, is_reprobing: bool) -> Duration {
    let handshake = subflows.all.iter().filter(|sub| !sub.is_closing).map(Subflow::handshake_rtt).min();
    let interval = match host.config.policy {
        Policy::Marline => POLL_INTERVAL,
        Policy::WifiFirst | Policy::Mptcp => SLOW_POLL_INTERVAL,
        _ => handshake.unwrap_or(MIN_SAMPLE_TIME).clamp(MIN_SAMPLE_TIME, BURST_PAUSE),
    };
    let interval = if subflows.is_priority_pending() { interval.min(POLL_INTERVAL) } else { interval };
    let interval = if is_reprobing { interval / 2 } else { interval };
    interval.max(BURST_PAUSE * u32::try_from(host.busy_conns).unwrap_or(u32::MAX) / MAX_POLLS_PER_SECOND)
}
