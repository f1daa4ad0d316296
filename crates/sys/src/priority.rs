//! Scheduling priority: real-time for a thread that sleeps between packets, otherwise a lower nice value.

use std::io;

/// Sets the calling thread to `SCHED_FIFO` with `priority` (1 to 99). The thread must sleep regularly: one that does
/// not is stopped by the kernel for 50 ms in each second (`kernel.sched_rt_runtime_us`).
///
/// # Errors
/// `EPERM` without CAP_SYS_NICE or a resource limit that permits it.
pub fn set_real_time(priority: i32) -> io::Result<()> {
    // New threads and processes must not inherit the real-time policy.
    set_scheduler(libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, priority)
}

/// Checks whether [`set_real_time`] is permitted, on a temporary thread.
///
/// # Errors
/// Those of [`set_real_time`].
pub fn check_real_time() -> io::Result<()> {
    std::thread::spawn(|| set_real_time(1))
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("the test thread failed")))
}

/// Sets the calling thread back to normal scheduling.
///
/// # Errors
/// None known.
pub fn set_normal() -> io::Result<()> {
    // Clearing SCHED_RESET_ON_FORK would require CAP_SYS_NICE.
    set_scheduler(libc::SCHED_OTHER | libc::SCHED_RESET_ON_FORK, 0)
}

fn set_scheduler(policy: libc::c_int, priority: i32) -> io::Result<()> {
    // SAFETY: an all-zero `sched_param` is valid; some C libraries have more fields than one.
    let mut parameter: libc::sched_param = unsafe { std::mem::zeroed() };
    parameter.sched_priority = priority;
    // SAFETY: `parameter` outlives the call; 0 is the calling thread.
    let result = unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, policy, &parameter) };
    super::check(result as libc::c_int).map(|_| ())
}

/// Sets the nice value of the calling thread, from -20 (highest priority) to 19.
///
/// # Errors
/// `EACCES` or `EPERM` when lowering the value without privilege.
pub fn set_nice(value: i32) -> io::Result<()> {
    // Linux keeps a nice value per thread: "process" 0 is the calling thread.
    Ok(rustix::process::setpriority_process(None, value)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nicer_thread_needs_no_privilege() {
        std::thread::spawn(|| set_nice(19).unwrap()).join().unwrap();
    }

    #[test]
    fn returning_to_normal_scheduling_needs_no_privilege() {
        std::thread::spawn(|| set_normal().unwrap()).join().unwrap();
    }

    #[test]
    fn an_impossible_priority_is_an_error() {
        std::thread::spawn(|| assert!(set_real_time(1000).is_err())).join().unwrap();
    }
}
