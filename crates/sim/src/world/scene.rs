//! What a world is made of, as plain data.
//!
//! In: links as they are written, what happens to them, a server. Out: everything that a [`World`](super::World) needs
//! beside the machine; equal scenes with equal machines give equal outcomes.

use marline_core::fetch::Protocol;
use marline_core::link::LinkProfile;
use marline_core::units::{DataSize, Duration};

use super::server::Server;
use crate::spec::{Event, LinkSpec};
use crate::tcp::{Algorithm, Config};

/// A download's surroundings.
#[derive(Clone, Debug)]
pub struct Scene {
    /// The client's links, in the order in which it hears of them.
    pub links: Vec<ClientLink>,
    /// What happens to the links' packets, by name and time.
    pub events: Vec<Event>,
    /// What happens to the client's interfaces.
    pub presence: Vec<Presence>,
    /// The other end.
    pub server: Server,
    /// How requests share a connection.
    pub protocol: Protocol,
    /// Whether a TLS handshake comes first: one more round trip and its bytes.
    pub tls: bool,
    /// The congestion control of both ends.
    pub algorithm: Algorithm,
    /// The receive window of both ends.
    pub window: DataSize,
    /// Where the links' randomness comes from.
    pub seed: u64,
}

impl Scene {
    /// A server with `size` bytes behind these links; nothing happens to anyone. HTTP/1.1, no TLS, CUBIC.
    pub fn new(size: DataSize, links: impl IntoIterator<Item = LinkSpec>) -> Self {
        Self {
            links: links.into_iter().map(ClientLink::new).collect(),
            events: Vec::new(),
            presence: Vec::new(),
            server: Server::new(size),
            protocol: Protocol::Http1,
            tls: false,
            algorithm: Algorithm::Cubic,
            window: Config::default().window,
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
    pub present: bool,
}

impl ClientLink {
    /// An unmetered link that is there from the start.
    pub fn new(spec: LinkSpec) -> Self {
        let profile = LinkProfile::new(&spec.name, spec.kind);
        Self { spec, profile, present: true }
    }
}

/// An interface comes or goes, and the system says so. Its packets vanish while it is gone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Presence {
    /// Since the start.
    pub at: Duration,
    /// The link's name.
    pub link: String,
    /// Whether it is there from now on.
    pub present: bool,
}
