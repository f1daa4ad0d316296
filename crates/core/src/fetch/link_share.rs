//! Sharing links among the downloads of one batch: how much of each link this download may use.
//!
//! 1. When a link is paused for this download, requests in flight are completed and then its connections are closed. So
//!    a change wastes no bytes, and other downloads can open connections instead.
//! 2. While all links are paused nothing is expected to arrive, so the download's timeout does not run.
//! 3. [`LinkLoad`] gives the batch scheduler what it needs: whether a download wants a link, uses it, and leaves
//!    capacity.

use alloc::vec::Vec;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use super::links::{Link, LinkState};
use super::{Fetch, LinkShare, Phase};
use crate::link::LinkId;
use crate::units::{Bitrate, DataSize};

/// A download's use of one link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LinkLoad {
    /// The link.
    pub link: LinkId,
    /// The download would send requests on it if it may.
    pub has_demand: bool,
    /// The download has connections on it.
    pub has_connections: bool,
    /// Received rate over the last second.
    pub rate: Bitrate,
    /// All connections are past slow start and there is no queueing delay: the link could carry more.
    pub has_spare_capacity: bool,
    /// Body bytes received over it.
    pub bytes: DataSize,
}

impl Link {
    /// Whether the link is paused for this download, and its remaining requests have stalled.
    pub(super) fn is_paused_and_stalled(&self) -> bool {
        self.share == LinkShare::Paused && matches!(self.state, LinkState::Stalled { .. })
    }
}

impl Fetch {
    /// The download's use of each link, for the batch scheduler.
    pub fn link_loads(&self) -> Vec<LinkLoad> {
        let left = self.time_left(self.coverage.free_bytes(u64::MAX));
        let load = |(id, link): (&LinkId, &Link)| LinkLoad {
            link: *id,
            has_demand: self.has_demand(*id, link),
            has_connections: !link.conns.is_empty(),
            rate: self.link_rate(link, Duration::from_secs(1)),
            has_spare_capacity: self
                .observe_link(*id, left)
                .is_some_and(|observation| observation.past_slow_start && observation.has_spare_capacity()),
            bytes: link.stats.bytes,
        };
        self.links.iter().map(load).collect()
    }

    /// Whether the download would send requests over this link if the other downloads let it.
    fn has_demand(&self, id: LinkId, link: &Link) -> bool {
        let is_able = link.is_in_service() && !link.budget_exhausted && self.is_cost_allowed(link);
        let has_work = match self.phase {
            Phase::Unknown => true,
            Phase::Ranges => !self.coverage.free_bytes(u64::MAX).is_zero(),
            Phase::SingleResponse { req: Some(req) } => self.request_link(req) == Some(id),
            Phase::SingleResponse { req: None } => true,
            Phase::Finished => false,
        };
        is_able && has_work
    }

    /// The batch scheduler gives this download more or less of a link.
    pub(super) fn on_share(&mut self, id: LinkId, share: LinkShare) {
        let was_paused = self.is_paused_everywhere();
        self.shares.insert(id, share);
        let Some(link) = self.links.get_mut(&id) else { return };
        let previous = core::mem::replace(&mut link.share, share);
        if share == LinkShare::OneConn && previous == LinkShare::Full {
            let surplus = link.conns.len().saturating_sub(1);
            link.conn_count = super::parallelism::ConnCountController::default();
            self.retire_conns(id, surplus);
        } else if share != LinkShare::Paused && previous == LinkShare::Paused {
            link.next_attempt = link.next_attempt.min(self.now).max(link.paused_until);
        }
        if was_paused {
            self.last_data = self.now;
        }
    }

    /// Whether every link that could deliver is paused and has no connections left: nothing can arrive.
    pub(super) fn is_paused_everywhere(&self) -> bool {
        let mut able = self.links.values().filter(|link| link.may_deliver() && !link.budget_exhausted).peekable();
        able.peek().is_some()
            && able.all(|link| {
                link.share == LinkShare::Paused && link.conns.is_empty() && link.state != LinkState::Down
            })
    }
}
