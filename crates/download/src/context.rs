//! What all transfers of a program share: its links, the names that they have resolved, whom it trusts, and the
//! connections that stand idle.
//!
//! In: which links the user wants; what the kernel tells of them. Out: the links for the next transfer, and single
//! connections over one of them.
//!
//! 1. Links are surveyed once and followed; a transfer starts with what is known and costs no survey of its own.
//! 2. When links change, names and idle connections are forgotten: both may be of a network that is left.
//! 3. A program that runs for long starts without a link, too, and uses the first that comes.

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
use super::connections::ConnTable;
use super::idle_pool::{IdlePool, PoolKey};
use super::traffic::Traffic;
use super::uplinks::Uplinks;

/// The links, names, trust and idle connections that all transfers of a program share.
pub struct ClientContext {
    selection: Links,
    uplinks: RefCell<Uplinks>,
    pub(super) resolver: Rc<Resolver>,
    trust: RefCell<TlsContext>,
    pub(super) idle_pool: IdlePool,
    /// What went over the links.
    pub traffic: Rc<Traffic>,
    /// How soon a link answers while it is busy, and when that was seen.
    loaded_rtts: RefCell<BTreeMap<String, (std::time::Instant, Duration)>>,
}

/// One link as it is now.
#[derive(Clone, Debug)]
pub struct UplinkStatus {
    pub profile: LinkProfile,
    /// None: this machine itself.
    pub interface: Option<Interface>,
    pub is_up: bool,
}

impl ClientContext {
    /// Finds the links, and the lines that the user should read.
    ///
    /// # Errors
    /// When the kernel does not list its interfaces, or the file of authorities cannot be read.
    pub fn new(selection: Links, ca_file: Option<&Path>) -> Result<(Self, Vec<String>), ClientContextError> {
        let (uplinks, lines) = match Uplinks::find(selection.clone()) {
            Ok(found) => found,
            Err(why @ LinksError::NoLink { .. }) => {
                (Uplinks::without_links(selection.clone()), vec![why.to_string()])
            }
            Err(why) => return Err(why.into()),
        };
        let mut trust = TlsContext::new(ca_file);
        // A file that was named is looked at, whether or not it will be needed.
        if ca_file.is_some() {
            trust.config()?;
        }
        let context = Self {
            selection,
            uplinks: RefCell::new(uplinks),
            resolver: Rc::new(Resolver::new()),
            trust: RefCell::new(trust),
            idle_pool: IdlePool::default(),
            traffic: Rc::default(),
            loaded_rtts: RefCell::default(),
        };
        Ok((context, lines))
    }

    /// Of links that are known already.
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

    /// Connections for a transfer, which share names and idle connections with the others.
    pub(super) fn connections(&self, trust: TlsContext) -> ConnTable {
        ConnTable::with_shared(
            trust,
            Rc::clone(&self.resolver),
            Some((self.idle_pool.clone(), Rc::clone(&self.traffic))),
        )
    }

    /// Follows the links and looks after idle connections, for ever.
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

    /// All links, by number.
    pub fn links(&self) -> Vec<UplinkStatus> {
        let uplinks = self.uplinks.borrow();
        let uplink_status = |id| {
            let profile = uplinks.profile(id)?.clone();
            Some(UplinkStatus { profile, interface: uplinks.interface(id).cloned(), is_up: uplinks.is_up(id) })
        };
        uplinks.ids().filter_map(uplink_status).collect()
    }

    /// The links for a transfer: those of the program, or this machine itself.
    pub(super) fn uplinks_for(&self, is_local: bool) -> Result<Uplinks, LinksError> {
        if is_local {
            return Uplinks::local(self.selection.clone()).map(|(uplinks, _)| uplinks);
        }
        Ok(self.uplinks.borrow().duplicate())
    }

    /// Whether no link leads to a host: it is this machine, or an address in a network beside the links.
    pub fn needs_no_link(&self, host: &str) -> bool {
        let is_beside = |address: IpAddr| {
            let links = self.links();
            let mut interfaces = links.iter().filter_map(|link| link.interface.as_ref());
            !interfaces.any(|interface| interface.is_on_subnet(address)) && is_outside_links(address)
        };
        is_loopback_host(host) || host.parse().is_ok_and(is_beside)
    }

    /// Whom to trust; the system's roots are read when the first `https` URL appears.
    pub(super) fn trust_for(&self, url: &Url) -> TlsContext {
        let mut trust = self.trust.borrow_mut();
        if url.scheme() == "https" {
            // Whoever dials hears of a failure.
            let _ = trust.config();
        }
        trust.clone()
    }

    /// A connection of a link is busy, and its round trip takes so long, its queue included.
    pub(super) fn record_loaded_rtt(&self, link: &str, round_trip: Duration) {
        if !round_trip.is_zero() {
            self.loaded_rtts.borrow_mut().insert(link.to_owned(), (std::time::Instant::now(), round_trip));
        }
    }

    /// How soon a link answers, if it was busy lately.
    pub(super) fn loaded_rtt(&self, link: &str) -> Option<Duration> {
        let busy = self.loaded_rtts.borrow();
        busy.get(link).filter(|(at, _)| at.elapsed() < LOADED_RTT_MAX_AGE).map(|(_, round_trip)| *round_trip)
    }

    /// How many connections stand idle.
    pub fn idle_conns(&self) -> usize {
        self.idle_pool.len()
    }

    /// A connection to the URL's host over an interface (none: unbound), from the idle ones or a new one.
    ///
    /// # Errors
    /// The name has no address there, or none that this right reaches; or nobody answers.
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

    /// A new connection.
    ///
    /// # Errors
    /// As [`Network::dial`].
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

    /// The URL's host wants HTTP/1.1.
    pub fn use_http1_for(&self, url: &Url, interface: Option<&Interface>) {
        self.trust.borrow().use_http1_for(&resolver_host(url), url.port_or_known_default().unwrap_or(443));
        self.idle_pool.remove(&PoolKey::for_url(url, interface));
    }

    /// Keeps a connection on which nothing is awaited.
    pub fn keep_idle(&self, url: &Url, interface: Option<&Interface>, connection: Connection) {
        self.idle_pool.insert(PoolKey::for_url(url, interface), connection);
    }

    /// A plain TCP connection to a host over an interface, and how long its handshake took.
    ///
    /// # Errors
    /// As [`Network::dial`].
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

/// Why there is nothing to start with.
#[derive(Debug, thiserror::Error)]
pub enum ClientContextError {
    /// The kernel does not say which links there are.
    #[error(transparent)]
    Links(#[from] LinksError),
    /// The authorities cannot be read.
    #[error(transparent)]
    Trust(#[from] TrustRootsError),
}

const DNS_TIMEOUT: Duration = Duration::from_secs(5);
/// chosen: how long an idle connection is kept.
const LOADED_RTT_MAX_AGE: Duration = Duration::from_secs(60);
/// Linux sends three SYNs in this time (RFC 6298 back-off: at 0, 1 and 3 s); another link may do better.
const DIAL_TIMEOUT: Duration = Duration::from_secs(6);
