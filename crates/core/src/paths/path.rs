//! One path: a link as one connection sees it.
//!
//! It holds the measured throughput, which is kept while the link is not in use and after its subflow is gone, the
//! state of joining the link, and the results of probes. It knows neither the subflows nor the other connections.

use super::event::CommandId;
use super::links::RateShare;
use super::reason::JoinObstacle;
use super::throughput::ThroughputWindow;
use crate::predict::HoltWinters;
use crate::units::{Bitrate, Duration, Instant};

/// Time, in addition to an RTT, for which samples of a resumed or new path are discarded. Measured: at a negligible
/// RTT, a path reaches at least 80 % of the link's rate within one window of 100 ms. Our choice: three such windows.
pub(super) const SAMPLE_HOLDOFF: Duration = Duration::from_millis(300);
/// A join that takes longer than this and than three RTTs has failed: over an unreachable path a SYN gets no
/// response at all.
pub(super) const JOIN_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a recovered path carries data before it is judged. Our choice: the length of the throughput window, so
/// that decisions use only rates over the whole window.
pub(super) const JUDGE_AFTER: Duration = ThroughputWindow::LENGTH;

/// Whether a path has recovered from an outage and is not judged yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Recovery {
    /// It had no outage, or has carried data for long enough since.
    #[default]
    Stable,
    /// It has recovered and has not carried data yet.
    AwaitingData,
    /// It has carried data again since this time.
    CarryingSince(Instant),
}

/// A link as seen by this connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Path {
    pub(super) throughput: ThroughputWindow,
    pub(super) forecaster: HoltWinters,
    /// Samples since it was requested to carry data, up to 255.
    pub(super) samples: u8,
    pub(super) rate_share: RateShare,
    /// Start of the present sample, and the bytes in it.
    pub(super) sample_start: Instant,
    pub(super) sample_bytes: u64,
    /// Samples before this time are discarded, because they show a drain or a window that is still opening.
    pub(super) samples_from: Instant,
    pub(super) join: JoinState,
    pub(super) join_failures: u8,
    pub(super) join_not_before: Instant,
    /// Why the last join was refused; cleared when data arrives.
    pub(super) join_obstacle: Option<JoinObstacle>,
    pub(super) dead: Option<DeadPath>,
    /// A smaller MTU is being tried, because this connection has lost full-sized packets.
    pub(super) mtu_trial: Option<MtuTrial>,
    /// Its data is lost even in the smallest packets tried, and this was reported.
    pub(super) is_black_hole: bool,
    /// Time at which the path was last proved to work: a handshake over it (of any subflow, also the first), or bytes
    /// during a stall, received by this connection or by others on the link.
    pub(super) probed_at: Option<Instant>,
    /// Rate when no other path carried the connection.
    pub(super) solo_rate: Option<Bitrate>,
    /// Highest `solo_rate` in the present burst.
    pub(super) best_solo_rate: Bitrate,
    /// During a reprobe (the initial link on standby carries data for a moment, to show its rate): the time at which
    /// its first bytes had arrived.
    pub(super) reprobe_data_at: Option<Instant>,
    /// Left out because it would slow the others down (see [`super::policy`]).
    pub(super) is_left_out: bool,
    /// Its queue was seen to fill, so its rate shows what the path can carry and not what the sender gave it.
    pub(super) has_queued: bool,
    /// Whether it has recently recovered from an outage (see [`super::outage`]).
    pub(super) recovery: Recovery,
}

impl Path {
    /// Discards all measurements: the path starts as a new one, and is not judged at once.
    pub(super) fn reset_measurements(&mut self, now: Instant) {
        (self.throughput, self.forecaster, self.samples) = (ThroughputWindow::default(), HoltWinters::default(), 0);
        (self.sample_bytes, self.sample_start, self.reprobe_data_at) = (0, now, None);
        (self.solo_rate, self.best_solo_rate) = (None, Bitrate::ZERO);
        (self.is_left_out, self.has_queued) = (false, false);
        self.recovery = Recovery::AwaitingData;
    }

    /// A sample of the path was taken.
    pub(super) fn on_sample(&mut self, now: Instant) {
        self.recovery = match self.recovery {
            Recovery::AwaitingData => Recovery::CarryingSince(now),
            Recovery::CarryingSince(since) if now.since(since) >= JUDGE_AFTER => Recovery::Stable,
            recovery => recovery,
        };
    }

    /// Marks it as dead: the samples without data at the end show the outage and not the path's rate.
    pub(super) fn mark_dead(&mut self, now: Instant) {
        self.throughput.drop_trailing_gap();
        self.dead.get_or_insert(DeadPath::new(now, now + DeadPath::FIRST_PROBE));
    }

    /// Postpones the next join after a failure; returns for how long. The interval doubles with each failure, from
    /// `first` up to `max`.
    pub(super) fn back_off(&mut self, now: Instant, first: Duration, max: Duration) -> Duration {
        let pause = first.saturating_mul(1 << u32::from(self.join_failures).min(16)).min(max);
        self.join_failures = self.join_failures.saturating_add(1);
        self.join_not_before = now + pause;
        pause
    }

    /// Whether it has recovered from an outage and has not yet carried data for [`JUDGE_AFTER`].
    pub(super) fn is_recovering(&self) -> bool {
        self.recovery != Recovery::Stable
    }
}

/// Trial of a smaller MTU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct MtuTrial {
    /// Start of the trial; subflows established later use the smaller MTU.
    pub(super) started: Instant,
    pub(super) mtu: u16,
    /// Whether data sent by this host was lost.
    pub(super) is_upload: bool,
    /// Whether the evidence is weak: no sequence numbers show that the peer has sent data which was lost.
    pub(super) is_weak: bool,
}

/// A path without response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct DeadPath {
    /// Time at which the path was found dead, which is later than the start of the outage.
    pub(super) dead_since: Instant,
    pub(super) last_attempt: Instant,
    pub(super) next_probe: Instant,
    pub(super) failures: u8,
}

impl DeadPath {
    /// Interval until the first retry of a dead path.
    pub(super) const FIRST_PROBE: Duration = Duration::from_secs(1);
    /// Longest interval between retries. Our choice: a device that comes back into range loses no more than one
    /// energy tail of its radio.
    pub(super) const MAX_PROBE_INTERVAL: Duration = Duration::from_secs(15);

    /// A path that is unresponsive from now on, and is probed at `next_probe`.
    pub(super) const fn new(now: Instant, next_probe: Instant) -> Self {
        Self { dead_since: now, last_attempt: now, next_probe, failures: 0 }
    }
}

/// State of joining a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum JoinState {
    /// No join is in progress.
    #[default]
    Idle,
    /// The command was sent to the driver.
    Requested(CommandId, JoinPurpose),
    /// The SYN was sent; the join is given up at this time.
    SynSent(Instant, JoinPurpose),
}

impl JoinState {
    /// Whether it is a second subflow with a smaller MTU.
    pub(super) const fn is_mtu_trial(self) -> bool {
        matches!(self, Self::Requested(_, JoinPurpose::MtuTrial) | Self::SynSent(_, JoinPurpose::MtuTrial))
    }

    /// Whether it is a liveness probe.
    pub(super) const fn is_probe(self) -> bool {
        matches!(self, Self::Requested(_, JoinPurpose::Probe { .. }) | Self::SynSent(_, JoinPurpose::Probe { .. }))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum JoinPurpose {
    /// To carry data, or as a standby.
    Carry,
    /// To prove that the path works; the subflow is closed afterwards. The path counts as dead if none is
    /// established in time.
    Probe {
        /// Time at which the last attempt is given up, and with it the probe.
        until: Instant,
    },
    /// To replace a subflow that became unresponsive.
    Recover,
    /// To carry data in smaller packets beside a subflow whose full-sized packets seem to be lost.
    MtuTrial,
}

impl JoinPurpose {
    /// Latest time at which a subflow whose SYN is sent now may be established.
    pub(super) fn join_deadline(self, now: Instant, rtt: Duration) -> Instant {
        match self {
            Self::Carry => now + JOIN_TIMEOUT.max(rtt * 3),
            Self::Probe { until } => {
                let next = now + attempt_time(rtt);
                // Skip an attempt that would have less than half of its time left.
                if next + attempt_time(rtt) / 2 > until { until } else { next }
            }
            Self::Recover | Self::MtuTrial => now + (rtt * 3).max(Duration::from_secs(1)),
        }
    }
}

/// How long one attempt of a probe may take before the next one: two RTTs and the driver's delay, at least 200 ms.
pub(super) fn attempt_time(rtt: Duration) -> Duration {
    (rtt * 2 + Duration::from_millis(100)).max(Duration::from_millis(200))
}
