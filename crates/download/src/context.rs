//! What all transfers of a program share: links, resolved names, TLS trust, and idle connections.
//!
//! A transfer gets its links from here. The proxy also opens single connections over one link.
//!
//! 1. Links are enumerated once and then followed through kernel notifications. A transfer starts with the known
//!    links, and needs no enumeration of its own.
//! 2. When links change, resolved names and idle connections are dropped, because both may belong to a network that
//!    the host has left.
//! 3. A long-running program starts without any link, too, and uses the first one that appears.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::net::IpAddr;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use marline_core::fetch::{ConnError, ConnErrorKind};
use marline_core::link::LinkProfile;
use marline_net::dns::Resolver;
use marline_net::egress::EgressPolicy;
use marline_net::http::{
    Connection, DialRequest, Http2Windows, TlsContext, TrustRootsError, is_loopback_host, resolver_host,
};
use marline_net::links::{Interface, LinksError, is_outside_links};
use tokio::net::TcpStream;
use url::Url;

use super::Links;
use super::connect_options::DNS_TIMEOUT;
use super::connections::ConnTable;
use super::idle_pool::{IdlePool, PoolKey};
use super::traffic::Traffic;
use super::uplinks::Uplinks;

/// State shared by all transfers of a program; see the module documentation.
pub struct ClientContext {
    selection: Links,
    uplinks: RefCell<Uplinks>,
    pub(super) resolver: Rc<Resolver>,
    trust: RefCell<TlsContext>,
    pub(super) idle_pool: IdlePool,
    /// Byte counters of all links.
    pub traffic: Rc<Traffic>,
    /// For each link, the last RTT under load, and when it was measured.
    loaded_rtts: RefCell<BTreeMap<String, (std::time::Instant, Duration)>>,
}

/// One link in its present state.
#[derive(Clone, Debug)]
pub struct UplinkStatus {
    pub profile: LinkProfile,
    /// None: this host itself.
    pub interface: Option<Interface>,
    pub is_up: bool,
}

impl ClientContext {
    /// Finds the links. Also returns the messages for the user.
    ///
    /// # Errors
    /// The kernel does not list its interfaces, or the file of certificate authorities cannot be read.
    pub fn new(selection: Links, ca_file: Option<&Path>) -> Result<(Self, Vec<String>), ClientContextError> {
        let (uplinks, lines) = match Uplinks::find(selection.clone()) {
            Ok(found) => found,
            Err(why @ LinksError::NoLink { .. }) => {
                (Uplinks::without_links(selection.clone()), vec![why.to_string()])
            }
            Err(why) => return Err(why.into()),
        };
        let mut trust = TlsContext::new(ca_file);
        // A CA file that the user names is read at once, even if it is never needed: an error should not appear
        // later.
        if ca_file.is_some() {
            trust.config()?;
        }
        Ok((Self::from_uplinks(selection, uplinks, trust), lines))
    }

    /// Creates a context from links that are already known.
    pub(super) fn from_uplinks(selection: Links, uplinks: Uplinks, trust: TlsContext) -> Self {
        Self {
            selection,
            uplinks: RefCell::new(uplinks),
            resolver: Rc::new(Resolver::new()),
            trust: RefCell::new(trust),
            idle_pool: IdlePool::default(),
            traffic: Rc::default(),
            loaded_rtts: RefCell::default(),
        }
    }

    /// A connection table for a transfer. It shares resolved names and idle connections with other transfers.
    pub(super) fn connections(&self, trust: TlsContext) -> ConnTable {
        ConnTable::with_shared(
            trust,
            Rc::clone(&self.resolver),
            Some((self.idle_pool.clone(), Rc::clone(&self.traffic))),
        )
    }

    /// Follows link changes and maintains the idle pool. Never returns.
    pub async fn run(&self) {
        let follow = async {
            loop {
                let changes = poll_fn(|cx| self.uplinks.borrow_mut().poll_changes(cx)).await;
                if !(changes.removed.is_empty() && changes.added.is_empty()) {
                    self.resolver.clear_all();
                    self.idle_pool.clear();
                }
            }
        };
        tokio::join!(follow, self.idle_pool.clone().run());
    }

    /// All links, in the order of their numbers.
    pub fn links(&self) -> Vec<UplinkStatus> {
        let uplinks = self.uplinks.borrow();
        let uplink_status = |id| {
            let profile = uplinks.profile(id)?.clone();
            Some(UplinkStatus { profile, interface: uplinks.interface(id).cloned(), is_up: uplinks.is_up(id) })
        };
        uplinks.ids().filter_map(uplink_status).collect()
    }

    /// The links for a transfer: those of the program, or only this host if `is_local`.
    pub(super) fn uplinks_for(&self, is_local: bool) -> Result<Uplinks, LinksError> {
        if is_local {
            return Uplinks::local(self.selection.clone()).map(|(uplinks, _)| uplinks);
        }
        Ok(self.uplinks.borrow().duplicate())
    }

    /// Whether a host is reached without any link: it is this host, or an address in a network outside the links.
    pub fn needs_no_link(&self, host: &str) -> bool {
        let is_outside = |address: IpAddr| {
            let links = self.links();
            let mut interfaces = links.iter().filter_map(|link| link.interface.as_ref());
            !interfaces.any(|interface| interface.is_on_subnet(address)) && is_outside_links(address)
        };
        is_loopback_host(host) || host.parse().is_ok_and(is_outside)
    }

    /// The TLS configuration for a URL. The system's root certificates are loaded for the first `https` URL.
    pub(super) fn trust_for(&self, url: &Url) -> TlsContext {
        let mut trust = self.trust.borrow_mut();
        if url.scheme() == "https" {
            // An error is ignored here: dialing reports it.
            let _ = trust.config();
        }
        trust.clone()
    }

    /// Records the RTT of a busy connection of a link, including its queueing delay.
    pub(super) fn record_loaded_rtt(&self, link: &str, rtt: Duration) {
        if !rtt.is_zero() {
            self.loaded_rtts.borrow_mut().insert(link.to_owned(), (std::time::Instant::now(), rtt));
        }
    }

    /// The last RTT of a link under load, if it is recent (at most [`LOADED_RTT_MAX_AGE`]).
    pub(super) fn loaded_rtt(&self, link: &str) -> Option<Duration> {
        let busy = self.loaded_rtts.borrow();
        busy.get(link).filter(|(at, _)| at.elapsed() < LOADED_RTT_MAX_AGE).map(|(_, rtt)| *rtt)
    }

    /// Number of idle connections in the pool.
    pub fn idle_conns(&self) -> usize {
        self.idle_pool.len()
    }

    /// Opens a connection to the URL's host over an interface (none: unbound), or takes it from the idle pool.
    ///
    /// # Errors
    /// The name has no address on this link or none that `egress` allows, or the server does not respond.
    pub async fn dial(
        &self,
        url: &Url,
        interface: Option<&Interface>,
        egress: EgressPolicy,
    ) -> Result<Connection, ConnError> {
        if let Some(connection) = self.idle_pool.reuse(&PoolKey::for_url(url, interface), egress) {
            return Ok(connection);
        }
        self.dial_new(url, interface, egress).await
    }

    /// Opens a new connection, without using the idle pool.
    ///
    /// # Errors
    /// As [`ClientContext::dial`].
    pub async fn dial_new(
        &self,
        url: &Url,
        interface: Option<&Interface>,
        egress: EgressPolicy,
    ) -> Result<Connection, ConnError> {
        let host = resolver_host(url);
        let port = url.port_or_known_default().unwrap_or(80);
        egress.check_host(&host, port)?;
        let tls = (url.scheme() == "https").then(|| self.trust.borrow_mut().config_for(&host, port)).transpose();
        let tls = tls.map_err(|why| ConnError { kind: ConnErrorKind::Tls, text: why.to_string() })?;
        let resolution =
            self.resolver.resolve_checked(&egress, &host, interface, DNS_TIMEOUT).await.map_err(ConnError::from)?;
        let dial = DialRequest {
            device: interface.map(|interface| interface.name.clone()),
            mptcp: false,
            addresses: resolution.addresses.iter().map(|ip| (*ip, port).into()).collect(),
            server_name: host,
            tls,
            timeout: DIAL_TIMEOUT,
            http2_windows: Http2Windows::default(),
            egress,
            tunnel: None,
            sent_bytes: interface.map(|interface| self.traffic.sent_counter(&interface.name)),
        };
        Connection::dial(dial).await
    }

    /// Records that the URL's host requires HTTP/1.1, and drops its idle HTTP/2 connections.
    pub fn use_http1_for(&self, url: &Url, interface: Option<&Interface>) {
        self.trust.borrow().use_http1_for(&resolver_host(url), url.port_or_known_default().unwrap_or(443));
        self.idle_pool.remove(&PoolKey::for_url(url, interface));
    }

    /// Adds a connection without pending requests to the idle pool.
    pub fn keep_idle(&self, url: &Url, interface: Option<&Interface>, connection: Connection) {
        self.idle_pool.insert(PoolKey::for_url(url, interface), connection);
    }

    /// Opens a plain TCP connection to a host over an interface. Also returns the duration of its handshake.
    ///
    /// # Errors
    /// As [`ClientContext::dial`].
    pub async fn connect_tcp(
        &self,
        host: &str,
        port: u16,
        interface: Option<&Interface>,
        egress: EgressPolicy,
    ) -> Result<(TcpStream, Duration), ConnError> {
        egress.check_host(host, port)?;
        let resolution =
            self.resolver.resolve_checked(&egress, host, interface, DNS_TIMEOUT).await.map_err(ConnError::from)?;
        let dial = DialRequest {
            device: interface.map(|interface| interface.name.clone()),
            mptcp: false,
            addresses: resolution.addresses.iter().map(|ip| (*ip, port).into()).collect(),
            server_name: host.to_owned(),
            tls: None,
            timeout: DIAL_TIMEOUT,
            http2_windows: Http2Windows::default(),
            egress,
            tunnel: None,
            sent_bytes: None,
        };
        dial.connect_tcp().await
    }
}

/// Why no context could be created.
#[derive(Debug, thiserror::Error)]
pub enum ClientContextError {
    /// The kernel does not list its interfaces.
    #[error(transparent)]
    Links(#[from] LinksError),
    /// The certificate authorities cannot be read.
    #[error(transparent)]
    Trust(#[from] TrustRootsError),
}

/// Our choice: as long as an idle connection is kept.
const LOADED_RTT_MAX_AGE: Duration = Duration::from_secs(60);
/// In this time, Linux sends three SYNs (at 0, 1 and 3 s; RFC 6298 back-off). After that, another link may do
/// better.
const DIAL_TIMEOUT: Duration = Duration::from_secs(6);
