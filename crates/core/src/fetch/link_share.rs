//! A download beside others of the same batch: how much of each link it may use, and what it makes of that.
//!
//! 1. A link that is taken away finishes what was asked for, and its connections are closed. So a change costs no
//!    bytes, and the connections can serve another download.
//! 2. While all links are taken away nothing is expected to come, so patience does not run out.
//! 3. [`Load`] tells the scheduler what it needs: whether a link is wanted, whether it is in use, and whether it could
//!    carry more.

use alloc::vec::Vec;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use super::links::{Link, LinkState};
use super::{Fetch, LinkShare, Phase};
use crate::link::LinkId;
use crate::units::{Bitrate, DataSize};

/// What a download makes of one link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LinkLoad {
    /// Which link.
    pub link: LinkId,
    /// It would ask for something there, if it may.
    pub has_demand: bool,
    /// It has connections there.
    pub has_connections: bool,
    /// What comes over it, over the last second.
    pub rate: Bitrate,
    /// Its connections are past slow start, and nothing waits in the link's queue: it could carry more.
    pub has_spare_capacity: bool,
    /// Body bytes that came over it.
    pub bytes: DataSize,
}

impl Link {
    /// Whether nothing comes of what was asked for before the link was taken away.
    pub(super) fn is_paused_and_stalled(&self) -> bool {
        self.share == LinkShare::Paused && matches!(self.state, LinkState::Stalled { .. })
    }
}

impl Fetch {
    /// What the download makes of its links.
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

    /// Whether the download would ask for something over this link, if others let it.
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

    /// Another download gets more of this link, or less.
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

    /// Whether every link that could bring something is taken away: nothing can come.
    pub(super) fn is_paused_everywhere(&self) -> bool {
        let mut able = self.links.values().filter(|link| link.may_deliver() && !link.budget_exhausted).peekable();
        able.peek().is_some()
            && able.all(|link| {
                link.share == LinkShare::Paused && link.conns.is_empty() && link.state != LinkState::Down
            })
    }
}
