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
use super::super::host::Host;
use super::super::links::Links;
use super::super::reason::Reason;
use super::Choice;
use crate::energy::{Direction, State};
use crate::link::LinkKind;
use crate::units::{Bitrate, DataSize, Duration, Energy, Ratio};

use alloc::vec::Vec;
use core::cmp::Reverse;

/// The least rest of a connection that has passed κ or τ. chosen: 8 MB, so that an LTE link that was never used is bought at
/// τ for Wi-Fi below 1.2 Mbit/s, as the paper's "bad" is, and not for 2 to 6 Mbit/s in 16 MB, where its promotion and tail
/// are more than it saves (with `emptcp-s3`). It is dear for what ends soon after: without it the survey costs 5 to 6 %
/// fewer joules, and no draw more than 1.5 times what TCP over Wi-Fi does instead of 6.6 times; but 10 % more joules times
/// seconds, because bad Wi-Fi is left after half a minute instead of three seconds.
const LARGE: DataSize = DataSize::from_bytes(8_000_000);
/// What has outlived a file of usual size (photos, songs, applications' parts: the paper's large one has 16 MiB) is bulk:
/// a film, an image of a disk, an update. chosen: just above the paper's 16 MiB, so its figure 16 measures this choice, and
/// sizes around it were not played. It can afford to find out what a link can that was never used.
const FILE: DataSize = DataSize::from_bytes(17_000_000);
/// What has passed so much when its home link falls to less than this part of its best is bulk, too: what was begun over a
/// fast link is as large as a fast link lets it be, and the sooner another one helps the less waits in the slow one's queue.
/// chosen: half of [`LARGE`], and half of the rate, which is more than it differs from one second to the next.
const BEGUN: DataSize = DataSize::from_bytes(4_000_000);
const FELL: Ratio = Ratio::from_percent(50);
/// The least rest of bulk. chosen: the middle of what films, images and updates bring. The survey sees 1 % of joules times
/// seconds in it; over the kernel it is what lets LTE join soon after Wi-Fi has become slow, while little waits at the
/// server (`lab reproduce emptcp --scale 0.25 --case F10`).
const BULK: DataSize = DataSize::from_bytes(64_000_000);
/// How much better than assumed such a link is hoped to be by bulk. chosen: 10 Mbit/s, the paper's "good": who takes it for
/// a bad one never finds out, and finding out costs one promotion and tail. Without it the survey costs as many joules, and
/// 2 to 5 % more joules times seconds. For files of any size it saves 5 % of that where Wi-Fi changes; but 16 MiB over
/// two bad links cost 4 % more joules then, by the powers of `emptcp-s3`.
const HOPED: u64 = 2;
/// A change must save this of what the rest costs. chosen: what 10 % of a threshold's rate come to in energy (2 to 4 %).
/// Without it, and with twice as much, the survey costs as many joules within 0.5 %; but each change is commands that can
/// be lost.
const SAVING: Ratio = Ratio::from_ppm(30_000);
/// A set that costs no more is changed to if so much of its rate is more than the present one's. chosen: a tenth more, the
/// safety factor of a rate (eMPTCP §3.4).
const FASTER: Ratio = Ratio::from_percent(91);
/// The time between changes. chosen: half the median's memory, after the samples that are thrown away. Without it the
/// survey's changing links cost 0.8 % more joules.
const DWELL: Duration = Duration::from_millis(1500);
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
    pub(in super::super) fn expected(&self, host: &Host) -> DataSize {
        let passed = DataSize::from_bytes(self.stretch);
        match self.admitted {
            true if self.is_bulk(host) => passed.max(BULK),
            true => passed.max(LARGE),
            false => passed,
        }
    }

    /// Whether it is taken for bulk: by what has passed, or because its home link is not what it was.
    fn is_bulk(&self, host: &Host) -> bool {
        let passed = DataSize::from_bytes(self.stretch);
        passed >= FILE || passed >= BEGUN && self.home.is_some_and(|home| self.has_fallen(host, home))
    }

    /// Whether a link brings much less than its best in this stretch of activity.
    pub(super) fn has_fallen(&self, host: &Host, at: usize) -> bool {
        let Some((link, path)) = host.link(at).zip(self.paths.get(at)) else { return false };
        // What all connections have of it: one that shares it has less, of a link as fast as ever.
        link.rate(&host.config, host.now) < path.best.share(FELL)
    }

    /// While nothing moves. Whatever comes next is small, as far as anybody knows, and wakes what carries it: so links that
    /// are dear to wake are left.
    pub(super) fn resting(&self, host: &Host, usable: Links, home: usize) -> Choice {
        let joined = self.joined().and(usable);
        let dear = dear(host, joined);
        let cheap = joined.without(dear);
        let links = match cheap.and(self.active) {
            stays if !stays.is_empty() => stays,
            _ if cheap.has(home) => Links::one(home),
            _ => cheap,
        };
        Choice { destroy: host.awake(dear), ..Choice::new(links, Reason::Idle { links }) }
    }

    pub(super) fn cheapest(&mut self, host: &Host, usable: Links, home: usize) -> Choice {
        // A glance at a link that has gone tells nothing when it is back.
        if self.home != Some(home) {
            self.trial.glance = None;
        }
        let interval = self.interval(host);
        self.admit(&host.config, host.now, interval);
        let now = self.active.and(usable);
        let now = if now.is_empty() { Links::one(home) } else { now };
        if usable.len() == 1 {
            return Choice::new(usable, Reason::Only { link: home });
        }
        if !self.admitted {
            return Choice::new(now, Reason::Waiting { link: now.first().unwrap_or(home) });
        }
        let glancing = self.trial.glance.is_some();
        let now = if glancing { now.without(Links::one(home)) } else { now };
        if let Some(choice) = self.guarded(host, usable, now, true).or_else(|| self.glance(host, now, home)) {
            let others = usable.without(choice.active);
            // On trial nothing may wait in the others' queues.
            let destroy = if self.trial.open.is_some() { others } else { Links::NONE };
            return Choice { spare: others.and(self.joined()), destroy, ..choice };
        }
        let rest = self.expected(host).max(DataSize::from_bytes(host.passed));
        // What a glance found counts until the next one, unless another connection knows better.
        let known = |(at, _): &(usize, Bitrate)| glancing || host.link(*at).is_some_and(|link| !link.used());
        let glanced = self.trial.found.filter(known);
        let view = View { host, conn: self, rest, glanced };
        let (stay, all) = (view.plan(now), view.plans(usable));
        let known = |links: Links| links.iter().all(|at| host.link(at).is_some_and(|link| link.known().is_some()));
        // What has fallen may have fallen further since it was left: a glance tells (rule 3 of `guard`), unless it is dear.
        let rests = !now.has(home) && !dear(host, usable).has(home);
        let unseen = rests && self.trial.found.is_none() && self.has_fallen(host, home);
        let fit = |plan: &&Plan| if plan.links.has(home) { !unseen } else { known(plan.links) };
        let cheapest =
            all.iter().filter(fit).min_by_key(|plan| (plan.cost, plan.links.len())).copied().unwrap_or(stay);
        let saves = cheapest.cost + stay.cost.share(SAVING) < stay.cost;
        let hastens = |plan: &&Plan| plan.cost <= stay.cost && plan.rate.share(FASTER) > stay.rate;
        let fastest = |plan: &&Plan| (plan.rate, Reverse((plan.cost, plan.links.len())));
        let faster = all.iter().filter(fit).filter(hastens).max_by_key(fastest).filter(|_| !saves);
        let best = faster.copied().unwrap_or(cheapest);
        let worth = saves || faster.is_some();
        // A path that has just been given a subflow has no rate yet that could speak against it.
        let young = host.now.since(self.since) < DWELL && !glancing || self.is_still(host.now, interval);
        if best.links == now || young || !worth {
            let other = all.iter().filter(|plan| plan.links != now).min_by_key(|plan| plan.cost).unwrap_or(&stay);
            let reason = reason(&stay, other, rest);
            let (spare, destroy) = (view.spare(usable, now), view.leaves(usable, now));
            return Choice { spare, destroy, ..Choice::new(now, reason) };
        }
        let reason = reason(&best, &stay, rest);
        let new =
            best.links.without(now).iter().find(|at| host.link(*at).is_some_and(|link| link.known().is_none()));
        let (spare, destroy) = (view.spare(usable, best.links), view.leaves(usable, best.links));
        let met = new.and_then(|link| self.meet(host, link, home, best.links));
        met.unwrap_or(Choice { spare, destroy, ..Choice::new(best.links, reason) })
    }
}

/// Those of some links that are dearer to wake than the others.
fn dear(host: &Host, links: Links) -> Links {
    let least = links.iter().map(|at| host.one_packet(at)).min().unwrap_or_default();
    links.iter().filter(|at| host.one_packet(*at) > least).fold(Links::NONE, Links::with)
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

/// What plans are made from.
struct View<'a> {
    host: &'a Host,
    conn: &'a Conn,
    rest: DataSize,
    /// What the last glance found.
    glanced: Option<(usize, Bitrate)>,
}

impl View<'_> {
    /// All sets, or the best of each size where there are too many.
    fn plans(&self, usable: Links) -> Vec<Plan> {
        if usable.len() > ENUMERATED {
            return self.grown(usable);
        }
        let places: Vec<usize> = usable.iter().collect();
        let sets = 1..1_u32 << places.len();
        let set = |bits: u32| {
            let chosen = places.iter().enumerate().filter(|(n, _)| bits & (1 << n) != 0);
            chosen.fold(Links::NONE, |links, (_, at)| links.with(*at))
        };
        sets.map(|bits| self.plan(set(bits))).collect()
    }

    fn grown(&self, usable: Links) -> Vec<Plan> {
        let (mut found, mut links) = (Vec::new(), Links::NONE);
        while links != usable {
            let more = usable.without(links).iter().map(|at| self.plan(links.with(at)));
            let Some(best) = more.min_by_key(|plan| plan.cost) else { break };
            links = best.links;
            found.push(best);
        }
        found
    }

    /// Links that stay joined though they do not carry: the home link, which is to be seen again, unless it is dear to see.
    fn spare(&self, usable: Links, set: Links) -> Links {
        self.conn.home.map_or(Links::NONE, Links::one).and(usable).without(set).without(dear(self.host, usable))
    }

    /// Links whose subflows go: those that would hold the set up with what is queued on them, so that it comes over the
    /// others, and those that are dear to wake, while that costs nothing.
    fn leaves(&self, usable: Links, set: Links) -> Links {
        let fast = self.fast(set);
        let slow = usable.without(set).iter().filter(|at| self.drags(*at, fast));
        slow.fold(self.host.awake(dear(self.host, usable)).without(set), Links::with)
    }

    /// What a set that leaves radios which are awake pays for that later (rule 8).
    fn again(&self, set: Links) -> Energy {
        let (host, conn) = (self.host, self.conn);
        let home = conn.home.map_or(Links::NONE, Links::one);
        let left = host.awake(dear(host, host.up())).and(conn.active).without(set).without(home);
        left.iter().map(|at| host.one_packet(at)).sum()
    }

    /// The fastest of these, and its rate.
    fn fast(&self, links: Links) -> (usize, Bitrate) {
        links.iter().map(|at| (at, self.rate(at))).max_by_key(|(_, rate)| *rate).unwrap_or_default()
    }

    fn drags(&self, at: usize, fast: (usize, Bitrate)) -> bool {
        self.host.trials.drags(self.host.now, (at, self.rate(at)), fast)
    }

    fn rate(&self, at: usize) -> Bitrate {
        let glanced = self.glanced.filter(|(link, _)| *link == at).map(|(_, rate)| rate);
        if self.conn.is_bulk(self.host)
            && self.host.link(at).is_some_and(|link| !link.used() && link.known().is_none())
        {
            return self.host.config.assumed * HOPED;
        }
        glanced.or_else(|| Some(self.host.link(at)?.rate(&self.host.config, self.host.now))).unwrap_or_default()
    }

    fn plan(&self, links: Links) -> Plan {
        let host = self.host;
        let mut loads: Vec<(LinkKind, Direction, Bitrate)> = Vec::new();
        let (mut fixed, mut rate) = (self.again(links), Bitrate::ZERO);
        let fast = self.fast(links);
        let direction = self.conn.direction();
        for at in links.iter() {
            let Some(link) = host.link(at) else { continue };
            let own = self.rate(at);
            loads.push((link.terms.kind, direction, own));
            if !self.drags(at, fast) {
                rate = rate + own;
            }
            let Some(radio) = host.meter.radio(link.terms.link) else { continue };
            fixed += match radio.state(host.now) {
                State::Idle => radio.model().one_packet(),
                _ => radio.model().tail.energy() - radio.tail_cost(host.now),
            };
        }
        let power = host.config.energy.active_power(&loads);
        let cost = if rate.is_zero() { Energy::MAX } else { power * (self.rest / rate) + fixed };
        Plan { links, rate, cost, fixed }
    }
}
