//! Gathers the facts for the doctor from the kernel and the daemon. Nothing is judged here.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use marline_core::wire::netlink::{diag, messages, mptcp};
use marline_net::links::{InterfaceList, LinkArg, LinksError, MeteredHints, list_interfaces};
use marline_sys::netlink::{Protocol, Socket as Netlink};
use socket2::{Domain, Protocol as Transport, SockAddr, Socket, Type};

use super::link_facts::{LinkFacts, gather_links};
use crate::control::{self, ControlReply, ControlRequest};
use crate::host_config::{self, EventListener, RunningDaemon, Sysctls, event_group, event_listeners};
use crate::kernel::read_mptcp_counters;
use crate::restore;

/// Facts about this host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostFacts {
    /// Kernel version.
    pub kernel_version: String,
    /// `net.mptcp.enabled`; none: no MPTCP.
    pub mptcp_enabled: Option<String>,
    /// `net.mptcp.path_manager`, or what `pm_type` means; none: a kernel before 5.19.
    pub path_manager: Option<String>,
    /// Seconds for which the kernel switches MPTCP off after SYNs with its option were lost (a blackhole in the
    /// kernel's terms); none: this kernel does not do that.
    pub blackhole_timeout: Option<u64>,
    /// Whether settings below `/proc/sys/net` can be written, which most containers prevent.
    pub has_sysctl_access: bool,
    /// Whether the kernel has MPTCP events.
    pub has_events: bool,
    /// The kernel's counters of MPTCP.
    pub mptcp_counters: BTreeMap<String, u64>,
    /// Result of an MPTCP connection over the loopback.
    pub loopback: LoopbackResult,
    /// Whether this process has CAP_NET_ADMIN.
    pub has_net_admin: bool,
    /// The running `marline paths` of this network namespace.
    pub daemon: Option<RunningDaemon>,
    /// Mode that the daemon reports; none: no daemon, or no permission to query it.
    pub daemon_mode: Option<String>,
    /// Listeners to the kernel's MPTCP events, also marline's daemon, without this process.
    pub event_listeners: Vec<EventListener>,
    /// Endpoints of the kernel's path manager that do not belong to a run, as text; none: they cannot be read.
    pub endpoints: Option<Vec<String>>,
    /// Whether NetworkManager is running.
    pub has_network_manager: bool,
    /// Leftovers of a crashed run, one line each.
    pub leftovers: Vec<String>,
    /// Links that the configuration names, in its order; empty: all usable ones.
    pub requested_links: Vec<RequestedLink>,
    /// The interfaces of this host.
    pub survey: InterfaceList,
    /// Routing and cost of the interfaces that may be links.
    pub links: Vec<LinkFacts>,
}

/// A link that the configuration names explicitly.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RequestedLink {
    /// Name of its interface.
    pub name: String,
    /// Whether it may be absent at the start.
    pub is_optional: bool,
}

/// Result of an MPTCP connection of this host to itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LoopbackResult {
    /// The connection used MPTCP.
    Mptcp,
    /// It fell back to plain TCP: new connections do not request MPTCP.
    PlainTcp,
    /// It could not be tested, or failed.
    Failed(String),
}

impl HostFacts {
    /// Whether new connections of this host do not request MPTCP.
    pub fn is_mptcp_off(&self) -> bool {
        self.mptcp_enabled.as_deref() == Some("0") || self.loopback == LoopbackResult::PlainTcp
    }

    /// Refreshes the facts that probes may have changed: a link that drops MPTCP packets makes the kernel switch
    /// MPTCP off.
    pub fn refresh(&mut self) {
        self.mptcp_counters = read_mptcp_counters();
        self.loopback = test_loopback();
    }
}

/// Gathers all facts. `link_args` overrides kind and cost of links. Takes a few milliseconds.
///
/// # Errors
/// The interfaces cannot be listed.
pub fn gather_facts(
    run_dir: &Path,
    requested_links: Vec<RequestedLink>,
    link_args: &[LinkArg],
) -> Result<HostFacts, LinksError> {
    let settings = Sysctls::of_system();
    let survey = list_interfaces()?;
    let metered = MeteredHints::query(&survey);
    let path_manager = settings.read(host_config::PATH_MANAGER);
    let path_manager = path_manager.or_else(|| {
        settings
            .read(host_config::PM_TYPE)
            .map(|number| if number == "0" { "kernel".into() } else { "userspace".into() })
    });
    let listeners = event_listeners();
    let daemon = host_config::find_daemon(run_dir, &listeners);
    Ok(HostFacts {
        kernel_version: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
        mptcp_enabled: settings.read(host_config::MPTCP_ENABLED),
        path_manager,
        blackhole_timeout: settings.read("net.mptcp.blackhole_timeout").and_then(|text| text.parse().ok()),
        has_sysctl_access: settings.is_writable(host_config::MPTCP_ENABLED),
        has_events: event_group().is_some(),
        mptcp_counters: read_mptcp_counters(),
        loopback: test_loopback(),
        has_net_admin: host_config::has_net_admin(),
        daemon_mode: daemon.and_then(|_| query_mode(run_dir)),
        daemon,
        event_listeners: listeners,
        endpoints: host_config::foreign_endpoints(run_dir).ok().map(endpoint_texts),
        has_network_manager: Path::new("/run/NetworkManager").exists(),
        leftovers: restore::leftovers(run_dir),
        links: gather_links(&survey, &metered, &settings, link_args),
        requested_links,
        survey,
    })
}

/// Mode that the daemon reports.
fn query_mode(run_dir: &Path) -> Option<String> {
    match control::query(run_dir, &ControlRequest::Status { max_connections: Some(0) }) {
        Ok(ControlReply::Status(status)) => Some(status.mode),
        _ => None,
    }
}

fn endpoint_texts(endpoints: Vec<mptcp::Endpoint>) -> Vec<String> {
    endpoints.iter().map(|endpoint| format!("{} id {}", endpoint.address, endpoint.id)).collect()
}

fn test_loopback() -> LoopbackResult {
    match connect_loopback() {
        Ok(true) => LoopbackResult::Mptcp,
        Ok(false) => LoopbackResult::PlainTcp,
        Err(error) => LoopbackResult::Failed(error.to_string()),
    }
}

/// Our choice: the loopback needs microseconds.
const LOOPBACK_TIMEOUT: Duration = Duration::from_secs(1);

/// Connects two MPTCP sockets over the loopback. Other hosts cannot reach them.
fn connect_loopback() -> io::Result<bool> {
    let socket = || Socket::new(Domain::IPV4, Type::STREAM, Some(Transport::MPTCP));
    let listener = socket()?;
    listener.bind(&SockAddr::from(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))))?;
    listener.listen(1)?;
    let client = socket()?;
    client.connect_timeout(&listener.local_addr()?, LOOPBACK_TIMEOUT)?;
    let (server, _) = listener.accept()?;
    // MPTCP is confirmed only after the first data.
    server.set_read_timeout(Some(LOOPBACK_TIMEOUT))?;
    (&client).write_all(b".")?;
    (&server).read_exact(&mut [0])?;
    is_mptcp(&client, 0)
}

/// Whether the peer of a connected MPTCP socket uses MPTCP. `link`: index of the interface to which the socket is
/// bound, or 0.
pub(super) fn is_mptcp(socket: &Socket, link: u32) -> io::Result<bool> {
    let addresses = (socket.local_addr()?.as_socket(), socket.peer_addr()?.as_socket());
    let (Some(local), Some(remote)) = addresses else { return Err(io::ErrorKind::InvalidData.into()) };
    let reply = Netlink::open(Protocol::SockDiag)?.request(&diag::query_tcp(local, remote, link).finish(1))?;
    let found = messages(&reply).find_map(|message| diag::Socket::parse(&message));
    /// `MPTCP_SUBFLOW_FLAG_MCAP_REM`: the peer returned the option.
    const CAPABLE: u32 = 1;
    Ok(found.and_then(|socket| socket.subflow).is_some_and(|subflow| subflow.flags & CAPABLE != 0))
}

#[cfg(test)]
mod tests {
    use marline_net::testing::in_a_network;

    use super::*;

    #[test]
    fn a_new_namespace_uses_mptcp_on_its_loopback_until_it_is_switched_off() {
        in_a_network(|| {
            if !Sysctls::of_system().has_mptcp() {
                eprintln!("skipped: this kernel has no MPTCP");
                return;
            }
            let run_dir = tempfile::tempdir().unwrap();
            let facts = gather_facts(run_dir.path(), Vec::new(), &[]).unwrap();
            assert_eq!((facts.loopback, facts.endpoints), (LoopbackResult::Mptcp, Some(Vec::new())));
            assert!(facts.has_events && facts.has_sysctl_access && facts.has_net_admin && facts.daemon.is_none());
            assert!(facts.mptcp_counters.contains_key("MPCapableSYNTX"), "{:?}", facts.mptcp_counters);
            fs::write("/proc/sys/net/mptcp/enabled", "0").unwrap();
            assert!(matches!(
                gather_facts(run_dir.path(), Vec::new(), &[]).unwrap().loopback,
                LoopbackResult::Failed(_)
            ));
        });
    }
}
