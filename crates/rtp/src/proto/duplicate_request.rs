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
pub enum Line {
    /// The first link.
    First,
    /// The second link.
    Second,
}

/// What was asked and has no answer yet. `A` is an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Asked<A> {
    first: bool,
    second: bool,
    refusal: Option<A>,
}

impl<A> Asked<A> {
    /// Asked over these.
    pub const fn over(first: bool, second: bool) -> Self {
        Self { first, second, refusal: None }
    }

    /// An answer has come; what is to be passed on. Nothing more may be told after that.
    pub fn answered(&mut self, line: Line, is_good: bool, answer: A) -> Option<A> {
        if is_good {
            return Some(answer);
        }
        self.refusal.get_or_insert(answer);
        self.gone(line)
    }

    /// No answer will come over this one, or not in time; what is to be passed on.
    pub fn gone(&mut self, line: Line) -> Option<A> {
        match line {
            Line::First => self.first = false,
            Line::Second => self.second = false,
        }
        if self.is_hopeless() { self.refusal.take() } else { None }
    }

    /// Whether one has refused it, and it waits for the other.
    pub const fn is_refused(&self) -> bool {
        self.refusal.is_some()
    }

    /// Whether nobody can answer any more.
    pub const fn is_hopeless(&self) -> bool {
        !self.first && !self.second
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_good_answer_counts() {
        assert_eq!(Asked::over(true, true).answered(Line::Second, true, 200), Some(200));
    }

    #[test]
    fn a_refusal_waits_for_the_other() {
        let mut asked = Asked::over(true, true);
        assert_eq!(asked.answered(Line::First, false, 454), None);
        assert_eq!(asked.answered(Line::Second, true, 200), Some(200));
        let mut asked = Asked::over(true, true);
        assert_eq!(asked.answered(Line::First, false, 454), None);
        assert_eq!(asked.answered(Line::Second, false, 500), Some(454), "what was refused first");
        let mut alone = Asked::over(true, false);
        assert_eq!(alone.answered(Line::First, false, 404), Some(404));
    }

    #[test]
    fn a_line_that_is_gone_answers_nothing() {
        let mut asked = Asked::over(true, true);
        assert_eq!((asked.gone(Line::First), asked.is_hopeless()), (None, false));
        assert_eq!(asked.answered(Line::Second, false, 454), Some(454));
        let mut asked: Asked<u16> = Asked::over(true, true);
        asked.gone(Line::First);
        assert_eq!((asked.gone(Line::Second), asked.is_hopeless()), (None, true));
    }
}
