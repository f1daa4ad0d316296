//! Liveness probes over one link: connection attempts to a server that show whether the link carries packets.
//!
//! The server is a relay. While no relay can be reached, it is the server that a direct flow has reached.
//!
//! One SYN is not enough: the kernel retransmits a lost SYN only after a second, and on a lossy link one SYN of fifty is lost. Therefore
//! several connection attempts start one after the other, until one succeeds ([`ProbeTiming`]).

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

/// Our choice: a cached name is resolved at once.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(1);

/// Limits of a probe: how many connection attempts it makes, the time between their starts, and its total time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProbeTiming {
    attempts: u32,
    attempt_interval: Duration,
    timeout: Duration,
}

impl ProbeTiming {
    /// For a link that is suspected to be down. Our choice: an answer that takes longer is useless for a call. With the kernel's
    /// retransmissions there are five SYNs.
    pub(super) const QUICK: Self =
        Self { attempts: 3, attempt_interval: Duration::from_millis(250), timeout: Duration::from_millis(1500) };
    /// For a link that may only be slow. Our choice: a full queue of a provider delays packets for this long. With the kernel's
    /// retransmissions there are five SYNs.
    pub(super) const SLOW: Self =
        Self { attempts: 3, attempt_interval: Duration::from_secs(1), timeout: Duration::from_secs(3) };
}

/// Result of a probe over a link, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ProbeOutcome {
    /// Nothing came back, or there is no route.
    NoResponse,
    /// The connection was refused, or another server answered instead of the relay.
    Refused,
    /// The server answered.
    Reached,
}

/// The server that probes connect to.
#[derive(Clone)]
pub(super) enum ProbeServer {
    Relay(Arc<RelayEntry>, Vec<SocketAddr>, Arc<ClientTrust>),
    /// A server of direct flows, for each link over which its answer is evidence.
    Direct(BTreeMap<String, SocketAddr>),
}

impl ProbeServer {
    /// The first relay that is not known to be unreachable; if there is none, the server of a direct flow.
    pub(super) async fn choose(edge: &Edge) -> Option<Self> {
        let relay = edge.relay_pool.relays.order().into_iter().find(|entry| entry.unreachable_reason().is_none());
        if let Some(entry) = relay {
            let addresses = timeout(LOOKUP_TIMEOUT, entry.addresses()).await.ok()?.ok()?;
            return Some(Self::Relay(entry, addresses, Arc::new(edge.relay_pool.trusted())));
        }
        // Over a link with a captive portal, an answer is no evidence: it may come from the portal.
        let probe_target = |link: String| Some((edge.relay_pool.dialer.direct_probe_target(&link)?, link));
        let servers = edge
            .relay_pool
            .dialer
            .link_names()
            .into_iter()
            .filter_map(probe_target)
            .map(|(server, link)| (link, server));
        Some(Self::Direct(servers.collect()))
            .filter(|server| !matches!(server, Self::Direct(all) if all.is_empty()))
    }

    /// Probes all these links at once and returns the best result; `includes_tls`: with a TLS handshake.
    pub(super) async fn probe_links(
        &self,
        links: &[String],
        includes_tls: bool,
        timing: ProbeTiming,
    ) -> ProbeOutcome {
        let mut tried = JoinSet::new();
        for link in links {
            let (server, link) = (self.clone(), link.clone());
            tried.spawn(async move { server.probe_link(&link, includes_tls, timing).await });
        }
        let mut best = ProbeOutcome::NoResponse;
        while best < ProbeOutcome::Reached
            && let Some(one) = tried.join_next().await
        {
            best = best.max(one.unwrap_or(ProbeOutcome::NoResponse));
        }
        best
    }

    /// Probes this link; `includes_tls`: with a TLS handshake.
    pub(super) async fn probe_link(&self, link: &str, includes_tls: bool, timing: ProbeTiming) -> ProbeOutcome {
        match self {
            Self::Direct(servers) => match servers.get(link) {
                Some(server) => connect_over(&[*server], link, timing)
                    .await
                    .map_or_else(|shown| shown, |_| ProbeOutcome::Reached),
                None => ProbeOutcome::NoResponse,
            },
            Self::Relay(entry, addresses, trusted) => match connect_over(addresses, link, timing).await {
                Err(shown) => shown,
                Ok(socket) if includes_tls => match tls_handshake(socket, entry, trusted).await {
                    Ok(_) => ProbeOutcome::Reached,
                    Err(_) => ProbeOutcome::Refused,
                },
                Ok(_) => ProbeOutcome::Reached,
            },
        }
    }
}

/// Returns the first of several connections over the link that succeeds; they go to the first two addresses in turn. A refusal ends all
/// attempts.
async fn connect_over(
    addresses: &[SocketAddr],
    link: &str,
    timing: ProbeTiming,
) -> Result<TcpStream, ProbeOutcome> {
    let ProbeTiming { attempts: tries, attempt_interval: apart, timeout: limit } = timing;
    let mut attempts = JoinSet::new();
    for (address, n) in addresses.iter().copied().take(2).cycle().zip(0..tries) {
        let by = DialOptions { device: Some(link.to_owned()), plain_tcp: true, ..DialOptions::default() };
        attempts.spawn(async move {
            sleep(apart * n).await;
            timeout(limit.saturating_sub(apart * n), connect(address, by)).await
        });
    }
    let mut shown = ProbeOutcome::NoResponse;
    while shown < ProbeOutcome::Refused
        && let Some(ended) = attempts.join_next().await
    {
        match ended {
            Ok(Ok(Ok(socket))) => return Ok(socket),
            Ok(Ok(Err(error))) if is_refusal(&error) => shown = ProbeOutcome::Refused,
            _ => {}
        }
    }
    Err(shown)
}

fn is_refusal(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset)
}
