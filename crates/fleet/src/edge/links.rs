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

use marline_core::units::{Bitrate, DataSize, Instant};
use marline_net::links::{MeteredHints, Named, survey};
use marline_net::paths::control::{Answer, Question, ask};
use marline_net::paths::status::Status;

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
    /// What has gone over it since it was looked at first, whoever sent it.
    pub sent_bytes: u64,
    /// What goes over it now towards relays.
    #[serde(rename = "rate_bps")]
    pub rate: Bitrate,
    /// The most that did of late.
    #[serde(rename = "most_bps")]
    pub most: Bitrate,
}

/// What is seen in one look.
#[derive(Clone, Debug, Default)]
pub(super) struct Look {
    links: Vec<Seen>,
    /// Of each subflow: connection, its end here, its link, and what it has sent.
    subflows: BTreeMap<(u32, SocketAddr), (String, u64)>,
}

/// A link in one look.
#[derive(Clone, Debug, Default)]
struct Seen {
    name: String,
    metered: bool,
    up: bool,
    silent: bool,
    sent: u64,
}

impl From<&Status> for Look {
    fn from(status: &Status) -> Self {
        let links = status.links.iter().map(|link| Seen {
            name: link.name.clone(),
            metered: link.metered,
            up: link.up,
            silent: link.silent,
            sent: link.sent_bytes,
        });
        let subflows = status.connections.iter().flat_map(|connection| {
            connection.subflows.iter().filter_map(|subflow| {
                let link = subflow.link.clone()?;
                Some(((connection.token, subflow.local), (link, subflow.sent_bytes)))
            })
        });
        Self { links: links.collect(), subflows: subflows.collect() }
    }
}

/// What is known of all links.
#[derive(Debug, Default)]
pub(super) struct Links {
    at: Instant,
    before: Look,
    first: BTreeMap<String, u64>,
    most: BTreeMap<String, (Bitrate, Instant)>,
}

impl Links {
    /// How they stand after another look.
    pub(super) fn look(&mut self, now: Instant, look: Look) -> Vec<LinkNow> {
        let time = now.since(std::mem::replace(&mut self.at, now));
        let mut passed: BTreeMap<&str, u64> = BTreeMap::new();
        for (key, (link, sent)) in &look.subflows {
            if let Some((_, before)) = self.before.subflows.get(key) {
                *passed.entry(link).or_default() += sent.saturating_sub(*before);
            }
        }
        let told = look.links.iter().map(|Seen { name, metered, up, silent, sent }| {
            let bytes = passed.get(name.as_str()).copied().unwrap_or_default();
            let rate = if time.is_zero() { Bitrate::ZERO } else { DataSize::from_bytes(bytes) / time };
            let most = self.most.entry(name.clone()).or_default();
            if rate >= most.0 || now.since(most.1) > MEMORY {
                *most = (rate, now);
            }
            let first = *self.first.entry(name.clone()).or_insert(*sent);
            LinkNow {
                name: name.clone(),
                metered: *metered,
                up: *up,
                silent: *silent,
                sent_bytes: sent.saturating_sub(first),
                rate,
                most: most.0,
            }
        });
        let told = told.collect();
        self.before = look;
        told
    }
}

/// The best single link: the one that has shown the highest rate of those that are up.
pub(super) fn best(links: &[LinkNow]) -> Option<&LinkNow> {
    links.iter().filter(|link| link.up && !link.most.is_zero()).max_by_key(|link| link.most)
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
        let counter = format!("/sys/class/net/{}/statistics/tx_bytes", interface.name);
        let sent = std::fs::read_to_string(counter).ok().and_then(|text| text.trim().parse().ok());
        let (name, metered) = (interface.name.clone(), profile.metered);
        Seen { name, metered, up: true, silent: false, sent: sent.unwrap_or_default() }
    });
    Look { links: links.collect(), subflows: BTreeMap::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(sent: [(u32, &str, u64); 3]) -> Look {
        let link = |name: &str, sent| Seen { name: name.into(), up: true, sent, ..Seen::default() };
        let links = vec![link("wlan0", 500), link("wwan0", 0)];
        let of = |(token, link, sent): (u32, &str, u64)| {
            ((token, format!("10.0.0.{token}:1").parse().unwrap()), (link.to_owned(), sent))
        };
        Look { links, subflows: sent.map(of).into_iter().collect() }
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
        assert_eq!(best(&then).unwrap().name, "wlan0");
        let idle =
            links.look(second(5), at([(1, "wlan0", 10_000_000), (2, "wwan0", 250_000), (9, "wwan0", 7_000_000)]));
        assert_eq!((idle[0].rate, idle[0].most), (Bitrate::ZERO, Bitrate::from_mbps(4)));
        assert_eq!(idle[1].rate, Bitrate::ZERO);
        let later = links.look(second(3600), at([(1, "wlan0", 10_000_000), (2, "wwan0", 0), (3, "wwan0", 0)]));
        assert_eq!(best(&later), None);
    }
}
