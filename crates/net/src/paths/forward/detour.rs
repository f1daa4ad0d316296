//! The way that connections which are led away take: to this host itself, wherever they were going.
//!
//! In: the families that the forwarder listens for. Out: a rule and a route for each, while a [`Held`] lives.
//!
//! 1. The rule asks for the mark that only the [rules](super::rules) of nftables give. Without them it means nobody: left
//!    behind by a run that was killed, it does nothing.
//! 2. What an earlier run left behind is removed first.

use marline_core::wire::netlink::{Detour, Request, family};
use marline_sys::netlink::RouteSocket;

use super::ForwardError;
use super::rules::{Families, LED};

/// The rules and routes are there while this lives.
#[derive(Debug)]
pub(super) struct Held {
    socket: RouteSocket,
    detours: Vec<Detour>,
}

impl Held {
    /// Makes them.
    ///
    /// # Errors
    /// Not permitted; a kernel without rules of routing.
    pub(super) fn new(families: Families) -> Result<Self, ForwardError> {
        let told = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::PermissionDenied => ForwardError::NotPermitted,
            _ => ForwardError::Socket { what: "a routing rule", error },
        };
        let socket = RouteSocket::open().map_err(told)?;
        let mut held = Self { socket, detours: Vec::new() };
        for (is_meant, family) in [(families.ipv4, family::V4), (families.ipv6, family::V6)] {
            let detour = Detour { family, mark: LED, table: LED, priority: PLACE };
            // As often as it is there, and never without end.
            (0..16).take_while(|_| held.ask(detour.remove_rule()).is_ok()).for_each(drop);
            if is_meant {
                held.detours.push(detour);
                held.ask(detour.install_route(LOOPBACK)).map_err(told)?;
                held.ask(detour.add_rule()).map_err(told)?;
            }
        }
        Ok(held)
    }

    fn ask(&self, request: Request) -> std::io::Result<()> {
        self.socket.request(&request.finish(1)).map(drop)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for detour in &self.detours {
            // What cannot be removed does nothing without the rules of nftables.
            let _ = self.ask(detour.remove_rule());
            let _ = self.ask(detour.remove_route(LOOPBACK));
        }
    }
}

/// The number of `lo` in every network namespace (`LOOPBACK_IFINDEX`).
const LOOPBACK: u32 = 1;
/// chosen: after `local` (0) and before whatever routes by address.
const PLACE: u32 = 108;
