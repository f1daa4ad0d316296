//! Counting for reports: what each link did, when, and what the run cost.

use std::time::Duration;

use marline_core::fetch::{LinkWord, Status};
use marline_core::link::{LinkId, LinkProfile};
use marline_core::units::{DataSize, Instant};
use rustix::time::{ClockId, clock_gettime};

use super::report::{LinkProgress, LinkReport, Progress};

/// What one link did.
#[derive(Clone, Debug)]
pub(super) struct Tally {
    pub(super) profile: LinkProfile,
    pub(super) bytes: u64,
    pub(super) requests: u64,
    pub(super) connections: u64,
    pub(super) retries: u64,
    pub(super) first: Option<Instant>,
    pub(super) last: Option<Instant>,
    pub(super) rtt: Option<Duration>,
    pub(super) dns: Option<String>,
}

impl Tally {
    pub(super) fn new(profile: LinkProfile) -> Self {
        Self {
            profile,
            bytes: 0,
            requests: 0,
            connections: 0,
            retries: 0,
            first: None,
            last: None,
            rtt: None,
            dns: None,
        }
    }

    pub(super) fn data(&mut self, now: Instant, len: DataSize) {
        self.bytes += len.bytes();
        self.first.get_or_insert(now);
        self.last = Some(now);
    }

    pub(super) fn rtt(&mut self, rtt: Duration) {
        if !rtt.is_zero() {
            self.rtt = Some(self.rtt.map_or(rtt, |least| least.min(rtt)));
        }
    }

    pub(super) fn report(&self, state: String) -> LinkReport {
        let time = match (self.first, self.last) {
            (Some(first), Some(last)) => last - first,
            _ => Duration::ZERO,
        };
        LinkReport {
            name: self.profile.name.clone(),
            kind: self.profile.kind.name(),
            bytes: self.bytes,
            goodput_mbps: (!time.is_zero()).then(|| mbps(self.bytes, time)),
            requests: self.requests,
            connections: self.connections,
            first_byte_s: self.first.map(Instant::as_secs_f64),
            last_byte_s: self.last.map(Instant::as_secs_f64),
            rtt_ms: self.rtt.map(|rtt| rtt.as_secs_f64() * 1e3),
            retries: self.retries,
            state,
            dns: self.dns.clone(),
        }
    }
}

/// Time between the last bytes of the link that ended first and of the one that ended last.
pub(super) fn link_delta(tallies: &[Tally]) -> Option<f64> {
    let ends: Vec<Instant> = tallies.iter().filter_map(|tally| tally.last).collect();
    let (first, last) = (ends.iter().min()?, ends.iter().max()?);
    (ends.len() > 1).then(|| (*last - *first).as_secs_f64())
}

/// Where a running download stands.
pub(super) fn progress(status: &Status, tallies: &[Tally], resumed: u64, now: Instant) -> Progress {
    let links: Vec<LinkProgress> = status
        .links
        .iter()
        .filter_map(|(id, _, rate, word)| {
            let tally = tallies.get(usize::from(id.0))?;
            Some(LinkProgress {
                name: tally.profile.name.clone(),
                kind: tally.profile.kind,
                bytes: tally.bytes,
                rate: rate.bits_per_sec() as f64,
                state: state(word),
            })
        })
        .collect();
    let rate: f64 = links.iter().map(|link| link.rate).sum();
    let left = status.total.map(|total| (total - status.done).bytes());
    Progress {
        total: status.total.map(DataSize::bytes),
        done: status.done.bytes(),
        resumed,
        rate,
        elapsed: now.as_secs_f64(),
        eta: left.filter(|_| rate > 0.0).map(|left| left as f64 * 8.0 / rate),
        links,
    }
}

/// How a link stands, in words.
pub(super) fn state(word: &LinkWord) -> String {
    match word {
        LinkWord::Up => "up".to_owned(),
        LinkWord::Idle => "idle".to_owned(),
        LinkWord::Silent => "silent".to_owned(),
        LinkWord::Down => "down".to_owned(),
        LinkWord::Banned(why) => format!("banned: {why}"),
    }
}

/// The state of one link in a status.
pub(super) fn state_of(status: &Status, id: LinkId) -> String {
    let word = status.links.iter().find(|(link, ..)| *link == id).map(|(.., word)| word);
    word.map_or_else(|| "idle".to_owned(), state)
}

/// 10^6 bit/s; zero in no time.
pub(super) fn mbps(bytes: u64, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { bytes as f64 * 8.0 / time.as_secs_f64() / 1e6 }
}

/// User and system time of this process, all threads.
pub(super) fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// The most memory that this process has had resident, in bytes; zero where /proc does not tell.
pub(super) fn peak_rss() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;
    use marline_core::link::LinkKind;

    fn tally(last: Option<u64>) -> Tally {
        let mut tally = Tally::new(LinkProfile::new("w", LinkKind::Wifi));
        if let Some(ms) = last {
            tally.data(Instant::from_millis(100), DataSize::from_bytes(500_000));
            tally.data(Instant::from_millis(ms), DataSize::from_bytes(500_000));
        }
        tally
    }

    #[test]
    fn the_delta_is_between_the_ends_of_links_that_worked() {
        assert_eq!(link_delta(&[tally(Some(1100))]), None);
        assert_eq!(link_delta(&[tally(Some(1100)), tally(None)]), None);
        let delta = link_delta(&[tally(Some(1100)), tally(Some(1350))]).unwrap();
        assert!((delta - 0.25).abs() < 1e-9);
    }

    #[test]
    fn a_links_goodput_is_over_its_own_time() {
        let report = tally(Some(1100)).report("up".into());
        assert!((report.goodput_mbps.unwrap() - 8.0).abs() < 1e-9);
        assert_eq!(report.first_byte_s, Some(0.1));
    }

    #[test]
    fn this_process_has_used_something() {
        assert!(cpu_seconds() > 0.0);
        assert!(peak_rss() > 100_000);
    }
}
