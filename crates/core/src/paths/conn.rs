//! State of one connection: its subflows, its paths, and the amount of data it carried.
//!
//! A path is a link as this connection sees it: its measured throughput, which is kept while the link is not in use
//! and after its subflow is gone, and the result of attempts to join it.

use alloc::vec::Vec;

use super::event::{CommandId, ConnId, SubflowId};
use super::links::{LinkSet, RateShare, direction_index};
use super::outage::Recovery;
use super::policy::TrialResult;
use super::reason::{JoinObstacle, Reason};
use super::subflow::Subflow;
use super::throughput::ThroughputWindow;
use crate::energy::Direction;
use crate::predict::HoltWinters;
use crate::units::{Bitrate, DataSize, Duration, Instant};

/// Bytes sent at once that count as a new request of a connection that mainly receives. Chosen: less than a
/// browser's request, more than a window update (HTTP/2 over TLS: 35 bytes each).
const MIN_REQUEST: u64 = 100;

/// The recent byte counts of both directions are halved when one of them exceeds this. Chosen: κ; a request and its
/// response are smaller.
const RECENT_LIMIT: u64 = 1_000_000;

/// State of one connection.
#[derive(Clone, Debug)]
pub(super) struct Conn {
    pub(super) id: ConnId,
    pub(super) opened: Instant,
    pub(super) adopted: bool,
    /// The link of its initial subflow (the paper's Wi-Fi).
    pub(super) initial_link: Option<usize>,
    /// Whether joins are impossible at present: only announced addresses may be joined, and none was announced.
    pub(super) joins_denied: bool,
    /// One direction is closed. No subflow can be added any more, so none is closed unless its link's budget is
    /// spent.
    pub(super) is_half_closed: bool,
    pub(super) subflows: Vec<Subflow>,
    /// One for each link of the host.
    pub(super) paths: Vec<Path>,
    /// Links that are meant to carry it, by the last decision.
    pub(super) active_links: LinkSet,
    /// Time of the last change of `active_links`.
    pub(super) active_since: Instant,
    /// Bytes carried in both directions by all its subflows, past and present.
    pub(super) volume: u64,
    /// Recent bytes, down and up, of which old ones are forgotten by halving.
    recent_bytes: [u64; 2],
    /// All bytes received, and the receive progress at the last complete poll.
    pub(super) received: DataSize,
    pub(super) progress: Option<ReceiveProgress>,
    /// Bytes since it was last idle: those of the present burst of activity.
    pub(super) burst_bytes: u64,
    /// Whether κ or τ has passed (eMPTCP §3.5); with marline's policy, in the present burst.
    pub(super) is_eligible: bool,
    /// Time at which bytes were last seen.
    pub(super) last_progress: Option<Instant>,
    /// Start of the present burst, after a pause.
    pub(super) burst_start: Instant,
    /// Start and bytes of the present response. A response begins after a pause or after a request of this host.
    pub(super) response: (Instant, u64),
    /// Polls since the start of the response, and those of them that found new bytes.
    pub(super) polls: (u32, u32),
    /// Bytes sent since the last complete poll.
    sent_since_poll: u64,
    /// Durations of the last two bursts; `None` if a burst did not end with a pause of the application.
    pub(super) last_bursts: [Option<Duration>; 2],
    pub(super) activity: Activity,
    /// It became idle because none of its paths worked (see [`super::outage`]).
    pub(super) stalled: bool,
    /// Time of the next poll, while it is busy.
    pub(super) next_poll: Instant,
    /// Start of the poll in progress.
    pub(super) poll_sent_at: Option<Instant>,
    /// Its share of [`HostState::busy_bytes`](super::host_state::HostState::busy_bytes).
    pub(super) counted_bytes: u64,
    /// Trials of links, and the result of the last one.
    pub(super) trials: TrialState,
    pub(super) reason: Reason,
    pub(super) noted_reason: Option<Reason>,
    /// Its entries in the machine's queues.
    pub(super) timer: Option<Instant>,
    pub(super) idle_poll_key: Option<Instant>,
}

/// Whether a connection transfers data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Activity {
    /// Data was transferred a moment ago.
    Busy,
    /// No data for a while: polled only in the rotation of idle connections.
    Idle,
}

/// Trials of links, and reprobes of the initial link (see [`super::policy`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct TrialState {
    /// One link carries alone.
    pub(super) solo: Option<SoloTrial>,
    /// A slow link carries together with the others.
    pub(super) concurrent: Option<ConcurrentTrial>,
    /// Result of the last trial, until the host's trial cache has stored it.
    pub(super) result: Option<TrialResult>,
    /// Reprobe in progress: its start, and the bytes that the initial link had carried by then.
    pub(super) reprobe: Option<(Instant, u64)>,
    pub(super) next_reprobe: Instant,
    /// Time since when the initial link is on standby, and the result of the last reprobe.
    pub(super) standby_since: Option<Instant>,
    pub(super) reprobe_result: Option<(usize, Bitrate)>,
}

/// Trial of one link alone, to measure what it can carry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SoloTrial {
    pub(super) started: Instant,
    pub(super) link: usize,
    /// Links that carried the connection before, and their rate.
    pub(super) previous_links: LinkSet,
    pub(super) previous_rate: Bitrate,
    /// Rate that all connections of the host had over the other links.
    pub(super) others_rate: Bitrate,
    /// The link was never measured before, so there is nothing to compare with.
    pub(super) is_first_use: bool,
}

/// Trial of a slow link together with the others, to see whether the total rate grows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ConcurrentTrial {
    pub(super) started: Instant,
    pub(super) slow_link: usize,
    /// Rate of the slow link when it was left out.
    pub(super) slow_rate: Bitrate,
    /// Rate of the other links without it.
    pub(super) others_rate: Bitrate,
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
    /// Time at which a further subflow last proved that the path works.
    pub(super) probed_at: Option<Instant>,
    /// Rate when no other path carried the connection.
    pub(super) solo_rate: Option<Bitrate>,
    /// Highest `solo_rate` in the present burst.
    pub(super) best_solo_rate: Bitrate,
    /// During a reprobe: the time at which its first bytes had arrived.
    pub(super) reprobe_data_at: Option<Instant>,
    /// Left out because it would slow the others down (see [`super::policy`]).
    pub(super) is_left_out: bool,
    /// Its queue was seen to fill, so its rate shows what the path can carry and not what the sender gave it.
    pub(super) has_queued: bool,
    /// Whether it has recently recovered from an outage (see [`super::outage`]).
    pub(super) recovery: Recovery,
}

/// Position in a connection's data, and the number of bytes received up to then, over all subflows.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct ReceiveProgress {
    pub(super) data_seq: DataSize,
    pub(super) received: DataSize,
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
    /// Start of the outage.
    pub(super) dead_since: Instant,
    pub(super) last_attempt: Instant,
    pub(super) next_probe: Instant,
    pub(super) failures: u8,
}

impl DeadPath {
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

/// Purpose of a join.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum JoinPurpose {
    /// To carry data, or as a standby.
    Carry,
    /// To prove that the path works; the subflow is closed afterwards. The path counts as dead if none is
    /// established in time.
    Probe {
        /// End of the last attempt.
        until: Instant,
    },
    /// To replace a subflow that became unresponsive.
    Recover,
    /// To carry data in smaller packets beside a subflow whose full-sized packets seem to be lost.
    MtuTrial,
}

impl TrialState {
    /// Whether a trial is in progress.
    pub(super) fn is_running(&self) -> bool {
        self.concurrent.is_some() || self.solo.is_some()
    }
}

impl Conn {
    pub(super) fn new(id: ConnId, links: usize, now: Instant) -> Self {
        let mut conn = Self {
            id,
            opened: now,
            adopted: false,
            initial_link: None,
            joins_denied: false,
            is_half_closed: false,
            // Most connections have at most two; a vector's own initial capacity is four, and ten thousand
            // connections must stay small.
            subflows: Vec::with_capacity(2),
            paths: Vec::new(),
            active_links: LinkSet::EMPTY,
            active_since: now,
            volume: 0,
            recent_bytes: [0; 2],
            received: DataSize::ZERO,
            progress: None,
            burst_bytes: 0,
            is_eligible: false,
            last_progress: None,
            burst_start: now,
            response: (now, 0),
            sent_since_poll: 0,
            polls: (0, 0),
            last_bursts: [None; 2],
            activity: Activity::Busy,
            stalled: false,
            next_poll: now,
            poll_sent_at: None,
            counted_bytes: 0,
            trials: TrialState::default(),
            reason: Reason::Undecided,
            noted_reason: None,
            timer: None,
            idle_poll_key: None,
        };
        conn.set_link_count(links, now);
        conn
    }

    /// Adapts the list of paths to the number of links.
    pub(super) fn set_link_count(&mut self, links: usize, now: Instant) {
        self.paths.reserve_exact(links.saturating_sub(self.paths.len()));
        self.paths.resize(links, Path { sample_start: now, ..Path::default() });
    }

    /// Counts bytes received and sent.
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

    /// The direction in which most bytes went recently; energy is computed for this direction.
    pub(super) fn direction(&self) -> Direction {
        let [down, up] = self.recent_bytes;
        if up > down { Direction::Up } else { Direction::Down }
    }

    /// Assigns the bytes since the last complete poll to the present response, or starts a new one.
    pub(super) fn track_response(&mut self, now: Instant, new_bytes: u64, begins_burst: bool) {
        let sent = core::mem::take(&mut self.sent_since_poll);
        let requested = sent >= MIN_REQUEST && self.direction() == Direction::Down;
        if begins_burst || requested {
            (self.response, self.polls) = ((now, 0), (0, 0));
        }
        if !requested {
            self.response.1 = self.response.1.saturating_add(new_bytes);
        }
    }

    pub(super) fn subflow_mut(&mut self, id: SubflowId) -> Option<&mut Subflow> {
        self.subflows.iter_mut().find(|sub| sub.id == id)
    }

    /// The subflow that represents a link: the newest one that is not being closed.
    pub(super) fn subflow_on(&self, link: usize) -> Option<&Subflow> {
        self.subflows.iter().rev().find(|sub| sub.link == Some(link) && !sub.is_closing)
    }

    /// The links with a subflow that is requested to carry data.
    pub(super) fn carrying_links(&self) -> LinkSet {
        let subs = self.subflows.iter().filter(|sub| !sub.backup && !sub.is_closing);
        subs.filter_map(|sub| sub.link).fold(LinkSet::EMPTY, LinkSet::with)
    }

    /// The links with a subflow.
    pub(super) fn joined_links(&self) -> LinkSet {
        let subs = self.subflows.iter().filter(|sub| !sub.is_closing);
        subs.filter_map(|sub| sub.link).fold(LinkSet::EMPTY, LinkSet::with)
    }

    /// The shortest RTT, including queueing delay, of the subflows that carry data.
    pub(super) fn min_rtt(&self) -> Duration {
        let subs = self.subflows.iter().filter(|sub| !sub.backup && !sub.is_closing);
        subs.map(Subflow::rtt).min().unwrap_or(Duration::from_millis(100))
    }

    /// Time for which a subflow has received nothing although it is requested to carry: since its last byte or
    /// since the request.
    pub(super) fn stalled_for(&self, sub: &Subflow, now: Instant) -> Duration {
        now.since(sub.last_progress.unwrap_or(sub.established_at).max(sub.active_since))
    }
}
