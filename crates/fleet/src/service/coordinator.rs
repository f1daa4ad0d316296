//! The machine at work: its clock, those who wait for it, its store, and the authority.
//!
//! In: calls of the API. Out: what the machine says; matchings solved and files written on threads that may wait.
//!
//! 1. One lock for the machine, held for microseconds; matchings are solved without it.
//! 2. Who leads is asked of the store ([`lead`](super::lead)). While nobody is known to lead, relays are answered by what is known,
//!    and nothing is decided.
//! 3. Who enrols or renews waits for the authority's directory, and for his turn before that: threads that may wait are left for the
//!    store and for matchings, however many come at once.
//! 4. What a store or an authority refuses is told once ([`Desk::trouble`]), and once more when it goes again. A store that answers other
//!    calls does not hide that nothing can be matched ([`Of`]).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::StatusCode;
use marline_core::units::Instant;
use rustls::pki_types::CertificateDer;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot, watch};

use super::api::EnrolRequest;
use super::api_types::{Endpoint, ServiceStatus};
use super::client::CallerProcess;
use super::duplicates::{Change, Duplicates};
use super::leader_election::{LeaderLease, boot_time};
use super::leader_proxy::LeaderConns;
use super::problem::Problem;
use super::scheduler::{FleetScheduler, MatchingProblem as Matching, Output, SchedulerConfig};
use super::store::{BidOutcome, Entry, RedisSecrets, Store, StoreError};
use crate::ca::{
    Authority, CaError, EnrolError, IssuedChain, Nonce, RenewError, UsedTokens, UsedTokensFile, UtcSeconds,
};
use crate::identity::{Identity, Name, Role};
use crate::relay::ServerTrust;
use crate::tls::{Peer, TlsError};

/// What connections share.
pub struct Coordinator {
    pub(super) scheduler: Mutex<FleetScheduler>,
    waiters: Mutex<BTreeMap<Name, Vec<oneshot::Sender<()>>>>,
    store: Mutex<Box<dyn Store>>,
    /// Why the store or the authority cannot now.
    error: watch::Sender<Option<String>>,
    errors: Mutex<BTreeMap<ErrorSource, String>>,
    pub(super) authority: Authority,
    used_tokens: Mutex<UsedTokensFile>,
    /// Rule 3.
    ca_permits: Arc<Semaphore>,
    trusted: watch::Receiver<Arc<ServerTrust>>,
    /// When the certificates end that relays and edges have shown last. As many as members were let in.
    certificate_ends: Mutex<BTreeMap<Identity, UtcSeconds>>,
    /// Which processes of members were heard.
    duplicates: Mutex<Duplicates>,
    started_at: std::time::Instant,
    /// Until when the clock sleeps.
    sleeps_until: AtomicU64,
    wake: Notify,
    name: Name,
    /// Where the store is, and which region is shared there.
    store_location: (String, Option<String>),
    pub(super) lease: LeaderLease,
    pub(super) leader_conns: LeaderConns,
}

/// What a trouble concerns; it ends when the same goes again. The first one counts most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ErrorSource {
    /// Taking the lead: without it nothing is matched.
    Lead,
    /// Anything else that the store does.
    Store,
    /// Enrolling and renewing.
    Authority,
}

/// Why a service cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The store does not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The authority does not.
    #[error(transparent)]
    Authority(#[from] CaError),
}

/// chosen: about half a second for a window; a matching of all may take several (`docs/algorithms.md`).
const WINDOW_WORK: u64 = 50_000_000;
const FULL_WORK: u64 = 500_000_000;
/// Rule 3. chosen: one at a time has the lock, and some read meanwhile.
const MAX_CA_JOBS: usize = 8;
/// Under which keys drains stand.
pub(super) const DRAIN_PREFIX: &str = "drain/";

impl Coordinator {
    /// Knows what operators have said, and takes the lead, if nobody shares the store; else that comes with [`Desk::keep`].
    ///
    /// # Errors
    /// The authority or a store of its own does not answer. One that is shared may come later.
    pub fn open(
        config: SchedulerConfig,
        holder: &Name,
        mut store: Box<dyn Store>,
        authority: Authority,
        trusted: watch::Receiver<Arc<ServerTrust>>,
    ) -> Result<Arc<Self>, StartError> {
        let now = UtcSeconds::now();
        let location = (store.location(), store.region());
        let lease = LeaderLease::new(holder, location.1.is_some())?;
        let mut scheduler = FleetScheduler::new(config, 0, Instant::default());
        if location.1.is_none()
            && let BidOutcome::Won(epoch) = store.bid(&lease.bid(None), now)?
        {
            scheduler = FleetScheduler::new(config, epoch, Instant::default());
            lease.set_leader(boot_time());
        }
        scheduler.set_replicated(location.1.is_some());
        if location.1.is_none() {
            scheduler.set_drains(read_drains(store.as_mut(), now)?, Instant::default());
        }
        let used_tokens = UsedTokensFile::open(&authority, now)?;
        Ok(Arc::new(Self {
            scheduler: Mutex::new(scheduler),
            waiters: Mutex::default(),
            store: Mutex::new(store),
            error: watch::Sender::new(None),
            errors: Mutex::default(),
            authority,
            used_tokens: Mutex::new(used_tokens),
            ca_permits: Arc::new(Semaphore::new(MAX_CA_JOBS)),
            trusted,
            certificate_ends: Mutex::default(),
            duplicates: Mutex::default(),
            started_at: std::time::Instant::now(),
            sleeps_until: AtomicU64::new(0),
            wake: Notify::new(),
            name: holder.clone(),
            store_location: location,
            lease,
            leader_conns: LeaderConns::default(),
        }))
    }

    /// Keeps time and the lead until dropped.
    pub async fn run(self: &Arc<Self>) -> std::convert::Infallible {
        tokio::join!(self.run_clock(), self.run_election(), self.run_replication(), self.run_crl_merge()).0
    }

    /// Why the store or the authority cannot now, when that changes; nothing else does: the service goes on.
    pub fn errors(&self) -> watch::Receiver<Option<String>> {
        self.error.subscribe()
    }

    /// Whether it leads.
    pub fn is_leader(&self) -> bool {
        self.lease.is_leader(boot_time())
    }

    /// Says where other processes of the service reach this one.
    pub fn set_address(&self, address: &Endpoint) {
        self.lease.set_address(address);
    }

    /// How this process stands.
    pub(super) fn status(&self) -> ServiceStatus {
        let leads = self.is_leader();
        let version = lock(&self.scheduler).version();
        let leader = self.lease.leader();
        ServiceStatus {
            name: self.name.clone(),
            store: self.store_location.0.clone(),
            region: self.store_location.1.clone(),
            is_leader: leads,
            leader_address: if leads { self.lease.address() } else { leader.clone().map(|it| it.address) },
            epoch: if leads { Some(version.epoch) } else { leader.map(|it| it.epoch) },
            error: self.error.borrow().clone(),
        }
    }

    /// Whether others share its store.
    pub(super) fn is_shared(&self) -> bool {
        self.store_location.1.is_some()
    }

    pub(super) fn trusted(&self) -> Arc<ServerTrust> {
        Arc::clone(&self.trusted.borrow())
    }

    pub(super) fn check(&self, peer: &Peer) -> Result<(), TlsError> {
        self.trusted.borrow().check(peer)
    }

    /// Somebody has spoken, and shown this certificate.
    pub(super) fn note_certificate(&self, peer: &Peer) {
        let mut ends = lock(&self.certificate_ends);
        if ends.get(&peer.identity) != Some(&peer.not_after) {
            ends.insert(peer.identity.clone(), peer.not_after);
        }
    }

    /// A process of a member has reported.
    pub(super) fn note_process(&self, identity: &Identity, process: CallerProcess) {
        let change = lock(&self.duplicates).note(identity, process.instance, process.address, self.now());
        match change {
            Some(Change::Duplicated(addresses)) => {
                let (role, name) = (identity.role, &identity.name);
                let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
                tracing::warn!(
                    "{identity}: its certificate is used by several processes at the same time, at {}: enrol all but one under names \
                     of their own (`marline fleet ca token --role {role} --name NAME`); if the certificate was stolen, revoke it \
                     (`marline fleet ca revoke --role {role} {name}`)",
                    addresses.join(" and ")
                );
            }
            Some(Change::Resolved) => tracing::warn!("{identity}: its certificate is used by one process again"),
            None => {}
        }
    }

    /// Puts down where the processes are that use one certificate at the same time.
    pub(super) fn fill_duplicates<'a>(
        &self,
        role: Role,
        rows: impl Iterator<Item = (&'a Name, &'a mut Vec<IpAddr>)>,
    ) {
        let (now, mut duplicates) = (self.now(), lock(&self.duplicates));
        for (name, row) in rows {
            *row = duplicates.addresses_in_use(&Identity { role, name: name.clone() }, now);
        }
    }

    /// Puts down when the certificates of these end.
    pub(super) fn fill_certificate_ends<'a>(
        &self,
        role: Role,
        rows: impl Iterator<Item = (&'a Name, &'a mut Option<String>)>,
    ) {
        let ends = lock(&self.certificate_ends);
        for (name, row) in rows {
            *row = ends.get(&Identity { role, name: name.clone() }).map(UtcSeconds::to_string);
        }
    }

    /// Does something with the machine, and what follows of it.
    pub(super) fn with_scheduler<T>(self: &Arc<Self>, act: impl FnOnce(&mut FleetScheduler, Instant) -> T) -> T {
        let mut scheduler = lock(&self.scheduler);
        if scheduler.is_leader() && !self.is_leader() {
            scheduler.step_down();
        }
        let result = act(&mut scheduler, self.now());
        while let Some(output) = scheduler.poll() {
            match output {
                Output::Solve(matching) => self.solve(matching),
                Output::Decided(edge) => {
                    let waiting = lock(&self.waiters).remove(&edge).unwrap_or_default();
                    // Who has gone does not hear it.
                    waiting.into_iter().for_each(|tell| _ = tell.send(()));
                }
                Output::RaiseEpoch(epoch) => self.lease.raise_min_epoch(epoch),
            }
        }
        if scheduler.deadline().as_nanos() < self.sleeps_until.load(Ordering::Relaxed) {
            self.wake.notify_one();
        }
        result
    }

    /// Told when the request of this edge is decided.
    pub(super) fn decision(&self, edge: &Name) -> oneshot::Receiver<()> {
        let (decided_tx, decided_rx) = oneshot::channel();
        let mut waiting = lock(&self.waiters);
        let waiters = waiting.entry(edge.clone()).or_default();
        waiters.retain(|tell| !tell.is_closed());
        waiters.push(decided_tx);
        decided_rx
    }

    /// An operator's word on a relay; whether it will outlast the service.
    pub(super) async fn drain(
        self: &Arc<Self>,
        by: &Name,
        relay: Name,
        closed: bool,
        time: Option<Duration>,
    ) -> bool {
        self.with_scheduler(|scheduler, now| scheduler.drain(&relay, closed, time, now));
        let key = format!("{DRAIN_PREFIX}{relay}");
        let expires_at = time.map_or(UtcSeconds::MAX, |time| UtcSeconds::now().saturating_add(time));
        let entry = Entry { key, value: by.to_string(), expires_at };
        let update = move |store: &mut dyn Store| if closed { store.put(&entry) } else { store.remove(&entry.key) };
        self.store(update).await.is_ok()
    }

    /// What a token brings.
    pub(super) async fn enrol(
        self: &Arc<Self>,
        EnrolRequest { token, request }: EnrolRequest,
    ) -> Result<IssuedChain, Problem> {
        let (coordinator, permit) = (Arc::clone(self), self.ca_permit().await?);
        let enrolling = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let mut used_tokens = lock(&coordinator.used_tokens);
            let mut stores = UsedTokensInBoth { file: &mut used_tokens, store: &coordinator.store };
            coordinator.authority.enrol(&token, request.as_bytes(), UtcSeconds::now(), &mut stores)
        });
        let enrolled = enrolling.await.map_err(|error| unavailable("authority", error.to_string()))?;
        if enrolled.is_ok() {
            self.set_error(ErrorSource::Authority, None);
        }
        enrolled.map_err(|error| match error {
            EnrolError::Malformed(_) | EnrolError::Request(_) => Problem::malformed(error.to_string()),
            EnrolError::OtherAuthority | EnrolError::Expired => Problem::not_allowed(error.to_string()),
            EnrolError::Used => Problem::new(StatusCode::CONFLICT, "used", error.to_string()),
            EnrolError::Authority(error @ CaError::KeyMissing { .. }) => key_missing(&error),
            EnrolError::Authority(error) => {
                self.set_error(ErrorSource::Authority, Some(error.to_string()));
                unavailable("authority", "the authority cannot now; the token may be lost")
            }
        })
    }

    /// The next certificate of who shows this one.
    pub(super) async fn renew(
        self: &Arc<Self>,
        presented: CertificateDer<'static>,
    ) -> Result<IssuedChain, Problem> {
        let (coordinator, permit) = (Arc::clone(self), self.ca_permit().await?);
        let renewing = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            coordinator.authority.renew(&presented, UtcSeconds::now())
        });
        let renewed = renewing.await.map_err(|error| unavailable("authority", error.to_string()))?;
        if renewed.is_ok() {
            self.set_error(ErrorSource::Authority, None);
        }
        renewed.map_err(|error| match error {
            RenewError::NotDue(text) => Problem::new(StatusCode::CONFLICT, "not-due", text),
            RenewError::NotAllowed(text) => Problem::not_allowed(text),
            RenewError::Authority(error @ CaError::KeyMissing { .. }) => key_missing(&error),
            RenewError::Authority(error) => {
                self.set_error(ErrorSource::Authority, Some(error.to_string()));
                unavailable("authority", "the authority cannot now; ask again")
            }
        })
    }

    /// Rule 3. It is over when the thread is done, and not when the caller has gone.
    async fn ca_permit(&self) -> Result<OwnedSemaphorePermit, Problem> {
        let permit = Arc::clone(&self.ca_permits).acquire_owned().await;
        permit.map_err(|error| unavailable("authority", error.to_string()))
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.started_at.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn solve(self: &Arc<Self>, matching: Box<Matching>) {
        let coordinator = Arc::clone(self);
        tokio::spawn(async move {
            let work = if matching.is_full() { FULL_WORK } else { WINDOW_WORK };
            let solved = tokio::task::spawn_blocking(move || matching.solve(work)).await;
            match solved {
                Ok(solution) => {
                    coordinator.with_scheduler(|scheduler, now| scheduler.apply_solution(solution, now))
                }
                Err(error) => tracing::error!(%error, "a matching ended without an answer"),
            }
        });
    }

    async fn run_clock(self: &Arc<Self>) -> std::convert::Infallible {
        loop {
            let deadline = self.with_scheduler(|scheduler, now| {
                scheduler.tick(now);
                scheduler.deadline()
            });
            self.sleeps_until.store(deadline.as_nanos(), Ordering::Relaxed);
            tokio::select! {
                () = tokio::time::sleep(deadline.since(self.now())) => {}
                () = self.wake.notified() => {}
            }
        }
    }

    /// Does something with the store, on a thread that may wait.
    pub(super) async fn store<T: Send + 'static>(
        self: &Arc<Self>,
        act: impl FnOnce(&mut dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Problem> {
        self.store_for(ErrorSource::Store, act).await
    }

    /// The same, where a failure is a trouble of another sort.
    pub(super) async fn store_for<T: Send + 'static>(
        self: &Arc<Self>,
        source: ErrorSource,
        act: impl FnOnce(&mut dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Problem> {
        let coordinator = Arc::clone(self);
        let result = tokio::task::spawn_blocking(move || act(lock(&coordinator.store).as_mut())).await;
        match result {
            Ok(Ok(value)) => {
                self.set_error(source, None);
                Ok(value)
            }
            Ok(Err(error)) => {
                self.set_error(source, Some(error.to_string()));
                Err(unavailable("store", "the service's store does not answer"))
            }
            Err(error) => Err(unavailable("store", error.to_string())),
        }
    }

    /// Another password and authority of a shared store, from now on.
    pub async fn set_secrets(self: &Arc<Self>, secrets: RedisSecrets) {
        let result = self.store(move |store| store.set_secrets(secrets)).await;
        if result.is_ok() {
            tracing::info!("the store's password and authority are read again");
        }
    }

    /// Rule 4.
    fn set_error(&self, source: ErrorSource, text: Option<String>) {
        let mut troubles = lock(&self.errors);
        match text {
            Some(words) => _ = troubles.insert(source, words),
            None => _ = troubles.remove(&source),
        }
        let worst = troubles.values().next().cloned();
        self.error.send_if_modified(|current| {
            let has_changed = current.is_some() != worst.is_some();
            *current = worst;
            has_changed
        });
    }
}

impl std::fmt::Debug for Coordinator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Desk").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A token is spent in the authority's directory and in the store: either may be lost and the other one still knows it.
struct UsedTokensInBoth<'a> {
    file: &'a mut UsedTokensFile,
    store: &'a Mutex<Box<dyn Store>>,
}

impl UsedTokens for UsedTokensInBoth<'_> {
    fn claim(&mut self, nonce: Nonce, until: UtcSeconds) -> Result<bool, CaError> {
        let is_new_in_store = lock(self.store).claim(nonce, until);
        let is_new_in_store = is_new_in_store.map_err(|error| CaError::Library(error.to_string()))?;
        Ok(self.file.claim(nonce, until)? && is_new_in_store)
    }
}

/// What operators have said, and for how long it still counts.
pub(super) fn read_drains(
    store: &mut dyn Store,
    now: UtcSeconds,
) -> Result<Vec<(Name, Option<Duration>)>, StoreError> {
    let entries = store.list(DRAIN_PREFIX, now)?;
    let drain = |entry: Entry| {
        let left = entry.expires_at.since_epoch().saturating_sub(now.since_epoch());
        Some((
            entry.key.strip_prefix(DRAIN_PREFIX)?.parse().ok()?,
            (entry.expires_at != UtcSeconds::MAX).then_some(left),
        ))
    };
    Ok(entries.into_iter().filter_map(drain).collect())
}

/// Certificates are issued elsewhere, which is no trouble of this service.
fn key_missing(error: &CaError) -> Problem {
    tracing::debug!(%error, "asked for a signature");
    let text = "this service signs nothing, for the authority's key is kept off-line: ask whoever keeps it for a certificate";
    unavailable("authority", text)
}

pub(super) fn unavailable(title: &str, detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, title, detail)
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
