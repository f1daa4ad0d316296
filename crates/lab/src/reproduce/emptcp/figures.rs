//! Figures of eMPTCP as cases: links, work, clients and repetitions.
//!
//! | artefact | case | work | repetitions |
//! |---|---|---|---|
//! | F5, F6 | constant good and bad Wi-Fi (section 4.2) | 256 MB | 5 |
//! | F8 (F7: timeline of its first run) | Wi-Fi on and off, mean 40 s (section 4.3) | 256 MB | 10 |
//! | F10 (F9: timeline of its first run) | other nodes on the channel (section 4.4) | 256 MB | 5 |
//! | F13 (F12: timeline of its first run) | a walk (section 4.5) | 250 s | 5 |
//! | F15, F16 | four categories (sections 5.2, 5.3) | 256 KB, 16 MB | 10 |
//! | F17 | a page of 107 objects (section 5.4) | page | 10 |
//! | X-unequal | links with very different rates, for throughput | 100 MB | 3 |
//! | X-traces | pairs of recorded links, in virtual time | 48 MB | 1 |
//! | X-grid | on-off as F8, LTE of 3, 5 and 10, bad Wi-Fi of 0.5, 0.95 and 2 Mbit/s, in virtual time | 256 MB | 10 |
//! | X-suspend | bad Wi-Fi that becomes good | 160 MB | 3 |
//!
//! The two further schedulers of section 4.6 take part in every case of section 4. That of the MDP must know the
//! rates, so it runs only in virtual time.

use std::time::Duration;

use marline_core::units::DataSize;

use super::config::{self, DEFAULT_RTTS_MS, EmptcpClient, RunConfig, Work};

/// One case and the clients that it compares.
#[derive(Clone, Debug)]
pub(super) struct FigureCase {
    pub(super) artefact: &'static str,
    pub(super) case: String,
    pub(super) clients: Vec<EmptcpClient>,
    /// One configuration per repetition.
    pub(super) runs: Vec<RunConfig>,
}

/// The artefacts that are run; F7, F9 and F12 are timelines of them.
pub(super) const ARTEFACTS: [&str; 9] = ["F5", "F6", "F8", "F10", "F13", "F15", "F16", "F17", "X-unequal"];
/// Additional artefact: traffic on a suspended link.
pub(super) const SUSPEND: &str = "X-suspend";

/// Artefacts that need no links: the energy information base.
pub(super) const BASE: [&str; 3] = ["T2", "F3", "F4"];
/// Pairs of recorded links, in virtual time.
pub(super) const TRACES: &str = "X-traces";
/// Sensitivity to the rates that the paper does not state, in virtual time.
pub(super) const GRID: &str = "X-grid";
/// Comparison with the clairvoyant.
pub(super) const CLAIRVOYANT: &str = "X-clairvoyant";

impl FigureCase {
    /// Whether the paper compares the case with the schedulers of section 4.6.
    pub(super) fn has_computed_schedulers(&self) -> bool {
        self.clients.contains(&EmptcpClient::WifiFirst)
    }
}

/// A case with a pair of recorded links.
pub(super) fn trace_case(case: String, run: RunConfig) -> FigureCase {
    FigureCase { artefact: TRACES, case, clients: SECTION_5_CLIENTS.to_vec(), runs: vec![run] }
}

/// Work over recorded links. Our choice: about a minute.
pub(super) const TRACE_WORK: Work = Work::File(DataSize::from_bytes(48_000_000));

/// Extent of the reproduction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    /// Number of repetitions, instead of each figure's own.
    pub(super) runs: Option<u32>,
    /// Share of the work of large files.
    pub(super) scale: f64,
}

impl Effort {
    fn run_seeds(self, default: u32) -> std::ops::Range<u64> {
        0..u64::from(self.runs.unwrap_or(default))
    }
}

/// The cases of an artefact.
pub(super) fn figures(artefact: &str, effort: Effort) -> Vec<FigureCase> {
    let one =
        |artefact, case: String, client: &[EmptcpClient], usual, make: &dyn Fn(u64) -> RunConfig| FigureCase {
            artefact,
            case,
            clients: client.to_vec(),
            runs: effort.run_seeds(usual).map(|seed| make(seed).scaled(effort.scale)).collect(),
        };
    let file = |bytes| Work::File(DataSize::from_bytes(bytes));
    match artefact {
        "F5" => vec![one("F5", "good Wi-Fi".into(), SECTION_4_CLIENTS, 5, &|_| {
            RunConfig::new(&[GOOD_WIFI_MBPS], &[LTE_MBPS], DEFAULT_RTTS_MS, file(LARGE_FILE))
        })],
        "F6" => vec![one("F6", "bad Wi-Fi".into(), SECTION_4_CLIENTS, 5, &|_| {
            RunConfig::new(&[BAD_WIFI_MBPS], &[LTE_MBPS], DEFAULT_RTTS_MS, file(LARGE_FILE))
        })],
        "F8" => vec![one("F8", "on-off 40 s".into(), SECTION_4_CLIENTS, 10, &|seed| {
            RunConfig::new(
                &config::on_off_rates(seed, 40.0, [BAD_WIFI_MBPS, GOOD_WIFI_MBPS], RATE_SECONDS),
                &[LTE_MBPS],
                DEFAULT_RTTS_MS,
                file(LARGE_FILE),
            )
        })],
        "F10" => [(2, 0.025), (2, 0.05), (3, 0.025), (3, 0.05)]
            .into_iter()
            .map(|(nodes, off)| {
                one("F10", format!("n={nodes} λoff={off}"), SECTION_4_CLIENTS, 5, &|seed| {
                    let wifi = config::shared_wifi_rates(seed, nodes, [0.05, off], GOOD_WIFI_MBPS, RATE_SECONDS);
                    RunConfig::new(&wifi, &[LTE_MBPS], DEFAULT_RTTS_MS, file(LARGE_FILE))
                })
            })
            .collect(),
        "F13" => vec![one("F13", "walk".into(), SECTION_4_CLIENTS, 5, &|seed| {
            let length = Duration::from_secs(config::WALK_SECONDS as u64);
            RunConfig::new(&config::walk_rates(seed), &[LTE_MBPS], DEFAULT_RTTS_MS, Work::Timed { length })
        })],
        "F15" | "F16" => CATEGORIES
            .into_iter()
            .map(|(case, wifi, lte)| {
                let (artefact, bytes) = if artefact == "F15" { ("F15", 262_144) } else { ("F16", 16_777_216) };
                one(artefact, case.into(), SECTION_5_CLIENTS, 10, &|seed| {
                    let ([wifi, lte], rtt) = config::random_category(seed, wifi, lte);
                    RunConfig::new(&[wifi], &[lte], rtt, file(bytes))
                })
            })
            .collect(),
        "F17" => vec![one("F17", "107 objects".into(), SECTION_5_CLIENTS, 10, &|seed| {
            let ([wifi, lte], rtt) = config::random_category(seed, true, true);
            RunConfig::new(&[wifi], &[lte], rtt, Work::Page)
        })],
        "X-unequal" => [(50.0, 5.0), (5.0, 50.0), (20.0, 1.0), (1.0, 20.0), (8.0, 61.0), (61.0, 8.0)]
            .into_iter()
            .map(|(wifi, lte)| {
                let best = if lte > wifi { EmptcpClient::TcpLte } else { EmptcpClient::TcpWifi };
                one(
                    "X-unequal",
                    format!("{wifi}+{lte}"),
                    &[best, EmptcpClient::Mptcp, EmptcpClient::MarlineThroughput],
                    3,
                    &|_| RunConfig::new(&[wifi], &[lte], DEFAULT_RTTS_MS, file(100_000_000)),
                )
            })
            .collect(),
        GRID => [3.0, 5.0, 10.0]
            .into_iter()
            .flat_map(|lte| [0.5, 0.95, 2.0].map(|bad| (lte, bad)))
            .map(|(lte, bad)| {
                one(GRID, format!("LTE {lte}, bad {bad}"), GRID_CLIENTS, 10, &|seed| {
                    let wifi = config::on_off_rates(seed, 40.0, [bad, GOOD_WIFI_MBPS], RATE_SECONDS);
                    RunConfig::new(&wifi, &[lte], DEFAULT_RTTS_MS, file(LARGE_FILE))
                })
            })
            .collect(),
        SUSPEND => vec![one(
            SUSPEND,
            "bad, then good Wi-Fi".into(),
            &[EmptcpClient::Emptcp, EmptcpClient::Marline],
            3,
            &|_| {
                let mut wifi = vec![1.0; 12];
                wifi.push(20.0);
                RunConfig::new(&wifi, &[8.0], DEFAULT_RTTS_MS, file(160_000_000))
            },
        )],
        _ => Vec::new(),
    }
}

/// One small case of each kind, to check that everything works.
pub(super) fn quick_cases() -> Vec<FigureCase> {
    let file = |bytes| Work::File(DataSize::from_bytes(bytes));
    let one = |case: &str, run| FigureCase {
        artefact: QUICK,
        case: case.into(),
        clients: SECTION_5_CLIENTS.to_vec(),
        runs: vec![run],
    };
    vec![
        one("256 KB, good + bad", RunConfig::new(&[16.0], &[4.0], DEFAULT_RTTS_MS, file(262_144))),
        one("4 MB, bad + good", RunConfig::new(&[2.0], &[12.0], DEFAULT_RTTS_MS, file(4_000_000))),
        one("107 objects", RunConfig::new(&[16.0], &[16.0], DEFAULT_RTTS_MS, Work::Page)),
    ]
}

/// Artefact of [`quick_cases`].
pub(super) const QUICK: &str = "short";

/// Clients of section 4.
const SECTION_4_CLIENTS: &[EmptcpClient] = &[
    EmptcpClient::TcpWifi,
    EmptcpClient::Mptcp,
    EmptcpClient::WifiFirst,
    EmptcpClient::Emptcp,
    EmptcpClient::EmptcpSettled,
    EmptcpClient::EmptcpTable,
    EmptcpClient::Marline,
];
/// Clients of section 5.
const SECTION_5_CLIENTS: &[EmptcpClient] = &[
    EmptcpClient::TcpWifi,
    EmptcpClient::Mptcp,
    EmptcpClient::Emptcp,
    EmptcpClient::EmptcpSettled,
    EmptcpClient::Marline,
];
const GRID_CLIENTS: &[EmptcpClient] = &[
    EmptcpClient::TcpWifi,
    EmptcpClient::Mptcp,
    EmptcpClient::Emptcp,
    EmptcpClient::EmptcpSettled,
    EmptcpClient::EmptcpTable,
    EmptcpClient::Marline,
];
/// Categories of section 5.1 (bad is below 8 Mbit/s): whether Wi-Fi and LTE are good.
const CATEGORIES: [(&str, bool, bool); 4] = [
    (BOTH_BAD, false, false),
    ("bad Wi-Fi, good LTE", false, true),
    ("good Wi-Fi, bad LTE", true, false),
    ("good Wi-Fi, good LTE", true, true),
];
/// The category in which eMPTCP saves most (section 5.3).
pub(super) const BOTH_BAD: &str = "bad Wi-Fi, bad LTE";
const LARGE_FILE: u64 = 256_000_000;
/// Rates in Mbit/s. The paper: below 1 and above 10 for Wi-Fi (sections 4.2, 4.3); LTE's is not stated. Our choice: in
/// the middle of figure 9's.
const BAD_WIFI_MBPS: f64 = 0.8;
const GOOD_WIFI_MBPS: f64 = 15.0;
const LTE_MBPS: f64 = 10.0;
/// Length of generated rates in seconds; only TCP over Wi-Fi needs more.
const RATE_SECONDS: usize = 3000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_artefact_has_cases_with_repetitions() {
        for artefact in ARTEFACTS.into_iter().chain([SUSPEND, GRID]) {
            let figures_of = |effort| figures(artefact, effort);
            let all = figures_of(Effort { runs: None, scale: 1.0 });
            assert!(!all.is_empty(), "{artefact}");
            assert!(all.iter().all(|figure| figure.artefact == artefact && figure.runs.len() >= 3));
            assert!(figures_of(Effort { runs: Some(1), scale: 0.1 }).iter().all(|figure| figure.runs.len() == 1));
        }
        assert_eq!(quick_cases().len(), 3);
    }
}
