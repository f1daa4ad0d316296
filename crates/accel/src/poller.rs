//! When the packets' thread sleeps, and what wakes it.
//!
//! In: the queue, what else may be ready, how long there is time, how short round trips are. Out: the thread goes on, and knows
//! what for.
//!
//! 1. Most of what a packet costs is waking for it. So what merely passes wakes nobody: it is looked at before the next packet of
//!    the queue, with the time when it came. Only if nothing came for [`QUIET`] does the next one wake.
//! 2. Where packets of the queue come so fast that more than one comes in a [`SHARE`] of the shortest round trip, over some time and
//!    not in one burst, that long is slept from one wake to the next: several are taken at once, and none waits for so long that its
//!    sender would feel it; half a millisecond, where flows have no loss. One that comes after a pause is taken at once, as ever.
//! 3. Whoever takes packets one by one has real-time priority, where that is permitted: acknowledgements that wait for other
//!    programs leave in lumps, a sender that hears a lump sends a burst, and of a burst a full queue drops more, of every
//!    flow's packets (measured: `harmless congestion` of `marline-lab bench accel`). Whoever gathers them has time.
//! 4. What is seldom ready stands behind one descriptor, and is not asked each time.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use marline_sys::{clock, sched};
use rustix::event::{PollFd, PollFlags, epoll, poll};
use rustix::time::Timespec;

use crate::capture::Capture;
use crate::nfqueue::NfQueue;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Poller {
    /// Everything but the queues.
    others: OwnedFd,
    /// The eye is among them.
    has_capture: bool,
    /// When the eye saw something last, or was opened.
    last_capture: u64,
    /// When the running count of packets began, and how many were taken since.
    count_window: (u64, usize),
    /// So long is slept for more packets, as the last count says.
    batch_time: Option<Duration>,
    /// Packets were taken since the last sleep.
    has_taken: bool,
    /// The thread goes before others.
    is_real_time: bool,
    /// It may not, and stays where whoever started it has put it.
    is_priority_refused: bool,
}

impl Poller {
    /// Nothing wakes it yet but the queue.
    pub(super) fn new() -> io::Result<Self> {
        let others = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self {
            others,
            has_capture: false,
            last_capture: 0,
            count_window: (0, 0),
            batch_time: None,
            has_taken: false,
            is_real_time: false,
            is_priority_refused: false,
        })
    }

    /// This wakes from now on, until it is closed.
    pub(super) fn register(&self, fd: impl AsFd) -> io::Result<()> {
        match epoll::add(&self.others, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// So many packets were taken from the queue.
    pub(super) fn on_taken(&mut self, packets: usize) {
        self.count_window.1 += packets;
        self.has_taken = true;
    }

    /// Counts what came, and looks how long to gather where it is much; `trip` is the shortest round trip.
    fn update_batch_time(&mut self, now: u64, min_rtt: impl FnOnce() -> Option<Duration>) {
        let (began, packets) = self.count_window;
        let time = Duration::from_nanos(now.saturating_sub(began));
        if time >= COUNT_TIME {
            let packets = u32::try_from(packets).unwrap_or(u32::MAX);
            // Three in two spans.
            let are_many = |batch_time: Duration| batch_time.saturating_mul(packets) * 2 >= time * 3;
            let batch_time =
                || (min_rtt().unwrap_or_default() / MIN_RTT_PART).clamp(MIN_BATCH_TIME, MAX_BATCH_TIME);
            self.batch_time = are_many(MAX_BATCH_TIME).then(batch_time).filter(|batch_time| are_many(*batch_time));
            self.count_window = (now, 0);
        }
    }

    /// Goes before other programs' threads or among them.
    fn set_priority(&mut self) {
        let is_real_time = self.batch_time.is_none();
        if is_real_time != self.is_real_time && !self.is_priority_refused {
            let result = if is_real_time { sched::real_time(PRIORITY) } else { sched::normal() };
            (self.is_real_time, self.is_priority_refused) = (is_real_time, result.is_err());
        }
    }

    /// This eye has seen something, or is new, or is to be closed: it does not wake.
    pub(super) fn on_captured(&mut self, capture: Option<&Capture>) {
        self.last_capture = clock::now();
        let was_alert = std::mem::take(&mut self.has_capture);
        if let Some(capture) = capture.filter(|_| was_alert) {
            // What is not minded is not forgotten.
            let _ = epoll::delete(&self.others, capture);
        }
    }

    /// Sleeps until something is there, for `rest` at most; whether it is something else than a packet of the queue. `trip` tells
    /// the shortest round trip.
    pub(super) fn wait(
        &mut self,
        queue: &NfQueue,
        capture: Option<&Capture>,
        timeout: Duration,
        min_rtt: impl FnOnce() -> Option<Duration>,
    ) -> io::Result<bool> {
        let now = clock::now();
        let mut timeout = timeout;
        if let Some(capture) = capture.filter(|_| !self.has_capture) {
            match CAPTURE_QUIET_TIME.checked_sub(Duration::from_nanos(now.saturating_sub(self.last_capture))) {
                Some(left) if !left.is_zero() => timeout = timeout.min(left),
                _ => {
                    self.register(capture)?;
                    self.has_capture = true;
                }
            }
        }
        self.update_batch_time(now, min_rtt);
        self.set_priority();
        let read = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let others = read(self.others.as_fd());
        match self.batch_time.filter(|_| std::mem::take(&mut self.has_taken)) {
            Some(gather) => poll_until(&mut [others], gather.min(timeout)),
            None => poll_until(&mut [others, read(queue.as_fd())], timeout),
        }
    }
}

/// Waits for any of these; whether the first is ready.
fn poll_until(all: &mut [PollFd<'_>], timeout: Duration) -> io::Result<bool> {
    let timeout = Timespec { tv_sec: timeout.as_secs() as _, tv_nsec: timeout.subsec_nanos().into() };
    match poll(all, Some(&timeout)) {
        Ok(_) => Ok(all.first().is_some_and(|is_real_time| !is_real_time.revents().is_empty())),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// chosen: a tenth of the silence after which a link is asked whether it is there.
const CAPTURE_QUIET_TIME: Duration = Duration::from_millis(20);
/// Of the shortest round trip so much may be slept for more packets. chosen: on average a packet waits for half of it, which
/// lengthens a round trip by 4 % at the most.
const MIN_RTT_PART: u32 = 12;
/// chosen: with what the kernel adds to a sleep, less than a millisecond, which nothing on a network is too short for.
const MIN_BATCH_TIME: Duration = Duration::from_micros(500);
/// chosen: a burst of acknowledgements lets no more than a few packets go at once.
const MAX_BATCH_TIME: Duration = Duration::from_millis(4);
/// chosen: above everything that is not real-time, below what else may be.
const PRIORITY: i32 = 1;
/// chosen: several of the longest sleeps, far shorter than a flow.
const COUNT_TIME: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the calling thread, as `linux/sched.h` numbers them.
    fn policy() -> u32 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let (_, behind) = stat.rsplit_once(')').unwrap();
        behind.split_whitespace().nth(38).unwrap().parse().unwrap()
    }

    #[test]
    fn whoever_gathers_gives_his_priority_back() {
        let body = || {
            let is_permitted = sched::real_time(PRIORITY).is_ok();
            sched::normal().unwrap();
            let mut poller = Poller::new().unwrap();
            poller.set_priority();
            assert_eq!(policy(), u32::from(is_permitted), "SCHED_FIFO is 1");
            poller.batch_time = Some(MIN_BATCH_TIME);
            poller.set_priority();
            assert_eq!(policy(), 0, "SCHED_OTHER");
        };
        std::thread::spawn(body).join().unwrap();
    }

    #[test]
    fn what_comes_fast_is_gathered_and_a_burst_is_not() {
        let mut poller = Poller::new().unwrap();
        let mut run = |packets: usize, every: u64, min_rtt: u64, from: u64| {
            let mut gathered = Vec::new();
            for turn in 0..400 {
                poller.on_taken(packets);
                poller.update_batch_time(from + turn * every, || Some(Duration::from_millis(min_rtt)));
                gathered.extend(poller.batch_time);
            }
            gathered.sort();
            gathered.dedup();
            gathered
        };
        assert_eq!(run(1, 1_350_000, 48, 1_000_000_000), [Duration::from_millis(4)], "20 Mbit/s");
        assert_eq!(run(1, 1_350_000, 10, 2_000_000_000).last(), None, "of a shorter round trip one has to be felt");
        assert_eq!(run(6, 500_000, 9, 3_000_000_000), [Duration::from_micros(750)], "300 Mbit/s");
        assert_eq!(run(6, 500_000, 1, 4_000_000_000), [MIN_BATCH_TIME]);
        assert!(run(5, 50_000_000, 200, 5_000_000_000).is_empty(), "a window of ten segments");
    }
}
