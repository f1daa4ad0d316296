//! A line that ACKs pass with a delay: they leave over the first link and are as late as over the second.
//!
//! In: ACKs, each with how long it is to be held. Out: those that are due, in the order in which they came.
//!
//! 1. A sender whose ACKs come over a longer way has a window of that length on its way. If they come over the short way
//!    of a sudden, the difference is sent at once, and falls on a queue that is full at such a moment.
//! 2. Order stays: nobody is due before those ahead of it.
//! 3. What is held is little: [`MOST`] at the longest, [`ROOM`] ACKs at the most; beyond that the oldest leaves early. Whoever
//!    comes after a line that was lost with its process says all of it again.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::units::{Duration, Instant};

/// One flow's line.
#[derive(Clone, Debug, Default)]
pub(super) struct Line {
    held: VecDeque<(Instant, Vec<u8>)>,
}

impl Line {
    /// This one may be held for so long. It is given back if it is to leave now.
    pub(super) fn push(&mut self, now: Instant, packet: Vec<u8>, late: Duration) -> Option<Vec<u8>> {
        let due = now + late.min(MOST);
        let due = self.held.back().map_or(due, |(last, _)| due.max(*last));
        if due <= now {
            return Some(packet);
        }
        if self.held.len() >= ROOM
            && let Some((first, _)) = self.held.front_mut()
        {
            *first = now;
        }
        self.held.push_back((due, packet));
        None
    }

    /// The next one that is due.
    pub(super) fn pop(&mut self, now: Instant) -> Option<Vec<u8>> {
        self.held.front().filter(|(due, _)| *due <= now)?;
        self.held.pop_front().map(|(_, packet)| packet)
    }

    /// All, whether due or not.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Vec<u8>> + '_ {
        self.held.drain(..).map(|(_, packet)| packet)
    }

    /// When the next one is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.held.front().map(|(due, _)| *due)
    }
}

/// chosen: the way of a mobile link against that of a near access point; longer ones are no help.
pub(super) const MOST: Duration = Duration::from_millis(150);
/// chosen: what 150 ms of 100 Mbit/s are acknowledged with.
const ROOM: usize = 640;

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    #[test]
    fn each_is_as_late_as_it_is_to_be_and_none_overtakes() {
        let (mut line, ms) = (Line::default(), Duration::from_millis);
        assert_eq!(line.push(at(0), vec![0], Duration::ZERO), Some(vec![0]), "nobody is ahead");
        assert_eq!(line.push(at(0), vec![1], ms(50)), None);
        assert_eq!(line.push(at(10), vec![2], ms(20)), None);
        assert_eq!(line.push(at(20), vec![3], Duration::ZERO), None, "two are ahead");
        assert_eq!((line.due(), line.pop(at(49))), (Some(at(50)), None));
        assert_eq!([line.pop(at(50)), line.pop(at(50)), line.pop(at(50))], [1, 2, 3].map(|n| Some(vec![n])));
        assert_eq!((line.pop(at(50)), line.due()), (None, None));
    }

    #[test]
    fn it_holds_no_longer_and_no_more_than_it_may() {
        let mut line = Line::default();
        line.push(at(0), vec![], Duration::from_secs(9));
        assert_eq!(line.due(), Some(at(0) + MOST));
        for _ in 0..ROOM {
            line.push(at(1), vec![7], MOST);
        }
        assert_eq!((line.pop(at(1)), line.pop(at(1))), (Some(vec![]), None));
        assert_eq!(line.drain().count(), ROOM);
    }
}
