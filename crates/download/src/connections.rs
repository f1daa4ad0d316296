//! The connections of one transfer (a download, or a stream of the proxy), being dialed or open, and the requests on them.
//!
//! The driver opens connections, sends requests, accepts or cancels responses and closes connections. Polling a
//! connection returns one [`SocketEvent`] at a time.
//!
//! 1. A name is resolved over the link that will carry the connection, and the result is cached for the transfer.
//!    After a failed connection attempt the next one resolves the name again, because the addresses may be the cause. If
//!    the machine gives the address, nothing is resolved.
//! 2. A closed connection is dropped at once, with all its requests. With an [`IdlePool`], idle connections are
//!    returned to the pool and taken from it.

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
use marline_sys::mptcp::MptcpStatus;
use url::Url;

use super::connect_options::{self, ConnectOptions, DNS_TIMEOUT, TunnelTargetError};
use super::idle_pool::{IdlePool, PoolKey};
use super::traffic::Traffic;

/// All connections of a transfer; see the [module documentation](self).
pub(super) struct ConnTable {
    conns: BTreeMap<ConnId, ConnEntry>,
    /// The connection of each request that is not complete.
    requests: BTreeMap<ReqId, ConnId>,
    dns_cache: BTreeMap<(LinkId, String), Resolution>,
    resolver: Rc<Resolver>,
    trust: TlsContext,
    /// Idle connections that outlive the transfer; none: it shares no connections with others.
    idle_pool: Option<IdlePool>,
    /// Counts sent bytes per link; none: they are not counted.
    traffic: Option<Rc<Traffic>>,
    /// Whether new connections request MPTCP.
    pub(super) mptcp: bool,
    /// Proxies and IP version for new connections.
    pub(super) connect_options: ConnectOptions,
    /// For each link, how long the proxy has been unresponsive.
    proxy_timers: BTreeMap<LinkId, ProxyResponseTimer>,
    read_buffer: Vec<u8>,
}

/// A connection with what is needed to open another one like it.
struct ConnEntry {
    link: LinkId,
    url_id: UrlId,
    /// The name that is resolved: the URL's host, or the proxy's.
    dns_name: String,
    /// The URL for which it was opened, and below the address and the interface.
    url: Url,
    fixed_addr: Option<IpAddr>,
    interface: Option<Interface>,
    egress: EgressPolicy,
    /// The proxy that it leads to or through.
    proxy: Option<Proxy>,
    /// Whether it was reported as closed, or cannot be used for another request.
    is_closed: bool,
    state: ConnState,
}

enum ConnState {
    /// Whether the name is resolved by now, and the attempt itself.
    Dialing(Rc<Cell<bool>>, Pin<Box<dyn Future<Output = DialOutcome>>>),
    Open(Box<Connection>),
}

/// The addresses, if they were newly resolved, and the connection.
type DialOutcome = (Option<Resolution>, Result<Connection, DialError>);

/// Why a connection could not be opened.
#[derive(Debug)]
pub(super) struct DialError {
    pub(super) error: ConnError,
    /// Whether an authoritative answer denies the name: another query would not help.
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

/// An event of one connection.
pub(super) enum SocketEvent {
    /// The connection is open.
    Open {
        /// Determines how requests share the connection.
        protocol: Protocol,
        /// Time from SYN to SYN-ACK.
        handshake: Duration,
        /// Address of the server or proxy.
        peer: IpAddr,
        /// Whether the connection uses MPTCP.
        mptcp_status: MptcpStatus,
    },
    /// The connection could not be opened, and is forgotten.
    Failed(DialError),
    /// An HTTP event of an open connection.
    Event(Event),
}

impl ConnTable {
    /// An empty table; `trust` is the TLS configuration for `https`.
    pub(super) fn new(trust: TlsContext) -> Self {
        Self::with_shared(trust, Rc::new(Resolver::new()), None)
    }

    /// An empty table that shares resolved names, idle connections and the count of sent bytes with other transfers.
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

    /// Starts to open a connection, to address `at` of the URL's host if one is given. Without an interface the
    /// socket is not bound.
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
        // Only the first connection to a server over a link is taken from the pool, because it saves the user a wait.
        // Further ones are opened.
        let is_first =
            !self.conns.values().any(|entry| PoolKey::for_url(&entry.url, entry.interface.as_ref()) == key);
        // With a fixed address the pool is not used: a pooled connection may lead to another address.
        let pool = self.idle_pool.as_ref().filter(|_| at.is_none() && is_first);
        let reused = pool.and_then(|reused| reused.reuse(&key, egress));
        let (url, bound_interface) = (url.clone(), interface.clone());
        let state = match reused {
            Some(connection) => {
                ConnState::Dialing(Rc::new(Cell::new(true)), Box::pin(std::future::ready((None, Ok(connection)))))
            }
            None => {
                // An address needs no name resolution.
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

    /// Opens a connection: name resolution, proxy tunnel, TCP and TLS. The future owns all it needs, so that a
    /// spare connection may outlive the transfer.
    fn dial_future(
        &mut self,
        (link, url, at, egress): (LinkId, &Url, Option<IpAddr>, EgressPolicy),
        interface: Option<Interface>,
        is_resolved: Rc<Cell<bool>>,
    ) -> impl Future<Output = DialOutcome> + use<> {
        let server_name = resolver_host(url);
        let port = url.port_or_known_default().unwrap_or(80);
        let tls = (url.scheme() == "https").then(|| self.trust.config_for(&server_name, port)).transpose();
        let options = self.connect_options.clone();
        let proxy = options.proxies.proxy_for(url);
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
            // The user named the proxy, so it may have any address. The policy was applied to the proxy's target
            // above.
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
            let addresses = match options.filter_addresses(&name, at.iter().chain(resolved).copied().collect()) {
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
        // A failure of the proxy is reported as such: otherwise the origin server would appear to be at fault. A
        // violation of the egress policy is not the proxy's.
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

    /// Ensures that each busy connection has a spare one in the pool for the next transfer. With HTTP/1.1, a response
    /// cannot be cancelled without closing the connection. With HTTP/2 it can, but the data that the server has
    /// already passed to its kernel arrives first: half a second on a 3 Mbit/s link.
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

    /// Polls one connection. At most `limit(link)` body bytes are passed to the sink.
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
                // REFUSED_STREAM: after several in a row, the server is used over HTTP/1.1. A served
                // stream resets the count.
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
                        // The cached addresses may be the cause, so the next attempt resolves the name again.
                        self.dns_cache.remove(&name);
                        self.conns.remove(&id);
                        SocketEvent::Failed(dial_error)
                    }
                })
            }
        }
    }

    /// Sends a request on an open connection. False: the connection is not open.
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

    /// Lets the body of a response flow.
    pub(super) fn accept(&mut self, req: ReqId, len: Option<DataSize>) {
        if let Some(connection) = self.conn_of(req) {
            connection.accept(req, len);
        }
    }

    /// Cancels a request and discards the rest of its response.
    pub(super) fn cancel(&mut self, req: ReqId) {
        if let Some(connection) = self.conn_of(req) {
            connection.cancel(req);
        }
        let conn = self.requests.remove(&req);
        if let Some(entry) = conn.and_then(|conn| self.conns.get_mut(&conn))
            && let ConnState::Open(connection) = &entry.state
        {
            // With HTTP/1.1 the unread response blocks the connection, so it cannot carry another request.
            entry.is_closed |= connection.protocol() == Protocol::Http1;
        }
    }

    /// Removes a completed request.
    pub(super) fn on_request_done(&mut self, req: ReqId) {
        self.requests.remove(&req);
    }

    /// Drops a connection and returns its incomplete requests.
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

    /// Returns a connection without pending requests to the pool, if there is one.
    fn return_to_pool(&self, entry: ConnEntry) {
        if let (Some(idle_pool), ConnState::Open(connection), false) =
            (&self.idle_pool, entry.state, entry.is_closed)
        {
            idle_pool.insert(PoolKey::for_url(&entry.url, entry.interface.as_ref()), *connection);
        }
    }

    /// Closes the idle connections of an interface whose link becomes standby.
    pub(super) fn on_standby(&self, interface: &Interface) {
        if let Some(idle_pool) = &self.idle_pool {
            idle_pool.on_standby(&interface.name);
        }
    }

    /// Clears resolved names: after a link change they may resolve to other addresses.
    pub(super) fn clear_dns(&mut self) {
        self.dns_cache.clear();
        self.resolver.clear_cache();
    }

    /// The IDs of all connections, in ascending order.
    pub(super) fn ids(&self) -> Vec<ConnId> {
        self.conns.keys().copied().collect()
    }

    /// What a link without an open connection is waiting for; none: it has one, or none is being opened.
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

    /// Address of an open connection's server; none: the connection leads to a proxy, and only the proxy knows the
    /// address.
    pub(super) fn server_addr(&self, conn: ConnId) -> Option<IpAddr> {
        let entry = self.conns.get(&conn).filter(|entry| entry.proxy.is_none())?;
        match &entry.state {
            ConnState::Open(connection) => Some(connection.peer_addr().ip()),
            ConnState::Dialing(..) => None,
        }
    }

    /// The URLs that have connections.
    pub(super) fn url_ids(&self) -> BTreeSet<UrlId> {
        self.conns.values().map(|entry| entry.url_id).collect()
    }

    /// The link and URL of a connection.
    pub(super) fn link_and_url(&self, conn: ConnId) -> Option<(LinkId, UrlId)> {
        self.conns.get(&conn).map(|entry| (entry.link, entry.url_id))
    }

    /// The incomplete requests of a connection.
    pub(super) fn open_requests(&self, conn: ConnId) -> impl Iterator<Item = ReqId> {
        self.requests.iter().filter(move |(_, conn_id)| **conn_id == conn).map(|(req, _)| *req)
    }

    /// The source of a connection's addresses, such as a name server.
    pub(super) fn dns_source(&self, conn: ConnId) -> Option<String> {
        let entry = self.conns.get(&conn)?;
        self.dns_cache.get(&(entry.link, entry.dns_name.clone())).map(|resolution| resolution.source.to_string())
    }

    /// Path statistics (TCP_INFO) of connections with incomplete requests.
    pub(super) fn path_samples(&self) -> Vec<(ConnId, LinkId, PathSample)> {
        let has_request = |id: &ConnId| self.requests.values().any(|conn| conn == id);
        let open = self.conns.iter().filter_map(|(id, entry)| match &entry.state {
            ConnState::Open(connection) if has_request(id) => Some((*id, entry.link, connection.path_sample())),
            _ => None,
        });
        open.collect()
    }

    /// Whether a connection that requested MPTCP has fallen back to TCP.
    pub(super) fn has_fallen_back(&self) -> bool {
        let has_fallen_back = |entry: &ConnEntry| matches!(&entry.state, ConnState::Open(c) if c.mptcp_status() == MptcpStatus::FellBack);
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
    /// Returns idle connections to the pool for the next transfer. Busy ones are closed, so that their remaining data
    /// does not delay the next transfer.
    fn drop(&mut self) {
        for (id, entry) in std::mem::take(&mut self.conns) {
            if self.requests.values().all(|conn_id| *conn_id != id) {
                self.return_to_pool(entry);
            }
        }
    }
}

/// Size of the buffer that all reads share. Our choice: larger ones save no system calls below 10 Gbit/s.
const READ_BUFFER_LEN: usize = 256 * 1024;
/// In this time, Linux sends four SYNs (at 0, 1, 3 and 7 s; RFC 6298 back-off).
const DIAL_TIMEOUT: Duration = Duration::from_secs(15);
