//! Leader election: which of several processes of the service makes the assignments.
//!
//! Each process bids for a lease in the shared store; the replies decide which one leads.
//!
//! 1. The leader renews its lease each [`RENEW_INTERVAL`]; the other processes bid each [`BID_INTERVAL`]. A lease lasts [`LEASE`]
//!    from the last winning bid.
//! 2. The leader measures its lease from the moment before it sends the bid, by a clock that cannot be set and that runs during suspend.
//!    It stops a second before the store would give the lease to another process. An unreachable store therefore ends the
//!    leadership, without any message between the processes.
//! 3. An unshared store cannot give the lease to another process: its owner remains leader even while the disk is full.
//! 4. A new leader loads the rows of the members that the previous leader has written. A leader that merely continues, with no other
//!    leader in between, keeps its own state, which is newer.
//! 5. Changes are written each [`REPLICATION_INTERVAL`], in one transaction with the check that this process still leads.
//! 6. Revocation lists are exchanged through the store, independent of leadership. Two machines may each have revoked a certificate before
//!    they received the other's list: a process that finds a different list in the store merges both.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use marline_core::fleet::scheduling::{FleetScheduler, Input, Member, MemberRow, Reply};
use tokio::time::{sleep, timeout};

use super::coordinator::{Coordinator, DRAIN_PREFIX, ErrorSource, read_drains};
use super::leader_lease::{LEASE, boot_time};
use super::replicated_rows::{parse_rows, to_row};
use super::store::{Bid, BidOutcome, Entry, Leader, Row, Store, StoreError};
use crate::ca::{CaError, UtcSeconds};
use crate::identity::Name;

/// Our choice: three consecutive bids may fail without an interruption.
const RENEW_INTERVAL: Duration = Duration::from_secs(2);
const BID_INTERVAL: Duration = Duration::from_secs(1);
/// Our choice: members repeat with their next heartbeat what was lost before it was written.
const REPLICATION_INTERVAL: Duration = Duration::from_secs(1);
/// Rows written in one call. Our choice: collecting them holds the scheduler's lock for one millisecond.
const MAX_ROWS: usize = 256;

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
        let epoch = Some(self.read(FleetScheduler::version).epoch).filter(|epoch| *epoch > 0);
        let (bid, bid_at, was_leader) = (self.lease.bid(epoch), boot_time(), self.is_leader());
        let result = self.store_for(ErrorSource::Lead, move |store| place_bid(store, &bid)).await;
        match result {
            Ok(BidResult::StillLeader(epoch)) => {
                self.lease.set_leader(bid_at);
                self.handle(Input::Lead { epoch });
            }
            // The store has raised the epoch as this leader requested; its own state is still the newest.
            Ok(BidResult::NewLeader { epoch, .. }) if was_leader => {
                self.lease.set_leader(bid_at);
                self.handle(Input::Lead { epoch });
                self.republish_drains().await;
            }
            Ok(BidResult::NewLeader { epoch, rows, drains }) => {
                self.lease.set_leader(bid_at);
                let (members, is_empty) = (rows.len(), rows.is_empty() && drains.is_empty());
                // Rule 4: the previous leader's rows replace this process's state, which is older. Without rows (a new or emptied
                // store) the own state is all there is.
                let reset = (!rows.is_empty()).then_some(Input::Follow);
                let drains = (!is_empty).then_some(Input::SetDrains(drains));
                let restore = [Input::Lead { epoch }, Input::Restore(parse_rows(&rows))];
                self.handle_all(reset.into_iter().chain(restore).chain(drains));
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
                if self.read(FleetScheduler::version).epoch > 0 {
                    self.handle(Input::Follow);
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
        let (drains, by) = (self.read(FleetScheduler::active_drains), self.lease.holder.clone());
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
            // Read first: the store refuses the rows if this epoch has ended meanwhile.
            let epoch = self.read(FleetScheduler::version).epoch;
            let Some(Reply::Rows(changes)) = self.handle(Input::TakeRows(MAX_ROWS)) else { return };
            if changes.is_empty() {
                return;
            }
            let rows: Vec<Row> = changes.iter().map(to_row).collect();
            let written = self.store(move |store| store.put_rows(epoch, &rows)).await;
            if !matches!(written, Ok(true)) {
                // Either the store failed, or another process leads: keep the rows, and find out with a bid at once.
                let members: Vec<Member> = changes.iter().map(MemberRow::member).collect();
                self.handle(Input::MarkUnwritten(members));
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
