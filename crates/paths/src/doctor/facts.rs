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

use super::netstat::counters;
use super::roads::{Road, roads};
use crate::control::{self, Answer, Question};
use crate::ground::{self, Listener, Running, Settings, events_group, listeners};

/// What the doctor knows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Facts {
    /// The kernel's version.
    pub kernel: String,
    /// `net.mptcp.enabled`; none: no MPTCP.
    pub enabled: Option<String>,
    /// `net.mptcp.path_manager`, or what `pm_type` means; none: a kernel before 5.19.
    pub path_manager: Option<String>,
    /// Seconds for which MPTCP is off after a blackhole; none: this kernel has no such thing.
    pub blackhole_timeout: Option<u64>,
    /// Whether settings can be written here: not so in most containers.
    pub writable: bool,
    /// Whether the kernel tells of connections.
    pub has_events: bool,
    /// The kernel's counters of MPTCP.
    pub counters: BTreeMap<String, u64>,
    /// What came of a connection of this machine with itself.
    pub loopback: Loopback,
    /// Whether this process has CAP_NET_ADMIN.
    pub privileged: bool,
    /// The daemon of ours that steers this network.
    pub daemon: Option<Running>,
    /// How it steers, as it says itself; none: there is none, or this user may not ask it.
    pub mode: Option<String>,
    /// Who listens to the kernel's events, daemons of ours left out.
    pub listeners: Vec<Listener>,
    /// Endpoints of the kernel's own path manager that no run has made, as people write them; none: they cannot be read.
    pub endpoints: Option<Vec<String>>,
    /// Whether NetworkManager runs.
    pub network_manager: bool,
    /// What a run that crashed has left behind, as lines.
    pub leftovers: Vec<String>,
    /// The links that the configuration names, in its order; empty: whatever works.
    pub named: Vec<Wish>,
    /// The interfaces.
    pub survey: InterfaceList,
    /// What is known of their cost.
    pub roads: Vec<Road>,
}

/// A link that the configuration names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wish {
    /// Its interface.
    pub name: String,
    /// It need not be there yet.
    pub later: bool,
}

/// What came of an MPTCP connection of this machine with itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Loopback {
    /// It was one.
    Speaks,
    /// It became plain TCP: new connections do not ask for MPTCP.
    Plain,
    /// It could not be tried, or came to nothing.
    Failed(String),
}

impl Facts {
    /// Whether new connections of this machine do not ask for MPTCP.
    pub fn is_off(&self) -> bool {
        self.enabled.as_deref() == Some("0") || self.loopback == Loopback::Plain
    }

    /// Looks once more at what probes may have changed: a link that drops MPTCP's packets makes the kernel switch it off.
    pub fn look_again(&mut self) {
        self.counters = counters(&fs::read_to_string("/proc/thread-self/net/netstat").unwrap_or_default());
        self.loopback = loopback();
    }
}

/// Looks at everything, and takes links for what the configuration says of them. Takes a few milliseconds.
///
/// # Errors
/// Interfaces cannot be listed.
pub fn gather(run_dir: &Path, named: Vec<Wish>, known: &[LinkArg]) -> Result<Facts, LinksError> {
    let settings = Settings::system();
    let survey = list_interfaces()?;
    let metered = MeteredHints::query(&survey);
    let manager = settings.read(ground::PATH_MANAGER);
    let manager = manager.or_else(|| {
        settings
            .read(ground::PM_TYPE)
            .map(|number| if number == "0" { "kernel".into() } else { "userspace".into() })
    });
    let listeners = listeners();
    let daemon = ground::daemon(run_dir, &listeners);
    Ok(Facts {
        kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
        enabled: settings.read(ground::ENABLED),
        path_manager: manager,
        blackhole_timeout: settings.read("net.mptcp.blackhole_timeout").and_then(|text| text.parse().ok()),
        writable: settings.is_writable(ground::ENABLED),
        has_events: events_group().is_some(),
        counters: counters(&fs::read_to_string("/proc/thread-self/net/netstat").unwrap_or_default()),
        loopback: loopback(),
        privileged: ground::may_administer(),
        mode: daemon.and_then(|_| mode(run_dir)),
        daemon,
        listeners,
        endpoints: ground::endpoints_of_others(run_dir).ok().map(shown),
        network_manager: Path::new("/run/NetworkManager").exists(),
        leftovers: ground::leftovers(run_dir),
        roads: roads(&survey, &metered, &settings, known),
        named,
        survey,
    })
}

/// How the daemon steers, as it says itself.
fn mode(run_dir: &Path) -> Option<String> {
    match control::ask(run_dir, &Question::Status { at_most: Some(0) }) {
        Ok(Answer::Status(status)) => Some(status.mode),
        _ => None,
    }
}

fn shown(endpoints: Vec<mptcp::Endpoint>) -> Vec<String> {
    endpoints.iter().map(|endpoint| format!("{} id {}", endpoint.address, endpoint.id)).collect()
}

fn loopback() -> Loopback {
    match try_loopback() {
        Ok(true) => Loopback::Speaks,
        Ok(false) => Loopback::Plain,
        Err(error) => Loopback::Failed(error.to_string()),
    }
}

/// chosen: the loopback answers in microseconds.
const PATIENCE: Duration = Duration::from_secs(1);

/// Connects an MPTCP socket to another one on the loopback. Nobody else can reach it.
fn try_loopback() -> io::Result<bool> {
    let socket = || Socket::new(Domain::IPV4, Type::STREAM, Some(Transport::MPTCP));
    let listener = socket()?;
    listener.bind(&SockAddr::from(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))))?;
    listener.listen(1)?;
    let client = socket()?;
    client.connect_timeout(&listener.local_addr()?, PATIENCE)?;
    let (server, _) = listener.accept()?;
    // The server knows for sure once it has heard something.
    server.set_read_timeout(Some(PATIENCE))?;
    (&client).write_all(b".")?;
    (&server).read_exact(&mut [0])?;
    speaks(&client, 0)
}

/// Whether the other end of a connected MPTCP socket speaks MPTCP. `link`: the interface that it is bound to, or 0.
pub(super) fn speaks(socket: &Socket, link: u32) -> io::Result<bool> {
    let ends = (socket.local_addr()?.as_socket(), socket.peer_addr()?.as_socket());
    let (Some(local), Some(remote)) = ends else { return Err(io::ErrorKind::InvalidData.into()) };
    let answer = Netlink::open(Protocol::SockDiag)?.request(&diag::query_tcp(local, remote, link).finish(1))?;
    let found = messages(&answer).find_map(|message| diag::Socket::parse(&message));
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
            if !Settings::system().has_mptcp() {
                eprintln!("skipped: this kernel has no MPTCP");
                return;
            }
            let run = tempfile::tempdir().unwrap();
            let facts = gather(run.path(), Vec::new(), &[]).unwrap();
            assert_eq!((facts.loopback, facts.endpoints), (Loopback::Speaks, Some(Vec::new())));
            assert!(facts.has_events && facts.writable && facts.privileged && facts.daemon.is_none());
            assert!(facts.counters.contains_key("MPCapableSYNTX"), "{:?}", facts.counters);
            fs::write("/proc/sys/net/mptcp/enabled", "0").unwrap();
            assert!(matches!(gather(run.path(), Vec::new(), &[]).unwrap().loopback, Loopback::Failed(_)));
        });
    }
}
