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

use super::api::Enrol;
use super::client::Origin;
use super::duplicates::{Change, Duplicates};
use super::forward::Colleague;
use super::lead::{Post, boot};
use super::machine::{Config, Machine, Output, Problem as Matching};
use super::problem::Problem;
use super::store::{Entry, Lead, Secrets, Store, StoreError};
use super::words::{Endpoint, ServiceRow};
use crate::ca::{Authority, CaError, Chain, EnrolError, Nonce, RenewError, Spent, SpentFile, Stamp};
use crate::identity::{Identity, Name, Role};
use crate::relay::Trusted;
use crate::tls::{Peer, TlsError};

/// What connections share.
pub struct Desk {
    pub(super) machine: Mutex<Machine>,
    waiting: Mutex<BTreeMap<Name, Vec<oneshot::Sender<()>>>>,
    store: Mutex<Box<dyn Store>>,
    /// Why the store or the authority cannot now.
    trouble: watch::Sender<Option<String>>,
    troubles: Mutex<BTreeMap<Of, String>>,
    pub(super) authority: Authority,
    spent: Mutex<SpentFile>,
    /// Rule 3.
    turns: Arc<Semaphore>,
    trusted: watch::Receiver<Arc<Trusted>>,
    /// When the certificates end that relays and edges have shown last. As many as members were let in.
    ends: Mutex<BTreeMap<Identity, Stamp>>,
    /// Which processes of members were heard.
    duplicates: Mutex<Duplicates>,
    begun: std::time::Instant,
    /// Until when the clock sleeps.
    sleeps: AtomicU64,
    wake: Notify,
    name: Name,
    /// Where the store is, and which region is shared there.
    place: (String, Option<String>),
    pub(super) post: Post,
    pub(super) colleague: Colleague,
}

/// What a trouble concerns; it ends when the same goes again. The first one counts most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Of {
    /// Taking the lead: without it nothing is matched.
    Lead,
    /// Anything else that the store does.
    Store,
    /// Enrolling and renewing.
    Authority,
}

/// Why a service cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum DeskError {
    /// The store does not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The authority does not.
    #[error(transparent)]
    Authority(#[from] CaError),
}

/// chosen: about half a second for a window; a matching of all may take several (`docs/algorithms.md`).
const WINDOW_WORK: u64 = 50_000_000;
const WHOLE_WORK: u64 = 500_000_000;
/// Rule 3. chosen: one at a time has the lock, and some read meanwhile.
const TURNS: usize = 8;
/// Under which keys drains stand.
pub(super) const DRAINS: &str = "drain/";

impl Desk {
    /// Knows what operators have said, and takes the lead, if nobody shares the store; else that comes with [`Desk::keep`].
    ///
    /// # Errors
    /// The authority or a store of its own does not answer. One that is shared may come later.
    pub fn open(
        config: Config,
        holder: &Name,
        mut store: Box<dyn Store>,
        authority: Authority,
        trusted: watch::Receiver<Arc<Trusted>>,
    ) -> Result<Arc<Self>, DeskError> {
        let now = Stamp::now();
        let place = (store.place(), store.region());
        let post = Post::new(holder, place.1.is_some())?;
        let mut machine = Machine::new(config, 0, Instant::default());
        if place.1.is_none()
            && let Lead::Mine(epoch) = store.lead(&post.bid(None), now)?
        {
            machine = Machine::new(config, epoch, Instant::default());
            post.holds(boot());
        }
        machine.share(place.1.is_some());
        if place.1.is_none() {
            machine.drains(drains(store.as_mut(), now)?, Instant::default());
        }
        let spent = SpentFile::open(&authority, now)?;
        Ok(Arc::new(Self {
            machine: Mutex::new(machine),
            waiting: Mutex::default(),
            store: Mutex::new(store),
            trouble: watch::Sender::new(None),
            troubles: Mutex::default(),
            authority,
            spent: Mutex::new(spent),
            turns: Arc::new(Semaphore::new(TURNS)),
            trusted,
            ends: Mutex::default(),
            duplicates: Mutex::default(),
            begun: std::time::Instant::now(),
            sleeps: AtomicU64::new(0),
            wake: Notify::new(),
            name: holder.clone(),
            place,
            post,
            colleague: Colleague::default(),
        }))
    }

    /// Keeps time and the lead until dropped.
    pub async fn keep(self: &Arc<Self>) -> std::convert::Infallible {
        tokio::join!(self.keep_time(), self.keep_lead(), self.keep_shared(), self.keep_list()).0
    }

    /// Why the store or the authority cannot now, when that changes; nothing else does: the service goes on.
    pub fn trouble(&self) -> watch::Receiver<Option<String>> {
        self.trouble.subscribe()
    }

    /// Whether it leads.
    pub fn leads(&self) -> bool {
        self.post.leads(boot())
    }

    /// Says where other processes of the service reach this one.
    pub fn reached_at(&self, place: &Endpoint) {
        self.post.reached_at(place);
    }

    /// How this process stands.
    pub(super) fn row(&self) -> ServiceRow {
        let leads = self.leads();
        let mark = lock(&self.machine).mark();
        let leader = self.post.leader();
        ServiceRow {
            name: self.name.clone(),
            store: self.place.0.clone(),
            region: self.place.1.clone(),
            leads,
            matcher: if leads { self.post.place() } else { leader.clone().map(|it| it.place) },
            epoch: if leads { Some(mark.epoch) } else { leader.map(|it| it.epoch) },
            trouble: self.trouble.borrow().clone(),
        }
    }

    /// Whether others share its store.
    pub(super) fn is_shared(&self) -> bool {
        self.place.1.is_some()
    }

    pub(super) fn trusted(&self) -> Arc<Trusted> {
        Arc::clone(&self.trusted.borrow())
    }

    pub(super) fn check(&self, peer: &Peer) -> Result<(), TlsError> {
        self.trusted.borrow().check(peer)
    }

    /// Somebody has spoken, and shown this certificate.
    pub(super) fn heard(&self, peer: &Peer) {
        let mut ends = lock(&self.ends);
        if ends.get(&peer.identity) != Some(&peer.not_after) {
            ends.insert(peer.identity.clone(), peer.not_after);
        }
    }

    /// A process of a member has reported.
    pub(super) fn heard_at(&self, identity: &Identity, origin: Origin) {
        let change = lock(&self.duplicates).heard(identity, origin.instance, origin.from, self.now());
        match change {
            Some(Change::Several(addresses)) => {
                let (role, name) = (identity.role, &identity.name);
                let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
                tracing::warn!(
                    "{identity}: its certificate is used by several processes at the same time, at {}: enrol all but one under names \
                     of their own (`marline fleet ca token --role {role} --name NAME`); if the certificate was stolen, revoke it \
                     (`marline fleet ca revoke --role {role} {name}`)",
                    addresses.join(" and ")
                );
            }
            Some(Change::One) => tracing::warn!("{identity}: its certificate is used by one process again"),
            None => {}
        }
    }

    /// Puts down where the processes are that use one certificate at the same time.
    pub(super) fn duplicates<'a>(&self, role: Role, rows: impl Iterator<Item = (&'a Name, &'a mut Vec<IpAddr>)>) {
        let (now, mut duplicates) = (self.now(), lock(&self.duplicates));
        for (name, row) in rows {
            *row = duplicates.addresses(&Identity { role, name: name.clone() }, now);
        }
    }

    /// Puts down when the certificates of these end.
    pub(super) fn certificates<'a>(
        &self,
        role: Role,
        rows: impl Iterator<Item = (&'a Name, &'a mut Option<String>)>,
    ) {
        let ends = lock(&self.ends);
        for (name, row) in rows {
            *row = ends.get(&Identity { role, name: name.clone() }).map(Stamp::to_string);
        }
    }

    /// Does something with the machine, and what follows of it.
    pub(super) fn with<T>(self: &Arc<Self>, act: impl FnOnce(&mut Machine, Instant) -> T) -> T {
        let mut machine = lock(&self.machine);
        if machine.leads() && !self.leads() {
            machine.pause();
        }
        let done = act(&mut machine, self.now());
        while let Some(output) = machine.poll() {
            match output {
                Output::Solve(matching) => self.solve(matching),
                Output::Decided(edge) => {
                    let waiting = lock(&self.waiting).remove(&edge).unwrap_or_default();
                    // Who has gone does not hear it.
                    waiting.into_iter().for_each(|tell| _ = tell.send(()));
                }
                Output::Behind(epoch) => self.post.must_be_above(epoch),
            }
        }
        if machine.deadline().as_nanos() < self.sleeps.load(Ordering::Relaxed) {
            self.wake.notify_one();
        }
        done
    }

    /// Told when the request of this edge is decided.
    pub(super) fn decided(&self, edge: &Name) -> oneshot::Receiver<()> {
        let (tell, told) = oneshot::channel();
        let mut waiting = lock(&self.waiting);
        let of = waiting.entry(edge.clone()).or_default();
        of.retain(|tell| !tell.is_closed());
        of.push(tell);
        told
    }

    /// An operator's word on a relay; whether it will outlast the service.
    pub(super) async fn drain(
        self: &Arc<Self>,
        by: &Name,
        relay: Name,
        closed: bool,
        time: Option<Duration>,
    ) -> bool {
        self.with(|machine, now| machine.drain(&relay, closed, time, now));
        let key = format!("{DRAINS}{relay}");
        let until = time.map_or(Stamp::LAST, |time| Stamp::now().after(time));
        let entry = Entry { key, value: by.to_string(), until };
        let put = move |store: &mut dyn Store| if closed { store.put(&entry) } else { store.remove(&entry.key) };
        self.store(put).await.is_ok()
    }

    /// What a token brings.
    pub(super) async fn enrol(self: &Arc<Self>, Enrol { token, request }: Enrol) -> Result<Chain, Problem> {
        let (desk, turn) = (Arc::clone(self), self.turn().await?);
        let enrolling = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let mut spent = lock(&desk.spent);
            let mut both = Both { file: &mut spent, store: &desk.store };
            desk.authority.enrol(&token, request.as_bytes(), Stamp::now(), &mut both)
        });
        let enrolled = enrolling.await.map_err(|error| unavailable("authority", error.to_string()))?;
        if enrolled.is_ok() {
            self.say(Of::Authority, None);
        }
        enrolled.map_err(|error| match error {
            EnrolError::Malformed(_) | EnrolError::Request(_) => Problem::malformed(error.to_string()),
            EnrolError::NotOurs | EnrolError::Expired => Problem::not_allowed(error.to_string()),
            EnrolError::Used => Problem::new(StatusCode::CONFLICT, "used", error.to_string()),
            EnrolError::Authority(error @ CaError::KeyAway { .. }) => key_away(&error),
            EnrolError::Authority(error) => {
                self.say(Of::Authority, Some(error.to_string()));
                unavailable("authority", "the authority cannot now; the token may be lost")
            }
        })
    }

    /// The next certificate of who shows this one.
    pub(super) async fn renew(self: &Arc<Self>, shown: CertificateDer<'static>) -> Result<Chain, Problem> {
        let (desk, turn) = (Arc::clone(self), self.turn().await?);
        let renewing = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            desk.authority.renew(&shown, Stamp::now())
        });
        let renewed = renewing.await.map_err(|error| unavailable("authority", error.to_string()))?;
        if renewed.is_ok() {
            self.say(Of::Authority, None);
        }
        renewed.map_err(|error| match error {
            RenewError::NotDue(text) => Problem::new(StatusCode::CONFLICT, "not-due", text),
            RenewError::NotAllowed(text) => Problem::not_allowed(text),
            RenewError::Authority(error @ CaError::KeyAway { .. }) => key_away(&error),
            RenewError::Authority(error) => {
                self.say(Of::Authority, Some(error.to_string()));
                unavailable("authority", "the authority cannot now; ask again")
            }
        })
    }

    /// Rule 3. It is over when the thread is done, and not when the caller has gone.
    async fn turn(&self) -> Result<OwnedSemaphorePermit, Problem> {
        let turn = Arc::clone(&self.turns).acquire_owned().await;
        turn.map_err(|error| unavailable("authority", error.to_string()))
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn solve(self: &Arc<Self>, matching: Box<Matching>) {
        let desk = Arc::clone(self);
        tokio::spawn(async move {
            let work = if matching.is_whole() { WHOLE_WORK } else { WINDOW_WORK };
            let solved = tokio::task::spawn_blocking(move || matching.solve(work)).await;
            match solved {
                Ok(solution) => desk.with(|machine, now| machine.solved(solution, now)),
                Err(error) => tracing::error!(%error, "a matching ended without an answer"),
            }
        });
    }

    async fn keep_time(self: &Arc<Self>) -> std::convert::Infallible {
        loop {
            let deadline = self.with(|machine, now| {
                machine.tick(now);
                machine.deadline()
            });
            self.sleeps.store(deadline.as_nanos(), Ordering::Relaxed);
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
        self.store_for(Of::Store, act).await
    }

    /// The same, where a failure is a trouble of another sort.
    pub(super) async fn store_for<T: Send + 'static>(
        self: &Arc<Self>,
        of: Of,
        act: impl FnOnce(&mut dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Problem> {
        let desk = Arc::clone(self);
        let done = tokio::task::spawn_blocking(move || act(lock(&desk.store).as_mut())).await;
        match done {
            Ok(Ok(done)) => {
                self.say(of, None);
                Ok(done)
            }
            Ok(Err(error)) => {
                self.say(of, Some(error.to_string()));
                Err(unavailable("store", "the service's store does not answer"))
            }
            Err(error) => Err(unavailable("store", error.to_string())),
        }
    }

    /// Another password and authority of a shared store, from now on.
    pub async fn secrets(self: &Arc<Self>, secrets: Secrets) {
        let changed = self.store(move |store| store.secrets(secrets)).await;
        if changed.is_ok() {
            tracing::info!("the store's password and authority are read again");
        }
    }

    /// Rule 4.
    fn say(&self, of: Of, words: Option<String>) {
        let mut troubles = lock(&self.troubles);
        match words {
            Some(words) => _ = troubles.insert(of, words),
            None => _ = troubles.remove(&of),
        }
        let first = troubles.values().next().cloned();
        self.trouble.send_if_modified(|said| {
            let changes = said.is_some() != first.is_some();
            *said = first;
            changes
        });
    }
}

impl std::fmt::Debug for Desk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Desk").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A token is spent in the authority's directory and in the store: either may be lost and the other one still knows it.
struct Both<'a> {
    file: &'a mut SpentFile,
    store: &'a Mutex<Box<dyn Store>>,
}

impl Spent for Both<'_> {
    fn claim(&mut self, nonce: Nonce, until: Stamp) -> Result<bool, CaError> {
        let shared = lock(self.store).claim(nonce, until);
        let shared = shared.map_err(|error| CaError::Library(error.to_string()))?;
        Ok(self.file.claim(nonce, until)? && shared)
    }
}

/// What operators have said, and for how long it still counts.
pub(super) fn drains(store: &mut dyn Store, now: Stamp) -> Result<Vec<(Name, Option<Duration>)>, StoreError> {
    let entries = store.list(DRAINS, now)?;
    let drain = |entry: Entry| {
        let left = entry.until.since_1970().saturating_sub(now.since_1970());
        Some((entry.key.strip_prefix(DRAINS)?.parse().ok()?, (entry.until != Stamp::LAST).then_some(left)))
    };
    Ok(entries.into_iter().filter_map(drain).collect())
}

/// Certificates are issued elsewhere, which is no trouble of this service.
fn key_away(error: &CaError) -> Problem {
    tracing::debug!(%error, "asked for a signature");
    let words = "this service signs nothing, for the authority's key is kept off-line: ask whoever keeps it for a certificate";
    unavailable("authority", words)
}

pub(super) fn unavailable(title: &str, detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, title, detail)
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
