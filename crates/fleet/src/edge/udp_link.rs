//! Which link the rest of a LAN's packets takes: UDP, and whatever else one link alone has to carry.
//!
//! In: the links as they were seen to carry, and which one the host's own default route leads over. Out: a link, and why; none:
//! the host's own default route, as it is.
//!
//! 1. The best is the one that has shown the highest rate of those that are up, answer, and cost nothing by the byte. A metered one
//!    is taken where there is no other, one that does not answer where nothing else is up.
//! 2. A change gives the streams that run another address, which may end them. So a link is left at once only when it is down or
//!    does not answer; otherwise when the same other one was better for [`CALM`]: it costs nothing and this one does, or it has
//!    shown [`MORE`] of what this one has.
//! 3. A rate below [`KNOWN`] is none. What a link has shown counts for as long as the rest takes it, until it shows something else.
//! 4. The host's own default route counts until a rate has been known for [`FIRST`]: by then all links have had a look. Its link is
//!    kept if none is better by rule 2. Where that does not carry, another one is taken at once, known or not.

use std::time::Duration;

use marline_core::units::{Bitrate, Instant, Ratio};

use super::link_rates::LinkState;

/// chosen: what a handshake, a page or keeping alive send stays below it, and a live stream is above.
const MIN_KNOWN_RATE: Bitrate = Bitrate::from_bits_per_sec(250_000);
/// chosen: a call that breaks is worth it for half as much again, and not for what rates vary by.
const MIN_GAIN: Ratio = Ratio::from_percent(150);
/// chosen: a link that comes and goes within a minute does not take streams along.
const MIN_HOLD_TIME: Duration = Duration::from_secs(60);
/// chosen: five looks.
const INITIAL_DELAY: Duration = Duration::from_secs(10);

/// The way of the rest.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct UdpLinkState {
    /// The link; none: as the host's own default route has it.
    pub link: Option<String>,
    /// Why this one.
    pub reason: UdpLinkReason,
}

/// Why the rest takes its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UdpLinkReason {
    /// No link that is up has shown a rate yet.
    #[default]
    Unknown,
    /// When it was taken it had shown the highest rate of those that may be.
    Fastest,
    /// The host's own default route leads over it, and no other is much better.
    DefaultRoute,
    /// When it was taken its rate was not known, but the way before did not carry, or cost money.
    Replacement,
    /// The kernel refuses the way over the best one.
    KernelRefused,
}

impl UdpLinkReason {
    /// In a sentence.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Unknown => "no link that is up has shown a rate yet",
            Self::Fastest => "it has shown the highest rate",
            Self::DefaultRoute => "the host's own default route leads there, and no other link has shown much more",
            Self::Replacement => "the one before does not carry, or costs money",
            Self::KernelRefused => "the kernel refuses the way over the best link",
        }
    }
}

/// The choice.
#[derive(Debug, Default)]
pub(super) struct UdpLinkSelector {
    state: UdpLinkState,
    /// What the link has shown.
    peak: Bitrate,
    /// Who is better, and since when.
    candidate: Option<(String, Instant)>,
    /// Since when a rate is known.
    known_since: Option<Instant>,
}

impl UdpLinkSelector {
    pub(super) fn now(&self) -> &UdpLinkState {
        &self.state
    }

    /// Looks at the links; `own` is the one of the host's own default route.
    pub(super) fn update(&mut self, now: Instant, links: &[LinkState], default_link: Option<&str>) {
        let find_link = |name: &str| links.iter().find(|link| link.name == name);
        let Some(best) = best(links.iter().filter(|link| link.up)) else {
            return *self = Self::default();
        };
        match self.state.link.as_deref() {
            Some(current) => {
                match find_link(current).filter(|link| is_usable(link) || (link.up && !is_usable(best))) {
                    Some(current) => self.reconsider(now, current, best),
                    None => self.switch_to(best, None),
                }
            }
            None => self.choose_first(now, links, default_link.and_then(find_link), best),
        }
    }

    /// Rule 4.
    fn choose_first(
        &mut self,
        now: Instant,
        links: &[LinkState],
        default_link: Option<&LinkState>,
        best: &LinkState,
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

    /// Rule 2.
    fn reconsider(&mut self, now: Instant, current: &LinkState, best: &LinkState) {
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

    fn switch_to(&mut self, link: &LinkState, why: Option<UdpLinkReason>) {
        let peak = peak_rate(link);
        let default_reason = if peak.is_zero() { UdpLinkReason::Replacement } else { UdpLinkReason::Fastest };
        let state = UdpLinkState { link: Some(link.name.clone()), reason: why.unwrap_or(default_reason) };
        *self = Self { state, peak, candidate: None, known_since: None };
    }
}

/// The best one of these; of equals the first.
pub(super) fn best<'a>(links: impl DoubleEndedIterator<Item = &'a LinkState>) -> Option<&'a LinkState> {
    links.rev().max_by_key(|link| (preference(link), peak_rate(link)))
}

fn is_usable(link: &LinkState) -> bool {
    link.up && !link.unresponsive
}

/// What goes before rates: answers, costs nothing.
fn preference(link: &LinkState) -> (bool, bool) {
    (!link.unresponsive, !link.metered)
}

/// Rule 3.
fn peak_rate(link: &LinkState) -> Bitrate {
    if link.peak_rate < MIN_KNOWN_RATE { Bitrate::ZERO } else { link.peak_rate }
}

/// Whether it is worth leaving the other one, which has shown that much.
fn is_better(link: &LinkState, (other, other_peak): (&LinkState, Bitrate)) -> bool {
    let faster = !peak_rate(link).is_zero() && peak_rate(link) >= other_peak.share(MIN_GAIN);
    link.name != other.name
        && (preference(link) > preference(other) || (preference(link) == preference(other) && faster))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(name: &str, mbps: u64) -> LinkState {
        LinkState { name: name.into(), up: true, peak_rate: Bitrate::from_mbps(mbps), ..LinkState::default() }
    }

    fn at(seconds: u64) -> Instant {
        Instant::from_millis(seconds * 1000)
    }

    /// Looks each two seconds from one moment to another; gives what is taken then.
    fn run(selector: &mut UdpLinkSelector, (from, to): (u64, u64), links: &[LinkState]) -> Option<String> {
        (from..=to).step_by(2).for_each(|second| selector.update(at(second), links, Some("eth0")));
        selector.now().link.clone()
    }

    /// One that has taken the faster one of two.
    fn selector_on_faster_link() -> UdpLinkSelector {
        let mut selector = UdpLinkSelector::default();
        assert_eq!(run(&mut selector, (0, 10), &[link("eth0", 4), link("wlan0", 8)]).unwrap(), "wlan0");
        selector
    }

    #[test]
    fn the_hosts_own_route_counts_until_rates_have_been_known_for_a_while() {
        let mut selector = UdpLinkSelector::default();
        assert_eq!(run(&mut selector, (0, 100), &[link("eth0", 0), link("wlan0", 0)]), None);
        assert_eq!(selector.now().reason, UdpLinkReason::Unknown);
        let small = LinkState { peak_rate: Bitrate::from_bits_per_sec(200_000), ..link("wlan0", 0) };
        assert_eq!(run(&mut selector, (102, 200), &[link("eth0", 0), small]), None, "a handshake is no rate");
        assert_eq!(run(&mut selector, (202, 210), &[link("eth0", 4), link("wlan0", 8)]), None);
        assert_eq!(run(&mut selector, (212, 212), &[link("eth0", 4), link("wlan0", 8)]).unwrap(), "wlan0");
        assert_eq!(selector.now().reason, UdpLinkReason::Fastest);
    }

    #[test]
    fn the_link_of_the_hosts_own_route_is_kept_if_none_is_much_better() {
        let mut selector = UdpLinkSelector::default();
        assert_eq!(run(&mut selector, (0, 10), &[link("wlan0", 5), link("eth0", 4)]).unwrap(), "eth0");
        assert_eq!(selector.now().reason, UdpLinkReason::DefaultRoute);
        assert_eq!(run(&mut selector, (12, 600), &[link("wlan0", 5), link("eth0", 4)]).unwrap(), "eth0");
    }

    #[test]
    fn where_the_hosts_own_route_does_not_carry_another_link_is_taken_at_once() {
        for dead in
            [LinkState { up: false, ..link("eth0", 9) }, LinkState { unresponsive: true, ..link("eth0", 9) }]
        {
            let mut selector = UdpLinkSelector::default();
            assert_eq!(run(&mut selector, (0, 0), &[dead, link("wlan0", 0)]).unwrap(), "wlan0");
            assert_eq!(selector.now().reason, UdpLinkReason::Replacement);
        }
    }

    #[test]
    fn a_link_that_is_down_gone_or_silent_is_left_at_once() {
        let others = [link("eth0", 1), link("wwan0", 2)];
        let down = LinkState { up: false, ..link("wlan0", 8) };
        let silent = LinkState { unresponsive: true, ..link("wlan0", 8) };
        for dead in [Some(down), Some(silent), None] {
            let links: Vec<LinkState> = others.iter().cloned().chain(dead).collect();
            assert_eq!(run(&mut selector_on_faster_link(), (12, 12), &links).unwrap(), "wwan0");
        }
        let all_silent = others.map(|link| LinkState { unresponsive: true, ..link });
        let links = [&all_silent[..], &[LinkState { unresponsive: true, ..link("wlan0", 8) }]].concat();
        assert_eq!(run(&mut selector_on_faster_link(), (12, 12), &links).unwrap(), "wlan0", "none is better");
        let mut selector = selector_on_faster_link();
        let down: Vec<LinkState> = links.into_iter().map(|link| LinkState { up: false, ..link }).collect();
        assert_eq!(run(&mut selector, (12, 12), &down), None);
        assert_eq!(selector.now().reason, UdpLinkReason::Unknown);
    }

    #[test]
    fn another_one_must_have_shown_half_as_much_again_for_a_minute() {
        let mut selector = selector_on_faster_link();
        assert_eq!(run(&mut selector, (12, 600), &[link("eth0", 11), link("wlan0", 8)]).unwrap(), "wlan0");
        let much = [link("eth0", 12), link("wlan0", 8)];
        assert_eq!(run(&mut selector, (602, 660), &much).unwrap(), "wlan0");
        assert_eq!(run(&mut selector, (662, 662), &much).unwrap(), "eth0");
        let mut selector = selector_on_faster_link();
        run(&mut selector, (12, 60), &much);
        run(&mut selector, (62, 62), &[link("eth0", 0), link("wlan0", 8)]);
        assert_eq!(run(&mut selector, (64, 122), &much).unwrap(), "wlan0", "the minute begins anew");
    }

    #[test]
    fn what_a_link_has_shown_is_not_forgotten_for_lack_of_use() {
        let mut selector = selector_on_faster_link();
        assert_eq!(run(&mut selector, (12, 600), &[link("eth0", 1), link("wlan0", 0)]).unwrap(), "wlan0");
        assert_eq!(
            run(&mut selector, (602, 662), &[link("eth0", 2), link("wlan0", 1)]).unwrap(),
            "eth0",
            "it is slow now"
        );
    }

    #[test]
    fn a_metered_link_is_taken_only_where_there_is_no_other() {
        let metered = LinkState { metered: true, ..link("wwan0", 90) };
        let mut selector = UdpLinkSelector::default();
        assert_eq!(run(&mut selector, (0, 10), &[metered.clone(), link("eth0", 1)]).unwrap(), "eth0");
        let down = LinkState { up: false, ..link("eth0", 1) };
        assert_eq!(run(&mut selector, (12, 12), &[metered.clone(), down]).unwrap(), "wwan0");
        assert_eq!(
            run(&mut selector, (14, 72), &[metered.clone(), link("eth0", 0)]).unwrap(),
            "wwan0",
            "it may go again"
        );
        assert_eq!(run(&mut selector, (74, 74), &[metered, link("eth0", 0)]).unwrap(), "eth0");
    }
}
