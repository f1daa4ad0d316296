//! The connections of a run: being dialled or open, and which request is on which.
//!
//! In: orders to connect, ask, accept, cancel and close. Out: one [`Happening`] at a time, for the pump to report.
//!
//! 1. A name is resolved over the link that will carry the connection, once; a connection that fails asks again next
//!    time, for the addresses may be what is wrong. None is asked for where the machine names the address.
//! 2. What is closed is dropped at once, with everything that was on it. Where there is a pool ([`Warm`]), what is
//!    idle goes there, and comes from there.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use marline_core::fetch::{ConnError, ConnErrorKind, ConnId, PathSample, Protocol, ReqId, UrlId};
use marline_core::link::LinkId;
use marline_core::units::DataSize;
use marline_net::dns::{Answer, NoAddress, Resolver};
use marline_net::http::{Connection, Dial, Event, Get, Proxy, Silence, Sink, Trust, Windows, host_of};
use marline_net::links::Interface;
use marline_net::reach::Right;
use marline_sys::mptcp::Spoken;
use url::Url;

use super::through::{self, NotAsked, Route};
use super::traffic::Traffic;
use super::warm::{Warm, Way};

/// See the [module](self).
pub(super) struct Sockets {
    slots: BTreeMap<ConnId, Slot>,
    /// The connection of each request that is not complete.
    reqs: BTreeMap<ReqId, ConnId>,
    names: BTreeMap<(LinkId, String), Answer>,
    resolver: Rc<Resolver>,
    trust: Trust,
    /// Idle connections that outlive the run; none: there are no others.
    warm: Option<Warm>,
    /// Where what is sent is counted; none: nowhere.
    traffic: Option<Rc<Traffic>>,
    /// Whether connections ask for MPTCP.
    pub(super) mptcp: bool,
    /// How servers are reached.
    pub(super) route: Route,
    /// How long the proxy has been silent over each link.
    silences: BTreeMap<LinkId, Silence>,
    scratch: Vec<u8>,
}

/// A connection and what it is for.
struct Slot {
    link: LinkId,
    origin: UrlId,
    /// Whose name is looked up: the URL's host, or the proxy.
    host: String,
    /// Where it leads, and over what, for another one like it.
    url: Url,
    at: Option<IpAddr>,
    interface: Option<Interface>,
    right: Right,
    /// It leads to this proxy, or through it.
    proxy: Option<Proxy>,
    /// It was told that it is over.
    over: bool,
    state: State,
}

enum State {
    /// Whether the name is known by now, and the rest.
    Dialing(Rc<Cell<bool>>, Pin<Box<dyn Future<Output = Dialed>>>),
    Open(Box<Connection>),
}

/// The name's addresses, if they were looked up, and the connection.
type Dialed = (Option<Answer>, Result<Connection, Refused>);

/// Why a connection never stood.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) trouble: ConnError,
    /// Somebody who knows says that there is no such name: asking again would not help.
    pub(super) denied: bool,
}

impl Refused {
    fn of(kind: ConnErrorKind, text: String) -> Self {
        Self { trouble: ConnError { kind, text }, denied: false }
    }

    fn of_name(why: NoAddress) -> Self {
        let denied = why.denied;
        Self { trouble: why.into(), denied }
    }
}

/// What happened on a connection.
pub(super) enum Happening {
    /// It stands.
    Open {
        /// How requests share it.
        protocol: Protocol,
        /// From SYN to SYN-ACK.
        handshake: Duration,
        /// The address where it ends.
        peer: IpAddr,
        /// Whether it speaks MPTCP.
        spoken: Spoken,
    },
    /// It never stood, and is forgotten.
    Failed(Refused),
    /// It stands, and something came.
    Event(Event),
}

impl Sockets {
    /// None yet; `trust` is for `https`.
    pub(super) fn new(trust: Trust) -> Self {
        Self::sharing(trust, Rc::new(Resolver::new()), None)
    }

    /// None yet; names, idle connections and the count of what is sent are shared with other runs.
    pub(super) fn sharing(trust: Trust, resolver: Rc<Resolver>, shared: Option<(Warm, Rc<Traffic>)>) -> Self {
        let (warm, traffic) = shared.unzip();
        Self {
            slots: BTreeMap::new(),
            reqs: BTreeMap::new(),
            names: BTreeMap::new(),
            resolver,
            trust,
            warm,
            traffic,
            mptcp: false,
            route: Route::default(),
            silences: BTreeMap::new(),
            scratch: vec![0; SCRATCH],
        }
    }

    /// Begins to open a connection, to this address of the URL's host if there is one; without an interface it is bound
    /// to nothing.
    pub(super) fn connect(
        &mut self,
        conn: ConnId,
        link: LinkId,
        origin: UrlId,
        (url, at, right): (&Url, Option<IpAddr>, Right),
        interface: Option<Interface>,
    ) {
        let proxy = self.route.proxies.of(url);
        let host = proxy.as_ref().map_or_else(|| host_of(url), |proxy| proxy.host().to_owned());
        let way = Way::to(url, interface.as_ref());
        if let (Some(warm), Some(interface)) = (&self.warm, &interface) {
            warm.works(&interface.name);
        }
        // A run's further connections are opened anew: what stands is for whoever would have to wait.
        let first = !self.slots.values().any(|slot| Way::to(&slot.url, slot.interface.as_ref()) == way);
        // One of the pool may lead to another address.
        let pool = self.warm.as_ref().filter(|_| at.is_none() && first);
        let warm = pool.and_then(|warm| warm.take(&way, right));
        let (url, known) = (url.clone(), interface.clone());
        let state = match warm {
            Some(connection) => {
                State::Dialing(Rc::new(Cell::new(true)), Box::pin(std::future::ready((None, Ok(connection)))))
            }
            None => {
                // An address is no name.
                let named = Rc::new(Cell::new(at.is_some() || host.parse::<IpAddr>().is_ok()));
                let dialing = self.dialing((link, &url, at, right), interface, Rc::clone(&named));
                State::Dialing(named, Box::pin(dialing))
            }
        };
        let slot = Slot { link, origin, host, url, at, interface: known, right, proxy, over: false, state };
        self.slots.insert(conn, slot);
    }

    /// The way to a connection, name and TLS included.
    fn dialing(
        &mut self,
        (link, url, at, right): (LinkId, &Url, Option<IpAddr>, Right),
        interface: Option<Interface>,
        is_named: Rc<Cell<bool>>,
    ) -> impl Future<Output = Dialed> + use<> {
        let server_name = host_of(url);
        let port = url.port_or_known_default().unwrap_or(80);
        let tls = (url.scheme() == "https").then(|| self.trust.config_for(&server_name, port)).transpose();
        let route = self.route.clone();
        let proxy = route.proxies.of(url);
        let (name, port) = match &proxy {
            Some(proxy) => (proxy.host().to_owned(), proxy.port()),
            None => (server_name.clone(), port),
        };
        let known = self.names.get(&(link, name.clone())).cloned();
        let (resolver, mptcp, url) = (Rc::clone(&self.resolver), self.mptcp, url.clone());
        let silence = self.silences.entry(link).or_default().clone();
        let blamed = proxy.clone();
        let sent = self.traffic.as_ref().zip(interface.as_ref()).map(|(traffic, of)| traffic.sent(&of.name));
        let dialing = async move {
            let tls = match tls {
                Ok(tls) => tls,
                Err(why) => return (None, Err(Refused::of(ConnErrorKind::Tls, why.to_string()))),
            };
            let tunnel = match &proxy {
                None => None,
                Some(proxy) => {
                    match through::tunnel(proxy, &url, right, &resolver, interface.as_ref(), silence).await {
                        Ok(tunnel) => tunnel,
                        Err(NotAsked::Name(why)) => return (None, Err(Refused::of_name(why))),
                        Err(NotAsked::Forbidden(trouble)) => {
                            return (None, Err(Refused { trouble, denied: false }));
                        }
                    }
                }
            };
            // The user has named the proxy.
            let right = if proxy.is_some() { Right::user() } else { right };
            if let Err(trouble) = right.check_host(&name, port) {
                return (None, Err(Refused { trouble, denied: false }));
            }
            let (answer, fresh) = match known {
                _ if at.is_some() => (None, false),
                Some(answer) => (Some(answer), false),
                None => match resolver.resolve_with(&right, &name, interface.as_ref(), NAME_TIMEOUT).await {
                    Ok(answer) => (Some(answer), true),
                    Err(why) => return (None, Err(Refused::of_name(why))),
                },
            };
            is_named.set(true);
            let named = answer.iter().flat_map(|answer| &answer.addresses);
            let addresses = match route.usable(&name, at.iter().chain(named).copied().collect()) {
                Ok(addresses) => addresses,
                Err(trouble) => return (answer.filter(|_| fresh), Err(Refused { trouble, denied: false })),
            };
            let dial = Dial {
                device: interface.map(|interface| interface.name),
                mptcp,
                addresses: addresses.into_iter().map(|ip| (ip, port).into()).collect(),
                server_name,
                tls,
                timeout: DIAL_TIMEOUT,
                windows: Windows::default(),
                right,
                tunnel,
                sent,
            };
            let dialed = Connection::dial(dial).await;
            (answer.filter(|_| fresh), dialed.map_err(|trouble| Refused { trouble, denied: false }))
        };
        async move {
            let (answer, dialed) = dialing.await;
            let blame = |refused: Refused| match &blamed {
                Some(proxy) if refused.trouble.kind != ConnErrorKind::Forbidden => {
                    Refused { trouble: proxy.blame(refused.trouble), ..refused }
                }
                _ => refused,
            };
            (answer, dialed.map_err(blame))
        }
    }

    /// Sees to it that beside each busy connection a spare one stands for the next run. HTTP/1.1 cannot take a connection
    /// back from its answer; HTTP/2 can, but what the server has handed to its kernel by then comes first: half a
    /// second of a 3 Mbit/s link.
    pub(super) fn keep_spares(&mut self) {
        let Some(warm) = self.warm.clone() else { return };
        let busy = |slot: &&Slot| matches!(slot.state, State::Open(_)) && !slot.over;
        let ways: Vec<_> = self
            .slots
            .values()
            .filter(busy)
            .map(|slot| (slot.link, slot.url.clone(), slot.at, slot.right, slot.interface.clone()))
            .collect();
        for (link, url, at, right, interface) in ways {
            let way = Way::to(&url, interface.as_ref());
            warm.spare(&way, || {
                let dialing = self.dialing((link, &url, at, right), interface, Rc::default());
                async move { dialing.await.1.ok() }
            });
        }
    }

    /// Looks at one connection. At most `most(link)` body bytes go to the sink.
    pub(super) fn look_at(
        &mut self,
        id: ConnId,
        cx: &mut Context<'_>,
        sink: &mut dyn Sink,
        most: impl FnOnce(LinkId) -> DataSize,
    ) -> Poll<Happening> {
        let Some(slot) = self.slots.get_mut(&id) else { return Poll::Pending };
        match &mut slot.state {
            State::Open(connection) => {
                let most = most(slot.link).min(DataSize::from_bytes(SCRATCH as u64));
                let mut looked = connection.poll_event(cx, &mut self.scratch, sink, most);
                if let Poll::Ready(Event::Aborted { trouble, .. }) = &mut looked
                    && trouble.kind == ConnErrorKind::StreamRefused
                    && self
                        .trust
                        .refuses_streams(&host_of(&slot.url), slot.url.port_or_known_default().unwrap_or(443))
                {
                    trouble.kind = ConnErrorKind::Http1Required;
                }
                if matches!(looked, Poll::Ready(Event::Head { .. })) && connection.protocol() == Protocol::Http2 {
                    self.trust.serves_streams(&host_of(&slot.url), slot.url.port_or_known_default().unwrap_or(443));
                }
                slot.over |= matches!(looked, Poll::Ready(Event::Closed { .. }));
                if let Poll::Ready(Event::Aborted { trouble, .. } | Event::Closed { trouble }) = &looked
                    && trouble.kind == ConnErrorKind::Http1Required
                {
                    slot.over = true;
                    self.trust.leave_http2(&host_of(&slot.url), slot.url.port_or_known_default().unwrap_or(443));
                    if let Some(warm) = &self.warm {
                        warm.forget(&Way::to(&slot.url, slot.interface.as_ref()));
                    }
                }
                looked.map(Happening::Event)
            }
            State::Dialing(_, dialing) => {
                let Poll::Ready((answer, dialed)) = dialing.as_mut().poll(cx) else { return Poll::Pending };
                let name = (slot.link, slot.host.clone());
                if let Some(answer) = answer {
                    self.names.insert(name.clone(), answer);
                }
                Poll::Ready(match dialed {
                    Ok(connection) => {
                        let (protocol, handshake) = (connection.protocol(), connection.handshake());
                        let (peer, spoken) = (connection.peer_addr().ip(), connection.spoken());
                        slot.state = State::Open(Box::new(connection));
                        Happening::Open { protocol, handshake, peer, spoken }
                    }
                    Err(refused) => {
                        self.names.remove(&name);
                        self.slots.remove(&id);
                        Happening::Failed(refused)
                    }
                })
            }
        }
    }

    /// Sends a request on an open connection. False: there is none.
    pub(super) fn request(&mut self, req: ReqId, conn: ConnId, get: &Get) -> bool {
        let Some(slot) = self.slots.get_mut(&conn) else { return false };
        let State::Open(connection) = &mut slot.state else { return false };
        match slot.proxy.as_ref().filter(|proxy| proxy.takes_absolute_form(&slot.url)) {
            Some(proxy) => connection.request(req, &get.clone().through(proxy)),
            None => connection.request(req, get),
        }
        self.reqs.insert(req, conn);
        true
    }

    /// The body of an answer may flow.
    pub(super) fn accept(&mut self, req: ReqId, len: Option<DataSize>) {
        if let Some(connection) = self.of(req) {
            connection.accept(req, len);
        }
    }

    /// An answer is not wanted.
    pub(super) fn cancel(&mut self, req: ReqId) {
        if let Some(connection) = self.of(req) {
            connection.cancel(req);
        }
        let conn = self.reqs.remove(&req);
        if let Some(slot) = conn.and_then(|conn| self.slots.get_mut(&conn))
            && let State::Open(connection) = &slot.state
        {
            // HTTP/1.1 stops at that answer: nobody else can use the connection.
            slot.over |= connection.protocol() == Protocol::Http1;
        }
    }

    /// A request is over.
    pub(super) fn ended(&mut self, req: ReqId) {
        self.reqs.remove(&req);
    }

    /// Drops a connection; gives the requests that were on it.
    pub(super) fn close(&mut self, conn: ConnId) -> Vec<ReqId> {
        let slot = self.slots.remove(&conn);
        let on_it: Vec<ReqId> = self.reqs.iter().filter(|(_, of)| **of == conn).map(|(req, _)| *req).collect();
        for req in &on_it {
            self.reqs.remove(req);
        }
        if let Some(slot) = slot.filter(|_| on_it.is_empty()) {
            self.retire(slot);
        }
        on_it
    }

    /// A connection on which nothing is awaited goes to the pool, if there is one.
    fn retire(&self, slot: Slot) {
        if let (Some(warm), State::Open(connection), false) = (&self.warm, slot.state, slot.over) {
            warm.keep(Way::to(&slot.url, slot.interface.as_ref()), *connection);
        }
    }

    /// The link of this interface rests.
    pub(super) fn rests(&self, interface: &Interface) {
        if let Some(warm) = &self.warm {
            warm.rests(&interface.name);
        }
    }

    /// Links have changed: names may mean other addresses now.
    pub(super) fn forget_names(&mut self) {
        self.names.clear();
        self.resolver.forget();
    }

    /// All connections.
    pub(super) fn ids(&self) -> Vec<ConnId> {
        self.slots.keys().copied().collect()
    }

    /// What a link is waiting for that has no connection yet but opens one.
    pub(super) fn opening(&self, link: LinkId) -> Option<&'static str> {
        let mut opening = None;
        for slot in self.slots.values().filter(|slot| slot.link == link) {
            match &slot.state {
                State::Open(_) => return None,
                State::Dialing(named, _) if named.get() => opening = Some("connecting"),
                State::Dialing(..) => opening = opening.or(Some("looking up the name")),
            }
        }
        opening
    }

    /// The address of an open connection's server; none: a proxy alone knows it.
    pub(super) fn server(&self, conn: ConnId) -> Option<IpAddr> {
        let slot = self.slots.get(&conn).filter(|slot| slot.proxy.is_none())?;
        match &slot.state {
            State::Open(connection) => Some(connection.peer_addr().ip()),
            State::Dialing(..) => None,
        }
    }

    /// The places for which there are connections.
    pub(super) fn origins(&self) -> BTreeSet<UrlId> {
        self.slots.values().map(|slot| slot.origin).collect()
    }

    /// What a connection is for.
    pub(super) fn purpose(&self, conn: ConnId) -> Option<(LinkId, UrlId)> {
        self.slots.get(&conn).map(|slot| (slot.link, slot.origin))
    }

    /// The requests on a connection that are not complete.
    pub(super) fn asked_of(&self, conn: ConnId) -> impl Iterator<Item = ReqId> {
        self.reqs.iter().filter(move |(_, of)| **of == conn).map(|(req, _)| *req)
    }

    /// Who resolved the name for a link.
    pub(super) fn named_by(&self, conn: ConnId) -> Option<String> {
        let slot = self.slots.get(&conn)?;
        self.names.get(&(slot.link, slot.host.clone())).map(|answer| answer.source.to_string())
    }

    /// The paths of connections on which something is awaited.
    pub(super) fn paths(&self) -> Vec<(ConnId, LinkId, PathSample)> {
        let awaited = |id: &ConnId| self.reqs.values().any(|conn| conn == id);
        let open = self.slots.iter().filter_map(|(id, slot)| match &slot.state {
            State::Open(connection) if awaited(id) => Some((*id, slot.link, connection.path())),
            _ => None,
        });
        open.collect()
    }

    /// Whether a connection that was asked to speak MPTCP does not.
    pub(super) fn has_fallen_back(&self) -> bool {
        let fallen = |slot: &Slot| matches!(&slot.state, State::Open(c) if c.spoken() == Spoken::FellBack);
        self.mptcp && self.slots.values().any(fallen)
    }

    fn of(&mut self, req: ReqId) -> Option<&mut Connection> {
        match &mut self.slots.get_mut(self.reqs.get(&req)?)?.state {
            State::Open(connection) => Some(connection),
            State::Dialing(..) => None,
        }
    }
}

impl Drop for Sockets {
    /// What is idle is kept for the next run; what is busy is closed, so that nothing of it is in the next one's way.
    fn drop(&mut self) {
        for (id, slot) in std::mem::take(&mut self.slots) {
            if self.reqs.values().all(|of| *of != id) {
                self.retire(slot);
            }
        }
    }
}

/// One buffer for all reads. chosen: larger ones save no system calls below 10 Gbit/s.
const SCRATCH: usize = 256 * 1024;
pub(super) const NAME_TIMEOUT: Duration = Duration::from_secs(5);
/// Linux sends four SYNs in this time (RFC 6298 back-off: at 0, 1, 3 and 7 s).
const DIAL_TIMEOUT: Duration = Duration::from_secs(15);
