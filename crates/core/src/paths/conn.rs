//! One connection: its subflows, its paths, and how much of it there was.
//!
//! In: what the kernel tells of it. Out: what was carried over which link since the last whole look.
//!
//! A path is a link as this connection sees it: how fast it was (kept while it rests and when its subflow is gone), and
//! what became of attempts to join it.

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

/// What a connection that receives sends at once at least when it asks for something. chosen: below a browser's request,
/// above what says that a window is open again (HTTP/2 over TLS: 35 bytes for each).
const MIN_REQUEST: u64 = 100;

/// What came and went is halved whenever one of both is more. chosen: κ; a request and its answer are less.
const RECENT_LIMIT: u64 = 1_000_000;

/// A connection.
#[derive(Clone, Debug)]
pub(super) struct Conn {
    pub(super) id: ConnId,
    pub(super) opened: Instant,
    pub(super) adopted: bool,
    /// The link that it began on (the paper's Wi-Fi).
    pub(super) initial_link: Option<usize>,
    /// Only addresses may be joined that the server has announced, and it has announced none.
    pub(super) joins_denied: bool,
    /// One direction of it is closed. No subflow can be added any more, so none is ended unless its link's budget is spent.
    pub(super) is_half_closed: bool,
    pub(super) subflows: Vec<Subflow>,
    /// One for each link of the host.
    pub(super) paths: Vec<Path>,
    /// The links that are to carry it.
    pub(super) active_links: LinkSet,
    /// Since when.
    pub(super) active_since: Instant,
    /// Bytes carried, both ways, all subflows ever.
    pub(super) volume: u64,
    /// What of it came and what went of late.
    recent_bytes: [u64; 2],
    /// All that came, and what that was at the last whole look.
    pub(super) received: DataSize,
    pub(super) progress: Option<ReceiveProgress>,
    /// Those of them since it was idle last: of the present stretch of activity.
    pub(super) burst_bytes: u64,
    /// κ or τ has passed (eMPTCP §3.5): ours, in this stretch.
    pub(super) is_eligible: bool,
    /// When bytes last moved.
    pub(super) last_progress: Option<Instant>,
    /// When they began to after a pause.
    pub(super) burst_start: Instant,
    /// What may be one answer: since when, and its bytes. It begins with a pause's end or a request of our own.
    pub(super) response: (Instant, u64),
    /// Looks since then, and those of them that saw new bytes.
    pub(super) polls: (u32, u32),
    /// What went since the last whole look.
    sent_since_poll: u64,
    /// How long the last two stretches before it were, if each ended in a pause.
    pub(super) last_bursts: [Option<Duration>; 2],
    pub(super) activity: Activity,
    /// It became idle because none of its paths worked (see `outage`).
    pub(super) stalled: bool,
    /// When it is looked at next, while it is not idle.
    pub(super) next_poll: Instant,
    /// A look is under way since.
    pub(super) poll_sent_at: Option<Instant>,
    /// Its part in what the host's busy connections have carried.
    pub(super) counted_bytes: u64,
    /// A trial of fewer links, and what came of the last one.
    pub(super) trials: TrialState,
    pub(super) reason: Reason,
    pub(super) noted_reason: Option<Reason>,
    /// Its entry in the machine's queues.
    pub(super) timer: Option<Instant>,
    pub(super) idle_poll_key: Option<Instant>,
}

/// Whether anything moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Activity {
    /// Bytes move, or did a moment ago.
    Busy,
    /// Nothing for a while: looked at in the slow round.
    Idle,
}

/// Fewer links or one more on trial, and a look at the home link (see `decide::guard`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct TrialState {
    /// One link alone.
    pub(super) solo: Option<SoloTrial>,
    /// A slow link beside the others.
    pub(super) concurrent: Option<ConcurrentTrial>,
    /// What the last one has found, until the host has taken note of it.
    pub(super) result: Option<TrialResult>,
    /// A glance at the home link: since when, and the bytes that it had carried by then.
    pub(super) reprobe: Option<(Instant, u64)>,
    pub(super) next_reprobe: Instant,
    /// Since when the home link rests, and what the last glance at it found.
    pub(super) standby_since: Option<Instant>,
    pub(super) reprobe_result: Option<(usize, Bitrate)>,
}

/// One link alone, to see what it can.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SoloTrial {
    pub(super) started: Instant,
    pub(super) link: usize,
    /// What carried the connection before, and how fast.
    pub(super) previous_links: LinkSet,
    pub(super) previous_rate: Bitrate,
    /// What all connections had from the others.
    pub(super) others_rate: Bitrate,
    /// It was never measured before: there is nothing to compare, only to learn.
    pub(super) is_first_use: bool,
}

/// A slow link beside the others, to see whether all bring more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ConcurrentTrial {
    pub(super) started: Instant,
    pub(super) slow_link: usize,
    /// What it brought when it was left out.
    pub(super) slow_rate: Bitrate,
    /// What the others bring without it.
    pub(super) others_rate: Bitrate,
}

/// A link, as this connection sees it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Path {
    pub(super) throughput: ThroughputWindow,
    pub(super) holt: HoltWinters,
    /// Samples since it was asked to carry, up to 255.
    pub(super) samples: u8,
    pub(super) rate_share: RateShare,
    /// The present stretch: since when, and the bytes in it.
    pub(super) sample_start: Instant,
    pub(super) sample_bytes: u64,
    /// Samples before this tell of a drain or of a window that opens.
    pub(super) samples_from: Instant,
    pub(super) join: JoinState,
    pub(super) join_failures: u8,
    pub(super) join_not_before: Instant,
    /// Why the last join was refused; none after data has come.
    pub(super) join_obstacle: Option<JoinObstacle>,
    pub(super) dead: Option<DeadPath>,
    /// A smaller MTU is on trial, because this connection has lost full-sized packets.
    pub(super) mtu_trial: Option<MtuTrial>,
    /// Its data are lost even in the smallest packets that are tried, and that was reported.
    pub(super) is_black_hole: bool,
    /// When it was last proved by a second subflow, with nothing to carry.
    pub(super) probed_at: Option<Instant>,
    /// How fast it was when nothing else carried the connection.
    pub(super) solo_rate: Option<Bitrate>,
    /// The best of that in the present stretch of activity.
    pub(super) best_solo_rate: Bitrate,
    /// In a glance: when its first bytes had come.
    pub(super) reprobe_data_at: Option<Instant>,
    /// Left out: it would slow the others down (see `decide::speed`).
    pub(super) is_left_out: bool,
    /// Its queue was seen to fill: what it brought is what it can, and not what it was given.
    pub(super) has_queued: bool,
    /// Whether it has just come back from an outage (see `outage`).
    pub(super) recovery: Recovery,
}

/// How far a connection's data reach, and what of it has come, over all subflows.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct ReceiveProgress {
    pub(super) data_seq: DataSize,
    pub(super) received: DataSize,
}

/// A smaller MTU on trial.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct MtuTrial {
    /// Subflows that came up later use it.
    pub(super) started: Instant,
    pub(super) mtu: u16,
    /// Whether it was this end's own data that were lost.
    pub(super) is_upload: bool,
    /// Whether no sequence numbers show that the peer has sent data which were lost.
    pub(super) is_weak: bool,
}

/// A path that does not answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct DeadPath {
    /// When it began to be silent.
    pub(super) silent_since: Instant,
    pub(super) last_attempt: Instant,
    pub(super) next_probe: Instant,
    pub(super) failures: u8,
}

impl DeadPath {
    /// A path that is silent from now on, and is probed at `probe`.
    pub(super) const fn new(now: Instant, next_probe: Instant) -> Self {
        Self { silent_since: now, last_attempt: now, next_probe, failures: 0 }
    }
}

/// An attempt to join.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum JoinState {
    /// No join is under way.
    #[default]
    Idle,
    /// The command is with the driver.
    Requested(CommandId, JoinPurpose),
    /// The SYN is on its way; it is given up then.
    SynSent(Instant, JoinPurpose),
}

impl JoinState {
    /// Whether it is a second subflow with a smaller MTU.
    pub(super) const fn is_mtu_trial(self) -> bool {
        matches!(self, Self::Requested(_, JoinPurpose::MtuTrial) | Self::SynSent(_, JoinPurpose::MtuTrial))
    }

    /// Whether it is a proof of life.
    pub(super) const fn is_probe(self) -> bool {
        matches!(self, Self::Requested(_, JoinPurpose::Probe { .. }) | Self::SynSent(_, JoinPurpose::Probe { .. }))
    }
}

/// What a join is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum JoinPurpose {
    /// To carry data, or to stand by.
    Carry,
    /// To prove that the path works; then it goes again. The path is taken for dead when none has come up by then.
    Probe {
        /// The end of the last attempt.
        until: Instant,
    },
    /// To replace a subflow that went silent.
    Recover,
    /// To carry data in smaller packets beside a subflow whose full-sized ones seem to be lost.
    MtuTrial,
}

impl TrialState {
    /// Whether one is under way.
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
            // Most have no more; a vector's own idea is four, and ten thousand connections are to stay small.
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

    /// There are so many links now.
    pub(super) fn set_link_count(&mut self, links: usize, now: Instant) {
        self.paths.reserve_exact(links.saturating_sub(self.paths.len()));
        self.paths.resize(links, Path { sample_start: now, ..Path::default() });
    }

    /// Bytes came and went.
    pub(super) fn on_bytes(&mut self, moved: &[(Direction, DataSize); 2]) {
        for (direction, size) in moved {
            let sum = &mut self.recent_bytes[direction_index(*direction)];
            *sum = sum.saturating_add(size.bytes());
            if *direction == Direction::Up {
                self.sent_since_poll = self.sent_since_poll.saturating_add(size.bytes());
            } else {
                self.received += *size;
            }
        }
        if self.recent_bytes.iter().any(|way| *way > RECENT_LIMIT) {
            self.recent_bytes = self.recent_bytes.map(|way| way / 2);
        }
    }

    /// The way in which most of it goes of late: by that its radios are reckoned with.
    pub(super) fn direction(&self) -> Direction {
        let [down, up] = self.recent_bytes;
        if up > down { Direction::Up } else { Direction::Down }
    }

    /// Counts what came and went since the last whole look for what may be one answer.
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

    /// The subflow that stands for a link: the newest that is to stay.
    pub(super) fn subflow_on(&self, link: usize) -> Option<&Subflow> {
        self.subflows.iter().rev().find(|sub| sub.link == Some(link) && !sub.is_closing)
    }

    /// The links that have a subflow which is asked to carry data.
    pub(super) fn carrying_links(&self) -> LinkSet {
        let subs = self.subflows.iter().filter(|sub| !sub.backup && !sub.is_closing);
        subs.filter_map(|sub| sub.link).fold(LinkSet::EMPTY, LinkSet::with)
    }

    /// The links that have a subflow.
    pub(super) fn joined_links(&self) -> LinkSet {
        let subs = self.subflows.iter().filter(|sub| !sub.is_closing);
        subs.filter_map(|sub| sub.link).fold(LinkSet::EMPTY, LinkSet::with)
    }

    /// The shortest round trip with its queue of what carries it.
    pub(super) fn min_rtt(&self) -> Duration {
        let subs = self.subflows.iter().filter(|sub| !sub.backup && !sub.is_closing);
        subs.map(Subflow::rtt).min().unwrap_or(Duration::from_millis(100))
    }

    /// How long a path has been silent that is asked to carry: since its last byte or since it was asked.
    pub(super) fn silent_for(&self, sub: &Subflow, now: Instant) -> Duration {
        now.since(sub.last_progress.unwrap_or(sub.established_at).max(sub.active_since))
    }
}
