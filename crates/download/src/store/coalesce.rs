//! Merges reads into runs: adjacent bytes become one journal record, not thousands.
//!
//! The caller reports the range of each read, from any number of connections, and takes the merged ranges from time
//! to time. Nothing is allocated here: at most [`MAX_RUNS`] runs are open, and a further one displaces the run that
//! was extended least recently. Each response extends its own run, so more runs than concurrent responses are
//! rarely needed.

use marline_core::fetch::ByteRange;

/// Maximum number of open runs. Our choice: twice the number of connections that the machine opens by default on
/// two links.
pub(super) const MAX_RUNS: usize = 64;

/// The open runs, most recently extended first.
#[derive(Debug)]
pub(super) struct RunCoalescer {
    runs: [ByteRange; MAX_RUNS],
    len: usize,
}

impl RunCoalescer {
    pub(super) fn new() -> Self {
        Self { runs: [ByteRange::default(); MAX_RUNS], len: 0 }
    }

    /// Adds a range of written bytes. Returns a run that was displaced by it.
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

    /// Takes everything that was added since the last call. The runs continue at their ends.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = ByteRange> + '_ {
        let open = self.runs.get_mut(..self.len).unwrap_or_default();
        open.iter_mut()
            .map(|run| std::mem::replace(run, ByteRange::new(run.end, run.end)))
            .filter(|run| !run.is_empty())
    }

    /// Discards all runs.
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
    fn adjacent_reads_are_one_run() {
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
    fn a_further_run_displaces_the_oldest() {
        let mut runs = RunCoalescer::new();
        for i in 0..MAX_RUNS as u64 {
            assert_eq!(runs.push(ByteRange::new(i * 10, i * 10 + 1)), None);
        }
        runs.push(ByteRange::new(1, 2));
        assert_eq!(runs.push(ByteRange::new(5000, 5001)), Some(ByteRange::new(10, 11)));
        assert_eq!(drained(&mut runs).len(), MAX_RUNS);
    }
}
