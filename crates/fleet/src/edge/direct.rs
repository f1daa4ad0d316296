//! To a server without a relay: plain TCP over one link.
//!
//! In: a target, the best link if one is known, and whether others than this machine may use the edge. Out: a connection.
//!
//! 1. Over the link whose connections have shown the highest rate; where none is known, or that one does not reach the server,
//!    as the kernel's routes have it.
//! 2. Who comes from another machine does not reach this one by way of the edge: not its loopback, and none of its addresses.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

use super::dial::{By, connect};
use super::local::Local;
use crate::race::race;
use crate::tunnel::{Problem, Status, Target};

/// chosen: as a relay's.
const CONNECT: Duration = Duration::from_secs(10);
/// chosen: then the kernel's own choice has as long.
const OVER_THE_BEST: Duration = Duration::from_secs(4);

/// A connection to the server.
pub(super) async fn reach(
    target: &Target,
    best: Option<String>,
    exposed: Option<&Local>,
) -> Result<TcpStream, Problem> {
    let reached = async {
        let found = lookup_host((target.host.as_str(), target.port)).await.map_err(unreachable)?;
        let addresses: Vec<SocketAddr> = found.collect();
        let addresses = exposed.map_or(Ok(addresses.clone()), |local| elsewhere(addresses, local))?;
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

fn unreachable(error: io::Error) -> Problem {
    Problem::new(Status::Unreachable, "destination_unavailable", error.to_string())
}

/// Rule 2.
fn elsewhere(addresses: Vec<SocketAddr>, local: &Local) -> Result<Vec<SocketAddr>, Problem> {
    let (here, there): (Vec<_>, Vec<_>) = addresses.into_iter().partition(|address| local.is(address.ip()));
    if there.is_empty() && !here.is_empty() {
        let words = "this leads back to the edge's own machine";
        return Err(Problem::new(Status::Forbidden, "destination_ip_prohibited", words));
    }
    Ok(there)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edges_own_machine_is_not_elsewhere() {
        let (local, [own, other]) =
            (Local::ask(), ["127.0.0.1:80", "192.0.2.1:80"].map(|text| text.parse().unwrap()));
        assert_eq!(elsewhere(vec![own], &local).unwrap_err().status, Status::Forbidden);
        assert_eq!(elsewhere(vec![own, other], &local).unwrap(), [other]);
        assert!(elsewhere(Vec::new(), &local).unwrap().is_empty());
    }
}
