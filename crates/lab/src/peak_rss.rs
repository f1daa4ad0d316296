//! Peak memory of a command.
//!
//! The kernel's figure (`ru_maxrss`) includes the memory of the starting process, which is this one: both share
//! their memory until the program is loaded by exec, and the kernel keeps the larger of the two maxima. The figure
//! is correct if it is larger than the memory of this process. Otherwise the command used less, and the peak that
//! was sampled while it ran is taken.
//!
//! A small launcher program between this process and the command was rejected: it would be one more program to
//! install and start.

use std::fs;

use marline_core::units::DataSize;

/// The kernel's memory counters are inexact by some pages per CPU.
const COUNTER_ERROR: u64 = 256 * 1024;

/// Peak memory of this process before the start, and of the command as sampled.
#[derive(Debug)]
pub(crate) struct PeakRss {
    own_peak: u64,
    sampled_peak: u64,
}

impl PeakRss {
    /// Call it right before the command is started.
    pub(crate) fn start() -> Self {
        // Resets the peak of this process to its present memory (proc_pid_clear_refs(5)).
        let _ = fs::write("/proc/self/clear_refs", "5");
        Self { own_peak: peak_rss_of(std::process::id()), sampled_peak: 0 }
    }

    /// Samples the command and its descendants. A peak between two samples is not lost, because the kernel keeps
    /// each process's maximum. A process that starts and ends between two samples is missed.
    pub(crate) fn sample(&mut self, pid: u32) {
        self.sampled_peak = self.sampled_peak.max(peak_rss_of(pid));
        for child in children(pid) {
            self.sample(child);
        }
    }

    /// The peak memory of the command, given the kernel's figure in bytes.
    pub(crate) fn peak(&self, kernel: u64) -> DataSize {
        DataSize::from_bytes(if kernel > self.own_peak + COUNTER_ERROR || self.sampled_peak == 0 {
            kernel
        } else {
            self.sampled_peak
        })
    }
}

/// Peak memory (`VmHWM`) of a process in bytes; 0 if it has ended.
pub(crate) fn peak_rss_of(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// PIDs of the children of a process's first thread.
fn children(pid: u32) -> Vec<u32> {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn children_of_the_command_are_sampled() {
        let mut child = Command::new("sh").args(["-c", "sleep 1000; true"]).spawn().unwrap();
        let mut memory = PeakRss::start();
        assert!(memory.own_peak > 1_000_000);
        while children(child.id()).is_empty() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        memory.sample(child.id());
        assert!(memory.sampled_peak > 200_000);
        for grandchild in children(child.id()) {
            let _ = Command::new("kill").arg(grandchild.to_string()).status();
        }
        child.wait().unwrap();
    }

    #[test]
    fn the_kernels_figure_is_used_unless_it_is_that_of_this_process() {
        let memory = PeakRss { own_peak: 8_000_000, sampled_peak: 2_000_000 };
        assert_eq!(memory.peak(8_000_000).bytes(), 2_000_000);
        assert_eq!(memory.peak(20_000_000).bytes(), 20_000_000);
        assert_eq!(PeakRss { own_peak: 8_000_000, sampled_peak: 0 }.peak(8_000_000).bytes(), 8_000_000);
    }
}
