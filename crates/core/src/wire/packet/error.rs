//! Why bytes are not read: each reason is one that a status line can show, and none is a fault of ours.

/// Why some bytes are not the packet that was asked for. Whoever carries them passes them on as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ParseError {
    /// Fewer bytes than its own lengths say.
    #[error("it is cut off")]
    Truncated,
    /// Neither IPv4 nor IPv6.
    #[error("it has IP version {0}")]
    Version(u8),
    /// A length that contradicts another.
    #[error("its lengths contradict each other")]
    Malformed,
    /// A part of a larger packet; the rest is elsewhere.
    #[error("it is a fragment, not a whole packet")]
    Fragment,
    /// More of IPv6's extension headers than [`EXTENSIONS_MAX`](super::EXTENSIONS_MAX).
    #[error("it has too many extension headers")]
    TooManyExtensions,
    /// On its way to somebody else than its destination field says, so that its checksum is over another address.
    #[error("it is source-routed")]
    SourceRouted,
    /// Whole, but of another protocol; see [`protocol`](super::protocol).
    #[error("its protocol is {0}, not the one asked for")]
    WrongProtocol(u8),
    /// ICMP, but another message than the one asked for.
    #[error("its ICMP type is {0}, or a code of it, that was not asked for")]
    WrongIcmpType(u8),
}
