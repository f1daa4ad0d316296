//! To the server that an edge means: its addresses, the rules on them, a connection.
//!
//! In: a [`Target`]. Out: a connection to one of its addresses, or the [`Problem`] to be answered.
//!
//! 1. A name is resolved once, and the addresses that the rules let pass are the ones that are connected to: a second answer that
//!    names another address is never asked for.
//! 2. A name with one address that is allowed and one that is not leads to the first. With none that is allowed the
//!    answer is the rule's.
//! 3. The first one that answers wins ([`race`]).
//! 4. The kernel finds out when a server has gone without a word ([`KEEP_ALIVE`]), and no more waits in its queue unsent than
//!    [`NOT_SENT`]: what a server does not take slows the edge down, and costs little memory.

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

/// chosen: three SYNs (RFC 6298 §2: 1, 3, 7 s) would be 7 s.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// chosen: more addresses than anybody has who means well.
const MAX_ADDRESSES: usize = 8;

/// chosen: a server that has gone is found after four minutes; who answers is not troubled more often than by NATs' needs.
const KEEPALIVE_TIME: Duration = Duration::from_secs(120);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEPALIVE_PROBES: u32 = 6;
/// chosen: what 1 Gbit/s sends in a millisecond.
const NOTSENT_LOWAT: u32 = 128 * 1024;

/// What is known of where an edge may go.
pub(super) struct UpstreamContext<'a> {
    pub(super) acl: &'a Acl,
    /// Whether an address is the relay's own.
    pub(super) is_own: &'a (dyn Fn(IpAddr) -> bool + Sync),
    pub(super) resolver: &'a Resolver,
    pub(super) congestion: Option<&'a CongestionControl>,
}

/// A connection to there, for this edge.
///
/// `flow` gets the address and the rule that decide.
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
        let none = || Problem::new(Status::BadGateway, "dns_error", format!("{}: no address", target.host));
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
        Err(_) => {
            Err(Problem::new(Status::GatewayTimeout, "connection_timeout", format!("{}: no answer", target.host)))
        }
    }
}

/// What cannot be set changes the pace of small packets, or how soon it is known that a server has gone, nothing else.
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

/// The rule's name in the audit log: the option that allows it.
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
    fn what_the_rules_let_pass_is_connected_to() {
        block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let connection = connect_with(&target("localhost", port), &loopback_acl()).await.unwrap();
            assert_eq!(connection.peer_addr().unwrap(), listener.local_addr().unwrap());
        });
    }

    #[test]
    fn a_name_of_the_relays_own_neighbourhood_is_refused_after_it_is_resolved() {
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
            // What it turned out to be is not told.
            let problem = connect_with(&target("localhost", 80), &rules).await.unwrap_err();
            assert_eq!(problem.details, "localhost:80: its address is not allowed here");
            let problem = connect_with(&target("localhost", 22), &Acl::default()).await.unwrap_err();
            assert_eq!((problem.status, problem.error), (Status::Forbidden, "http_request_denied"));
        });
    }

    #[test]
    fn a_server_that_is_not_there_is_said_to_be_so() {
        block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            drop(listener);
            let problem = connect_with(&target("127.0.0.1", port), &loopback_acl()).await.unwrap_err();
            assert_eq!((problem.status, problem.error), (Status::BadGateway, "connection_refused"));
        });
    }

    #[test]
    fn a_name_that_changes_after_it_was_looked_at_leads_to_what_was_looked_at() {
        static ASKED: AtomicUsize = AtomicUsize::new(0);
        fn rebinds(_: &str) -> io::Result<Vec<IpAddr>> {
            // The first answer is allowed; every later one would be the relay's neighbour.
            let host = if ASKED.fetch_add(1, Ordering::Relaxed) == 0 { 1 } else { 2 };
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
            assert_eq!(ASKED.load(Ordering::Relaxed), 1);
            let problem = super::connect(&name, &edge, &context, &mut FlowRecord::new(&edge)).await.unwrap_err();
            assert_eq!(problem.error, "destination_ip_prohibited");
        });
    }
}
