//! Attempts to reach a server over one link, which show whether the link carries.
//!
//! The server is a relay; while no relay can be reached, it is the server to which a flow has gone directly.
//!
//! One SYN is not enough: the kernel sends a lost one again after a second only, and on a lossy link one of fifty is lost. So several
//! connections begin one after the other until one stands ([`Patience`]).

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::Edge;
use super::dial::{DialOptions, connect, tls_handshake};
use super::relay_list::RelayEntry;
use super::trust::ClientTrust;

/// chosen: a name that is known is found at once.
const LOOK_UP: Duration = Duration::from_secs(1);

/// How long an attempt lasts, and how many connections begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Patience {
    tries: u32,
    apart: Duration,
    limit: Duration,
}

impl Patience {
    /// chosen: a SYN that is answered later is as good as lost for a call. With the kernel's repetitions there are five SYNs.
    pub(super) const QUICK: Self =
        Self { tries: 3, apart: Duration::from_millis(250), limit: Duration::from_millis(1500) };
    /// chosen: a full queue of a provider delays for so long. With the kernel's repetitions there are five SYNs.
    pub(super) const SLOW: Self = Self { tries: 3, apart: Duration::from_secs(1), limit: Duration::from_secs(3) };
}

/// What an attempt over a link shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Shown {
    /// No answer, or no route.
    Nothing,
    /// A refusal, or another server in place of the relay.
    Refused,
    /// The server answers.
    Reached,
}

/// The server to which the attempts go.
#[derive(Clone)]
pub(super) enum Server {
    Relay(Arc<RelayEntry>, Vec<SocketAddr>, Arc<ClientTrust>),
    /// Of direct flows: with the links over which it counts.
    Direct(BTreeMap<String, SocketAddr>),
}

impl Server {
    /// The first relay that is not known to be unreachable; else the server of a direct flow.
    pub(super) async fn of(edge: &Edge) -> Option<Self> {
        let relay =
            edge.relay_pool.relays.order().into_iter().find(|station| station.unreachable_reason().is_none());
        if let Some(station) = relay {
            let addresses = timeout(LOOK_UP, station.addresses()).await.ok()?.ok()?;
            return Some(Self::Relay(station, addresses, Arc::new(edge.relay_pool.trusted())));
        }
        // Over a link with a captive portal, which answers in the server's place, nothing counts.
        let of = |link: String| Some((edge.relay_pool.dialer.direct_probe_target(&link)?, link));
        let servers =
            edge.relay_pool.dialer.link_names().into_iter().filter_map(of).map(|(server, link)| (link, server));
        Some(Self::Direct(servers.collect()))
            .filter(|server| !matches!(server, Self::Direct(all) if all.is_empty()))
    }

    /// The best that these links show; `whole`: with TLS.
    pub(super) async fn over(&self, links: &[String], whole: bool, patience: Patience) -> Shown {
        let mut tried = JoinSet::new();
        for link in links {
            let (server, link) = (self.clone(), link.clone());
            tried.spawn(async move { server.over_one(&link, whole, patience).await });
        }
        let mut best = Shown::Nothing;
        while best < Shown::Reached
            && let Some(one) = tried.join_next().await
        {
            best = best.max(one.unwrap_or(Shown::Nothing));
        }
        best
    }

    /// What this link shows.
    pub(super) async fn over_one(&self, link: &str, whole: bool, patience: Patience) -> Shown {
        match self {
            Self::Direct(servers) => match servers.get(link) {
                Some(server) => {
                    first(&[*server], link, patience).await.map_or_else(|shown| shown, |_| Shown::Reached)
                }
                None => Shown::Nothing,
            },
            Self::Relay(station, addresses, trusted) => match first(addresses, link, patience).await {
                Err(shown) => shown,
                Ok(socket) if whole => match tls_handshake(socket, station, trusted).await {
                    Ok(_) => Shown::Reached,
                    Err(_) => Shown::Refused,
                },
                Ok(_) => Shown::Reached,
            },
        }
    }
}

/// The first of several connections over the link that stands, to the first two addresses in turn; otherwise what they have shown.
async fn first(addresses: &[SocketAddr], link: &str, patience: Patience) -> Result<TcpStream, Shown> {
    let Patience { tries, apart, limit } = patience;
    let mut attempts = JoinSet::new();
    for (address, n) in addresses.iter().copied().take(2).cycle().zip(0..tries) {
        let by = DialOptions { device: Some(link.to_owned()), plain_tcp: true, ..DialOptions::default() };
        attempts.spawn(async move {
            sleep(apart * n).await;
            timeout(limit.saturating_sub(apart * n), connect(address, by)).await
        });
    }
    let mut shown = Shown::Nothing;
    while shown < Shown::Refused
        && let Some(ended) = attempts.join_next().await
    {
        match ended {
            Ok(Ok(Ok(socket))) => return Ok(socket),
            Ok(Ok(Err(error))) if is_refusal(&error) => shown = Shown::Refused,
            _ => {}
        }
    }
    Err(shown)
}

fn is_refusal(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset)
}
