//! Why a mirrored connection was closed.

/// Why nothing more comes of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CloseReason {
    /// The flow has all of the resource, or has gone on to another one.
    Done,
    /// The flow is faster than the connection can advance.
    TooSlow,
    /// The server does not respond, or not to the last probes.
    NoResponse,
    /// The server has reset or closed it.
    Closed,
    /// Its response head differs from the flow's.
    Differs,
    /// The secondary link delivers nothing, or no port could be reserved.
    LinkUnavailable,
    /// More bytes than `max_skipped` were acknowledged without being kept.
    Waste,
}

impl CloseReason {
    /// The reason as a clause for the status.
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::Done => "finished",
            Self::TooSlow => "the flow is faster than the mirrored connection",
            Self::NoResponse => "the server does not respond",
            Self::Closed => "closed by the server",
            Self::Differs => "its response differs from the flow's",
            Self::LinkUnavailable => "the second link is unavailable",
            Self::Waste => "too many bytes were skipped",
        }
    }
}
