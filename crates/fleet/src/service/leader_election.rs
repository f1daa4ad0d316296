//! The lead: which of several processes matches.
//!
//! In: what the store answers to bids. Out: whether this process leads, and who else does.
//!
//! 1. A process bids each [`RENEW`] while it leads, and each [`RETRY`] while another one does. A lead lasts for [`LEASE`] from its
//!    last bid on.
//! 2. A holder counts from the moment before it bids, by a clock that nobody sets and that goes on while the machine sleeps, and
//!    stops [`MARGIN`] before the store lets another one lead. So a store that cannot be reached costs the lead, and nobody
//!    needs to be told.
//! 3. A store that nobody shares cannot give the lead to another one: who has it leads on while the disk is full.
//! 4. Who takes over reads what the one before has written of its members. Who only went on, and whom nobody has led after, knows
//!    better.
//! 5. Changes are written each [`SHARE`], in one step with the question whether it still leads.
//! 6. Lists of the revoked go through the store, whoever leads. Two machines may have revoked somebody each before they heard of each
//!    other: whoever finds another list there puts both together.

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

/// chosen: another one takes over within two heartbeats.
const LEASE: Duration = Duration::from_secs(10);
/// chosen: four bids may be lost.
const RENEW_INTERVAL: Duration = Duration::from_secs(2);
const BID_INTERVAL: Duration = Duration::from_secs(1);
/// chosen: more than two clocks differ by in a lease.
const CLOCK_MARGIN: Duration = Duration::from_secs(1);
/// chosen: what is lost is said again with the next heartbeat.
const REPLICATION_INTERVAL: Duration = Duration::from_secs(1);
/// chosen: the machine is held up for a millisecond.
const MAX_ROWS: usize = 256;

/// Whether this process leads, and who else does.
#[derive(Debug)]
pub(super) struct LeaderLease {
    holder: String,
    is_shared: bool,
    address: Mutex<String>,
    /// Until then it leads, by [`boot`].
    leads_until: AtomicU64,
    leader: Mutex<Option<Leader>>,
    min_epoch: AtomicU64,
    bid_now: Notify,
}

impl LeaderLease {
    /// Of the process of this name. Others may have the same, where there are others; and where there are none, the lead that it had
    /// before a crash is its own.
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

    /// A bid that was made then has won.
    pub(super) fn set_leader(&self, bid_at: Duration) {
        let leads_until = if self.is_shared { bid_at + LEASE - CLOCK_MARGIN } else { Duration::MAX };
        self.leads_until.store(u64::try_from(leads_until.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        *lock(&self.leader) = None;
    }

    fn yield_to(&self, leader: Option<Leader>) {
        self.leads_until.store(0, Ordering::Relaxed);
        *lock(&self.leader) = leader;
    }

    /// Who else leads.
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

/// A clock that nobody sets, and that counts on while the machine sleeps.
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

    /// Leads no longer, so that another one need not wait for the lease to end.
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
            // A later epoch was asked for, and it has led all the time.
            Ok(BidResult::NewLeader { epoch, .. }) if was_leader => {
                self.lease.set_leader(bid_at);
                self.with_scheduler(|scheduler, now| scheduler.become_leader(epoch, now));
                self.republish_drains().await;
            }
            Ok(BidResult::NewLeader { epoch, rows, drains }) => {
                self.lease.set_leader(bid_at);
                let (members, is_empty) = (rows.len(), rows.is_empty() && drains.is_empty());
                self.with_scheduler(|scheduler, now| {
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
                    tracing::info!(epoch, members, "this process matches from now on");
                }
            }
            Ok(BidResult::OtherLeads(leader)) => {
                if self.lease.leader().as_ref() != Some(&leader) {
                    tracing::info!(epoch = leader.epoch, at = leader.address, "another process matches");
                }
                self.lease.yield_to(Some(leader));
                let mut scheduler = lock(&self.scheduler);
                if scheduler.version().epoch > 0 {
                    scheduler.become_follower();
                }
            }
            // Rules 2 and 3.
            Err(_) => {}
        }
    }

    /// Rule 5.
    pub(super) async fn run_replication(self: &Arc<Self>) -> Infallible {
        if !self.is_shared() {
            return std::future::pending().await;
        }
        loop {
            sleep(REPLICATION_INTERVAL).await;
            self.replicate().await;
        }
    }

    /// Rule 6. It waits for the authority's directory, and nothing else waits for it.
    pub(super) async fn run_crl_merge(self: &Arc<Self>) -> Infallible {
        if !self.is_shared() {
            return std::future::pending().await;
        }
        let (mut last_error, mut merged) = (None, (0, String::new()));
        loop {
            sleep(REPLICATION_INTERVAL).await;
            let error = self.merge_newest_crl(&mut merged).await.err().map(|error| error.to_string());
            if let Some(error) = error.as_ref().filter(|_| error != last_error) {
                tracing::warn!("{error}: the revocation list that was read before stays in force");
            }
            last_error = error;
        }
    }

    /// What operators have said, to a store that may have lost it. What cannot be written is in memory, as it was before.
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
                self.with_scheduler(|scheduler, _| scheduler.mark_dirty(&rows));
                self.lease.bid_now.notify_one();
                return;
            }
        }
    }

    /// `looked`: the last list of others that was put together with ours, which had this number then.
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

/// What a bid has brought.
enum BidResult {
    /// The lead that it had.
    StillLeader(u64),
    /// A new one, and what those knew who led before.
    NewLeader { epoch: u64, rows: Vec<(String, String)>, drains: Vec<(Name, Option<Duration>)> },
    /// Somebody else leads.
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
