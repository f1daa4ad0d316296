//! A pending RTSP request that was sent over one or both links: decides which response the player gets.
//!
//! 1. The first successful response is forwarded at once.
//! 2. An error response is kept until the other link has responded as well, is lost or has timed out. The reason is a
//!    request such as TEARDOWN that reaches the server twice: one copy succeeds, the other one gets an error ("session
//!    not found"). The error may arrive first, although the request has succeeded.
//! 3. If no link can respond any more, the first error response is forwarded.

/// One of the two links.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkRole {
    /// The link that carries the media.
    Primary,
    /// The link that assists.
    Secondary,
}

/// A pending request. `R` is the type of its responses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DuplicatedRequest<R> {
    /// Whether the primary link may still return a response.
    awaits_primary: bool,
    /// Whether the secondary link may still return a response.
    awaits_secondary: bool,
    /// The first error response.
    first_error: Option<R>,
}

impl<R> DuplicatedRequest<R> {
    /// A request that was sent over the primary link, the secondary link or both.
    pub const fn new(sent_over_primary: bool, sent_over_secondary: bool) -> Self {
        Self { awaits_primary: sent_over_primary, awaits_secondary: sent_over_secondary, first_error: None }
    }

    /// Processes a response; `is_success`: its status is not an error. Returns the response to forward to the player, if
    /// it is decided. The caller then removes this request.
    pub fn on_response(&mut self, link: LinkRole, is_success: bool, response: R) -> Option<R> {
        if is_success {
            return Some(response);
        }
        self.first_error.get_or_insert(response);
        self.on_link_lost(link)
    }

    /// Stops waiting for a response over this link: its connection is lost, it has returned an error, or it has timed
    /// out. Returns the error response to forward if there is one and no other link is awaited.
    pub fn on_link_lost(&mut self, link: LinkRole) -> Option<R> {
        match link {
            LinkRole::Primary => self.awaits_primary = false,
            LinkRole::Secondary => self.awaits_secondary = false,
        }
        if self.is_unanswerable() { self.first_error.take() } else { None }
    }

    /// Whether one link has returned an error and the other is still awaited. (When no link is awaited any more, the
    /// error has been returned to the caller and is no longer stored here.)
    pub const fn is_refused(&self) -> bool {
        self.first_error.is_some()
    }

    /// Whether no further response can arrive. This includes a request whose error response was already returned.
    pub const fn is_unanswerable(&self) -> bool {
        !self.awaits_primary && !self.awaits_secondary
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_successful_response_is_forwarded_at_once() {
        assert_eq!(DuplicatedRequest::new(true, true).on_response(LinkRole::Secondary, true, 200), Some(200));
    }

    #[test]
    fn an_error_response_is_kept_until_the_other_link_has_responded() {
        let mut request = DuplicatedRequest::new(true, true);
        assert_eq!(request.on_response(LinkRole::Primary, false, 454), None);
        assert_eq!(request.on_response(LinkRole::Secondary, true, 200), Some(200));
        let mut request = DuplicatedRequest::new(true, true);
        assert_eq!(request.on_response(LinkRole::Primary, false, 454), None);
        assert_eq!(request.on_response(LinkRole::Secondary, false, 500), Some(454), "the error that arrived first");
        let mut single = DuplicatedRequest::new(true, false);
        assert_eq!(single.on_response(LinkRole::Primary, false, 404), Some(404));
    }

    #[test]
    fn a_lost_link_is_not_awaited() {
        let mut request = DuplicatedRequest::new(true, true);
        assert_eq!((request.on_link_lost(LinkRole::Primary), request.is_unanswerable()), (None, false));
        assert_eq!(request.on_response(LinkRole::Secondary, false, 454), Some(454));
        let mut request: DuplicatedRequest<u16> = DuplicatedRequest::new(true, true);
        request.on_link_lost(LinkRole::Primary);
        assert_eq!((request.on_link_lost(LinkRole::Secondary), request.is_unanswerable()), (None, true));
    }
}
