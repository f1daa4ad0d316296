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
use marline_net::dns::{Resolution, ResolveError, Resolver};
use marline_net::egress::EgressPolicy;
use marline_net::http::{
    Connection, DialRequest, Event, GetRequest, Http2Windows, Proxy, ProxyResponseTimer, Sink, TlsContext,
    resolver_host,
};
use marline_net::links::Interface;
use marline_sys::mptcp::Spoken;
use url::Url;

use super::connect_options::{self, ConnectOptions, TunnelTargetError};
use super::idle_pool::{IdlePool, PoolKey};
use super::traffic::Traffic;

/// See the [module](self).
pub(super) struct ConnTable {
    conns: BTreeMap<ConnId, ConnEntry>,
    /// The connection of each request that is not complete.
    requests: BTreeMap<ReqId, ConnId>,
    dns_cache: BTreeMap<(LinkId, String), Resolution>,
    resolver: Rc<Resolver>,
    trust: TlsContext,
    /// Idle connections that outlive the run; none: there are no others.
    idle_pool: Option<IdlePool>,
    /// Where what is sent is counted; none: nowhere.
    traffic: Option<Rc<Traffic>>,
    /// Whether connections ask for MPTCP.
    pub(super) mptcp: bool,
    /// How servers are reached.
    pub(super) connect_options: ConnectOptions,
    /// How long the proxy has been silent over each link.
    proxy_timers: BTreeMap<LinkId, ProxyResponseTimer>,
    read_buffer: Vec<u8>,
}

/// A connection and what it is for.
struct ConnEntry {
    link: LinkId,
    url_id: UrlId,
    /// Whose name is looked up: the URL's host, or the proxy.
    dns_name: String,
    /// Where it leads, and over what, for another one like it.
    url: Url,
    fixed_addr: Option<IpAddr>,
    interface: Option<Interface>,
    egress: EgressPolicy,
    /// It leads to this proxy, or through it.
    proxy: Option<Proxy>,
    /// It was told that it is over.
    is_closed: bool,
    state: ConnState,
}

enum ConnState {
    /// Whether the name is known by now, and the rest.
    Dialing(Rc<Cell<bool>>, Pin<Box<dyn Future<Output = DialOutcome>>>),
    Open(Box<Connection>),
}

/// The name's addresses, if they were looked up, and the connection.
type DialOutcome = (Option<Resolution>, Result<Connection, DialError>);

/// Why a connection never stood.
#[derive(Debug)]
pub(super) struct DialError {
    pub(super) error: ConnError,
    /// Somebody who knows says that there is no such name: asking again would not help.
    pub(super) is_name_denied: bool,
}

impl DialError {
    fn new(kind: ConnErrorKind, text: String) -> Self {
        Self { error: ConnError { kind, text }, is_name_denied: false }
    }

    fn dns(why: ResolveError) -> Self {
        let denied = why.is_definitive;
        Self { error: why.into(), is_name_denied: denied }
    }
}

/// What happened on a connection.
pub(super) enum SocketEvent {
    /// It stands.
    Open {
        /// How requests share it.
        protocol: Protocol,
        /// From SYN to SYN-ACK.
        handshake: Duration,
        /// The address where it ends.
        peer: IpAddr,
        /// Whether it speaks MPTCP.
        mptcp_status: Spoken,
    },
    /// It never stood, and is forgotten.
    Failed(DialError),
    /// It stands, and something came.
    Event(Event),
}

impl ConnTable {
    /// None yet; `trust` is for `https`.
    pub(super) fn new(trust: TlsContext) -> Self {
        Self::with_shared(trust, Rc::new(Resolver::new()), None)
    }

    /// None yet; names, idle connections and the count of what is sent are shared with other runs.
    pub(super) fn with_shared(
        trust: TlsContext,
        resolver: Rc<Resolver>,
        shared: Option<(IdlePool, Rc<Traffic>)>,
    ) -> Self {
        let (idle_pool, traffic) = shared.unzip();
        Self {
            conns: BTreeMap::new(),
            requests: BTreeMap::new(),
            dns_cache: BTreeMap::new(),
            resolver,
            trust,
            idle_pool,
            traffic,
            mptcp: false,
            connect_options: ConnectOptions::default(),
            proxy_timers: BTreeMap::new(),
            read_buffer: vec![0; READ_BUFFER_LEN],
        }
    }

    /// Begins to open a connection, to this address of the URL's host if there is one; without an interface it is bound
    /// to nothing.
    pub(super) fn connect(
        &mut self,
        conn: ConnId,
        link: LinkId,
        url_id: UrlId,
        (url, at, egress): (&Url, Option<IpAddr>, EgressPolicy),
        interface: Option<Interface>,
    ) {
        let proxy = self.connect_options.proxies.proxy_for(url);
        let host = proxy.as_ref().map_or_else(|| resolver_host(url), |proxy| proxy.host().to_owned());
        let key = PoolKey::for_url(url, interface.as_ref());
        if let (Some(idle_pool), Some(interface)) = (&self.idle_pool, &interface) {
            idle_pool.on_active(&interface.name);
        }
        // A run's further connections are opened anew: what stands is for whoever would have to wait.
        let is_first =
            !self.conns.values().any(|entry| PoolKey::for_url(&entry.url, entry.interface.as_ref()) == key);
        // One of the pool may lead to another address.
        let pool = self.idle_pool.as_ref().filter(|_| at.is_none() && is_first);
        let reused = pool.and_then(|reused| reused.reuse(&key, egress));
        let (url, bound_interface) = (url.clone(), interface.clone());
        let state = match reused {
            Some(connection) => {
                ConnState::Dialing(Rc::new(Cell::new(true)), Box::pin(std::future::ready((None, Ok(connection)))))
            }
            None => {
                // An address is no name.
                let is_resolved = Rc::new(Cell::new(at.is_some() || host.parse::<IpAddr>().is_ok()));
                let dialing = self.dial_future((link, &url, at, egress), interface, Rc::clone(&is_resolved));
                ConnState::Dialing(is_resolved, Box::pin(dialing))
            }
        };
        let entry = ConnEntry {
            link,
            url_id,
            dns_name: host,
            url,
            fixed_addr: at,
            interface: bound_interface,
            egress,
            proxy,
            is_closed: false,
            state,
        };
        self.conns.insert(conn, entry);
    }

    /// The way to a connection, name and TLS included.
    fn dial_future(
        &mut self,
        (link, url, at, egress): (LinkId, &Url, Option<IpAddr>, EgressPolicy),
        interface: Option<Interface>,
        is_resolved: Rc<Cell<bool>>,
    ) -> impl Future<Output = DialOutcome> + use<> {
        let server_name = resolver_host(url);
        let port = url.port_or_known_default().unwrap_or(80);
        let tls = (url.scheme() == "https").then(|| self.trust.config_for(&server_name, port)).transpose();
        let route = self.connect_options.clone();
        let proxy = route.proxies.proxy_for(url);
        let (name, port) = match &proxy {
            Some(proxy) => (proxy.host().to_owned(), proxy.port()),
            None => (server_name.clone(), port),
        };
        let cached = self.dns_cache.get(&(link, name.clone())).cloned();
        let (resolver, mptcp, url) = (Rc::clone(&self.resolver), self.mptcp, url.clone());
        let response_timer = self.proxy_timers.entry(link).or_default().clone();
        let used_proxy = proxy.clone();
        let sent =
            self.traffic.as_ref().zip(interface.as_ref()).map(|(traffic, bound)| traffic.sent_counter(&bound.name));
        let dialing = async move {
            let tls = match tls {
                Ok(tls) => tls,
                Err(why) => return (None, Err(DialError::new(ConnErrorKind::Tls, why.to_string()))),
            };
            let tunnel = match &proxy {
                None => None,
                Some(proxy) => {
                    match connect_options::tunnel_to(
                        proxy,
                        &url,
                        egress,
                        &resolver,
                        interface.as_ref(),
                        response_timer,
                    )
                    .await
                    {
                        Ok(tunnel) => tunnel,
                        Err(TunnelTargetError::Dns(why)) => return (None, Err(DialError::dns(why))),
                        Err(TunnelTargetError::Forbidden(error)) => {
                            return (None, Err(DialError { error, is_name_denied: false }));
                        }
                    }
                }
            };
            // The user has named the proxy.
            let egress = if proxy.is_some() { EgressPolicy::user() } else { egress };
            if let Err(error) = egress.check_host(&name, port) {
                return (None, Err(DialError { error, is_name_denied: false }));
            }
            let (resolution, is_new) = match cached {
                _ if at.is_some() => (None, false),
                Some(resolution) => (Some(resolution), false),
                None => match resolver.resolve_checked(&egress, &name, interface.as_ref(), DNS_TIMEOUT).await {
                    Ok(resolution) => (Some(resolution), true),
                    Err(why) => return (None, Err(DialError::dns(why))),
                },
            };
            is_resolved.set(true);
            let resolved = resolution.iter().flat_map(|resolution| &resolution.addresses);
            let addresses = match route.filter_addresses(&name, at.iter().chain(resolved).copied().collect()) {
                Ok(addresses) => addresses,
                Err(error) => {
                    return (resolution.filter(|_| is_new), Err(DialError { error, is_name_denied: false }));
                }
            };
            let dial = DialRequest {
                device: interface.map(|interface| interface.name),
                mptcp,
                addresses: addresses.into_iter().map(|ip| (ip, port).into()).collect(),
                server_name,
                tls,
                timeout: DIAL_TIMEOUT,
                http2_windows: Http2Windows::default(),
                egress,
                tunnel,
                sent_bytes: sent,
            };
            let dialed = Connection::dial(dial).await;
            (resolution.filter(|_| is_new), dialed.map_err(|error| DialError { error, is_name_denied: false }))
        };
        async move {
            let (resolution, dialed) = dialing.await;
            let attribute = |dial_error: DialError| match &used_proxy {
                Some(proxy) if dial_error.error.kind != ConnErrorKind::Forbidden => {
                    DialError { error: proxy.attribute_error(dial_error.error), ..dial_error }
                }
                _ => dial_error,
            };
            (resolution, dialed.map_err(attribute))
        }
    }

    /// Sees to it that beside each busy connection a spare one stands for the next run. HTTP/1.1 cannot take a connection
    /// back from its answer; HTTP/2 can, but what the server has handed to its kernel by then comes first: half a
    /// second of a 3 Mbit/s link.
    pub(super) fn open_spares(&mut self) {
        let Some(idle_pool) = self.idle_pool.clone() else { return };
        let busy = |entry: &&ConnEntry| matches!(entry.state, ConnState::Open(_)) && !entry.is_closed;
        let spares: Vec<_> = self
            .conns
            .values()
            .filter(busy)
            .map(|entry| (entry.link, entry.url.clone(), entry.fixed_addr, entry.egress, entry.interface.clone()))
            .collect();
        for (link, url, at, egress, interface) in spares {
            let key = PoolKey::for_url(&url, interface.as_ref());
            idle_pool.open_spare(&key, || {
                let dialing = self.dial_future((link, &url, at, egress), interface, Rc::default());
                async move { dialing.await.1.ok() }
            });
        }
    }

    /// Looks at one connection. At most `most(link)` body bytes go to the sink.
    pub(super) fn poll_conn(
        &mut self,
        id: ConnId,
        cx: &mut Context<'_>,
        sink: &mut dyn Sink,
        limit: impl FnOnce(LinkId) -> DataSize,
    ) -> Poll<SocketEvent> {
        let Some(entry) = self.conns.get_mut(&id) else { return Poll::Pending };
        match &mut entry.state {
            ConnState::Open(connection) => {
                let limit = limit(entry.link).min(DataSize::from_bytes(READ_BUFFER_LEN as u64));
                let mut polled = connection.poll_event(cx, &mut self.read_buffer, sink, limit);
                if let Poll::Ready(Event::Aborted { error, .. }) = &mut polled
                    && error.kind == ConnErrorKind::StreamRefused
                    && self.trust.on_stream_refused(
                        &resolver_host(&entry.url),
                        entry.url.port_or_known_default().unwrap_or(443),
                    )
                {
                    error.kind = ConnErrorKind::Http1Required;
                }
                if matches!(polled, Poll::Ready(Event::Head { .. })) && connection.protocol() == Protocol::Http2 {
                    self.trust.on_stream_served(
                        &resolver_host(&entry.url),
                        entry.url.port_or_known_default().unwrap_or(443),
                    );
                }
                entry.is_closed |= matches!(polled, Poll::Ready(Event::Closed { .. }));
                if let Poll::Ready(Event::Aborted { error: trouble, .. } | Event::Closed { error: trouble }) =
                    &polled
                    && trouble.kind == ConnErrorKind::Http1Required
                {
                    entry.is_closed = true;
                    self.trust.use_http1_for(
                        &resolver_host(&entry.url),
                        entry.url.port_or_known_default().unwrap_or(443),
                    );
                    if let Some(idle_pool) = &self.idle_pool {
                        idle_pool.remove(&PoolKey::for_url(&entry.url, entry.interface.as_ref()));
                    }
                }
                polled.map(SocketEvent::Event)
            }
            ConnState::Dialing(_, dialing) => {
                let Poll::Ready((resolution, dialed)) = dialing.as_mut().poll(cx) else { return Poll::Pending };
                let name = (entry.link, entry.dns_name.clone());
                if let Some(resolution) = resolution {
                    self.dns_cache.insert(name.clone(), resolution);
                }
                Poll::Ready(match dialed {
                    Ok(connection) => {
                        let (protocol, handshake) = (connection.protocol(), connection.handshake());
                        let (peer, mptcp_status) = (connection.peer_addr().ip(), connection.mptcp_status());
                        entry.state = ConnState::Open(Box::new(connection));
                        SocketEvent::Open { protocol, handshake, peer, mptcp_status }
                    }
                    Err(dial_error) => {
                        self.dns_cache.remove(&name);
                        self.conns.remove(&id);
                        SocketEvent::Failed(dial_error)
                    }
                })
            }
        }
    }

    /// Sends a request on an open connection. False: there is none.
    pub(super) fn request(&mut self, req: ReqId, conn: ConnId, get: &GetRequest) -> bool {
        let Some(entry) = self.conns.get_mut(&conn) else { return false };
        let ConnState::Open(connection) = &mut entry.state else { return false };
        match entry.proxy.as_ref().filter(|proxy| proxy.uses_absolute_form(&entry.url)) {
            Some(proxy) => connection.request(req, &get.clone().in_absolute_form(proxy)),
            None => connection.request(req, get),
        }
        self.requests.insert(req, conn);
        true
    }

    /// The body of an answer may flow.
    pub(super) fn accept(&mut self, req: ReqId, len: Option<DataSize>) {
        if let Some(connection) = self.conn_of(req) {
            connection.accept(req, len);
        }
    }

    /// An answer is not wanted.
    pub(super) fn cancel(&mut self, req: ReqId) {
        if let Some(connection) = self.conn_of(req) {
            connection.cancel(req);
        }
        let conn = self.requests.remove(&req);
        if let Some(entry) = conn.and_then(|conn| self.conns.get_mut(&conn))
            && let ConnState::Open(connection) = &entry.state
        {
            // HTTP/1.1 stops at that answer: nobody else can use the connection.
            entry.is_closed |= connection.protocol() == Protocol::Http1;
        }
    }

    /// A request is over.
    pub(super) fn on_request_done(&mut self, req: ReqId) {
        self.requests.remove(&req);
    }

    /// Drops a connection; gives the requests that were on it.
    pub(super) fn close(&mut self, conn: ConnId) -> Vec<ReqId> {
        let entry = self.conns.remove(&conn);
        let open_requests: Vec<ReqId> =
            self.requests.iter().filter(|(_, conn_id)| **conn_id == conn).map(|(req, _)| *req).collect();
        for req in &open_requests {
            self.requests.remove(req);
        }
        if let Some(entry) = entry.filter(|_| open_requests.is_empty()) {
            self.return_to_pool(entry);
        }
        open_requests
    }

    /// A connection on which nothing is awaited goes to the pool, if there is one.
    fn return_to_pool(&self, entry: ConnEntry) {
        if let (Some(idle_pool), ConnState::Open(connection), false) =
            (&self.idle_pool, entry.state, entry.is_closed)
        {
            idle_pool.insert(PoolKey::for_url(&entry.url, entry.interface.as_ref()), *connection);
        }
    }

    /// The link of this interface rests.
    pub(super) fn on_standby(&self, interface: &Interface) {
        if let Some(idle_pool) = &self.idle_pool {
            idle_pool.on_standby(&interface.name);
        }
    }

    /// Links have changed: names may mean other addresses now.
    pub(super) fn clear_dns(&mut self) {
        self.dns_cache.clear();
        self.resolver.clear_cache();
    }

    /// All connections.
    pub(super) fn ids(&self) -> Vec<ConnId> {
        self.conns.keys().copied().collect()
    }

    /// What a link is waiting for that has no connection yet but opens one.
    pub(super) fn opening_phase(&self, link: LinkId) -> Option<&'static str> {
        let mut phase = None;
        for entry in self.conns.values().filter(|entry| entry.link == link) {
            match &entry.state {
                ConnState::Open(_) => return None,
                ConnState::Dialing(is_resolved, _) if is_resolved.get() => phase = Some("connecting"),
                ConnState::Dialing(..) => phase = phase.or(Some("looking up the name")),
            }
        }
        phase
    }

    /// The address of an open connection's server; none: a proxy alone knows it.
    pub(super) fn server_addr(&self, conn: ConnId) -> Option<IpAddr> {
        let entry = self.conns.get(&conn).filter(|entry| entry.proxy.is_none())?;
        match &entry.state {
            ConnState::Open(connection) => Some(connection.peer_addr().ip()),
            ConnState::Dialing(..) => None,
        }
    }

    /// The places for which there are connections.
    pub(super) fn url_ids(&self) -> BTreeSet<UrlId> {
        self.conns.values().map(|entry| entry.url_id).collect()
    }

    /// What a connection is for.
    pub(super) fn link_and_url(&self, conn: ConnId) -> Option<(LinkId, UrlId)> {
        self.conns.get(&conn).map(|entry| (entry.link, entry.url_id))
    }

    /// The requests on a connection that are not complete.
    pub(super) fn open_requests(&self, conn: ConnId) -> impl Iterator<Item = ReqId> {
        self.requests.iter().filter(move |(_, conn_id)| **conn_id == conn).map(|(req, _)| *req)
    }

    /// Who resolved the name for a link.
    pub(super) fn dns_source(&self, conn: ConnId) -> Option<String> {
        let entry = self.conns.get(&conn)?;
        self.dns_cache.get(&(entry.link, entry.dns_name.clone())).map(|resolution| resolution.source.to_string())
    }

    /// The paths of connections on which something is awaited.
    pub(super) fn path_samples(&self) -> Vec<(ConnId, LinkId, PathSample)> {
        let has_request = |id: &ConnId| self.requests.values().any(|conn| conn == id);
        let open = self.conns.iter().filter_map(|(id, entry)| match &entry.state {
            ConnState::Open(connection) if has_request(id) => Some((*id, entry.link, connection.path_sample())),
            _ => None,
        });
        open.collect()
    }

    /// Whether a connection that was asked to speak MPTCP does not.
    pub(super) fn has_fallen_back(&self) -> bool {
        let has_fallen_back =
            |entry: &ConnEntry| matches!(&entry.state, ConnState::Open(c) if c.mptcp_status() == Spoken::FellBack);
        self.mptcp && self.conns.values().any(has_fallen_back)
    }

    fn conn_of(&mut self, req: ReqId) -> Option<&mut Connection> {
        match &mut self.conns.get_mut(self.requests.get(&req)?)?.state {
            ConnState::Open(connection) => Some(connection),
            ConnState::Dialing(..) => None,
        }
    }
}

impl Drop for ConnTable {
    /// What is idle is kept for the next run; what is busy is closed, so that nothing of it is in the next one's way.
    fn drop(&mut self) {
        for (id, entry) in std::mem::take(&mut self.conns) {
            if self.requests.values().all(|conn_id| *conn_id != id) {
                self.return_to_pool(entry);
            }
        }
    }
}

/// One buffer for all reads. chosen: larger ones save no system calls below 10 Gbit/s.
const READ_BUFFER_LEN: usize = 256 * 1024;
pub(super) const DNS_TIMEOUT: Duration = Duration::from_secs(5);
/// Linux sends four SYNs in this time (RFC 6298 back-off: at 0, 1, 3 and 7 s).
const DIAL_TIMEOUT: Duration = Duration::from_secs(15);
