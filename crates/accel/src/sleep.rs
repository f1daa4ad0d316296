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

use marline_sys::{clock, priority};
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
    /// So long is slept for more packets, as the last count says.
    gather: Option<Duration>,
    /// Packets were taken since the last sleep.
    has_taken: bool,
    /// The thread goes before others.
    is_first: bool,
    /// It may not, and stays where whoever started it has put it.
    is_refused: bool,
}

impl Sleep {
    /// Nothing wakes it yet but the queue.
    pub(super) fn new() -> io::Result<Self> {
        let others = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self {
            others,
            is_alert: false,
            saw: 0,
            counted: (0, 0),
            gather: None,
            has_taken: false,
            is_first: false,
            is_refused: false,
        })
    }

    /// This wakes from now on, until it is closed.
    pub(super) fn mind(&self, fd: impl AsFd) -> io::Result<()> {
        match epoll::add(&self.others, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// So many packets were taken from the queue.
    pub(super) fn on_taken(&mut self, packets: usize) {
        self.counted.1 += packets;
        self.has_taken = true;
    }

    /// Counts what came, and looks how long to gather where it is much; `trip` is the shortest round trip.
    fn count(&mut self, now: u64, trip: impl FnOnce() -> Option<Duration>) {
        let (began, packets) = self.counted;
        let time = Duration::from_nanos(now.saturating_sub(began));
        if time >= COUNT {
            let packets = u32::try_from(packets).unwrap_or(u32::MAX);
            // Three in two spans.
            let are_many = |span: Duration| span.saturating_mul(packets) * 2 >= time * 3;
            let span = || (trip().unwrap_or_default() / SHARE).clamp(LEAST, MOST);
            self.gather = are_many(MOST).then(span).filter(|span| are_many(*span));
            self.counted = (now, 0);
        }
    }

    /// Goes before other programs' threads or among them.
    fn take_place(&mut self) {
        let first = self.gather.is_none();
        if first != self.is_first && !self.is_refused {
            let placed = if first { priority::set_real_time(PRIORITY) } else { priority::set_normal() };
            (self.is_first, self.is_refused) = (first, placed.is_err());
        }
    }

    /// This eye has seen something, or is new, or is to be closed: it does not wake.
    pub(super) fn on_seen(&mut self, eye: Option<&Eye>) {
        self.saw = clock::now();
        let was_alert = std::mem::take(&mut self.is_alert);
        if let Some(eye) = eye.filter(|_| was_alert) {
            // What is not minded is not forgotten.
            let _ = epoll::delete(&self.others, eye);
        }
    }

    /// Sleeps until something is there, for `rest` at most; whether it is something else than a packet of the queue. `trip` tells
    /// the shortest round trip.
    pub(super) fn sleep(
        &mut self,
        queue: &Queue,
        eye: Option<&Eye>,
        rest: Duration,
        trip: impl FnOnce() -> Option<Duration>,
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
        self.count(now, trip);
        self.take_place();
        let read = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let others = read(self.others.as_fd());
        match self.gather.filter(|_| std::mem::take(&mut self.has_taken)) {
            Some(gather) => wait(&mut [others], gather.min(rest)),
            None => wait(&mut [others, read(queue.as_fd())], rest),
        }
    }
}

/// Waits for any of these; whether the first is ready.
fn wait(all: &mut [PollFd<'_>], rest: Duration) -> io::Result<bool> {
    let rest = Timespec { tv_sec: rest.as_secs() as _, tv_nsec: rest.subsec_nanos().into() };
    match poll(all, Some(&rest)) {
        Ok(_) => Ok(all.first().is_some_and(|first| !first.revents().is_empty())),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// chosen: a tenth of the silence after which a link is asked whether it is there.
const QUIET: Duration = Duration::from_millis(20);
/// Of the shortest round trip so much may be slept for more packets. chosen: on average a packet waits for half of it, which
/// lengthens a round trip by 4 % at the most.
const SHARE: u32 = 12;
/// chosen: with what the kernel adds to a sleep, less than a millisecond, which nothing on a network is too short for.
const LEAST: Duration = Duration::from_micros(500);
/// chosen: a burst of acknowledgements lets no more than a few packets go at once.
const MOST: Duration = Duration::from_millis(4);
/// chosen: above everything that is not real-time, below what else may be.
const PRIORITY: i32 = 1;
/// chosen: several of the longest sleeps, far shorter than a flow.
const COUNT: Duration = Duration::from_millis(20);

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
            let is_permitted = priority::set_real_time(PRIORITY).is_ok();
            priority::set_normal().unwrap();
            let mut sleep = Sleep::new().unwrap();
            sleep.take_place();
            assert_eq!(policy(), u32::from(is_permitted), "SCHED_FIFO is 1");
            sleep.gather = Some(LEAST);
            sleep.take_place();
            assert_eq!(policy(), 0, "SCHED_OTHER");
        };
        std::thread::spawn(body).join().unwrap();
    }

    #[test]
    fn what_comes_fast_is_gathered_and_a_burst_is_not() {
        let mut sleep = Sleep::new().unwrap();
        let mut run = |packets: usize, every: u64, trip: u64, from: u64| {
            let mut gathered = Vec::new();
            for turn in 0..400 {
                sleep.on_taken(packets);
                sleep.count(from + turn * every, || Some(Duration::from_millis(trip)));
                gathered.extend(sleep.gather);
            }
            gathered.sort();
            gathered.dedup();
            gathered
        };
        assert_eq!(run(1, 1_350_000, 48, 1_000_000_000), [Duration::from_millis(4)], "20 Mbit/s");
        assert_eq!(run(1, 1_350_000, 10, 2_000_000_000).last(), None, "of a shorter round trip one has to be felt");
        assert_eq!(run(6, 500_000, 9, 3_000_000_000), [Duration::from_micros(750)], "300 Mbit/s");
        assert_eq!(run(6, 500_000, 1, 4_000_000_000), [LEAST]);
        assert!(run(5, 50_000_000, 200, 5_000_000_000).is_empty(), "a window of ten segments");
    }
}
