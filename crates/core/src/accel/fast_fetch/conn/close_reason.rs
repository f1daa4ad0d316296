//! How replayed connections end.
//!
//! In: what has happened. Out: words for people.

/// Why nothing more comes of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::accel) enum CloseReason {
    /// The flow has all of the resource, or has gone on to another one.
    Done,
    /// The flow is faster than the walk.
    TooSlow,
    /// The server does not answer, or not to what was asked last.
    NoResponse,
    /// The server has reset or closed it.
    Closed,
    /// Its head is not the flow's.
    Differs,
    /// The helping link brings nothing, or there is no port.
    LinkUnavailable,
    /// Too much was passed over.
    Waste,
}

impl CloseReason {
    /// In a few words.
    pub(in crate::accel) const fn text(self) -> &'static str {
        match self {
            Self::Done => "it is done",
            Self::TooSlow => "the flow is faster than it can be walked",
            Self::NoResponse => "the server does not follow",
            Self::Closed => "the server has closed it",
            Self::Differs => "its answer is not the flow's",
            Self::LinkUnavailable => "the second link has no way for it",
            Self::Waste => "it has made the server send enough in vain",
        }
    }
}
