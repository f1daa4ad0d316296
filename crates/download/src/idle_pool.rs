//! Connections that stand and have nothing to do: kept for the next request to the same place.
//!
//! In: connections that a run no longer needs, and the wish for a spare one. Out: a connection that is as good as new,
//! so that a seek costs one round trip and no handshakes.
//!
//! 1. A connection goes only to where it leads: the same link, scheme, host and port; and only to a transfer that might have
//!    opened it ([`Right`]).
//! 2. One that is busy is closed when its run ends early, HTTP/2 too: behind a reset comes first what the server's kernel
//!    holds of the old answer. So while one is busy, a spare one is opened beside it.
//! 3. What the server has closed is dropped: each is looked at every second, and once more before it is given away.
//! 4. None is kept longer than [`LONGEST`], nor more than [`MOST`] of them; over a cellular link [`BRIEFLY`], as the end of
//!    a connection would wake a radio that has gone to sleep.
//! 5. Over a link that rests none is kept at all, until somebody connects over it.
//!
//! One pool for everything, as HTTP libraries have it, was not used: connections under load belong to their run, whose
//! pump polls them; only the idle ones are here.

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

/// Where a connection leads, and over which link.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct PoolKey {
    interface: Option<String>,
    /// Its radio sleeps soon after the last packet.
    is_cellular: bool,
    is_tls: bool,
    host: String,
    port: u16,
}

impl PoolKey {
    /// To the URL's host over an interface; without one wherever the routing table leads.
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

/// All idle connections of a program. Clones are the same pool.
#[derive(Clone, Debug, Default)]
pub(crate) struct IdlePool {
    state: Rc<RefCell<PoolState>>,
}

#[derive(Debug, Default)]
struct PoolState {
    idle_conns: BTreeMap<PoolKey, Vec<(Instant, Connection)>>,
    /// Spares that are being opened.
    opening: BTreeSet<PoolKey>,
    /// Devices whose links rest.
    standby_devices: BTreeSet<String>,
}

impl IdlePool {
    /// A connection that stands and may be used with this right; the one that was used last.
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

    /// Keeps a connection on which nothing is awaited.
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

    /// Sees to it that one connection is kept: opens it with `dialing` if there is none. Needs a local set of tokio.
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

    /// The link of this device rests: what stands over it is closed, while its radio is awake anyway.
    pub(crate) fn on_standby(&self, device: &str) {
        let mut pool = self.state.borrow_mut();
        pool.standby_devices.insert(device.to_owned());
        pool.idle_conns.retain(|key, _| key.interface.as_deref() != Some(device));
    }

    /// Somebody connects over this device.
    pub(crate) fn on_active(&self, device: &str) {
        self.state.borrow_mut().standby_devices.remove(device);
    }

    /// What leads there is of no use any more.
    pub(crate) fn remove(&self, key: &PoolKey) {
        self.state.borrow_mut().idle_conns.remove(key);
    }

    /// Links have changed: nothing is sure to stand.
    pub(crate) fn clear(&self) {
        let mut pool = self.state.borrow_mut();
        pool.idle_conns.clear();
        pool.standby_devices.clear();
    }

    /// How many are kept.
    pub(crate) fn len(&self) -> usize {
        self.state.borrow().idle_conns.values().map(Vec::len).sum()
    }

    /// Looks after them, for ever.
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

/// Whether the other end has not said anything: on an idle connection that would be its end.
fn is_alive(connection: &mut Connection) -> bool {
    let mut cx = Context::from_waker(Waker::noop());
    // HTTP/2 may answer its peer here, and then has no event to tell.
    let polled = connection.poll_event(&mut cx, &mut [0; 512], &mut NullSink, DataSize::ZERO);
    !matches!(polled, Poll::Ready(Event::Closed { .. } | Event::Head { .. } | Event::Data { .. }))
}

struct NullSink;

impl Sink for NullSink {
    fn body(&mut self, _: ReqId, _: &[u8]) {}
}

/// Servers close idle connections after 5 s (Apache httpd 2.4) to 75 s (nginx 1.22) by default. chosen: a minute.
const MAX_IDLE: Duration = Duration::from_secs(60);
/// chosen: for a seek, or the next segment. What it costs is that much more of a tail of ten seconds.
const MAX_IDLE_CELLULAR: Duration = Duration::from_secs(3);
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// chosen: two for each of sixteen places.
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
    fn a_connection_is_given_only_for_its_own_way_and_only_once() {
        run_local(async {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let (warm, url) = (IdlePool::default(), "http://h/x".parse::<Url>().unwrap());
            let way = PoolKey::for_url(&url, None);
            warm.insert(way.clone(), dial(&listener).await);
            for other in ["https://h/x", "http://i/x", "http://h:81/x"] {
                assert!(
                    warm.reuse(&PoolKey::for_url(&other.parse().unwrap(), None), EgressPolicy::user()).is_none(),
                    "{other}"
                );
            }
            assert!(
                warm.reuse(&PoolKey::for_url(&"http://h/y".parse().unwrap(), None), EgressPolicy::user()).is_some()
            );
            assert!(warm.reuse(&way, EgressPolicy::user()).is_none());
        });
    }

    #[test]
    fn a_connection_is_not_given_to_a_transfer_that_might_not_open_it() {
        run_local(async {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let (warm, way) = (IdlePool::default(), PoolKey::for_url(&"http://h/x".parse().unwrap(), None));
            warm.insert(way.clone(), dial(&listener).await);
            let other_host = EgressPolicy::for_peer("192.0.2.7:9".parse().unwrap());
            let led = EgressPolicy::user().referred_by("192.0.2.8".parse::<std::net::IpAddr>().ok());
            assert!(warm.reuse(&way, other_host).is_none() && warm.reuse(&way, led).is_none());
            assert!(warm.reuse(&way, EgressPolicy::user()).is_some());
        });
    }

    #[test]
    fn over_a_link_that_rests_nothing_is_kept_until_somebody_connects() {
        run_local(async {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let (warm, url) = (IdlePool::default(), "http://h/x".parse::<Url>().unwrap());
            let over =
                |device: &str| PoolKey { interface: Some(device.to_owned()), ..PoolKey::for_url(&url, None) };
            for device in ["lte", "wifi"] {
                warm.insert(over(device), dial(&listener).await);
            }
            warm.on_standby("lte");
            assert!(warm.reuse(&over("lte"), EgressPolicy::user()).is_none());
            warm.insert(over("lte"), dial(&listener).await);
            warm.open_spare(&over("lte"), || async { panic!("it rests") });
            assert_eq!(warm.len(), 1);
            warm.on_active("lte");
            warm.insert(over("lte"), dial(&listener).await);
            assert!(
                warm.reuse(&over("lte"), EgressPolicy::user()).is_some()
                    && warm.reuse(&over("wifi"), EgressPolicy::user()).is_some()
            );
        });
    }

    #[test]
    fn what_the_server_closed_is_not_given() {
        run_local(async {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let (warm, way) = (IdlePool::default(), PoolKey::for_url(&"http://h/x".parse().unwrap(), None));
            warm.insert(way.clone(), dial(&listener).await);
            let (mut peer, _) = listener.accept().unwrap();
            peer.write_all(b"HTTP/1.1 408 Request Timeout\r\n\r\n").unwrap();
            drop(peer);
            while warm.len() > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
                warm.state.borrow_mut().evict();
            }
            assert!(warm.reuse(&way, EgressPolicy::user()).is_none());
        });
    }

    #[test]
    fn one_spare_is_opened_and_no_second() {
        run_local(async {
            let listener = Rc::new(TcpListener::bind("127.0.0.1:0").unwrap());
            let (warm, way) = (IdlePool::default(), PoolKey::for_url(&"http://h/x".parse().unwrap(), None));
            let opened = Rc::new(std::cell::Cell::new(0));
            for _ in 0..3 {
                let (listener, opened) = (Rc::clone(&listener), Rc::clone(&opened));
                warm.open_spare(&way, || async move {
                    opened.set(opened.get() + 1);
                    Some(dial(&listener).await)
                });
            }
            let _peer = loop {
                tokio::time::sleep(Duration::from_millis(1)).await;
                if warm.len() > 0 {
                    break listener.accept().unwrap();
                }
            };
            warm.open_spare(&way, || async { panic!("there is one already") });
            tokio::task::yield_now().await;
            assert_eq!((opened.get(), warm.len()), (1, 1));
        });
    }

    #[test]
    fn not_more_are_kept_than_the_bound() {
        run_local(async {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let warm = IdlePool::default();
            let mut peers = Vec::new();
            for port in 0..MAX_CONNS as u16 + 3 {
                let way = PoolKey::for_url(&format!("http://h:{}/", 1000 + port).parse().unwrap(), None);
                warm.insert(way, dial(&listener).await);
                peers.push(listener.accept().unwrap());
            }
            assert_eq!(warm.len(), MAX_CONNS);
        });
    }
}
