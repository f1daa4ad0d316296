//! A LAN's way into an edge: its TCP connections come here as they are, and the rest of its packets pass.
//!
//! In: the interfaces of the LAN. Out: connections, each with where it was going, until the [`Gateway`] is dropped.
//!
//! ```text
//!  LAN ──▶ prerouting: TCP ──▶ TPROXY, mark ──▶ rule 107, local route ──▶ our listener     ──▶ a flow of the edge
//!                  TCP to private networks that the host has a route to, and
//!                  all else ──▶ rules 20002, 20003 ──▶ masquerade          ──▶ the link that is led over, or the host's own
//! ```
//!
//! 1. Everything is looked at before anything is changed: privilege, interfaces, nft, the kernel.
//! 2. What is changed is undone in the other order at the end: table, routing rules, settings. After `kill -9` the table ends by
//!    itself (its owner's pipe does), the detour's rule means nobody any more, and the settings are in a ledger: the next start, or
//!    `marline paths restore`, puts them back, and removes the rules of the rest ([`Beyond`]), which bear marline's number. What belongs to a
//!    gateway that runs is never taken away, whatever its run directory: its table says that it is there.
//!    The firewall that keeps the LAN closed is a table of its own, which a crash leaves in force (`block`).
//! 3. Only the loopback is listened on. Who comes there by himself, led by no rule, was going nowhere, and is refused.
//! 4. An interface that is this host's way to the Internet is no LAN.

mod beyond;
mod block;
mod firewall;
mod legacy;
mod names;
mod obstacles;
mod private;
mod report;
mod rules;
mod watch;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use marline_sys::netlink::RouteSocket;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch::Receiver;

pub use beyond::Beyond;
pub use block::Standing;
pub use names::NameLinks;
pub use obstacles::Found as Obstructions;
pub use rules::Lan;

use marline_net::links::{LinksError, list_interfaces};

use self::block::{Keeper, Reach, standing};
use self::obstacles::{Found, Obstacles};
use self::watch::Watch;
use super::PathsError;
use super::forward::rules::Families;
use super::forward::{ForwardError, NftError, arrival, detour, listen, nft};
use super::ground::forwarding::{self, Forwarding};
use super::ground::{Restored, may_administer};

/// Why a LAN cannot be served, one line each.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// A privilege is missing.
    #[error("--lan: not permitted: needs CAP_NET_ADMIN (run as root, or as the systemd unit does)")]
    NotPermitted,
    /// The interface is none, or no LAN.
    #[error("--lan {name}: {why}")]
    Interface {
        /// Its name.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// The interfaces cannot be listed.
    #[error("--lan: {0}")]
    Links(#[from] LinksError),
    /// The table cannot be had, or was lost.
    #[error("--lan: {0}")]
    Nft(#[from] NftError),
    /// The host cannot be made a router.
    #[error("--lan: {0}")]
    Host(PathsError),
    /// The kernel makes no such sockets, rules or routes.
    #[error("--lan: {what}: {error}")]
    Kernel {
        /// Which.
        what: &'static str,
        /// Why not.
        error: io::Error,
    },
}

/// Connections of the LAN come here while this lives.
#[derive(Debug)]
pub struct Gateway {
    watch: Watch,
    // The first is undone first.
    table: nft::Held,
    beyond: Arc<Beyond>,
    _detour: detour::Held,
    listeners: Vec<(IpAddr, TcpListener)>,
    forwarding: Forwarding,
}

impl Gateway {
    /// Leads them here. Needs a tokio runtime with I/O and time; blocks for as long as nft runs.
    ///
    /// `direct`: flows may go to their servers without the edge's relay.
    ///
    /// # Errors
    /// One line that says what stands in the way. Nothing stays changed then.
    pub async fn open(lan: &Lan, run_dir: &Path, direct: bool) -> Result<Self, GatewayError> {
        let mut closed = false;
        let opened = Self::make(lan, run_dir, direct, &mut closed).await;
        if opened.is_err() && closed {
            match standing() {
                // The rules of routing have gone with what was opened.
                Some(standing) if is_needed(Some(&standing)) => block::seal(&standing),
                _ => unblock(),
            }
        }
        opened
    }

    async fn make(lan: &Lan, run_dir: &Path, direct: bool, closed: &mut bool) -> Result<Self, GatewayError> {
        if !may_administer() {
            return Err(GatewayError::NotPermitted);
        }
        look_at(lan)?;
        nft::check(&rules::table(lan, ANY_PORT, (true, true)))?;
        let (port, listeners) = listen().map_err(|error| match error {
            ForwardError::Socket { what, error } => kernel(what, error),
            other => GatewayError::Kernel { what: "a listener", error: io::Error::other(other) },
        })?;
        let addresses: Vec<IpAddr> = listeners.iter().map(|(address, _)| *address).collect();
        let close = |switched| {
            *closed = true;
            let reach = Reach::without_rules(direct);
            block::install(lan, reach, switched).map_err(|error| PathsError::Ground(error.to_string()))
        };
        let forwarding = Forwarding::lay(run_dir, &lan.0, close).map_err(|error| match error {
            PathsError::NotPermitted { .. } => GatewayError::NotPermitted,
            error => GatewayError::Host(error),
        })?;
        let families = Families::of(&addresses);
        let refused = |error| kernel("a routing rule", error);
        let detour = detour::Held::new(&detour::LAN, families).map_err(refused)?;
        let beyond = Arc::new(Beyond::new(lan, families).map_err(refused)?);
        let table = nft::Held::new(&rules::table(lan, port, forwarding.switched), rules::TABLE).await?;
        block::install(lan, Reach::of(direct), forwarding.switched)?;
        let keeper = Keeper::new(lan.clone(), direct, forwarding.switched);
        let watch = Watch::new(keeper.clone(), Obstacles::new(lan.clone(), keeper, forwarding.switched));
        Ok(Self { watch, table, beyond, _detour: detour, listeners, forwarding })
    }

    /// What was changed on this host, a line each.
    pub fn changes(&self) -> &[String] {
        &self.forwarding.lines
    }

    /// What on this host stops the LAN's packets. Changes are told.
    pub fn obstacles(&self) -> Receiver<Found> {
        self.watch.found()
    }

    /// The way of what is not led here. It ends with the last who holds it: nobody should for longer than the gateway is there.
    pub fn beyond(&self) -> Arc<Beyond> {
        Arc::clone(&self.beyond)
    }

    /// The next connection, and where it was going. What no rule has led here is closed.
    ///
    /// # Errors
    /// The rules were lost.
    pub async fn arrive(&mut self) -> Result<(TcpStream, SocketAddr), GatewayError> {
        let Self { table, listeners, .. } = self;
        loop {
            let near = tokio::select! {
                near = arrival(listeners) => near,
                lost = table.lost() => return Err(lost.into()),
            };
            match near.local_addr() {
                Ok(going) if !going.ip().is_loopback() => return Ok((near, going)),
                _ => tracing::debug!("a connection that no rule has led here"),
            }
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.watch.end();
        // Forwarding first: while it is on, the LAN stays closed.
        if self.forwarding.restore() {
            unblock();
        } else {
            // The rules of routing go with this.
            standing().iter().for_each(block::seal);
            tracing::warn!("the LAN stays closed (table inet {}): `marline restore` tries again", block::TABLE);
        }
    }
}

/// Whether this host still forwards what nothing but the standing firewall drops.
fn is_needed(standing: Option<&Standing>) -> bool {
    let (v4, v6) = forwarding::is_forwarding();
    standing.is_some_and(|standing| (standing.drops.0 && v4) || (standing.drops.1 && v6))
}

fn unblock() {
    if let Err(error) = block::remove() {
        tracing::warn!("the table inet {} cannot be removed: {error}; `marline restore` tries again", block::TABLE);
    }
}

/// Whether these are interfaces of a LAN.
fn look_at(lan: &Lan) -> Result<(), GatewayError> {
    let survey = list_interfaces()?;
    for name in &lan.0 {
        let wrong = |why: &str| GatewayError::Interface { name: name.clone(), why: why.to_owned() };
        match survey.by_name(name) {
            None => return Err(wrong("there is no such interface (`ip link` lists them)")),
            Some(interface) if interface.addresses.iter().any(IpAddr::is_loopback) || name == "lo" => {
                return Err(wrong("it is the loopback, and no LAN"));
            }
            Some(interface) if interface.route_v4.is_some() || interface.route_v6.is_some() => {
                return Err(wrong("it has a default route: it is a way to the Internet, and no LAN"));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

fn kernel(what: &'static str, error: io::Error) -> GatewayError {
    match error.kind() {
        io::ErrorKind::PermissionDenied => GatewayError::NotPermitted,
        _ => GatewayError::Kernel { what, error },
    }
}

/// Puts back what a gateway that was killed has left; nothing where one runs.
pub(super) fn restore(run_dir: &Path) -> Restored {
    let Some((mut lines, mut left)) = forwarding::restore(run_dir) else { return Restored::default() };
    if matches!(nft::check(&rules::nothing()), Err(NftError::Taken)) {
        return Restored { lines, left };
    }
    let standing = standing();
    if let Some(standing) = standing.as_ref().filter(|standing| is_needed(Some(standing))) {
        block::seal(standing);
    }
    let clear = |socket: RouteSocket| {
        Ok(detour::clear(&socket, &detour::LAN)? + beyond::clear(&socket)? + names::clear(&socket)?)
    };
    match RouteSocket::open().and_then(clear) {
        Ok(0) => {}
        Ok(count) => lines.push(format!("{count} rules and routes of a LAN's gateway removed")),
        Err(error) => left.push(format!("rules and routes of a LAN's gateway cannot be removed: {error}")),
    }
    if let Some(standing) = standing {
        let table = format!("table inet {}", block::TABLE);
        // The note of what forwarding was may be in another run directory.
        if is_needed(Some(&standing)) {
            left.push(format!(
                "{table} keeps {} closed, for this host still forwards packets: name the run directory of the edge that has \
                 ended with --run-dir, or switch forwarding off (sysctl -w net.ipv4.ip_forward=0 \
                 net.ipv6.conf.all.forwarding=0), and run this again",
                standing.lan.join(", ")
            ));
        } else {
            match block::remove() {
                Ok(()) => lines.push(format!("{table} removed, which kept {} closed", standing.lan.join(", "))),
                Err(error) => left.push(format!("{table} cannot be removed: {error}")),
            }
        }
    }
    Restored { lines, left }
}

/// What such a gateway has left, a word for each; nothing while one runs.
pub(super) fn leftovers(run_dir: &Path) -> Vec<String> {
    let Some(mut left) = forwarding::leftovers(run_dir) else { return Vec::new() };
    let count = |socket: RouteSocket| {
        Ok(detour::there(&socket, &detour::LAN)? + beyond::there(&socket)? + names::there(&socket)?)
    };
    let count = RouteSocket::open().and_then(count);
    if let Some(count) = count.ok().filter(|count| *count > 0) {
        left.push(format!("{count} rules and routes of a LAN's gateway"));
    }
    if let Some(standing) = left_closed() {
        left.push(format!("table inet {}, which keeps {} closed", block::TABLE, standing.lan.join(", ")));
    }
    left
}

/// The standing firewall of a gateway that has crashed; none: there is none, or a gateway runs.
pub fn left_closed() -> Option<Standing> {
    let runs = matches!(nft::check(&rules::nothing()), Err(NftError::Taken));
    if runs { None } else { standing() }
}

/// For a table that is never in force.
const ANY_PORT: u16 = 1;
