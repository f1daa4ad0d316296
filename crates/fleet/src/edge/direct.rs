//! Connects to an origin server without a relay: plain TCP over one link.
//!
//! 1. The links are tried in turn ([`LinkDialer`]); if fewer than two are known, the kernel's routes decide.
//! 2. Each address is checked before connecting ([`marline_net::egress`]): other hosts cannot reach this host, metadata services, or
//!    private networks that they are not in.
//! 3. At most [`MAX_LOOKUPS`] names are resolved by the system's resolver at once, so that a client with many hanging lookups leaves
//!    threads to the edge for finding its relays again. A permit is held until the lookup has actually ended.

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

/// Our choice: the same as a relay's.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Our choice: the names of one web page; each lookup takes a thread.
pub(super) const MAX_LOOKUPS: usize = 16;

/// Connects to the server over the first link that reaches it.
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

/// Connects over this link. A private network may be behind a static route, which only the kernel knows; then the connection is not bound
/// to the link.
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

/// Resolves the target by the system's resolver (rule 3).
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

/// The addresses that a client with this right may reach (rule 2).
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
    fn lookups_wait_for_a_permit_and_addresses_do_not() {
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
