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

use marline_core::link_choice::LinkSeen;
use marline_core::units::{Bitrate, DataSize, Instant};
use marline_net::links::{Interface, MeteredHints, Named, Survey, survey};
use marline_net::paths::control::{Answer, Question, ask};
use marline_net::paths::status::Status;

use crate::starts::preference;

/// chosen: long enough for a rate, short enough for a link that has gone.
pub(super) const LOOK: Duration = Duration::from_secs(2);
/// chosen: as a relay's measured rate.
const MEMORY: Duration = Duration::from_secs(30 * 60);

/// One link.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LinkNow {
    /// Its interface.
    pub name: String,
    /// Its bytes cost money.
    pub metered: bool,
    /// It can carry.
    pub up: bool,
    /// It did not answer when it was asked, and nothing has come over it since.
    #[serde(default)]
    pub silent: bool,
    /// Why new connections to relays do not begin over it; none: they do, or it was not tried.
    #[serde(default)]
    pub why: Option<String>,
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
    #[serde(rename = "most_bps")]
    pub most: Bitrate,
    /// What comes over it now from relays.
    #[serde(default, rename = "down_bps")]
    pub down: Bitrate,
}

/// What is seen in one look.
#[derive(Clone, Debug, Default)]
pub(super) struct Look {
    pub(super) links: Vec<Seen>,
    /// Of each subflow: connection, its end here, its link, and what it has sent and received.
    subflows: BTreeMap<(u32, SocketAddr), (String, [u64; 2])>,
    /// Whether a daemon steers them.
    pub(super) steered: bool,
}

/// A link in one look.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub(super) name: String,
    metered: bool,
    up: bool,
    silent: bool,
    /// Sent and received.
    passed: [u64; 2],
}

impl From<&Status> for Look {
    fn from(status: &Status) -> Self {
        let links = status.links.iter().map(|link| Seen {
            name: link.name.clone(),
            metered: link.metered,
            up: link.up,
            silent: link.silent,
            passed: counters(&link.name),
        });
        let subflows = status.connections.iter().flat_map(|connection| {
            connection.subflows.iter().filter_map(|subflow| {
                let link = subflow.link.clone()?;
                Some(((connection.token, subflow.local), (link, [subflow.sent_bytes, subflow.received_bytes])))
            })
        });
        Self { links: links.collect(), subflows: subflows.collect(), steered: true }
    }
}

/// What is known of all links.
#[derive(Debug, Default)]
pub(super) struct Links {
    at: Instant,
    before: Look,
    /// What the counters of each interface said last, and what has passed since the first look.
    passed: BTreeMap<String, ([u64; 2], [u64; 2])>,
    most: BTreeMap<String, (Bitrate, Instant)>,
}

impl Links {
    /// How they stand after another look.
    pub(super) fn look(&mut self, now: Instant, look: Look) -> Vec<LinkNow> {
        let time = now.since(std::mem::replace(&mut self.at, now));
        let mut carried: BTreeMap<&str, [u64; 2]> = BTreeMap::new();
        for (key, (link, now)) in &look.subflows {
            if let Some((_, before)) = self.before.subflows.get(key) {
                let of = carried.entry(link).or_default();
                (0..2).for_each(|way| of[way] += now[way].saturating_sub(before[way]));
            }
        }
        let told = look.links.iter().map(|Seen { name, metered, up, silent, passed }| {
            let bytes = carried.get(name.as_str()).copied().unwrap_or_default();
            let [rate, down] =
                bytes.map(|bytes| if time.is_zero() { Bitrate::ZERO } else { DataSize::from_bytes(bytes) / time });
            let most = self.most.entry(name.clone()).or_default();
            if rate >= most.0 || now.since(most.1) > MEMORY {
                *most = (rate, now);
            }
            let (last, sum) = self.passed.entry(name.clone()).or_insert((*passed, [0; 2]));
            for way in 0..2 {
                // An interface that was made anew counts from 0.
                sum[way] += passed[way].checked_sub(last[way]).unwrap_or(passed[way]);
            }
            *last = *passed;
            LinkNow {
                name: name.clone(),
                metered: *metered,
                up: *up,
                silent: *silent,
                why: None,
                mptcp_stripped: false,
                sent_bytes: sum[0],
                received_bytes: sum[1],
                rate,
                most: most.0,
                down,
            }
        });
        let told = told.collect();
        self.before = look;
        told
    }
}

/// The best single link: the one that has shown the highest rate of those that are up and answer.
pub(super) fn best(links: &[LinkNow]) -> Option<&LinkNow> {
    links.iter().filter(|link| link.up && !link.silent && !link.most.is_zero()).max_by_key(|link| link.most)
}

/// The links that are up, for connections that begin: in the order of the kernel's preference, with their interfaces.
pub(super) fn beginnings(look: &Look, now: &[LinkNow], survey: &Survey) -> Vec<(LinkSeen, Interface)> {
    // What a VPN is to carry goes beside it over no link that was not named.
    if survey.vpn.is_some() && !look.steered {
        return Vec::new();
    }
    let seen = look.links.iter().filter(|seen| seen.up).filter_map(|seen| {
        let interface = survey.named(&seen.name)?;
        let receives = now.iter().any(|link| link.name == seen.name && !link.down.is_zero());
        let (name, index) = (seen.name.clone(), interface.index);
        let of = LinkSeen { name, index, silent: seen.silent, receives, metered: seen.metered };
        Some((preference(interface)?, of, interface.clone()))
    });
    let mut seen: Vec<_> = seen.collect();
    seen.sort_by_key(|(preference, ..)| *preference);
    seen.into_iter().map(|(_, of, interface)| (of, interface)).collect()
}

/// Looks once. Blocks for as long as the daemon of `run_dir` takes to answer.
pub(super) fn look(run_dir: &Path) -> Look {
    match ask(run_dir, &Question::Status { at_most: None }) {
        Ok(Answer::Status(status)) => Look::from(&*status),
        _ => unsteered(),
    }
}

/// Rule 3.
fn unsteered() -> Look {
    let Ok(survey) = survey() else { return Look::default() };
    let usable = survey.interfaces.iter().filter(|interface| interface.is_usable());
    let links = usable.map(|interface| {
        let profile = Named::new(&interface.name).on(interface, &MeteredHints::none());
        let passed = counters(&interface.name);
        let (name, metered) = (interface.name.clone(), profile.metered);
        Seen { name, metered, up: true, silent: false, passed }
    });
    Look { links: links.collect(), subflows: BTreeMap::new(), steered: false }
}

/// What the kernel has counted on an interface, sent and received; the same source whether or not a daemon steers, so that a total does
/// not jump when that changes.
fn counters(name: &str) -> [u64; 2] {
    ["tx", "rx"].map(|which| {
        let file = format!("/sys/class/net/{name}/statistics/{which}_bytes");
        std::fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok()).unwrap_or_default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(sent: [(u32, &str, u64); 3]) -> Look {
        let link =
            |name: &str, sent| Seen { name: name.into(), up: true, passed: [sent, 3 * sent], ..Seen::default() };
        let links = vec![link("wlan0", 500), link("wwan0", 0)];
        let of = |(token, link, sent): (u32, &str, u64)| {
            ((token, format!("10.0.0.{token}:1").parse().unwrap()), (link.to_owned(), [sent, 2 * sent]))
        };
        Look { links, subflows: sent.map(of).into_iter().collect(), steered: true }
    }

    #[test]
    fn totals_begin_at_the_first_look_and_outlast_an_interface_that_is_made_anew() {
        let mut links = Links::default();
        let with = |passed| {
            let seen = Seen { name: "wwan0".into(), up: true, passed, ..Seen::default() };
            Look { links: vec![seen], ..Look::default() }
        };
        let mut totals = |seconds: u64, passed| {
            let now = links.look(Instant::from_millis(seconds * 1000), with(passed));
            (now[0].sent_bytes, now[0].received_bytes)
        };
        assert_eq!(totals(1, [900, 5000]), (0, 0));
        assert_eq!(totals(3, [1000, 5700]), (100, 700));
        assert_eq!(totals(5, [40, 60]), (140, 760));
    }

    #[test]
    fn a_link_has_shown_what_its_subflows_carried() {
        let mut links = Links::default();
        let second = |n: u64| Instant::from_millis(n * 1000);
        let first = links.look(second(1), at([(1, "wlan0", 9_000_000), (2, "wwan0", 0), (3, "wwan0", 0)]));
        assert_eq!(best(&first), None);
        let then =
            links.look(second(3), at([(1, "wlan0", 10_000_000), (2, "wwan0", 250_000), (3, "wwan0", 250_000)]));
        assert_eq!([then[0].rate, then[1].rate], [Bitrate::from_mbps(4), Bitrate::from_mbps(2)]);
        assert_eq!([then[0].down, then[1].down], [Bitrate::from_mbps(8), Bitrate::from_mbps(4)]);
        assert_eq!(best(&then).unwrap().name, "wlan0");
        let idle =
            links.look(second(5), at([(1, "wlan0", 10_000_000), (2, "wwan0", 250_000), (9, "wwan0", 7_000_000)]));
        assert_eq!((idle[0].rate, idle[0].most), (Bitrate::ZERO, Bitrate::from_mbps(4)));
        assert_eq!(idle[1].rate, Bitrate::ZERO);
        let later = links.look(second(3600), at([(1, "wlan0", 10_000_000), (2, "wwan0", 0), (3, "wwan0", 0)]));
        assert_eq!(best(&later), None);
    }
}
