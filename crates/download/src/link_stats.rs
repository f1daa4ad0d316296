//! Counters for progress and reports: bytes, times, requests and failures of each link, and the resources used by
//! the process.

use std::time::Duration;

use marline_core::energy::RadioEnergy;
use marline_core::fetch::{ConnError, LinkStatus, Status};
use marline_core::link::{LinkId, LinkProfile};
use marline_core::units::{DataSize, Instant};
use rustix::time::{ClockId, clock_gettime};

use super::report::{LinkProgress, LinkReport, Progress};

/// Counters of one link.
#[derive(Clone, Debug)]
pub(super) struct LinkStats {
    pub(super) profile: LinkProfile,
    pub(super) bytes: u64,
    pub(super) requests: u64,
    pub(super) connections: u64,
    pub(super) retries: u64,
    pub(super) first_byte_at: Option<Instant>,
    pub(super) last_byte_at: Option<Instant>,
    pub(super) min_rtt: Option<Duration>,
    pub(super) dns_source: Option<String>,
    /// The last failure since data was last received.
    pub(super) last_error: Option<String>,
    /// Whether the last failure was an authoritative denial of the server's name.
    pub(super) is_name_denied: bool,
    /// Whether the first failure was shown to the user.
    pub(super) error_shown: bool,
}

impl LinkStats {
    pub(super) fn new(profile: LinkProfile) -> Self {
        Self {
            profile,
            bytes: 0,
            requests: 0,
            connections: 0,
            retries: 0,
            first_byte_at: None,
            last_byte_at: None,
            min_rtt: None,
            dns_source: None,
            last_error: None,
            is_name_denied: false,
            error_shown: false,
        }
    }

    pub(super) fn on_data(&mut self, now: Instant, len: DataSize) {
        self.bytes += len.bytes();
        self.first_byte_at.get_or_insert(now);
        self.last_byte_at = Some(now);
        self.last_error = None;
    }

    /// Records a failed or broken connection. Returns whether to show a message: only for the first failure of a
    /// link that has received nothing yet. Without it the user would see nothing until all retries have failed.
    pub(super) fn on_failure(&mut self, error: &ConnError, denied: bool) -> bool {
        self.retries += 1;
        self.is_name_denied = denied;
        self.last_error = Some(error.text.clone());
        self.first_byte_at.is_none() && !std::mem::replace(&mut self.error_shown, true)
    }

    pub(super) fn on_rtt(&mut self, rtt: Duration) {
        if !rtt.is_zero() {
            self.min_rtt = Some(self.min_rtt.map_or(rtt, |min| min.min(rtt)));
        }
    }

    pub(super) fn report(&self, state: String, radio_energy: Option<RadioEnergy>) -> LinkReport {
        let time = match (self.first_byte_at, self.last_byte_at) {
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
            first_byte_s: self.first_byte_at.map(Instant::as_secs_f64),
            last_byte_s: self.last_byte_at.map(Instant::as_secs_f64),
            rtt_ms: self.min_rtt.map(|rtt| rtt.as_secs_f64() * 1e3),
            retries: self.retries,
            state,
            dns: self.dns_source.clone(),
            energy_j: radio_energy.map(|radio_energy| radio_energy.total().as_joules_f64()),
            energy: radio_energy.map(Into::into),
        }
    }
}

/// Time between the last byte of the link that finished first and that of the link that finished last, in seconds.
pub(super) fn end_time_spread(link_stats: &[LinkStats]) -> Option<f64> {
    let ends: Vec<Instant> = link_stats.iter().filter_map(|stats| stats.last_byte_at).collect();
    let (first, last) = (ends.iter().min()?, ends.iter().max()?);
    (ends.len() > 1).then(|| (*last - *first).as_secs_f64())
}

/// Progress of a running download. `opening_phase` returns what a link without a connection is waiting for.
pub(super) fn progress(
    status: &Status,
    link_stats: &[LinkStats],
    opening_phase: impl Fn(LinkId) -> Option<&'static str>,
    resumed: u64,
    now: Instant,
) -> Progress {
    let links: Vec<LinkProgress> = status
        .links
        .iter()
        .filter_map(|(id, _, rate, link_status)| {
            let stats = link_stats.get(usize::from(id.0))?;
            Some(LinkProgress {
                name: stats.profile.name.clone(),
                kind: stats.profile.kind,
                metered: stats.profile.metered,
                bytes: stats.bytes,
                rate: rate.bits_per_sec() as f64,
                state: live_state(link_status, stats, opening_phase(*id)),
            })
        })
        .collect();
    let rate: f64 = links.iter().map(|link| link.rate).sum();
    let remaining = status.total.map(|total| (total - status.received).bytes());
    Progress {
        total: status.total.map(DataSize::bytes),
        received: status.received.bytes(),
        resumed_bytes: resumed,
        checked_bytes: None,
        rate,
        elapsed_s: now.as_secs_f64(),
        eta_s: remaining.filter(|_| rate > 0.0).map(|remaining| remaining as f64 * 8.0 / rate),
        links,
    }
}

/// State of a link during the run, as text: with what it is waiting for, and the last failure.
fn live_state(link_status: &LinkStatus, stats: &LinkStats, opening_phase: Option<&str>) -> String {
    match (link_status, opening_phase, &stats.last_error) {
        (LinkStatus::Stalled, Some(phase), _) => format!("silent, {phase}"),
        (LinkStatus::Up | LinkStatus::Idle, Some(phase), Some(error)) => format!("{phase} again: {error}"),
        (LinkStatus::Up | LinkStatus::Idle, Some(phase), None) => phase.to_owned(),
        (LinkStatus::Idle, None, Some(error)) if stats.first_byte_at.is_none() => format!("waiting: {error}"),
        _ => status_text(link_status),
    }
}

/// State of a link, as the text that reports contain.
pub(super) fn status_text(link_status: &LinkStatus) -> String {
    match link_status {
        LinkStatus::Up => "up".to_owned(),
        LinkStatus::Idle => "idle".to_owned(),
        LinkStatus::Stalled => "silent".to_owned(),
        LinkStatus::Down => "down".to_owned(),
        LinkStatus::Banned(why) => format!("banned: {why}"),
    }
}

/// State of one link; `idle` if the machine does not know the link.
pub(super) fn link_state(status: &Status, id: LinkId) -> String {
    let link_status = status.links.iter().find(|(link, ..)| *link == id).map(|(.., link_status)| link_status);
    link_status.map_or_else(|| "idle".to_owned(), status_text)
}

/// Rate in Mbit/s; zero if no time has passed.
pub(super) fn mbps(bytes: u64, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { bytes as f64 * 8.0 / time.as_secs_f64() / 1e6 }
}

/// CPU time of this process (user and system, all threads), in seconds.
pub(super) fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Peak resident memory of this process, in bytes; zero if /proc is not available.
pub(super) fn peak_rss() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;
    use marline_core::fetch::ConnErrorKind;
    use marline_core::link::LinkKind;

    fn stats_ending_at(last: Option<u64>) -> LinkStats {
        let mut stats = LinkStats::new(LinkProfile::new("w", LinkKind::Wifi));
        if let Some(ms) = last {
            stats.on_data(Instant::from_millis(100), DataSize::from_bytes(500_000));
            stats.on_data(Instant::from_millis(ms), DataSize::from_bytes(500_000));
        }
        stats
    }

    #[test]
    fn the_delta_is_between_the_end_times_of_links_that_received_data() {
        assert_eq!(end_time_spread(&[stats_ending_at(Some(1100))]), None);
        assert_eq!(end_time_spread(&[stats_ending_at(Some(1100)), stats_ending_at(None)]), None);
        let delta = end_time_spread(&[stats_ending_at(Some(1100)), stats_ending_at(Some(1350))]).unwrap();
        assert!((delta - 0.25).abs() < 1e-9);
    }

    #[test]
    fn the_goodput_of_a_link_refers_to_its_own_time() {
        let report = stats_ending_at(Some(1100)).report("up".into(), None);
        assert!((report.goodput_mbps.unwrap() - 8.0).abs() < 1e-9);
        assert_eq!(report.first_byte_s, Some(0.1));
    }

    #[test]
    fn a_link_without_data_shows_what_it_waits_for() {
        let mut fresh = stats_ending_at(None);
        let idle = LinkStatus::Idle;
        assert_eq!(live_state(&idle, &fresh, None), "idle");
        assert_eq!(live_state(&idle, &fresh, Some("connecting")), "connecting");
        assert_eq!(
            live_state(&LinkStatus::Stalled, &fresh, Some("looking up the name")),
            "silent, looking up the name"
        );
        let error = ConnError { kind: ConnErrorKind::Refused, text: "192.0.2.1:80: connection refused".into() };
        assert!(fresh.on_failure(&error, false), "the first failure is shown");
        assert!(!fresh.on_failure(&error, false), "the second one is not shown");
        assert_eq!(live_state(&idle, &fresh, None), "waiting: 192.0.2.1:80: connection refused");
        let again = live_state(&LinkStatus::Up, &fresh, Some("connecting"));
        assert_eq!(again, "connecting again: 192.0.2.1:80: connection refused");
        assert_eq!(live_state(&LinkStatus::Down, &fresh, None), "down");
        fresh.on_data(Instant::from_millis(5), DataSize::from_bytes(1));
        assert_eq!(live_state(&LinkStatus::Up, &fresh, None), "up");
        assert!(!fresh.on_failure(&error, false), "the link has worked before");
    }

    #[test]
    fn cpu_time_and_memory_of_this_process_are_read() {
        assert!(cpu_seconds() > 0.0);
        assert!(peak_rss() > 100_000);
    }
}
