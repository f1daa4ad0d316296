//! What the doctor looks at, gathered from the kernel. Nothing is judged here.

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

use super::netstat::mptcp_counters;
use super::routes::{LinkFacts, gather_links};
use crate::control::{self, ControlReply, ControlRequest};
use crate::host_config::{self, EventListener, RunningDaemon, Sysctls, event_group, event_listeners};

/// What the doctor knows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostFacts {
    /// The kernel's version.
    pub kernel_version: String,
    /// `net.mptcp.enabled`; none: no MPTCP.
    pub mptcp_enabled: Option<String>,
    /// `net.mptcp.path_manager`, or what `pm_type` means; none: a kernel before 5.19.
    pub path_manager: Option<String>,
    /// Seconds for which MPTCP is off after a blackhole; none: this kernel has no such thing.
    pub blackhole_timeout: Option<u64>,
    /// Whether settings can be written here: not so in most containers.
    pub has_sysctl_access: bool,
    /// Whether the kernel tells of connections.
    pub has_events: bool,
    /// The kernel's counters of MPTCP.
    pub mptcp_counters: BTreeMap<String, u64>,
    /// What came of a connection of this machine with itself.
    pub loopback: LoopbackResult,
    /// Whether this process has CAP_NET_ADMIN.
    pub has_net_admin: bool,
    /// The daemon of ours that steers this network.
    pub daemon: Option<RunningDaemon>,
    /// How it steers, as it says itself; none: there is none, or this user may not ask it.
    pub daemon_mode: Option<String>,
    /// Who listens to the kernel's events, daemons of ours left out.
    pub event_listeners: Vec<EventListener>,
    /// Endpoints of the kernel's own path manager that no run has made, as people write them; none: they cannot be read.
    pub endpoints: Option<Vec<String>>,
    /// Whether NetworkManager runs.
    pub has_network_manager: bool,
    /// What a run that crashed has left behind, as lines.
    pub leftovers: Vec<String>,
    /// The links that the configuration names, in its order; empty: whatever works.
    pub requested_links: Vec<RequestedLink>,
    /// The interfaces.
    pub survey: InterfaceList,
    /// What is known of their cost.
    pub links: Vec<LinkFacts>,
}

/// A link that the configuration names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RequestedLink {
    /// Its interface.
    pub name: String,
    /// It need not be there yet.
    pub is_optional: bool,
}

/// What came of an MPTCP connection of this machine with itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LoopbackResult {
    /// It was one.
    Mptcp,
    /// It became plain TCP: new connections do not ask for MPTCP.
    PlainTcp,
    /// It could not be tried, or came to nothing.
    Failed(String),
}

impl HostFacts {
    /// Whether new connections of this machine do not ask for MPTCP.
    pub fn is_mptcp_off(&self) -> bool {
        self.mptcp_enabled.as_deref() == Some("0") || self.loopback == LoopbackResult::PlainTcp
    }

    /// Looks once more at what probes may have changed: a link that drops MPTCP's packets makes the kernel switch it off.
    pub fn refresh(&mut self) {
        self.mptcp_counters =
            mptcp_counters(&fs::read_to_string("/proc/thread-self/net/netstat").unwrap_or_default());
        self.loopback = test_loopback();
    }
}

/// Looks at everything, and takes links for what the configuration says of them. Takes a few milliseconds.
///
/// # Errors
/// Interfaces cannot be listed.
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
        mptcp_counters: mptcp_counters(&fs::read_to_string("/proc/thread-self/net/netstat").unwrap_or_default()),
        loopback: test_loopback(),
        has_net_admin: host_config::has_net_admin(),
        daemon_mode: daemon.and_then(|_| query_mode(run_dir)),
        daemon,
        event_listeners: listeners,
        endpoints: host_config::foreign_endpoints(run_dir).ok().map(endpoint_texts),
        has_network_manager: Path::new("/run/NetworkManager").exists(),
        leftovers: host_config::leftovers(run_dir),
        links: gather_links(&survey, &metered, &settings, link_args),
        requested_links,
        survey,
    })
}

/// How the daemon steers, as it says itself.
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

/// chosen: the loopback answers in microseconds.
const LOOPBACK_TIMEOUT: Duration = Duration::from_secs(1);

/// Connects an MPTCP socket to another one on the loopback. Nobody else can reach it.
fn connect_loopback() -> io::Result<bool> {
    let socket = || Socket::new(Domain::IPV4, Type::STREAM, Some(Transport::MPTCP));
    let listener = socket()?;
    listener.bind(&SockAddr::from(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))))?;
    listener.listen(1)?;
    let client = socket()?;
    client.connect_timeout(&listener.local_addr()?, LOOPBACK_TIMEOUT)?;
    let (server, _) = listener.accept()?;
    // The server knows for sure once it has heard something.
    server.set_read_timeout(Some(LOOPBACK_TIMEOUT))?;
    (&client).write_all(b".")?;
    (&server).read_exact(&mut [0])?;
    is_mptcp(&client, 0)
}

/// Whether the other end of a connected MPTCP socket speaks MPTCP. `link`: the interface that it is bound to, or 0.
pub(super) fn is_mptcp(socket: &Socket, link: u32) -> io::Result<bool> {
    let addresses = (socket.local_addr()?.as_socket(), socket.peer_addr()?.as_socket());
    let (Some(local), Some(remote)) = addresses else { return Err(io::ErrorKind::InvalidData.into()) };
    let reply = Netlink::open(Protocol::SockDiag)?.request(&diag::query_tcp(local, remote, link).finish(1))?;
    let found = messages(&reply).find_map(|message| diag::Socket::parse(&message));
    /// `MPTCP_SUBFLOW_FLAG_MCAP_REM`: the option came back.
    const CAPABLE: u32 = 1;
    Ok(found.and_then(|socket| socket.subflow).is_some_and(|subflow| subflow.flags & CAPABLE != 0))
}

#[cfg(test)]
mod tests {
    use marline_net::testing::in_a_network;

    use super::*;

    #[test]
    fn a_fresh_network_speaks_mptcp_with_itself_until_it_is_switched_off() {
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
