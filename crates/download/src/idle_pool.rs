//! Pool of idle connections, kept for the next request to the same server.
//!
//! A transfer returns connections that it no longer needs, and may have a spare one opened. The next transfer takes an
//! open connection from the pool, so that a seek costs one RTT and no handshakes.
//!
//! 1. A connection is reused only for the same link, scheme, host and port, and only by a transfer that is allowed
//!    to open it itself ([`EgressPolicy`]).
//! 2. A busy connection is closed when its transfer ends early, with HTTP/2 as well: after a reset, the data of the old
//!    response that is in the server's kernel still arrives first. So while a connection is busy, a spare one is
//!    opened beside it.
//! 3. Connections that the server has closed are dropped. Each one is checked every second, and again before it is
//!    reused.
//! 4. A connection is kept for at most [`MAX_IDLE`], and at most [`MAX_CONNS`] are kept. Over a cellular link the
//!    limit is [`MAX_IDLE_CELLULAR`], because closing the connection later would wake a sleeping radio.
//! 5. No connection is kept over a standby link, until a transfer connects over that link again.
//!
//! One pool for busy and idle connections, as HTTP libraries have it, was rejected: busy connections belong to
//! their transfer, whose driver polls them.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use marline_core::fetch::ReqId;
use marline_core::units::DataSize;
use marline_net::egress::EgressPolicy;
use marline_net::http::{Connection, Event, Sink, resolver_host};
use marline_net::links::Interface;
use url::Url;

/// Destination and link of a connection: what two interchangeable connections have in common.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct PoolKey {
    interface: Option<String>,
    /// Whether the link is cellular: its radio sleeps soon after the last packet.
    is_cellular: bool,
    is_tls: bool,
    host: String,
    port: u16,
}

impl PoolKey {
    /// The key for the URL's host over an interface; without one, over the link that the routing table selects.
    pub(crate) fn for_url(url: &Url, interface: Option<&Interface>) -> Self {
        Self {
            interface: interface.map(|interface| interface.name.clone()),
            is_cellular: interface.is_some_and(|interface| interface.kind.is_cellular()),
            is_tls: url.scheme() == "https",
            host: resolver_host(url),
            port: url.port_or_known_default().unwrap_or(80),
        }
    }
}

/// All idle connections of a program. Clones share one pool.
#[derive(Clone, Debug, Default)]
pub(crate) struct IdlePool {
    state: Rc<RefCell<PoolState>>,
}

#[derive(Debug, Default)]
struct PoolState {
    idle_conns: BTreeMap<PoolKey, Vec<(Instant, Connection)>>,
    /// Keys for which a spare connection is being opened.
    opening: BTreeSet<PoolKey>,
    /// Devices of standby links.
    standby_devices: BTreeSet<String>,
}

impl IdlePool {
    /// Takes the most recently used connection that is still open and allowed by `egress`.
    pub(crate) fn reuse(&self, key: &PoolKey, egress: EgressPolicy) -> Option<Connection> {
        let mut pool = self.state.borrow_mut();
        let idle = pool.idle_conns.get_mut(key)?;
        for at in (0..idle.len()).rev() {
            let is_allowed = idle.get(at).is_some_and(|(_, open)| egress.check(open.peer_addr()).is_ok());
            if !is_allowed {
                continue;
            }
            let (_, mut connection) = idle.remove(at);
            if is_alive(&mut connection) {
                return Some(connection);
            }
        }
        None
    }

    /// Adds a connection without pending requests, unless it was closed or its link is in standby.
    pub(crate) fn insert(&self, key: PoolKey, mut connection: Connection) {
        if !is_alive(&mut connection) {
            return;
        }
        let mut pool = self.state.borrow_mut();
        if !pool.is_standby(&key) {
            pool.idle_conns.entry(key).or_default().push((Instant::now(), connection));
            pool.evict();
        }
    }

    /// Opens a connection with `dial` if the pool has none for this key. Needs a tokio `LocalSet`.
    pub(crate) fn open_spare<F>(&self, key: &PoolKey, dial: impl FnOnce() -> F)
    where
        F: Future<Output = Option<Connection>> + 'static,
    {
        {
            let mut pool = self.state.borrow_mut();
            if pool.is_standby(key) {
                return;
            }
            if pool.idle_conns.get(key).is_some_and(|idle| !idle.is_empty()) || !pool.opening.insert(key.clone()) {
                return;
            }
        }
        let (idle_pool, key, dial) = (self.clone(), key.clone(), dial());
        tokio::task::spawn_local(async move {
            let opened = dial.await;
            idle_pool.state.borrow_mut().opening.remove(&key);
            if let Some(connection) = opened {
                idle_pool.insert(key, connection);
            }
        });
    }

    /// The link of this device becomes standby: its idle connections are closed now, while the radio is still
    /// awake.
    pub(crate) fn on_standby(&self, device: &str) {
        let mut pool = self.state.borrow_mut();
        pool.standby_devices.insert(device.to_owned());
        pool.idle_conns.retain(|key, _| key.interface.as_deref() != Some(device));
    }

    /// A transfer connects over this device, so its link is no longer in standby.
    pub(crate) fn on_active(&self, device: &str) {
        self.state.borrow_mut().standby_devices.remove(device);
    }

    /// Drops the connections of a key, for instance because the server requires another HTTP version.
    pub(crate) fn remove(&self, key: &PoolKey) {
        self.state.borrow_mut().idle_conns.remove(key);
    }

    /// Drops everything: after a link change, no connection is certain to work.
    pub(crate) fn clear(&self) {
        let mut pool = self.state.borrow_mut();
        pool.idle_conns.clear();
        pool.standby_devices.clear();
    }

    /// Number of idle connections.
    pub(crate) fn len(&self) -> usize {
        self.state.borrow().idle_conns.values().map(Vec::len).sum()
    }

    /// Drops closed and expired connections every second. Never returns.
    pub(crate) async fn run(self) {
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            self.state.borrow_mut().evict();
        }
    }
}

impl PoolState {
    fn is_standby(&self, key: &PoolKey) -> bool {
        key.interface.as_ref().is_some_and(|device| self.standby_devices.contains(device))
    }

    fn evict(&mut self) {
        for (key, idle) in &mut self.idle_conns {
            let max_idle = if key.is_cellular { MAX_IDLE_CELLULAR } else { MAX_IDLE };
            idle.retain_mut(|(since, connection)| since.elapsed() < max_idle && is_alive(connection));
        }
        self.idle_conns.retain(|_, idle| !idle.is_empty());
        while self.idle_conns.values().map(Vec::len).sum::<usize>() > MAX_CONNS {
            let oldest =
                self.idle_conns.iter().filter_map(|(key, idle)| Some((idle.first()?.0, key.clone()))).min();
            let Some((_, key)) = oldest else { return };
            if let Some(idle) = self.idle_conns.get_mut(&key) {
                idle.remove(0);
            }
            self.idle_conns.retain(|_, idle| !idle.is_empty());
        }
    }
}

/// Whether the server has sent nothing: on an idle connection, any data or end of stream means that it is closing.
fn is_alive(connection: &mut Connection) -> bool {
    let mut cx = Context::from_waker(Waker::noop());
    // HTTP/2 may process control frames here (and answer a PING); that yields no event.
    let polled = connection.poll_event(&mut cx, &mut [0; 512], &mut NullSink, DataSize::ZERO);
    !matches!(polled, Poll::Ready(Event::Closed { .. } | Event::Head { .. } | Event::Data { .. }))
}

struct NullSink;

impl Sink for NullSink {
    fn body(&mut self, _: ReqId, _: &[u8]) {}
}

/// By default, servers close idle connections after 5 s (Apache httpd 2.4) to 75 s (nginx 1.22). Our choice: one
/// minute.
const MAX_IDLE: Duration = Duration::from_secs(60);
/// Our choice: enough for a seek or the next segment. The cost is at most three seconds more of a ten-second radio
/// tail.
const MAX_IDLE_CELLULAR: Duration = Duration::from_secs(3);
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Our choice: two connections for each of sixteen servers.
const MAX_CONNS: usize = 32;

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::TcpListener;

    use marline_net::http::{DialRequest, Http2Windows};

    use super::*;

    async fn dial(listener: &TcpListener) -> Connection {
        let dial = DialRequest {
            device: None,
            mptcp: false,
            addresses: vec![listener.local_addr().unwrap()],
            server_name: "localhost".into(),
            tls: None,
            timeout: Duration::from_secs(5),
            http2_windows: Http2Windows::default(),
            egress: EgressPolicy::user(),
            tunnel: None,
            sent_bytes: None,
        };
        Connection::dial(dial).await.unwrap()
    }

    fn run_local(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, test);
    }

    #[test]
    fn a_connection_is_reused_only_for_its_key_and_only_once() {
        run_local(async {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let (pool, url) = (IdlePool::default(), "http://h/x".parse::<Url>().unwrap());
            let key = PoolKey::for_url(&url, None);
            pool.insert(key.clone(), dial(&listener).await);
            for other in ["https://h/x", "http://i/x", "http://h:81/x"] {
                assert!(
                    pool.reuse(&PoolKey::for_url(&other.parse().unwrap(), None), EgressPolicy::user()).is_none(),
                    "{other}"
                );
            }
            assert!(
                pool.reuse(&PoolKey::for_url(&"http://h/y".parse().unwrap(), None), EgressPolicy::user()).is_some()
            );
            assert!(pool.reuse(&key, EgressPolicy::user()).is_none());
        });
    }

    #[test]
    fn a_connection_is_not_reused_by_a_transfer_that_must_not_open_it() {
        run_local(async {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let (pool, key) = (IdlePool::default(), PoolKey::for_url(&"http://h/x".parse().unwrap(), None));
            pool.insert(key.clone(), dial(&listener).await);
            let other_host = EgressPolicy::for_peer("192.0.2.7:9".parse().unwrap());
            let redirected = EgressPolicy::user().referred_by("192.0.2.8".parse::<std::net::IpAddr>().ok());
            assert!(pool.reuse(&key, other_host).is_none() && pool.reuse(&key, redirected).is_none());
            assert!(pool.reuse(&key, EgressPolicy::user()).is_some());
        });
    }

    #[test]
    fn nothing_is_kept_over_a_standby_link_until_a_transfer_connects() {
        run_local(async {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let (pool, url) = (IdlePool::default(), "http://h/x".parse::<Url>().unwrap());
            let over =
                |device: &str| PoolKey { interface: Some(device.to_owned()), ..PoolKey::for_url(&url, None) };
            for device in ["lte", "wifi"] {
                pool.insert(over(device), dial(&listener).await);
            }
            pool.on_standby("lte");
            assert!(pool.reuse(&over("lte"), EgressPolicy::user()).is_none());
            pool.insert(over("lte"), dial(&listener).await);
            pool.open_spare(&over("lte"), || async { panic!("the link is in standby") });
            assert_eq!(pool.len(), 1);
            pool.on_active("lte");
            pool.insert(over("lte"), dial(&listener).await);
            assert!(
                pool.reuse(&over("lte"), EgressPolicy::user()).is_some()
                    && pool.reuse(&over("wifi"), EgressPolicy::user()).is_some()
            );
        });
    }

    #[test]
    fn a_connection_closed_by_the_server_is_not_reused() {
        run_local(async {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let (pool, key) = (IdlePool::default(), PoolKey::for_url(&"http://h/x".parse().unwrap(), None));
            pool.insert(key.clone(), dial(&listener).await);
            let (mut peer, _) = listener.accept().unwrap();
            peer.write_all(b"HTTP/1.1 408 Request Timeout\r\n\r\n").unwrap();
            drop(peer);
            while pool.len() > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
                pool.state.borrow_mut().evict();
            }
            assert!(pool.reuse(&key, EgressPolicy::user()).is_none());
        });
    }

    #[test]
    fn only_one_spare_connection_is_opened() {
        run_local(async {
            let listener = Rc::new(TcpListener::bind("127.0.0.1:0").unwrap());
            let (pool, key) = (IdlePool::default(), PoolKey::for_url(&"http://h/x".parse().unwrap(), None));
            let opened = Rc::new(std::cell::Cell::new(0));
            for _ in 0..3 {
                let (listener, opened) = (Rc::clone(&listener), Rc::clone(&opened));
                pool.open_spare(&key, || async move {
                    opened.set(opened.get() + 1);
                    Some(dial(&listener).await)
                });
            }
            let _peer = loop {
                tokio::time::sleep(Duration::from_millis(1)).await;
                if pool.len() > 0 {
                    break listener.accept().unwrap();
                }
            };
            pool.open_spare(&key, || async { panic!("the pool has a spare connection") });
            tokio::task::yield_now().await;
            assert_eq!((opened.get(), pool.len()), (1, 1));
        });
    }

    #[test]
    fn the_pool_is_bounded() {
        run_local(async {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let pool = IdlePool::default();
            let mut peers = Vec::new();
            for port in 0..MAX_CONNS as u16 + 3 {
                let key = PoolKey::for_url(&format!("http://h:{}/", 1000 + port).parse().unwrap(), None);
                pool.insert(key, dial(&listener).await);
                peers.push(listener.accept().unwrap());
            }
            assert_eq!(pool.len(), MAX_CONNS);
        });
    }
}
