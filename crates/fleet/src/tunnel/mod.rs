//! What an edge and a relay have in common: the request for a tunnel, and its bytes.

mod buffer;
mod buffered_socket;
pub(crate) mod close;
mod connect_head;
mod copy;

pub(crate) use buffered_socket::BufferedSocket;
pub(crate) use connect_head::{CONNECTED, Problem, Request, Status, Target, parse};
pub(crate) use copy::{PaceGrant, Pacer, UploadProgress, copy_bidirectional, copy_bidirectional_with};

/// Where an edge sends bytes to a relay that counts them and throws them away (RFC 8615).
pub(crate) const PROBE_PATH: &str = "/.well-known/marline/probe";
