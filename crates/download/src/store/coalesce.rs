//! Reads become runs: bytes that arrive one behind the other are one claim, not thousands.
//!
//! In: the place of each read, from any number of connections. Out: now and then, the spans they make up.
//! Nothing here allocates: at most [`OPEN`] runs are open, and one more pushes out the one that was touched longest
//! ago. Each open answer continues its own run, so more runs than answers in flight are never needed for long.

use marline_core::fetch::ByteRange;

/// Runs open at a time. Chosen: twice the connections of two links that the machine opens at most by default.
pub(super) const MAX_RUNS: usize = 64;

/// The runs that are open, the one last touched first.
#[derive(Debug)]
pub(super) struct RunCoalescer {
    runs: [ByteRange; MAX_RUNS],
    len: usize,
}

impl RunCoalescer {
    pub(super) fn new() -> Self {
        Self { runs: [ByteRange::default(); MAX_RUNS], len: 0 }
    }

    /// Bytes have been put at `span`. A run that has to make room comes back.
    pub(super) fn push(&mut self, span: ByteRange) -> Option<ByteRange> {
        let open = self.runs.get_mut(..self.len).unwrap_or_default();
        if let Some(i) = open.iter().position(|run| run.end == span.start) {
            open[i].end = span.end;
            open[..=i].rotate_right(1);
            return None;
        }
        let pushed_out = (self.len == MAX_RUNS).then_some(self.runs[MAX_RUNS - 1]);
        self.len = (self.len + 1).min(MAX_RUNS);
        self.runs[..self.len].rotate_right(1);
        self.runs[0] = span;
        pushed_out.filter(|run| !run.is_empty())
    }

    /// Hands out everything since the last time; the runs go on from their ends.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = ByteRange> + '_ {
        let open = self.runs.get_mut(..self.len).unwrap_or_default();
        open.iter_mut()
            .map(|run| std::mem::replace(run, ByteRange::new(run.end, run.end)))
            .filter(|run| !run.is_empty())
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.len = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drained(runs: &mut RunCoalescer) -> Vec<ByteRange> {
        let mut spans: Vec<_> = runs.drain().collect();
        spans.sort();
        spans
    }

    #[test]
    fn reads_one_behind_the_other_are_one_run() {
        let mut runs = RunCoalescer::new();
        for i in 0..100 {
            assert_eq!(runs.push(ByteRange::new(i * 10, i * 10 + 10)), None);
            assert_eq!(runs.push(ByteRange::new(5000 + i * 7, 5007 + i * 7)), None);
        }
        assert_eq!(drained(&mut runs), [ByteRange::new(0, 1000), ByteRange::new(5000, 5700)]);
        assert_eq!(drained(&mut runs), []);
        runs.push(ByteRange::new(1000, 1001));
        assert_eq!(drained(&mut runs), [ByteRange::new(1000, 1001)]);
    }

    #[test]
    fn one_run_too_many_pushes_out_the_oldest() {
        let mut runs = RunCoalescer::new();
        for i in 0..MAX_RUNS as u64 {
            assert_eq!(runs.push(ByteRange::new(i * 10, i * 10 + 1)), None);
        }
        runs.push(ByteRange::new(1, 2));
        assert_eq!(runs.push(ByteRange::new(5000, 5001)), Some(ByteRange::new(10, 11)));
        assert_eq!(drained(&mut runs).len(), MAX_RUNS);
    }
}
