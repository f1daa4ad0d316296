//! To a server without a relay: plain TCP over one link.
//!
//! In: a target, the best link if one is known, and who asks. Out: a connection.
//!
//! 1. Over the link whose connections have shown the highest rate; where none is known, or that one does not reach the server,
//!    as the kernel's routes have it.
//! 2. Each address is checked before it is connected to ([`marline_net::reach`]): other hosts do not reach this machine, metadata
//!    services, or private networks that they are not in.
//! 3. No more than [`LOOK_UPS`] names are looked up at once: whoever asks for many that hang leaves the edge the threads by which it
//!    finds its relays again. A place is taken until the look-up has really ended.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::Duration;

use marline_net::reach::Right;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::dial::{By, connect};
use crate::race::race;
use crate::tunnel::{Problem, Status, Target};

/// chosen: as a relay's.
const CONNECT: Duration = Duration::from_secs(10);
/// chosen: then the kernel's own choice has as long.
const OVER_THE_BEST: Duration = Duration::from_secs(4);
/// chosen: a page's worth of names; a thread each.
pub(super) const LOOK_UPS: usize = 16;

/// A connection to the server.
pub(super) async fn reach(
    target: &Target,
    best: Option<String>,
    right: Right,
    look_ups: &Arc<Semaphore>,
) -> Result<TcpStream, Problem> {
    let reached = async {
        let addresses = addresses(target, look_ups).await.map_err(unreachable)?;
        let addresses = allowed(&target.host, addresses, right)?;
        let plain = By { plain: true, ..By::default() };
        if best.is_some() {
            let by = By { device: best, ..plain.clone() };
            let over_it = race(&addresses, |address| connect(address, by.clone()));
            if let Ok(Ok(socket)) = timeout(OVER_THE_BEST, over_it).await {
                return Ok(socket);
            }
        }
        race(&addresses, |address| connect(address, plain.clone())).await.map_err(unreachable)
    };
    let late = |_| Problem::new(Status::NoAnswer, "connection_timeout", "no answer");
    timeout(CONNECT, reached).await.map_err(late)?
}

/// Rule 3.
async fn addresses(target: &Target, look_ups: &Arc<Semaphore>) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = target.host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, target.port)]);
    }
    let place = Arc::clone(look_ups).acquire_owned().await.map_err(io::Error::other)?;
    let (host, port) = (target.host.clone(), target.port);
    let look_up = move || {
        let found = (host.as_str(), port).to_socket_addrs().map(Iterator::collect);
        drop(place);
        found
    };
    spawn_blocking(look_up).await.map_err(io::Error::other)?
}

fn unreachable(error: io::Error) -> Problem {
    Problem::new(Status::Unreachable, "destination_unavailable", error.to_string())
}

/// Rule 2.
fn allowed(host: &str, addresses: Vec<SocketAddr>, right: Right) -> Result<Vec<SocketAddr>, Problem> {
    let (mut good, mut forbidden) = (Vec::new(), None);
    for address in addresses {
        match right.check(address) {
            Ok(()) => good.push(address),
            Err(why) => forbidden = Some(why),
        }
    }
    match forbidden.filter(|_| good.is_empty()) {
        Some(why) => Err(Problem::new(Status::Forbidden, "destination_ip_prohibited", why.of(host))),
        None => Ok(good),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_hosts_reach_neither_the_edge_nor_private_networks_directly() {
        let [own, private, other] =
            ["127.0.0.1:80", "10.9.9.9:80", "192.0.2.1:80"].map(|text| text.parse().unwrap());
        let client = Right::of_peer("198.51.100.9:1".parse().unwrap());
        for refused in [own, private] {
            assert_eq!(allowed("h", vec![refused], client).unwrap_err().status, Status::Forbidden, "{refused}");
            assert_eq!(allowed("h", vec![refused, other], client).unwrap(), [other]);
            assert_eq!(allowed("h", vec![refused], Right::user()).unwrap(), [refused]);
        }
        assert!(allowed("h", Vec::new(), client).unwrap().is_empty());
    }

    #[test]
    fn names_wait_for_a_place_and_addresses_do_not() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (places, [address, name]) = (
                Arc::new(Semaphore::new(1)),
                ["127.0.0.1:80", "localhost:80"].map(|to| Target::parse(to).unwrap()),
            );
            let taken = Arc::clone(&places).try_acquire_owned().unwrap();
            assert_eq!(addresses(&address, &places).await.unwrap(), ["127.0.0.1:80".parse().unwrap()]);
            assert!(timeout(Duration::from_millis(50), addresses(&name, &places)).await.is_err());
            drop(taken);
            assert!(!addresses(&name, &places).await.unwrap().is_empty() && places.available_permits() == 1);
        });
    }
}
