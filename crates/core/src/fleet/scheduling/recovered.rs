//! Reservations that relays report after the service has lost its state.
//!
//! A relay holds the reservations that it received earlier. After a restart it reports them, and the scheduler sets capacity aside for
//! the edges in this list until they report.
//!
//! 1. A relay is requested to report its reservations if it appears for the first time in this epoch, has received reservations in an
//!    earlier epoch, and the grace period still runs. Until it has done so it keeps its reservations, and the edges' own reports are
//!    accepted.
//! 2. The list takes precedence over the edges' reports. Its reservations wait for their edges during the grace period, and an edge that
//!    reports more than is listed for it gets only what remains. If the capacity does not suffice, the edge that exceeds its
//!    listed reservation the most is removed first.
//! 3. A list counts up to the capacity of the relay: a relay that lies fills only itself. Edges that have reported are not
//!    affected by it, and an edge that is placed at any relay, or releases its relay, loses its waiting reservations.
//! 4. An edge that is only in a list has no lease. Its reservation ends with the grace period.

use alloc::collections::BTreeMap;

use crate::fleet::Name;
use crate::units::Bitrate;

/// The reservations that one relay has reported.
#[derive(Debug, Default)]
pub(super) struct RecoveredReservations {
    /// All listed reservations, up to the capacity of the relay.
    reported: BTreeMap<Name, Bitrate>,
    /// Those of edges that have not reported yet.
    waiting: BTreeMap<Name, Bitrate>,
    total_waiting: Bitrate,
}

impl RecoveredReservations {
    /// The list of a relay, up to its capacity. The reservations of edges that are placed already do not wait.
    pub(super) fn new(
        reservations: BTreeMap<Name, Bitrate>,
        capacity: Bitrate,
        is_placed: impl Fn(&Name) -> bool,
    ) -> Self {
        let (mut recovered, mut capacity_left) = (Self::default(), capacity);
        for (edge, rate) in reservations.into_iter().filter(|(_, rate)| !rate.is_zero()) {
            if rate > capacity_left {
                continue;
            }
            capacity_left -= rate;
            if !is_placed(&edge) {
                recovered.waiting.insert(edge.clone(), rate);
                recovered.total_waiting += rate;
            }
            recovered.reported.insert(edge, rate);
        }
        recovered
    }

    /// The capacity that waits for edges other than this one.
    pub(super) fn waiting_for_others(&self, edge: &Name) -> Bitrate {
        self.total_waiting - self.waiting_for(edge)
    }

    /// The capacity that waits for this edge.
    pub(super) fn waiting_for(&self, edge: &Name) -> Bitrate {
        self.waiting.get(edge).copied().unwrap_or_default()
    }

    /// By how much this edge's reservation exceeds the list.
    pub(super) fn excess_over_listed(&self, edge: &Name, reserved: Bitrate) -> Bitrate {
        reserved - self.reported.get(edge).copied().unwrap_or_default()
    }

    /// The listed reservation of an edge.
    pub(super) fn reported(&self, edge: &Name) -> Option<Bitrate> {
        self.reported.get(edge).copied()
    }

    /// The reservations that wait for their edges.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (&Name, Bitrate)> {
        self.waiting.iter().map(|(edge, rate)| (edge, *rate))
    }

    /// The capacity that waits for all edges together.
    pub(super) fn total_waiting(&self) -> Bitrate {
        self.total_waiting
    }

    pub(super) fn remove_waiting(&mut self, edge: &Name) {
        if let Some(rate) = self.waiting.remove(edge) {
            self.total_waiting -= rate;
        }
    }
}
