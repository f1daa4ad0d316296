//! Tests of the fleet service over loopback, with real sockets and certificates, and with members of all roles.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod access;
mod duplicates;
mod full_disk;
mod heartbeat;
mod impostors;
mod leader_failover;
mod load;
mod persistence;
mod redis_servers;
mod renewal;
mod stores;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use marline_core::fleet::scheduling::SchedulerConfig;
use marline_core::units::Bitrate;
use marline_fleet::ca::{Authority, CertTemplate, MemberFiles, Nonce, UtcSeconds};
use marline_fleet::identity::{Identity, Role};
use marline_fleet::relay::TrustStore;
use marline_fleet::service::api_types::{
    AssignmentRequest, CurrentAssignment, Heartbeat, RelayMeasurement, Report, StateVersion,
};
use marline_fleet::service::store::{Bid, BidOutcome, EmbeddedStore, Entry, Store, StoreError};
use marline_fleet::service::{ApiListener, Client, ClientError, Coordinator, Limits, Problem};
use marline_fleet::tls::{ClientAuth, Credentials, client_config};
use tempfile::TempDir;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

const DAY: Duration = Duration::from_secs(86_400);

/// A service with its certificate authority, in a temporary directory.
struct TestService {
    dir: TempDir,
    address: SocketAddr,
    coordinator: Option<Arc<Coordinator>>,
    stop: Arc<Notify>,
    running: Vec<JoinHandle<()>>,
}

impl TestService {
    async fn start_default() -> Self {
        Self::with(Limits::default(), |path| Box::new(EmbeddedStore::open(path).unwrap())).await
    }

    async fn with(limits: Limits, store: impl FnOnce(&Path) -> Box<dyn Store>) -> Self {
        let mut service = Self::not_started();
        service.start(limits, store).await;
        service
    }

    /// A service that does not listen yet.
    fn not_started() -> Self {
        let dir = TempDir::new().unwrap();
        Authority::init(&dir.path().join("ca"), "test", UtcSeconds::now()).unwrap();
        let address = "127.0.0.1:0".parse().unwrap();
        Self { dir, address, coordinator: None, stop: Arc::default(), running: Vec::new() }
    }

    /// Starts the service; after a stop it listens at the previous address.
    async fn start(&mut self, limits: Limits, store: impl FnOnce(&Path) -> Box<dyn Store>) {
        let authority = self.authority();
        let credentials = self.member("marline://fleet/f1");
        let roles = vec![Role::Edge, Role::Relay, Role::Operator];
        let clients = ClientAuth { roles, allow_unauthenticated: true };
        let trust = TrustStore::with_clients(credentials, &authority.crl_path(), clients).unwrap();
        let store = store(&self.path("store"));
        let config = SchedulerConfig { window: Duration::from_millis(20), ..SchedulerConfig::default() };
        let coordinator =
            Coordinator::open(config, &"f1".parse().unwrap(), store, authority, trust.subscribe()).unwrap();
        let listener = ApiListener::open(Arc::clone(&coordinator), &[self.address], limits).await.unwrap();
        self.address = listener.addresses()[0];
        coordinator.set_address(&self.address.to_string().parse().unwrap());
        self.coordinator = Some(Arc::clone(&coordinator));
        let end = Arc::clone(&self.stop);
        self.running = vec![
            tokio::spawn(async move { match coordinator.run().await {} }),
            tokio::spawn(async move { match trust.run().await {} }),
            tokio::spawn(async move { listener.serve(end.notified(), Duration::from_secs(5)).await }),
        ];
    }

    /// Stops the service as a kill would: without notice to any client.
    async fn stop(&mut self) {
        self.coordinator = None;
        for task in self.running.drain(..) {
            task.abort();
            let _ = task.await;
        }
        // Connections are tasks of their own, which hold the coordinator until they notice that the listener is gone.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    fn authority(&self) -> Authority {
        Authority::open(&self.path("ca")).unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn member(&self, identity: &str) -> Credentials {
        let identity: Identity = identity.parse().unwrap();
        let addresses = match identity.role {
            Role::Relay | Role::Fleet => vec!["127.0.0.1".parse().unwrap()],
            _ => vec![],
        };
        let template = CertTemplate::new(identity.clone(), addresses, DAY).unwrap();
        let (chain, key) = self.authority().issue_with_key(&template, UtcSeconds::now()).unwrap();
        let dir = self.path(&chain.record.serial.to_string());
        std::fs::create_dir(&dir).unwrap();
        let files = MemberFiles::of(&dir, &identity.name).unwrap();
        files.write(&chain, Some(&key)).unwrap();
        Credentials::read(&files.certificate, &files.key, &files.authority).unwrap()
    }

    fn client(&self, identity: &str) -> Client {
        self.client_of(&self.member(identity))
    }

    fn client_of(&self, credentials: &Credentials) -> Client {
        client_at(&self.url(), credentials)
    }

    fn url(&self) -> String {
        format!("https://{}", self.address)
    }
}

fn client_at(url: &str, credentials: &Credentials) -> Client {
    Client::new(url, client_config(credentials, None, true).unwrap()).unwrap()
}

async fn wait_until(description: &str, mut condition: impl AsyncFnMut() -> bool) {
    let started_at = std::time::Instant::now();
    while !condition().await {
        assert!(started_at.elapsed() < Duration::from_secs(60), "never {description}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn mbps(n: u64) -> Bitrate {
    Bitrate::from_mbps(n)
}

/// A relay's heartbeat with this capacity in Mbit/s, all of it free.
fn heartbeat(capacity: u64, seen_version: StateVersion) -> Heartbeat {
    Heartbeat {
        capacity: mbps(capacity),
        free: mbps(capacity),
        addresses: vec!["127.0.0.1:4443".parse().unwrap()],
        server_name: "127.0.0.1".parse().unwrap(),
        position: None,
        origin_rates: std::collections::BTreeMap::new(),
        origin_lower_bounds: Default::default(),
        draining: false,
        seen_version,
        reservations: None,
    }
}

/// An edge's request: the rate to the origin server over its best single link, and the rates that it has measured over relays, in
/// Mbit/s.
fn assignment_request(best_link_rate: u64, measured: &[(&str, u64)]) -> AssignmentRequest {
    let measured = measured.iter().map(|(relay, rate)| RelayMeasurement {
        relay: relay.parse().unwrap(),
        rate: mbps(*rate),
        rtt_ms: Some(20),
    });
    AssignmentRequest {
        origin: "live.example:1935".parse().unwrap(),
        best_link_rate: mbps(best_link_rate),
        target_rate: None,
        position: None,
        measurements: measured.collect(),
    }
}

/// An edge's report with a throughput of 10 Mbit/s, and the assignment that it claims to hold.
fn report(request: AssignmentRequest, assignment: Option<CurrentAssignment>) -> Report {
    Report { request, throughput: mbps(10), offered_rate: None, assignment }
}

fn expect_problem<T: std::fmt::Debug>(result: Result<T, ClientError>) -> Problem {
    match result.unwrap_err() {
        ClientError::Refused(problem) => problem,
        other => panic!("{other}"),
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// A store with a disk that can be full.
struct FaultyStore {
    inner: EmbeddedStore,
    full: Arc<AtomicBool>,
}

impl FaultyStore {
    fn check(&self) -> Result<(), StoreError> {
        let error = || StoreError { store: "store".into(), text: "no space left on device".into() };
        if self.full.load(Ordering::Relaxed) { Err(error()) } else { Ok(()) }
    }
}

impl Store for FaultyStore {
    fn bid(&mut self, bid: &Bid, now: UtcSeconds) -> Result<BidOutcome, StoreError> {
        self.check()?;
        self.inner.bid(bid, now)
    }

    fn put(&mut self, entry: &Entry) -> Result<(), StoreError> {
        self.check()?;
        self.inner.put(entry)
    }

    fn remove(&mut self, key: &str) -> Result<(), StoreError> {
        self.check()?;
        self.inner.remove(key)
    }

    fn list(&mut self, prefix: &str, now: UtcSeconds) -> Result<Vec<Entry>, StoreError> {
        self.check()?;
        self.inner.list(prefix, now)
    }

    fn claim(&mut self, nonce: Nonce, until: UtcSeconds) -> Result<bool, StoreError> {
        self.check()?;
        self.inner.claim(nonce, until)
    }

    fn location(&self) -> String {
        self.inner.location()
    }
}
