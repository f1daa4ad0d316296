//! Ours: the set of links with the least expected energy for what is expected to come.
//!
//! In: rates of the host's links, the state of its radios, the volume of its busy connections. Out: a set of links.
//!
//! 1. What a set costs is its power at its rates, down or up as most of the connection goes of late, over the time that the
//!    rest takes, and for each radio a promotion if it is idle and the tail that begins anew, less what is left of a tail
//!    under way: that is drawn in any case. A radio that is awake costs its extension alone, and a radio that is left costs
//!    nothing more.
//! 2. The rest is what has passed ([`Conn::expected`]) since the connections that move were idle last, all together: as
//!    far as anybody knows, what follows a pause is as small as any other. Sizes are heavy-tailed (Crovella and Bestavros,
//!    "Self-similarity in World Wide Web traffic", 1997: P(size > x) ~ x^-α, 1 < α < 2), for which the expected rest is
//!    volume ÷ (α − 1): proportional to what has come. With α = 2 it is the volume itself, and buying when what the dearer
//!    way has cost too much equals the price is the ski rental's rule: never more than twice as dear as knowing the end.
//! 3. Before κ bytes or τ of one answer nothing is bought (eMPTCP §3.5). After, the rest is [`LARGE`] at least ([`BULK`] for bulk), once for all: the many
//!    small ones are out of the count by then.
//! 4. Rates are those of all connections together, as the radios are: a slow server is no slow link. Medians of two
//!    seconds: a dip does not wake a radio.
//! 5. A change must save [`SAVING`] of all that is to come, beside its own cost; that is eMPTCP's 10 % of a rate, in
//!    joules. What costs no more must be faster instead ([`FASTER`]). Changes come [`DWELL`] apart, but for broken links.
//! 6. A link that would hold up a faster one adds nothing (`guard`). One link instead of more for energy alone may cost
//!    time (that is the profile); but a set that leaves out the home link is one of links whose rates were measured.
//! 7. What is dear to wake is left while its radio is awake: its subflow goes. A suspended one would wake it when the
//!    connection ends, for its FIN (12.6 J with `emptcp-s3`), and is no faster taken up again than a new one, as its window
//!    has shrunk (RFC 2861). A connection that falls idle leaves it as well ([`Conn::resting`]).
//! 8. What was needed may be needed again: who leaves a link other than its home link while its radio is awake pays waking it
//!    once more. So it is left when what is saved is more than that, and not each time that the home link is good for a moment.
//!
//! The published rule, per-byte energy of an endless transfer, is rule 1 with an endless rest and no radio state.
//!
//! What a constant is worth is told by sizes and links that nobody chose, with it and without:
//! `cargo test -p marline-sim --test paths_survey -- --ignored --nocapture`, called the survey below.

use super::super::conn::Conn;
use super::super::host_state::HostState;
use super::super::links::LinkSet;
use super::super::reason::Reason;
use super::Decision;
use crate::energy::{Direction, RadioState};
use crate::link::LinkKind;
use crate::units::{Bitrate, DataSize, Duration, Energy, Ratio};

use alloc::vec::Vec;
use core::cmp::Reverse;

/// The least rest of a connection that has passed κ or τ. chosen: 8 MB, so that an LTE link that was never used is bought at
/// τ for Wi-Fi below 1.2 Mbit/s, as the paper's "bad" is, and not for 2 to 6 Mbit/s in 16 MB, where its promotion and tail
/// are more than it saves (with `emptcp-s3`). It is dear for what ends soon after: without it the survey costs 5 to 6 %
/// fewer joules, and no draw more than 1.5 times what TCP over Wi-Fi does instead of 6.6 times; but 10 % more joules times
/// seconds, because bad Wi-Fi is left after half a minute instead of three seconds.
const MIN_EXPECTED: DataSize = DataSize::from_bytes(8_000_000);
/// What has outlived a file of usual size (photos, songs, applications' parts: the paper's large one has 16 MiB) is bulk:
/// a film, an image of a disk, an update. chosen: just above the paper's 16 MiB, so its figure 16 measures this choice, and
/// sizes around it were not played. It can afford to find out what a link can that was never used.
const BULK_BYTES: DataSize = DataSize::from_bytes(17_000_000);
/// What has passed so much when its home link falls to less than this part of its best is bulk, too: what was begun over a
/// fast link is as large as a fast link lets it be, and the sooner another one helps the less waits in the slow one's queue.
/// chosen: half of [`LARGE`], and half of the rate, which is more than it differs from one second to the next.
const BULK_BYTES_SLOWED: DataSize = DataSize::from_bytes(4_000_000);
const SLOWED_SHARE: Ratio = Ratio::from_percent(50);
/// The least rest of bulk. chosen: the middle of what films, images and updates bring. The survey sees 1 % of joules times
/// seconds in it; over the kernel it is what lets LTE join soon after Wi-Fi has become slow, while little waits at the
/// server (`lab reproduce emptcp --scale 0.25 --case F10`).
const MIN_EXPECTED_BULK: DataSize = DataSize::from_bytes(64_000_000);
/// How much better than assumed such a link is hoped to be by bulk. chosen: 10 Mbit/s, the paper's "good": who takes it for
/// a bad one never finds out, and finding out costs one promotion and tail. Without it the survey costs as many joules, and
/// 2 to 5 % more joules times seconds. For files of any size it saves 5 % of that where Wi-Fi changes; but 16 MiB over
/// two bad links cost 4 % more joules then, by the powers of `emptcp-s3`.
const BULK_OPTIMISM: u64 = 2;
/// A change must save this of what the rest costs. chosen: what 10 % of a threshold's rate come to in energy (2 to 4 %).
/// Without it, and with twice as much, the survey costs as many joules within 0.5 %; but each change is commands that can
/// be lost.
const MIN_SAVING: Ratio = Ratio::from_ppm(30_000);
/// A set that costs no more is changed to if so much of its rate is more than the present one's. chosen: a tenth more, the
/// safety factor of a rate (eMPTCP §3.4).
const MIN_SPEEDUP: Ratio = Ratio::from_percent(91);
/// The time between changes. chosen: half the median's memory, after the samples that are thrown away. Without it the
/// survey's changing links cost 0.8 % more joules.
const MIN_DWELL: Duration = Duration::from_millis(1500);
/// Sets of more links than this are not enumerated but grown link by link.
const MAX_ENUMERATED: u32 = 6;

/// What a set of links costs.
#[derive(Clone, Copy, Debug)]
struct LinkSetCost {
    links: LinkSet,
    rate: Bitrate,
    cost: Energy,
    /// The part of it that wakes radios.
    wake_cost: Energy,
}

impl Conn {
    /// What is expected to come yet.
    pub(in super::super) fn expected_bytes(&self, host: &HostState) -> DataSize {
        let burst = DataSize::from_bytes(self.burst_bytes);
        match self.is_eligible {
            true if self.is_bulk(host) => burst.max(MIN_EXPECTED_BULK),
            true => burst.max(MIN_EXPECTED),
            false => burst,
        }
    }

    /// Whether it is taken for bulk: by what has passed, or because its home link is not what it was.
    fn is_bulk(&self, host: &HostState) -> bool {
        let burst = DataSize::from_bytes(self.burst_bytes);
        burst >= BULK_BYTES
            || burst >= BULK_BYTES_SLOWED && self.initial_link.is_some_and(|home| self.has_slowed(host, home))
    }

    /// Whether a link brings much less than its best in this stretch of activity.
    pub(super) fn has_slowed(&self, host: &HostState, index: usize) -> bool {
        let Some((link, path)) = host.link(index).zip(self.paths.get(index)) else { return false };
        // What all connections have of it: one that shares it has less, of a link as fast as ever.
        link.rate(&host.config, host.now) < path.best_solo_rate.share(SLOWED_SHARE)
    }

    /// While nothing moves. Whatever comes next is small, as far as anybody knows, and wakes what carries it: so links that
    /// are dear to wake are left.
    pub(super) fn decide_idle(&self, host: &HostState, usable: LinkSet, initial_link: usize) -> Decision {
        let joined = self.joined_links().intersection(usable);
        let costly = costly(host, joined);
        let cheap = joined.without(costly);
        let links = match cheap.intersection(self.active_links) {
            active if !active.is_empty() => active,
            _ if cheap.contains(initial_link) => LinkSet::single(initial_link),
            _ => cheap,
        };
        Decision { destroy: host.awake_links(costly), ..Decision::new(links, Reason::Idle { links }) }
    }

    pub(super) fn decide_energy(&mut self, host: &HostState, usable: LinkSet, initial_link: usize) -> Decision {
        // A glance at a link that has gone tells nothing when it is back.
        if self.initial_link != Some(initial_link) {
            self.trials.reprobe = None;
        }
        let interval = self.poll_interval(host);
        self.update_eligibility(&host.config, host.now, interval);
        let current = self.active_links.intersection(usable);
        let current = if current.is_empty() { LinkSet::single(initial_link) } else { current };
        if usable.len() == 1 {
            return Decision::new(usable, Reason::Only { link: initial_link });
        }
        if !self.is_eligible {
            return Decision::new(current, Reason::Waiting { link: current.first().unwrap_or(initial_link) });
        }
        let is_reprobing = self.trials.reprobe.is_some();
        let current = if is_reprobing { current.without(LinkSet::single(initial_link)) } else { current };
        if let Some(choice) = self
            .solo_trial(host, usable, current, true)
            .or_else(|| self.reprobe_initial_link(host, current, initial_link))
        {
            let others = usable.without(choice.active);
            // On trial nothing may wait in the others' queues.
            let destroy = if self.trials.solo.is_some() { others } else { LinkSet::EMPTY };
            return Decision { standby: others.intersection(self.joined_links()), destroy, ..choice };
        }
        let expected = self.expected_bytes(host).max(DataSize::from_bytes(host.busy_bytes));
        // What a glance found counts until the next one, unless another connection knows better.
        let is_current =
            |(index, _): &(usize, Bitrate)| is_reprobing || host.link(*index).is_some_and(|link| !link.is_used());
        let reprobe_result = self.trials.reprobe_result.filter(is_current);
        let model = CostModel { host, conn: self, expected, reprobe_result };
        let (stay_cost, sets) = (model.evaluate(current), model.candidate_sets(usable));
        let are_measured = |links: LinkSet| {
            links.iter().all(|index| host.link(index).is_some_and(|link| link.last_rate().is_some()))
        };
        // What has fallen may have fallen further since it was left: a glance tells (rule 3 of `guard`), unless it is dear.
        let is_standby = !current.contains(initial_link) && !costly(host, usable).contains(initial_link);
        let is_stale = is_standby && self.trials.reprobe_result.is_none() && self.has_slowed(host, initial_link);
        let is_candidate = |plan: &&LinkSetCost| {
            if plan.links.contains(initial_link) { !is_stale } else { are_measured(plan.links) }
        };
        let cheapest = sets
            .iter()
            .filter(is_candidate)
            .min_by_key(|plan| (plan.cost, plan.links.len()))
            .copied()
            .unwrap_or(stay_cost);
        let is_saving = cheapest.cost + stay_cost.cost.share(MIN_SAVING) < stay_cost.cost;
        let is_faster =
            |plan: &&LinkSetCost| plan.cost <= stay_cost.cost && plan.rate.share(MIN_SPEEDUP) > stay_cost.rate;
        let fastest = |plan: &&LinkSetCost| (plan.rate, Reverse((plan.cost, plan.links.len())));
        let faster = sets.iter().filter(is_candidate).filter(is_faster).max_by_key(fastest).filter(|_| !is_saving);
        let best = faster.copied().unwrap_or(cheapest);
        let is_worthwhile = is_saving || faster.is_some();
        // A path that has just been given a subflow has no rate yet that could speak against it.
        let is_too_early =
            host.now.since(self.active_since) < MIN_DWELL && !is_reprobing || self.is_quiet(host.now, interval);
        if best.links == current || is_too_early || !is_worthwhile {
            let other =
                sets.iter().filter(|plan| plan.links != current).min_by_key(|plan| plan.cost).unwrap_or(&stay_cost);
            let reason = energy_reason(&stay_cost, other, expected);
            let (spare, destroy) = (model.standby_links(usable, current), model.links_to_destroy(usable, current));
            return Decision { standby: spare, destroy, ..Decision::new(current, reason) };
        }
        let reason = energy_reason(&best, &stay_cost, expected);
        let new = best
            .links
            .without(current)
            .iter()
            .find(|index| host.link(*index).is_some_and(|link| link.last_rate().is_none()));
        let (spare, destroy) =
            (model.standby_links(usable, best.links), model.links_to_destroy(usable, best.links));
        let first_use = new.and_then(|link| self.first_use_probe(host, link, initial_link, best.links));
        first_use.unwrap_or(Decision { standby: spare, destroy, ..Decision::new(best.links, reason) })
    }
}

/// Those of some links that are dearer to wake than the others.
fn costly(host: &HostState, links: LinkSet) -> LinkSet {
    let min_energy = links.iter().map(|index| host.single_packet_energy(index)).min().unwrap_or_default();
    links.iter().filter(|index| host.single_packet_energy(*index) > min_energy).fold(LinkSet::EMPTY, LinkSet::with)
}

fn energy_reason(chosen: &LinkSetCost, other: &LinkSetCost, expected: DataSize) -> Reason {
    Reason::LeastEnergy {
        links: chosen.links,
        rate: chosen.rate,
        other: other.links,
        cost: chosen.cost,
        other_cost: other.cost,
        wake_cost: other.wake_cost,
        expected,
    }
}

/// What plans are made from.
struct CostModel<'a> {
    host: &'a HostState,
    conn: &'a Conn,
    expected: DataSize,
    /// What the last glance found.
    reprobe_result: Option<(usize, Bitrate)>,
}

impl CostModel<'_> {
    /// All sets, or the best of each size where there are too many.
    fn candidate_sets(&self, usable: LinkSet) -> Vec<LinkSetCost> {
        if usable.len() > MAX_ENUMERATED {
            return self.greedy_sets(usable);
        }
        let indices: Vec<usize> = usable.iter().collect();
        let sets = 1..1_u32 << indices.len();
        let set_of = |bits: u32| {
            let chosen = indices.iter().enumerate().filter(|(n, _)| bits & (1 << n) != 0);
            chosen.fold(LinkSet::EMPTY, |links, (_, index)| links.with(*index))
        };
        sets.map(|bits| self.evaluate(set_of(bits))).collect()
    }

    fn greedy_sets(&self, usable: LinkSet) -> Vec<LinkSetCost> {
        let (mut sets, mut links) = (Vec::new(), LinkSet::EMPTY);
        while links != usable {
            let more = usable.without(links).iter().map(|index| self.evaluate(links.with(index)));
            let Some(best) = more.min_by_key(|plan| plan.cost) else { break };
            links = best.links;
            sets.push(best);
        }
        sets
    }

    /// Links that stay joined though they do not carry: the home link, which is to be seen again, unless it is dear to see.
    fn standby_links(&self, usable: LinkSet, set: LinkSet) -> LinkSet {
        self.conn
            .initial_link
            .map_or(LinkSet::EMPTY, LinkSet::single)
            .intersection(usable)
            .without(set)
            .without(costly(self.host, usable))
    }

    /// Links whose subflows go: those that would hold the set up with what is queued on them, so that it comes over the
    /// others, and those that are dear to wake, while that costs nothing.
    fn links_to_destroy(&self, usable: LinkSet, set: LinkSet) -> LinkSet {
        let fastest = self.fastest(set);
        let slow = usable.without(set).iter().filter(|index| self.holds_up(*index, fastest));
        slow.fold(self.host.awake_links(costly(self.host, usable)).without(set), LinkSet::with)
    }

    /// What a set that leaves radios which are awake pays for that later (rule 8).
    fn rewake_cost(&self, set: LinkSet) -> Energy {
        let (host, conn) = (self.host, self.conn);
        let initial_link = conn.initial_link.map_or(LinkSet::EMPTY, LinkSet::single);
        let left = host
            .awake_links(costly(host, host.up_links()))
            .intersection(conn.active_links)
            .without(set)
            .without(initial_link);
        left.iter().map(|index| host.single_packet_energy(index)).sum()
    }

    /// The fastest of these, and its rate.
    fn fastest(&self, links: LinkSet) -> (usize, Bitrate) {
        links.iter().map(|index| (index, self.rate(index))).max_by_key(|(_, rate)| *rate).unwrap_or_default()
    }

    fn holds_up(&self, index: usize, fast: (usize, Bitrate)) -> bool {
        self.host.trial_cache.holds_up(self.host.now, (index, self.rate(index)), fast)
    }

    fn rate(&self, index: usize) -> Bitrate {
        let reprobed = self.reprobe_result.filter(|(link, _)| *link == index).map(|(_, rate)| rate);
        if self.conn.is_bulk(self.host)
            && self.host.link(index).is_some_and(|link| !link.is_used() && link.last_rate().is_none())
        {
            return self.host.config.assumed_rate * BULK_OPTIMISM;
        }
        reprobed.or_else(|| Some(self.host.link(index)?.rate(&self.host.config, self.host.now))).unwrap_or_default()
    }

    fn evaluate(&self, links: LinkSet) -> LinkSetCost {
        let host = self.host;
        let mut loads: Vec<(LinkKind, Direction, Bitrate)> = Vec::new();
        let (mut wake_cost, mut rate) = (self.rewake_cost(links), Bitrate::ZERO);
        let fastest = self.fastest(links);
        let direction = self.conn.direction();
        for index in links.iter() {
            let Some(link) = host.link(index) else { continue };
            let rate_of_link = self.rate(index);
            loads.push((link.config.kind, direction, rate_of_link));
            if !self.holds_up(index, fastest) {
                rate = rate + rate_of_link;
            }
            let Some(radio) = host.meter.radio(link.config.id) else { continue };
            wake_cost += match radio.state(host.now) {
                RadioState::Idle => radio.model().single_packet_energy(),
                _ => radio.model().tail.energy() - radio.energy_to_idle(host.now),
            };
        }
        let power = host.config.energy.active_power(&loads);
        let cost = if rate.is_zero() { Energy::MAX } else { power * (self.expected / rate) + wake_cost };
        LinkSetCost { links, rate, cost, wake_cost }
    }
}
