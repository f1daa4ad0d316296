//! Counting for reports: what each link did, when, and what the run cost.

use std::time::Duration;

use marline_core::energy::RadioEnergy;
use marline_core::fetch::{ConnError, LinkStatus, Status};
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
    /// What went wrong since something came over it.
    pub(super) trouble: Option<String>,
    /// Somebody who knows says that the server's name does not exist, and nothing else has happened since.
    pub(super) denied: bool,
    /// Its first trouble was told.
    pub(super) told: bool,
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
            trouble: None,
            denied: false,
            told: false,
        }
    }

    pub(super) fn data(&mut self, now: Instant, len: DataSize) {
        self.bytes += len.bytes();
        self.first.get_or_insert(now);
        self.last = Some(now);
        self.trouble = None;
    }

    /// A connection failed, or one that stood broke. Tells whether this is worth a line: the first trouble of a link
    /// over which nothing has come yet, for else there is silence until the retries are over.
    pub(super) fn failed(&mut self, trouble: &ConnError, denied: bool) -> bool {
        self.retries += 1;
        self.denied = denied;
        self.trouble = Some(trouble.text.clone());
        self.first.is_none() && !std::mem::replace(&mut self.told, true)
    }

    pub(super) fn rtt(&mut self, rtt: Duration) {
        if !rtt.is_zero() {
            self.rtt = Some(self.rtt.map_or(rtt, |least| least.min(rtt)));
        }
    }

    pub(super) fn report(&self, state: String, bill: Option<RadioEnergy>) -> LinkReport {
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
            energy_j: bill.map(|bill| bill.total().as_joules_f64()),
            energy: bill.map(Into::into),
        }
    }
}

/// Time between the last bytes of the link that ended first and of the one that ended last.
pub(super) fn link_delta(tallies: &[Tally]) -> Option<f64> {
    let ends: Vec<Instant> = tallies.iter().filter_map(|tally| tally.last).collect();
    let (first, last) = (ends.iter().min()?, ends.iter().max()?);
    (ends.len() > 1).then(|| (*last - *first).as_secs_f64())
}

/// Where a running download stands. `opening` tells what a link without a connection is waiting for.
pub(super) fn progress(
    status: &Status,
    tallies: &[Tally],
    opening: impl Fn(LinkId) -> Option<&'static str>,
    resumed: u64,
    now: Instant,
) -> Progress {
    let links: Vec<LinkProgress> = status
        .links
        .iter()
        .filter_map(|(id, _, rate, word)| {
            let tally = tallies.get(usize::from(id.0))?;
            Some(LinkProgress {
                name: tally.profile.name.clone(),
                kind: tally.profile.kind,
                metered: tally.profile.metered,
                bytes: tally.bytes,
                rate: rate.bits_per_sec() as f64,
                state: state_now(word, tally, opening(*id)),
            })
        })
        .collect();
    let rate: f64 = links.iter().map(|link| link.rate).sum();
    let left = status.total.map(|total| (total - status.received).bytes());
    Progress {
        total: status.total.map(DataSize::bytes),
        done: status.received.bytes(),
        resumed,
        checked: None,
        rate,
        elapsed: now.as_secs_f64(),
        eta: left.filter(|_| rate > 0.0).map(|left| left as f64 * 8.0 / rate),
        links,
    }
}

/// How a link stands while the run goes on, in words: with what it is waiting for, and what went wrong before.
fn state_now(word: &LinkStatus, tally: &Tally, opening: Option<&str>) -> String {
    match (word, opening, &tally.trouble) {
        (LinkStatus::Stalled, Some(what), _) => format!("silent, {what}"),
        (LinkStatus::Up | LinkStatus::Idle, Some(what), Some(trouble)) => format!("{what} again: {trouble}"),
        (LinkStatus::Up | LinkStatus::Idle, Some(what), None) => what.to_owned(),
        (LinkStatus::Idle, None, Some(trouble)) if tally.first.is_none() => format!("waiting: {trouble}"),
        _ => state(word),
    }
}

/// How a link stands, in words.
pub(super) fn state(word: &LinkStatus) -> String {
    match word {
        LinkStatus::Up => "up".to_owned(),
        LinkStatus::Idle => "idle".to_owned(),
        LinkStatus::Stalled => "silent".to_owned(),
        LinkStatus::Down => "down".to_owned(),
        LinkStatus::Banned(why) => format!("banned: {why}"),
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
    use marline_core::fetch::ConnErrorKind;
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
        let report = tally(Some(1100)).report("up".into(), None);
        assert!((report.goodput_mbps.unwrap() - 8.0).abs() < 1e-9);
        assert_eq!(report.first_byte_s, Some(0.1));
    }

    #[test]
    fn a_link_that_does_not_carry_yet_says_what_it_waits_for() {
        let mut fresh = tally(None);
        let idle = LinkStatus::Idle;
        assert_eq!(state_now(&idle, &fresh, None), "idle");
        assert_eq!(state_now(&idle, &fresh, Some("connecting")), "connecting");
        assert_eq!(
            state_now(&LinkStatus::Stalled, &fresh, Some("looking up the name")),
            "silent, looking up the name"
        );
        let trouble = ConnError { kind: ConnErrorKind::Refused, text: "192.0.2.1:80: connection refused".into() };
        assert!(fresh.failed(&trouble, false), "the first one is worth a line");
        assert!(!fresh.failed(&trouble, false), "the second one is not");
        assert_eq!(state_now(&idle, &fresh, None), "waiting: 192.0.2.1:80: connection refused");
        let again = state_now(&LinkStatus::Up, &fresh, Some("connecting"));
        assert_eq!(again, "connecting again: 192.0.2.1:80: connection refused");
        assert_eq!(state_now(&LinkStatus::Down, &fresh, None), "down");
        fresh.data(Instant::from_millis(5), DataSize::from_bytes(1));
        assert_eq!(state_now(&LinkStatus::Up, &fresh, None), "up");
        assert!(!fresh.failed(&trouble, false), "it is known to work");
    }

    #[test]
    fn this_process_has_used_something() {
        assert!(cpu_seconds() > 0.0);
        assert!(peak_rss() > 100_000);
    }
}
