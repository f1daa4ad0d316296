//! Progress of a download, for reports.

use alloc::vec::Vec;
use core::time::Duration;

use super::BanReason;
use super::link::{Link, LinkState};
use super::transfers::Transfers;
use crate::link::LinkId;
use crate::units::{Bitrate, DataSize};

/// Progress of a download, for reports. Every figure can also be derived from the inputs and outputs.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// Size of the resource, once it is known.
    pub total: Option<DataSize>,
    /// Distinct bytes received.
    pub received: DataSize,
    /// Everything before this offset has been received.
    pub in_order_end: u64,
    /// Body bytes received without use: duplicates, and bytes that were discarded.
    pub wasted: DataSize,
    /// Per link: bytes received, rate over the last second, status.
    pub links: Vec<(LinkId, DataSize, Bitrate, LinkStatus)>,
}

/// Status of a link, with the reason where there is one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkStatus {
    /// Usable, and it has connections.
    Up,
    /// Usable without connections (metered, on standby, or nothing to request), or probed after a ban.
    Idle,
    /// Nothing arrives although something was requested.
    Stalled,
    /// Out of use because of failures or wrong responses.
    Banned(BanReason),
    /// The interface is gone.
    Down,
}

impl Status {
    /// The present progress.
    pub(super) fn of(transfers: &Transfers) -> Self {
        let coverage = &transfers.coverage;
        let rate = |link: &Link| transfers.link_rate(link, Duration::from_secs(1));
        let links = transfers.links.iter();
        Self {
            total: coverage.total(),
            received: coverage.received(),
            in_order_end: coverage.in_order_end(),
            wasted: coverage.wasted_bytes(),
            links: links.map(|(id, link)| (*id, link.stats.bytes, rate(link), LinkStatus::of(link))).collect(),
        }
    }
}

impl LinkStatus {
    fn of(link: &Link) -> Self {
        match &link.state {
            LinkState::Up if link.conns.is_empty() => Self::Idle,
            LinkState::Up => Self::Up,
            LinkState::Stalled { .. } => Self::Stalled,
            LinkState::Banned { reason: BanReason::Down, .. } | LinkState::Down => Self::Down,
            LinkState::Banned { reason, .. } => Self::Banned(reason.clone()),
            LinkState::Probing => Self::Idle,
        }
    }
}
