//! Egress policy: which addresses an outgoing connection may reach.
//!
//! Every outgoing connection carries an [`EgressPolicy`], which records the requester and the servers that referred
//! to the address. It is checked when the connection is opened, on exactly the address that is connected to, before a
//! packet is sent. So neither a name that changes its address (DNS rebinding) nor an address that this machine
//! acquires meanwhile gets past it.
//!
//! | the address comes from | it may be in |
//! |---|---|
//! | the user of this machine, or a program on it | any zone |
//! | a server: redirect, mirror, playlist | the Internet, and the zone of the least local server that referred to it |
//! | another host, a client of a listener here | the Internet, and private addresses of networks that the other host is in |
//!
//! A server on this machine may refer to private networks as well.
//!
//! A connection that was requested at a listener of this process never leads back to that listener
//! ([`EgressPolicy::with_listener`]).
//!
//! A blocklist of addresses in each command was not used: three lists would differ, and each new command could forget
//! its own. [`AddressZone`] defines the zones.

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

/// The requester of a connection, and the servers that referred to its address. See the [module documentation](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EgressPolicy {
    /// The remote host that sent the request; `None`: the user or a program of this machine.
    requester: Option<RemoteRequester>,
    /// Zone of the least local server that referred to the address; `None`: the requester named it directly.
    referrer_zone: Option<AddressZone>,
    /// The listener of this process that received the request.
    listener: Option<SocketAddr>,
}

/// A remote host's address, and the index of the interface if the address is link-local.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct RemoteRequester {
    ip: IpAddr,
    scope_id: u32,
}

impl EgressPolicy {
    /// For requests of the user of this machine. Every address is allowed.
    pub const fn user() -> Self {
        Self { requester: None, referrer_zone: None, listener: None }
    }

    /// For requests of the peer of a connection to one of our listeners. A peer on the loopback is a program of this
    /// machine. A peer with another address of this machine may be a remote host behind a second proxy, so it counts
    /// as remote.
    pub fn for_peer(peer: SocketAddr) -> Self {
        let ip = peer.ip().to_canonical();
        let scope = if let SocketAddr::V6(peer) = peer { peer.scope_id() } else { 0 };
        Self {
            requester: (!ip.is_loopback()).then_some(RemoteRequester { ip, scope_id: scope }),
            referrer_zone: None,
            listener: None,
        }
    }

    /// Adds the listener that received the request.
    #[must_use]
    pub const fn with_listener(self, listener: SocketAddr) -> Self {
        Self { listener: Some(listener), ..self }
    }

    /// Restricts the policy to what a server at this address may refer to by a redirect, a list of mirrors or a
    /// playlist. A server whose address is no longer known (`None`) counts as one on the Internet.
    #[must_use]
    pub fn referred_by(self, server: impl Into<Option<IpAddr>>) -> Self {
        self.referred_by_zone(server.into().map_or(AddressZone::Internet, AddressZone::of))
    }

    /// Like [`referred_by`](Self::referred_by), with the zone of the server.
    #[must_use]
    pub fn referred_by_zone(self, zone: AddressZone) -> Self {
        Self { referrer_zone: Some(self.referrer_zone.map_or(zone, |referrer| referrer.min(zone))), ..self }
    }

    /// The zone of the least local server that referred to the address; `None`: the requester named it directly.
    pub const fn referrer_zone(&self) -> Option<AddressZone> {
        self.referrer_zone
    }

    /// The remote host that sent the request; `None`: this machine.
    pub fn requester(&self) -> Option<IpAddr> {
        self.requester.map(|host| host.ip)
    }

    /// Whether a remote host sent the request.
    pub const fn has_remote_requester(&self) -> bool {
        self.requester.is_some()
    }

    /// Whether a connection to this address may be opened.
    ///
    /// # Errors
    /// The address is not allowed; the error describes why.
    pub fn check(&self, address: SocketAddr) -> Result<(), Forbidden> {
        self.check_zone(address, AddressZone::of(address.ip()))
    }

    /// Checks a host before it is resolved: only a host that is an IP address can be refused here.
    ///
    /// # Errors
    /// The address is not allowed.
    pub fn check_host(&self, host: &str, port: u16) -> Result<(), ConnError> {
        let unbracketed = host.trim_start_matches('[').trim_end_matches(']');
        let Ok(address) = unbracketed.parse::<IpAddr>() else { return Ok(()) };
        self.check((address, port).into()).map_err(|why| why.conn_error(host))
    }

    /// Whether this policy forbids any zone.
    pub const fn is_restricted(&self) -> bool {
        self.requester.is_some() || self.referrer_zone.is_some()
    }

    /// Like [`check`](Self::check), for an address whose zone is already known.
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
            // A service of this machine may refer to the private network that the machine is in.
            (None, Some(referrer)) => {
                zone == referrer || (referrer, zone) == (AddressZone::Host, AddressZone::Private)
            }
        }
    }
}

/// Whether a connection to an address of this machine would reach the listener.
fn reaches_listener(listener: SocketAddr, address: SocketAddr) -> bool {
    let (bound, ip) = (listener.ip().to_canonical(), address.ip().to_canonical());
    let is_local = ip.is_loopback() || ip.is_unspecified();
    let is_same_address =
        bound.is_unspecified() || bound == ip || ip.is_unspecified() || (bound.is_loopback() && is_local);
    listener.port() == address.port() && is_same_address
}

/// A connection that the policy refuses, with the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forbidden {
    address: IpAddr,
    zone: AddressZone,
    policy: EgressPolicy,
    is_loop: bool,
}

impl Forbidden {
    /// Whether the connection would lead back to the listener that received the request.
    pub const fn is_loop(&self) -> bool {
        self.is_loop
    }

    /// Converts the refusal to the error of a failed connection.
    pub(crate) fn conn_error(&self, host: &str) -> ConnError {
        let kind = if self.is_loop { ConnErrorKind::OwnListener } else { ConnErrorKind::Forbidden };
        ConnError { kind, text: self.describe(host) }
    }

    /// One line for the user: why there is no connection to `host`, the host as it was requested.
    pub fn describe(&self, host: &str) -> String {
        if self.is_loop {
            return format!("{host} leads to the proxy itself");
        }
        let zone = self.zone.name();
        // The address itself is not shown: it would reveal information about this network to a remote host.
        if self.policy.requester.is_some() {
            return format!("{host} is {zone}, which other hosts may not reach through this proxy");
        }
        let address = self.address.to_string();
        let address_text = if address == host { String::new() } else { format!(" ({address})") };
        let referrer = self
            .policy
            .referrer_zone
            .map_or_else(String::new, |referrer| format!(", and a server with {} referred to it", referrer.name()));
        format!("{host}{address_text} is {zone}{referrer}: refused; request that URL directly if you mean it")
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

    fn allowed(policy: EgressPolicy, is_neighbour: bool) -> Vec<AddressZone> {
        ALL.into_iter().filter(|zone| policy.allows_zone(*zone, || is_neighbour)).collect()
    }

    fn peer(address: &str) -> EgressPolicy {
        EgressPolicy::for_peer(address.parse().unwrap())
    }

    #[test]
    fn the_user_and_programs_of_this_machine_may_reach_every_zone() {
        assert_eq!(allowed(EgressPolicy::user(), false), ALL);
        for local in ["127.0.0.1:5", "127.3.2.1:5", "[::1]:5", "[::ffff:127.0.0.1]:5"] {
            assert_eq!(allowed(peer(local), false), ALL, "{local}");
        }
    }

    #[test]
    fn a_server_refers_to_no_zone_more_local_than_its_own() {
        for (server, reaches) in [
            (AddressZone::Internet, &[AddressZone::Internet][..]),
            (AddressZone::Private, &[AddressZone::Internet, AddressZone::Private]),
            (AddressZone::LinkLocal, &[AddressZone::Internet, AddressZone::LinkLocal]),
            (AddressZone::Metadata, &[AddressZone::Internet, AddressZone::Metadata]),
            (AddressZone::Host, &[AddressZone::Internet, AddressZone::Private, AddressZone::Host]),
        ] {
            assert_eq!(allowed(EgressPolicy::user().referred_by_zone(server), true), reaches, "{server:?}");
            // Of several servers the least local one decides.
            let after_the_internet =
                EgressPolicy::user().referred_by_zone(server).referred_by_zone(AddressZone::Internet);
            assert_eq!(allowed(after_the_internet, true), [AddressZone::Internet]);
            let before = EgressPolicy::user().referred_by_zone(AddressZone::Internet).referred_by_zone(server);
            assert_eq!(allowed(before, true), [AddressZone::Internet]);
        }
    }

    #[test]
    fn a_remote_host_reaches_its_own_network_and_no_service_of_this_machine() {
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
    fn a_request_does_not_lead_back_to_its_listener() {
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
            // In another zone the address belongs to another machine.
            assert!(
                EgressPolicy::user().with_listener(listener).check_zone(address, AddressZone::Internet).is_ok()
            );
        }
    }

    #[test]
    fn a_refusal_names_the_remedy_and_hides_the_address_from_remote_hosts() {
        let address: SocketAddr = "127.0.0.1:80".parse().unwrap();
        let referred = EgressPolicy::user().referred_by_zone(AddressZone::Internet).check(address).unwrap_err();
        assert_eq!(
            referred.describe("127.0.0.1"),
            referred.describe("a.test").replace("a.test (127.0.0.1)", "127.0.0.1")
        );
        assert_eq!(
            referred.describe("127.0.0.1"),
            "127.0.0.1 is an address of this machine, and a server with a public address referred to it: refused; request that \
             URL directly if you mean it"
        );
        let refusal = peer("192.0.2.9:1").check(address).unwrap_err().describe("a.test");
        assert_eq!(
            refusal,
            "a.test is an address of this machine, which other hosts may not reach through this proxy"
        );
    }
}
