//! The links of an edge, as they are seen to carry: their rates, their shares, and what their bytes cost.
//!
//! In: what `marline paths` tells of links and subflows, looked at each [`LOOK`]. Out: [`LinkNow`] for each link; which one is the
//! best alone; whether links are others than before.
//!
//! 1. Nothing is sent to learn this: a link's rate is the most that its subflows have carried in one look, and counts for
//!    [`MEMORY`]. So B_o(c), what one link reaches alone, is a lower bound until a link was full once.
//! 2. A subflow that was not there at the look before has told nothing yet.
//! 3. Where nobody steers there are the links' names and their counters, and no rates.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use marline_core::link_choice::LinkObservation;
use marline_core::units::{Bitrate, DataSize, Instant};
use marline_net::links::{Interface, InterfaceList, LinkArg, MeteredHints, list_interfaces};
use marline_paths::control::{Answer, Question, ask};
use marline_paths::status::Status;

use crate::link_dialer::route_preference;

/// chosen: long enough for a rate, short enough for a link that has gone.
pub(super) const SAMPLE_INTERVAL: Duration = Duration::from_secs(2);
/// chosen: as a relay's measured rate.
const PEAK_MEMORY: Duration = Duration::from_secs(30 * 60);

/// One link.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LinkState {
    /// Its interface.
    pub name: String,
    /// Its bytes cost money.
    pub metered: bool,
    /// It can carry.
    pub up: bool,
    /// It did not answer when it was asked, and nothing has come over it since.
    #[serde(default)]
    pub unresponsive: bool,
    /// Why new connections to relays do not begin over it; none: they do, or it was not tried.
    #[serde(default)]
    pub failure: Option<String>,
    /// MPTCP's option is removed on the way to relays: a flow that begins over it uses it alone, and it joins no flow.
    #[serde(default)]
    pub mptcp_stripped: bool,
    /// What has gone over it since it was looked at first, whoever sent it.
    pub sent_bytes: u64,
    /// What has come over it since then, for whomever.
    #[serde(default)]
    pub received_bytes: u64,
    /// What goes over it now towards relays.
    #[serde(rename = "rate_bps")]
    pub rate: Bitrate,
    /// The most that did of late.
    #[serde(rename = "peak_bps")]
    pub peak_rate: Bitrate,
    /// What comes over it now from relays.
    #[serde(default, rename = "down_bps")]
    pub down_rate: Bitrate,
}

/// What is seen in one look.
#[derive(Clone, Debug, Default)]
pub(super) struct LinkSample {
    pub(super) links: Vec<InterfaceSample>,
    /// Of each subflow: connection, its end here, its link, and what it has sent and received.
    subflows: BTreeMap<(u32, SocketAddr), (String, [u64; 2])>,
    /// Whether a daemon steers them.
    pub(super) has_daemon: bool,
}

/// A link in one look.
#[derive(Clone, Debug, Default)]
pub(super) struct InterfaceSample {
    pub(super) name: String,
    metered: bool,
    up: bool,
    unresponsive: bool,
    /// Sent and received.
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
        Self { links: links.collect(), subflows: subflows.collect(), has_daemon: true }
    }
}

/// What is known of all links.
#[derive(Debug, Default)]
pub(super) struct LinkRates {
    sampled_at: Instant,
    previous: LinkSample,
    /// What the counters of each interface said last, and what has passed since the first look.
    totals: BTreeMap<String, ([u64; 2], [u64; 2])>,
    peaks: BTreeMap<String, (Bitrate, Instant)>,
}

impl LinkRates {
    /// How they stand after another look.
    pub(super) fn update(&mut self, now: Instant, sample: LinkSample) -> Vec<LinkState> {
        let time = now.since(std::mem::replace(&mut self.sampled_at, now));
        let mut carried: BTreeMap<&str, [u64; 2]> = BTreeMap::new();
        for (key, (link, counters)) in &sample.subflows {
            if let Some((_, previous)) = self.previous.subflows.get(key) {
                let of = carried.entry(link).or_default();
                (0..2)
                    .for_each(|direction| of[direction] += counters[direction].saturating_sub(previous[direction]));
            }
        }
        let states = sample.links.iter().map(
            |InterfaceSample { name, metered, up, unresponsive: silent, byte_counters: passed }| {
                let bytes = carried.get(name.as_str()).copied().unwrap_or_default();
                let [rate, down_rate] = bytes
                    .map(|bytes| if time.is_zero() { Bitrate::ZERO } else { DataSize::from_bytes(bytes) / time });
                let peak = self.peaks.entry(name.clone()).or_default();
                if rate >= peak.0 || now.since(peak.1) > PEAK_MEMORY {
                    *peak = (rate, now);
                }
                let (last, sum) = self.totals.entry(name.clone()).or_insert((*passed, [0; 2]));
                for direction in 0..2 {
                    // An interface that was made anew counts from 0.
                    sum[direction] += passed[direction].checked_sub(last[direction]).unwrap_or(passed[direction]);
                }
                *last = *passed;
                LinkState {
                    name: name.clone(),
                    metered: *metered,
                    up: *up,
                    unresponsive: *silent,
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

/// The best single link: the one that has shown the highest rate of those that are up and answer.
pub(super) fn best_link(links: &[LinkState]) -> Option<&LinkState> {
    links
        .iter()
        .filter(|link| link.up && !link.unresponsive && !link.peak_rate.is_zero())
        .max_by_key(|link| link.peak_rate)
}

/// The links that are up, for connections that begin: in the order of the kernel's preference, with their interfaces.
pub(super) fn links_to_dial(
    sample: &LinkSample,
    states: &[LinkState],
    survey: &InterfaceList,
) -> Vec<(LinkObservation, Interface)> {
    // What a VPN is to carry goes beside it over no link that was not named.
    if survey.vpn.is_some() && !sample.has_daemon {
        return Vec::new();
    }
    let usable = sample.links.iter().filter(|seen| seen.up).filter_map(|seen| {
        let interface = survey.by_name(&seen.name)?;
        let receives = states.iter().any(|link| link.name == seen.name && !link.down_rate.is_zero());
        let (name, index) = (seen.name.clone(), interface.index);
        let of = LinkObservation {
            name,
            index,
            is_silent: seen.unresponsive,
            is_receiving: receives,
            metered: seen.metered,
        };
        Some((route_preference(interface)?, of, interface.clone()))
    });
    let mut usable: Vec<_> = usable.collect();
    usable.sort_by_key(|(preference, ..)| *preference);
    usable.into_iter().map(|(_, link_seen, interface)| (link_seen, interface)).collect()
}

/// Looks once. Blocks for as long as the daemon of `run_dir` takes to answer.
pub(super) fn sample_links(run_dir: &Path) -> LinkSample {
    match ask(run_dir, &Question::Status { at_most: None }) {
        Ok(Answer::Status(status)) => LinkSample::from(&*status),
        _ => sample_without_daemon(),
    }
}

/// Rule 3.
fn sample_without_daemon() -> LinkSample {
    let Ok(survey) = list_interfaces() else { return LinkSample::default() };
    let usable = survey.interfaces.iter().filter(|interface| interface.is_usable());
    let links = usable.map(|interface| {
        let profile = LinkArg::new(&interface.name).profile_for(interface, &MeteredHints::unknown());
        let passed = read_counters(&interface.name);
        let (name, metered) = (interface.name.clone(), profile.metered);
        InterfaceSample { name, metered, up: true, unresponsive: false, byte_counters: passed }
    });
    LinkSample { links: links.collect(), subflows: BTreeMap::new(), has_daemon: false }
}

/// What the kernel has counted on an interface, sent and received; the same source whether or not a daemon steers, so that a total does
/// not jump when that changes.
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
        let of = |(token, link, sent): (u32, &str, u64)| {
            ((token, format!("10.0.0.{token}:1").parse().unwrap()), (link.to_owned(), [sent, 2 * sent]))
        };
        LinkSample { links, subflows: sent.map(of).into_iter().collect(), has_daemon: true }
    }

    #[test]
    fn totals_begin_at_the_first_look_and_outlast_an_interface_that_is_made_anew() {
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
    fn a_link_has_shown_what_its_subflows_carried() {
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
        let later =
            links.update(second(3600), sample([(1, "wlan0", 10_000_000), (2, "wwan0", 0), (3, "wwan0", 0)]));
        assert_eq!(best_link(&later), None);
    }
}
