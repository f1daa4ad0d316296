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

use super::links::LinkNow;

/// chosen: what a handshake, a page or keeping alive send stays below it, and a live stream is above.
const KNOWN: Bitrate = Bitrate::from_bits_per_sec(250_000);
/// chosen: a call that breaks is worth it for half as much again, and not for what rates vary by.
const MORE: Ratio = Ratio::from_percent(150);
/// chosen: a link that comes and goes within a minute does not take streams along.
const CALM: Duration = Duration::from_secs(60);
/// chosen: five looks.
const FIRST: Duration = Duration::from_secs(10);

/// The way of the rest.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RestNow {
    /// The link; none: as the host's own default route has it.
    pub link: Option<String>,
    /// Why this one.
    pub why: RestWhy,
}

/// Why the rest takes its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RestWhy {
    /// No link that is up has shown a rate yet.
    #[default]
    Unknown,
    /// When it was taken it had shown the highest rate of those that may be.
    Fastest,
    /// The host's own default route leads over it, and no other is much better.
    Kept,
    /// When it was taken its rate was not known, but the way before did not carry, or cost money.
    Carries,
    /// The kernel refuses the way over the best one.
    Refused,
}

impl RestWhy {
    /// In a sentence.
    pub fn words(self) -> &'static str {
        match self {
            Self::Unknown => "no link that is up has shown a rate yet",
            Self::Fastest => "it has shown the highest rate",
            Self::Kept => "the host's own default route leads there, and no other link has shown much more",
            Self::Carries => "the one before does not carry, or costs money",
            Self::Refused => "the kernel refuses the way over the best link",
        }
    }
}

/// The choice.
#[derive(Debug, Default)]
pub(super) struct Rest {
    held: RestNow,
    /// What the link has shown.
    shown: Bitrate,
    /// Who is better, and since when.
    rival: Option<(String, Instant)>,
    /// Since when a rate is known.
    known: Option<Instant>,
}

impl Rest {
    pub(super) fn now(&self) -> &RestNow {
        &self.held
    }

    /// Looks at the links; `own` is the one of the host's own default route.
    pub(super) fn look(&mut self, now: Instant, links: &[LinkNow], own: Option<&str>) {
        let named = |name: &str| links.iter().find(|link| link.name == name);
        let Some(best) = best(links.iter().filter(|link| link.up)) else {
            return *self = Self::default();
        };
        match self.held.link.as_deref() {
            Some(held) => match named(held).filter(|link| carries(link) || (link.up && !carries(best))) {
                Some(held) => self.stay(now, held, best),
                None => self.take(best, None),
            },
            None => self.begin(now, links, own.and_then(named), best),
        }
    }

    /// Rule 4.
    fn begin(&mut self, now: Instant, links: &[LinkNow], own: Option<&LinkNow>, best: &LinkNow) {
        if own.is_some_and(|own| !carries(own)) && carries(best) {
            return self.take(best, None);
        }
        if !links.iter().any(|link| link.up && !shown(link).is_zero()) {
            return self.known = None;
        }
        if now.since(*self.known.get_or_insert(now)) >= FIRST {
            match own.filter(|own| !is_better(best, (own, shown(own)))) {
                Some(own) => self.take(own, Some(RestWhy::Kept)),
                None => self.take(best, None),
            }
        }
    }

    /// Rule 2.
    fn stay(&mut self, now: Instant, held: &LinkNow, best: &LinkNow) {
        if !shown(held).is_zero() {
            self.shown = shown(held);
        }
        if !is_better(best, (held, self.shown)) {
            return self.rival = None;
        }
        match &self.rival {
            Some((name, since)) if *name == best.name && now.since(*since) >= CALM => self.take(best, None),
            Some((name, _)) if *name == best.name => {}
            _ => self.rival = Some((best.name.clone(), now)),
        }
    }

    fn take(&mut self, link: &LinkNow, why: Option<RestWhy>) {
        let shown = shown(link);
        let found = if shown.is_zero() { RestWhy::Carries } else { RestWhy::Fastest };
        let held = RestNow { link: Some(link.name.clone()), why: why.unwrap_or(found) };
        *self = Self { held, shown, rival: None, known: None };
    }
}

/// The best one of these; of equals the first.
pub(super) fn best<'a>(links: impl DoubleEndedIterator<Item = &'a LinkNow>) -> Option<&'a LinkNow> {
    links.rev().max_by_key(|link| (class(link), shown(link)))
}

fn carries(link: &LinkNow) -> bool {
    link.up && !link.silent
}

/// What goes before rates: answers, costs nothing.
fn class(link: &LinkNow) -> (bool, bool) {
    (!link.silent, !link.metered)
}

/// Rule 3.
fn shown(link: &LinkNow) -> Bitrate {
    if link.most < KNOWN { Bitrate::ZERO } else { link.most }
}

/// Whether it is worth leaving the other one, which has shown that much.
fn is_better(link: &LinkNow, (other, other_shown): (&LinkNow, Bitrate)) -> bool {
    let faster = !shown(link).is_zero() && shown(link) >= other_shown.share(MORE);
    link.name != other.name && (class(link) > class(other) || (class(link) == class(other) && faster))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(name: &str, mbps: u64) -> LinkNow {
        LinkNow { name: name.into(), up: true, most: Bitrate::from_mbps(mbps), ..LinkNow::default() }
    }

    fn at(seconds: u64) -> Instant {
        Instant::from_millis(seconds * 1000)
    }

    /// Looks each two seconds from one moment to another; gives what is taken then.
    fn run(rest: &mut Rest, (from, to): (u64, u64), links: &[LinkNow]) -> Option<String> {
        (from..=to).step_by(2).for_each(|second| rest.look(at(second), links, Some("eth0")));
        rest.now().link.clone()
    }

    /// One that has taken the faster one of two.
    fn taken() -> Rest {
        let mut rest = Rest::default();
        assert_eq!(run(&mut rest, (0, 10), &[link("eth0", 4), link("wlan0", 8)]).unwrap(), "wlan0");
        rest
    }

    #[test]
    fn the_hosts_own_route_counts_until_rates_have_been_known_for_a_while() {
        let mut rest = Rest::default();
        assert_eq!(run(&mut rest, (0, 100), &[link("eth0", 0), link("wlan0", 0)]), None);
        assert_eq!(rest.now().why, RestWhy::Unknown);
        let small = LinkNow { most: Bitrate::from_bits_per_sec(200_000), ..link("wlan0", 0) };
        assert_eq!(run(&mut rest, (102, 200), &[link("eth0", 0), small]), None, "a handshake is no rate");
        assert_eq!(run(&mut rest, (202, 210), &[link("eth0", 4), link("wlan0", 8)]), None);
        assert_eq!(run(&mut rest, (212, 212), &[link("eth0", 4), link("wlan0", 8)]).unwrap(), "wlan0");
        assert_eq!(rest.now().why, RestWhy::Fastest);
    }

    #[test]
    fn the_link_of_the_hosts_own_route_is_kept_if_none_is_much_better() {
        let mut rest = Rest::default();
        assert_eq!(run(&mut rest, (0, 10), &[link("wlan0", 5), link("eth0", 4)]).unwrap(), "eth0");
        assert_eq!(rest.now().why, RestWhy::Kept);
        assert_eq!(run(&mut rest, (12, 600), &[link("wlan0", 5), link("eth0", 4)]).unwrap(), "eth0");
    }

    #[test]
    fn where_the_hosts_own_route_does_not_carry_another_link_is_taken_at_once() {
        for dead in [LinkNow { up: false, ..link("eth0", 9) }, LinkNow { silent: true, ..link("eth0", 9) }] {
            let mut rest = Rest::default();
            assert_eq!(run(&mut rest, (0, 0), &[dead, link("wlan0", 0)]).unwrap(), "wlan0");
            assert_eq!(rest.now().why, RestWhy::Carries);
        }
    }

    #[test]
    fn a_link_that_is_down_gone_or_silent_is_left_at_once() {
        let others = [link("eth0", 1), link("wwan0", 2)];
        let down = LinkNow { up: false, ..link("wlan0", 8) };
        let silent = LinkNow { silent: true, ..link("wlan0", 8) };
        for dead in [Some(down), Some(silent), None] {
            let links: Vec<LinkNow> = others.iter().cloned().chain(dead).collect();
            assert_eq!(run(&mut taken(), (12, 12), &links).unwrap(), "wwan0");
        }
        let all_silent = others.map(|link| LinkNow { silent: true, ..link });
        let links = [&all_silent[..], &[LinkNow { silent: true, ..link("wlan0", 8) }]].concat();
        assert_eq!(run(&mut taken(), (12, 12), &links).unwrap(), "wlan0", "none is better");
        let mut rest = taken();
        let down: Vec<LinkNow> = links.into_iter().map(|link| LinkNow { up: false, ..link }).collect();
        assert_eq!(run(&mut rest, (12, 12), &down), None);
        assert_eq!(rest.now().why, RestWhy::Unknown);
    }

    #[test]
    fn another_one_must_have_shown_half_as_much_again_for_a_minute() {
        let mut rest = taken();
        assert_eq!(run(&mut rest, (12, 600), &[link("eth0", 11), link("wlan0", 8)]).unwrap(), "wlan0");
        let much = [link("eth0", 12), link("wlan0", 8)];
        assert_eq!(run(&mut rest, (602, 660), &much).unwrap(), "wlan0");
        assert_eq!(run(&mut rest, (662, 662), &much).unwrap(), "eth0");
        let mut rest = taken();
        run(&mut rest, (12, 60), &much);
        run(&mut rest, (62, 62), &[link("eth0", 0), link("wlan0", 8)]);
        assert_eq!(run(&mut rest, (64, 122), &much).unwrap(), "wlan0", "the minute begins anew");
    }

    #[test]
    fn what_a_link_has_shown_is_not_forgotten_for_lack_of_use() {
        let mut rest = taken();
        assert_eq!(run(&mut rest, (12, 600), &[link("eth0", 1), link("wlan0", 0)]).unwrap(), "wlan0");
        assert_eq!(
            run(&mut rest, (602, 662), &[link("eth0", 2), link("wlan0", 1)]).unwrap(),
            "eth0",
            "it is slow now"
        );
    }

    #[test]
    fn a_metered_link_is_taken_only_where_there_is_no_other() {
        let metered = LinkNow { metered: true, ..link("wwan0", 90) };
        let mut rest = Rest::default();
        assert_eq!(run(&mut rest, (0, 10), &[metered.clone(), link("eth0", 1)]).unwrap(), "eth0");
        let down = LinkNow { up: false, ..link("eth0", 1) };
        assert_eq!(run(&mut rest, (12, 12), &[metered.clone(), down]).unwrap(), "wwan0");
        assert_eq!(
            run(&mut rest, (14, 72), &[metered.clone(), link("eth0", 0)]).unwrap(),
            "wwan0",
            "it may go again"
        );
        assert_eq!(run(&mut rest, (74, 74), &[metered, link("eth0", 0)]).unwrap(), "eth0");
    }
}
