//! Reasons for not parsing bytes as a packet. Each can be shown in a status line, and none is an error of marline.

/// Why bytes are not the expected packet. Callers forward such packets unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ParseError {
    /// There are fewer bytes than the length fields state.
    #[error("the packet is truncated")]
    Truncated,
    /// The IP version is neither 4 nor 6.
    #[error("IP version {0} is not supported")]
    Version(u8),
    /// A length field contradicts another.
    #[error("the length fields of the packet contradict each other")]
    Malformed,
    /// The packet is a fragment of a larger one.
    #[error("the packet is a fragment")]
    Fragment,
    /// There are more IPv6 extension headers than [`MAX_EXTENSIONS`](super::MAX_EXTENSIONS).
    #[error("the packet has too many IPv6 extension headers")]
    TooManyExtensions,
    /// Its final destination differs from the one in its header, so its checksum covers another address.
    #[error("the packet is source-routed")]
    SourceRouted,
    /// The packet is complete, but of another protocol; see [`protocol`](super::protocol).
    #[error("the packet has another protocol than expected: {0}")]
    WrongProtocol(u8),
    /// The packet is ICMP, but another message than expected.
    #[error("the ICMP message has another type or code than expected: type {0}")]
    WrongIcmpType(u8),
}
