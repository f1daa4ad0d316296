//! Measures the links of an edge: the rates of their MPTCP subflows, their byte counters, and which link is the best alone.
//!
//! The daemon of `marline paths` reports links and subflows; it is polled each [`SAMPLE_INTERVAL`]. The result is a [`LinkState`] for each
//! link.
//!
//! 1. No probes are sent: a link's peak rate is the highest that its subflows have carried in one interval, and is kept for
//!    [`PEAK_MEMORY`]. Therefore B_o(c), the rate of the best single link (BASS), is a lower bound until the link has been saturated once.
//! 2. A subflow that was not in the previous sample does not count yet.
//! 3. Without a daemon, only the names and byte counters of the links are known, and no rates.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use marline_core::fleet::udp_link::ObservedLink;
use marline_core::link_choice::LinkObservation;
use marline_core::units::{Bitrate, DataSize, Instant};
use marline_net::links::{Interface, InterfaceList, LinkArg, MeteredHints, list_interfaces};
use marline_paths::control::{ControlReply, ControlRequest, query};
use marline_paths::status::Status;

use crate::link_dialer::route_preference;

/// Our choice: long enough to measure a rate, short enough to notice a failed link.
pub(super) const SAMPLE_INTERVAL: Duration = Duration::from_secs(2);
/// Our choice: the same as for a relay's measured rate.
const PEAK_MEMORY: Duration = Duration::from_secs(30 * 60);

/// State of one link.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LinkState {
    /// The interface.
    pub name: String,
    /// Whether its traffic costs money.
    pub metered: bool,
    /// Whether it is usable.
    pub up: bool,
    /// Whether it is up but carries nothing: a liveness probe, a connection attempt to a relay, or packets without a tunnel (`udp_watch`)
    /// were not answered.
    #[serde(default)]
    pub unresponsive: bool,
    /// Why new connections to relays do not begin over it; `None`: they do, or it was not tried.
    #[serde(default)]
    pub failure: Option<String>,
    /// Whether MPTCP's option is removed between it and the relays: a flow that begins over it uses only this link, and it cannot join
    /// other flows.
    #[serde(default)]
    pub mptcp_stripped: bool,
    /// Bytes sent over it since the first sample, by all programs.
    pub sent_bytes: u64,
    /// Bytes received over it since the first sample, by all programs.
    #[serde(default)]
    pub received_bytes: u64,
    /// The sending rate towards relays between the last two samples.
    #[serde(rename = "rate_bps")]
    pub rate: Bitrate,
    /// The highest sending rate towards relays between two samples in the last half hour.
    #[serde(rename = "peak_bps")]
    pub peak_rate: Bitrate,
    /// The receiving rate from relays between the last two samples.
    #[serde(default, rename = "down_bps")]
    pub down_rate: Bitrate,
}

impl From<&LinkState> for ObservedLink {
    fn from(link: &LinkState) -> Self {
        let LinkState { name, metered, up, unresponsive, peak_rate, .. } = link.clone();
        Self { name, up, unresponsive, metered, peak_rate }
    }
}

/// One sample of all links and subflows.
#[derive(Clone, Debug, Default)]
pub(super) struct LinkSample {
    pub(super) links: Vec<InterfaceSample>,
    /// For each subflow, by connection token and local address: its link, and the bytes sent and received.
    subflows: BTreeMap<(u32, SocketAddr), (String, [u64; 2])>,
    /// Whether a daemon manages the links.
    pub(super) has_path_manager: bool,
}

/// One link in a sample.
#[derive(Clone, Debug, Default)]
pub(super) struct InterfaceSample {
    pub(super) name: String,
    metered: bool,
    up: bool,
    unresponsive: bool,
    /// Bytes sent and received by the interface.
    byte_counters: [u64; 2],
}

impl From<&Status> for LinkSample {
    fn from(status: &Status) -> Self {
        let links = status.links.iter().map(|link| InterfaceSample {
            name: link.name.clone(),
            metered: link.metered,
            up: link.up,
            unresponsive: link.silent,
            byte_counters: read_counters(&link.name),
        });
        let subflows = status.connections.iter().flat_map(|connection| {
            connection.subflows.iter().filter_map(|subflow| {
                let link = subflow.link.clone()?;
                Some(((connection.token, subflow.local), (link, [subflow.sent_bytes, subflow.received_bytes])))
            })
        });
        Self { links: links.collect(), subflows: subflows.collect(), has_path_manager: true }
    }
}

/// History of all links.
#[derive(Debug, Default)]
pub(super) struct LinkRates {
    sampled_at: Instant,
    previous: LinkSample,
    /// For each interface: its last counters, and the bytes sent and received since the first sample.
    totals: BTreeMap<String, ([u64; 2], [u64; 2])>,
    peaks: BTreeMap<String, (Bitrate, Instant)>,
}

impl LinkRates {
    /// Adds a sample and returns the state of the links.
    pub(super) fn update(&mut self, now: Instant, sample: LinkSample) -> Vec<LinkState> {
        let time = now.since(std::mem::replace(&mut self.sampled_at, now));
        let mut carried: BTreeMap<&str, [u64; 2]> = BTreeMap::new();
        for (key, (link, counters)) in &sample.subflows {
            if let Some((_, previous)) = self.previous.subflows.get(key) {
                let total = carried.entry(link).or_default();
                (0..2).for_each(|direction| {
                    total[direction] += counters[direction].saturating_sub(previous[direction])
                });
            }
        }
        let states = sample.links.iter().map(
            |InterfaceSample { name, metered, up, unresponsive: is_unresponsive, byte_counters: counters }| {
                let bytes = carried.get(name.as_str()).copied().unwrap_or_default();
                let [rate, down_rate] = bytes
                    .map(|bytes| if time.is_zero() { Bitrate::ZERO } else { DataSize::from_bytes(bytes) / time });
                let peak = self.peaks.entry(name.clone()).or_default();
                if rate >= peak.0 || now.since(peak.1) > PEAK_MEMORY {
                    *peak = (rate, now);
                }
                let (last, sum) = self.totals.entry(name.clone()).or_insert((*counters, [0; 2]));
                for direction in 0..2 {
                    // An interface that was created again counts from 0.
                    sum[direction] +=
                        counters[direction].checked_sub(last[direction]).unwrap_or(counters[direction]);
                }
                *last = *counters;
                LinkState {
                    name: name.clone(),
                    metered: *metered,
                    up: *up,
                    unresponsive: *is_unresponsive,
                    failure: None,
                    mptcp_stripped: false,
                    sent_bytes: sum[0],
                    received_bytes: sum[1],
                    rate,
                    peak_rate: peak.0,
                    down_rate,
                }
            },
        );
        let states = states.collect();
        self.previous = sample;
        states
    }
}

/// The best single link: the one with the highest peak rate of those that are up and responsive.
pub(super) fn best_link(links: &[LinkState]) -> Option<&LinkState> {
    links
        .iter()
        .filter(|link| link.up && !link.unresponsive && !link.peak_rate.is_zero())
        .max_by_key(|link| link.peak_rate)
}

/// The links that are up, for new connections: in the order of the kernel's preference, with their interfaces.
pub(super) fn links_to_dial(
    sample: &LinkSample,
    states: &[LinkState],
    survey: &InterfaceList,
) -> Vec<(LinkObservation, Interface)> {
    // Traffic that a VPN must carry may bypass it only over links that the user has named.
    if survey.vpn.is_some() && !sample.has_path_manager {
        return Vec::new();
    }
    let usable = sample.links.iter().filter(|seen| seen.up).filter_map(|seen| {
        let interface = survey.by_name(&seen.name)?;
        let receives = states.iter().any(|link| link.name == seen.name && !link.down_rate.is_zero());
        let (name, index) = (seen.name.clone(), interface.index);
        let observation = LinkObservation {
            name,
            index,
            is_unresponsive: seen.unresponsive,
            is_receiving: receives,
            metered: seen.metered,
        };
        Some((route_preference(interface)?, observation, interface.clone()))
    });
    let mut usable: Vec<_> = usable.collect();
    usable.sort_by_key(|(preference, ..)| *preference);
    usable.into_iter().map(|(_, link_seen, interface)| (link_seen, interface)).collect()
}

/// Samples the links once. Blocks while the daemon of `run_dir` answers.
pub(super) fn sample_links(run_dir: &Path) -> LinkSample {
    match query(run_dir, &ControlRequest::Status { max_connections: None }) {
        Ok(ControlReply::Status(status)) => LinkSample::from(&*status),
        _ => sample_without_daemon(),
    }
}

/// Samples the links without a daemon (rule 3).
fn sample_without_daemon() -> LinkSample {
    let Ok(survey) = list_interfaces() else { return LinkSample::default() };
    let usable = survey.interfaces.iter().filter(|interface| interface.is_usable());
    let links = usable.map(|interface| {
        let profile = LinkArg::new(&interface.name).profile_for(interface, &MeteredHints::unknown());
        let counters = read_counters(&interface.name);
        let (name, metered) = (interface.name.clone(), profile.metered);
        InterfaceSample { name, metered, up: true, unresponsive: false, byte_counters: counters }
    });
    LinkSample { links: links.collect(), subflows: BTreeMap::new(), has_path_manager: false }
}

/// The kernel's byte counters of an interface, sent and received. The source is the same with and without a daemon, so that totals do not
/// jump when that changes.
fn read_counters(name: &str) -> [u64; 2] {
    ["tx", "rx"].map(|which| {
        let file = format!("/sys/class/net/{name}/statistics/{which}_bytes");
        std::fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok()).unwrap_or_default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(sent: [(u32, &str, u64); 3]) -> LinkSample {
        let link = |name: &str, sent| InterfaceSample {
            name: name.into(),
            up: true,
            byte_counters: [sent, 3 * sent],
            ..InterfaceSample::default()
        };
        let links = vec![link("wlan0", 500), link("wwan0", 0)];
        let subflow_of = |(token, link, sent): (u32, &str, u64)| {
            ((token, format!("10.0.0.{token}:1").parse().unwrap()), (link.to_owned(), [sent, 2 * sent]))
        };
        LinkSample { links, subflows: sent.map(subflow_of).into_iter().collect(), has_path_manager: true }
    }

    #[test]
    fn totals_start_at_the_first_sample_and_survive_an_interface_that_is_created_again() {
        let mut links = LinkRates::default();
        let with = |passed| {
            let seen = InterfaceSample {
                name: "wwan0".into(),
                up: true,
                byte_counters: passed,
                ..InterfaceSample::default()
            };
            LinkSample { links: vec![seen], ..LinkSample::default() }
        };
        let mut totals = |seconds: u64, passed| {
            let now = links.update(Instant::from_millis(seconds * 1000), with(passed));
            (now[0].sent_bytes, now[0].received_bytes)
        };
        assert_eq!(totals(1, [900, 5000]), (0, 0));
        assert_eq!(totals(3, [1000, 5700]), (100, 700));
        assert_eq!(totals(5, [40, 60]), (140, 760));
    }

    #[test]
    fn the_rates_of_a_link_are_those_of_its_subflows() {
        let mut links = LinkRates::default();
        let second = |n: u64| Instant::from_millis(n * 1000);
        let first = links.update(second(1), sample([(1, "wlan0", 9_000_000), (2, "wwan0", 0), (3, "wwan0", 0)]));
        assert_eq!(best_link(&first), None);
        let second_sample = links
            .update(second(3), sample([(1, "wlan0", 10_000_000), (2, "wwan0", 250_000), (3, "wwan0", 250_000)]));
        assert_eq!([second_sample[0].rate, second_sample[1].rate], [Bitrate::from_mbps(4), Bitrate::from_mbps(2)]);
        assert_eq!(
            [second_sample[0].down_rate, second_sample[1].down_rate],
            [Bitrate::from_mbps(8), Bitrate::from_mbps(4)]
        );
        assert_eq!(best_link(&second_sample).unwrap().name, "wlan0");
        let idle = links
            .update(second(5), sample([(1, "wlan0", 10_000_000), (2, "wwan0", 250_000), (9, "wwan0", 7_000_000)]));
        assert_eq!((idle[0].rate, idle[0].peak_rate), (Bitrate::ZERO, Bitrate::from_mbps(4)));
        assert_eq!(idle[1].rate, Bitrate::ZERO);
        let rates =
            links.update(second(3600), sample([(1, "wlan0", 10_000_000), (2, "wwan0", 0), (3, "wwan0", 0)]));
        assert_eq!(best_link(&rates), None);
    }
}
