//! Decides when the packet thread sleeps, and what wakes it.
//!
//! 1. Most of the cost of a packet is the wakeup. So captured packets do not wake the thread: they are read before the
//!    next packet of the queue, with the time when they came. Only if nothing came for [`CAPTURE_QUIET_TIME`] does the
//!    next one wake it.
//! 2. Where packets of the queue come so fast that more than one comes in a [`MIN_RTT_PART`]th of the shortest round
//!    trip, over some time and not in one burst, the thread sleeps for that long between two wakeups: several packets
//!    are taken at once, and none waits long enough to matter to its sender; half a millisecond where flows have no
//!    loss. A packet after a pause is taken at once.
//! 3. A thread that takes packets one by one has real-time priority where permitted: acknowledgements that wait for
//!    other programs leave in bursts, a sender that receives a burst sends one, and a full queue drops more of a burst,
//!    of every flow's packets (measured: `harmless congestion` of `marline-lab bench accel`). A thread that batches
//!    packets has time.
//! 4. Descriptors that are rarely ready are behind one epoll descriptor, and are not polled each time.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use marline_sys::{clock, priority};
use rustix::event::{PollFd, PollFlags, epoll, poll};
use rustix::time::Timespec;

use crate::capture::Capture;
use crate::nfqueue::NfQueue;

/// See the [module documentation](self).
#[derive(Debug)]
pub(super) struct Poller {
    /// Everything but the queue.
    others: OwnedFd,
    /// The capture is among them.
    has_capture: bool,
    /// When a packet was captured last, or the capture was opened.
    last_capture: u64,
    /// When the current count of packets began, and how many were taken since.
    count_window: (u64, usize),
    /// How long to sleep for more packets, by the last count.
    batch_time: Option<Duration>,
    /// Packets were taken since the last sleep.
    has_taken: bool,
    /// The thread has real-time priority.
    is_real_time: bool,
    /// It may not, and keeps the priority it was started with.
    is_priority_refused: bool,
}

impl Poller {
    /// Only the queue wakes it.
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

    /// This descriptor wakes it from now on, until it is closed.
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

    /// Counts what came, and decides how long to batch; `min_rtt` is the shortest round trip.
    fn update_batch_time(&mut self, now: u64, min_rtt: impl FnOnce() -> Option<Duration>) {
        let (began, packets) = self.count_window;
        let time = Duration::from_nanos(now.saturating_sub(began));
        if time >= COUNT_TIME {
            let packets = u32::try_from(packets).unwrap_or(u32::MAX);
            // Three packets in two batch times.
            let has_many_packets = |batch_time: Duration| batch_time.saturating_mul(packets) * 2 >= time * 3;
            let batch_time =
                || (min_rtt().unwrap_or_default() / MIN_RTT_PART).clamp(MIN_BATCH_TIME, MAX_BATCH_TIME);
            self.batch_time = has_many_packets(MAX_BATCH_TIME)
                .then(batch_time)
                .filter(|batch_time| has_many_packets(*batch_time));
            self.count_window = (now, 0);
        }
    }

    /// Requests or releases real-time priority.
    fn set_priority(&mut self) {
        let is_real_time = self.batch_time.is_none();
        if is_real_time != self.is_real_time && !self.is_priority_refused {
            let result = if is_real_time { priority::set_real_time(PRIORITY) } else { priority::set_normal() };
            (self.is_real_time, self.is_priority_refused) = (is_real_time, result.is_err());
        }
    }

    /// A packet was captured, or the capture is new, or is to be closed: it does not wake the thread.
    pub(super) fn on_captured(&mut self, capture: Option<&Capture>) {
        self.last_capture = clock::now();
        let was_alert = std::mem::take(&mut self.has_capture);
        if let Some(capture) = capture.filter(|_| was_alert) {
            // A descriptor that was not registered cannot be removed.
            let _ = epoll::delete(&self.others, capture);
        }
    }

    /// Sleeps until something is ready, for `timeout` at most. Returns whether something other than a packet of the
    /// queue is ready. `min_rtt` returns the shortest round trip.
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

/// Waits for any of these. Returns whether the first is ready.
fn poll_until(all: &mut [PollFd<'_>], timeout: Duration) -> io::Result<bool> {
    let timeout = Timespec { tv_sec: timeout.as_secs() as _, tv_nsec: timeout.subsec_nanos().into() };
    match poll(all, Some(&timeout)) {
        Ok(_) => Ok(all.first().is_some_and(|is_real_time| !is_real_time.revents().is_empty())),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Our choice: a tenth of the quiet time after which a link is suspected to be down.
const CAPTURE_QUIET_TIME: Duration = Duration::from_millis(20);
/// This part of the shortest round trip may be slept for more packets. Our choice: on average a packet waits for half
/// of it, which lengthens a round trip by 4 % at the most.
const MIN_RTT_PART: u32 = 12;
/// Our choice: with what the kernel adds to a sleep, less than a millisecond, which no network is too short for.
const MIN_BATCH_TIME: Duration = Duration::from_micros(500);
/// Our choice: a burst of acknowledgements releases no more than a few packets at once.
const MAX_BATCH_TIME: Duration = Duration::from_millis(4);
/// Our choice: above everything that is not real-time, below any other real-time thread.
const PRIORITY: i32 = 1;
/// Our choice: several of the longest sleeps, far shorter than a flow.
const COUNT_TIME: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    /// Scheduling policy of the calling thread, as numbered in `linux/priority.h`.
    fn policy() -> u32 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let (_, fields) = stat.rsplit_once(')').unwrap();
        fields.split_whitespace().nth(38).unwrap().parse().unwrap()
    }

    #[test]
    fn a_batching_thread_gives_its_priority_back() {
        let body = || {
            let is_permitted = priority::set_real_time(PRIORITY).is_ok();
            priority::set_normal().unwrap();
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
    fn fast_packets_are_batched_and_a_burst_is_not() {
        let mut poller = Poller::new().unwrap();
        let mut run = |packets: usize, every: u64, min_rtt: u64, from: u64| {
            let mut gathered = Vec::new();
            for step in 0..400 {
                poller.on_taken(packets);
                poller.update_batch_time(from + step * every, || Some(Duration::from_millis(min_rtt)));
                gathered.extend(poller.batch_time);
            }
            gathered.sort();
            gathered.dedup();
            gathered
        };
        assert_eq!(run(1, 1_350_000, 48, 1_000_000_000), [Duration::from_millis(4)], "20 Mbit/s");
        assert_eq!(run(1, 1_350_000, 10, 2_000_000_000).last(), None, "a shorter round trip would notice it");
        assert_eq!(run(6, 500_000, 9, 3_000_000_000), [Duration::from_micros(750)], "300 Mbit/s");
        assert_eq!(run(6, 500_000, 1, 4_000_000_000), [MIN_BATCH_TIME]);
        assert!(run(5, 50_000_000, 200, 5_000_000_000).is_empty(), "a window of ten segments");
    }
}
