//! Transparent forwarder of `marline paths --transparent`: plain TCP connections of this host's programs continue as
//! MPTCP.
//!
//! Each connection in the [`Scope`] is terminated here and continued as an MPTCP connection to its original
//! destination, until [`run`] is dropped.
//!
//! 1. The kernel redirects connections unchanged ([`nft_rules`] and a policy route): the local address of each
//!    accepted socket is the original destination.
//! 2. The listeners are bound to the loopback. A connection that arrives without redirection has no destination and
//!    is closed.
//! 3. Bytes stay in the kernel (splice). A slow receiver slows its sender down. The end of one direction is forwarded
//!    alone. A connection that fails on one side is reset on the other, so that half a file is not mistaken for a
//!    whole one.
//! 4. A server without MPTCP is reached nevertheless: the kernel falls back to TCP by itself, which is counted.
//! 5. Connections beyond [`Config::max_connections`] wait in the kernel's queue until others end.
//! 6. The rules exist only while the forwarder runs (see [`nft_rules`], 3).
//! 7. The forwarder can have its own thread ([`Forwarder`]), so that bulk traffic does not delay decisions of the
//!    driver.
//!
//! REDIRECT would not do: it rewrites the destination of sockets that are bound to a device as well, which then have
//! no route, so that `marline get` and `curl --interface` hang. BPF programs would need a kernel with BTF.

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

/// Configuration of the forwarder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The connections to forward.
    pub scope: Scope,
    /// Maximum number of concurrent connections. Default: 4096.
    pub max_connections: usize,
    /// Timeout for connecting to the server. The program's connection is established already meanwhile. Default: one
    /// minute.
    pub connect_timeout: Duration,
    /// Idle timeout of a connection. A half-closed connection has [`HALF_CLOSED_TIMEOUT`]. Default: one day.
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

/// Our choice: six file descriptors each; far above the needs of a desktop or small server.
const MAX_CONNECTIONS: usize = 4096;
/// Our choice: most programs give up after a minute; Linux would try for 127 s.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);
/// Our choice: a shell that is left open over night is still connected in the morning. (RFC 5382 section 5 requires at
/// least 2 h 4 min.)
const IDLE_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);
/// Idle timeout of a half-closed connection. Our choice: as long as Linux's conntrack keeps it, and more than
/// `tcp_fin_timeout`.
pub const HALF_CLOSED_TIMEOUT: Duration = marline_net::splice::HALF_CLOSED_TIMEOUT;

/// Counters of the forwarder since its start, readable at any time. All but [`open`](Self::open) include connections
/// that have ended.
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
    /// Connections whose server uses MPTCP.
    pub fn mptcp(&self) -> u64 {
        self.mptcp.load(Ordering::Relaxed)
    }
    /// Connections without MPTCP, because the server or a middlebox does not support it.
    pub fn fallen_back(&self) -> u64 {
        self.fallen_back.load(Ordering::Relaxed)
    }
    /// Connections whose server could not be reached.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }
    /// Forwarded bytes in both directions.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// Why connections cannot be redirected to the forwarder.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// The program `nft` is missing.
    #[error("--transparent: the program nft is not installed (package nftables)")]
    NoNft,
    /// CAP_NET_ADMIN is missing.
    #[error(
        "--transparent: not permitted: needs CAP_NET_ADMIN, for nft too (run as root, or as the systemd unit does)"
    )]
    NotPermitted,
    /// Another process owns the nftables table.
    #[error(
        "--transparent: another marline redirects the connections of this host already (nft list table inet marline)"
    )]
    AlreadyOwned,
    /// Any other error of nft.
    #[error("--transparent: nft: {0}")]
    Nft(String),
    /// The kernel refused a socket.
    #[error("--transparent: {object}: {error}")]
    Socket {
        /// The refused object.
        object: &'static str,
        /// The error of the kernel.
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

/// Checks whether connections could be redirected. Changes nothing. Blocks for a moment.
///
/// # Errors
/// The obstacle: no nft, no privilege, rules of another process, or missing kernel support.
pub fn check(scope: &Scope) -> Result<(), ForwardError> {
    connection::check_sockets()?;
    Ok(nft_rules::check_table(scope, nft_rules::IpFamilies { ipv4: true, ipv6: true })?)
}

/// Redirects and forwards connections until the future is dropped, which removes the rules first. `counters` shows
/// its activity. Needs a tokio runtime with I/O and time.
///
/// # Errors
/// It cannot start, or the rules were lost.
pub async fn run(
    config: Config,
    counters: Arc<ForwarderCounters>,
) -> Result<std::convert::Infallible, ForwardError> {
    // Checked before the policy route is installed: if another process owns the table, its policy route must be kept.
    check(&config.scope)?;
    let max_connections = config.max_connections.min(descriptor_budget() / FDS_PER_CONNECTION).max(1);
    let (port, listeners) = bind_listeners()?;
    let addresses: Vec<IpAddr> = listeners.iter().map(|(address, _)| *address).collect();
    let families = nft_rules::IpFamilies::from_addresses(&addresses);
    // Dropped in reverse order: the rules first, then the policy route, then connections.
    let mut tasks = JoinSet::new();
    let _policy_route =
        policy_route::PolicyRouteGuard::new(&policy_route::HOST_TRAFFIC, families).map_err(|error| match error
            .kind()
        {
            io::ErrorKind::PermissionDenied => ForwardError::NotPermitted,
            _ => ForwardError::Socket { object: "a routing rule", error },
        })?;
    let mut nft_table = nft_rules::install(&config.scope, port, families).await?;
    tracing::info!(port, max_connections, "connections are redirected to the forwarder");
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

/// Accepts the next connection, once a permit is available.
async fn next_connection(
    listeners: &[(IpAddr, TcpListener)],
    permits: &Arc<Semaphore>,
) -> (TcpStream, OwnedSemaphorePermit) {
    let Ok(permit) = Arc::clone(permits).acquire_owned().await else { std::future::pending().await };
    (accept_any(listeners).await, permit)
}

/// Accepts the next connection of any listener; retries after errors.
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
                // Out of descriptors or memory, or the client has disappeared already.
                tracing::debug!(%error, "accept");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
    }
}

/// Binds the same port on the loopback addresses of both families, since the rules name only one.
pub(super) fn bind_listeners() -> Result<(u16, Vec<(IpAddr, TcpListener)>), ForwardError> {
    let [ipv4, ipv6] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    let mut last_error = None;
    for _ in 0..MAX_BIND_TRIES {
        let (first, second_address) = match bind_transparent(ipv4, 0) {
            Ok(listener) => ((ipv4, listener), Some(ipv6)),
            Err(error) => match bind_transparent(ipv6, 0) {
                Ok(listener) => ((ipv6, listener), None),
                Err(_) => return Err(ForwardError::Socket { object: "a listener on 127.0.0.1", error }),
            },
        };
        let port = first.1.local_addr().map(|address| address.port());
        let port = port.map_err(|error| ForwardError::Socket { object: "a listener", error })?;
        let Some(other_address) = second_address else { return Ok((port, vec![first])) };
        match bind_transparent(other_address, port) {
            Ok(listener) => return Ok((port, vec![first, (other_address, listener)])),
            // Another program uses this port there: try another one.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => last_error = Some(error),
            // A host without IPv6.
            Err(_) => return Ok((port, vec![first])),
        }
    }
    let error = last_error.unwrap_or_else(|| io::ErrorKind::AddrInUse.into());
    Err(ForwardError::Socket { object: "a port that is free on both 127.0.0.1 and ::1", error })
}

/// A listener that accepts connections to any address (`IP_TRANSPARENT`).
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

/// Available file descriptors of this user, minus a reserve. With fewer, more connections wait.
fn descriptor_budget() -> usize {
    usize::try_from(marline_net::rlimit::raise_nofile_limit()).unwrap_or(usize::MAX).saturating_sub(RESERVED_FDS)
}

/// Two sockets, and two pipes with two ends each.
const FDS_PER_CONNECTION: usize = 6;
/// Our choice: for the listeners, nft, and the rest of the process.
const RESERVED_FDS: usize = 128;
const MAX_BIND_TRIES: usize = 16;
/// Our choice: as tokio's listeners.
const BACKLOG: i32 = 1024;
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);
