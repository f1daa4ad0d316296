//! Errors of a stream over two links: which link, server or address cannot be used, and what to do about it.

/// Why a stream cannot be offered to players.
#[derive(Debug, thiserror::Error)]
pub enum RtpError {
    /// The options contradict each other or leave the loopback.
    #[error("{0}")]
    Usage(String),
    /// A link or the server cannot be used.
    #[error("{0}")]
    Link(String),
    /// The listening address cannot be used.
    #[error("{0}")]
    Listen(String),
}
