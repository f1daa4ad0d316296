//! Which relay an edge uses, and what it asks the fleet's service for (BASS §III-A.1, §IV-B): the edge's side of the matching.
//!
//! In: candidates, measured rates, what the service says, how flows and links go, each with the time. Out, by
//! [`Machine::poll`]: what is to be asked, measured and used. The driver is `agent`.
//!
//! 1. Candidates are asked for at the start, each `REMEASURE`, when the links are others, when the relay in use fails, and when
//!    it carries less than `LOW` of what it did, `LOW_LOOKS` looks running. Not more than once in `CALM`, but for a failure.
//! 2. A candidate is measured if no rate of it is fresh: `FRESH`, by these links. One after the other, for they share the
//!    links; `EACH` each and `ALL` in all, the nearest first. Then the request goes out.
//! 3. What flows carry while data waits is a relay's rate, too, and keeps it fresh: a live stream is not disturbed by probes.
//! 4. Bytes of metered links are counted: [`Config::probe_bytes`] a probe and ten times that a day. When they are used up an
//!    unmetered link is measured alone, and none where there is none.
//! 5. Used are, in this order: what the service has assigned; other candidates by their rates, or by their round trips among those
//!    that are fast enough ([`Config::near`]); what was known before. Who failed comes last. Only new flows are led.
//!    An edge whose flows never go directly ([`Config::strict`]) follows the service where it gives nothing: with `no-gain` it keeps the
//!    relay that it had; with `no-room` new flows wait for an assignment ([`Machine::waits`]).
//! 6. It says to hold a relay only if the service has given it and new flows go there.
//! 7. A service that does not answer changes nothing but the time of the next question, which doubles up to `LONGEST`.

mod known;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use marline_core::units::{Bitrate, DataSize, Instant, Ratio};

use super::probe::{Probed, Terms};
use crate::identity::Name;
use crate::service::Position;
use crate::service::words::{Candidate, Endpoint, Held, Reason, Report, Standing, Wish};

pub use self::known::{RelayKnown, Saved};

use self::known::Known;

/// chosen: as often as the service matches all anew (BASS §IV-B).
const REMEASURE: Duration = Duration::from_secs(30 * 60);
/// chosen: the same.
const FRESH: Duration = Duration::from_secs(30 * 60);
/// chosen: three candidates then fit into [`ALL`].
const EACH: Duration = Duration::from_millis(1500);
/// BASS §IV-B spends so long on each.
const ALL: Duration = Duration::from_secs(5);
/// chosen: links that come and go must not fill the rest with probes.
const CALM: Duration = Duration::from_secs(60);
/// chosen: a relay that fails is replaced now, but a fleet that fails is not asked all the time.
const SOON: Duration = Duration::from_secs(5);
/// chosen: as the service judges reports.
const LOW: Ratio = Ratio::from_percent(70);
const LOW_LOOKS: u32 = 2;
/// chosen: a relay that was restarted is tried again by then.
const FAILED: Duration = Duration::from_secs(60);
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);
/// Until the service says otherwise.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// chosen: with a service that asks for more.
const HEARTBEATS: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(60)];
/// How many probes of [`Config::probe_bytes`] a day has.
const PROBES_A_DAY: u64 = 10;
const DAY: Duration = Duration::from_secs(86_400);
/// chosen: 107 Mbit/s for as long as a probe lasts; the relay has a bound of its own.
const MOST: DataSize = DataSize::from_mib(20);
/// How much of the time data must wait for a rate to be what the links give.
const FULL: Ratio = Ratio::from_percent(80);
/// chosen: half of the time is enough to say that programs offer more.
const BUSY: Ratio = Ratio::from_percent(50);
/// Of an edge that does not know yet where its stream will go (RFC 2606 §2: nobody is called so).
const UNKNOWN: &str = "unknown.invalid:1935";
/// chosen: a flow asks no more.
const USED: usize = 6;

/// How it chooses.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Where the stream goes to; none: what is heard of it ([`Machine::origin`]).
    pub origin: Option<Endpoint>,
    /// More than this is not needed; none: whatever can be had.
    pub wanted: Option<Bitrate>,
    /// Where the edge is.
    pub position: Option<Position>,
    /// Of relays that are fast enough the nearest is the best, and not the fastest.
    pub near: bool,
    /// What one probe may send over metered links.
    pub probe_bytes: DataSize,
    /// No flow goes directly (`--no-direct`): what the service says where it gives no relay is followed.
    pub strict: bool,
}

impl Default for Config {
    /// chosen: 2 MB are ten seconds of a live stream.
    fn default() -> Self {
        Self {
            origin: None,
            wanted: None,
            position: None,
            near: false,
            probe_bytes: DataSize::from_bytes(2_000_000),
            strict: false,
        }
    }
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Ask for candidates, and bring them to [`Machine::candidates`].
    Candidates,
    /// Measure, and bring it to [`Machine::probed`].
    Probe(Name, Terms),
    /// Ask for a relay, and bring the answer to [`Machine::standing`].
    Request(Wish),
    /// Report, and bring the answer to [`Machine::standing`].
    Report(Report),
    /// Lead new flows to these, the best first.
    Use(Vec<Name>),
    /// What is known has changed: keep it ([`Machine::save`]).
    Keep,
}

/// What went through one relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// From programs.
    pub sent: DataSize,
    /// For how long data waited.
    pub waited: Duration,
}

/// What the links are like.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinksNow {
    /// Those that can carry, by name.
    pub up: Vec<String>,
    /// One of them costs money by the byte.
    pub metered: bool,
    /// The best one that does not.
    pub free: Option<String>,
    /// B_o(c): the most that one of them has shown alone.
    pub alone: Bitrate,
}

/// What is under way.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Doing {
    Nothing,
    Candidates,
    Probe(Name),
    Request,
    Report,
}

/// What the service has given.
#[derive(Clone, Debug)]
struct Seat {
    held: Held,
    /// What the relay carried or showed then.
    rate: Bitrate,
}

/// The machine.
#[derive(Debug)]
pub struct Machine {
    config: Config,
    now: Instant,
    known: Known,
    offered: Vec<Name>,
    origin: Option<Endpoint>,
    links: LinksNow,
    seat: Option<Seat>,
    reason: Option<Reason>,
    /// The service has said `no-room`, and nothing else since that decides.
    full: bool,
    /// The relay that it had when the service said `no-gain`.
    kept: Option<Name>,
    doing: Doing,
    queue: VecDeque<Name>,
    measuring: Instant,
    /// When candidates were asked for last, and are to be asked for again.
    asked: Option<Instant>,
    again: Option<Instant>,
    /// When the next report is due.
    due: Instant,
    /// Rule 7: not before.
    blocked: Instant,
    back_off: Duration,
    heartbeat: Duration,
    throughput: Bitrate,
    offers: Option<Bitrate>,
    low: u32,
    used: Vec<Name>,
    outputs: VecDeque<Output>,
}

impl Machine {
    /// One that knows what an earlier run has kept; `passed` is how long that is ago.
    pub fn new(config: Config, saved: Option<(Saved, Duration)>, now: Instant) -> Self {
        let origin = config.origin.clone().or_else(|| saved.as_ref().and_then(|(saved, _)| saved.origin.clone()));
        let known = saved.map_or_else(Known::default, |(saved, passed)| Known::of(saved, passed, now));
        let mut machine = Self {
            config,
            now,
            known,
            offered: Vec::new(),
            origin,
            links: LinksNow::default(),
            seat: None,
            reason: None,
            full: false,
            kept: None,
            doing: Doing::Nothing,
            queue: VecDeque::new(),
            measuring: now,
            asked: None,
            again: Some(now),
            due: now + HEARTBEAT,
            blocked: now,
            back_off: Duration::ZERO,
            heartbeat: HEARTBEAT,
            throughput: Bitrate::ZERO,
            offers: None,
            low: 0,
            used: Vec::new(),
            outputs: VecDeque::new(),
        };
        machine.lead();
        machine
    }

    /// What is to be done next, until there is nothing left.
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When to tick again; none: something is under way.
    pub fn deadline(&self) -> Option<Instant> {
        let next = self.again.map_or(self.due, |again| again.min(self.due));
        (self.doing == Doing::Nothing).then(|| next.max(self.blocked))
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Instant) {
        self.pass(now);
        if self.deadline().is_none_or(|deadline| deadline > self.now) {
            return;
        }
        if self.again.is_some_and(|again| again <= self.now) {
            (self.asked, self.again) = (Some(self.now), Some(self.now + REMEASURE));
            self.start(Doing::Candidates, Output::Candidates);
        } else {
            let report = self.report();
            self.start(Doing::Report, Output::Report(report));
        }
    }

    /// The service offers these.
    pub fn candidates(&mut self, candidates: Vec<Candidate>, now: Instant) {
        self.pass(now);
        self.offered = candidates.iter().map(|candidate| candidate.relay.clone()).collect();
        candidates.into_iter().for_each(|candidate| {
            self.known.meet(&candidate.relay, candidate.addresses, Some(candidate.server_name), self.now);
        });
        self.queue = self.offered.iter().filter(|name| !self.is_fresh(name)).cloned().collect();
        self.measuring = self.now;
        self.lead();
        self.measure();
    }

    /// A probe has ended; `sent` is what it cost.
    pub fn probed(&mut self, relay: &Name, probed: Option<Probed>, sent: DataSize, now: Instant) {
        self.pass(now);
        if self.links.metered && self.terms().is_some_and(|terms| terms.only.is_none()) {
            self.known.pay(sent, self.now);
        }
        match probed {
            Some(probed) => {
                self.known.measure(relay, probed.rate, Some(probed.round_trip), &self.links.up, self.now)
            }
            None => self.known.fail(relay, true, self.now),
        }
        self.lead();
        self.outputs.push_back(Output::Keep);
        self.measure();
    }

    /// The service's answer to a request or a report.
    pub fn standing(&mut self, standing: Standing, now: Instant) {
        self.pass(now);
        self.doing = Doing::Nothing;
        (self.back_off, self.blocked) = (Duration::ZERO, self.now);
        self.heartbeat = Duration::from_millis(standing.heartbeat_ms).clamp(HEARTBEATS[0], HEARTBEATS[1]);
        self.due = self.now + self.heartbeat;
        self.reason = standing.reason;
        if standing.reason == Some(Reason::Released) {
            self.ask_again(self.now);
        }
        match standing.assignment {
            Some(given) => {
                self.known.meet(&given.relay, given.addresses, given.server_name, self.now);
                let held = Held { relay: given.relay, reservation: given.reservation, mark: given.mark };
                if self.seat.as_ref().is_none_or(|seat| seat.held != held) {
                    let rate = self.known.rate(&held.relay).unwrap_or(held.reservation);
                    (self.seat, self.low) = (Some(Seat { held, rate }), 0);
                    self.outputs.push_back(Output::Keep);
                }
                (self.full, self.kept) = (false, None);
            }
            None => {
                let had = self.seat.take().map(|seat| seat.held.relay);
                match standing.reason {
                    // Not decided yet.
                    Some(Reason::Pending) | None => self.kept = had.or(self.kept.take()),
                    Some(Reason::NoGain) => (self.full, self.kept) = (false, had.or(self.kept.take())),
                    Some(Reason::NoRoom) => (self.full, self.kept) = (true, None),
                    Some(Reason::NoRelay | Reason::Released) => (self.full, self.kept) = (false, None),
                }
            }
        }
        self.lead();
    }

    /// Whether new flows are to wait until the service gives a relay.
    pub fn waits(&self) -> bool {
        self.config.strict && self.full && self.seat.is_none()
    }

    /// The service did not answer, or not with what was asked for.
    pub fn unreachable(&mut self, now: Instant) {
        self.pass(now);
        let doing = std::mem::replace(&mut self.doing, Doing::Nothing);
        self.back_off = (self.back_off * 2).clamp(SHORTEST, LONGEST);
        self.blocked = self.now + self.back_off;
        self.queue.clear();
        if matches!(doing, Doing::Candidates | Doing::Request) {
            self.again = Some(self.now);
        }
    }

    /// A relay fails, or carries again.
    pub fn failed(&mut self, relay: &Name, fails: bool, now: Instant) {
        self.pass(now);
        if self.known.is_failed(relay, self.now) == fails {
            return;
        }
        self.known.fail(relay, fails, self.now);
        if fails && self.seat.as_ref().is_some_and(|seat| seat.held.relay == *relay) {
            let calm = self.asked.map_or(self.now, |asked| asked + SOON);
            self.ask_again(calm.max(self.now));
        }
        self.lead();
    }

    /// What has gone through relays in this time.
    pub fn traffic(&mut self, samples: &[(Name, Sample)], time: Duration, now: Instant) {
        self.pass(now);
        if time.is_zero() {
            return;
        }
        for (relay, sample) in samples {
            let rate = sample.sent / time;
            let is_full = Ratio::of(nanos(sample.waited), nanos(time)) >= FULL;
            if is_full || self.known.rate(relay).is_some_and(|known| rate > known) {
                self.known.measure(relay, rate, None, &self.links.up, self.now);
            }
        }
        let Some(seat) = &self.seat else {
            (self.throughput, self.offers) = (Bitrate::ZERO, None);
            return;
        };
        let through = samples.iter().find(|(relay, _)| *relay == seat.held.relay).map(|(_, sample)| *sample);
        let Sample { sent, waited } = through.unwrap_or(Sample { sent: DataSize::ZERO, waited: Duration::ZERO });
        let (rate, waits) = (sent / time, Ratio::of(nanos(waited), nanos(time)));
        self.throughput = rate;
        self.offers = (waits >= BUSY).then(|| rate.max(seat.rate));
        self.low = if waits >= FULL && rate < seat.rate.share(LOW) { self.low + 1 } else { 0 };
        if self.low >= LOW_LOOKS {
            self.low = 0;
            self.ask_when_calm();
        }
    }

    /// The links are like this.
    pub fn links(&mut self, links: LinksNow, now: Instant) {
        self.pass(now);
        let others = links.up != self.links.up && !self.links.up.is_empty();
        let alone = links.alone.max(if others { Bitrate::ZERO } else { self.links.alone });
        self.links = LinksNow { alone, ..links };
        if others {
            self.ask_when_calm();
        }
    }

    /// A flow goes there; whether that is news for [`Machine::save`], which may wait: each flow goes somewhere else.
    pub fn origin(&mut self, origin: Endpoint) -> bool {
        let is_new = self.config.origin.is_none() && self.origin.as_ref() != Some(&origin);
        if is_new {
            self.origin = Some(origin);
        }
        is_new
    }

    /// What an earlier run needs to know.
    pub fn save(&self) -> Saved {
        self.known.save(self.origin.clone(), self.now)
    }

    /// Where relays are, and what is known of them: those that are offered or used.
    pub fn relay(&self, name: &Name) -> Option<RelayKnown> {
        self.known.row(name, self.now)
    }

    /// The relays that are used, the best first.
    pub fn used(&self) -> &[Name] {
        &self.used
    }

    /// What the service has given, and why not if it has given nothing.
    pub fn given(&self) -> (Option<&Held>, Option<Reason>) {
        (self.seat.as_ref().map(|seat| &seat.held), self.reason)
    }

    /// B_o(c), as far as it has been seen.
    pub fn alone(&self) -> Bitrate {
        self.links.alone
    }

    /// What it would ask for now.
    pub fn wish(&self) -> Wish {
        let unknown = || UNKNOWN.parse().expect("a name and a port");
        Wish {
            origin: self.origin.clone().unwrap_or_else(unknown),
            alone: self.links.alone,
            wanted: self.config.wanted,
            position: self.config.position,
            measured: self.known.measured(self.near(), self.now),
        }
    }

    fn pass(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }

    fn start(&mut self, doing: Doing, output: Output) {
        self.doing = doing;
        self.outputs.push_back(output);
    }

    fn ask_again(&mut self, at: Instant) {
        self.again = Some(self.again.map_or(at, |again| again.min(at)));
    }

    fn ask_when_calm(&mut self) {
        let calm = self.asked.map_or(self.now, |asked| asked + CALM);
        self.ask_again(calm.max(self.now));
    }

    /// Rule 2.
    fn measure(&mut self) {
        while let Some(relay) = self.queue.pop_front() {
            let terms = self.terms().filter(|_| self.now.since(self.measuring) < ALL);
            if let Some(terms) = terms {
                self.start(Doing::Probe(relay.clone()), Output::Probe(relay, terms));
                return;
            }
        }
        let wish = self.wish();
        self.start(Doing::Request, Output::Request(wish));
    }

    /// Rule 4; none: nothing may be sent.
    fn terms(&self) -> Option<Terms> {
        let left = (ALL.saturating_sub(self.now.since(self.measuring))).min(EACH);
        let terms = Terms { most: MOST, time: left, only: None };
        let cap = self.config.probe_bytes;
        if !self.links.metered {
            return Some(terms);
        }
        if !cap.is_zero() && self.known.paid(self.now) + cap <= cap * PROBES_A_DAY {
            return Some(Terms { most: cap.min(MOST), ..terms });
        }
        self.links.free.clone().map(|free| Terms { only: Some(free), ..terms })
    }

    fn is_fresh(&self, relay: &Name) -> bool {
        self.known.is_fresh(relay, &self.links.up, self.now)
    }

    /// Rule 5.
    fn lead(&mut self) {
        let kept = self.kept.as_ref().filter(|_| self.config.strict);
        let seat = self.seat.as_ref().map(|seat| &seat.held.relay).or(kept);
        let mut order = self.known.order(&self.offered, self.near(), self.now);
        // The one that was given, unless it fails.
        order.sort_by_key(|name| (self.known.is_failed(name, self.now), Some(name) != seat));
        order.truncate(USED);
        if order != self.used {
            self.used.clone_from(&order);
            self.outputs.push_back(Output::Use(order));
        }
    }

    /// What is enough, where the nearest counts.
    fn near(&self) -> Option<Bitrate> {
        let best = self.known.best(self.now).share(Ratio::from_percent(80));
        self.config.near.then(|| self.config.wanted.map_or(best, |wanted| wanted.min(best)))
    }

    /// Rule 6.
    fn report(&self) -> Report {
        let in_use = |seat: &&Seat| self.used.first() == Some(&seat.held.relay);
        let held = self.seat.as_ref().filter(in_use).map(|seat| seat.held.clone());
        let throughput = if held.is_some() { self.throughput } else { Bitrate::ZERO };
        Report { wish: self.wish(), throughput, offered: self.offers.filter(|_| held.is_some()), held }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
