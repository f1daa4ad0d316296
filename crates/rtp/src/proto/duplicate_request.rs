//! A request that was sent over both links: decides which response the player gets.
//!
//! The first successful response counts at once. An error response waits for the other link, because a server that receives a
//! TEARDOWN twice reports an unknown session for the second copy, whichever response arrives first. When no other response
//! can come, the error is the result.

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
    primary: bool,
    secondary: bool,
    refusal: Option<R>,
}

impl<R> DuplicatedRequest<R> {
    /// A request that was sent over the given links.
    pub const fn new(primary: bool, secondary: bool) -> Self {
        Self { primary, secondary, refusal: None }
    }

    /// Records a response. Returns the one to forward, after which the request is finished.
    pub fn on_response(&mut self, link: LinkRole, is_good: bool, response: R) -> Option<R> {
        if is_good {
            return Some(response);
        }
        self.refusal.get_or_insert(response);
        self.on_link_lost(link)
    }

    /// Records that no response will arrive over this link, or not in time. Returns the response to forward, if any.
    pub fn on_link_lost(&mut self, link: LinkRole) -> Option<R> {
        match link {
            LinkRole::Primary => self.primary = false,
            LinkRole::Secondary => self.secondary = false,
        }
        if self.is_unanswerable() { self.refusal.take() } else { None }
    }

    /// Whether one link has returned an error and the other is still awaited.
    pub const fn is_refused(&self) -> bool {
        self.refusal.is_some()
    }

    /// Whether no link can return a response any more.
    pub const fn is_unanswerable(&self) -> bool {
        !self.primary && !self.secondary
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_successful_response_counts() {
        assert_eq!(DuplicatedRequest::new(true, true).on_response(LinkRole::Secondary, true, 200), Some(200));
    }

    #[test]
    fn an_error_response_waits_for_the_other_link() {
        let mut request = DuplicatedRequest::new(true, true);
        assert_eq!(request.on_response(LinkRole::Primary, false, 454), None);
        assert_eq!(request.on_response(LinkRole::Secondary, true, 200), Some(200));
        let mut request = DuplicatedRequest::new(true, true);
        assert_eq!(request.on_response(LinkRole::Primary, false, 454), None);
        assert_eq!(request.on_response(LinkRole::Secondary, false, 500), Some(454), "the error that arrived first");
        let mut alone = DuplicatedRequest::new(true, false);
        assert_eq!(alone.on_response(LinkRole::Primary, false, 404), Some(404));
    }

    #[test]
    fn a_lost_link_returns_no_response() {
        let mut request = DuplicatedRequest::new(true, true);
        assert_eq!((request.on_link_lost(LinkRole::Primary), request.is_unanswerable()), (None, false));
        assert_eq!(request.on_response(LinkRole::Secondary, false, 454), Some(454));
        let mut request: DuplicatedRequest<u16> = DuplicatedRequest::new(true, true);
        request.on_link_lost(LinkRole::Primary);
        assert_eq!((request.on_link_lost(LinkRole::Secondary), request.is_unanswerable()), (None, true));
    }
}
