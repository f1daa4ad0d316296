//! The least or the most of what was measured of late.
//!
//! In: values, each with its time. Out: the extreme of them.

use crate::units::{Duration, Instant};

/// The extreme of the last one to two spans of time.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::accel) struct Window<T> {
    began: Instant,
    now: Option<T>,
    before: Option<T>,
    of: Option<T>,
}

impl<T: Copy> Window<T> {
    /// A value more; the extreme with it.
    pub(in crate::accel) fn on_value(
        &mut self,
        now: Instant,
        span: Duration,
        value: T,
        extreme: fn(T, T) -> T,
    ) -> T {
        if now.since(self.began) >= span {
            (self.before, self.now, self.began) = (self.now.take(), None, now);
        }
        let join = |a: Option<T>, b: T| a.map_or(b, |a| extreme(a, b));
        let current = join(self.now, value);
        self.now = Some(current);
        *self.of.insert(join(self.before, current))
    }

    /// The extreme, if there was a value.
    pub(in crate::accel) const fn value(&self) -> Option<T> {
        self.of
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extreme_is_forgotten_after_two_spans_at_the_latest() {
        let mut window = Window::default();
        let mut least = |at: u64, value: u64| {
            window.on_value(Instant::from_millis(at * 1000), Duration::from_secs(10), value, u64::min)
        };
        assert_eq!([least(1, 5), least(2, 7), least(9, 6)], [5, 5, 5]);
        assert_eq!([least(12, 8), least(19, 9)], [5, 5], "it may be one span old");
        assert_eq!([least(23, 9), least(34, 10)], [8, 9]);
    }
}
