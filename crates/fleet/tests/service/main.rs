//! The service over loopback: real sockets, real certificates, and members of all kinds.
#![allow(clippy::unwrap_used, reason = "what a test needs is there, or the test fails")]

mod announce;
mod disk;
mod doors;
mod duplicates;
mod life;
mod load;
mod redis_servers;
mod renewal;
mod rogue;
mod several;
mod stores;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use marline_core::units::Bitrate;
use marline_fleet::ca::{Authority, Grant, MemberFiles, Nonce, Stamp};
use marline_fleet::identity::{Identity, Role};
use marline_fleet::relay::Trust;
use marline_fleet::service::machine::Config;
use marline_fleet::service::store::{Bid, Embedded, Entry, Lead, Store, StoreError};
use marline_fleet::service::words::{Beat, Held, Mark, Measured, Report, Wish};
use marline_fleet::service::{Client, ClientError, Counter, Desk, Limits, Problem};
use marline_fleet::tls::{Clients, Credentials, client_config};
use tempfile::TempDir;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

const DAY: Duration = Duration::from_secs(86_400);

/// An authority, and a service that listens.
struct Place {
    dir: TempDir,
    address: SocketAddr,
    desk: Option<Arc<Desk>>,
    end: Arc<Notify>,
    running: Vec<JoinHandle<()>>,
}

impl Place {
    async fn open() -> Self {
        Self::with(Limits::default(), |path| Box::new(Embedded::open(path).unwrap())).await
    }

    async fn with(limits: Limits, store: impl FnOnce(&Path) -> Box<dyn Store>) -> Self {
        let mut place = Self::bare();
        place.start(limits, store).await;
        place
    }

    /// One where nothing listens.
    fn bare() -> Self {
        let dir = TempDir::new().unwrap();
        Authority::init(&dir.path().join("ca"), "test", Stamp::now()).unwrap();
        let address = "127.0.0.1:0".parse().unwrap();
        Self { dir, address, desk: None, end: Arc::default(), running: Vec::new() }
    }

    /// At the address of before, if there was one.
    async fn start(&mut self, limits: Limits, store: impl FnOnce(&Path) -> Box<dyn Store>) {
        let authority = self.authority();
        let own = self.member("marline://fleet/f1");
        let roles = vec![Role::Edge, Role::Relay, Role::Operator];
        let clients = Clients { roles, strangers: true };
        let trust = Trust::of(own, &authority.revocations_path(), clients).unwrap();
        let store = store(&self.path("store"));
        let config = Config { window: Duration::from_millis(20), ..Config::default() };
        let desk = Desk::open(config, &"f1".parse().unwrap(), store, authority, trust.newest()).unwrap();
        let counter = Counter::open(Arc::clone(&desk), &[self.address], limits).await.unwrap();
        self.address = counter.addresses()[0];
        desk.reached_at(&self.address.to_string().parse().unwrap());
        self.desk = Some(Arc::clone(&desk));
        let end = Arc::clone(&self.end);
        self.running = vec![
            tokio::spawn(async move { match desk.keep().await {} }),
            tokio::spawn(async move { match trust.keep().await {} }),
            tokio::spawn(async move { counter.attend(end.notified(), Duration::from_secs(5)).await }),
        ];
    }

    /// As a kill does it: nothing is said to anybody.
    async fn stop(&mut self) {
        self.desk = None;
        for task in self.running.drain(..) {
            task.abort();
            let _ = task.await;
        }
        // Connections are tasks of their own, and hold the desk until they see that nobody accepts any more.
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
        let grant = Grant::new(identity.clone(), addresses, DAY).unwrap();
        let (chain, key) = self.authority().issue_with_key(&grant, Stamp::now()).unwrap();
        let dir = self.path(&chain.issued.serial.to_string());
        std::fs::create_dir(&dir).unwrap();
        let files = MemberFiles::of(&dir, &identity.name).unwrap();
        files.write(&chain, Some(&key)).unwrap();
        Credentials::read(&files.certificate, &files.key, &files.authority).unwrap()
    }

    fn client(&self, identity: &str) -> Client {
        self.client_of(&self.member(identity))
    }

    fn client_of(&self, own: &Credentials) -> Client {
        client_at(&self.url(), own)
    }

    fn url(&self) -> String {
        format!("https://{}", self.address)
    }
}

fn client_at(url: &str, own: &Credentials) -> Client {
    Client::new(url, client_config(own, None, true).unwrap()).unwrap()
}

async fn until(what: &str, mut is: impl AsyncFnMut() -> bool) {
    let began = std::time::Instant::now();
    while !is().await {
        assert!(began.elapsed() < Duration::from_secs(60), "never {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn mbps(n: u64) -> Bitrate {
    Bitrate::from_mbps(n)
}

fn beat(capacity: u64, seen: Mark) -> Beat {
    Beat {
        capacity: mbps(capacity),
        free: mbps(capacity),
        addresses: vec!["127.0.0.1:4443".parse().unwrap()],
        server_name: "127.0.0.1".parse().unwrap(),
        position: None,
        origins: std::collections::BTreeMap::new(),
        origins_least: Default::default(),
        draining: false,
        seen,
        held: None,
    }
}

fn wish(alone: u64, measured: &[(&str, u64)]) -> Wish {
    let measured = measured.iter().map(|(relay, rate)| Measured {
        relay: relay.parse().unwrap(),
        rate: mbps(*rate),
        rtt_ms: Some(20),
    });
    Wish {
        origin: "live.example:1935".parse().unwrap(),
        alone: mbps(alone),
        wanted: None,
        position: None,
        measured: measured.collect(),
    }
}

fn report(wish: Wish, held: Option<Held>) -> Report {
    Report { wish, throughput: mbps(10), offered: None, held }
}

fn refused<T: std::fmt::Debug>(answer: Result<T, ClientError>) -> Problem {
    match answer.unwrap_err() {
        ClientError::Refused(problem) => problem,
        other => panic!("{other}"),
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// A store whose disk can be full.
struct Faulty {
    inner: Embedded,
    full: Arc<AtomicBool>,
}

impl Faulty {
    fn check(&self) -> Result<(), StoreError> {
        let error = || StoreError { place: "store".into(), text: "no space left on device".into() };
        if self.full.load(Ordering::Relaxed) { Err(error()) } else { Ok(()) }
    }
}

impl Store for Faulty {
    fn lead(&mut self, bid: &Bid, now: Stamp) -> Result<Lead, StoreError> {
        self.check()?;
        self.inner.lead(bid, now)
    }

    fn put(&mut self, entry: &Entry) -> Result<(), StoreError> {
        self.check()?;
        self.inner.put(entry)
    }

    fn remove(&mut self, key: &str) -> Result<(), StoreError> {
        self.check()?;
        self.inner.remove(key)
    }

    fn list(&mut self, prefix: &str, now: Stamp) -> Result<Vec<Entry>, StoreError> {
        self.check()?;
        self.inner.list(prefix, now)
    }

    fn claim(&mut self, nonce: Nonce, until: Stamp) -> Result<bool, StoreError> {
        self.check()?;
        self.inner.claim(nonce, until)
    }

    fn place(&self) -> String {
        self.inner.place()
    }
}
