//! Carries one flow: opens its upstream connection and copies bytes in both directions until the end.
//!
//! 1. If a relay's rules refuse a target, the flow is refused: a direct connection would only bypass the rule. Private networks that this
//!    host reaches by itself are an exception (`private_networks`).
//! 2. A direct connection is only used if no relay is available at all.
//! 3. If one side breaks, or the edge itself ends the flow, the other side is reset.
//!
//! A direct flow is not spliced, although both sides are plain TCP. The shaper must grant each piece before it is sent, and samples what a
//! live client has sent that is not read yet. In a kernel pipe, bytes would have left one socket without having reached the other.

use std::os::fd::AsFd as _;
use std::sync::Arc;

use marline_net::egress::{AddressZone, EgressPolicy};
use marline_net::links::is_rejected_by_route;
use tokio::net::TcpStream;

use super::Edge;
use super::direct;
use super::private_networks::{self, PrivateAccess};
use super::relay_pool::{Tunnel, TunnelError};
use super::short_queue::ShortQueuePacer;
use super::traffic_meter::{MeteredPacer, TrafficMeter};
use crate::tunnel::{Problem, Status, Target, close, copy_bidirectional};

/// The upstream connection of a flow.
pub(super) enum Upstream {
    /// A tunnel through a relay.
    Relay(Box<Tunnel>),
    /// A direct connection to the origin server.
    Direct(TcpStream),
}

impl Upstream {
    /// Whether the server is on the Internet, as far as known: a server behind a relay may be anywhere.
    fn is_internet(&self) -> bool {
        match self {
            Self::Relay(_) => true,
            Self::Direct(socket) => {
                socket.peer_addr().is_ok_and(|peer| AddressZone::of(peer.ip()) == AddressZone::Internet)
            }
        }
    }
}

/// Opens an upstream connection for a client with this right, which may reach private networks as `access` allows.
pub(super) async fn open(
    edge: &Edge,
    target: &Target,
    right: EgressPolicy,
    access: PrivateAccess,
) -> Result<Upstream, Problem> {
    let private_address = private_networks::private_address(target);
    if let Some(address) = private_address.filter(|address| is_rejected_by_route(address.ip())) {
        let details =
            format!("the routing table of this host refuses {} (unreachable, prohibit or blackhole)", address.ip());
        edge.state.send_modify(|state| state.failed += 1);
        return Err(Problem::new(Status::Forbidden, "destination_ip_prohibited", details));
    }
    let private_address = private_address.filter(|_| access != PrivateAccess::Denied);
    let routed_address = private_address.filter(|address| private_networks::has_specific_route(*address));
    let domains = &edge.config.local_domains;
    let upstream = match (access, routed_address, private_address) {
        // A private address with a specific route: no relay is needed.
        (PrivateAccess::Full, Some(routed), _) => {
            private_networks::connect_directly(edge, routed).await.map(Upstream::Direct)
        }
        // A private address without a specific route: a relay first, then the UDP link.
        (_, None, Some(private)) => match connect_via_relay(edge, target, right).await {
            Ok(upstream) => Ok(upstream),
            // If that fails as well, the relay's error explains more.
            Err(refused) => {
                private_networks::connect_directly(edge, private).await.map(Upstream::Direct).map_err(|_| refused)
            }
        },
        // A public address or a name: a relay first. For a local name that the relay cannot resolve, the local DNS servers are queried.
        (PrivateAccess::Full, ..) => match connect_via_relay(edge, target, right).await {
            Ok(upstream) => {
                if upstream.is_internet() {
                    edge.public_names.note(target, domains);
                }
                Ok(upstream)
            }
            Err(refused)
                if private_networks::may_be_local_name(target, &refused, domains)
                    && !edge.public_names.may_have(target) =>
            {
                private_networks::connect_by_name(edge, target, right).await.map(Upstream::Direct).ok_or(refused)
            }
            Err(refused) => Err(refused),
        },
        // Everything else: other targets of redirected LAN connections, and clients without access to private networks.
        _ => connect_via_relay(edge, target, right).await,
    };
    if upstream.is_err() {
        edge.state.send_modify(|state| state.failed += 1);
    }
    upstream
}

async fn connect_via_relay(edge: &Edge, target: &Target, right: EgressPolicy) -> Result<Upstream, Problem> {
    edge.note_target(target);
    let tunnel_result = edge.relay_pool.open_tunnel(target).await;
    match tunnel_result {
        Ok(tunnel) => {
            edge.state.send_modify(|state| {
                *state.carried.entry(tunnel.entry.config.label.clone()).or_default() += 1;
                state.last_relay = Some(tunnel.entry.config.label.clone());
            });
            Ok(Upstream::Relay(Box::new(tunnel)))
        }
        Err(TunnelError::NoRelay(why)) if edge.config.allow_direct => {
            tracing::warn!(why, "no relay is available: flow connects directly, over one link");
            let connected =
                direct::connect_directly(target, right, &edge.lookup_permits, &edge.relay_pool.dialer).await;
            let connected = connected.inspect(|_| {
                edge.state.send_modify(|state| {
                    state.direct += 1;
                    state.last_relay = None;
                });
            });
            connected.map(Upstream::Direct)
        }
        Err(TunnelError::NoRelay(why)) => {
            edge.state.send_modify(|state| state.refused += 1);
            Err(Problem::new(
                Status::ServiceUnavailable,
                "proxy_internal_error",
                format!("no relay is available: {why}"),
            ))
        }
        Err(waiting @ TunnelError::Waiting) => {
            Err(Problem::new(Status::ServiceUnavailable, "proxy_internal_error", waiting.to_string()))
        }
        Err(TunnelError::Refused(answer)) => {
            let error = answer.error.unwrap_or("http_request_denied");
            Err(Problem::new(map_status(answer.status), error, answer.details))
        }
    }
}

/// The status for the client, from a relay's response.
fn map_status(status: u16) -> Status {
    match status {
        403 => Status::Forbidden,
        429 => Status::TooManyRequests,
        502 => Status::BadGateway,
        504 => Status::GatewayTimeout,
        _ => Status::ServiceUnavailable,
    }
}

/// Copies bytes until both directions have ended, or one has failed.
pub(super) async fn forward(
    edge: &Edge,
    upstream: Upstream,
    target: &Target,
    client: &mut TcpStream,
    from_client: Vec<u8>,
) {
    let _guard = OpenFlowGuard::new(edge);
    close::reset_on_close(client);
    let metered = |meter: &Arc<TrafficMeter>| MeteredPacer::new(Arc::clone(meter));
    let ended = match upstream {
        Upstream::Relay(tunnel) => {
            let Tunnel { mut conn, entry, early_data } = *tunnel;
            let socket = conn.get_ref().0.socket();
            let pacer = ShortQueuePacer::new(socket, metered(&entry.traffic_meter));
            let mut pacer = edge.shaper.shape(target, socket.as_fd(), client.as_fd(), pacer);
            let ended = copy_bidirectional(client, &mut conn, from_client, early_data, &mut pacer).await;
            // TLS requires a close notification, so this end is an error: data in the send queue is discarded.
            ended.inspect_err(|_| close::reset_on_close(conn.get_ref().0.socket()))
        }
        Upstream::Direct(mut server) => {
            // If this fails, small packets are delayed, nothing else.
            let _ = server.set_nodelay(true);
            close::reset_on_close(&server);
            let mut pacer = edge.shaper.shape(target, server.as_fd(), client.as_fd(), metered(&edge.direct_meter));
            let ended = copy_bidirectional(client, &mut server, from_client, Vec::new(), &mut pacer).await;
            ended.inspect(|()| close::close_gracefully(&server))
        }
    };
    match ended {
        Ok(()) => close::close_gracefully(client),
        Err(error) => tracing::debug!(%error, "flow ended with an error"),
    }
}

/// Counts a flow as open until it is dropped.
struct OpenFlowGuard<'a>(&'a Edge);

impl<'a> OpenFlowGuard<'a> {
    fn new(edge: &'a Edge) -> Self {
        edge.state.send_modify(|state| state.open += 1);
        Self(edge)
    }
}

impl Drop for OpenFlowGuard<'_> {
    fn drop(&mut self) {
        self.0.state.send_modify(|state| state.open -= 1);
    }
}
