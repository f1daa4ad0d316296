//! Driver of the scheduler: its clock, the requests that wait for a decision, the store, and the certificate authority.
//!
//! The API calls into it. It runs the scheduler's outputs and moves everything that may block (matchings, store, files) to
//! blocking threads.
//!
//! 1. One lock protects the scheduler and is held for microseconds; matchings are solved outside it.
//! 2. The store decides which process leads ([`leader_election`](super::leader_election)). While no leader is known, heartbeats are
//!    answered from local knowledge and no decisions are made.
//! 3. Enrolments and renewals block on the lock of the authority's directory. A semaphore admits only a few of them, so that any number
//!    of them leaves blocking threads for the store and for matchings.
//! 4. A failure of the store or the authority is reported once, and its end once ([`Coordinator::errors`]). Failures are kept by source
//!    ([`ErrorSource`]): successful writes to the store do not hide that this process cannot become leader.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use hyper::StatusCode;
use marline_core::fleet::scheduling::{FleetScheduler, Input, MatchingProblem, Output, Reply, SchedulerConfig};
use marline_core::machine::Machine as _;
use marline_core::units::Instant;
use rustls::pki_types::CertificateDer;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot, watch};

use super::api_types::{Endpoint, EnrolRequest, ServiceStatus};
use super::client::CallerProcess;
use super::duplicates::{Change, Duplicates};
use super::leader_conns::LeaderConns;
use super::leader_lease::{LeaderLease, boot_time};
use super::lock::lock;
use super::problem::Problem;
use super::store::{BidOutcome, Entry, RedisSecrets, Store, StoreError};
use crate::ca::{
    Authority, CaError, EnrolError, IssuedChain, Nonce, RenewError, UsedTokens, UsedTokensFile, UtcSeconds,
};
use crate::identity::{Identity, Name, Role};
use crate::server_trust::ServerTrust;
use crate::tls::{Peer, TlsError};

/// The shared state of one service process; all connections use it through an `Arc`.
pub struct Coordinator {
    scheduler: Mutex<FleetScheduler>,
    /// The requests of each edge that wait for the scheduler's decision.
    waiters: Mutex<BTreeMap<Name, Vec<oneshot::Sender<()>>>>,
    store: Mutex<Box<dyn Store>>,
    /// The most important current error of store or authority.
    error: watch::Sender<Option<String>>,
    errors: Mutex<BTreeMap<ErrorSource, String>>,
    pub(super) authority: Authority,
    used_tokens: Mutex<UsedTokensFile>,
    /// Limits concurrent enrolments and renewals (rule 3).
    ca_permits: Arc<Semaphore>,
    trusted: watch::Receiver<Arc<ServerTrust>>,
    /// When the last certificates presented by relays and edges expire. One entry for each member that was admitted.
    certificate_ends: Mutex<BTreeMap<Identity, UtcSeconds>>,
    /// Instances of members, to detect certificates that several processes use.
    duplicates: Mutex<Duplicates>,
    started_at: std::time::Instant,
    /// The deadline of the current sleep in `run_clock`, in nanoseconds of `now`.
    sleeps_until: AtomicU64,
    wake: Notify,
    name: Name,
    /// Location of the store, and the region if the store is shared.
    store_location: (String, Option<String>),
    pub(super) lease: LeaderLease,
    pub(super) leader_conns: LeaderConns,
}

/// The source of an error; a success of the same source clears it. In order of importance, the most important first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ErrorSource {
    /// Bidding for leadership; without a leader nothing is matched.
    Lead,
    /// All other operations of the store.
    Store,
    /// Enrolment and renewal.
    Authority,
}

/// Why a service cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The store cannot be opened or read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The certificate authority cannot be opened or read.
    #[error(transparent)]
    Authority(#[from] CaError),
}

/// Work limits for the solver, in candidates examined. Our choice: about half a second for a window; the matching of all edges may take
/// several (`docs/how-it-works/algorithms.md`).
const WINDOW_WORK: u64 = 50_000_000;
const FULL_WORK: u64 = 500_000_000;
/// Concurrent enrolments and renewals (rule 3). Our choice: one at a time holds the lock, the others read meanwhile.
const MAX_CA_JOBS: usize = 8;
/// Prefix of the store's keys for drains.
pub(super) const DRAIN_PREFIX: &str = "drain/";

impl Coordinator {
    /// Opens the service. With a store of its own the process becomes leader and loads the operators' drains at once; with a shared
    /// store both happen in [`Coordinator::run`].
    ///
    /// # Errors
    /// The authority or an unshared store fails. A shared store may be unreachable at this point.
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
        scheduler.handle(Instant::default(), Input::Replicate(location.1.is_some()));
        if location.1.is_none() {
            scheduler.handle(Instant::default(), Input::SetDrains(read_drains(store.as_mut(), now)?));
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

    /// Runs the clock, the leader election, the replication and the merging of revocation lists until dropped.
    pub async fn run(self: &Arc<Self>) -> std::convert::Infallible {
        tokio::join!(self.run_clock(), self.run_election(), self.run_replication(), self.run_crl_merge()).0
    }

    /// The current error of store or authority; changes when an error occurs or ends. The service continues in any case.
    pub fn errors(&self) -> watch::Receiver<Option<String>> {
        self.error.subscribe()
    }

    /// Whether this process is the leader.
    pub fn is_leader(&self) -> bool {
        self.lease.is_leader(boot_time())
    }

    /// Sets the address at which other processes of the service reach this one.
    pub fn set_address(&self, address: &Endpoint) {
        self.lease.set_address(address);
    }

    /// The status of this process, for operators.
    pub(super) fn status(&self) -> ServiceStatus {
        let leads = self.is_leader();
        let version = self.read(FleetScheduler::version);
        let leader = self.lease.leader();
        ServiceStatus {
            name: self.name.clone(),
            store: self.store_location.0.clone(),
            region: self.store_location.1.clone(),
            is_leader: leads,
            leader_address: if leads { self.lease.address() } else { leader.clone().map(|lead| lead.address) },
            epoch: if leads { Some(version.epoch) } else { leader.map(|lead| lead.epoch) },
            error: self.error.borrow().clone(),
        }
    }

    /// Whether other processes share the store.
    pub(super) fn is_shared(&self) -> bool {
        self.store_location.1.is_some()
    }

    pub(super) fn trusted(&self) -> Arc<ServerTrust> {
        Arc::clone(&self.trusted.borrow())
    }

    pub(super) fn check(&self, peer: &Peer) -> Result<(), TlsError> {
        self.trusted.borrow().check(peer)
    }

    /// Records the certificate that a member has presented with its latest report.
    pub(super) fn note_certificate(&self, peer: &Peer) {
        let mut ends = lock(&self.certificate_ends);
        if ends.get(&peer.identity) != Some(&peer.not_after) {
            ends.insert(peer.identity.clone(), peer.not_after);
        }
    }

    /// Records which process of a member has reported, and warns if several processes use its certificate.
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

    /// Fills in the addresses of the processes that use one certificate at the same time.
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

    /// Fills in when the members' certificates expire.
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

    /// Passes an input to the scheduler and executes what results; returns the scheduler's reply.
    pub(super) fn handle(self: &Arc<Self>, input: Input) -> Option<Reply> {
        self.handle_all([input])
    }

    /// Passes several inputs to the scheduler, with none of other callers between them; returns the last reply.
    pub(super) fn handle_all(self: &Arc<Self>, inputs: impl IntoIterator<Item = Input>) -> Option<Reply> {
        let (mut scheduler, mut reply) = (self.lock_scheduler(), None);
        for input in inputs {
            scheduler.handle(self.now(), input);
            reply = self.run_outputs(&mut scheduler).or(reply);
        }
        // The inputs may have created an earlier deadline than the one for which `run_clock` sleeps.
        if deadline(&scheduler).as_nanos() < self.sleeps_until.load(Ordering::Relaxed) {
            self.wake.notify_one();
        }
        reply
    }

    /// Reads the scheduler's present state.
    pub(super) fn read<T>(&self, of: impl FnOnce(&FleetScheduler) -> T) -> T {
        of(&lock(&self.scheduler))
    }

    /// Reads the scheduler's state after everything that is due has been done.
    pub(super) fn read_updated<T>(self: &Arc<Self>, of: impl FnOnce(&FleetScheduler) -> T) -> T {
        let mut scheduler = self.lock_scheduler();
        scheduler.tick(self.now());
        self.run_outputs(&mut scheduler);
        of(&scheduler)
    }

    /// Locks the scheduler. The lease ends by time alone, so each access checks whether the scheduler may still decide.
    fn lock_scheduler(&self) -> MutexGuard<'_, FleetScheduler> {
        let mut scheduler = lock(&self.scheduler);
        if scheduler.is_leader() && !self.is_leader() {
            scheduler.handle(self.now(), Input::StepDown);
        }
        scheduler
    }

    /// Executes all outputs of the scheduler; returns the last reply.
    fn run_outputs(self: &Arc<Self>, scheduler: &mut FleetScheduler) -> Option<Reply> {
        let mut last_reply = None;
        while let Some(output) = scheduler.poll() {
            match output {
                Output::Reply(reply) => last_reply = Some(reply),
                Output::Solve(problem) => self.solve(problem),
                Output::Decided(edge) => {
                    let waiting = lock(&self.waiters).remove(&edge).unwrap_or_default();
                    // A caller that has disconnected meanwhile has dropped its receiver.
                    waiting.into_iter().for_each(|waiter| _ = waiter.send(()));
                }
                Output::RaiseEpoch(epoch) => self.lease.raise_min_epoch(epoch),
            }
        }
        last_reply
    }

    /// A receiver that is notified when the request of this edge is decided.
    pub(super) fn decision(&self, edge: &Name) -> oneshot::Receiver<()> {
        let (decided_tx, decided_rx) = oneshot::channel();
        let mut waiting = lock(&self.waiters);
        let waiters = waiting.entry(edge.clone()).or_default();
        waiters.retain(|waiter| !waiter.is_closed());
        waiters.push(decided_tx);
        decided_rx
    }

    /// Drains or undrains a relay for an operator. Returns whether the store has accepted it, so that it survives a restart.
    pub(super) async fn drain(
        self: &Arc<Self>,
        by: &Name,
        relay: Name,
        draining: bool,
        time: Option<Duration>,
    ) -> bool {
        self.handle(Input::Drain { relay: relay.clone(), draining, time });
        let key = format!("{DRAIN_PREFIX}{relay}");
        let expires_at = time.map_or(UtcSeconds::MAX, |time| UtcSeconds::now().saturating_add(time));
        let entry = Entry { key, value: by.to_string(), expires_at };
        let update =
            move |store: &mut dyn Store| if draining { store.put(&entry) } else { store.remove(&entry.key) };
        self.store(update).await.is_ok()
    }

    /// Issues the first certificate in exchange for a token.
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
                unavailable(
                    "authority",
                    "the certificate authority failed; if the token is refused now, create a new one",
                )
            }
        })
    }

    /// Issues the successor of the presented certificate.
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
            RenewError::NotDue(text) => Problem::new(StatusCode::CONFLICT, "not_due", text),
            RenewError::NotAllowed(text) => Problem::not_allowed(text),
            RenewError::Authority(error @ CaError::KeyMissing { .. }) => key_missing(&error),
            RenewError::Authority(error) => {
                self.set_error(ErrorSource::Authority, Some(error.to_string()));
                unavailable("authority", "the certificate authority failed; try again")
            }
        })
    }

    /// Rule 3. The permit is released when the blocking thread finishes, even if the caller has disconnected.
    async fn ca_permit(&self) -> Result<OwnedSemaphorePermit, Problem> {
        let permit = Arc::clone(&self.ca_permits).acquire_owned().await;
        permit.map_err(|error| unavailable("authority", error.to_string()))
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.started_at.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn solve(self: &Arc<Self>, problem: MatchingProblem) {
        let coordinator = Arc::clone(self);
        tokio::spawn(async move {
            let work = if problem.is_full() { FULL_WORK } else { WINDOW_WORK };
            let solved = tokio::task::spawn_blocking(move || problem.solve(work)).await;
            match solved {
                Ok(solution) => drop(coordinator.handle(Input::Solved(solution))),
                Err(error) => tracing::error!(%error, "the thread that solves a matching failed"),
            }
        });
    }

    async fn run_clock(self: &Arc<Self>) -> std::convert::Infallible {
        loop {
            let deadline = self.read_updated(deadline);
            self.sleeps_until.store(deadline.as_nanos(), Ordering::Relaxed);
            tokio::select! {
                () = tokio::time::sleep(deadline.since(self.now())) => {}
                () = self.wake.notified() => {}
            }
        }
    }

    /// Runs `act` on the store, on a blocking thread.
    pub(super) async fn store<T: Send + 'static>(
        self: &Arc<Self>,
        act: impl FnOnce(&mut dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Problem> {
        self.store_for(ErrorSource::Store, act).await
    }

    /// As [`Coordinator::store`]; records a failure under the given source.
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
                Err(unavailable("store", "the store of the fleet service failed; try again"))
            }
            Err(error) => Err(unavailable("store", error.to_string())),
        }
    }

    /// Replaces the password and the trusted authority for a shared store.
    pub async fn set_secrets(self: &Arc<Self>, secrets: RedisSecrets) {
        let result = self.store(move |store| store.set_secrets(secrets)).await;
        if result.is_ok() {
            tracing::info!("reloaded the store's password and certificate authority");
        }
    }

    /// Sets or clears the error of one source (rule 4).
    fn set_error(&self, source: ErrorSource, text: Option<String>) {
        let mut errors = lock(&self.errors);
        match text {
            Some(error) => _ = errors.insert(source, error),
            None => _ = errors.remove(&source),
        }
        let worst = errors.values().next().cloned();
        self.error.send_if_modified(|current| {
            let has_changed = current.is_some() != worst.is_some();
            *current = worst;
            has_changed
        });
    }
}

impl std::fmt::Debug for Coordinator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Coordinator").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Used tokens are recorded in the authority's directory and in the store: if either is lost, the other still refuses the token.
struct UsedTokensInBoth<'a> {
    file: &'a mut UsedTokensFile,
    store: &'a Mutex<Box<dyn Store>>,
}

impl UsedTokens for UsedTokensInBoth<'_> {
    fn mark_used(&mut self, nonce: Nonce, until: UtcSeconds) -> Result<bool, CaError> {
        let is_new_in_store = lock(self.store).claim(nonce, until);
        let is_new_in_store = is_new_in_store.map_err(|error| CaError::Library(error.to_string()))?;
        Ok(self.file.mark_used(nonce, until)? && is_new_in_store)
    }
}

/// Reads the operators' drains from the store, each with its remaining time.
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

/// The reply of a service without the authority's key. Certificates are issued elsewhere, so this is not an error of the service.
fn key_missing(error: &CaError) -> Problem {
    tracing::debug!(%error, "request for a signature refused");
    let text = "this service cannot sign, for the authority's key is kept off-line: request the certificate from the operator of the key";
    unavailable("authority", text)
}

pub(super) fn unavailable(title: &str, detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, title, detail)
}

/// When the scheduler must be called next.
fn deadline(scheduler: &FleetScheduler) -> Instant {
    scheduler.deadline().map_or(Instant::FAR_FUTURE, |(at, _)| at)
}
