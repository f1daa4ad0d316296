//! When the packets' thread sleeps, and what wakes it.
//!
//! In: the queues, what else may be ready, how long there is time. Out: the thread goes on, and knows what for.
//!
//! 1. Most of what a packet costs is waking for it. So what merely passes wakes nobody: it is looked at before the next packet of
//!    a queue, with the time when it came. Only if nothing came for [`QUIET`] does the next one wake.
//! 2. Where packets come so fast that several come in [`GATHER`], over some time and not in one burst, that long is slept before
//!    they are taken: one wake for all of them, and none of them waits for a millisecond.
//! 3. What is seldom ready stands behind one descriptor, and is not asked each time.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use marline_sys::clock;
use rustix::event::{PollFd, PollFlags, epoll, poll};
use rustix::time::Timespec;

use super::queue::Queue;
use super::sight::Eye;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Sleep {
    /// Everything but the queues.
    others: OwnedFd,
    /// The eye is among them.
    is_alert: bool,
    /// When the eye saw something last, or was opened.
    saw: u64,
    /// When the running count of packets began, and how many were taken since.
    counted: (u64, usize),
    /// Packets came fast in the last count.
    is_fast: bool,
}

impl Sleep {
    /// Nothing wakes it yet but the queues.
    pub(super) fn new() -> io::Result<Self> {
        let others = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { others, is_alert: false, saw: 0, counted: (0, 0), is_fast: false })
    }

    /// This wakes from now on, until it is closed.
    pub(super) fn mind(&self, fd: impl AsFd) -> io::Result<()> {
        match epoll::add(&self.others, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// So many packets were taken from the queues.
    pub(super) fn on_taken(&mut self, packets: usize) {
        self.counted.1 += packets;
    }

    /// Whether gathering is worth it now.
    fn gathers(&mut self, now: u64) -> bool {
        let (began, packets) = self.counted;
        let time = Duration::from_nanos(now.saturating_sub(began));
        if time >= COUNT {
            self.is_fast = SOON.saturating_mul(u32::try_from(packets).unwrap_or(u32::MAX)) >= time;
            self.counted = (now, 0);
        }
        self.is_fast
    }

    /// There is another eye than before, or it has seen something.
    pub(super) fn on_seen(&mut self, eye: Option<&Eye>, is_new: bool) {
        self.saw = clock::now();
        if is_new {
            // The one before is closed, and thereby minded no more.
            self.is_alert = false;
        } else if let Some(eye) = eye.filter(|_| std::mem::take(&mut self.is_alert)) {
            // What is not minded is not forgotten.
            let _ = epoll::delete(&self.others, eye);
        }
    }

    /// Sleeps until something is there, for `rest` at most; whether it is something else than a queue.
    pub(super) fn sleep<'a>(
        &mut self,
        queues: impl Iterator<Item = &'a Queue>,
        eye: Option<&Eye>,
        rest: Duration,
    ) -> io::Result<bool> {
        let now = clock::now();
        let mut rest = rest;
        if let Some(eye) = eye.filter(|_| !self.is_alert) {
            match QUIET.checked_sub(Duration::from_nanos(now.saturating_sub(self.saw))) {
                Some(left) if !left.is_zero() => rest = rest.min(left),
                _ => {
                    self.mind(eye)?;
                    self.is_alert = true;
                }
            }
        }
        if self.gathers(now) {
            std::thread::sleep(GATHER.min(rest));
            rest = rest.saturating_sub(GATHER);
        }
        let rest = Timespec { tv_sec: rest.as_secs() as _, tv_nsec: rest.subsec_nanos().into() };
        let read = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let mut all = vec![read(self.others.as_fd())];
        all.extend(queues.map(|queue| read(queue.as_fd())));
        match poll(&mut all, Some(&rest)) {
            Ok(_) => Ok(all.first().is_some_and(|others| !others.revents().is_empty())),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// chosen: a tenth of the silence after which a link is asked whether it is there.
const QUIET: Duration = Duration::from_millis(20);
/// chosen: with what the kernel adds to a sleep, less than a millisecond.
const GATHER: Duration = Duration::from_micros(500);
/// Packets that follow so soon are worth gathering. chosen: two of them come in the time of gathering.
const SOON: Duration = Duration::from_micros(250);
/// chosen: longer than a burst of a window, far shorter than a flow.
const COUNT: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_fast_is_gathered_and_a_burst_is_not() {
        let mut sleep = Sleep::new().unwrap();
        let mut run = |packets: usize, every: u64, from: u64| {
            (0..100)
                .filter(|turn| {
                    sleep.on_taken(packets);
                    sleep.gathers(from + turn * every)
                })
                .count()
        };
        assert_eq!(run(2, 2_400_000, 1_000_000_000), 0, "20 Mbit/s, two acknowledgements at a time");
        assert!(run(6, 500_000, 2_000_000_000) > 80, "300 Mbit/s");
        assert!(run(1, 1_000_000, 3_000_000_000) < 10, "and slower again");
    }
}
