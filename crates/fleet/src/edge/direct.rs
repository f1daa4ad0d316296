//! To a server without a relay: plain TCP over one link.
//!
//! In: a target, the best link if one is known, and whether others than this machine may use the edge. Out: a connection.
//!
//! 1. Over the link whose connections have shown the highest rate; where none is known, or that one does not reach the server,
//!    as the kernel's routes have it.
//! 2. Who comes from another machine does not reach this one by way of the edge: not its loopback, and none of its addresses.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use marline_net::links::survey;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

use super::dial::{By, connect, race};
use crate::tunnel::{Problem, Status, Target};

/// chosen: as a relay's.
const CONNECT: Duration = Duration::from_secs(10);
/// chosen: then the kernel's own choice has as long.
const OVER_THE_BEST: Duration = Duration::from_secs(4);

/// A connection to the server.
pub(super) async fn reach(target: &Target, best: Option<String>, exposed: bool) -> Result<TcpStream, Problem> {
    let reached = async {
        let found = lookup_host((target.host.as_str(), target.port)).await.map_err(unreachable)?;
        let addresses: Vec<SocketAddr> = found.collect();
        let addresses = if exposed { elsewhere(addresses)? } else { addresses };
        let plain = By { device: None, plain: true };
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

fn unreachable(error: io::Error) -> Problem {
    Problem::new(Status::Unreachable, "destination_unavailable", error.to_string())
}

/// Rule 2.
fn elsewhere(addresses: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, Problem> {
    let refused = |words: &str| Problem::new(Status::Forbidden, "destination_ip_prohibited", words);
    let survey = survey().map_err(|_| refused("this machine's own addresses are not known"))?;
    let of = |interface: marline_net::links::Interface| [interface.addresses, interface.passing].concat();
    let own: Vec<IpAddr> = survey.interfaces.into_iter().flat_map(of).collect();
    let (here, there): (Vec<_>, Vec<_>) =
        addresses.into_iter().partition(|address| is_here(address.ip().to_canonical(), &own));
    if there.is_empty() && !here.is_empty() {
        return Err(refused("this leads back to the edge's own machine"));
    }
    Ok(there)
}

fn is_here(address: IpAddr, own: &[IpAddr]) -> bool {
    address.is_loopback() || address.is_unspecified() || own.contains(&address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edges_own_machine_is_not_elsewhere() {
        let own = ["10.0.0.1".parse().unwrap(), "2001:db8::1".parse().unwrap()];
        for (address, is) in [
            ("127.0.0.1", true),
            ("127.9.9.9", true),
            ("::1", true),
            ("::ffff:127.0.0.1", true),
            ("::ffff:10.0.0.1", true),
            ("0.0.0.0", true),
            ("10.0.0.1", true),
            ("2001:db8::1", true),
            ("10.0.0.2", false),
            ("2001:db8::2", false),
        ] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(is_here(address.to_canonical(), &own), is, "{address}");
        }
        let only = elsewhere(vec!["127.0.0.1:80".parse().unwrap()]).unwrap_err();
        assert_eq!(only.status, Status::Forbidden);
        let both = elsewhere(vec!["127.0.0.1:80".parse().unwrap(), "192.0.2.1:80".parse().unwrap()]).unwrap();
        assert_eq!(both, ["192.0.2.1:80".parse().unwrap()]);
    }
}
