//! Lines of a running edge, one for each change: relays that cannot be used, links that are not used, which way new flows go, what the
//! fleet's service gives, which link the rest of a LAN's packets and this host's name queries take.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::future::pending;
use std::time::{Duration, Instant};

use marline_core::link_choice::LinkFailure;
use marline_fleet::edge::{
    Edge, FailingLink, FleetStatus, FlowStats, NamesNow, RelayStatus, UdpLinkState, UnusedLink,
};
use marline_fleet::service::api_types::NoRelayReason;
use marline_paths::gateway::Obstructions;
use tokio::sync::watch;

use super::args::WithoutRelay;
use super::reason::{Peer, explained};
use super::status;
use crate::output::say;

/// Which way the newest flow went.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Way {
    /// Through this relay.
    Relay(String),
    Direct,
    /// There was none.
    Refused,
}

impl Way {
    /// Of the flows between two states; none: nothing shows it.
    fn of(before: &FlowStats, now: &FlowStats) -> Option<Self> {
        let carried = |state: &FlowStats| state.carried.values().sum::<u64>();
        match &now.last_relay {
            Some(relay) if carried(now) > carried(before) => Some(Self::Relay(relay.clone())),
            _ if now.direct > before.direct => Some(Self::Direct),
            _ if now.refused > before.refused => Some(Self::Refused),
            _ => None,
        }
    }
}

/// Says when flows go another way than before; of those that no relay can be had for, `refusal` says what becomes.
pub(super) async fn flows(edge: &Edge, refusal: &str) -> Infallible {
    let mut state = edge.state();
    let mut told = Told::default();
    let mut before = FlowStats::default();
    loop {
        let due = async {
            match told.due() {
                Some(due) => tokio::time::sleep_until(due.into()).await,
                None => pending().await,
            }
        };
        let new = tokio::select! {
            changed = state.changed() => {
                if changed.is_err() {
                    pending::<()>().await;
                }
                let now = state.borrow_and_update().clone();
                let way = Way::of(&before, &now);
                before = now;
                way.and_then(|way| told.note(Instant::now(), way))
            }
            () = due => told.note(Instant::now(), Way::Refused),
        };
        let Some(new) = new else { continue };
        // Reasons change more often than the way, and have lines of their own.
        let reasons: Vec<String> = match new {
            Way::Relay(_) => Vec::new(),
            _ => edge.relays().iter().filter_map(reason).collect(),
        };
        let reasons = if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join("; ")) };
        match new {
            Way::Relay(relay) => say(&format!("new flows go through {relay}")),
            Way::Direct => say(&format!("new flows go directly, over one link: no relay can be had{reasons}")),
            Way::Refused => say(&format!("new flows {refusal}: no relay can be had{reasons}")),
        }
    }
}

/// What was said of the way of new flows. A relay that is full carries some flows and refuses others: that they are refused is said once in
/// [`APART`] at the most, and later if it is still so.
#[derive(Debug, Default)]
struct Told {
    way: Option<Way>,
    /// When it was said last that flows are refused.
    refused: Option<Instant>,
    /// The newest flow was refused, and that is still to be said.
    is_open: bool,
}

impl Told {
    /// A flow goes this way; the way if it is to be said now.
    fn note(&mut self, now: Instant, new: Way) -> Option<Way> {
        let is_news = self.way.as_ref() != Some(&new);
        self.is_open = false;
        if is_news && new == Way::Refused {
            self.is_open = self.refused.is_some_and(|at| now < at + APART);
            self.refused = if self.is_open { self.refused } else { Some(now) };
        }
        if !is_news || self.is_open {
            return None;
        }
        self.way = Some(new.clone());
        Some(new)
    }

    /// When it is to be said that flows are refused, unless one goes another way before.
    fn due(&self) -> Option<Instant> {
        self.refused.filter(|_| self.is_open).map(|at| at + APART)
    }
}

/// `fra-1: no answer`.
fn reason(relay: &RelayStatus) -> Option<String> {
    let why = explained(relay.error.as_ref()?, Peer::Relay);
    Some(if why.starts_with(&relay.label) { why } else { format!("{}: {why}", relay.label) })
}

/// chosen: a relay that drains takes connections and refuses requests, in turn; one line tells it.
const SETTLED: Duration = Duration::from_secs(1);
const APART: Duration = Duration::from_secs(10);

/// Says which relay cannot be used and why, from the start on, and when it carries again. One line for each change; of changes that
/// follow each other within seconds the last one.
pub(super) async fn relays(edge: &Edge) -> Infallible {
    let mut changes = edge.relay_changes();
    let mut told: BTreeMap<String, (Option<String>, Instant)> = BTreeMap::new();
    loop {
        let mut next = None::<Instant>;
        for relay in edge.relays() {
            let before = told.get(&relay.label);
            if before.map_or(&None, |(why, _)| why) == &relay.error {
                continue;
            }
            if let Some((_, at)) = before.filter(|(_, at)| at.elapsed() < APART) {
                let then = *at + APART;
                next = Some(next.map_or(then, |next| next.min(then)));
                continue;
            }
            match &relay.error {
                Some(why) => say(&format!(
                    "relay {} cannot be used: {}; it is tried again",
                    relay.label,
                    explained(why, Peer::Relay)
                )),
                None => say(&format!("relay {} can be used again", relay.label)),
            }
            told.insert(relay.label, (relay.error, Instant::now()));
        }
        let due = async {
            match next {
                Some(next) => tokio::time::sleep_until(next.into()).await,
                None => pending().await,
            }
        };
        tokio::select! {
            changed = changes.changed() => match changed {
                Ok(()) => tokio::time::sleep(SETTLED).await,
                Err(_) => pending().await,
            },
            () = due => {}
        }
    }
}

/// Says which relay does not speak MPTCP, and when it does again.
pub(super) async fn mptcp(edge: &Edge) -> Infallible {
    let mut changes = edge.relay_changes();
    let mut told: BTreeSet<String> = BTreeSet::new();
    loop {
        let now: BTreeSet<String> =
            edge.relays().into_iter().filter(|relay| relay.without_mptcp).map(|relay| relay.label).collect();
        now.difference(&told).for_each(|relay| say(&status::without_mptcp(relay)));
        told.difference(&now).for_each(|relay| say(&format!("relay {relay}: MPTCP is spoken again")));
        told = now;
        if changes.changed().await.is_err() {
            pending::<()>().await;
        }
    }
}

/// Says which links connections to relays do not use, at the start and when that changes.
pub(super) async fn unused(mut links: watch::Receiver<Vec<UnusedLink>>) -> Infallible {
    let mut told: Vec<UnusedLink> = Vec::new();
    loop {
        if links.changed().await.is_err() {
            pending::<()>().await;
        }
        let now = links.borrow_and_update().clone();
        for link in now.iter().filter(|link| !told.contains(link)) {
            say(&format!("link {} is not used: {}", link.name, link.reason));
        }
        for link in told.iter().filter(|link| !now.iter().any(|other| other.name == link.name)) {
            say(&format!("link {}: the reason why it was not used has gone", link.name));
        }
        told = now;
    }
}

/// Says which links do not reach the relay and why, and when they do again. One line for each change.
pub(super) async fn failing(edge: &Edge) -> Infallible {
    let mut links = edge.failing_links();
    let mut told: Vec<FailingLink> = Vec::new();
    loop {
        if links.changed().await.is_err() {
            pending::<()>().await;
        }
        // An attempt that is late at first is refused a moment later, or another link is found: the last of these is the line.
        tokio::time::sleep(SETTLED).await;
        let now = links.borrow_and_update().clone();
        for link in &now {
            if !told.iter().any(|before| before.name == link.name && before.reason == link.reason) {
                let instead = link.alternative.as_ref().map_or_else(String::new, |other| format!("; {other} does"));
                match link.reason {
                    LinkFailure::MptcpStripped => say(&status::stripped(&link.name, link.alternative.as_deref())),
                    why => say(&format!(
                        "link {} {}: {}{instead}; it is tried again",
                        link.name,
                        status::lacks(edge.relays().iter().map(|relay| relay.failing)),
                        why.description()
                    )),
                }
            }
        }
        for link in told.iter().filter(|link| !now.iter().any(|other| other.name == link.name)) {
            match link.reason {
                LinkFailure::MptcpStripped => say(&format!("MPTCP is no longer stripped over {}", link.name)),
                _ => say(&format!("new connections begin over link {} again", link.name)),
            }
        }
        told = now;
    }
}

/// Says that the URL of the portal probe may be wrong or blocked.
pub(super) async fn portal_probe(mut doubted: watch::Receiver<bool>) -> Infallible {
    loop {
        if doubted.changed().await.is_err() {
            pending::<()>().await;
        }
        if *doubted.borrow_and_update() {
            say(
                "the portal probe is answered with something else than 204 over each link: its URL may be wrong or blocked (--portal-probe), \
                 or all links have captive portals; it counts against no link",
            );
        }
    }
}

/// Says what the service gives, and when it does not answer.
/// `refusal` says what becomes of flows `without` a relay.
pub(super) async fn fleet(
    edge: &Edge,
    view: Option<watch::Receiver<FleetStatus>>,
    without: WithoutRelay,
    refusal: &str,
) -> Infallible {
    let Some(mut view) = view else { pending().await };
    let (mut relay, mut silent, mut refused) = (None, false, None);
    loop {
        if view.changed().await.is_err() {
            pending::<()>().await;
        }
        let now = view.borrow_and_update().clone();
        if silent != now.error.is_some() {
            silent = now.error.is_some();
            match &now.error {
                Some(why) => {
                    let why = explained(why, Peer::Service);
                    match edge.relays().is_empty() {
                        true => say(&format!(
                            "the fleet's service does not answer: {why}; no relay is known: new flows {refusal}"
                        )),
                        false => say(&format!(
                            "the fleet's service does not answer: {why}; the relays that are known are used"
                        )),
                    }
                }
                None => say("the fleet's service answers again"),
            }
        }
        let reason = now.reason.filter(|reason| now.assignment.is_none() && *reason != NoRelayReason::Pending);
        if let Some(reason) = reason.filter(|reason| refused != Some(*reason)) {
            let what = match reason {
                _ if now.waiting => {
                    "new flows wait until a relay has room for them (--direct lets them go without one)"
                }
                NoRelayReason::NoGain if without == WithoutRelay::Refused => {
                    "no flow may go directly, so the relay in use is kept"
                }
                _ => "relays that it has named are used as they are",
            };
            say(&format!("the fleet's service keeps nothing for this edge ({}); {what}", reason.as_str()));
        }
        refused = if now.assignment.is_some() { None } else { reason.or(refused) };
        let given = now.assignment.map(|held| (held.relay, held.reservation));
        if given.is_some() && given != relay {
            relay = given;
            if let Some((relay, reserved)) = &relay {
                say(&format!("the fleet's service has given {relay}, with {reserved} kept for this edge"));
            }
        }
    }
}

/// Says when what is known of relays cannot be written down, and when it can be again.
pub(super) async fn state(mut trouble: watch::Receiver<Option<String>>) -> Infallible {
    loop {
        if trouble.changed().await.is_err() {
            pending::<()>().await;
        }
        match trouble.borrow_and_update().as_ref() {
            Some(why) => say(&status::not_kept(why)),
            None => say("what is known of relays is kept again"),
        }
    }
}

/// Says what on this host stops the LAN's packets, and when it does not any more.
pub(super) async fn obstacles(found: Option<watch::Receiver<Obstructions>>) -> Infallible {
    let Some(mut found) = found else { pending().await };
    let (mut told, mut not_checked): (Vec<String>, Vec<String>) = Default::default();
    loop {
        if found.changed().await.is_err() {
            pending::<()>().await;
        }
        let Obstructions { mended, stops, unchecked, .. } = found.borrow_and_update().clone();
        mended.iter().for_each(|line| say(line));
        stops.iter().filter(|line| !told.contains(line)).for_each(|line| say(line));
        if stops.is_empty() && !told.is_empty() {
            say(match unchecked.is_empty() {
                true => "no firewall and no setting of this host stops the LAN's packets any more",
                false => "nothing of what can be checked stops the LAN's packets",
            });
        }
        unchecked.iter().filter(|line| !not_checked.contains(line)).for_each(|line| say(line));
        (told, not_checked) = (stops, unchecked);
    }
}

/// Says which link the rest of a LAN's packets takes, at the start and when it is another one.
pub(super) async fn rest(mut rest: watch::Receiver<Option<UdpLinkState>>) -> Infallible {
    loop {
        if rest.changed().await.is_err() {
            pending::<()>().await;
        }
        if let Some(now) = rest.borrow_and_update().as_ref() {
            say(&format!("UDP and the rest of the LAN pass {}", status::over(now)));
        }
    }
}

/// Says when this host's own name queries leave over another link than its routes have it, why, and when they do not any more.
pub(super) async fn names(mut names: watch::Receiver<Option<NamesNow>>) -> Infallible {
    let mut told: Vec<String> = Vec::new();
    loop {
        if names.changed().await.is_err() {
            pending::<()>().await;
        }
        // A link that changes is followed by others within a moment.
        tokio::time::sleep(SETTLED).await;
        let lines: Vec<String> = names.borrow_and_update().iter().flat_map(status::names).collect();
        lines.iter().filter(|line| !told.contains(line)).for_each(|line| say(line));
        if lines.is_empty() && !told.is_empty() {
            say("this host's name queries leave as its own routes have it again");
        }
        told = lines;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_of_new_flows_is_that_of_the_newest_one() {
        let none = FlowStats::default();
        let mut carried = FlowStats { last_relay: Some("fra-1".to_owned()), ..none.clone() };
        carried.carried.insert("fra-1".to_owned(), 1);
        let way = Some(Way::Relay("fra-1".to_owned()));
        assert_eq!(Way::of(&none, &carried), way);
        // One that has ended says nothing; nor does one that a relay has refused.
        assert_eq!(Way::of(&carried, &FlowStats { open: 1, failed: 1, ..carried.clone() }), None);
        let refused = FlowStats { refused: 1, failed: 1, ..carried.clone() };
        assert_eq!(Way::of(&carried, &refused), Some(Way::Refused));
        let direct = FlowStats { direct: 1, last_relay: None, ..refused.clone() };
        assert_eq!(Way::of(&refused, &direct), Some(Way::Direct));
        let mut again = FlowStats { last_relay: carried.last_relay.clone(), ..direct.clone() };
        again.carried.insert("fra-1".to_owned(), 2);
        assert_eq!(Way::of(&direct, &again), way);
    }

    #[test]
    fn an_outage_soon_after_another_one_is_said_later_if_it_lasts() {
        let (mut told, began) = (Told::default(), Instant::now());
        let at = |seconds| began + Duration::from_secs(seconds);
        let relay = || Way::Relay("fra-1".to_owned());
        assert_eq!(told.note(at(0), Way::Refused), Some(Way::Refused));
        assert_eq!(told.note(at(1), relay()), Some(relay()));
        // Of many flows, each is refused.
        for second in 2..10 {
            assert_eq!((told.note(at(second), Way::Refused), told.due()), (None, Some(at(10))));
        }
        assert_eq!((told.note(at(10), Way::Refused), told.due()), (Some(Way::Refused), None));
        assert_eq!((told.note(at(11), Way::Refused), told.due()), (None, None));
        // Some are carried: that is said once, and that others are refused once in ten seconds.
        assert_eq!(told.note(at(12), relay()), Some(relay()));
        assert_eq!((told.note(at(13), Way::Refused), told.due()), (None, Some(at(20))));
        assert_eq!((told.note(at(14), relay()), told.due()), (None, None));
        assert_eq!(told.note(at(21), Way::Refused), Some(Way::Refused));
    }
}
