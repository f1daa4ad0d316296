//! The lease of this process on the leadership, or else what it knows of the leader.
//!
//! The leader measures its lease from the moment before it sends the bid (its request to the store to lead, or to continue), by a clock
//! that cannot be set and that runs during suspend ([`boot_time`]). It stops [`CLOCK_MARGIN`] before the store would give the lease to
//! another process.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::Notify;

use super::api_types::Endpoint;
use super::lock::lock;
use super::store::{Bid, Leader};
use crate::ca::{CaError, Nonce};
use crate::identity::Name;

/// Our choice: another process takes over within two heartbeats.
pub(super) const LEASE: Duration = Duration::from_secs(10);
/// Our choice: more than two clocks drift apart during a lease.
const CLOCK_MARGIN: Duration = Duration::from_secs(1);

/// This process's lease on the leadership, or else what it knows of the leader.
#[derive(Debug)]
pub(super) struct LeaderLease {
    pub(super) holder: String,
    is_shared: bool,
    address: Mutex<String>,
    /// End of the lease in nanoseconds of [`boot_time`]; 0: not the leader.
    leads_until: AtomicU64,
    leader: Mutex<Option<Leader>>,
    /// The greatest epoch that a relay has seen, if it is later than ours: a new one must be greater.
    min_epoch: AtomicU64,
    /// Notified when a bid must not wait for its interval.
    pub(super) bid_now: Notify,
}

impl LeaderLease {
    /// For the process of this name. With a shared store a random suffix distinguishes processes of the same name; with an unshared
    /// one the plain name lets a restarted process resume its lease after a crash.
    pub(super) fn new(name: &Name, shared: bool) -> Result<Self, CaError> {
        let holder = if shared { format!("{name}/{}", Nonce::random()?) } else { name.to_string() };
        Ok(Self {
            holder,
            is_shared: shared,
            address: Mutex::default(),
            leads_until: AtomicU64::new(0),
            leader: Mutex::default(),
            min_epoch: AtomicU64::new(0),
            bid_now: Notify::new(),
        })
    }

    pub(super) fn bid(&self, epoch: Option<u64>) -> Bid {
        let (holder, address) = (self.holder.clone(), lock(&self.address).clone());
        Bid { holder, address, epoch, min_epoch: self.min_epoch.load(Ordering::Relaxed), lease: LEASE }
    }

    pub(super) fn is_leader(&self, now: Duration) -> bool {
        now.as_nanos() < u128::from(self.leads_until.load(Ordering::Relaxed))
    }

    /// Records that the bid sent at `bid_at` has won.
    pub(super) fn set_leader(&self, bid_at: Duration) {
        let leads_until = if self.is_shared { bid_at + LEASE - CLOCK_MARGIN } else { Duration::MAX };
        self.leads_until.store(u64::try_from(leads_until.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        *lock(&self.leader) = None;
    }

    /// Ends the lease; `leader` is the process that leads instead, if it is known.
    pub(super) fn yield_to(&self, leader: Option<Leader>) {
        self.leads_until.store(0, Ordering::Relaxed);
        *lock(&self.leader) = leader;
    }

    /// The other process that leads, if any is known.
    pub(super) fn leader(&self) -> Option<Leader> {
        lock(&self.leader).clone()
    }

    pub(super) fn address(&self) -> Option<String> {
        Some(lock(&self.address).clone()).filter(|address| !address.is_empty())
    }

    pub(super) fn set_address(&self, address: &Endpoint) {
        *lock(&self.address) = address.to_string();
    }

    pub(super) fn raise_min_epoch(&self, epoch: u64) {
        self.min_epoch.fetch_max(epoch, Ordering::Relaxed);
        self.bid_now.notify_one();
    }
}

/// CLOCK_BOOTTIME: cannot be set, and includes the time of suspend.
pub(super) fn boot_time() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = Duration::from_secs(u64::try_from(now.tv_sec).unwrap_or_default());
    seconds + Duration::from_nanos(u64::try_from(now.tv_nsec).unwrap_or_default())
}
