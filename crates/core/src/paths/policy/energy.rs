//! Energy policy: chooses the set of links that needs the least energy for the data that is expected to follow.
//!
//! Inputs are the rates of the host's links, the state of its radios, and the volume of its busy connections.
//!
//! 1. The cost of a set is its power at its rates (down or up, as most of the connection's recent data), times the
//!    duration of the expected data. For each radio it adds a promotion if the radio is idle, and the new tail,
//!    less the remaining part of a tail that is already running, which is drawn in any case. A radio that is awake
//!    costs only the extension of its tail, and a radio that is left costs nothing more.
//! 2. The expected data is as much as has passed ([`expected_bytes`]) since the active connections were last
//!    idle, all together. As far as is known, data after a pause is as small as any other. Sizes are heavy-tailed
//!    (Crovella and Bestavros, "Self-similarity in World Wide Web traffic", 1997: P(size > x) ~ x^-α, 1 < α < 2).
//!    The expected remaining size is then volume ÷ (α − 1), proportional to what has passed. With α = 2 it is the
//!    volume itself, and the policy becomes the break-even rule of the ski rental problem: the expensive radio is
//!    added when the additional cost of going without it reaches its price. The total is then never more than twice
//!    the optimum.
//! 3. Before κ bytes or τ of one response, no link is added (eMPTCP §3.5). Afterwards the expected data is at least
//!    [`MIN_EXPECTED`], or [`MIN_EXPECTED_BULK`] for bulk, once for all connections: most small transfers have
//!    ended by then.
//! 4. Rates are those of all connections together, because the radios are shared: a slow server does not make a
//!    link slow. They are medians over two seconds, so that a dip does not wake a radio.
//! 5. A change must save [`MIN_SAVING`] of all that is expected, in addition to its own cost; this corresponds to
//!    eMPTCP's 10 % of a rate, in joules. A set that costs no more must be faster instead ([`MIN_SPEEDUP`]).
//!    Changes are at least [`MIN_DWELL`] apart, except for failed links and at the end of a reprobe (a short
//!    measurement of the initial link on standby, see [`super::hol_guard`]).
//! 6. A link that would hold up a faster one adds nothing (see [`super::hol_guard`]). A single link may take longer
//!    than several, for the sake of energy; that is the purpose of this goal. A set without the initial link may
//!    contain only links whose rates were measured.
//! 7. A link that is costly to wake is released while its radio is awake, by closing its subflow. A suspended
//!    subflow would wake the radio when the connection ends, for its FIN (12.6 J with `emptcp-s3`), and is no
//!    faster to resume than a new one, because its window has shrunk (RFC 2861). A connection that becomes idle
//!    releases such a link as well ([`decide_idle`]).
//! 8. A link that was needed may be needed again: releasing a link other than the initial one while its radio is
//!    awake is charged with waking it once more. It is therefore released when the saving exceeds that, and not
//!    each time the initial link is good for a moment.
//!
//! The published rule, per-byte energy of an endless transfer, is rule 1 with endless data and no radio state.
//!
//! The effect of each constant was measured with sizes and links that were not selected for it, with the constant
//! and without it: `cargo test -p marline-sim --test paths survey:: -- --ignored --nocapture`, called the survey
//! below.

use super::hol_guard::TrialState;
use super::input::{Decision, PolicyInput, has_slowed};
use crate::energy::{Direction, RadioState};
use crate::link::LinkKind;
use crate::paths::host_state::HostState;
use crate::paths::links::LinkSet;
use crate::paths::reason::Reason;
use crate::paths::subflow_set::SubflowSet;
use crate::paths::traffic::Traffic;
use crate::units::{Bitrate, DataSize, Duration, Energy, Ratio};

use alloc::vec::Vec;
use core::cmp::Reverse;

/// Least expected data of a connection that has passed κ or τ. Our choice: 8 MB, so that an LTE link that was never
/// used is added at τ for Wi-Fi below 1.2 Mbit/s, like the paper's "bad" Wi-Fi, and not for 2 to 6 Mbit/s and
/// 16 MB, where its promotion and tail exceed the saving (with `emptcp-s3`). It is expensive for transfers that end
/// soon after: without it the survey needs 5 to 6 % fewer joules, and no case needs more than 1.5 times as much as
/// TCP over Wi-Fi, instead of 6.6 times. But the product of joules and seconds is 10 % higher, because bad Wi-Fi is
/// left after half a minute instead of three seconds.
const MIN_EXPECTED: DataSize = DataSize::from_bytes(8_000_000);
/// A transfer that exceeds a file of usual size (photos, songs, parts of applications; the paper's large one has
/// 16 MiB) is bulk: a film, a disk image, an update. Bulk can afford to measure a link that was never used. Our
/// choice: just above the paper's 16 MiB, so the paper's figure 16 measures this choice; sizes close to it were not
/// tested.
const BULK_BYTES: DataSize = DataSize::from_bytes(17_000_000);
/// A transfer of this size is bulk too if its initial link has slowed down to half of its best rate: a
/// transfer that began over a fast link may be large, and the sooner another link helps, the less data waits in the
/// slow one's queue. Our choice: half of [`MIN_EXPECTED`].
const BULK_BYTES_SLOWED: DataSize = DataSize::from_bytes(4_000_000);
/// Least expected data of bulk. Our choice: the middle of what films, images and updates need. In the survey it
/// changes the product of joules and seconds by 1 %; with the kernel it lets LTE join soon after Wi-Fi has become
/// slow, while little data waits at the server (`marline-lab reproduce emptcp --scale 0.25 --case F10`).
const MIN_EXPECTED_BULK: DataSize = DataSize::from_bytes(64_000_000);
/// Factor by which bulk assumes an unused link to be faster than
/// [`Config::assumed_rate`](super::super::Config::assumed_rate). Our choice: 10 Mbit/s, the paper's "good". A
/// policy that assumes a slow link never finds out, and finding out costs one promotion and tail. Without it the
/// survey needs as many joules, and 2 to 5 % more joules times seconds. Applied to transfers of any size it saves
/// 5 % of that where Wi-Fi changes; but 16 MiB over two bad links then cost 4 % more joules, with the powers of
/// `emptcp-s3`.
const BULK_OPTIMISM: u64 = 2;
/// Share of the cost of the expected data that a change must save. Our choice: the energy that corresponds to 10 %
/// of a threshold's rate (2 to 4 %). Without it, and with twice as much, the survey needs as many joules within
/// 0.5 %; but each change consists of commands that can be lost.
const MIN_SAVING: Ratio = Ratio::from_ppm(30_000);
/// A set that costs no more is chosen if this share of its rate exceeds the present set's rate. Our choice: a tenth
/// more, the safety factor of a rate (eMPTCP §3.4).
const MIN_SPEEDUP: Ratio = Ratio::from_percent(91);
/// Shortest time between changes. Our choice: half the length of the median, after the samples that are discarded.
/// Without it the survey's changing links cost 0.8 % more joules.
const MIN_DWELL: Duration = Duration::from_millis(1500);
/// Sets of more links than this are not enumerated but grown link by link.
const MAX_ENUMERATED: u32 = 6;

/// Cost of a set of links.
#[derive(Clone, Copy, Debug)]
struct LinkSetCost {
    links: LinkSet,
    rate: Bitrate,
    cost: Energy,
    /// The part of the cost that is needed to wake radios, now or later.
    wake_cost: Energy,
}

/// Number of bytes that a connection is expected to carry in the future.
pub(in crate::paths) fn expected_bytes(
    host: &HostState,
    subflows: &SubflowSet,
    traffic: &Traffic,
    initial_link: Option<usize>,
) -> DataSize {
    let burst = DataSize::from_bytes(traffic.burst_bytes);
    match traffic.is_eligible {
        true if is_bulk(host, subflows, traffic, initial_link) => burst.max(MIN_EXPECTED_BULK),
        true => burst.max(MIN_EXPECTED),
        false => burst,
    }
}

/// Whether a transfer counts as bulk: by its size so far, or because its initial link has slowed down.
fn is_bulk(host: &HostState, subflows: &SubflowSet, traffic: &Traffic, initial_link: Option<usize>) -> bool {
    let burst = DataSize::from_bytes(traffic.burst_bytes);
    burst >= BULK_BYTES
        || burst >= BULK_BYTES_SLOWED && initial_link.is_some_and(|link| has_slowed(host, subflows, link))
}

/// Decides for an idle connection. The next transfer is probably small and wakes the radio that carries it, so
/// links that are costly to wake are released.
pub(super) fn decide_idle(input: &PolicyInput<'_>, usable: LinkSet, initial_link: usize) -> Decision {
    let host = input.host;
    let joined = input.subflows.joined_links().intersection(usable);
    let costly = costly(host, joined);
    let without_costly = joined.without(costly);
    let links = match without_costly.intersection(input.active_links) {
        active if !active.is_empty() => active,
        _ if without_costly.contains(initial_link) => LinkSet::single(initial_link),
        _ => without_costly,
    };
    Decision { destroy: host.awake_links(costly), ..Decision::new(links, Reason::Idle { links }) }
}

/// Decides for a busy connection, in three stages: wait until a further link may pay off at all; continue or
/// start a trial; compare the costs of all sets of links.
pub(super) fn decide(
    input: &mut PolicyInput<'_>,
    trials: &mut TrialState,
    usable: LinkSet,
    initial_link: usize,
) -> Decision {
    let host = input.host;
    // The result of a reprobe is void once another link has taken the initial link's role.
    if input.initial_link != Some(initial_link) {
        trials.reprobe = None;
    }
    let interval = input.poll_interval(trials.reprobe.is_some());
    input.update_eligibility(interval);
    // Stage 1: nothing to decide with one usable link, and no further link before κ or τ.
    let current = input.active_links.intersection(usable);
    let current = if current.is_empty() { LinkSet::single(initial_link) } else { current };
    if usable.len() == 1 {
        return Decision::new(usable, Reason::Only { link: initial_link });
    }
    if !input.traffic.is_eligible {
        return Decision::new(current, Reason::Waiting { links: current });
    }
    // Stage 2: trials and reprobes have priority, because their measurements are the basis of the comparison.
    let is_reprobing = trials.reprobe.is_some();
    let current = if is_reprobing { current.without(LinkSet::single(initial_link)) } else { current };
    if let Some(decision) =
        trials.run_solo(input, usable, current, true).or_else(|| trials.run_reprobe(input, current, initial_link))
    {
        let others = usable.without(decision.active);
        // During a solo trial no data may wait in the other links' queues.
        let destroy = if trials.solo.is_some() { others } else { LinkSet::EMPTY };
        return Decision { standby: others.intersection(input.subflows.joined_links()), destroy, ..decision };
    }
    // Stage 3: all busy connections of the host share the radios, so the expected data is at least that of all
    // of them.
    let expected = expected_bytes(host, input.subflows, input.traffic, input.initial_link)
        .max(DataSize::from_bytes(host.busy_bytes));
    // The result of a reprobe counts until the next one, unless another connection measures the link now.
    let is_current =
        |(index, _): &(usize, Bitrate)| is_reprobing || host.link(*index).is_some_and(|link| !link.is_used());
    let reprobe_result = trials.reprobe_result.filter(is_current);
    let is_bulk = is_bulk(host, input.subflows, input.traffic, input.initial_link);
    let model = CostModel { host, input, expected, is_bulk, reprobe_result };
    let (stay_cost, sets) = (model.evaluate(current), model.candidate_sets(usable));
    let are_measured =
        |links: LinkSet| links.iter().all(|index| host.link(index).is_some_and(|link| link.last_rate().is_some()));
    // A link that was slowing down may have slowed further since it was released. A reprobe measures it first
    // (rule 5 of `hol_guard`), unless its radio is costly to wake.
    let is_standby = !current.contains(initial_link) && !costly(host, usable).contains(initial_link);
    let is_stale = is_standby && trials.reprobe_result.is_none() && input.has_slowed(initial_link);
    let is_candidate = |set: &&LinkSetCost| {
        // Rule 6: a set without the initial link must consist of measured links.
        if set.links.contains(initial_link) { !is_stale } else { are_measured(set.links) }
    };
    let cheapest = sets
        .iter()
        .filter(is_candidate)
        .min_by_key(|set| (set.cost, set.links.len()))
        .copied()
        .unwrap_or(stay_cost);
    // Rule 5: the change must save a share of the present cost, or cost no more and be clearly faster. The cost
    // of waking a radio is already part of each set's cost, so that an expensive radio is added only if its
    // promotion and tail pay off within the expected data.
    let is_saving = cheapest.cost + stay_cost.cost.share(MIN_SAVING) < stay_cost.cost;
    let is_faster = |set: &&LinkSetCost| set.cost <= stay_cost.cost && set.rate.share(MIN_SPEEDUP) > stay_cost.rate;
    let fastest = |set: &&LinkSetCost| (set.rate, Reverse((set.cost, set.links.len())));
    let faster = sets.iter().filter(is_candidate).filter(is_faster).max_by_key(fastest).filter(|_| !is_saving);
    let best = faster.copied().unwrap_or(cheapest);
    let is_worthwhile = is_saving || faster.is_some();
    // Shortly after a change the new path has no rate yet that could count against it.
    let is_too_early = host.now.since(input.active_since) < MIN_DWELL && !is_reprobing || input.is_quiet(interval);
    if best.links == current || is_too_early || !is_worthwhile {
        let other =
            sets.iter().filter(|set| set.links != current).min_by_key(|plan| plan.cost).unwrap_or(&stay_cost);
        let reason = energy_reason(&stay_cost, other, expected);
        let (standby, destroy) = (model.standby_links(usable, current), model.links_to_destroy(usable, current));
        return Decision { standby, destroy, ..Decision::new(current, reason) };
    }
    let reason = energy_reason(&best, &stay_cost, expected);
    // A new link that was never measured is first used alone, so that its rate is known (see
    // `first_use_probe`).
    let new = best
        .links
        .without(current)
        .iter()
        .find(|index| host.link(*index).is_some_and(|link| link.last_rate().is_none()));
    let (spare, destroy) = (model.standby_links(usable, best.links), model.links_to_destroy(usable, best.links));
    let first_use = new.and_then(|link| trials.first_use_probe(input, link, initial_link, best.links));
    first_use.unwrap_or(Decision { standby: spare, destroy, ..Decision::new(best.links, reason) })
}

/// Those of some links that need more energy to wake than the cheapest one.
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

/// Data for computing the cost of link sets.
struct CostModel<'a> {
    host: &'a HostState,
    input: &'a PolicyInput<'a>,
    expected: DataSize,
    /// Whether the transfer counts as bulk.
    is_bulk: bool,
    /// Link and rate of the last reprobe, if they still count.
    reprobe_result: Option<(usize, Bitrate)>,
}

impl CostModel<'_> {
    /// All sets of usable links, or the best one of each size if there are too many links.
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
            let candidates = usable.without(links).iter().map(|index| self.evaluate(links.with(index)));
            let Some(best) = candidates.min_by_key(|plan| plan.cost) else { break };
            links = best.links;
            sets.push(best);
        }
        sets
    }

    /// Links that stay joined as backups: the initial link, which must be reprobed, unless its radio is costly to
    /// wake.
    fn standby_links(&self, usable: LinkSet, set: LinkSet) -> LinkSet {
        self.input
            .initial_link
            .map_or(LinkSet::EMPTY, LinkSet::single)
            .intersection(usable)
            .without(set)
            .without(costly(self.host, usable))
    }

    /// Links whose subflows are closed: those that would hold the set up with queued data, so that this data is
    /// sent over the others; and those whose radios are costly to wake, while closing costs nothing because they
    /// are awake.
    fn links_to_destroy(&self, usable: LinkSet, set: LinkSet) -> LinkSet {
        let fastest = self.fastest(set);
        let slow = usable.without(set).iter().filter(|index| self.holds_up(*index, fastest));
        slow.fold(self.host.awake_links(costly(self.host, usable)).without(set), LinkSet::with)
    }

    /// Future cost of a set that releases radios which are awake: waking them once more (rule 8).
    fn rewake_cost(&self, set: LinkSet) -> Energy {
        let (host, input) = (self.host, self.input);
        let initial_link = input.initial_link.map_or(LinkSet::EMPTY, LinkSet::single);
        let left = host
            .awake_links(costly(host, host.up_links()))
            .intersection(input.active_links)
            .without(set)
            .without(initial_link);
        left.iter().map(|index| host.single_packet_energy(index)).sum()
    }

    /// Fastest of these links, and its rate.
    fn fastest(&self, links: LinkSet) -> (usize, Bitrate) {
        links.iter().map(|index| (index, self.rate(index))).max_by_key(|(_, rate)| *rate).unwrap_or_default()
    }

    fn holds_up(&self, index: usize, fast: (usize, Bitrate)) -> bool {
        self.host.trial_cache.holds_up(self.host.now, (index, self.rate(index)), fast)
    }

    /// Assumed rate of a link: the result of a reprobe, an optimistic value for bulk over an unused link, or the
    /// measured rate.
    fn rate(&self, index: usize) -> Bitrate {
        let reprobed = self.reprobe_result.filter(|(link, _)| *link == index).map(|(_, rate)| rate);
        if self.is_bulk && self.host.link(index).is_some_and(|link| !link.is_used() && link.last_rate().is_none()) {
            return self.host.config.assumed_rate * BULK_OPTIMISM;
        }
        reprobed.or_else(|| Some(self.host.link(index)?.rate(&self.host.config, self.host.now))).unwrap_or_default()
    }

    /// Cost of a set of links (rule 1).
    fn evaluate(&self, links: LinkSet) -> LinkSetCost {
        let host = self.host;
        let mut loads: Vec<(LinkKind, Direction, Bitrate)> = Vec::new();
        let (mut wake_cost, mut rate) = (self.rewake_cost(links), Bitrate::ZERO);
        let fastest = self.fastest(links);
        let direction = self.input.traffic.direction();
        for index in links.iter() {
            let Some(link) = host.link(index) else { continue };
            let rate_of_link = self.rate(index);
            loads.push((link.config.kind, direction, rate_of_link));
            // A link that holds up a faster one draws power but adds no rate.
            if !self.holds_up(index, fastest) {
                rate += rate_of_link;
            }
            let Some(radio) = host.meter.radio(link.config.id) else { continue };
            // An idle radio needs a promotion and a tail. One that is awake only extends its tail: the part that
            // remains is drawn anyway.
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
