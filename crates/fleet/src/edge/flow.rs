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

use marline_net::links::is_refused;
use marline_net::reach::{Right, Zone};
use tokio::net::TcpStream;

use super::Edge;
use super::direct;
use super::meter::{Counted, Meter};
use super::nearby::{self, Passes};
use super::queue::Short;
use super::road::{RoadError, Tunnel};
use crate::tunnel::{Problem, Status, Target, carry, end};

/// A way to a server.
pub(super) enum Way {
    /// Through a relay.
    Relay(Box<Tunnel>),
    /// Without one.
    Direct(TcpStream),
}

impl Way {
    /// As far as is known: where a relay has reached the server, it may be anywhere.
    fn leads_to_the_internet(&self) -> bool {
        match self {
            Self::Relay(_) => true,
            Self::Direct(socket) => socket.peer_addr().is_ok_and(|peer| Zone::of(peer.ip()) == Zone::Internet),
        }
    }
}

/// Opens a way for a client with this right, which reaches private networks as `passes` says.
pub(super) async fn open(edge: &Edge, target: &Target, right: Right, passes: Passes) -> Result<Way, Problem> {
    let private = nearby::private(target);
    if let Some(address) = private.filter(|address| is_refused(address.ip())) {
        let words =
            format!("the routing table of this host refuses {} (unreachable, prohibit or blackhole)", address.ip());
        edge.state.send_modify(|state| state.failed += 1);
        return Err(Problem::new(Status::Forbidden, "destination_ip_prohibited", words));
    }
    let private = private.filter(|_| passes != Passes::Nowhere);
    let near = private.filter(|address| nearby::is_near(*address));
    let domains = &edge.config.local_domains;
    let way = match (passes, near, private) {
        (Passes::Everywhere, Some(near), _) => nearby::reach(edge, near).await.map(Way::Direct),
        (_, None, Some(private)) => match over_a_relay(edge, target, right).await {
            Ok(way) => Ok(way),
            // Where that leads nowhere, what the relay has answered tells more.
            Err(refused) => nearby::reach(edge, private).await.map(Way::Direct).map_err(|_| refused),
        },
        (Passes::Everywhere, ..) => match over_a_relay(edge, target, right).await {
            Ok(way) => {
                if way.leads_to_the_internet() {
                    edge.public_names.note(target, domains);
                }
                Ok(way)
            }
            Err(refused) if nearby::may_be_named(target, &refused, domains) && !edge.public_names.has(target) => {
                nearby::reach_named(edge, target, right).await.map(Way::Direct).ok_or(refused)
            }
            Err(refused) => Err(refused),
        },
        _ => over_a_relay(edge, target, right).await,
    };
    if way.is_err() {
        edge.state.send_modify(|state| state.failed += 1);
    }
    way
}

async fn over_a_relay(edge: &Edge, target: &Target, right: Right) -> Result<Way, Problem> {
    edge.wants(target);
    let asked = edge.roads.tunnel(target).await;
    match asked {
        Ok(tunnel) => {
            edge.state.send_modify(|state| {
                *state.carried.entry(tunnel.station.at.label.clone()).or_default() += 1;
                state.last = Some(tunnel.station.at.label.clone());
            });
            Ok(Way::Relay(Box::new(tunnel)))
        }
        Err(RoadError::None(why)) if edge.config.direct => {
            tracing::warn!(why, "directly, over one link");
            let connected = direct::reach(target, right, &edge.look_ups, &edge.roads.starts).await;
            let connected = connected.inspect(|_| {
                edge.state.send_modify(|state| {
                    state.direct += 1;
                    state.last = None;
                });
            });
            connected.map(Way::Direct)
        }
        Err(RoadError::None(why)) => {
            edge.state.send_modify(|state| state.refused += 1);
            Err(Problem::new(Status::NoRoom, "proxy_internal_error", format!("no relay can be had: {why}")))
        }
        Err(waiting @ RoadError::Waiting) => {
            Err(Problem::new(Status::NoRoom, "proxy_internal_error", waiting.to_string()))
        }
        Err(RoadError::Refused(answer)) => {
            let error = answer.error.unwrap_or("http_request_denied");
            Err(Problem::new(of(answer.status), error, answer.words))
        }
    }
}

/// A relay's answer as ours.
fn of(status: u16) -> Status {
    match status {
        403 => Status::Forbidden,
        429 => Status::TooMany,
        502 => Status::Unreachable,
        504 => Status::NoAnswer,
        _ => Status::NoRoom,
    }
}

/// Carries a flow to its end.
pub(super) async fn carry_on(edge: &Edge, way: Way, target: &Target, near: &mut TcpStream, early: Vec<u8>) {
    let _open = Open::new(edge);
    end::broken(near);
    let counted = |meter: &Arc<Meter>| Counted::new(Arc::clone(meter));
    let ended = match way {
        Way::Relay(tunnel) => {
            let Tunnel { mut road, station, rest } = *tunnel;
            let socket = road.get_ref().0.socket();
            let short = Short::new(socket, counted(&station.meter));
            let mut lane = edge.lanes.lane(target, socket.as_fd(), near.as_fd(), short);
            let ended = carry(near, &mut road, early, rest, &mut lane).await;
            // An end that TLS has not announced is none: what waits in the queue goes with it.
            ended.inspect_err(|_| end::broken(road.get_ref().0.socket()))
        }
        Way::Direct(mut far) => {
            // What cannot be set changes the pace of small packets, nothing else.
            let _ = far.set_nodelay(true);
            end::broken(&far);
            let mut lane = edge.lanes.lane(target, far.as_fd(), near.as_fd(), counted(&edge.direct));
            let ended = carry(near, &mut far, early, Vec::new(), &mut lane).await;
            ended.inspect(|()| end::whole(&far))
        }
    };
    match ended {
        Ok(()) => end::whole(near),
        Err(error) => tracing::debug!(%error, "broke"),
    }
}

/// Counts a flow as open, however it ends.
struct Open<'a>(&'a Edge);

impl<'a> Open<'a> {
    fn new(edge: &'a Edge) -> Self {
        edge.state.send_modify(|state| state.open += 1);
        Self(edge)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.state.send_modify(|state| state.open -= 1);
    }
}
