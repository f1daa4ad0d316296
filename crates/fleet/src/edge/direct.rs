//! To a server without a relay: plain TCP over one link.
//!
//! In: a target, and who asks. Out: a connection.
//!
//! 1. Over the links in turn ([`Starts`]); where fewer than two are known, as the kernel's routes have it.
//! 2. Each address is checked before it is connected to ([`marline_net::egress`]): other hosts do not reach this machine, metadata
//!    services, or private networks that they are not in.
//! 3. No more than [`LOOK_UPS`] names are looked up at once: whoever asks for many that hang leaves the edge the threads by which it
//!    finds its relays again. A place is taken until the look-up has really ended.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::Duration;

use marline_net::egress::{AddressZone, EgressPolicy};
use marline_net::links::Interface;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::dial::{DialOptions, connect};
use crate::happy_eyeballs::connect_first;
use crate::link_dialer::{ConnObservation, LinkDialer};
use crate::tunnel::{Problem, Status, Target};

/// chosen: as a relay's.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// chosen: a page's worth of names; a thread each.
pub(super) const MAX_LOOKUPS: usize = 16;

/// A connection to the server, over the first link that reaches it.
pub(super) async fn connect_directly(
    target: &Target,
    right: EgressPolicy,
    lookup_permits: &Arc<Semaphore>,
    dialer: &Arc<LinkDialer>,
) -> Result<TcpStream, Problem> {
    let (target, lookup_permits, link_dialer) = (target.clone(), Arc::clone(lookup_permits), Arc::clone(dialer));
    let attempt = move |link: Option<Arc<Interface>>| {
        let (target, lookup_permits, link_dialer) =
            (target.clone(), Arc::clone(&lookup_permits), Arc::clone(&link_dialer));
        async move {
            let addresses = match &link {
                None => resolve(&target, &lookup_permits).await?,
                Some(link) => link_dialer.resolve(right.requester(), (&target.host, target.port), link).await?,
            };
            match filter_allowed(&target.host, addresses, right) {
                Ok(addresses) => connect_over_link(addresses, link.as_deref(), &link_dialer)
                    .await
                    .map(|(socket, shows)| (Ok(socket), shows)),
                Err(forbidden) => Ok((Err(forbidden), ConnObservation::NotViaLinks)),
            }
        }
    };
    let timed_out = |_| Problem::new(Status::GatewayTimeout, "connection_timeout", "no answer");
    timeout(CONNECT_TIMEOUT, dialer.connect_unauthenticated(attempt))
        .await
        .map_err(timed_out)?
        .map_err(bad_gateway)?
}

/// Over this link. A private network may be behind a static route, which only the kernel knows.
async fn connect_over_link(
    addresses: Vec<SocketAddr>,
    link: Option<&Interface>,
    dialer: &LinkDialer,
) -> io::Result<(TcpStream, ConnObservation)> {
    let is_behind_links = addresses.iter().any(|address| {
        AddressZone::of(address.ip()) == AddressZone::Internet && dialer.is_behind_links(address.ip())
    });
    let device = link.filter(|_| is_behind_links).map(|link| link.name.clone());
    let addresses = match link.filter(|_| is_behind_links) {
        Some(link) => LinkDialer::with_link_families(addresses, link)?,
        None => addresses,
    };
    let options = DialOptions { plain_tcp: true, device, ..DialOptions::default() };
    let socket = connect_first(&addresses, |address| connect(address, options.clone())).await?;
    if is_behind_links && let Ok(server) = socket.peer_addr() {
        dialer.record_direct_server(server);
    }
    Ok((socket, if is_behind_links { ConnObservation::Reached } else { ConnObservation::NotViaLinks }))
}

/// Rule 3.
async fn resolve(target: &Target, lookup_permits: &Arc<Semaphore>) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = target.host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, target.port)]);
    }
    let permit = Arc::clone(lookup_permits).acquire_owned().await.map_err(io::Error::other)?;
    let (host, port) = (target.host.clone(), target.port);
    let look_up = move || {
        let found = (host.as_str(), port).to_socket_addrs().map(Iterator::collect);
        drop(permit);
        found
    };
    spawn_blocking(look_up).await.map_err(io::Error::other)?
}

fn bad_gateway(error: io::Error) -> Problem {
    Problem::new(Status::BadGateway, "destination_unavailable", error.to_string())
}

/// Rule 2.
fn filter_allowed(host: &str, addresses: Vec<SocketAddr>, right: EgressPolicy) -> Result<Vec<SocketAddr>, Problem> {
    let (mut good, mut forbidden) = (Vec::new(), None);
    for address in addresses {
        match right.check(address) {
            Ok(()) => good.push(address),
            Err(why) => forbidden = Some(why),
        }
    }
    match forbidden.filter(|_| good.is_empty()) {
        Some(why) => Err(Problem::new(Status::Forbidden, "destination_ip_prohibited", why.describe(host))),
        None => Ok(good),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_hosts_reach_neither_the_edge_nor_private_networks_directly() {
        let [local, private, other] =
            ["127.0.0.1:80", "10.9.9.9:80", "192.0.2.1:80"].map(|text| text.parse().unwrap());
        let client = EgressPolicy::for_peer("198.51.100.9:1".parse().unwrap());
        for refused in [local, private] {
            assert_eq!(
                filter_allowed("h", vec![refused], client).unwrap_err().status,
                Status::Forbidden,
                "{refused}"
            );
            assert_eq!(filter_allowed("h", vec![refused, other], client).unwrap(), [other]);
            assert_eq!(filter_allowed("h", vec![refused], EgressPolicy::user()).unwrap(), [refused]);
        }
        assert!(filter_allowed("h", Vec::new(), client).unwrap().is_empty());
    }

    #[test]
    fn names_wait_for_a_place_and_addresses_do_not() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (permits, [address, name]) = (
                Arc::new(Semaphore::new(1)),
                ["127.0.0.1:80", "localhost:80"].map(|to| Target::parse(to).unwrap()),
            );
            let taken = Arc::clone(&permits).try_acquire_owned().unwrap();
            assert_eq!(resolve(&address, &permits).await.unwrap(), ["127.0.0.1:80".parse().unwrap()]);
            assert!(timeout(Duration::from_millis(50), resolve(&name, &permits)).await.is_err());
            drop(taken);
            assert!(!resolve(&name, &permits).await.unwrap().is_empty() && permits.available_permits() == 1);
        });
    }
}
