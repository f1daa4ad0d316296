//! Sharing links among the downloads of one batch: what the batch scheduler learns from this download, and what it
//! changes.
//!
//! [`LinkLoad`] reports whether this download wants a link, uses it, and leaves capacity. The scheduler answers with the
//! share that the download may use; `links` keeps it.

use alloc::vec::Vec;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use super::link::Link;
use super::parallelism::ConnCountController;
use super::resource::Phase;
use super::transfers::Transfers;
use super::{LinkShare, forecast};
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

/// The download's use of each link, for the batch scheduler.
pub(super) fn link_loads(transfers: &Transfers) -> Vec<LinkLoad> {
    let left = forecast::time_left(transfers, transfers.coverage.free_bytes(u64::MAX));
    let load = |(id, link): (&LinkId, &Link)| LinkLoad {
        link: *id,
        has_demand: has_demand(transfers, *id, link),
        has_connections: !link.conns.is_empty(),
        rate: transfers.link_rate(link, Duration::from_secs(1)),
        has_spare_capacity: forecast::observe_link(transfers, *id, left)
            .is_some_and(|observation| observation.past_slow_start && observation.has_spare_capacity()),
        bytes: link.stats.bytes,
    };
    transfers.links.iter().map(load).collect()
}

/// Whether the download would send requests over this link if the other downloads let it.
fn has_demand(transfers: &Transfers, id: LinkId, link: &Link) -> bool {
    let is_able =
        link.is_in_service() && !link.budget_exhausted && transfers.links.is_cost_allowed(link, transfers.now);
    let has_work = match transfers.resource.phase {
        Phase::Unknown => true,
        Phase::Ranges => !transfers.coverage.free_bytes(u64::MAX).is_zero(),
        Phase::SingleResponse { req: Some(req) } => transfers.request_link(req) == Some(id),
        Phase::SingleResponse { req: None } => true,
        Phase::Finished => false,
    };
    is_able && has_work
}

/// The batch scheduler gives this download more or less of a link.
pub(super) fn on_share(transfers: &mut Transfers, id: LinkId, share: LinkShare) {
    let was_paused = transfers.links.is_paused_everywhere();
    let Some(previous) = transfers.links.set_share(id, share) else { return };
    let Some(link) = transfers.links.get_mut(&id) else { return };
    if share == LinkShare::OneConn && previous == LinkShare::Full {
        let surplus = link.conns.len().saturating_sub(1);
        link.conn_count = ConnCountController::default();
        transfers.retire_conns(id, surplus);
    } else if share != LinkShare::Paused && previous == LinkShare::Paused {
        link.next_attempt = link.next_attempt.min(transfers.now).max(link.paused_until);
    }
    if was_paused {
        transfers.restart_timeout();
    }
}
