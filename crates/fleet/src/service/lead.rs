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

use super::desk::{DRAINS, Desk, Of, drains, lock};
use super::machine::Row;
use super::store::{Bid, Entry, Lead, Leader, Store, StoreError};
use super::words::Endpoint;
use crate::ca::{CaError, Nonce, Stamp};
use crate::identity::Name;

/// chosen: another one takes over within two heartbeats.
const LEASE: Duration = Duration::from_secs(10);
/// chosen: four bids may be lost.
const RENEW: Duration = Duration::from_secs(2);
const RETRY: Duration = Duration::from_secs(1);
/// chosen: more than two clocks differ by in a lease.
const MARGIN: Duration = Duration::from_secs(1);
/// chosen: what is lost is said again with the next heartbeat.
const SHARE: Duration = Duration::from_secs(1);
/// chosen: the machine is held up for a millisecond.
const ROWS: usize = 256;

/// Whether this process leads, and who else does.
#[derive(Debug)]
pub(super) struct Post {
    holder: String,
    shared: bool,
    place: Mutex<String>,
    /// Until then it leads, by [`boot`].
    until: AtomicU64,
    leader: Mutex<Option<Leader>>,
    above: AtomicU64,
    bids: Notify,
}

impl Post {
    /// Of the process of this name. Others may have the same, where there are others; and where there are none, the lead that it had
    /// before a crash is its own.
    pub(super) fn new(name: &Name, shared: bool) -> Result<Self, CaError> {
        let holder = if shared { format!("{name}/{}", Nonce::random()?) } else { name.to_string() };
        Ok(Self {
            holder,
            shared,
            place: Mutex::default(),
            until: AtomicU64::new(0),
            leader: Mutex::default(),
            above: AtomicU64::new(0),
            bids: Notify::new(),
        })
    }

    pub(super) fn bid(&self, epoch: Option<u64>) -> Bid {
        let (holder, place) = (self.holder.clone(), lock(&self.place).clone());
        Bid { holder, place, epoch, above: self.above.load(Ordering::Relaxed), lease: LEASE }
    }

    pub(super) fn leads(&self, now: Duration) -> bool {
        now.as_nanos() < u128::from(self.until.load(Ordering::Relaxed))
    }

    /// A bid that was made then has won.
    pub(super) fn holds(&self, bidden: Duration) {
        let until = if self.shared { bidden + LEASE - MARGIN } else { Duration::MAX };
        self.until.store(u64::try_from(until.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        *lock(&self.leader) = None;
    }

    fn yields(&self, to: Option<Leader>) {
        self.until.store(0, Ordering::Relaxed);
        *lock(&self.leader) = to;
    }

    /// Who else leads.
    pub(super) fn leader(&self) -> Option<Leader> {
        lock(&self.leader).clone()
    }

    pub(super) fn place(&self) -> Option<String> {
        Some(lock(&self.place).clone()).filter(|place| !place.is_empty())
    }

    pub(super) fn reached_at(&self, place: &Endpoint) {
        *lock(&self.place) = place.to_string();
    }

    pub(super) fn must_be_above(&self, epoch: u64) {
        self.above.fetch_max(epoch, Ordering::Relaxed);
        self.bids.notify_one();
    }
}

/// A clock that nobody sets, and that counts on while the machine sleeps.
pub(super) fn boot() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = Duration::from_secs(u64::try_from(now.tv_sec).unwrap_or_default());
    seconds + Duration::from_nanos(u64::try_from(now.tv_nsec).unwrap_or_default())
}

impl Desk {
    pub(super) async fn keep_lead(self: &Arc<Self>) -> Infallible {
        loop {
            self.bid().await;
            let pause = if self.leads() { RENEW } else { RETRY };
            let _ = timeout(pause, self.post.bids.notified()).await;
        }
    }

    /// Leads no longer, so that another one need not wait for the lease to end.
    pub async fn resign(self: &Arc<Self>) {
        if self.leads() && self.is_shared() {
            self.post.yields(None);
            let holder = self.post.holder.clone();
            let _ = timeout(LEASE / 5, self.store(move |store| store.resign(&holder))).await;
        }
    }

    async fn bid(self: &Arc<Self>) {
        let epoch = Some(lock(&self.machine).mark().epoch).filter(|epoch| *epoch > 0);
        let (bid, bidden, led) = (self.post.bid(epoch), boot(), self.leads());
        let won = self.store_for(Of::Lead, move |store| win(store, &bid)).await;
        match won {
            Ok(Won::Same(epoch)) => {
                self.post.holds(bidden);
                self.with(|machine, now| machine.lead(epoch, now));
            }
            // A later epoch was asked for, and it has led all the time.
            Ok(Won::New { epoch, .. }) if led => {
                self.post.holds(bidden);
                self.with(|machine, now| machine.lead(epoch, now));
                self.say_again().await;
            }
            Ok(Won::New { epoch, rows, drains }) => {
                self.post.holds(bidden);
                let (members, knows) = (rows.len(), rows.is_empty() && drains.is_empty());
                self.with(|machine, now| {
                    if !rows.is_empty() {
                        machine.follow();
                    }
                    machine.lead(epoch, now);
                    machine.restore(&rows, now);
                    if !rows.is_empty() || !drains.is_empty() {
                        machine.drains(drains, now);
                    }
                });
                if knows {
                    self.say_again().await;
                }
                if self.is_shared() {
                    tracing::info!(epoch, members, "this process matches from now on");
                }
            }
            Ok(Won::Others(leader)) => {
                if self.post.leader().as_ref() != Some(&leader) {
                    tracing::info!(epoch = leader.epoch, at = leader.place, "another process matches");
                }
                self.post.yields(Some(leader));
                let mut machine = lock(&self.machine);
                if machine.mark().epoch > 0 {
                    machine.follow();
                }
            }
            // Rules 2 and 3.
            Err(_) => {}
        }
    }

    /// Rule 5.
    pub(super) async fn keep_shared(self: &Arc<Self>) -> Infallible {
        if !self.is_shared() {
            return std::future::pending().await;
        }
        loop {
            sleep(SHARE).await;
            self.share().await;
        }
    }

    /// Rule 6. It waits for the authority's directory, and nothing else waits for it.
    pub(super) async fn keep_list(self: &Arc<Self>) -> Infallible {
        if !self.is_shared() {
            return std::future::pending().await;
        }
        let (mut said, mut looked) = (None, (0, String::new()));
        loop {
            sleep(SHARE).await;
            let error = self.newest_list(&mut looked).await.err().map(|error| error.to_string());
            if let Some(error) = error.as_ref().filter(|_| error != said) {
                tracing::warn!("{error}: the revocation list that was read before stays in force");
            }
            said = error;
        }
    }

    /// What operators have said, to a store that may have lost it. What cannot be written is in memory, as it was before.
    async fn say_again(self: &Arc<Self>) {
        let (drained, by) = (self.with(|machine, _| machine.drained()), self.post.holder.clone());
        if drained.is_empty() || !self.is_shared() {
            return;
        }
        let entry = move |(relay, left): (Name, Option<Duration>)| {
            let until = left.map_or(Stamp::LAST, |left| Stamp::now().after(left));
            Entry { key: format!("{DRAINS}{relay}"), value: by.clone(), until }
        };
        let entries: Vec<Entry> = drained.into_iter().map(entry).collect();
        let _ = self.store(move |store| entries.iter().try_for_each(|entry| store.put(entry))).await;
    }

    async fn share(self: &Arc<Self>) {
        while self.leads() {
            let (epoch, rows) = self.with(|machine, _| (machine.mark().epoch, machine.changes(ROWS)));
            if rows.is_empty() {
                return;
            }
            let rows: Arc<[Row]> = rows.into();
            let written = Arc::clone(&rows);
            let kept = self.store(move |store| store.share(epoch, &written)).await;
            if !matches!(kept, Ok(true)) {
                self.with(|machine, _| machine.unchanged(&rows));
                self.post.bids.notify_one();
                return;
            }
        }
    }

    /// `looked`: the last list of others that was put together with ours, which had this number then.
    async fn newest_list(self: &Arc<Self>, looked: &mut (u64, String)) -> Result<(), CaError> {
        let trusted = self.trusted();
        let (name, number) = (self.authority.fingerprint().to_string(), trusted.revocations.number());
        let list = crate::ca::armoured("X509 CRL", &trusted.revocations.crl());
        let other = self.store(move |store| store.newest(&format!("revoked/{name}"), number, &list)).await;
        let Some(list) = other.ok().flatten().filter(|list| *looked != (number, list.clone())) else {
            return Ok(());
        };
        let (desk, text) = (Arc::clone(self), list.clone());
        let taking = tokio::task::spawn_blocking(move || desk.authority.take_list(&text, Stamp::now()));
        taking.await.map_err(|error| CaError::Library(error.to_string()))??;
        *looked = (number, list);
        Ok(())
    }
}

/// What a bid has brought.
enum Won {
    /// The lead that it had.
    Same(u64),
    /// A new one, and what those knew who led before.
    New { epoch: u64, rows: Vec<(String, String)>, drains: Vec<(Name, Option<Duration>)> },
    /// Somebody else leads.
    Others(Leader),
}

fn win(store: &mut dyn Store, bid: &Bid) -> Result<Won, StoreError> {
    let now = Stamp::now();
    Ok(match store.lead(bid, now)? {
        Lead::Mine(epoch) if bid.epoch == Some(epoch) => Won::Same(epoch),
        Lead::Mine(epoch) => Won::New { epoch, rows: store.shared()?, drains: drains(store, now)? },
        Lead::Others(leader) => Won::Others(leader),
    })
}
