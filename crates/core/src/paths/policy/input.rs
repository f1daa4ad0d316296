//! What a policy decides from, and the form of its decision.

use crate::paths::event::ConnId;
use crate::paths::host_state::HostState;
use crate::paths::links::LinkSet;
use crate::paths::polling::poll_interval;
use crate::paths::reason::Reason;
use crate::paths::subflow_set::SubflowSet;
use crate::paths::throughput::ThroughputWindow;
use crate::paths::traffic::Traffic;
use crate::units::{Bitrate, Duration, Instant, Ratio};

/// A link is slowing down if its rate falls below this share of its best. Our choice: half of the rate, which is
/// more than its variation from one second to the next.
const SLOWED_SHARE: Ratio = Ratio::from_percent(50);

/// Desired state of a connection's links.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::paths) struct Decision {
    /// Links that carry data.
    pub(in crate::paths) active: LinkSet,
    /// Links with a subflow as a backup.
    pub(in crate::paths) standby: LinkSet,
    /// Links that do not carry data and whose subflows are closed instead of kept as backups.
    pub(in crate::paths) destroy: LinkSet,
    pub(in crate::paths) reason: Reason,
}

impl Decision {
    pub(in crate::paths) const fn new(active: LinkSet, reason: Reason) -> Self {
        Self { active, standby: LinkSet::EMPTY, destroy: LinkSet::EMPTY, reason }
    }
}

/// One connection and its host as a policy sees them. Policies issue no commands. They change only measurements:
/// what trials have shown of a path, and whether the connection is eligible for further links.
pub(in crate::paths) struct PolicyInput<'a> {
    pub(in crate::paths) host: &'a HostState,
    pub(in crate::paths) conn: ConnId,
    pub(in crate::paths) subflows: &'a mut SubflowSet,
    pub(in crate::paths) traffic: &'a mut Traffic,
    /// The link of the initial subflow.
    pub(in crate::paths) initial_link: Option<usize>,
    /// The links of the last decision, and the time of their last change.
    pub(in crate::paths) active_links: LinkSet,
    pub(in crate::paths) active_since: Instant,
    pub(in crate::paths) is_idle: bool,
}

impl PolicyInput<'_> {
    pub(super) fn poll_interval(&self, is_reprobing: bool) -> Duration {
        poll_interval(self.host, self.subflows, is_reprobing)
    }

    /// Whether no bytes were transferred during an estimated RTT.
    pub(super) fn is_quiet(&self, interval: Duration) -> bool {
        self.traffic.is_quiet(self.host.now, self.subflows.min_rtt(), interval)
    }

    /// Whether κ or τ has passed, so that further links may be joined.
    pub(super) fn update_eligibility(&mut self, interval: Duration) {
        let (is_quiet, is_queueing) = (self.is_quiet(interval), self.subflows.is_queueing());
        self.traffic.update_eligibility(&self.host.config, self.host.now, is_quiet, is_queueing);
    }

    pub(super) fn is_settled(&self, link: usize) -> bool {
        self.subflows.is_settled(link, self.traffic.burst_start, self.host.now)
    }

    pub(super) fn sends_with_short_queues(&self) -> bool {
        self.traffic.sends_with_short_queues(&self.host.config)
    }

    /// Whether a link is much slower than its best rate in the present burst.
    pub(super) fn has_slowed(&self, link: usize) -> bool {
        has_slowed(self.host, self.subflows, link)
    }

    /// Rate of a path over the last second.
    pub(super) fn recent_rate(&self, link: usize) -> Bitrate {
        let path = self.subflows.path(link);
        path.and_then(|path| path.throughput.mean(Duration::from_secs(1))).unwrap_or_default()
    }

    /// Highest recent rate of a path.
    pub(super) fn peak_rate(&self, link: usize) -> Bitrate {
        self.subflows.path(link).and_then(|path| path.throughput.peak()).unwrap_or_default()
    }

    /// Mean rate of some links together, over the last `time` of each.
    pub(super) fn combined_rate(&self, links: LinkSet, time: Duration) -> Bitrate {
        links.iter().filter_map(|index| self.subflows.path(index)?.throughput.mean(time)).sum()
    }

    /// Whether the rate of these links still grows: an opening congestion window must not be taken for the effect of a
    /// trial.
    pub(super) fn is_growing(&self, links: LinkSet) -> bool {
        self.combined_rate(links, ThroughputWindow::LENGTH / 2)
            > self.combined_rate(links, ThroughputWindow::LENGTH).share(GROWTH)
    }
}

/// Whether a link is much slower than its best rate in the present burst of a connection.
pub(super) fn has_slowed(host: &HostState, subflows: &SubflowSet, link: usize) -> bool {
    let Some((host_link, path)) = host.link(link).zip(subflows.path(link)) else { return false };
    // The rate of all connections counts: one that shares the link gets less of a link that is as fast as ever.
    host_link.rate(&host.config, host.now) < path.best_solo_rate.share(SLOWED_SHARE)
}

/// Growth of the last second's rate over that of the last two, above which a congestion window is still opening. Our
/// choice: half of what counts as a gain (8 %, see [`super::hol_guard`]).
const GROWTH: Ratio = Ratio::from_ppm(1_040_000);
