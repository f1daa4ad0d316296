//! Connects to the origin server that an edge requests: resolves its name, checks the access rules, opens a TCP connection.
//!
//! A failure returns the [`Problem`] with which the relay responds.
//!
//! 1. A name is resolved once, and the relay connects to the addresses that have passed the rules. A second lookup, which might
//!    return another address, is never made.
//! 2. If only some addresses of a name are allowed, these are used. If none is, the response states the rule.
//! 3. The first address that connects wins ([`connect_first`]).
//! 4. The kernel's keep-alive detects vanished servers ([`KEEPALIVE_TIME`]). At most [`NOTSENT_LOWAT`] bytes wait unsent in the kernel:
//!    a slow server thus slows down the edge, and needs little memory.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::acl::{Acl, Refusal};
use super::audit::FlowRecord;
use super::resolver::{ResolveError, Resolver};
use crate::congestion::CongestionControl;
use crate::happy_eyeballs::{connect_first, interleave_families};
use crate::identity::Name;
use crate::tunnel::{Problem, Status, Target};

/// Our choice: three SYNs (RFC 6298 §2: after 1, 3 and 7 s) need 7 s.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Our choice: more addresses than a well-behaved name has.
const MAX_ADDRESSES: usize = 8;

/// Our choice: a vanished server is detected after four minutes; a live one is probed no more often than NATs require.
const KEEPALIVE_TIME: Duration = Duration::from_secs(120);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEPALIVE_PROBES: u32 = 6;
/// Our choice: the bytes that 1 Gbit/s sends in one millisecond.
const NOTSENT_LOWAT: u32 = 128 * 1024;

/// What decides where and how to connect.
pub(super) struct UpstreamContext<'a> {
    pub(super) acl: &'a Acl,
    /// Whether an address is the relay's own.
    pub(super) is_own: &'a (dyn Fn(IpAddr) -> bool + Sync),
    pub(super) resolver: &'a Resolver,
    pub(super) congestion: Option<&'a CongestionControl>,
}

/// Connects to the target for this edge.
///
/// Records in `flow` the address, or the rule that refused it.
pub(super) async fn connect(
    target: &Target,
    edge: &Name,
    context: &UpstreamContext<'_>,
    flow: &mut FlowRecord,
) -> Result<TcpStream, Problem> {
    context.acl.check_target(&target.host, target.port).map_err(|refusal| {
        flow.rule = Some(rule_name(&refusal));
        refusal_problem(target, &refusal)
    })?;
    let addresses = match target.host.parse::<IpAddr>() {
        Ok(address) => vec![address],
        Err(_) => {
            context.resolver.resolve(edge, &target.host).await.map_err(|why| resolve_problem(target, &why))?
        }
    };
    let addresses: Vec<_> = addresses.into_iter().map(|address| SocketAddr::new(address, target.port)).collect();
    let (mut allowed, mut refusal) = (Vec::new(), None);
    for address in interleave_families(&addresses).into_iter().take(MAX_ADDRESSES) {
        match context.acl.check_address(address.ip(), context.is_own) {
            Ok(()) => allowed.push(address),
            Err(why) => refusal = Some((address.ip(), why)),
        }
    }
    if allowed.is_empty() {
        let none =
            || Problem::new(Status::BadGateway, "dns_error", format!("{}: the name has no address", target.host));
        return Err(refusal.map_or_else(none, |(address, why)| {
            tracing::debug!(%edge, host = target.host, %address, "refused");
            (flow.address, flow.rule) = (Some(SocketAddr::new(address, target.port)), Some(rule_name(&why)));
            refusal_problem(target, &why)
        }));
    }
    match timeout(CONNECT_TIMEOUT, connect_first(&allowed, TcpStream::connect)).await {
        Ok(Ok(connection)) => {
            set_socket_options(&connection, context.congestion);
            flow.address = connection.peer_addr().ok();
            Ok(connection)
        }
        Ok(Err(error)) => Err(unreachable_problem(target, &error)),
        Err(_) => Err(Problem::new(
            Status::GatewayTimeout,
            "connection_timeout",
            format!("{}: no answer to the connection attempt", target.host),
        )),
    }
}

/// Sets the socket options. A failure is ignored: it affects only the delay of small packets and the detection of vanished servers.
fn set_socket_options(server: &TcpStream, congestion: Option<&CongestionControl>) {
    if let Some(congestion) = congestion {
        congestion.apply_to(server);
    }
    let _ = server.set_nodelay(true);
    let keep_alive = TcpKeepalive::new().with_time(KEEPALIVE_TIME).with_interval(KEEPALIVE_INTERVAL);
    let socket = SockRef::from(server);
    let _ = socket.set_tcp_keepalive(&keep_alive.with_retries(KEEPALIVE_PROBES));
    let _ = socket.set_tcp_notsent_lowat(NOTSENT_LOWAT);
}

/// The name of the rule in the audit log: the option that would allow the target.
fn rule_name(why: &Refusal) -> &'static str {
    match why {
        Refusal::Port(_) => "allow-port",
        Refusal::Host => "allow-host",
        Refusal::Address(_) => "allow-net",
        Refusal::OwnAddress(_) => "own-address",
    }
}

fn refusal_problem(target: &Target, why: &Refusal) -> Problem {
    let error = match why {
        Refusal::Port(_) | Refusal::Host => "http_request_denied",
        Refusal::Address(_) | Refusal::OwnAddress(_) => "destination_ip_prohibited",
    };
    Problem::new(Status::Forbidden, error, format!("{}:{}: {why}", target.host, target.port))
}

fn unreachable_problem(target: &Target, error: &io::Error) -> Problem {
    let error_type = match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection_refused",
        io::ErrorKind::TimedOut => "connection_timeout",
        _ => "destination_ip_unroutable",
    };
    Problem::new(Status::BadGateway, error_type, format!("{}:{}: {error}", target.host, target.port))
}

fn resolve_problem(target: &Target, why: &ResolveError) -> Problem {
    let error_type = match why {
        ResolveError::Failed(_) => "dns_error",
        ResolveError::TimedOut => "dns_timeout",
    };
    Problem::new(Status::BadGateway, error_type, format!("{}: {why}", target.host))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use tokio::net::TcpListener;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    fn target(host: &str, port: u16) -> Target {
        Target { host: host.to_owned(), port }
    }

    fn loopback_acl() -> Acl {
        Acl {
            ports: vec!["1-65535".parse().unwrap()],
            networks: vec!["127.0.0.0/8".parse().unwrap()],
            ..Acl::default()
        }
    }

    async fn connect_with(target: &Target, rules: &Acl) -> Result<TcpStream, Problem> {
        let (resolver, edge) = (Resolver::default(), "cam-1".parse().unwrap());
        let mut flow = FlowRecord::new(&edge);
        let context = UpstreamContext { acl: rules, is_own: &|_| false, resolver: &resolver, congestion: None };
        super::connect(target, &edge, &context, &mut flow).await
    }

    #[test]
    fn an_allowed_target_is_connected() {
        block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let connection = connect_with(&target("localhost", port), &loopback_acl()).await.unwrap();
            assert_eq!(connection.peer_addr().unwrap(), listener.local_addr().unwrap());
        });
    }

    #[test]
    fn a_name_with_a_local_address_is_refused_after_resolution() {
        block_on(async {
            let rules = Acl { networks: Vec::new(), ..loopback_acl() };
            for host in ["localhost", "127.0.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.1"] {
                let problem = connect_with(&target(host, 80), &rules).await.unwrap_err();
                assert_eq!(
                    (problem.status, problem.error),
                    (Status::Forbidden, "destination_ip_prohibited"),
                    "{host}"
                );
            }
            // The refusal does not reveal the resolved address.
            let problem = connect_with(&target("localhost", 80), &rules).await.unwrap_err();
            assert_eq!(problem.details, "localhost:80: its address is not allowed here");
            let problem = connect_with(&target("localhost", 22), &Acl::default()).await.unwrap_err();
            assert_eq!((problem.status, problem.error), (Status::Forbidden, "http_request_denied"));
        });
    }

    #[test]
    fn an_unreachable_server_is_reported() {
        block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            drop(listener);
            let problem = connect_with(&target("127.0.0.1", port), &loopback_acl()).await.unwrap_err();
            assert_eq!((problem.status, problem.error), (Status::BadGateway, "connection_refused"));
        });
    }

    #[test]
    fn a_name_that_changes_after_the_check_leads_to_the_checked_address() {
        static LOOKUPS: AtomicUsize = AtomicUsize::new(0);
        fn rebinds(_: &str) -> io::Result<Vec<IpAddr>> {
            // The first result is allowed; every later one would be an address of the relay's network.
            let host = if LOOKUPS.fetch_add(1, Ordering::Relaxed) == 0 { 1 } else { 2 };
            Ok(vec![IpAddr::from([127, 0, 0, host])])
        }
        block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let rules = Acl { networks: vec!["127.0.0.1".parse().unwrap()], ..loopback_acl() };
            let (resolver, edge) = (Resolver::with_lookup(rebinds), "cam-1".parse().unwrap());
            let context =
                UpstreamContext { acl: &rules, is_own: &|_| false, resolver: &resolver, congestion: None };
            let name = target("rebinds.example", port);
            let connection = super::connect(&name, &edge, &context, &mut FlowRecord::new(&edge)).await.unwrap();
            assert_eq!(connection.peer_addr().unwrap(), listener.local_addr().unwrap());
            assert_eq!(LOOKUPS.load(Ordering::Relaxed), 1);
            let problem = super::connect(&name, &edge, &context, &mut FlowRecord::new(&edge)).await.unwrap_err();
            assert_eq!(problem.error, "destination_ip_prohibited");
        });
    }
}
