//! To a server without a relay: plain TCP over one link.
//!
//! In: a target, and who asks. Out: a connection.
//!
//! 1. Over the links in turn ([`Starts`]); where fewer than two are known, as the kernel's routes have it.
//! 2. Each address is checked before it is connected to ([`marline_net::reach`]): other hosts do not reach this machine, metadata
//!    services, or private networks that they are not in.
//! 3. No more than [`LOOK_UPS`] names are looked up at once: whoever asks for many that hang leaves the edge the threads by which it
//!    finds its relays again. A place is taken until the look-up has really ended.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::Duration;

use marline_core::link_choice::Race;
use marline_net::links::Interface;
use marline_net::reach::{Right, Zone};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::dial::{By, connect};
use crate::race::race;
use crate::starts::{Shows, Starts};
use crate::tunnel::{Problem, Status, Target};

/// chosen: as a relay's.
const CONNECT: Duration = Duration::from_secs(10);
/// chosen: a page's worth of names; a thread each.
pub(super) const LOOK_UPS: usize = 16;

/// A connection to the server, over the first link that reaches it.
pub(super) async fn reach(
    target: &Target,
    right: Right,
    look_ups: &Arc<Semaphore>,
    starts: &Arc<Starts>,
) -> Result<TcpStream, Problem> {
    let (target, look_ups, of) = (target.clone(), Arc::clone(look_ups), Arc::clone(starts));
    let attempt = move |link: Option<Arc<Interface>>| {
        let (target, look_ups, of) = (target.clone(), Arc::clone(&look_ups), Arc::clone(&of));
        async move {
            let addresses = match &link {
                None => addresses(&target, &look_ups).await?,
                Some(link) => of.addresses(right.host(), (&target.host, target.port), link).await?,
            };
            match allowed(&target.host, addresses, right) {
                Ok(addresses) => {
                    over(addresses, link.as_deref(), &of).await.map(|(socket, shows)| (Ok(socket), shows))
                }
                Err(forbidden) => Ok((Err(forbidden), Shows::Nothing)),
            }
        }
    };
    let late = |_| Problem::new(Status::NoAnswer, "connection_timeout", "no answer");
    timeout(CONNECT, starts.start(Race::to_unproven, attempt)).await.map_err(late)?.map_err(unreachable)?
}

/// Over this link. A private network may be behind a static route, which only the kernel knows.
async fn over(
    addresses: Vec<SocketAddr>,
    link: Option<&Interface>,
    starts: &Starts,
) -> io::Result<(TcpStream, Shows)> {
    let is_behind = addresses
        .iter()
        .any(|address| Zone::of(address.ip()) == Zone::Internet && starts.is_behind_links(address.ip()));
    let device = link.filter(|_| is_behind).map(|link| link.name.clone());
    let addresses = match link.filter(|_| is_behind) {
        Some(link) => Starts::of_families(addresses, link)?,
        None => addresses,
    };
    let by = By { plain: true, device, ..By::default() };
    let socket = race(&addresses, |address| connect(address, by.clone())).await?;
    if is_behind && let Ok(server) = socket.peer_addr() {
        starts.has_reached_directly(server);
    }
    Ok((socket, if is_behind { Shows::Reached } else { Shows::Nothing }))
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
