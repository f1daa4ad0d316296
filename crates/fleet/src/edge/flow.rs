//! One flow: a way to its server, and its bytes.
//!
//! In: a target. Out: a tunnel of a relay, or a connection of our own; carried to its end.
//!
//! 1. What a relay's rules refuse is refused: going there directly would only hide the rule. Private networks that this box reaches by
//!    itself are another matter (`nearby`).
//! 2. Direct is for when no relay can be had at all.
//! 3. What breaks on one side, or with the edge itself, is reset on the other.
//!
//! A direct flow is not spliced, though both its sides are plain TCP: a lane has to grant each piece before it goes, and looks at
//! what a live program has sent and nobody has read yet. In a pipe of the kernel's bytes have left the one and come to no other.

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

/// A way to a server.
pub(super) enum Upstream {
    /// Through a relay.
    Relay(Box<Tunnel>),
    /// Without one.
    Direct(TcpStream),
}

impl Upstream {
    /// As far as is known: where a relay has reached the server, it may be anywhere.
    fn leads_to_the_internet(&self) -> bool {
        match self {
            Self::Relay(_) => true,
            Self::Direct(socket) => {
                socket.peer_addr().is_ok_and(|peer| AddressZone::of(peer.ip()) == AddressZone::Internet)
            }
        }
    }
}

/// Opens a way for a client with this right, which reaches private networks as `passes` says.
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
        (PrivateAccess::Full, Some(near), _) => {
            private_networks::connect_directly(edge, near).await.map(Upstream::Direct)
        }
        (_, None, Some(private)) => match connect_via_relay(edge, target, right).await {
            Ok(way) => Ok(way),
            // Where that leads nowhere, what the relay has answered tells more.
            Err(refused) => {
                private_networks::connect_directly(edge, private).await.map(Upstream::Direct).map_err(|_| refused)
            }
        },
        (PrivateAccess::Full, ..) => match connect_via_relay(edge, target, right).await {
            Ok(way) => {
                if way.leads_to_the_internet() {
                    edge.public_names.note(target, domains);
                }
                Ok(way)
            }
            Err(refused)
                if private_networks::may_be_named(target, &refused, domains) && !edge.public_names.has(target) =>
            {
                private_networks::reach_named(edge, target, right).await.map(Upstream::Direct).ok_or(refused)
            }
            Err(refused) => Err(refused),
        },
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
            tracing::warn!(why, "directly, over one link");
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
                format!("no relay can be had: {why}"),
            ))
        }
        Err(waiting @ TunnelError::Waiting) => {
            Err(Problem::new(Status::ServiceUnavailable, "proxy_internal_error", waiting.to_string()))
        }
        Err(TunnelError::Refused(answer)) => {
            let error = answer.error.unwrap_or("http_request_denied");
            Err(Problem::new(map_status(answer.status), error, answer.words))
        }
    }
}

/// A relay's answer as ours.
fn map_status(status: u16) -> Status {
    match status {
        403 => Status::Forbidden,
        429 => Status::TooManyRequests,
        502 => Status::BadGateway,
        504 => Status::GatewayTimeout,
        _ => Status::ServiceUnavailable,
    }
}

/// Carries a flow to its end.
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
            let Tunnel { conn: mut road, entry, early_data } = *tunnel;
            let socket = road.get_ref().0.socket();
            let pacer = ShortQueuePacer::new(socket, metered(&entry.traffic_meter));
            let mut pacer = edge.shaper.shape(target, socket.as_fd(), client.as_fd(), pacer);
            let ended = copy_bidirectional(client, &mut road, from_client, early_data, &mut pacer).await;
            // An end that TLS has not announced is none: what waits in the queue goes with it.
            ended.inspect_err(|_| close::reset_on_close(road.get_ref().0.socket()))
        }
        Upstream::Direct(mut server) => {
            // What cannot be set changes the pace of small packets, nothing else.
            let _ = server.set_nodelay(true);
            close::reset_on_close(&server);
            let mut pacer = edge.shaper.shape(target, server.as_fd(), client.as_fd(), metered(&edge.direct_meter));
            let ended = copy_bidirectional(client, &mut server, from_client, Vec::new(), &mut pacer).await;
            ended.inspect(|()| close::close_gracefully(&server))
        }
    };
    match ended {
        Ok(()) => close::close_gracefully(client),
        Err(error) => tracing::debug!(%error, "broke"),
    }
}

/// Counts a flow as open, however it ends.
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
