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

use super::audit::Flow;
use super::names::{Names, Unknown};
use super::rules::{Refusal, Rules};
use crate::congestion::Congestion;
use crate::identity::Name;
use crate::race::{in_turns, race};
use crate::tunnel::{Problem, Status, Target};

/// chosen: three SYNs (RFC 6298 §2: 1, 3, 7 s) would be 7 s.
const CONNECT: Duration = Duration::from_secs(10);
/// chosen: more addresses than anybody has who means well.
const MOST: usize = 8;

/// chosen: a server that has gone is found after four minutes; who answers is not troubled more often than by NATs' needs.
const KEEP_ALIVE: Duration = Duration::from_secs(120);
const KEEP_ALIVE_AGAIN: Duration = Duration::from_secs(20);
const KEEP_ALIVE_TRIES: u32 = 6;
/// chosen: what 1 Gbit/s sends in a millisecond.
const NOT_SENT: u32 = 128 * 1024;

/// What is known of where an edge may go.
pub(super) struct Ways<'a> {
    pub(super) rules: &'a Rules,
    /// Whether an address is the relay's own.
    pub(super) own: &'a (dyn Fn(IpAddr) -> bool + Sync),
    pub(super) names: &'a Names,
    pub(super) congestion: Option<&'a Congestion>,
}

/// A connection to there, for this edge.
///
/// `flow` gets the address and the rule that decide.
pub(super) async fn reach(
    target: &Target,
    edge: &Name,
    ways: &Ways<'_>,
    flow: &mut Flow,
) -> Result<TcpStream, Problem> {
    ways.rules.asked(&target.host, target.port).map_err(|refusal| {
        flow.rule = Some(rule(&refusal));
        refused(target, &refusal)
    })?;
    let addresses = match target.host.parse::<IpAddr>() {
        Ok(address) => vec![address],
        Err(_) => ways.names.addresses(edge, &target.host).await.map_err(|why| unknown(target, &why))?,
    };
    let addresses: Vec<_> = addresses.into_iter().map(|address| SocketAddr::new(address, target.port)).collect();
    let (mut good, mut refusal) = (Vec::new(), None);
    for address in in_turns(&addresses).into_iter().take(MOST) {
        match ways.rules.found(address.ip(), ways.own) {
            Ok(()) => good.push(address),
            Err(why) => refusal = Some((address.ip(), why)),
        }
    }
    if good.is_empty() {
        let none = || Problem::new(Status::Unreachable, "dns_error", format!("{}: no address", target.host));
        return Err(refusal.map_or_else(none, |(address, why)| {
            tracing::debug!(%edge, host = target.host, %address, "refused");
            (flow.address, flow.rule) = (Some(SocketAddr::new(address, target.port)), Some(rule(&why)));
            refused(target, &why)
        }));
    }
    match timeout(CONNECT, race(&good, TcpStream::connect)).await {
        Ok(Ok(connection)) => {
            prepare(&connection, ways.congestion);
            flow.address = connection.peer_addr().ok();
            Ok(connection)
        }
        Ok(Err(error)) => Err(unreachable(target, &error)),
        Err(_) => Err(Problem::new(Status::NoAnswer, "connection_timeout", format!("{}: no answer", target.host))),
    }
}

/// What cannot be set changes the pace of small packets, or how soon it is known that a server has gone, nothing else.
fn prepare(server: &TcpStream, congestion: Option<&Congestion>) {
    if let Some(congestion) = congestion {
        congestion.set(server);
    }
    let _ = server.set_nodelay(true);
    let keep_alive = TcpKeepalive::new().with_time(KEEP_ALIVE).with_interval(KEEP_ALIVE_AGAIN);
    let socket = SockRef::from(server);
    let _ = socket.set_tcp_keepalive(&keep_alive.with_retries(KEEP_ALIVE_TRIES));
    let _ = socket.set_tcp_notsent_lowat(NOT_SENT);
}

/// The rule's name in the audit log: the option that allows it.
fn rule(why: &Refusal) -> &'static str {
    match why {
        Refusal::Port(_) => "allow-port",
        Refusal::Host => "allow-host",
        Refusal::Address(_) => "allow-net",
        Refusal::Own(_) => "own-address",
    }
}

fn refused(target: &Target, why: &Refusal) -> Problem {
    let error = match why {
        Refusal::Port(_) | Refusal::Host => "http_request_denied",
        Refusal::Address(_) | Refusal::Own(_) => "destination_ip_prohibited",
    };
    Problem::new(Status::Forbidden, error, format!("{}:{}: {why}", target.host, target.port))
}

fn unreachable(target: &Target, error: &io::Error) -> Problem {
    let word = match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection_refused",
        io::ErrorKind::TimedOut => "connection_timeout",
        _ => "destination_ip_unroutable",
    };
    Problem::new(Status::Unreachable, word, format!("{}:{}: {error}", target.host, target.port))
}

fn unknown(target: &Target, why: &Unknown) -> Problem {
    let word = match why {
        Unknown::No(_) => "dns_error",
        Unknown::Late => "dns_timeout",
    };
    Problem::new(Status::Unreachable, word, format!("{}: {why}", target.host))
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

    fn local() -> Rules {
        Rules {
            ports: vec!["1-65535".parse().unwrap()],
            networks: vec!["127.0.0.0/8".parse().unwrap()],
            ..Rules::default()
        }
    }

    async fn reach(target: &Target, rules: &Rules) -> Result<TcpStream, Problem> {
        let (names, edge) = (Names::default(), "cam-1".parse().unwrap());
        let mut flow = Flow::new(&edge);
        let ways = Ways { rules, own: &|_| false, names: &names, congestion: None };
        super::reach(target, &edge, &ways, &mut flow).await
    }

    #[test]
    fn what_the_rules_let_pass_is_connected_to() {
        block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let connection = reach(&target("localhost", port), &local()).await.unwrap();
            assert_eq!(connection.peer_addr().unwrap(), listener.local_addr().unwrap());
        });
    }

    #[test]
    fn a_name_of_the_relays_own_neighbourhood_is_refused_after_it_is_resolved() {
        block_on(async {
            let rules = Rules { networks: Vec::new(), ..local() };
            for host in ["localhost", "127.0.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.1"] {
                let problem = reach(&target(host, 80), &rules).await.unwrap_err();
                assert_eq!(
                    (problem.status, problem.error),
                    (Status::Forbidden, "destination_ip_prohibited"),
                    "{host}"
                );
            }
            // What it turned out to be is not told.
            let problem = reach(&target("localhost", 80), &rules).await.unwrap_err();
            assert_eq!(problem.words, "localhost:80: its address is not allowed here");
            let problem = reach(&target("localhost", 22), &Rules::default()).await.unwrap_err();
            assert_eq!((problem.status, problem.error), (Status::Forbidden, "http_request_denied"));
        });
    }

    #[test]
    fn a_server_that_is_not_there_is_said_to_be_so() {
        block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            drop(listener);
            let problem = reach(&target("127.0.0.1", port), &local()).await.unwrap_err();
            assert_eq!((problem.status, problem.error), (Status::Unreachable, "connection_refused"));
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
            let rules = Rules { networks: vec!["127.0.0.1".parse().unwrap()], ..local() };
            let (names, edge) = (Names::of(rebinds), "cam-1".parse().unwrap());
            let ways = Ways { rules: &rules, own: &|_| false, names: &names, congestion: None };
            let name = target("rebinds.example", port);
            let connection = super::reach(&name, &edge, &ways, &mut Flow::new(&edge)).await.unwrap();
            assert_eq!(connection.peer_addr().unwrap(), listener.local_addr().unwrap());
            assert_eq!(ASKED.load(Ordering::Relaxed), 1);
            let problem = super::reach(&name, &edge, &ways, &mut Flow::new(&edge)).await.unwrap_err();
            assert_eq!(problem.error, "destination_ip_prohibited");
        });
    }
}
