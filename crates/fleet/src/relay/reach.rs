//! To the server that an edge means: its addresses, the rules on them, a connection.
//!
//! In: a [`Target`]. Out: a connection to one of its addresses, or the [`Problem`] to be answered.
//!
//! 1. A name is resolved once, and the addresses that the rules let pass are the ones that are connected to: a second answer that
//!    names another address is never asked for.
//! 2. A name with one address that is allowed and one that is not leads to the first. With none that is allowed the
//!    answer is the rule's.
//! 3. Addresses are tried one after the other, [`STAGGER`] apart, the first one that answers wins (RFC 8305).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::net::{TcpStream, lookup_host};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::rules::Rules;
use crate::tunnel::{Problem, Status, Target};

/// RFC 8305 §8: 250 ms.
const STAGGER: Duration = Duration::from_millis(250);
/// chosen: an edge that has waited for so long asks for something else.
const RESOLVE: Duration = Duration::from_secs(5);
/// chosen: three SYNs (RFC 6298 §2: 1, 3, 7 s) would be 7 s.
const CONNECT: Duration = Duration::from_secs(10);
/// chosen: more addresses than anybody has who means well.
const MOST: usize = 8;

/// A connection to there.
pub(super) async fn reach(target: &Target, rules: &Rules, own: &[IpAddr]) -> Result<TcpStream, Problem> {
    rules.asked(&target.host, target.port).map_err(|refusal| refused(target, &refusal))?;
    let addresses = match target.host.parse::<IpAddr>() {
        Ok(address) => vec![address],
        Err(_) => resolve(target).await?,
    };
    let (mut good, mut refusal) = (Vec::new(), None);
    for address in addresses.into_iter().take(MOST) {
        match rules.found(address, own) {
            Ok(()) => good.push(SocketAddr::new(address, target.port)),
            Err(why) => refusal = Some(why),
        }
    }
    if good.is_empty() {
        let none = || Problem::new(Status::Unreachable, "dns_error", format!("{}: no address", target.host));
        return Err(refusal.map_or_else(none, |why| refused(target, &why)));
    }
    match timeout(CONNECT, first(good)).await {
        Ok(Ok(connection)) => Ok(connection),
        Ok(Err(error)) => Err(unreachable(target, &error)),
        Err(_) => Err(Problem::new(Status::NoAnswer, "connection_timeout", format!("{}: no answer", target.host))),
    }
}

fn refused(target: &Target, why: &super::rules::Refusal) -> Problem {
    let error = match why {
        super::rules::Refusal::Port(_) | super::rules::Refusal::Host => "http_request_denied",
        super::rules::Refusal::Address(_) | super::rules::Refusal::Own(_) => "destination_ip_prohibited",
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

async fn resolve(target: &Target) -> Result<Vec<IpAddr>, Problem> {
    let asked = timeout(RESOLVE, lookup_host((target.host.as_str(), target.port))).await;
    let problem = |word, why: &dyn std::fmt::Display| {
        Problem::new(Status::Unreachable, word, format!("{}: {why}", target.host))
    };
    match asked {
        Ok(Ok(found)) => {
            let mut addresses: Vec<IpAddr> = Vec::new();
            for address in found {
                if !addresses.contains(&address.ip()) {
                    addresses.push(address.ip());
                }
            }
            Ok(addresses)
        }
        Ok(Err(error)) => Err(problem("dns_error", &error)),
        Err(_) => Err(problem("dns_timeout", &"its name is not resolved in time")),
    }
}

/// The first that answers; when none does, why the first did not.
async fn first(addresses: Vec<SocketAddr>) -> io::Result<TcpStream> {
    let mut tries = JoinSet::new();
    for (address, delay) in addresses.into_iter().zip((0..).map(|n| STAGGER * n)) {
        tries.spawn(async move {
            tokio::time::sleep(delay).await;
            TcpStream::connect(address).await
        });
    }
    let mut why = None;
    while let Some(tried) = tries.join_next().await {
        match tried {
            Ok(Ok(connection)) => return Ok(connection),
            Ok(Err(error)) => why = why.or(Some(error)),
            Err(_) => {}
        }
    }
    Err(why.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn what_the_rules_let_pass_is_connected_to() {
        block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let connection = reach(&target("localhost", port), &local(), &[]).await.unwrap();
            assert_eq!(connection.peer_addr().unwrap(), listener.local_addr().unwrap());
        });
    }

    #[test]
    fn a_name_of_the_relays_own_neighbourhood_is_refused_after_it_is_resolved() {
        block_on(async {
            let rules = Rules { networks: Vec::new(), ..local() };
            for host in ["localhost", "127.0.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.1"] {
                let problem = reach(&target(host, 80), &rules, &[]).await.unwrap_err();
                assert_eq!(
                    (problem.status, problem.error),
                    (Status::Forbidden, "destination_ip_prohibited"),
                    "{host}"
                );
            }
            let problem = reach(&target("localhost", 22), &Rules::default(), &[]).await.unwrap_err();
            assert_eq!((problem.status, problem.error), (Status::Forbidden, "http_request_denied"));
        });
    }

    #[test]
    fn a_server_that_is_not_there_is_said_to_be_so() {
        block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            drop(listener);
            let problem = reach(&target("127.0.0.1", port), &local(), &[]).await.unwrap_err();
            assert_eq!((problem.status, problem.error), (Status::Unreachable, "connection_refused"));
        });
    }

    #[test]
    fn the_first_address_that_answers_wins() {
        block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let good = listener.local_addr().unwrap();
            let refusing = TcpListener::bind("127.0.0.2:0").await.unwrap().local_addr().unwrap();
            let connection = first(vec![refusing, good]).await.unwrap();
            assert_eq!(connection.peer_addr().unwrap(), good);
        });
    }
}
