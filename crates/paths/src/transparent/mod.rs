//! `marline paths --transparent`: plain TCP of this host's programs goes on as MPTCP.
//!
//! In: which connections are meant ([`Scope`]). Out: each of them ends here and goes on as an MPTCP connection to where
//! it was going, until [`run`] is dropped.
//!
//! 1. The kernel leads connections here ([`nft_rules`], and a routing rule) as they are: this end of each has the address where it
//!    was going.
//! 2. Only the loopback is listened on. What comes here by itself, led by no rule, is closed: it was going nowhere.
//! 3. Bytes stay in the kernel (splice); a slow receiver slows its sender; the end of one direction is passed
//!    on alone; a connection that breaks on one side is reset on the other, so that half a file is not taken for a whole.
//! 4. A server without MPTCP is reached all the same: the kernel falls back by itself, which is counted.
//! 5. More than [`Config::limit`] connections wait in the kernel's queue until others end.
//! 6. The rules are there only while the forwarder is (see [`nft_rules`], 3).
//! 7. It can have a thread of its own ([`Forwarder`]), so that bulk traffic delays nobody's decisions.
//!
//! REDIRECT was not used: it takes the destination from sockets that are bound to a device, too, and then finds no way
//! for them, so that `marline get` and `curl --interface` hang. Nor programs of BPF: they need a kernel with BTF.

mod connection;
pub(super) mod nft;
pub mod nft_rules;
pub(super) mod policy_route;
mod thread;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

pub use nft::NftError;
pub use nft_rules::{Cgroup, PortRange, Scope};
pub use thread::Forwarder;

/// What the forwarder needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Which connections.
    pub scope: Scope,
    /// How many at once.
    pub max_connections: usize,
    /// How long the server may take to answer. The program believes that it has reached it meanwhile.
    pub connect_timeout: Duration,
    /// How long a connection may be silent. One whose one end is closed already has [`HALF_CLOSED`].
    pub idle_timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            scope: Scope::default(),
            max_connections: MAX_CONNECTIONS,
            connect_timeout: CONNECT_TIMEOUT,
            idle_timeout: IDLE_TIMEOUT,
        }
    }
}

/// chosen: six descriptors each; far above what a desktop or a small server opens.
const MAX_CONNECTIONS: usize = 4096;
/// chosen: a minute is where most programs give up; Linux itself would try for 127 s.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);
/// chosen: a shell that was left open over night is there in the morning. (RFC 5382 §5: at least 2 h 4 min.)
const IDLE_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);
/// chosen: as long as Linux's conntrack keeps what is half closed, and more than its `tcp_fin_timeout`.
pub const HALF_CLOSED_TIMEOUT: Duration = marline_net::splice::HALF_CLOSED_TIMEOUT;

/// What the forwarder has done so far. Read it at any time.
#[derive(Debug, Default)]
pub struct ForwarderCounters {
    open: AtomicU64,
    mptcp: AtomicU64,
    fallen_back: AtomicU64,
    failed: AtomicU64,
    bytes: AtomicU64,
}

impl ForwarderCounters {
    /// Connections that are open now.
    pub fn open(&self) -> u64 {
        self.open.load(Ordering::Relaxed)
    }
    /// Connections whose server spoke MPTCP.
    pub fn mptcp(&self) -> u64 {
        self.mptcp.load(Ordering::Relaxed)
    }
    /// Connections whose server, or something on the way, did not.
    pub fn fallen_back(&self) -> u64 {
        self.fallen_back.load(Ordering::Relaxed)
    }
    /// Connections whose server could not be reached.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }
    /// Bytes both ways.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// Why connections cannot be led here.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// The program that sets the rules is missing.
    #[error("--transparent: the program nft is not there; it is in the package nftables")]
    NoNft,
    /// A privilege is missing.
    #[error(
        "--transparent: not permitted: needs CAP_NET_ADMIN, for nft too (run as root, or as the systemd unit does)"
    )]
    NotPermitted,
    /// Another process owns the rules.
    #[error(
        "--transparent: another marline leads the connections of this host already (nft list table inet marline)"
    )]
    AlreadyOwned,
    /// Anything else that nft says.
    #[error("--transparent: nft: {0}")]
    Nft(String),
    /// The kernel makes no such sockets.
    #[error("--transparent: {what}: {error}")]
    Socket {
        /// Which.
        what: &'static str,
        /// Why not.
        error: io::Error,
    },
}

impl From<NftError> for ForwardError {
    fn from(error: NftError) -> Self {
        match error {
            NftError::NotInstalled => Self::NoNft,
            NftError::NotPermitted => Self::NotPermitted,
            NftError::AlreadyOwned => Self::AlreadyOwned,
            NftError::Failed(message) => Self::Nft(message),
        }
    }
}

/// Whether connections could be led here. Nothing is changed. Blocks for a moment.
///
/// # Errors
/// What stands in the way: no nft, no privilege, somebody else's rules, a kernel without what it takes.
pub fn check(scope: &Scope) -> Result<(), ForwardError> {
    connection::check_sockets()?;
    Ok(nft_rules::check_table(scope, nft_rules::IpFamilies { ipv4: true, ipv6: true })?)
}

/// Leads connections here and on, until it is dropped: the rules go first. `counts` shows what it does. Needs a tokio
/// runtime with I/O and time.
///
/// # Errors
/// When it cannot begin, and when the rules are lost on the way.
pub async fn run(
    config: Config,
    counters: Arc<ForwarderCounters>,
) -> Result<std::convert::Infallible, ForwardError> {
    // Before the detour: of another one, whose rules these are, it is not to be taken away.
    check(&config.scope)?;
    let max_connections = config.max_connections.min(descriptor_budget() / FDS_PER_CONNECTION).max(1);
    let (port, listeners) = bind_listeners()?;
    let addresses: Vec<IpAddr> = listeners.iter().map(|(address, _)| *address).collect();
    let families = nft_rules::IpFamilies::from_addresses(&addresses);
    // The last that is made is the first that goes.
    let mut tasks = JoinSet::new();
    let _policy_route =
        policy_route::PolicyRouteGuard::new(&policy_route::HOST_TRAFFIC, families).map_err(|error| match error
            .kind()
        {
            io::ErrorKind::PermissionDenied => ForwardError::NotPermitted,
            _ => ForwardError::Socket { what: "a routing rule", error },
        })?;
    let mut nft_table = nft_rules::install(&config.scope, port, families).await?;
    tracing::info!(port, max_connections, "connections are led here");
    let permits = Arc::new(Semaphore::new(max_connections));
    loop {
        tokio::select! {
            (client, permit) = next_connection(&listeners, &permits) => {
                let (config, counters) = (config.clone(), Arc::clone(&counters));
                tasks.spawn(async move {
                    connection::forward_connection(client, &config, &counters).await;
                    drop(permit);
                });
            }
            Some(_) = tasks.join_next() => {}
            error = nft_table.wait_for_loss() => return Err(error.into()),
        }
    }
}

/// The next connection, when there is room for one.
async fn next_connection(
    listeners: &[(IpAddr, TcpListener)],
    permits: &Arc<Semaphore>,
) -> (TcpStream, OwnedSemaphorePermit) {
    let Ok(permit) = Arc::clone(permits).acquire_owned().await else { std::future::pending().await };
    (accept_any(listeners).await, permit)
}

/// The next connection.
pub(super) async fn accept_any(listeners: &[(IpAddr, TcpListener)]) -> TcpStream {
    loop {
        let accepted = match listeners {
            [(_, first)] => first.accept().await,
            [(_, first), (_, second), ..] => tokio::select! {
                accepted = first.accept() => accepted,
                accepted = second.accept() => accepted,
            },
            [] => std::future::pending().await,
        };
        match accepted {
            Ok((client, _)) => return client,
            Err(error) => {
                // Out of descriptors or memory, or a client that has gone already.
                tracing::debug!(%error, "accept");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
    }
}

/// One port on each family's loopback, the same for both: the rules name only one.
pub(super) fn bind_listeners() -> Result<(u16, Vec<(IpAddr, TcpListener)>), ForwardError> {
    let [ipv4, ipv6] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    let mut last_error = None;
    for _ in 0..MAX_BIND_TRIES {
        let (first, second_address) = match bind_transparent(ipv4, 0) {
            Ok(listener) => ((ipv4, listener), Some(ipv6)),
            Err(error) => match bind_transparent(ipv6, 0) {
                Ok(listener) => ((ipv6, listener), None),
                Err(_) => return Err(ForwardError::Socket { what: "a listener on 127.0.0.1", error }),
            },
        };
        let port = first.1.local_addr().map(|address| address.port());
        let port = port.map_err(|error| ForwardError::Socket { what: "a listener", error })?;
        let Some(other_address) = second_address else { return Ok((port, vec![first])) };
        match bind_transparent(other_address, port) {
            Ok(listener) => return Ok((port, vec![first, (other_address, listener)])),
            // Somebody has this port there: another one, then.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => last_error = Some(error),
            // A machine without IPv6.
            Err(_) => return Ok((port, vec![first])),
        }
    }
    let error = last_error.unwrap_or_else(|| io::ErrorKind::AddrInUse.into());
    Err(ForwardError::Socket { what: "a port that is free on 127.0.0.1 and ::1", error })
}

/// A listener that may be given connections to anywhere.
fn bind_transparent(address: IpAddr, port: u16) -> io::Result<TcpListener> {
    let address = SocketAddr::new(address, port);
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    match address {
        SocketAddr::V4(_) => socket.set_ip_transparent_v4(true)?,
        SocketAddr::V6(_) => socket.set_ip_transparent_v6(true)?,
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// As many descriptors as this user may have, but for a reserve. With fewer, more connections wait.
fn descriptor_budget() -> usize {
    usize::try_from(marline_net::rlimit::raise_nofile_limit()).unwrap_or(usize::MAX).saturating_sub(RESERVED_FDS)
}

/// Two sockets, and two pipes of two ends.
const FDS_PER_CONNECTION: usize = 6;
/// chosen: for the listeners, nft, and whatever else the process does.
const RESERVED_FDS: usize = 128;
const MAX_BIND_TRIES: usize = 16;
/// chosen: as tokio's listeners.
const BACKLOG: i32 = 1024;
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);
