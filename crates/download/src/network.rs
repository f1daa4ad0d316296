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
use marline_net::http::{Connection, Dial, Trust, TrustError, Windows, host_of, is_here};
use marline_net::links::{Interface, LinksError, is_beside_links};
use marline_net::reach::Right;
use tokio::net::TcpStream;
use url::Url;

use super::Links;
use super::links::Uplinks;
use super::sockets::Sockets;
use super::traffic::Traffic;
use super::warm::{Warm, Way};

/// The links, names, trust and idle connections that all transfers of a program share.
pub struct Network {
    choice: Links,
    uplinks: RefCell<Uplinks>,
    pub(super) resolver: Rc<Resolver>,
    trust: RefCell<Trust>,
    pub(super) warm: Warm,
    /// What went over the links.
    pub traffic: Rc<Traffic>,
    /// How soon a link answers while it is busy, and when that was seen.
    busy: RefCell<BTreeMap<String, (std::time::Instant, Duration)>>,
}

/// One link as it is now.
#[derive(Clone, Debug)]
pub struct Line {
    pub profile: LinkProfile,
    /// None: this machine itself.
    pub interface: Option<Interface>,
    pub up: bool,
}

impl Network {
    /// Finds the links, and the lines that the user should read.
    ///
    /// # Errors
    /// When the kernel does not list its interfaces, or the file of authorities cannot be read.
    pub fn new(choice: Links, ca_file: Option<&Path>) -> Result<(Self, Vec<String>), NetworkError> {
        let (uplinks, lines) = match Uplinks::find(choice.clone()) {
            Ok(found) => found,
            Err(why @ LinksError::NoLink { .. }) => (Uplinks::awaited(choice.clone()), vec![why.to_string()]),
            Err(why) => return Err(why.into()),
        };
        let mut trust = Trust::new(ca_file);
        // A file that was named is looked at, whether or not it will be needed.
        if ca_file.is_some() {
            trust.config()?;
        }
        let network = Self {
            choice,
            uplinks: RefCell::new(uplinks),
            resolver: Rc::new(Resolver::new()),
            trust: RefCell::new(trust),
            warm: Warm::default(),
            traffic: Rc::default(),
            busy: RefCell::default(),
        };
        Ok((network, lines))
    }

    /// Of links that are known already.
    pub(super) fn of(choice: Links, uplinks: Uplinks, trust: Trust) -> Self {
        Self {
            choice,
            uplinks: RefCell::new(uplinks),
            resolver: Rc::new(Resolver::new()),
            trust: RefCell::new(trust),
            warm: Warm::default(),
            traffic: Rc::default(),
            busy: RefCell::default(),
        }
    }

    /// Connections for a transfer, which share names and idle connections with the others.
    pub(super) fn sockets(&self, trust: Trust) -> Sockets {
        Sockets::sharing(trust, Rc::clone(&self.resolver), Some((self.warm.clone(), Rc::clone(&self.traffic))))
    }

    /// Follows the links and looks after idle connections, for ever.
    pub async fn run(&self) {
        let follow = async {
            loop {
                let changes = poll_fn(|cx| self.uplinks.borrow_mut().poll_changes(cx)).await;
                if !(changes.gone.is_empty() && changes.come.is_empty()) {
                    self.resolver.forget_networks();
                    self.warm.clear();
                }
            }
        };
        tokio::join!(follow, self.warm.clone().run());
    }

    /// All links, by number.
    pub fn lines(&self) -> Vec<Line> {
        let uplinks = self.uplinks.borrow();
        let line = |id| {
            let profile = uplinks.profile(id)?.clone();
            Some(Line { profile, interface: uplinks.interface(id).cloned(), up: uplinks.is_up(id) })
        };
        uplinks.ids().filter_map(line).collect()
    }

    /// The links for a transfer: those of the program, or this machine itself.
    pub(super) fn links_for(&self, is_local: bool) -> Result<Uplinks, LinksError> {
        if is_local {
            return Uplinks::local(self.choice.clone()).map(|(uplinks, _)| uplinks);
        }
        Ok(self.uplinks.borrow().again())
    }

    /// Whether no link leads to a host: it is this machine, or an address in a network beside the links.
    pub fn needs_no_link(&self, host: &str) -> bool {
        let is_beside = |address: IpAddr| {
            let lines = self.lines();
            let mut interfaces = lines.iter().filter_map(|line| line.interface.as_ref());
            !interfaces.any(|interface| interface.is_neighbour(address)) && is_beside_links(address)
        };
        is_here(host) || host.parse().is_ok_and(is_beside)
    }

    /// Whom to trust; the system's roots are read when the first `https` URL appears.
    pub(super) fn trust_for(&self, url: &Url) -> Trust {
        let mut trust = self.trust.borrow_mut();
        if url.scheme() == "https" {
            // Whoever dials hears of a failure.
            let _ = trust.config();
        }
        trust.clone()
    }

    /// A connection of a link is busy, and its round trip takes so long, its queue included.
    pub(super) fn is_busy(&self, link: &str, round_trip: Duration) {
        if !round_trip.is_zero() {
            self.busy.borrow_mut().insert(link.to_owned(), (std::time::Instant::now(), round_trip));
        }
    }

    /// How soon a link answers, if it was busy lately.
    pub(super) fn answers_in(&self, link: &str) -> Option<Duration> {
        let busy = self.busy.borrow();
        busy.get(link).filter(|(at, _)| at.elapsed() < LATELY).map(|(_, round_trip)| *round_trip)
    }

    /// How many connections stand idle.
    pub fn idle(&self) -> usize {
        self.warm.len()
    }

    /// A connection to the URL's host over an interface (none: unbound), from the idle ones or a new one.
    ///
    /// # Errors
    /// The name has no address there, or none that this right reaches; or nobody answers.
    pub async fn dial(
        &self,
        url: &Url,
        interface: Option<&Interface>,
        right: Right,
    ) -> Result<Connection, ConnError> {
        if let Some(connection) = self.warm.take(&Way::to(url, interface), right) {
            return Ok(connection);
        }
        self.dial_anew(url, interface, right).await
    }

    /// A new connection.
    ///
    /// # Errors
    /// As [`Network::dial`].
    pub async fn dial_anew(
        &self,
        url: &Url,
        interface: Option<&Interface>,
        right: Right,
    ) -> Result<Connection, ConnError> {
        let host = host_of(url);
        let port = url.port_or_known_default().unwrap_or(80);
        right.check_host(&host, port)?;
        let tls = (url.scheme() == "https").then(|| self.trust.borrow_mut().config_for(&host, port)).transpose();
        let tls = tls.map_err(|why| ConnError { kind: ConnErrorKind::Tls, text: why.to_string() })?;
        let answer =
            self.resolver.resolve_with(&right, &host, interface, NAME_TIMEOUT).await.map_err(ConnError::from)?;
        let dial = Dial {
            device: interface.map(|interface| interface.name.clone()),
            mptcp: false,
            addresses: answer.addresses.iter().map(|ip| (*ip, port).into()).collect(),
            server_name: host,
            tls,
            timeout: DIAL_TIMEOUT,
            windows: Windows::default(),
            right,
            tunnel: None,
            sent: interface.map(|interface| self.traffic.sent(&interface.name)),
        };
        Connection::dial(dial).await
    }

    /// The URL's host wants HTTP/1.1.
    pub fn leave_http2(&self, url: &Url, interface: Option<&Interface>) {
        self.trust.borrow().leave_http2(&host_of(url), url.port_or_known_default().unwrap_or(443));
        self.warm.forget(&Way::to(url, interface));
    }

    /// Keeps a connection on which nothing is awaited.
    pub fn keep(&self, url: &Url, interface: Option<&Interface>, connection: Connection) {
        self.warm.keep(Way::to(url, interface), connection);
    }

    /// A plain TCP connection to a host over an interface, and how long its handshake took.
    ///
    /// # Errors
    /// As [`Network::dial`].
    pub async fn connect(
        &self,
        host: &str,
        port: u16,
        interface: Option<&Interface>,
        right: Right,
    ) -> Result<(TcpStream, Duration), ConnError> {
        right.check_host(host, port)?;
        let answer =
            self.resolver.resolve_with(&right, host, interface, NAME_TIMEOUT).await.map_err(ConnError::from)?;
        let dial = Dial {
            device: interface.map(|interface| interface.name.clone()),
            mptcp: false,
            addresses: answer.addresses.iter().map(|ip| (*ip, port).into()).collect(),
            server_name: host.to_owned(),
            tls: None,
            timeout: DIAL_TIMEOUT,
            windows: Windows::default(),
            right,
            tunnel: None,
            sent: None,
        };
        dial.tcp().await
    }
}

/// Why there is nothing to start with.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// The kernel does not say which links there are.
    #[error(transparent)]
    Links(#[from] LinksError),
    /// The authorities cannot be read.
    #[error(transparent)]
    Trust(#[from] TrustError),
}

const NAME_TIMEOUT: Duration = Duration::from_secs(5);
/// chosen: how long an idle connection is kept.
const LATELY: Duration = Duration::from_secs(60);
/// Linux sends three SYNs in this time (RFC 6298 back-off: at 0, 1 and 3 s); another link may do better.
const DIAL_TIMEOUT: Duration = Duration::from_secs(6);
