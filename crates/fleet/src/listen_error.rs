//! Error of the listeners of an edge and of a relay.

use std::io;
use std::net::SocketAddr;

/// A listener could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("listen on {address}: {error}")]
pub struct ListenError {
    /// The address to listen on.
    pub address: SocketAddr,
    /// The error of the kernel.
    pub error: io::Error,
}
