//! Scenario of the HTTP simulator, as plain data.
//!
//! It has everything that an [`HttpSim`](super::HttpSim) needs except the machine: links with their events, and a
//! server. Equal scenarios with equal machines give equal outcomes.

use marline_core::fetch::Protocol;
use marline_core::link::LinkProfile;
use marline_core::units::{DataSize, Duration};

use super::server::HttpServer;
use crate::spec::{LinkEvent, LinkSpec};
use crate::tcp::{Algorithm, TcpConfig};

/// Everything around the machine in a simulated download.
#[derive(Clone, Debug)]
pub struct HttpScenario {
    /// The client's links, in the order in which they are reported to the machine.
    pub links: Vec<ClientLink>,
    /// Changes of the links at given times, by name of the link.
    pub events: Vec<LinkEvent>,
    /// Interfaces that appear or disappear.
    pub presence_changes: Vec<PresenceChange>,
    /// The origin server, with its file and its faults.
    pub server: HttpServer,
    /// HTTP version: responses in sequence or interleaved on a connection.
    pub protocol: Protocol,
    /// Whether connections start with a TLS handshake: one more RTT and its bytes.
    pub uses_tls: bool,
    /// Congestion control of client and server.
    pub algorithm: Algorithm,
    /// Receive window of client and server.
    pub receive_window: DataSize,
    /// Seed of the links' random numbers.
    pub seed: u64,
}

impl HttpScenario {
    /// A server with a file of `size` bytes behind these links, without any events. HTTP/1.1, no TLS, CUBIC.
    pub fn new(size: DataSize, links: impl IntoIterator<Item = LinkSpec>) -> Self {
        Self {
            links: links.into_iter().map(ClientLink::new).collect(),
            events: Vec::new(),
            presence_changes: Vec::new(),
            server: HttpServer::new(size),
            protocol: Protocol::Http1,
            uses_tls: false,
            algorithm: Algorithm::Cubic,
            receive_window: TcpConfig::default().receive_window,
            seed: 1,
        }
    }
}

/// A link of the client.
#[derive(Clone, Debug)]
pub struct ClientLink {
    /// Properties of the link itself.
    pub spec: LinkSpec,
    /// What the client's machine knows about it.
    pub profile: LinkProfile,
    /// Whether the interface is present at the start.
    pub is_present: bool,
}

impl ClientLink {
    /// An unmetered link that is present from the start.
    pub fn new(spec: LinkSpec) -> Self {
        let profile = LinkProfile::new(&spec.name, spec.kind);
        Self { spec, profile, is_present: true }
    }
}

/// An interface appears or disappears, and the machine is notified. While it is absent, its packets are lost.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PresenceChange {
    /// Time since the start.
    pub at: Duration,
    /// Name of the link.
    pub link: String,
    /// Whether it is present from then on.
    pub is_present: bool,
}
