//! Samples CPU and memory of a child process over time, as chapter 6 of the thesis plots them.
//!
//! The child is found by its program name among the children that this process did not have before. It is sampled
//! twice a second through /proc, which costs the child nothing. The kernel counts CPU time in hundredths of a
//! second, so a sample is exact to 2 %.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::results::ProcessSample;

const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);
/// `USER_HZ`, which is 100 on every architecture that marline supports.
const TICKS_PER_S: f64 = 100.0;
const PAGE_SIZE: u64 = 4096;

/// Runs `work` and samples the child process running `program` that it starts; with `None` it only runs `work`.
pub(super) fn with_samples<T>(program: Option<&Path>, work: impl FnOnce() -> T) -> (T, Vec<ProcessSample>) {
    let Some(program) = program.and_then(Path::file_name) else {
        return (work(), Vec::new());
    };
    // The kernel keeps only 15 bytes of the name.
    let name: Vec<u8> = program.as_encoded_bytes().iter().copied().take(15).collect();
    let before = children(&name);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let samples = scope.spawn(|| sample_process(&name, &before, &over));
        let result = work();
        over.store(true, Ordering::Relaxed);
        (result, samples.join().unwrap_or_default())
    })
}

/// Waits for a new child of this name and samples it until it ends or `is_over` is set.
fn sample_process(name: &[u8], before: &BTreeSet<u32>, is_over: &AtomicBool) -> Vec<ProcessSample> {
    let wait = |time| {
        thread::sleep(time);
        !is_over.load(Ordering::Relaxed)
    };
    let child = loop {
        if let Some(child) = children(name).difference(before).next().copied() {
            break child;
        }
        if !wait(Duration::from_millis(5)) {
            return Vec::new();
        }
    };
    let (start_time, mut samples) = (Instant::now(), Vec::new());
    let (mut last_at, mut last_ticks) = (0.0, 0);
    while wait(SAMPLE_INTERVAL) {
        let Some((ticks, pages)) = ticks_and_pages(child) else { break };
        let at = start_time.elapsed().as_secs_f64();
        let busy = (ticks - last_ticks) as f64 / TICKS_PER_S;
        samples.push(ProcessSample {
            at_s: at,
            cpu_percent: busy / (at - last_at) * 100.0,
            rss_bytes: pages * PAGE_SIZE,
        });
        (last_at, last_ticks) = (at, ticks);
    }
    samples
}

/// PIDs of this process's children with this name.
fn children(name: &[u8]) -> BTreeSet<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let named = |pid: &u32| fs::read(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim_ascii_end() == name);
    let measured = |pid: &u32| stat_fields(*pid).and_then(|f| f.get(1)?.parse().ok()) == Some(std::process::id());
    pids.filter(named).filter(measured).collect()
}

/// Use of a process: CPU time so far in seconds, and resident bytes now.
pub(crate) fn usage_of(pid: u32) -> Option<(f64, u64)> {
    ticks_and_pages(pid).map(|(ticks, pages)| (ticks as f64 / TICKS_PER_S, pages * PAGE_SIZE))
}

/// CPU time in ticks, and resident pages.
fn ticks_and_pages(pid: u32) -> Option<(u64, u64)> {
    let fields = stat_fields(pid)?;
    let number = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok());
    Some((number(11)? + number(12)?, number(21)?))
}

/// The fields after the name in `/proc/PID/stat`: state, parent, … (proc(5), from field 3).
fn stat_fields(pid: u32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(text.rsplit_once(')')?.1.split_whitespace().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_child_is_found_and_sampled() {
        // A unique name, because other tests start shells as well.
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("marline-followed");
        std::os::unix::fs::symlink("/bin/sh", &program).unwrap();
        let spin = "end=$(($(date +%s) + 2)); while [ $(date +%s) -lt $end ]; do :; done";
        let (status, samples) = with_samples(Some(&program), || Command::new(&program).args(["-c", spin]).status());
        assert!(status.unwrap().success());
        assert!(samples.len() >= 2, "{samples:?}");
        assert!(samples.iter().all(|sample| sample.rss_bytes > 100_000));
        assert!(with_samples(None, || ()).1.is_empty());
    }
}
