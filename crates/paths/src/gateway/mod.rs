//! Gateway of a LAN: passes its TCP connections to the edge and routes its other packets.
//!
//! ```text
//!  LAN ──▶ TCP ──▶ TPROXY, mark ──▶ rule 107, local route ──▶ our listener ──▶ a flow of the edge
//!      │
//!      └─▶ TCP to private networks to which the host has a route, and everything else
//!              ──▶ rules 20002, 20003 ──▶ masquerade ──▶ the chosen link, or the host's default route
//! ```
//!
//! 1. Everything is checked before anything is changed: privilege, interfaces, nft, the kernel.
//! 2. Changes are undone in reverse order at the end: table, routing rules, settings. After `kill -9` the nftables
//!    table disappears by itself, since its owner's socket closes. The policy rule then matches no packets, and the
//!    settings are in an undo log. The next start, or `marline paths restore`, restores them and removes the rules of
//!    [`NonTcpRoute`], which carry marline's protocol number. Rules of a running gateway are never removed, whatever
//!    its run directory: its table proves that it runs. The firewall that keeps the LAN closed is a separate table,
//!    which survives a crash (`standing_firewall`).
//! 3. The listeners are bound to the loopback. A connection that reaches them directly, without TPROXY, has no
//!    destination and is refused.
//! 4. An interface with a default route of this host cannot be a LAN.

mod dns_routes;
mod firewall;
mod firewall_report;
mod iptables_legacy;
mod nft_rules;
mod non_tcp_route;
mod obstruction_watch;
mod obstructions;
mod private_networks;
mod route_requests;
mod standing_firewall;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use marline_sys::netlink::RouteSocket;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch::Receiver;

pub use dns_routes::DnsLinks;
pub use nft_rules::Lan;
pub use non_tcp_route::NonTcpRoute;
pub use obstructions::Obstructions;
pub use standing_firewall::StandingFirewall;

use marline_net::links::{LinksError, list_interfaces};

use self::obstruction_watch::ObstructionWatch;
use self::obstructions::ObstructionChecker;
use self::standing_firewall::{FirewallReinstaller, LanReach, read_installed};
use super::PathsError;
use super::host_config::forwarding::{self, Forwarding};
use super::host_config::{RestoreResult, has_net_admin};
use super::transparent::nft_rules::IpFamilies;
use super::transparent::{ForwardError, NftError, accept_any, bind_listeners, nft, policy_route};

/// Why a LAN cannot be served, in one line.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// CAP_NET_ADMIN is missing.
    #[error("--lan: not permitted: needs CAP_NET_ADMIN (run as root, or as the systemd unit does)")]
    NotPermitted,
    /// The interface does not exist or is not a LAN.
    #[error("--lan {name}: {why}")]
    Interface {
        /// Name of the interface.
        name: String,
        /// The problem.
        why: String,
    },
    /// The interfaces cannot be listed.
    #[error("--lan: {0}")]
    Links(#[from] LinksError),
    /// The nftables table cannot be installed, or was lost.
    #[error("--lan: {0}")]
    Nft(#[from] NftError),
    /// Forwarding cannot be configured.
    #[error("--lan: {0}")]
    Host(PathsError),
    /// The kernel refused a socket, rule or route.
    #[error("--lan: {object}: {error}")]
    Kernel {
        /// The refused object.
        object: &'static str,
        /// The error of the kernel.
        error: io::Error,
    },
}

/// A running gateway, which receives the connections of a LAN.
#[derive(Debug)]
pub struct Gateway {
    obstruction_watch: ObstructionWatch,
    // Fields are dropped in this order, which undoes the table first.
    nft_table: nft::NftTableGuard,
    non_tcp_route: Arc<NonTcpRoute>,
    _policy_route: policy_route::PolicyRouteGuard,
    listeners: Vec<(IpAddr, TcpListener)>,
    forwarding: Forwarding,
}

impl Gateway {
    /// Opens the gateway. Needs a tokio runtime with I/O and time; blocks while nft runs.
    ///
    /// `allow_direct`: flows may go to their servers without the edge's relay.
    ///
    /// # Errors
    /// One line that states the obstacle. Nothing remains changed then.
    pub async fn open(lan: &Lan, run_dir: &Path, allow_direct: bool) -> Result<Self, GatewayError> {
        let mut has_closed = false;
        let result = Self::open_inner(lan, run_dir, allow_direct, &mut has_closed).await;
        if result.is_err() && has_closed {
            match read_installed() {
                // The routing rules are removed already, so the firewall must not depend on them.
                Some(firewall) if is_still_needed(Some(&firewall)) => standing_firewall::seal(&firewall),
                _ => remove_firewall(),
            }
        }
        result
    }

    async fn open_inner(
        lan: &Lan,
        run_dir: &Path,
        allow_direct: bool,
        has_closed: &mut bool,
    ) -> Result<Self, GatewayError> {
        if !has_net_admin() {
            return Err(GatewayError::NotPermitted);
        }
        check_interfaces(lan)?;
        nft::check(&nft_rules::table_text(lan, PLACEHOLDER_PORT, (true, true)))?;
        let (port, listeners) = bind_listeners().map_err(|error| match error {
            ForwardError::Socket { object, error } => kernel_error(object, error),
            error => GatewayError::Kernel { object: "a listener", error: io::Error::other(error) },
        })?;
        let addresses: Vec<IpAddr> = listeners.iter().map(|(address, _)| *address).collect();
        let install_firewall = |enabled_here| {
            *has_closed = true;
            let reach = LanReach::without_routing_rules(allow_direct);
            standing_firewall::install(lan, reach, enabled_here)
                .map_err(|error| PathsError::HostConfig(error.to_string()))
        };
        // The standing firewall is installed inside `apply`, directly before forwarding is switched on: the LAN is
        // never open.
        let forwarding = Forwarding::apply(run_dir, &lan.0, install_firewall).map_err(|error| match error {
            PathsError::NotPermitted { .. } => GatewayError::NotPermitted,
            error => GatewayError::Host(error),
        })?;
        let families = IpFamilies::from_addresses(&addresses);
        let rule_error = |error| kernel_error("a routing rule", error);
        let policy_route =
            policy_route::PolicyRouteGuard::new(&policy_route::LAN_TRAFFIC, families).map_err(rule_error)?;
        let non_tcp_route = Arc::new(NonTcpRoute::new(lan, families).map_err(rule_error)?);
        let nft_table =
            nft::NftTableGuard::new(&nft_rules::table_text(lan, port, forwarding.enabled_here), nft_rules::TABLE)
                .await?;
        // With the routing rules in place, the firewall may permit private networks that have a route.
        standing_firewall::install(lan, LanReach::for_running(allow_direct), forwarding.enabled_here)?;
        let firewall_reinstaller = FirewallReinstaller::new(lan.clone(), allow_direct, forwarding.enabled_here);
        let watch = ObstructionWatch::new(
            firewall_reinstaller.clone(),
            ObstructionChecker::new(lan.clone(), firewall_reinstaller, forwarding.enabled_here),
        );
        Ok(Self {
            obstruction_watch: watch,
            nft_table,
            non_tcp_route,
            _policy_route: policy_route,
            listeners,
            forwarding,
        })
    }

    /// Changes of this host, one line each.
    pub fn changes(&self) -> &[String] {
        &self.forwarding.changes
    }

    /// Obstructions of the LAN's packets on this host. The receiver is notified of changes.
    pub fn obstructions(&self) -> Receiver<Obstructions> {
        self.obstruction_watch.subscribe()
    }

    /// The route of traffic that does not go to the edge. It is removed with the last reference, which should not
    /// outlive the gateway.
    pub fn non_tcp_route(&self) -> Arc<NonTcpRoute> {
        Arc::clone(&self.non_tcp_route)
    }

    /// Accepts the next connection with its original destination. Connections without TPROXY are closed.
    ///
    /// # Errors
    /// The nftables table was lost.
    pub async fn accept(&mut self) -> Result<(TcpStream, SocketAddr), GatewayError> {
        let Self { nft_table, listeners, .. } = self;
        loop {
            let client = tokio::select! {
                client = accept_any(listeners) => client,
                error = nft_table.wait_for_loss() => return Err(error.into()),
            };
            match client.local_addr() {
                Ok(destination) if !destination.ip().is_loopback() => return Ok((client, destination)),
                _ => tracing::debug!("a connection that was not redirected here"),
            }
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.obstruction_watch.end();
        // Forwarding is switched off first: while it is on, the LAN must stay closed.
        if self.forwarding.restore() {
            remove_firewall();
        } else {
            // The routing rules are removed with this value.
            read_installed().iter().for_each(standing_firewall::seal);
            tracing::warn!(
                "cannot restore forwarding, so the LAN stays closed (table inet {}); run `marline restore`",
                standing_firewall::TABLE
            );
        }
    }
}

/// Whether this host still forwards packets that only the standing firewall drops.
fn is_still_needed(firewall: Option<&StandingFirewall>) -> bool {
    let (v4, v6) = forwarding::is_forwarding();
    firewall.is_some_and(|firewall| (firewall.drops_families.0 && v4) || (firewall.drops_families.1 && v6))
}

fn remove_firewall() {
    if let Err(error) = standing_firewall::remove() {
        tracing::warn!("cannot remove the table inet {}: {error}; run `marline restore`", standing_firewall::TABLE);
    }
}

/// Checks that these are interfaces of a LAN.
fn check_interfaces(lan: &Lan) -> Result<(), GatewayError> {
    let survey = list_interfaces()?;
    for name in &lan.0 {
        let error_with = |reason: &str| GatewayError::Interface { name: name.clone(), why: reason.to_owned() };
        match survey.by_name(name) {
            None => return Err(error_with("no such interface (`ip link` lists them)")),
            Some(interface) if interface.addresses.iter().any(IpAddr::is_loopback) || name == "lo" => {
                return Err(error_with("it is the loopback and cannot be a LAN"));
            }
            Some(interface) if interface.route_v4.is_some() || interface.route_v6.is_some() => {
                return Err(error_with("it has a default route, so it is a link to the Internet and not a LAN"));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

fn kernel_error(object: &'static str, error: io::Error) -> GatewayError {
    match error.kind() {
        io::ErrorKind::PermissionDenied => GatewayError::NotPermitted,
        _ => GatewayError::Kernel { object, error },
    }
}

/// Restores what a killed gateway has left; nothing if one is running.
pub(super) fn restore(run_dir: &Path) -> RestoreResult {
    let Some((mut restored, mut remaining)) = forwarding::restore(run_dir) else { return RestoreResult::default() };
    if matches!(nft::check(&nft_rules::delete_table()), Err(NftError::AlreadyOwned)) {
        return RestoreResult { restored, remaining };
    }
    // The firewall is replaced by a sealed one before the routing rules are removed on which it depends.
    let firewall = read_installed();
    if let Some(firewall) = firewall.as_ref().filter(|firewall| is_still_needed(Some(firewall))) {
        standing_firewall::seal(firewall);
    }
    let clear = |socket: RouteSocket| {
        Ok(policy_route::clear(&socket, &policy_route::LAN_TRAFFIC)?
            + non_tcp_route::clear(&socket)?
            + dns_routes::clear(&socket)?)
    };
    match RouteSocket::open().and_then(clear) {
        Ok(0) => {}
        Ok(count) => restored.push(format!("{count} rules and routes of a LAN's gateway removed")),
        Err(error) => remaining.push(format!("cannot remove rules and routes of a LAN's gateway: {error}")),
    }
    if let Some(firewall) = firewall {
        let table_name = format!("table inet {}", standing_firewall::TABLE);
        // The undo log with the previous forwarding settings may be in another run directory.
        if is_still_needed(Some(&firewall)) {
            remaining.push(format!(
                "{table_name} keeps {} closed, because this host still forwards packets: give the run directory of the edge that has \
                 ended with --run-dir, or switch forwarding off (sysctl -w net.ipv4.ip_forward=0 \
                 net.ipv6.conf.all.forwarding=0), and run this again",
                firewall.lan.join(", ")
            ));
        } else {
            match standing_firewall::remove() {
                Ok(()) => {
                    restored.push(format!("{table_name} removed, which kept {} closed", firewall.lan.join(", ")))
                }
                Err(error) => remaining.push(format!("cannot remove {table_name}: {error}")),
            }
        }
    }
    RestoreResult { restored, remaining }
}

/// Leftovers of a killed gateway, one text each; none while one is running.
pub(super) fn leftovers(run_dir: &Path) -> Vec<String> {
    let Some(mut remaining) = forwarding::leftovers(run_dir) else { return Vec::new() };
    let count = |socket: RouteSocket| {
        Ok(policy_route::count_installed(&socket, &policy_route::LAN_TRAFFIC)?
            + non_tcp_route::count_installed(&socket)?
            + dns_routes::count_installed(&socket)?)
    };
    let count = RouteSocket::open().and_then(count);
    if let Some(count) = count.ok().filter(|count| *count > 0) {
        remaining.push(format!("{count} rules and routes of a LAN's gateway"));
    }
    if let Some(firewall) = leftover_firewall() {
        remaining.push(format!(
            "table inet {}, which keeps {} closed",
            standing_firewall::TABLE,
            firewall.lan.join(", ")
        ));
    }
    remaining
}

/// The standing firewall of a crashed gateway; none: it does not exist, or a gateway is running.
pub fn leftover_firewall() -> Option<StandingFirewall> {
    let is_running = matches!(nft::check(&nft_rules::delete_table()), Err(NftError::AlreadyOwned));
    if is_running { None } else { read_installed() }
}

/// Port for a table that is only checked and never installed.
const PLACEHOLDER_PORT: u16 = 1;
