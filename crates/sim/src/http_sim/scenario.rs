//! What a world is made of, as plain data.
//!
//! In: links as they are written, what happens to them, a server. Out: everything that a [`World`](super::World) needs
//! beside the machine; equal scenes with equal machines give equal outcomes.

use marline_core::fetch::Protocol;
use marline_core::link::LinkProfile;
use marline_core::units::{DataSize, Duration};

use super::server::HttpServer;
use crate::spec::{LinkEvent, LinkSpec};
use crate::tcp::{Algorithm, TcpConfig};

/// A download's surroundings.
#[derive(Clone, Debug)]
pub struct HttpScenario {
    /// The client's links, in the order in which it hears of them.
    pub links: Vec<ClientLink>,
    /// What happens to the links' packets, by name and time.
    pub events: Vec<LinkEvent>,
    /// What happens to the client's interfaces.
    pub presence_changes: Vec<PresenceChange>,
    /// The other end.
    pub server: HttpServer,
    /// How requests share a connection.
    pub protocol: Protocol,
    /// Whether a TLS handshake comes first: one more round trip and its bytes.
    pub uses_tls: bool,
    /// The congestion control of both ends.
    pub algorithm: Algorithm,
    /// The receive window of both ends.
    pub receive_window: DataSize,
    /// Where the links' randomness comes from.
    pub seed: u64,
}

impl HttpScenario {
    /// A server with `size` bytes behind these links; nothing happens to anyone. HTTP/1.1, no TLS, CUBIC.
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

/// A link at the client.
#[derive(Clone, Debug)]
pub struct ClientLink {
    /// The link itself.
    pub spec: LinkSpec,
    /// What the client knows of it.
    pub profile: LinkProfile,
    /// Whether the interface is there at the start.
    pub is_present: bool,
}

impl ClientLink {
    /// An unmetered link that is there from the start.
    pub fn new(spec: LinkSpec) -> Self {
        let profile = LinkProfile::new(&spec.name, spec.kind);
        Self { spec, profile, is_present: true }
    }
}

/// An interface comes or goes, and the system says so. Its packets vanish while it is gone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PresenceChange {
    /// Since the start.
    pub at: Duration,
    /// The link's name.
    pub link: String,
    /// Whether it is there from now on.
    pub is_present: bool,
}
