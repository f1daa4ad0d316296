//! Windowed minimum or maximum of a value.

use crate::units::{Duration, Instant};

/// The extremum of the last one to two windows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MinMaxFilter<T> {
    began: Instant,
    current: Option<T>,
    previous: Option<T>,
    /// The extremum; none without a value.
    value: Option<T>,
}

impl<T: Copy> MinMaxFilter<T> {
    /// Adds a value and returns the extremum with it.
    pub(crate) fn on_value(&mut self, now: Instant, filter: Duration, value: T, extremum: fn(T, T) -> T) -> T {
        if now.since(self.began) >= filter {
            (self.previous, self.current, self.began) = (self.current.take(), None, now);
        }
        let join = |a: Option<T>, b: T| a.map_or(b, |a| extremum(a, b));
        let current = join(self.current, value);
        self.current = Some(current);
        *self.value.insert(join(self.previous, current))
    }

    /// The extreme, if there was a value.
    pub(crate) const fn value(&self) -> Option<T> {
        self.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extremum_is_forgotten_after_two_windows_at_the_latest() {
        let mut filter = MinMaxFilter::default();
        let mut min = |at: u64, value: u64| {
            filter.on_value(Instant::from_millis(at * 1000), Duration::from_secs(10), value, u64::min)
        };
        assert_eq!([min(1, 5), min(2, 7), min(9, 6)], [5, 5, 5]);
        assert_eq!([min(12, 8), min(19, 9)], [5, 5], "it may be one window old");
        assert_eq!([min(23, 9), min(34, 10)], [8, 9]);
    }
}
