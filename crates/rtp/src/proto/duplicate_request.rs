//! A request that was made over both links: which answer counts.
//!
//! In: answers, and links that are gone. Out: the one answer that is passed on, once.
//!
//! 1. The first good answer counts at once.
//! 2. A refusal waits for the other link's answer: a session that is ended twice is unknown the second time, whichever of both
//!    was heard first.
//! 3. When no other answer can come, a refusal is the answer.

/// Over which of both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkRole {
    /// The first link.
    Primary,
    /// The second link.
    Secondary,
}

/// What was asked and has no answer yet. `A` is an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DuplicatedRequest<R> {
    primary: bool,
    secondary: bool,
    refusal: Option<R>,
}

impl<R> DuplicatedRequest<R> {
    /// Asked over these.
    pub const fn new(primary: bool, secondary: bool) -> Self {
        Self { primary, secondary, refusal: None }
    }

    /// An answer has come; what is to be passed on. Nothing more may be told after that.
    pub fn on_response(&mut self, link: LinkRole, is_good: bool, response: R) -> Option<R> {
        if is_good {
            return Some(response);
        }
        self.refusal.get_or_insert(response);
        self.on_link_lost(link)
    }

    /// No answer will come over this one, or not in time; what is to be passed on.
    pub fn on_link_lost(&mut self, link: LinkRole) -> Option<R> {
        match link {
            LinkRole::Primary => self.primary = false,
            LinkRole::Secondary => self.secondary = false,
        }
        if self.is_unanswerable() { self.refusal.take() } else { None }
    }

    /// Whether one has refused it, and it waits for the other.
    pub const fn is_refused(&self) -> bool {
        self.refusal.is_some()
    }

    /// Whether nobody can answer any more.
    pub const fn is_unanswerable(&self) -> bool {
        !self.primary && !self.secondary
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_good_answer_counts() {
        assert_eq!(DuplicatedRequest::new(true, true).on_response(LinkRole::Secondary, true, 200), Some(200));
    }

    #[test]
    fn a_refusal_waits_for_the_other() {
        let mut request = DuplicatedRequest::new(true, true);
        assert_eq!(request.on_response(LinkRole::Primary, false, 454), None);
        assert_eq!(request.on_response(LinkRole::Secondary, true, 200), Some(200));
        let mut request = DuplicatedRequest::new(true, true);
        assert_eq!(request.on_response(LinkRole::Primary, false, 454), None);
        assert_eq!(request.on_response(LinkRole::Secondary, false, 500), Some(454), "the refusal that came first");
        let mut alone = DuplicatedRequest::new(true, false);
        assert_eq!(alone.on_response(LinkRole::Primary, false, 404), Some(404));
    }

    #[test]
    fn a_line_that_is_gone_answers_nothing() {
        let mut request = DuplicatedRequest::new(true, true);
        assert_eq!((request.on_link_lost(LinkRole::Primary), request.is_unanswerable()), (None, false));
        assert_eq!(request.on_response(LinkRole::Secondary, false, 454), Some(454));
        let mut request: DuplicatedRequest<u16> = DuplicatedRequest::new(true, true);
        request.on_link_lost(LinkRole::Primary);
        assert_eq!((request.on_link_lost(LinkRole::Secondary), request.is_unanswerable()), (None, true));
    }
}
