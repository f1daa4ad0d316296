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
use marline_net::http::{Connection, Event, Sink, host_of};
use marline_net::links::Interface;
use marline_net::reach::Right;
use url::Url;

/// Where a connection leads, and over which link.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Way {
    device: Option<String>,
    /// Its radio sleeps soon after the last packet.
    sleeps: bool,
    secure: bool,
    host: String,
    port: u16,
}

impl Way {
    /// To the URL's host over an interface; without one wherever the routing table leads.
    pub(crate) fn to(url: &Url, interface: Option<&Interface>) -> Self {
        Self {
            device: interface.map(|interface| interface.name.clone()),
            sleeps: interface.is_some_and(|interface| interface.kind.is_cellular()),
            secure: url.scheme() == "https",
            host: host_of(url),
            port: url.port_or_known_default().unwrap_or(80),
        }
    }
}

/// All idle connections of a program. Clones are the same pool.
#[derive(Clone, Debug, Default)]
pub(crate) struct Warm {
    pool: Rc<RefCell<Pool>>,
}

#[derive(Debug, Default)]
struct Pool {
    idle: BTreeMap<Way, Vec<(Instant, Connection)>>,
    /// Spares that are being opened.
    opening: BTreeSet<Way>,
    /// Devices whose links rest.
    resting: BTreeSet<String>,
}

impl Warm {
    /// A connection that stands and may be used with this right; the one that was used last.
    pub(crate) fn take(&self, way: &Way, right: Right) -> Option<Connection> {
        let mut pool = self.pool.borrow_mut();
        let idle = pool.idle.get_mut(way)?;
        for at in (0..idle.len()).rev() {
            let is_allowed = idle.get(at).is_some_and(|(_, open)| right.check(open.peer_addr()).is_ok());
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
    pub(crate) fn keep(&self, way: Way, mut connection: Connection) {
        if !is_alive(&mut connection) {
            return;
        }
        let mut pool = self.pool.borrow_mut();
        if !pool.rests(&way) {
            pool.idle.entry(way).or_default().push((Instant::now(), connection));
            pool.trim();
        }
    }

    /// Sees to it that one connection is kept: opens it with `dialing` if there is none. Needs a local set of tokio.
    pub(crate) fn spare<F>(&self, way: &Way, dialing: impl FnOnce() -> F)
    where
        F: Future<Output = Option<Connection>> + 'static,
    {
        {
            let mut pool = self.pool.borrow_mut();
            if pool.rests(way) {
                return;
            }
            if pool.idle.get(way).is_some_and(|idle| !idle.is_empty()) || !pool.opening.insert(way.clone()) {
                return;
            }
        }
        let (warm, way, dialing) = (self.clone(), way.clone(), dialing());
        tokio::task::spawn_local(async move {
            let opened = dialing.await;
            warm.pool.borrow_mut().opening.remove(&way);
            if let Some(connection) = opened {
                warm.keep(way, connection);
            }
        });
    }

    /// The link of this device rests: what stands over it is closed, while its radio is awake anyway.
    pub(crate) fn rests(&self, device: &str) {
        let mut pool = self.pool.borrow_mut();
        pool.resting.insert(device.to_owned());
        pool.idle.retain(|way, _| way.device.as_deref() != Some(device));
    }

    /// Somebody connects over this device.
    pub(crate) fn works(&self, device: &str) {
        self.pool.borrow_mut().resting.remove(device);
    }

    /// What leads there is of no use any more.
    pub(crate) fn forget(&self, way: &Way) {
        self.pool.borrow_mut().idle.remove(way);
    }

    /// Links have changed: nothing is sure to stand.
    pub(crate) fn clear(&self) {
        let mut pool = self.pool.borrow_mut();
        pool.idle.clear();
        pool.resting.clear();
    }

    /// How many are kept.
    pub(crate) fn len(&self) -> usize {
        self.pool.borrow().idle.values().map(Vec::len).sum()
    }

    /// Looks after them, for ever.
    pub(crate) async fn run(self) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            self.pool.borrow_mut().trim();
        }
    }
}

impl Pool {
    fn rests(&self, way: &Way) -> bool {
        way.device.as_ref().is_some_and(|device| self.resting.contains(device))
    }

    fn trim(&mut self) {
        for (way, idle) in &mut self.idle {
            let longest = if way.sleeps { BRIEFLY } else { LONGEST };
            idle.retain_mut(|(since, connection)| since.elapsed() < longest && is_alive(connection));
        }
        self.idle.retain(|_, idle| !idle.is_empty());
        while self.idle.values().map(Vec::len).sum::<usize>() > MOST {
            let oldest = self.idle.iter().filter_map(|(way, idle)| Some((idle.first()?.0, way.clone()))).min();
            let Some((_, way)) = oldest else { return };
            if let Some(idle) = self.idle.get_mut(&way) {
                idle.remove(0);
            }
            self.idle.retain(|_, idle| !idle.is_empty());
        }
    }
}

/// Whether the other end has not said anything: on an idle connection that would be its end.
fn is_alive(connection: &mut Connection) -> bool {
    let mut cx = Context::from_waker(Waker::noop());
    // HTTP/2 may answer its peer here, and then has no event to tell.
    let looked = connection.poll_event(&mut cx, &mut [0; 512], &mut Nowhere, DataSize::ZERO);
    !matches!(looked, Poll::Ready(Event::Closed { .. } | Event::Head { .. } | Event::Data { .. }))
}

struct Nowhere;

impl Sink for Nowhere {
    fn body(&mut self, _: ReqId, _: &[u8]) {}
}

/// Servers close idle connections after 5 s (Apache httpd 2.4) to 75 s (nginx 1.22) by default. chosen: a minute.
const LONGEST: Duration = Duration::from_secs(60);
/// chosen: for a seek, or the next segment. What it costs is that much more of a tail of ten seconds.
const BRIEFLY: Duration = Duration::from_secs(3);
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// chosen: two for each of sixteen places.
const MOST: usize = 32;

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::TcpListener;

    use marline_net::http::{Dial, Windows};

    use super::*;

    async fn dial(listener: &TcpListener) -> Connection {
        let dial = Dial {
            device: None,
            mptcp: false,
            addresses: vec![listener.local_addr().unwrap()],
            server_name: "localhost".into(),
            tls: None,
            timeout: Duration::from_secs(5),
            windows: Windows::default(),
            right: Right::user(),
            tunnel: None,
            sent: None,
        };
        Connection::dial(dial).await.unwrap()
    }

    fn in_a_runtime(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, test);
    }

    #[test]
    fn a_connection_is_given_only_for_its_own_way_and_only_once() {
        in_a_runtime(async {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let (warm, url) = (Warm::default(), "http://h/x".parse::<Url>().unwrap());
            let way = Way::to(&url, None);
            warm.keep(way.clone(), dial(&listener).await);
            for other in ["https://h/x", "http://i/x", "http://h:81/x"] {
                assert!(warm.take(&Way::to(&other.parse().unwrap(), None), Right::user()).is_none(), "{other}");
            }
            assert!(warm.take(&Way::to(&"http://h/y".parse().unwrap(), None), Right::user()).is_some());
            assert!(warm.take(&way, Right::user()).is_none());
        });
    }

    #[test]
    fn a_connection_is_not_given_to_a_transfer_that_might_not_open_it() {
        in_a_runtime(async {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let (warm, way) = (Warm::default(), Way::to(&"http://h/x".parse().unwrap(), None));
            warm.keep(way.clone(), dial(&listener).await);
            let other_host = Right::of_peer("192.0.2.7:9".parse().unwrap());
            let led = Right::user().led_by("192.0.2.8".parse::<std::net::IpAddr>().ok());
            assert!(warm.take(&way, other_host).is_none() && warm.take(&way, led).is_none());
            assert!(warm.take(&way, Right::user()).is_some());
        });
    }

    #[test]
    fn over_a_link_that_rests_nothing_is_kept_until_somebody_connects() {
        in_a_runtime(async {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let (warm, url) = (Warm::default(), "http://h/x".parse::<Url>().unwrap());
            let over = |device: &str| Way { device: Some(device.to_owned()), ..Way::to(&url, None) };
            for device in ["lte", "wifi"] {
                warm.keep(over(device), dial(&listener).await);
            }
            warm.rests("lte");
            assert!(warm.take(&over("lte"), Right::user()).is_none());
            warm.keep(over("lte"), dial(&listener).await);
            warm.spare(&over("lte"), || async { panic!("it rests") });
            assert_eq!(warm.len(), 1);
            warm.works("lte");
            warm.keep(over("lte"), dial(&listener).await);
            assert!(
                warm.take(&over("lte"), Right::user()).is_some()
                    && warm.take(&over("wifi"), Right::user()).is_some()
            );
        });
    }

    #[test]
    fn what_the_server_closed_is_not_given() {
        in_a_runtime(async {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let (warm, way) = (Warm::default(), Way::to(&"http://h/x".parse().unwrap(), None));
            warm.keep(way.clone(), dial(&listener).await);
            let (mut peer, _) = listener.accept().unwrap();
            peer.write_all(b"HTTP/1.1 408 Request Timeout\r\n\r\n").unwrap();
            drop(peer);
            while warm.len() > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
                warm.pool.borrow_mut().trim();
            }
            assert!(warm.take(&way, Right::user()).is_none());
        });
    }

    #[test]
    fn one_spare_is_opened_and_no_second() {
        in_a_runtime(async {
            let listener = Rc::new(TcpListener::bind("127.0.0.1:0").unwrap());
            let (warm, way) = (Warm::default(), Way::to(&"http://h/x".parse().unwrap(), None));
            let opened = Rc::new(std::cell::Cell::new(0));
            for _ in 0..3 {
                let (listener, opened) = (Rc::clone(&listener), Rc::clone(&opened));
                warm.spare(&way, || async move {
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
            warm.spare(&way, || async { panic!("there is one already") });
            tokio::task::yield_now().await;
            assert_eq!((opened.get(), warm.len()), (1, 1));
        });
    }

    #[test]
    fn not_more_are_kept_than_the_bound() {
        in_a_runtime(async {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let warm = Warm::default();
            let mut peers = Vec::new();
            for port in 0..MOST as u16 + 3 {
                let way = Way::to(&format!("http://h:{}/", 1000 + port).parse().unwrap(), None);
                warm.keep(way, dial(&listener).await);
                peers.push(listener.accept().unwrap());
            }
            assert_eq!(warm.len(), MOST);
        });
    }
}
