//! Client and server network namespaces, joined by TUN pairs and configured over netlink.
//!
//! | | client | server |
//! |---|---|---|
//! | link i (from 0) | `10.(i+1).0.2/24`, `fd00:0:0:i+1::2/64` | `10.(i+1).0.1/24`, `fd00:0:0:i+1::1/64` |
//! | loopback | | `10.99.0.1`, `fd99::1`: server addresses, reached over every link |
//! | routes | a default route per link through its server end, metric 100 + i; the same route alone in table 1000 + i | the link's network |
//! | rules | packets from the link's address use table 1000 + i | |
//!
//! 1. A client chooses its link by binding its socket to the device or to the device's address; otherwise it gets
//!    link 0.
//! 2. Every route names the congestion control (`congctl`). A route may select one that sockets of the namespace
//!    may not (sysctl `tcp_allowed_congestion_control`), and it applies to connections in both directions.
//! 3. Reverse-path filtering is turned off before the first device exists: the kernel uses the larger of the values
//!    for `all` and for the device.
//! 4. The `ip` command is not used: the machine may not have it, and one process per setting would take longer than
//!    the rest of the lab.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use marline_core::wire::netlink::{Address, Link, LinkChange, Request, Route, SourceRule, family, messages};
use marline_sim::spec::LinkSpec;
use marline_sys::namespace::NetNs;
use marline_sys::netlink::RouteSocket;
use marline_sys::tun::Tun;
use socket2::{Domain, Socket, Type};

use crate::{Congestion, LabError, ServerTcp};

/// The server's IPv4 address.
pub(crate) const SERVER: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
/// The server's IPv6 address.
pub(crate) const SERVER_V6: Ipv6Addr = Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, 1);
/// Transmit queue of a TUN device, in packets that wait for the emulator. With 1000 some are lost at full speed
/// (measured).
const TUN_QUEUE: u32 = 5000;

/// One end of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EndRole {
    Client,
    Server,
}

impl EndRole {
    /// Addresses of this end on link number `at` (from 0).
    fn addresses(self, at: usize) -> (Ipv4Addr, Ipv6Addr) {
        let link = u8::try_from(at + 1).unwrap_or(u8::MAX);
        let host = if self == Self::Client { 2 } else { 1 };
        (Ipv4Addr::new(10, link, 0, host), Ipv6Addr::new(0xfd00, 0, 0, u16::from(link), 0, 0, 0, u16::from(host)))
    }
}

/// Which congestion control the connections really use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CongestionReport {
    /// The requested algorithm.
    pub requested: Congestion,
    /// Algorithm of a new connection from the client.
    pub client: String,
    /// Algorithm of a new connection from the server.
    pub server: String,
}

impl CongestionReport {
    /// Whether both ends use the requested algorithm.
    pub fn is_granted(&self) -> bool {
        self.client == self.requested.name() && self.server == self.requested.name()
    }
}

/// All network namespaces of a lab, configured.
#[derive(Debug)]
pub(crate) struct Namespaces {
    pub(crate) client: NetNs,
    pub(crate) server: NetNs,
    /// Site n is at index n - 1; site 0 is the server ([`crate::wan_topology`]).
    pub(crate) sites: Vec<NetNs>,
    pub(crate) congestion: CongestionReport,
}

impl Namespaces {
    /// The network of a site ([`crate::wan_topology`]); `None` if there is no such site.
    pub(crate) fn site(&self, site: usize) -> Option<&NetNs> {
        match site.checked_sub(1) {
            None => Some(&self.server),
            Some(site) => self.sites.get(site),
        }
    }
}

/// The two TUN devices of one link, for the emulator.
#[derive(Debug)]
pub(crate) struct TunPair {
    pub(crate) client: Tun,
    pub(crate) server: Tun,
}

/// Builds and configures client and server.
pub(crate) fn build(
    links: &[LinkSpec],
    requested: Congestion,
    sender: ServerTcp,
) -> Result<(Namespaces, Vec<TunPair>), LabError> {
    let new = |side| NetNs::new().map_err(LabError::at_step(format!("network namespace of the {side}")));
    let (client, server) = (new("client")?, new("server")?);
    let client_ends = build_end(&client, EndRole::Client, links, requested)?;
    let server_ends = build_end(&server, EndRole::Server, links, requested)?;
    if sender.keeps_cwnd {
        server.run(|| fs::write(SLOW_START_AFTER_IDLE, "0")).map_err(LabError::at_step(SLOW_START_AFTER_IDLE))?;
    }
    let pairs =
        client_ends.into_iter().zip(server_ends).map(|(client, server)| TunPair { client, server }).collect();
    let probe =
        |network: &NetNs, to| network.run(move || congestion_towards(to)).map_err(LabError::at_step("congestion"));
    let congestion = CongestionReport {
        requested,
        client: probe(&client, SERVER)?,
        server: probe(&server, EndRole::Client.addresses(0).0)?,
    };
    Ok((Namespaces { client, server, sites: Vec::new(), congestion }, pairs))
}

/// Packets that the TUN device of each link has dropped so far because the emulator was late, in the order of
/// `links`.
pub(crate) fn tun_drops(network: &NetNs, links: &[LinkSpec]) -> io::Result<Vec<u64>> {
    let all = network.run(|| all_links(&RouteSocket::open()?))?;
    let dropped = |link: &LinkSpec| all.iter().find(|l| l.name == link.name).map_or(0, |l| l.tx_dropped);
    Ok(links.iter().map(dropped).collect())
}

/// Takes the client's device of a link down or up; must run on a thread in its namespace. The kernel deletes the
/// routes over a device that goes down, so this function installs them again when the device comes up, as DHCP
/// would elsewhere.
pub(crate) fn set_device(link_number: usize, name: &str, up: bool, congestion: Congestion) -> Result<(), LabError> {
    let step = format!("device {name}");
    let socket = RouteSocket::open().map_err(LabError::at_step(&step))?;
    let all = all_links(&socket).map_err(LabError::at_step(&step))?;
    let index = all.iter().find(|link| link.name == name).map_or(0, |link| link.index);
    let end = EndBuilder { socket, side: EndRole::Client, congestion };
    end.send(&step, LinkChange { up: Some(up), ..LinkChange::default() }.request(index))?;
    if up {
        let (v4, v6) = end.side.addresses(link_number);
        end.routes(&step, link_number, index, v4.into(), 24)?;
        // The kernel removed the IPv6 address together with the routes.
        let _ = end.address_and_routes(&step, link_number, index, v6.into(), 64);
    }
    Ok(())
}

/// Creates a link's device in the namespace of this thread.
pub(crate) fn create_tun(link: &LinkSpec) -> io::Result<Tun> {
    Tun::create(&link.name)
}

/// Sets MTU, queue and alias, brings the device up, and returns its interface index.
pub(crate) fn set_link_up(socket: &RouteSocket, link: &LinkSpec) -> io::Result<u32> {
    let index = all_links(socket)?.iter().find(|l| l.name == link.name).map_or(0, |l| l.index);
    let alias = format!("marline-lab kind={}", link.kind);
    let change = LinkChange {
        up: Some(true),
        mtu: u32::try_from(link.mtu.bytes()).ok(),
        tx_queue_len: Some(TUN_QUEUE),
        alias: Some(&alias),
    };
    socket.request(&change.request(index).finish(1))?;
    Ok(index)
}

/// Adds one more address to the server, reached over every link as [`SERVER`] is, or removes it. Removing it makes
/// the host with this address vanish without closing its connections. Must run on a thread in the server namespace.
pub(crate) fn set_address(address: Ipv4Addr, is_present: bool) -> io::Result<()> {
    let request = if is_present {
        Address::assign(LOOPBACK, address.into(), 32)
    } else {
        Address::remove(LOOPBACK, address.into(), 32)
    };
    RouteSocket::open()?.request(&request.finish(1)).map(drop)
}

/// Interface index of the loopback device in every namespace.
const LOOPBACK: u32 = 1;

/// Builds one end of all links in its namespace. `NetNs::run` can only return I/O errors, so the real error leaves the closure through
/// `failed`.
fn build_end(
    network: &NetNs,
    side: EndRole,
    links: &[LinkSpec],
    congestion: Congestion,
) -> Result<Vec<Tun>, LabError> {
    let mut failed = None;
    let built = network.run(|| {
        EndBuilder::start(side, congestion)
            .and_then(|end| {
                links.iter().enumerate().map(|(at, link)| end.add_link(at, link)).collect::<Result<Vec<_>, _>>()
            })
            .map_err(|error| {
                failed = Some(error);
                io::Error::other("see `failed`")
            })
    });
    built.map_err(|source| failed.unwrap_or(LabError::Setup { step: "entering a namespace".into(), source }))
}

/// Builder of one end, on a thread in its namespace.
struct EndBuilder {
    socket: RouteSocket,
    side: EndRole,
    congestion: Congestion,
}

impl EndBuilder {
    fn start(side: EndRole, congestion: Congestion) -> Result<Self, LabError> {
        for (name, value) in SYSCTLS {
            // A kernel may lack a setting (usually of IPv6); then there is nothing to set.
            let _ = fs::write(format!("/proc/sys/net/{name}"), value);
        }
        let socket = RouteSocket::open().map_err(LabError::at_step("netlink socket"))?;
        let end = Self { socket, side, congestion };
        end.send("loopback", LinkChange { up: Some(true), ..LinkChange::default() }.request(1))?;
        if side == EndRole::Server {
            end.send("server's address", Address::assign(1, SERVER.into(), 32))?;
            let _ = end.send("server's address", Address::assign(1, SERVER_V6.into(), 128));
        }
        Ok(end)
    }

    fn send(&self, step: &str, request: Request) -> Result<(), LabError> {
        self.socket.request(&request.finish(1)).map(|_| ()).map_err(LabError::at_step(step))
    }

    fn add_link(&self, link_number: usize, link: &LinkSpec) -> Result<Tun, LabError> {
        let name = &link.name;
        let tun = create_tun(link).map_err(|source| tun_error(name, source))?;
        let step = format!("link {name}");
        let index = set_link_up(&self.socket, link).map_err(LabError::at_step(&step))?;
        let (v4, v6) = self.side.addresses(link_number);
        self.address_and_routes(&step, link_number, index, v4.into(), 24)?;
        // The kernel may lack IPv6, and IPv6 needs an MTU of at least 1280.
        let _ = self.address_and_routes(&step, link_number, index, v6.into(), 64);
        Ok(tun)
    }

    /// Assigns the address and installs its routes; on the client also the rule that selects the link by source
    /// address.
    fn address_and_routes(
        &self,
        step: &str,
        at: usize,
        index: u32,
        address: IpAddr,
        prefix: u8,
    ) -> Result<(), LabError> {
        self.send(step, Address::assign(index, address, prefix))?;
        self.routes(step, at, index, address, prefix)?;
        if self.side == EndRole::Client {
            let table = 1000 + u32::try_from(at).unwrap_or(0);
            let bits = if address.is_ipv4() { 32 } else { 128 };
            self.send(step, SourceRule::new((address, bits), table, table).add())?;
        }
        Ok(())
    }

    /// Installs the route to the link's network; on the client also the default routes in the main and the link's
    /// table.
    fn routes(
        &self,
        step: &str,
        link_number: usize,
        index: u32,
        address: IpAddr,
        prefix: u8,
    ) -> Result<(), LabError> {
        let number = u32::try_from(link_number).unwrap_or(0);
        let family = if address.is_ipv4() { family::V4 } else { family::V6 };
        let route = Route { source: Some(address), ..Route::default_via_interface(family, index) };
        let source = if self.side == EndRole::Server { server_address_like(address) } else { address };
        self.route(
            step,
            Route { destination: Some((subnet_of(address), prefix)), source: Some(source), ..route.clone() },
        )?;
        if self.side == EndRole::Client {
            let (v4, v6) = EndRole::Server.addresses(link_number);
            let gateway = if address.is_ipv4() { v4.into() } else { v6.into() };
            let route = Route { gateway: Some(gateway), ..route };
            self.route(step, Route { metric: 100 + number, ..route.clone() })?;
            self.route(step, Route { table: 1000 + number, ..route })?;
        }
        Ok(())
    }

    /// Installs the route with the congestion control, or without it if the kernel does not have that algorithm.
    /// [`CongestionReport`] then shows which one connections got instead.
    fn route(&self, step: &str, route: Route) -> Result<(), LabError> {
        let with = Route { congestion_control: self.congestion.name().into(), ..route.clone() };
        self.send(step, with.install()).or_else(|_| self.send(step, route.install()))
    }
}

const SLOW_START_AFTER_IDLE: &str = "/proc/sys/net/ipv4/tcp_slow_start_after_idle";

/// Settings of a namespace, written before its first device exists.
pub(crate) const SYSCTLS: [(&str, &str); 10] = [
    ("ipv4/conf/all/rp_filter", "0"),
    ("ipv4/conf/default/rp_filter", "0"),
    // A rootless server may listen on port 80, and a rootless client may ping.
    ("ipv4/ip_unprivileged_port_start", "0"),
    ("ipv4/ping_group_range", "0 0"),
    // Addresses are usable at once, and the kernel sends no packets of its own (duplicate address detection, router
    // solicitations).
    ("ipv6/conf/all/accept_dad", "0"),
    ("ipv6/conf/default/accept_dad", "0"),
    ("ipv6/conf/all/accept_ra", "0"),
    ("ipv6/conf/default/accept_ra", "0"),
    ("ipv6/conf/default/router_solicitations", "0"),
    ("ipv6/conf/default/addr_gen_mode", "1"),
];

fn all_links(socket: &RouteSocket) -> io::Result<Vec<Link>> {
    let reply = socket.request(&Request::dump_links().finish(1))?;
    Ok(messages(&reply).filter_map(|message| Link::parse(&message)).collect())
}

/// The network address for both prefix lengths in use (/24 and /64).
fn subnet_of(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, _] = v4.octets();
            Ipv4Addr::new(a, b, c, 0).into()
        }
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
    }
}

fn server_address_like(same_family: IpAddr) -> IpAddr {
    if same_family.is_ipv4() { SERVER.into() } else { SERVER_V6.into() }
}

/// Returns the congestion control of a connection to `to`. The kernel selects it with the first SYN, so no reply is
/// needed.
fn congestion_towards(to: Ipv4Addr) -> io::Result<String> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    match socket.connect(&SocketAddr::from((to, 9)).into()) {
        Err(error) if error.raw_os_error() != Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => {
            return Err(error);
        }
        _ => {}
    }
    let name = socket.tcp_congestion()?;
    Ok(String::from_utf8_lossy(&name).trim_end_matches('\0').to_string())
}

/// The error of creating a TUN device, with the remedy.
fn tun_error(name: &str, source: io::Error) -> LabError {
    let hint = match source.kind() {
        io::ErrorKind::PermissionDenied => {
            "run as root, or make the node accessible to all users, as most distributions do: sudo chmod 666 /dev/net/tun"
        }
        io::ErrorKind::NotFound => "the kernel's TUN driver is not loaded: sudo modprobe tun",
        _ => "run `marline-lab doctor` for details",
    };
    LabError::Tun { name: name.into(), source, hint }
}
