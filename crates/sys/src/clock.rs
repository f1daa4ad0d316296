//! The monotonic clock in nanoseconds, the CPU time of a thread, and a timer with absolute deadlines.
//!
//! `std::time::Instant` does not expose the kernel's clock value, which packet timestamps and recorded times need. A
//! relative timer fires late by the time that passes between computing its duration and arming it; an absolute deadline
//! has no such error.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime, timerfd_create,
    timerfd_settime,
};

/// `CLOCK_MONOTONIC` in nanoseconds.
pub fn now() -> u64 {
    to_nanos(clock_gettime(ClockId::Monotonic))
}

/// `CLOCK_REALTIME` minus [`now`] in nanoseconds, at the time of the call; zero if negative. The kernel's packet
/// timestamps use `CLOCK_REALTIME`: subtract this offset to convert them to the clock of [`now`].
pub fn realtime_offset() -> u64 {
    to_nanos(clock_gettime(ClockId::Realtime)).saturating_sub(now())
}

/// CPU time of the calling thread.
pub fn thread_time() -> Duration {
    Duration::from_nanos(to_nanos(clock_gettime(ClockId::ThreadCPUTime)))
}

fn to_nanos(time: Timespec) -> u64 {
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// A `timerfd` on the monotonic clock; readable after its deadline.
#[derive(Debug)]
pub struct Timer {
    fd: OwnedFd,
}

impl Timer {
    /// Creates an unarmed timer.
    ///
    /// # Errors
    /// Out of descriptors or memory.
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self { fd: timerfd_create(TimerfdClockId::Monotonic, flags)? })
    }

    /// Sets the deadline (see [`now`]); a past one fires at once, and `None` disarms the timer. Replaces the previous
    /// deadline.
    ///
    /// # Errors
    /// Only if the kernel rejects the call, which does not happen with a valid timer.
    pub fn arm(&self, deadline: Option<u64>) -> io::Result<()> {
        // The kernel interprets zero as "disarm". A deadline of zero becomes 1 ns, which is also in the past.
        let value = deadline.map_or(0, |nanos| nanos.max(1));
        let to_timespec = |nanos: u64| Timespec {
            tv_sec: i64::try_from(nanos / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: (nanos % 1_000_000_000) as _,
        };
        let timer_spec = Itimerspec { it_interval: to_timespec(0), it_value: to_timespec(value) };
        timerfd_settime(&self.fd, TimerfdTimerFlags::ABSTIME, &timer_spec)?;
        Ok(())
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};

    fn fired(timer: &Timer, max_wait: Duration) -> bool {
        let timeout = Timespec { tv_sec: 0, tv_nsec: max_wait.as_nanos() as _ };
        poll(&mut [PollFd::new(timer, PollFlags::IN)], Some(&timeout)).unwrap() > 0
    }

    #[test]
    fn a_timer_fires_at_its_deadline_and_not_before() {
        let timer = Timer::new().unwrap();
        let deadline = now() + 5_000_000;
        timer.arm(Some(deadline)).unwrap();
        assert!(fired(&timer, Duration::from_millis(900)));
        assert!(now() >= deadline);
    }

    #[test]
    fn a_past_deadline_fires_at_once_and_a_disarmed_timer_never_fires() {
        let timer = Timer::new().unwrap();
        timer.arm(Some(0)).unwrap();
        assert!(fired(&timer, Duration::from_millis(900)));
        timer.arm(Some(now() + 2_000_000)).unwrap();
        timer.arm(None).unwrap();
        assert!(!fired(&timer, Duration::from_millis(10)));
    }
}
