//! Leader election: which of several processes of the service makes the assignments.
//!
//! Each process bids for a lease in the shared store; the replies decide which one leads.
//!
//! 1. The leader renews its lease each [`RENEW_INTERVAL`]; the other processes bid each [`BID_INTERVAL`]. A lease lasts [`LEASE`]
//!    from the last winning bid.
//! 2. The leader measures its lease from the moment before it sends the bid, by a clock that cannot be set and that runs during suspend.
//!    It stops [`CLOCK_MARGIN`] before the store would give the lease to another process. An unreachable store therefore ends the
//!    leadership, without any message between the processes.
//! 3. An unshared store cannot give the lease to another process: its owner remains leader even while the disk is full.
//! 4. A new leader loads the rows of the members that the previous leader has written. A leader that merely continues, with no other
//!    leader in between, keeps its own state, which is newer.
//! 5. Changes are written each [`REPLICATION_INTERVAL`], in one transaction with the check that this process still leads.
//! 6. Revocation lists are exchanged through the store, independent of leadership. Two machines may each have revoked a certificate before
//!    they received the other's list: a process that finds a different list in the store merges both.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::api_types::Endpoint;
use super::coordinator::{Coordinator, DRAIN_PREFIX, ErrorSource, lock, read_drains};
use super::scheduler::Row;
use super::store::{Bid, BidOutcome, Entry, Leader, Store, StoreError};
use crate::ca::{CaError, Nonce, UtcSeconds};
use crate::identity::Name;

/// chosen: another process takes over within two heartbeats.
const LEASE: Duration = Duration::from_secs(10);
/// chosen: four consecutive bids may fail.
const RENEW_INTERVAL: Duration = Duration::from_secs(2);
const BID_INTERVAL: Duration = Duration::from_secs(1);
/// chosen: more than two clocks drift apart during a lease.
const CLOCK_MARGIN: Duration = Duration::from_secs(1);
/// chosen: members repeat with their next heartbeat what was lost before it was written.
const REPLICATION_INTERVAL: Duration = Duration::from_secs(1);
/// Rows written in one call. chosen: collecting them holds the scheduler's lock for one millisecond.
const MAX_ROWS: usize = 256;

/// This process's lease on the leadership, or else what it knows of the leader.
#[derive(Debug)]
pub(super) struct LeaderLease {
    holder: String,
    is_shared: bool,
    address: Mutex<String>,
    /// End of the lease in nanoseconds of [`boot_time`]; 0: not the leader.
    leads_until: AtomicU64,
    leader: Mutex<Option<Leader>>,
    min_epoch: AtomicU64,
    bid_now: Notify,
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

    fn yield_to(&self, leader: Option<Leader>) {
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

impl Coordinator {
    pub(super) async fn run_election(self: &Arc<Self>) -> Infallible {
        loop {
            self.bid_once().await;
            let pause = if self.is_leader() { RENEW_INTERVAL } else { BID_INTERVAL };
            let _ = timeout(pause, self.lease.bid_now.notified()).await;
        }
    }

    /// Gives up the leadership, so that another process need not wait for the end of the lease.
    pub async fn resign(self: &Arc<Self>) {
        if self.is_leader() && self.is_shared() {
            self.lease.yield_to(None);
            let holder = self.lease.holder.clone();
            let _ = timeout(LEASE / 5, self.store(move |store| store.resign(&holder))).await;
        }
    }

    async fn bid_once(self: &Arc<Self>) {
        let epoch = Some(lock(&self.scheduler).version().epoch).filter(|epoch| *epoch > 0);
        let (bid, bid_at, was_leader) = (self.lease.bid(epoch), boot_time(), self.is_leader());
        let result = self.store_for(ErrorSource::Lead, move |store| place_bid(store, &bid)).await;
        match result {
            Ok(BidResult::StillLeader(epoch)) => {
                self.lease.set_leader(bid_at);
                self.with_scheduler(|scheduler, now| scheduler.become_leader(epoch, now));
            }
            // The store has raised the epoch as this leader requested; its own state is still the newest.
            Ok(BidResult::NewLeader { epoch, .. }) if was_leader => {
                self.lease.set_leader(bid_at);
                self.with_scheduler(|scheduler, now| scheduler.become_leader(epoch, now));
                self.republish_drains().await;
            }
            Ok(BidResult::NewLeader { epoch, rows, drains }) => {
                self.lease.set_leader(bid_at);
                let (members, is_empty) = (rows.len(), rows.is_empty() && drains.is_empty());
                self.with_scheduler(|scheduler, now| {
                    // Rule 4: the previous leader's rows replace this process's state, which is older. Without rows (a new or
                    // emptied store) the own state is all there is.
                    if !rows.is_empty() {
                        scheduler.become_follower();
                    }
                    scheduler.become_leader(epoch, now);
                    scheduler.restore(&rows, now);
                    if !rows.is_empty() || !drains.is_empty() {
                        scheduler.set_drains(drains, now);
                    }
                });
                if is_empty {
                    self.republish_drains().await;
                }
                if self.is_shared() {
                    tracing::info!(epoch, members, "this process is the leader now and makes the assignments");
                }
            }
            Ok(BidResult::OtherLeads(leader)) => {
                if self.lease.leader().as_ref() != Some(&leader) {
                    tracing::info!(epoch = leader.epoch, at = leader.address, "another process is the leader");
                }
                self.lease.yield_to(Some(leader));
                let mut scheduler = lock(&self.scheduler);
                if scheduler.version().epoch > 0 {
                    scheduler.become_follower();
                }
            }
            // Rules 2 and 3: the lease ends by its clock, or never if the store is unshared.
            Err(_) => {}
        }
    }

    /// Writes changed rows to the shared store (rule 5).
    pub(super) async fn run_replication(self: &Arc<Self>) -> Infallible {
        if !self.is_shared() {
            return std::future::pending().await;
        }
        loop {
            sleep(REPLICATION_INTERVAL).await;
            self.replicate().await;
        }
    }

    /// Merges revocation lists (rule 6). A task of its own, because it waits for the lock of the authority's directory.
    pub(super) async fn run_crl_merge(self: &Arc<Self>) -> Infallible {
        if !self.is_shared() {
            return std::future::pending().await;
        }
        let (mut last_error, mut merged) = (None, (0, String::new()));
        loop {
            sleep(REPLICATION_INTERVAL).await;
            let error = self.merge_newest_crl(&mut merged).await.err().map(|error| error.to_string());
            if let Some(error) = error.as_ref().filter(|_| error != last_error) {
                tracing::warn!("{error}: cannot merge the revocation lists; the present list stays in force");
            }
            last_error = error;
        }
    }

    /// Writes the operators' drains to a store that may have lost them. If that fails, they remain in memory as before.
    async fn republish_drains(self: &Arc<Self>) {
        let (drains, by) =
            (self.with_scheduler(|scheduler, _| scheduler.active_drains()), self.lease.holder.clone());
        if drains.is_empty() || !self.is_shared() {
            return;
        }
        let entry = move |(relay, left): (Name, Option<Duration>)| {
            let expires_at = left.map_or(UtcSeconds::MAX, |left| UtcSeconds::now().saturating_add(left));
            Entry { key: format!("{DRAIN_PREFIX}{relay}"), value: by.clone(), expires_at }
        };
        let entries: Vec<Entry> = drains.into_iter().map(entry).collect();
        let _ = self.store(move |store| entries.iter().try_for_each(|entry| store.put(entry))).await;
    }

    async fn replicate(self: &Arc<Self>) {
        while self.is_leader() {
            let (epoch, rows) = self
                .with_scheduler(|scheduler, _| (scheduler.version().epoch, scheduler.take_dirty_rows(MAX_ROWS)));
            if rows.is_empty() {
                return;
            }
            let rows: Arc<[Row]> = rows.into();
            let written = Arc::clone(&rows);
            let written_result = self.store(move |store| store.put_rows(epoch, &written)).await;
            if !matches!(written_result, Ok(true)) {
                // Either the store failed, or another process leads: keep the rows, and find out with a bid at once.
                self.with_scheduler(|scheduler, _| scheduler.mark_dirty(&rows));
                self.lease.bid_now.notify_one();
                return;
            }
        }
    }

    /// `last_merged`: the foreign list that was merged last, with the number of the own list at that time.
    async fn merge_newest_crl(self: &Arc<Self>, last_merged: &mut (u64, String)) -> Result<(), CaError> {
        let trusted = self.trusted();
        let (name, number) = (self.authority.fingerprint().to_string(), trusted.revocations.number());
        let crl = crate::ca::pem_encode("X509 CRL", &trusted.revocations.crl_der());
        let other_crl = self.store(move |store| store.put_if_newer(&format!("revoked/{name}"), number, &crl)).await;
        let Some(list) = other_crl.ok().flatten().filter(|list| *last_merged != (number, list.clone())) else {
            return Ok(());
        };
        let (coordinator, text) = (Arc::clone(self), list.clone());
        let merge = tokio::task::spawn_blocking(move || coordinator.authority.merge_crl(&text, UtcSeconds::now()));
        merge.await.map_err(|error| CaError::Library(error.to_string()))??;
        *last_merged = (number, list);
        Ok(())
    }
}

/// The outcome of a bid.
enum BidResult {
    /// The lease was renewed in the same epoch.
    StillLeader(u64),
    /// A new epoch, with the rows and drains that the previous leader has written.
    NewLeader { epoch: u64, rows: Vec<(String, String)>, drains: Vec<(Name, Option<Duration>)> },
    /// Another process leads.
    OtherLeads(Leader),
}

fn place_bid(store: &mut dyn Store, bid: &Bid) -> Result<BidResult, StoreError> {
    let now = UtcSeconds::now();
    Ok(match store.bid(bid, now)? {
        BidOutcome::Won(epoch) if bid.epoch == Some(epoch) => BidResult::StillLeader(epoch),
        BidOutcome::Won(epoch) => {
            BidResult::NewLeader { epoch, rows: store.rows()?, drains: read_drains(store, now)? }
        }
        BidOutcome::Lost(leader) => BidResult::OtherLeads(leader),
    })
}
