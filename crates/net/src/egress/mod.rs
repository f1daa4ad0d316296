//! The address guard: which addresses a connection may lead to.
//!
//! Every outgoing connection carries a [`Right`], which says who asked for it and what led to its address. It is checked
//! when the connection is opened, on the very address that is connected to, before a packet is sent; so neither a name
//! that changes its address (DNS rebinding) nor an address that this machine acquires meanwhile gets past it.
//!
//! | the address comes from | it may lead to |
//! |---|---|
//! | the user of this machine, or a program on it | anywhere |
//! | a server: redirect, mirror, playlist | the Internet, and the zone of the least local server that led there |
//! | another host | the Internet, and private addresses of the network that this host is in |
//!
//! What came in at a listener of ours never leads back to it ([`Right::at`]).
//!
//! A blocklist of addresses in each command was not used: three of them would differ, and each is one more place to
//! forget. What is in which zone: [`Zone`].

mod embedded_ipv4;
mod ip_prefix;
mod same_network;
mod zone;

use std::net::{IpAddr, SocketAddr};

use marline_core::fetch::{ConnError, ConnErrorKind};

pub use embedded_ipv4::embedded_v4;
pub(crate) use embedded_ipv4::register_nat64_prefix;
pub use ip_prefix::IpPrefix;
pub use zone::{AddressZone, is_own_address};

use same_network::is_same_network;

/// Who asked for a connection, and what led to its address. See the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EgressPolicy {
    /// Another host asked; none: the user or a program of this machine.
    requester: Option<RemoteRequester>,
    /// The least local server that led to the address; none: whoever asked has named it.
    referrer_zone: Option<AddressZone>,
    /// Our listener at which it was asked for.
    listener: Option<SocketAddr>,
}

/// Another host's address, and the interface on which a link-local one is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct RemoteRequester {
    ip: IpAddr,
    scope_id: u32,
}

impl EgressPolicy {
    /// What the user of this machine has typed.
    pub const fn user() -> Self {
        Self { requester: None, referrer_zone: None, listener: None }
    }

    /// What the peer of a connection to one of our listeners asks for. A peer on the loopback is a program of this
    /// machine; one that has another address of this machine may be another host behind a second proxy.
    pub fn for_peer(peer: SocketAddr) -> Self {
        let ip = peer.ip().to_canonical();
        let scope = if let SocketAddr::V6(peer) = peer { peer.scope_id() } else { 0 };
        Self {
            requester: (!ip.is_loopback()).then_some(RemoteRequester { ip, scope_id: scope }),
            referrer_zone: None,
            listener: None,
        }
    }

    /// The same, asked for at this listener of ours.
    #[must_use]
    pub const fn with_listener(self, listener: SocketAddr) -> Self {
        Self { listener: Some(listener), ..self }
    }

    /// What a server at this address leads to: a redirect, a list of mirrors, a playlist. Of a server whose address is not
    /// known any more nothing is known but that it is one.
    #[must_use]
    pub fn referred_by(self, server: impl Into<Option<IpAddr>>) -> Self {
        self.referred_by_zone(server.into().map_or(AddressZone::Internet, AddressZone::of))
    }

    /// The same of a server in this zone.
    #[must_use]
    pub fn referred_by_zone(self, zone: AddressZone) -> Self {
        Self { referrer_zone: Some(self.referrer_zone.map_or(zone, |referrer| referrer.min(zone))), ..self }
    }

    /// The least local zone that a server on the way to the address was in; none: whoever asked has named it.
    pub const fn referrer_zone(&self) -> Option<AddressZone> {
        self.referrer_zone
    }

    /// The other host that asked; none: this machine.
    pub fn requester(&self) -> Option<IpAddr> {
        self.requester.map(|host| host.ip)
    }

    /// Whether another host asked.
    pub const fn is_for_remote_host(&self) -> bool {
        self.requester.is_some()
    }

    /// Whether a connection to this address may be opened.
    ///
    /// # Errors
    /// It may not; the reason in words.
    pub fn check(&self, address: SocketAddr) -> Result<(), Forbidden> {
        self.check_zone(address, AddressZone::of(address.ip()))
    }

    /// Whether a host may be connected to, as far as that is known without its addresses: it is an address itself.
    ///
    /// # Errors
    /// It may not.
    pub fn check_host(&self, host: &str, port: u16) -> Result<(), ConnError> {
        let unbracketed = host.trim_start_matches('[').trim_end_matches(']');
        let Ok(address) = unbracketed.parse::<IpAddr>() else { return Ok(()) };
        self.check((address, port).into()).map_err(|why| why.conn_error(host))
    }

    /// Whether it matters where an address leads, for this right.
    pub const fn is_restricted(&self) -> bool {
        self.requester.is_some() || self.referrer_zone.is_some()
    }

    /// The same where the address's zone is known already.
    pub(crate) fn check_zone(&self, address: SocketAddr, zone: AddressZone) -> Result<(), Forbidden> {
        let forbidden = |is_loop| Forbidden { address: address.ip(), zone, policy: *self, is_loop };
        if zone == AddressZone::Host && self.listener.is_some_and(|listener| reaches_listener(listener, address)) {
            return Err(forbidden(true));
        }
        let is_neighbour =
            || self.requester.is_some_and(|host| is_same_network(host.ip, host.scope_id, address.ip()));
        if self.allows_zone(zone, is_neighbour) { Ok(()) } else { Err(forbidden(false)) }
    }

    fn allows_zone(&self, zone: AddressZone, is_neighbour: impl Fn() -> bool) -> bool {
        match (self.requester, self.referrer_zone) {
            (_, _) if zone == AddressZone::Internet => true,
            (Some(_), _) => zone == AddressZone::Private && is_neighbour(),
            (None, None) => true,
            // A service of this machine may lead to the private network that it is in.
            (None, Some(referrer)) => {
                zone == referrer || (referrer, zone) == (AddressZone::Host, AddressZone::Private)
            }
        }
    }
}

/// Whether an address of this machine leads to the listener.
fn reaches_listener(listener: SocketAddr, address: SocketAddr) -> bool {
    let (bound, ip) = (listener.ip().to_canonical(), address.ip().to_canonical());
    let is_local = ip.is_loopback() || ip.is_unspecified();
    let is_same_address =
        bound.is_unspecified() || bound == ip || ip.is_unspecified() || (bound.is_loopback() && is_local);
    listener.port() == address.port() && is_same_address
}

/// A connection that is not opened, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forbidden {
    address: IpAddr,
    zone: AddressZone,
    policy: EgressPolicy,
    is_loop: bool,
}

impl Forbidden {
    /// Whether it would lead back to the listener at which it was asked for.
    pub const fn is_loop(&self) -> bool {
        self.is_loop
    }

    /// The same as what a connection fails with.
    pub(crate) fn conn_error(&self, host: &str) -> ConnError {
        let kind = if self.is_loop { ConnErrorKind::OwnListener } else { ConnErrorKind::Forbidden };
        ConnError { kind, text: self.describe(host) }
    }

    /// One line: `host`, as it was asked for, and why there is no connection to it.
    pub fn describe(&self, host: &str) -> String {
        if self.is_loop {
            return format!("{host} leads to the proxy itself");
        }
        let zone = self.zone.name();
        // Which address it is would tell another host something of this network.
        if self.policy.requester.is_some() {
            return format!("{host} is {zone}, which other hosts may not reach through this proxy");
        }
        let address = self.address.to_string();
        let which = if address == host { String::new() } else { format!(" ({address})") };
        let referrer = self
            .policy
            .referrer_zone
            .map_or_else(String::new, |referrer| format!(", and a server with {} led there", referrer.name()));
        format!("{host}{which} is {zone}{referrer}: refused; ask for that URL itself if it is meant")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [AddressZone; 5] = [
        AddressZone::Internet,
        AddressZone::Private,
        AddressZone::LinkLocal,
        AddressZone::Metadata,
        AddressZone::Host,
    ];

    fn allowed(right: EgressPolicy, is_neighbour: bool) -> Vec<AddressZone> {
        ALL.into_iter().filter(|zone| right.allows_zone(*zone, || is_neighbour)).collect()
    }

    fn peer(address: &str) -> EgressPolicy {
        EgressPolicy::for_peer(address.parse().unwrap())
    }

    #[test]
    fn the_user_and_programs_of_this_machine_reach_everything_that_they_name() {
        assert_eq!(allowed(EgressPolicy::user(), false), ALL);
        for local in ["127.0.0.1:5", "127.3.2.1:5", "[::1]:5", "[::ffff:127.0.0.1]:5"] {
            assert_eq!(allowed(peer(local), false), ALL, "{local}");
        }
    }

    #[test]
    fn a_server_leads_no_further_into_the_local_networks_than_it_is_in() {
        for (server, reaches) in [
            (AddressZone::Internet, &[AddressZone::Internet][..]),
            (AddressZone::Private, &[AddressZone::Internet, AddressZone::Private]),
            (AddressZone::LinkLocal, &[AddressZone::Internet, AddressZone::LinkLocal]),
            (AddressZone::Metadata, &[AddressZone::Internet, AddressZone::Metadata]),
            (AddressZone::Host, &[AddressZone::Internet, AddressZone::Private, AddressZone::Host]),
        ] {
            assert_eq!(allowed(EgressPolicy::user().referred_by_zone(server), true), reaches, "{server:?}");
            // The least local one of several counts.
            let after_the_internet =
                EgressPolicy::user().referred_by_zone(server).referred_by_zone(AddressZone::Internet);
            assert_eq!(allowed(after_the_internet, true), [AddressZone::Internet]);
            let before = EgressPolicy::user().referred_by_zone(AddressZone::Internet).referred_by_zone(server);
            assert_eq!(allowed(before, true), [AddressZone::Internet]);
        }
    }

    #[test]
    fn another_host_reaches_its_own_network_and_nothing_of_this_machine() {
        for other in ["192.168.1.7:5", "203.0.113.5:5", "[fe80::1]:5", "[2001:db8::7]:5"] {
            assert_eq!(allowed(peer(other), false), [AddressZone::Internet], "{other}");
            assert_eq!(allowed(peer(other), true), [AddressZone::Internet, AddressZone::Private], "{other}");
            assert_eq!(
                allowed(peer(other).referred_by_zone(AddressZone::Host), true),
                [AddressZone::Internet, AddressZone::Private],
                "{other}"
            );
        }
    }

    #[test]
    fn what_came_in_at_a_listener_does_not_lead_back_to_it() {
        for (listener, address, is_loop) in [
            ("127.0.0.1:8480", "127.0.0.1:8480", true),
            ("127.0.0.1:8480", "127.9.9.9:8480", true),
            ("127.0.0.1:8480", "0.0.0.0:8480", true),
            ("127.0.0.1:8480", "[::ffff:127.0.0.1]:8480", true),
            ("127.0.0.1:8480", "127.0.0.1:8481", false),
            ("0.0.0.0:8480", "127.0.0.1:8480", true),
            ("0.0.0.0:8480", "192.168.1.1:8480", true),
            ("192.168.1.1:8480", "192.168.1.1:8480", true),
            ("192.168.1.1:8480", "127.0.0.1:8480", false),
            ("192.168.1.1:8480", "192.168.1.1:80", false),
            ("[::]:8480", "[::1]:8480", true),
        ] {
            let [listener, address]: [SocketAddr; 2] = [listener, address].map(|at| at.parse().unwrap());
            let checked = EgressPolicy::user().with_listener(listener).check_zone(address, AddressZone::Host);
            assert_eq!(checked.is_err_and(|why| why.is_loop()), is_loop, "{listener} {address}");
            // Elsewhere it is another machine's port.
            assert!(
                EgressPolicy::user().with_listener(listener).check_zone(address, AddressZone::Internet).is_ok()
            );
        }
    }

    #[test]
    fn a_refusal_names_the_remedy_and_tells_other_hosts_no_address() {
        let address: SocketAddr = "127.0.0.1:80".parse().unwrap();
        let led = EgressPolicy::user().referred_by_zone(AddressZone::Internet).check(address).unwrap_err();
        assert_eq!(led.describe("127.0.0.1"), led.describe("a.test").replace("a.test (127.0.0.1)", "127.0.0.1"));
        assert_eq!(
            led.describe("127.0.0.1"),
            "127.0.0.1 is an address of this machine, and a server with a public address led there: refused; ask for that \
             URL itself if it is meant"
        );
        let other = peer("192.0.2.9:1").check(address).unwrap_err().describe("a.test");
        assert_eq!(
            other,
            "a.test is an address of this machine, which other hosts may not reach through this proxy"
        );
    }
}
