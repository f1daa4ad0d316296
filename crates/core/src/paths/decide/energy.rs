//! Ours: the set of links with the least expected energy for what is expected to come.
//!
//! In: rates of the host's links, the state of its radios, the volume of its busy connections. Out: a set of links.
//!
//! 1. What a set costs is its power at its rates over the time that the rest takes, and for each radio a promotion if it
//!    is idle and the tail that begins anew, less what is left of a tail under way: that is drawn in any case. A radio
//!    that is awake costs its extension alone, and a radio that is left costs nothing more.
//! 2. The rest is what has passed ([`Conn::expected`]). Sizes are heavy-tailed (Crovella and Bestavros, "Self-similarity
//!    in World Wide Web traffic", 1997: P(size > x) ~ x^-α, 1 < α < 2), for which the expected rest is volume ÷ (α − 1):
//!    proportional to what has come. With α = 2 it is the volume itself, and buying when what the dearer way has cost
//!    too much equals the price is the ski rental's rule: never more than twice as dear as knowing the end.
//! 3. Before κ bytes or τ nothing is bought (eMPTCP §3.5). After, the rest is [`LARGE`] at least: the many small ones are
//!    out of the count by then.
//! 4. Rates are those of all connections together, as the radios are: a slow server is no slow link. Medians of two
//!    seconds: a dip does not wake a radio.
//! 5. A change must save [`SAVING`] of all that is to come, beside its own cost; that is eMPTCP's 10 % of a rate, in
//!    joules. Changes come [`DWELL`] apart, but for broken links.
//! 6. One link instead of more for energy alone may cost time (that is the profile); but a set that leaves out the home
//!    link must keep [`PACE`] of the rate, because nothing tells when the home link is good again; and of links whose
//!    rates were measured.
//!
//! The published rule, per-byte energy of an endless transfer, is rule 1 with an endless rest and no radio state.

use super::super::conn::Conn;
use super::super::host::Host;
use super::super::links::Links;
use super::super::reason::Reason;
use super::{Choice, guard};
use crate::energy::{Direction, State};
use crate::link::LinkKind;
use crate::units::{Bitrate, DataSize, Duration, Energy, Ratio};

use alloc::vec::Vec;

/// The least rest of a connection that has passed κ or τ. chosen: 8 MB, so that an LTE link that was never used (5 Mbit/s)
/// is bought at τ for Wi-Fi below 1.2 Mbit/s, as the paper's "bad" is, and not for 2 to 6 Mbit/s in 16 MB, where its
/// promotion and tail are more than it saves (with `emptcp-s3`).
const LARGE: DataSize = DataSize::from_bytes(8_000_000);
/// A change must save this of what the rest costs. chosen: what 10 % of a threshold's rate come to in energy (2 to 4 %).
const SAVING: Ratio = Ratio::from_ppm(30_000);
/// The time between changes. chosen: half the median's memory, after the samples that are thrown away.
const DWELL: Duration = Duration::from_millis(1500);
/// See rule 6. chosen: within the 3 % by which time may lie behind the published controller.
const PACE: Ratio = Ratio::from_ppm(970_000);
/// Sets of more links than this are not enumerated but grown link by link.
const ENUMERATED: u32 = 6;

/// What a set of links costs.
#[derive(Clone, Copy, Debug)]
struct Plan {
    links: Links,
    rate: Bitrate,
    cost: Energy,
    /// The part of it that wakes radios.
    fixed: Energy,
}

impl Conn {
    /// What is expected to come yet.
    pub(in super::super) fn expected(&self) -> DataSize {
        let passed = DataSize::from_bytes(self.volume);
        if self.admitted { passed.max(LARGE) } else { passed }
    }

    pub(super) fn cheapest(&mut self, host: &Host, usable: Links, home: usize) -> Choice {
        let interval = self.interval(host);
        self.admit(&host.config, host.now, interval);
        let now = self.active.and(usable);
        let now = if now.is_empty() { Links::one(home) } else { now };
        if usable.len() == 1 {
            return Choice::new(usable, Reason::Only { link: home });
        }
        if !self.admitted {
            return Choice::new(now, Reason::Waiting { link: home, volume: DataSize::from_bytes(self.volume) });
        }
        if let Some(choice) = self.guarded(host, usable, now, guard::Aim::Energy) {
            return choice;
        }
        let rest = DataSize::from_bytes(host.rest.max(self.expected().bytes()));
        let stay = plan(host, now, rest);
        let all = plans(host, usable, rest);
        let known = |links: Links| links.iter().all(|at| host.link(at).is_some_and(|link| link.known().is_some()));
        let fit = |plan: &&Plan| {
            let home_too = plan.rate + host.link(home).map(|link| link.rate(&host.config)).unwrap_or_default();
            plan.links.has(home) || known(plan.links) && plan.rate >= home_too.share(PACE)
        };
        let best = all.iter().filter(fit).min_by_key(|plan| (plan.cost, plan.links.len())).copied().unwrap_or(stay);
        let worth = best.cost + stay.cost_share() < stay.cost;
        // A path that has just been given a subflow has no rate yet that could speak against it.
        let young = host.now.since(self.since) < DWELL || self.is_still(host.now, interval);
        if best.links == now || young || !worth {
            let other = all.iter().filter(|plan| plan.links != now).min_by_key(|plan| plan.cost).unwrap_or(&stay);
            return Choice::new(now, reason(&stay, other, rest));
        }
        let reason = reason(&best, &stay, rest);
        if now.has(home)
            && !best.links.has(home)
            && let Some(link) = best.links.first()
        {
            // Nobody sees what the home link does meanwhile: for a while only.
            self.alone(host, now, link, stay.rate, best.rate);
        }
        Choice::new(best.links, reason)
    }
}

fn reason(chosen: &Plan, other: &Plan, rest: DataSize) -> Reason {
    Reason::Cheapest {
        links: chosen.links,
        rate: chosen.rate,
        other: other.links,
        cost: chosen.cost,
        other_cost: other.cost,
        fixed: other.fixed,
        rest,
    }
}

impl Plan {
    fn cost_share(&self) -> Energy {
        Energy::from_nanojoules((u128::from(self.cost.nanojoules()) * u128::from(SAVING.ppm()) / 1_000_000) as u64)
    }
}

/// All sets, or the best of each size where there are too many.
fn plans(host: &Host, usable: Links, rest: DataSize) -> Vec<Plan> {
    if usable.len() > ENUMERATED {
        return grown(host, usable, rest);
    }
    let places: Vec<usize> = usable.iter().collect();
    let sets = 1..1_u32 << places.len();
    let set = |bits: u32| {
        let chosen = places.iter().enumerate().filter(|(n, _)| bits & (1 << n) != 0);
        chosen.fold(Links::NONE, |links, (_, at)| links.with(*at))
    };
    sets.map(|bits| plan(host, set(bits), rest)).collect()
}

fn grown(host: &Host, usable: Links, rest: DataSize) -> Vec<Plan> {
    let (mut found, mut links) = (Vec::new(), Links::NONE);
    while links != usable {
        let more = usable.without(links).iter().map(|at| plan(host, links.with(at), rest));
        let Some(best) = more.min_by_key(|plan| plan.cost) else { break };
        links = best.links;
        found.push(best);
    }
    found
}

fn plan(host: &Host, links: Links, rest: DataSize) -> Plan {
    let mut loads: Vec<(LinkKind, Direction, Bitrate)> = Vec::new();
    let mut fixed = Energy::ZERO;
    for link in links.iter().filter_map(|at| host.link(at)) {
        loads.push((link.terms.kind, Direction::Down, link.rate(&host.config)));
        let Some(radio) = host.meter.radio(link.terms.link) else { continue };
        fixed += match radio.state(host.now) {
            State::Idle => radio.model().one_packet(),
            _ => radio.model().tail.energy() - radio.tail_cost(host.now),
        };
    }
    let rate: Bitrate = loads.iter().map(|(.., rate)| *rate).sum();
    let power = host.config.energy.active_power(&loads);
    let cost = if rate.is_zero() { Energy::MAX } else { power * (rest / rate) + fixed };
    Plan { links, rate, cost, fixed }
}
