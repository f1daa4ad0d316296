//! One daemon steers a network: who holds the claim is he.
//!
//! In: what is claimed. Out: a value that holds it for as long as it lives, or who holds it already.
//!
//! 1. The claim is a listening socket with an abstract name: such names belong to a network namespace, exactly as the
//!    path manager does, and end with their process, however that ends.
//! 2. A run that changes nothing claims another name, so that it can stand beside one that steers.
//!
//! A file with a process number in it was not used: it outlives its process, and another namespace may see it. A lock on
//! a file of the run directory was not used: two daemons with two run directories would both steer.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

/// What is claimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Steering this network's connections.
    Steer,
    /// Only looking at them.
    Look,
}

impl Role {
    const fn name(self) -> &'static str {
        match self {
            Self::Steer => "marline-paths",
            Self::Look => "marline-paths-dry-run",
        }
    }
}

/// Held for as long as it lives.
#[derive(Debug)]
pub struct Claim {
    _listener: UnixListener,
}

/// Why there is no claim.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// Another process holds it.
    #[error("a `marline paths`{} steers this network already; stop it first, or ask it with `marline paths status`", shown(.0))]
    Held(Option<u32>),
    /// There are no such sockets here.
    #[error("the claim on this network: {0}")]
    Socket(#[from] io::Error),
}

fn shown(process: &Option<u32>) -> String {
    process.map(|process| format!(" (process {process})")).unwrap_or_default()
}

impl Claim {
    /// Takes it.
    ///
    /// # Errors
    /// Somebody holds it, or the machine is out of sockets.
    pub fn take(role: Role) -> Result<Self, ClaimError> {
        let address = SocketAddr::from_abstract_name(role.name())?;
        let begun = Instant::now();
        loop {
            match UnixListener::bind_addr(&address) {
                Ok(listener) => return Ok(Self { _listener: listener }),
                Err(error) if error.kind() != io::ErrorKind::AddrInUse => return Err(error.into()),
                Err(_) if begun.elapsed() < PATIENCE => std::thread::sleep(PATIENCE / 20),
                Err(_) => return Err(ClaimError::Held(holder(&address))),
            }
        }
    }

    /// The process that holds it, if there is one.
    pub fn held(role: Role) -> Option<u32> {
        holder(&SocketAddr::from_abstract_name(role.name()).ok()?)
    }
}

/// chosen: a child that the holder was just starting when it ended keeps the socket until it has become its program.
const PATIENCE: Duration = Duration::from_millis(200);

/// Who listens there.
fn holder(address: &SocketAddr) -> Option<u32> {
    let stream = UnixStream::connect_addr(address).ok()?;
    let peer = rustix::net::sockopt::socket_peercred(&stream).ok()?;
    u32::try_from(peer.pid.as_raw_nonzero().get()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::links::live::in_a_network;

    #[test]
    fn a_second_daemon_of_one_network_is_refused_and_told_who_is_there() {
        in_a_network(|| {
            assert_eq!(Claim::held(Role::Steer), None);
            let claim = Claim::take(Role::Steer).unwrap();
            let error = Claim::take(Role::Steer).unwrap_err().to_string();
            let us = std::process::id();
            assert!(error.starts_with(&format!("a `marline paths` (process {us}) steers this network")), "{error}");
            assert_eq!(Claim::held(Role::Steer), Some(us));
            drop(Claim::take(Role::Look).unwrap());
            drop(claim);
            drop(Claim::take(Role::Steer).unwrap());
        });
    }

    #[test]
    fn two_networks_have_a_daemon_each() {
        in_a_network(|| {
            let _claim = Claim::take(Role::Steer).unwrap();
            in_a_network(|| drop(Claim::take(Role::Steer).unwrap()));
        });
    }
}
