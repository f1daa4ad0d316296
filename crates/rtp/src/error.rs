//! Errors that keep a stream from being offered: which option, link, server or address, and what to do about it.

/// Why a stream cannot be offered to players.
#[derive(Debug, thiserror::Error)]
pub enum RtpError {
    /// An option is invalid or contradicts another one.
    #[error("{0}")]
    Usage(String),
    /// A link or the RTSP server cannot be used.
    #[error("{0}")]
    Link(String),
    /// The listening address cannot be bound.
    #[error("{0}")]
    Listen(String),
}
