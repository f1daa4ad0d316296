//! Parts that edge and relay share: the request for a tunnel, and the copying of its bytes.
//!
//! - `connect_head`: the CONNECT request and its responses
//! - `copy`: copies a tunnel's bytes in both directions
//! - `buffer`: bytes that a tunnel cannot forward yet, with an account over all tunnels
//! - `buffered_socket`: reads large pieces for TLS
//! - `close`: an end in order or a reset

mod buffer;
mod buffered_socket;
pub(crate) mod close;
mod connect_head;
mod copy;

pub(crate) use buffered_socket::BufferedSocket;
pub(crate) use connect_head::{CONNECTED, Problem, Request, Status, parse};
pub(crate) use copy::{Pacer, UploadProgress, copy_bidirectional, copy_bidirectional_with};

pub(crate) use marline_core::fleet::{PaceGrant, Target};

/// Well-known path (RFC 8615) to which an edge uploads probe bytes; the relay counts and discards them.
pub(crate) const PROBE_PATH: &str = "/.well-known/marline/probe";
