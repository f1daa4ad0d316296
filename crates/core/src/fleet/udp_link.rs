//! Choice of the UDP link: the link for LAN packets that no tunnel carries: UDP, and everything else that has to use a single link.
//!
//! The inputs are the observed links and the link of the host's own default route. The result is a link and the reason, or none: then
//! packets follow the host's own default route.
//!
//! 1. The best link has the highest observed rate of those that are up, responsive and not metered. A metered link is used only if there is
//!    no other; an unresponsive one only if nothing else is up.
//! 2. A change gives running streams another source address, which may end them. Therefore a link is left at once only if it is down or
//!    unresponsive. Otherwise the same other link must be better for `MIN_HOLD_TIME`: it is not metered and the current one is, or its
//!    rate is `MIN_GAIN` of the current one's.
//! 3. A rate below `MIN_KNOWN_RATE` counts as unknown. The rate that the current link has shown is kept until it shows another known
//!    rate.
//! 4. The host's own default route is used until some link's rate has been known for `INITIAL_DELAY`: by then all links have been
//!    sampled. Its link is kept if no other one is better by rule 2. If it is not usable, another link is taken at once, whether its rate
//!    is known or not.

use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::units::{Bitrate, Instant, Ratio};

/// Our choice: handshakes, a web page or keep-alives stay below it, and a live stream is above.
const MIN_KNOWN_RATE: Bitrate = Bitrate::from_bits_per_sec(250_000);
/// Our choice: a gain of half is worth a broken call; the usual variation of rates is not.
const MIN_GAIN: Ratio = Ratio::from_percent(150);
/// Our choice: a link that appears and disappears within a minute does not move streams.
const MIN_HOLD_TIME: Duration = Duration::from_secs(60);
/// Our choice: five samples.
const INITIAL_DELAY: Duration = Duration::from_secs(10);

/// What was observed of a link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObservedLink {
    /// The interface.
    pub name: String,
    /// Whether it is usable.
    pub up: bool,
    /// Whether packets sent over it are not answered.
    pub unresponsive: bool,
    /// Whether its traffic costs money.
    pub metered: bool,
    /// The highest sending rate between two samples in the last half hour.
    pub peak_rate: Bitrate,
}

/// A sample of all links.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkSample {
    /// The links.
    pub links: Vec<ObservedLink>,
    /// The one with the host's own default route.
    pub default_link: Option<String>,
}

/// The link for LAN packets without a tunnel, and the reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UdpLinkState {
    /// The interface; `None`: packets follow the host's own default route.
    pub link: Option<String>,
    /// Why this link was chosen.
    pub reason: UdpLinkReason,
}

/// Why LAN packets take their link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UdpLinkReason {
    /// No link that is up has shown a rate yet, or not for long enough (rule 4).
    #[default]
    Unknown,
    /// When it was chosen it had the highest rate of the eligible links.
    Fastest,
    /// It has the host's own default route, and no other link is much better.
    DefaultRoute,
    /// Its rate was not known when it was chosen, but the previous link was not usable or was metered.
    Replacement,
    /// The kernel refused the route over the best link.
    KernelRefused,
}

impl UdpLinkReason {
    /// The reason as a clause for a log line or status.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Unknown => "no link that is up has shown a rate yet",
            Self::Fastest => "it has shown the highest rate",
            Self::DefaultRoute => "it has the host's own default route, and no other link is much faster",
            Self::Replacement => "the previous link is not usable, or is metered",
            Self::KernelRefused => "the kernel refused the route over the best link",
        }
    }
}

/// The selection with its hysteresis: a [`Machine`] without a deadline, because the hold times are compared with the times of the samples,
/// two seconds apart. The output is the new state when it has changed.
#[derive(Debug, Default)]
pub struct UdpLinkSelector {
    now: Instant,
    output: Option<UdpLinkState>,
    state: UdpLinkState,
    /// The current link's last peak rate that counted as known (rule 3).
    peak: Bitrate,
    /// The link that is better than the current one, and since when.
    candidate: Option<(String, Instant)>,
    /// Since when the rate of some link is known.
    known_since: Option<Instant>,
}

impl UdpLinkSelector {
    /// The current choice.
    pub fn state(&self) -> &UdpLinkState {
        &self.state
    }

    /// Evaluates a sample of the links; `default_link` is the one of the host's own default route.
    fn update(&mut self, now: Instant, links: &[ObservedLink], default_link: Option<&str>) {
        let find_link = |name: &str| links.iter().find(|link| link.name == name);
        let Some(best) = best(links.iter().filter(|link| link.up)) else {
            // No link is up: the host's routes apply, and the known rates are dropped.
            return *self = Self { now: self.now, ..Self::default() };
        };
        match self.state.link.as_deref() {
            Some(current) => {
                // An unresponsive link is kept only while no other one is usable.
                match find_link(current).filter(|link| is_usable(link) || (link.up && !is_usable(best))) {
                    Some(current) => self.reconsider(now, current, best),
                    None => self.switch_to(best, None),
                }
            }
            None => self.choose_first(now, links, default_link.and_then(find_link), best),
        }
    }

    /// Keeps the host's own default route, or chooses the first link (rule 4).
    fn choose_first(
        &mut self,
        now: Instant,
        links: &[ObservedLink],
        default_link: Option<&ObservedLink>,
        best: &ObservedLink,
    ) {
        if default_link.is_some_and(|link| !is_usable(link)) && is_usable(best) {
            return self.switch_to(best, None);
        }
        if !links.iter().any(|link| link.up && !peak_rate(link).is_zero()) {
            return self.known_since = None;
        }
        if now.since(*self.known_since.get_or_insert(now)) >= INITIAL_DELAY {
            match default_link.filter(|link| !is_better(best, (link, peak_rate(link)))) {
                Some(default_link) => self.switch_to(default_link, Some(UdpLinkReason::DefaultRoute)),
                None => self.switch_to(best, None),
            }
        }
    }

    /// Keeps the current link, or switches after the hold time (rule 2).
    fn reconsider(&mut self, now: Instant, current: &ObservedLink, best: &ObservedLink) {
        if !peak_rate(current).is_zero() {
            self.peak = peak_rate(current);
        }
        if !is_better(best, (current, self.peak)) {
            return self.candidate = None;
        }
        match &self.candidate {
            Some((name, since)) if *name == best.name && now.since(*since) >= MIN_HOLD_TIME => {
                self.switch_to(best, None)
            }
            Some((name, _)) if *name == best.name => {}
            _ => self.candidate = Some((best.name.clone(), now)),
        }
    }

    fn switch_to(&mut self, link: &ObservedLink, why: Option<UdpLinkReason>) {
        let peak = peak_rate(link);
        let default_reason = if peak.is_zero() { UdpLinkReason::Replacement } else { UdpLinkReason::Fastest };
        let state = UdpLinkState { link: Some(link.name.clone()), reason: why.unwrap_or(default_reason) };
        *self = Self { state, peak, candidate: None, known_since: None, now: self.now, output: None };
    }
}

impl Machine for UdpLinkSelector {
    type Input = LinkSample;
    type Output = UdpLinkState;
    type Reason = ();

    fn handle(&mut self, now: Instant, sample: LinkSample) {
        self.now = self.now.max(now);
        let previous = self.state.clone();
        self.update(self.now, &sample.links, sample.default_link.as_deref());
        self.output = Some(self.state.clone()).filter(|state| *state != previous);
    }

    fn tick(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }

    fn poll(&mut self) -> Option<UdpLinkState> {
        self.output.take()
    }

    fn deadline(&self) -> Option<(Instant, ())> {
        None
    }
}

/// The best of these links; the first one of equals.
pub fn best<'a>(links: impl DoubleEndedIterator<Item = &'a ObservedLink>) -> Option<&'a ObservedLink> {
    links.rev().max_by_key(|link| (preference(link), peak_rate(link)))
}

fn is_usable(link: &ObservedLink) -> bool {
    link.up && !link.unresponsive
}

/// Criteria before the rate: responsive, then not metered.
fn preference(link: &ObservedLink) -> (bool, bool) {
    (!link.unresponsive, !link.metered)
}

/// The peak rate, or zero if it counts as unknown (rule 3).
fn peak_rate(link: &ObservedLink) -> Bitrate {
    if link.peak_rate < MIN_KNOWN_RATE { Bitrate::ZERO } else { link.peak_rate }
}

/// Whether it is worth leaving `other`, whose rate is `other_peak`, for `link`.
fn is_better(link: &ObservedLink, (other, other_peak): (&ObservedLink, Bitrate)) -> bool {
    let faster = !peak_rate(link).is_zero() && peak_rate(link) >= other_peak.share(MIN_GAIN);
    link.name != other.name
        && (preference(link) > preference(other) || (preference(link) == preference(other) && faster))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(name: &str, mbps: u64) -> ObservedLink {
        ObservedLink { name: name.into(), up: true, peak_rate: Bitrate::from_mbps(mbps), ..ObservedLink::default() }
    }

    fn at(seconds: u64) -> Instant {
        Instant::from_millis(seconds * 1000)
    }

    /// Updates each two seconds from one time to another; returns the link chosen at the end.
    fn run(selector: &mut UdpLinkSelector, (from, to): (u64, u64), links: &[ObservedLink]) -> Option<String> {
        (from..=to).step_by(2).for_each(|second| selector.update(at(second), links, Some("eth0")));
        selector.state().link.clone()
    }

    /// A selector that has chosen the faster one of two links.
    fn selector_on_faster_link() -> UdpLinkSelector {
        let mut selector = UdpLinkSelector::default();
        assert_eq!(run(&mut selector, (0, 10), &[link("eth0", 4), link("wlan0", 8)]).unwrap(), "wlan0");
        selector
    }

    #[test]
    fn the_hosts_default_route_is_used_until_rates_have_been_known_for_a_while() {
        let mut selector = UdpLinkSelector::default();
        assert_eq!(run(&mut selector, (0, 100), &[link("eth0", 0), link("wlan0", 0)]), None);
        assert_eq!(selector.state().reason, UdpLinkReason::Unknown);
        let small = ObservedLink { peak_rate: Bitrate::from_bits_per_sec(200_000), ..link("wlan0", 0) };
        assert_eq!(
            run(&mut selector, (102, 200), &[link("eth0", 0), small]),
            None,
            "the rate of a handshake does not count"
        );
        assert_eq!(run(&mut selector, (202, 210), &[link("eth0", 4), link("wlan0", 8)]), None);
        assert_eq!(run(&mut selector, (212, 212), &[link("eth0", 4), link("wlan0", 8)]).unwrap(), "wlan0");
        assert_eq!(selector.state().reason, UdpLinkReason::Fastest);
    }

    #[test]
    fn the_link_of_the_default_route_is_kept_if_no_other_is_much_better() {
        let mut selector = UdpLinkSelector::default();
        assert_eq!(run(&mut selector, (0, 10), &[link("wlan0", 5), link("eth0", 4)]).unwrap(), "eth0");
        assert_eq!(selector.state().reason, UdpLinkReason::DefaultRoute);
        assert_eq!(run(&mut selector, (12, 600), &[link("wlan0", 5), link("eth0", 4)]).unwrap(), "eth0");
    }

    #[test]
    fn another_link_is_taken_at_once_if_that_of_the_default_route_is_not_usable() {
        for dead in
            [ObservedLink { up: false, ..link("eth0", 9) }, ObservedLink { unresponsive: true, ..link("eth0", 9) }]
        {
            let mut selector = UdpLinkSelector::default();
            assert_eq!(run(&mut selector, (0, 0), &[dead, link("wlan0", 0)]).unwrap(), "wlan0");
            assert_eq!(selector.state().reason, UdpLinkReason::Replacement);
        }
    }

    #[test]
    fn a_link_that_is_down_removed_or_unresponsive_is_left_at_once() {
        let others = [link("eth0", 1), link("wwan0", 2)];
        let down = ObservedLink { up: false, ..link("wlan0", 8) };
        let silent = ObservedLink { unresponsive: true, ..link("wlan0", 8) };
        for dead in [Some(down), Some(silent), None] {
            let links: Vec<ObservedLink> = others.iter().cloned().chain(dead).collect();
            assert_eq!(run(&mut selector_on_faster_link(), (12, 12), &links).unwrap(), "wwan0");
        }
        let all_silent = others.map(|link| ObservedLink { unresponsive: true, ..link });
        let links = [&all_silent[..], &[ObservedLink { unresponsive: true, ..link("wlan0", 8) }]].concat();
        assert_eq!(run(&mut selector_on_faster_link(), (12, 12), &links).unwrap(), "wlan0", "none is better");
        let mut selector = selector_on_faster_link();
        let down: Vec<ObservedLink> = links.into_iter().map(|link| ObservedLink { up: false, ..link }).collect();
        assert_eq!(run(&mut selector, (12, 12), &down), None);
        assert_eq!(selector.state().reason, UdpLinkReason::Unknown);
    }

    #[test]
    fn another_link_must_be_faster_by_half_for_a_minute() {
        let mut selector = selector_on_faster_link();
        assert_eq!(run(&mut selector, (12, 600), &[link("eth0", 11), link("wlan0", 8)]).unwrap(), "wlan0");
        let much_faster = [link("eth0", 12), link("wlan0", 8)];
        assert_eq!(run(&mut selector, (602, 660), &much_faster).unwrap(), "wlan0");
        assert_eq!(run(&mut selector, (662, 662), &much_faster).unwrap(), "eth0");
        let mut selector = selector_on_faster_link();
        run(&mut selector, (12, 60), &much_faster);
        run(&mut selector, (62, 62), &[link("eth0", 0), link("wlan0", 8)]);
        assert_eq!(run(&mut selector, (64, 122), &much_faster).unwrap(), "wlan0", "the minute starts again");
    }

    #[test]
    fn the_known_rate_of_an_idle_link_is_kept() {
        let mut selector = selector_on_faster_link();
        assert_eq!(run(&mut selector, (12, 600), &[link("eth0", 1), link("wlan0", 0)]).unwrap(), "wlan0");
        assert_eq!(
            run(&mut selector, (602, 662), &[link("eth0", 2), link("wlan0", 1)]).unwrap(),
            "eth0",
            "it is slow now"
        );
    }

    #[test]
    fn a_metered_link_is_taken_only_if_there_is_no_other() {
        let metered = ObservedLink { metered: true, ..link("wwan0", 90) };
        let mut selector = UdpLinkSelector::default();
        assert_eq!(run(&mut selector, (0, 10), &[metered.clone(), link("eth0", 1)]).unwrap(), "eth0");
        let down = ObservedLink { up: false, ..link("eth0", 1) };
        assert_eq!(run(&mut selector, (12, 12), &[metered.clone(), down]).unwrap(), "wwan0");
        assert_eq!(
            run(&mut selector, (14, 72), &[metered.clone(), link("eth0", 0)]).unwrap(),
            "wwan0",
            "it may fail again"
        );
        assert_eq!(run(&mut selector, (74, 74), &[metered, link("eth0", 0)]).unwrap(), "eth0");
    }
}
