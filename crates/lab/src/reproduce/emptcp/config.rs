//! Configuration of one repetition of a case: the links over time, the work, and the client. The same
//! configurations are used in virtual and in real time.
//!
//! 1. Wi-Fi is the first link, over which connections start (eMPTCP section 3.6); LTE is the second.
//! 2. Rates are those of IP packets, with one value per second. All randomness is drawn here, from the repetition's
//!    seed, so that every client gets the same links.
//! 3. Queues have a fixed size in bytes: a size derived from the rate of a bad second would limit every window.

use std::path::PathBuf;
use std::time::Duration;

use marline_core::units::{Bitrate, DataSize};
use marline_sim::rng::{Purpose, RandomStream};
use marline_sim::scenario;
use marline_sim::spec::{Downlink, LinkSpec, QueueLimit, Uplink};
use marline_sim::trace::TraceError;

/// The client that downloads.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum EmptcpClient {
    /// Plain TCP over Wi-Fi.
    TcpWifi,
    /// Plain TCP over LTE.
    TcpLte,
    /// MPTCP with the kernel's path manager.
    Mptcp,
    /// MPTCP with LTE as a backup (Raiciu et al.).
    WifiFirst,
    /// Scheduler based on a Markov decision process (Pluntke et al.; section 4.6).
    Mdp,
    /// eMPTCP as implemented here, in the literal reading of the paper.
    Emptcp,
    /// Another reading: paths are compared after their windows have opened
    /// ([`marline_core::paths::Policy::EmptcpSettled`]).
    EmptcpSettled,
    /// Another reading: LTE alone where table 2 indicates it ([`marline_core::paths::Policy::EmptcpTable`]).
    EmptcpTable,
    /// marline's policy, for the least energy.
    Marline,
    /// marline's policy, for the highest throughput.
    MarlineThroughput,
}

impl EmptcpClient {
    /// All clients.
    pub(super) const ALL: [Self; 10] = [
        Self::TcpWifi,
        Self::TcpLte,
        Self::Mptcp,
        Self::WifiFirst,
        Self::Mdp,
        Self::Emptcp,
        Self::EmptcpSettled,
        Self::EmptcpTable,
        Self::Marline,
        Self::MarlineThroughput,
    ];

    /// The published controller, in every reading of the paper.
    pub(super) const PUBLISHED: [Self; 3] = [Self::Emptcp, Self::EmptcpSettled, Self::EmptcpTable];

    /// Name in rows.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::TcpWifi => "single:wifi",
            Self::TcpLte => "single:lte",
            Self::Mptcp => "mptcp",
            Self::WifiFirst => "wifi-first",
            Self::Mdp => "mdp",
            Self::Emptcp => "emptcp",
            Self::EmptcpSettled => "emptcp-settled",
            Self::EmptcpTable => "emptcp-table",
            Self::Marline => "marline",
            Self::MarlineThroughput => "marline throughput",
        }
    }
}

/// The work of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Work {
    /// Downloads one file over one connection.
    File(DataSize),
    /// Downloads an endless file for a given time.
    Timed { length: Duration },
    /// Loads the web page ([`crate::mptcp::web_page`]).
    Page,
}

/// Configuration of one repetition.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct RunConfig {
    /// Wi-Fi, then LTE.
    pub(super) links: Vec<LinkSpec>,
    pub(super) work: Work,
}

impl RunConfig {
    /// Links with one rate in Mbit/s per second (the last one stays) and these RTTs in milliseconds.
    pub(super) fn new(wifi: &[f64], lte: &[f64], rtt: [u64; 2], work: Work) -> Self {
        let links = vec![link("wifi", wifi, rtt[0], WIFI_QUEUE), link("lte", lte, rtt[1], LTE_QUEUE)];
        Self { links, work }
    }

    /// A pair of recorded links, Wi-Fi first.
    pub(super) fn from_trace_case(
        case: &scenario::Case,
        traces: &[PathBuf],
        work: Work,
    ) -> Result<Self, TraceError> {
        let mut case = case.clone();
        case.load(traces)?;
        Ok(Self { links: case.links, work })
    }

    /// Scales the work if it is a large file; the walk is never scaled.
    pub(super) fn scaled(mut self, scale: f64) -> Self {
        self.work = match self.work {
            Work::File(size) if size > UNSCALED_BELOW => {
                Work::File(DataSize::from_bytes((size.bytes() as f64 * scale) as u64).max(UNSCALED_BELOW))
            }
            other => other,
        };
        self
    }
}

/// RTTs in milliseconds where the paper gives none (section 4: one server on the campus network).
pub(super) const DEFAULT_RTTS_MS: [u64; 2] = [30, 60];

/// Files up to this size are not scaled: those of section 5 are short enough, and κ (the bytes over Wi-Fi before LTE may join) is a
/// megabyte.
const UNSCALED_BELOW: DataSize = DataSize::from_bytes(20_000_000);
/// Our choice: forty packets for Wi-Fi, and for LTE a hundred milliseconds at 8 Mbit/s.
const WIFI_QUEUE: DataSize = DataSize::from_bytes(60_000);
const LTE_QUEUE: DataSize = DataSize::from_bytes(100_000);
/// Uplink of both links: enough for requests and ACKs.
const UPLINK_RATE: Bitrate = Bitrate::from_mbps(5);

fn link(name: &str, mbps: &[f64], rtt: u64, queue: DataSize) -> LinkSpec {
    let rate = |mbps: &f64| Bitrate::from_bits_per_sec((mbps * 1e6).round() as u64);
    let first = mbps.first().map(rate).unwrap_or_default();
    let mut steps: Vec<(Duration, Bitrate)> = Vec::new();
    for (at, mbps) in (0_u64..).zip(mbps).skip(1) {
        if steps.last().map_or(first, |(_, before)| *before) != rate(mbps) {
            steps.push((Duration::from_secs(at), rate(mbps)));
        }
    }
    let mut spec = LinkSpec::constant(name, first, Duration::from_millis(rtt));
    spec.downlink = Downlink::Rate { initial: first, steps };
    spec.uplink = Uplink::Rate(UPLINK_RATE);
    spec.queue = Some(QueueLimit::Size(queue));
    spec
}

/// Rates of a Wi-Fi that is off and on for exponentially distributed times with this mean in seconds; it begins off
/// (section 4.3, figure 7).
pub(super) fn on_off_rates(seed: u64, mean: f64, [off, on]: [f64; 2], seconds: usize) -> Vec<f64> {
    let mut rng = RandomStream::new(seed, "on-off", 0, Purpose::Other);
    let mut rates = Vec::with_capacity(seconds);
    let (mut is_on, mut until) = (false, exponential(&mut rng, mean));
    for second in 0..seconds {
        while second as f64 >= until {
            is_on = !is_on;
            until += exponential(&mut rng, mean);
        }
        rates.push(if is_on { on } else { off });
    }
    rates
}

/// Rates of a Wi-Fi that other nodes share (section 4.4). Each node leaves its idle state at the rate λ_off and its
/// sending state at λ_on, per second. (The paper does not state which rate leaves which state; in its figure 10 the
/// time of TCP grows with λ_off.) All nodes begin idle. A sending node takes as much of the channel as two and a
/// half of our frames, because it is further away (Heusse et al., INFOCOM 2003). Chosen so that TCP over Wi-Fi
/// needs about twice the time of eMPTCP with two nodes and λ_off = 0.025, as in the paper. So that statement of
/// section 4.4 cannot be confirmed here ([`super::paper`] marks its row).
pub(super) fn shared_wifi_rates(
    seed: u64,
    nodes: usize,
    [on, off]: [f64; 2],
    rate: f64,
    seconds: usize,
) -> Vec<f64> {
    let mut sending = vec![0_i32; seconds];
    for node in 0..nodes {
        let mut rng = RandomStream::new(seed, "node", node as u64, Purpose::Other);
        let (mut sends, mut until) = (false, exponential(&mut rng, 1.0 / off));
        for (second, active) in sending.iter_mut().enumerate() {
            while second as f64 >= until {
                sends = !sends;
                until += exponential(&mut rng, 1.0 / if sends { on } else { off });
            }
            *active += i32::from(sends);
        }
    }
    sending.into_iter().map(|active| rate / (1.0 + 2.5 * f64::from(active))).collect()
}

/// Rates of Wi-Fi on a walk of 250 s out of an access point's range and back, three times (section 4.5, figures 11
/// and 12: in range most of the time, out of range at 25 to 40 s). The seed varies the rate slightly.
pub(super) fn walk_rates(seed: u64) -> Vec<f64> {
    let mut rng = RandomStream::new(seed, "walk", 0, Purpose::Other);
    (0..WALK_SECONDS).map(|second| walk_rate(second as f64) * (0.9 + 0.2 * uniform(&mut rng))).collect()
}

/// Length of the walk in seconds.
pub(super) const WALK_SECONDS: usize = 250;

/// Rates on the walk: seconds and Mbit/s, linearly interpolated. Chosen to follow the curve of figure 12. The rate
/// in range is such that eMPTCP carries a quarter less than MPTCP and a quarter more than Wi-Fi, with 10 Mbit/s of
/// LTE. So these statements of section 4.5 cannot be confirmed here ([`super::paper`] marks their rows).
const WALK_RATES: [(f64, f64); 15] = [
    (0.0, 19.0),
    (15.0, 18.0),
    (25.0, 1.0),
    (30.0, 0.3),
    (40.0, 0.8),
    (48.0, 15.0),
    (60.0, 19.0),
    (105.0, 19.0),
    (115.0, 1.0),
    (125.0, 0.3),
    (135.0, 15.0),
    (150.0, 19.0),
    (195.0, 19.0),
    (205.0, 0.6),
    (220.0, 19.0),
];

fn walk_rate(second: f64) -> f64 {
    let pair = WALK_RATES.windows(2).find(|pair| second < pair[1].0);
    pair.map_or(WALK_RATES[WALK_RATES.len() - 1].1, |pair| {
        let [(from, a), (to, b)] = [pair[0], pair[1]];
        a + (b - a) * (second - from) / (to - from)
    })
}

/// Rates in Mbit/s and RTTs in milliseconds of one random trace of a category: bad is 2 to 6, good 12 to 20 Mbit/s.
/// The server is near, across the ocean, or far away (section 5: Washington, Amsterdam, Singapore), and LTE has 30
/// ms more than Wi-Fi.
pub(super) fn random_category(seed: u64, wifi_good: bool, lte_good: bool) -> ([f64; 2], [u64; 2]) {
    let mut rng = RandomStream::new(seed, "category", 0, Purpose::Other);
    let mut rate = |good: bool| {
        let (min, max) = if good { (12.0, 20.0) } else { (2.0, 6.0) };
        (uniform(&mut rng) * (max - min) + min) * 10.0
    };
    let rates = [wifi_good, lte_good].map(|good| rate(good).round() / 10.0);
    let server_rtt = [20, 80, 120][(seed % 3) as usize];
    (rates, [server_rtt, server_rtt + 30])
}

fn exponential(rng: &mut RandomStream, mean: f64) -> f64 {
    -mean * (1.0 - uniform(rng)).max(1e-9).ln()
}

/// Uniformly distributed in [0, 1).
fn uniform(rng: &mut RandomStream) -> f64 {
    (rng.draw() >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wifi_is_on_and_off_for_the_configured_mean_time() {
        let rates = on_off_rates(3, 40.0, [0.8, 15.0], 100_000);
        let changes = rates.windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert!((2250..2750).contains(&changes), "{changes}");
        let on = rates.iter().filter(|rate| **rate > 1.0).count();
        assert!((46_000..54_000).contains(&on), "{on}");
        assert_eq!(on_off_rates(3, 40.0, [0.8, 15.0], 50)[0], 0.8);
    }

    #[test]
    fn nodes_send_for_the_share_of_time_given_by_their_rates() {
        let alone = |off| {
            let rates = shared_wifi_rates(1, 2, [0.05, off], 15.0, 100_000);
            rates.iter().filter(|rate| **rate == 15.0).count() as f64 / 1e5
        };
        // Each node is idle for λ_on ÷ (λ_on + λ_off) of the time.
        assert!((alone(0.025) - 4.0 / 9.0).abs() < 0.03, "{}", alone(0.025));
        assert!((alone(0.05) - 0.25).abs() < 0.03, "{}", alone(0.05));
    }

    #[test]
    fn the_walk_leaves_the_range_and_returns() {
        let rates = walk_rates(1);
        assert_eq!(rates.len(), WALK_SECONDS);
        assert!(rates[10] > 10.0 && rates[32] < 1.0 && rates[80] > 10.0 && rates[249] > 10.0);
        let away = rates.iter().filter(|rate| **rate < 4.0).count();
        assert!((30..80).contains(&away), "{away}");
    }

    #[test]
    fn a_category_stays_within_its_bounds_and_small_files_are_not_scaled() {
        for seed in 0..50 {
            let (rates, rtt) = random_category(seed, false, true);
            assert!((2.0..=6.0).contains(&rates[0]) && (12.0..=20.0).contains(&rates[1]));
            assert!((20..=150).contains(&rtt[0]) && (20..=150).contains(&rtt[1]));
            assert_eq!(random_category(seed, false, true), (rates, rtt));
        }
        let size = |bytes| RunConfig::new(&[1.0], &[1.0], DEFAULT_RTTS_MS, Work::File(DataSize::from_bytes(bytes)));
        assert_eq!(size(256_000_000).scaled(0.25).work, Work::File(DataSize::from_bytes(64_000_000)));
        assert_eq!(size(16_777_216).scaled(0.25).work, Work::File(DataSize::from_bytes(16_777_216)));
        assert_eq!(size(64_000_000).scaled(0.25).work, Work::File(UNSCALED_BELOW));
    }
}
