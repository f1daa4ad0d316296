//! Carrying a choice out: joins, priorities, ends.
//!
//! In: which links are to carry a connection. Out: the commands that bring it there from where it is.
//!
//! 1. New before old: a link is given up only when one of those that stay has brought bytes; it is suspended also when
//!    the connection is idle and no refusal is to be feared any more, or [`GRACE`] is over. All subflows as backups would be the same as none.
//! 2. A link that has a subflow is never joined again, but to prove or replace it (`silence`).
//! 3. A join that does not come up in 3 s or three round trips is given up without a command, and is tried again later:
//!    each time twice as late. A subflow that the server resets at once was refused, and is left alone for longer.
//! 4. A connection that the driver says only takes announced addresses is not joined until one is announced.

use super::config::{Config, Policy, Profile};
use super::conn::{Conn, Dead, Join, Path, Pulse, Purpose};
use super::decide::Choice;
use super::event::{Command, Output, Refusal, Subflow, Why};
use super::host::Host;
use super::links::{Link, Links};
use super::looks::MUTE;
use super::reason::{Hindrance, Reason};
use super::silence::attempt;
use super::subflow::Sub;
use crate::energy::Direction;
use crate::units::{DataSize, Duration, Instant, Ratio};

/// How long a subflow that was asked to carry may bring nothing before others are given up for it nevertheless. chosen:
/// three times the longest usual slow start's first round trips.
const GRACE: Duration = Duration::from_secs(2);
/// A join that needs longer than this and three round trips has failed (facts: an unreachable path is silent for ever).
const COMES: Duration = Duration::from_secs(3);
/// The first pause after a join that did not come up; doubled each time.
const RETRY: Duration = Duration::from_secs(2);
/// The longest of them.
const RETRY_MOST: Duration = Duration::from_secs(300);
/// A subflow that is reset so soon, without a byte, was refused (facts: after 0 to 100 ms; a third one after 36 ms).
const REFUSED: Duration = Duration::from_secs(2);
/// The first pause after a refusal; doubled each time, up to an hour. chosen: a server's limit lasts as long as the
/// connection's other subflows do.
const REFUSED_PAUSE: Duration = Duration::from_secs(60);
/// The part of all looks in which a slow link brings something. chosen: at 120 kbit/s a packet comes every 100 ms, as often as it
/// is looked; small answers over a round trip of 120 ms pause in every second one.
const STEADY: Ratio = Ratio::from_percent(75);
const HOUR: Duration = Duration::from_secs(3600);
/// The connection could not be joined yet.
const NOT_YET: Duration = Duration::from_millis(200);
/// There was no address for it, or no permission: the first pause and the longest.
const NO_WAY: Duration = Duration::from_secs(15);
const NO_WAY_MOST: Duration = Duration::from_secs(120);

impl Conn {
    /// Goes where the choice points.
    pub(super) fn carry_out(&mut self, host: &mut Host, choice: Choice) {
        let now = host.now;
        if choice.active != self.active {
            (self.active, self.since) = (choice.active, now);
        }
        for link in choice.active.iter() {
            match self.on(link).map(|sub| (sub.id, sub.backup)) {
                None => self.join(host, link, false, Purpose::Use),
                Some((id, true)) => self.prioritise(host, id, false),
                Some((_, false)) => {}
            }
        }
        for link in choice.spare.without(choice.active).iter() {
            if self.on(link).is_none() {
                self.join(host, link, true, Purpose::Use);
            }
        }
        let (ready, proven) = self.is_ready(choice.active, now);
        if ready {
            // What is suspended and drained holds nothing up, and stays as a stand-by; unless it must cost nothing.
            let ends = |link: usize, sub: &Sub| {
                let holds = !sub.backup || sub.checking().is_some();
                choice.destroy.has(link) && (holds || !choice.spare.has(link))
            };
            let mut asked = alloc::vec::Vec::new();
            for sub in self.subs.iter().filter(|sub| !sub.leaving) {
                match sub.link {
                    Some(link) if choice.active.has(link) || !host.up().has(link) => {}
                    Some(link) if proven && ends(link, sub) => asked.push((sub.id, true)),
                    Some(_) if !sub.backup => asked.push((sub.id, false)),
                    _ => {}
                }
            }
            for (id, end) in asked {
                let is_backup = self.subs.iter().any(|sub| sub.id == id && sub.backup);
                match end && self.may_end(host, id) {
                    true => self.destroy(host, id),
                    false if is_backup => {}
                    false => self.prioritise(host, id, true),
                }
            }
        }
        self.say(host, choice.reason);
    }

    /// Whether the others may rest, and whether they may go: one of the links that stay carries already. One that has
    /// brought nothing may be dead, and then a backup is what takes over.
    fn is_ready(&self, active: Links, now: Instant) -> (bool, bool) {
        let idle = self.pulse == Pulse::Idle;
        let stays = |sub: &&Sub| sub.link.is_some_and(|link| active.has(link)) && !sub.backup && !sub.leaving;
        let waited = |sub: &Sub| now.since(sub.active) > GRACE || idle && now.since(sub.up) > REFUSED;
        let ready = self.subs.iter().filter(stays).any(|sub| sub.proven || waited(sub));
        (ready, self.subs.iter().filter(stays).any(|sub| sub.proven))
    }

    /// Joins a link, if nothing speaks against it.
    pub(super) fn join(&mut self, host: &mut Host, link: usize, backup: bool, purpose: Purpose) {
        let free = self.is_joinable(host, link);
        let (Some(known), Some(path)) = (host.link(link), self.paths.get_mut(link)) else { return };
        if !free || path.join != Join::No {
            return;
        }
        let id = known.terms.link;
        let command = host.command(self.id, Command::Join { link: id, backup });
        path.join = Join::Asked(command, purpose);
    }

    /// Whether a link could be joined now.
    pub(super) fn is_joinable(&self, host: &Host, link: usize) -> bool {
        let up = host.link(link).is_some_and(|link| link.up && !link.spent());
        let path = self.paths.get(link);
        up && !self.closed_to_joins && path.is_some_and(|path| host.now >= path.not_before)
    }

    fn prioritise(&mut self, host: &mut Host, id: super::SubflowId, backup: bool) {
        let (now, volume, from) = (host.now, self.volume, self.given_from());
        let Some(sub) = self.sub_mut(id) else { return };
        sub.ask(now, backup);
        sub.beside = volume;
        (sub.given_from, sub.given) = (from, None);
        let (link, rtt) = (sub.link, sub.rtt());
        host.command(self.id, Command::Prioritise { subflow: id, backup });
        let Some(link) = link else { return };
        if !backup {
            if let Some(known) = host.link(link) {
                let id = known.terms.link;
                host.meter.on_bytes(now, id, Direction::Up, DataSize::ZERO);
            }
            if let Some(path) = self.paths.get_mut(link) {
                path.mute = now + MUTE + rtt;
            }
        }
    }

    /// A subflow of a half-closed connection could not be replaced. A budget holds all the same.
    fn may_end(&self, host: &Host, id: super::SubflowId) -> bool {
        let link = self.subs.iter().find(|sub| sub.id == id).and_then(|sub| sub.link);
        !self.is_half_closed || link.and_then(|link| host.link(link)).is_some_and(Link::spent)
    }

    pub(super) fn destroy(&mut self, host: &mut Host, id: super::SubflowId) {
        if !self.may_end(host, id) {
            return;
        }
        let conn = self.id;
        // The last one stays whatever it is; one that has just come up may yet be refused, and is none to rely on, unless
        // the other is no better.
        let now = host.now;
        let stays = |sub: &Sub| sub.initial || sub.proven || sub.volume() > 0 || now.since(sub.up) > REFUSED;
        let young = self.subs.iter().any(|sub| sub.id == id && !stays(sub));
        if !self.subs.iter().any(|sub| sub.id != id && !sub.leaving && (young || stays(sub))) {
            return;
        }
        if let Some(sub) = self.sub_mut(id).filter(|sub| !sub.leaving) {
            sub.leaving = true;
            host.command(conn, Command::Destroy { subflow: id });
        }
    }

    /// A subflow is there.
    pub(super) fn on_up(&mut self, host: &mut Host, subflow: &Subflow) {
        let now = host.now;
        let link = subflow.link.and_then(|link| host.place(link));
        if self.subs.iter().any(|sub| sub.id == subflow.id) {
            return;
        }
        let rivals: alloc::vec::Vec<_> =
            self.subs.iter().filter(|sub| sub.link == link && !sub.leaving).map(|sub| sub.id).collect();
        let mut sub = Sub::new(subflow, link, now);
        sub.beside = self.volume;
        sub.given_from = self.given_from();
        if self.home.is_none() || subflow.initial {
            self.home = link.or(self.home);
        }
        let mut ends = alloc::vec::Vec::new();
        let adopting = self.adopted && self.subs.iter().any(|sub| sub.seen.is_none());
        if let (Some(at), Some(path)) = (link, link.and_then(|link| self.paths.get_mut(link))) {
            let was_dead = path.dead.take().is_some();
            if was_dead && host.config.policy == Policy::Marline {
                path.restart(now);
            }
            if host.links.get(at).is_some_and(Link::is_silent) {
                host.on_return(at);
            }
            if let Some(known) = host.links.get_mut(at) {
                known.alive = Some(now);
            }
            // One whose first SYN was lost comes up after the join was given up, and is of use all the same.
            let tries = path.smaller.is_some_and(|smaller| !smaller.sends) && !path.join.proves();
            let beside = path.join.is_smaller() || tries;
            (path.join, path.proved) = (Join::No, Some(now));
            // Where speed is the aim it counts how soon a path is seen to be the faster one.
            let mute = if host.config.profile == Profile::Throughput { Duration::ZERO } else { MUTE };
            (path.bytes, path.from, path.mute) = (0, now, now + mute + sub.rtt());
            // On a dead path the old one's sender has backed off: it goes when the new one has shown that it stays
            // (`tidy`). Otherwise the old one is alive, and this was a proof, even if it comes late. Of those that ran
            // before us the newest is the one to keep.
            if !rivals.is_empty() && !was_dead && !adopting && !beside {
                sub.leaving = true;
                ends.push(subflow.id);
            }
        }
        if subflow.initial {
            // A first subflow that has just begun is not one whose window opens late.
            if let Some(path) = link.and_then(|link| self.paths.get_mut(link)) {
                path.mute = now;
            }
        }
        let leaving = core::mem::take(&mut sub.leaving);
        for old in self.subs.iter_mut().filter(|old| old.link == link && old.stuck.is_some()) {
            old.stuck_at_proof.get_or_insert(old.timeouts);
        }
        self.subs.push(sub);
        for id in ends {
            self.destroy(host, id);
        }
        if let Some(sub) = self.sub_mut(subflow.id) {
            sub.leaving |= leaving;
        }
    }

    /// Of two subflows on one link the older one goes, once the newer one carries or has stood by for a while: a server that
    /// refuses resets it at once, and then the older one is still there.
    pub(super) fn tidy(&mut self, host: &mut Host) {
        let now = host.now;
        let old = |sub: &&Sub| {
            let newer = sub.link.and_then(|link| self.on(link));
            let on_trial = sub.link.and_then(|at| self.paths.get(at)).is_some_and(|path| path.smaller.is_some());
            newer.is_some_and(|newer| {
                !on_trial && newer.id != sub.id && (newer.proven || now.since(newer.up) > REFUSED)
            })
        };
        let ends: alloc::vec::Vec<_> =
            self.subs.iter().filter(|sub| !sub.leaving).filter(old).map(|sub| sub.id).collect();
        for id in ends {
            self.destroy(host, id);
        }
    }

    /// A subflow is gone.
    pub(super) fn on_down(&mut self, host: &mut Host, id: super::SubflowId, why: Why) {
        let Some(at) = self.subs.iter().position(|sub| sub.id == id) else { return };
        let sub = self.subs.remove(at);
        let now = host.now;
        let others = self.on(sub.link.unwrap_or(usize::MAX)).is_some();
        if let Some(link) = sub.link.filter(|_| why == Why::Reset && others) {
            self.on_no_second(host, link, sub.up);
        }
        let Some(path) = sub.link.and_then(|link| self.paths.get_mut(link)) else { return };
        if sub.leaving || others {
            return;
        }
        match why {
            Why::Reset if now.since(sub.up) < REFUSED && sub.volume() == 0 => {
                path.refused = Some(Hindrance::Server);
                path.not_before = now + later(REFUSED_PAUSE, &mut path.fails, HOUR);
            }
            // Of an address that the link has lost: it may have another one already. Not again and again: a link may say so
            // of each subflow.
            Why::Unreachable => {
                let soon = now.since(sub.up) > REFUSED;
                path.dead = Some(Dead::at(now, now + if soon { NOT_YET } else { RETRY }));
            }
            Why::TimedOut => path.dead = Some(Dead::at(now, now + Dead::FIRST)),
            Why::Closed | Why::Reset | Why::Other => {
                let first = if path.is_returning() { NOT_YET } else { RETRY };
                path.not_before = now + later(first, &mut path.fails, RETRY_MOST);
            }
        }
    }

    /// A command was answered.
    pub(super) fn on_done(
        &mut self,
        host: &mut Host,
        command: super::CommandId,
        what: Command,
        refused: Option<Refusal>,
    ) {
        let now = host.now;
        if refused == Some(Refusal::HalfClosed) {
            (self.is_half_closed, self.closed_to_joins) = (true, true);
            self.abandon_trials(host);
        }
        match what {
            Command::Join { link, .. } => {
                let rtt = host.place(link).and_then(|at| self.on(at)).map_or_else(|| self.rtt(), Sub::handshake);
                if refused.is_none() {
                    // The SYN wakes the radio.
                    host.meter.on_bytes(now, link, Direction::Up, DataSize::ZERO);
                }
                let Some(path) = host.place(link).and_then(|at| self.paths.get_mut(at)) else { return };
                let purpose = match path.join {
                    Join::Asked(asked, purpose) if asked == command => purpose,
                    _ => return,
                };
                path.join = match refused {
                    None => Join::Coming(purpose.patience(now, rtt), purpose),
                    Some(why) => {
                        // The routes of a link that returns come a moment after its address.
                        let soon = path.is_returning().then_some(NOT_YET);
                        path.refused = match why {
                            Refusal::NotAnnounced(family) => Some(Hindrance::NotAnnounced(family)),
                            Refusal::SocketFamily(family) => Some(Hindrance::Socket(family)),
                            _ => path.refused,
                        };
                        path.not_before = now
                            + match why {
                                Refusal::NotYet => NOT_YET,
                                // An announcement, or another address of the link, ends this wait; nothing ends a half-closed connection's.
                                Refusal::NotAnnounced(_) | Refusal::SocketFamily(_) | Refusal::HalfClosed => HOUR,
                                Refusal::NoAddress | Refusal::NotPermitted => {
                                    later(soon.unwrap_or(NO_WAY), &mut path.fails, NO_WAY_MOST)
                                }
                                _ => later(soon.unwrap_or(RETRY), &mut path.fails, RETRY_MOST),
                            };
                        Join::No
                    }
                };
                if let (Some(why), Purpose::Smaller, Some(at)) = (refused, purpose, host.place(link)) {
                    self.on_smaller_refused(host, at, why);
                }
            }
            Command::Prioritise { subflow, .. } | Command::Destroy { subflow } => {
                if refused == Some(Refusal::HalfClosed) {
                    if let Some(sub) = self.sub_mut(subflow) {
                        sub.leaving = false;
                    }
                } else if refused == Some(Refusal::NoSubflow) {
                    // It is told of as gone, or the next look says so.
                    if let Some(sub) = self.sub_mut(subflow) {
                        sub.check = None;
                    }
                }
            }
        }
    }

    /// The server has announced an address.
    pub(super) fn on_announced(&mut self, now: Instant) {
        self.closed_to_joins = self.is_half_closed;
        let waits = |path: &&mut Path| matches!(path.refused, Some(Hindrance::NotAnnounced(_)));
        for path in self.paths.iter_mut().filter(waits) {
            (path.refused, path.not_before, path.fails) = (None, now, 0);
        }
    }

    /// Joins that did not come up in time.
    pub(super) fn on_late_joins(&mut self, host: &mut Host) {
        let now = host.now;
        for link in 0..self.paths.len() {
            let Some(path) = self.paths.get_mut(link) else { continue };
            let Join::Coming(until, purpose) = path.join else { continue };
            if now < until {
                continue;
            }
            path.join = Join::No;
            match purpose {
                Purpose::Use => {
                    // It came up before, so that the link has become silent since: it is probed like one that carried.
                    let silent = host.config.policy == Policy::Marline && path.proved.is_some();
                    let pause = if silent { Dead::FIRST } else { later(RETRY, &mut path.fails, RETRY_MOST) };
                    if silent {
                        path.dead.get_or_insert(Dead::at(now, now + pause));
                    } else {
                        path.not_before = now + pause;
                    }
                    self.say_unanswered(host, link, pause);
                }
                Purpose::Prove { until } if now < until => self.join(host, link, true, purpose),
                Purpose::Prove { .. } => self.on_no_proof(host, link),
                Purpose::Return | Purpose::Smaller => {}
            }
        }
    }

    /// Says that nothing came of a join; then why it is carried as it is once more, so that this is the last word.
    fn say_unanswered(&mut self, host: &mut Host, link: usize, pause: Duration) {
        let (name, waited) = (host.name(link), COMES.max(self.rtt() * 3));
        let reason =
            alloc::format!("join over {name}: no answer in {} s; again in {} s", waited.as_secs(), pause.as_secs());
        host.out.push_back(Output::Note { conn: self.id, reason });
        self.said = None;
    }

    /// Says why, if that is new.
    fn say(&mut self, host: &mut Host, reason: Reason) {
        self.reason = reason;
        if self.said.is_some_and(|said| said.same(&reason)) || reason == Reason::New {
            return;
        }
        self.said = Some(reason);
        let text = reason.sentence(|at| host.name(at));
        host.out.push_back(Output::Note { conn: self.id, reason: text });
    }

    /// κ bytes or τ seconds have passed (eMPTCP §3.5): it is worth a thought. For ours they must be of one answer
    /// ([`Conn::answers`]): what a connection carried before a pause tells nothing of what follows it, and one small answer
    /// after another over a long way is no slow link, and ends before a radio pays.
    pub(super) fn admit(&mut self, config: &Config, now: Instant, interval: Duration) {
        let (carried, old) = match config.policy {
            Policy::Marline => (self.answer.1, self.is_steady(now, config.tau)),
            _ => (self.volume, self.volume > 0 && now.since(self.opened) >= config.tau),
        };
        self.admitted |= carried >= config.kappa.bytes() || old && !self.is_still(now, interval);
    }
}

impl Conn {
    /// Whether an answer has lasted for this time: bytes came in [`STEADY`] of all looks, or fewer because a queue is full.
    pub(super) fn is_steady(&self, now: Instant, time: Duration) -> bool {
        let (all, moving) = self.looks;
        let steady = u64::from(moving) * 1_000_000 >= u64::from(all) * u64::from(STEADY.ppm());
        let fills = |sub: &Sub| !sub.backup && !sub.leaving && sub.fills();
        now.since(self.answer.0) >= time && (steady || self.subs.iter().any(fills))
    }
}

impl Purpose {
    /// When a subflow whose SYN goes out now is too late.
    fn patience(self, now: Instant, rtt: Duration) -> Instant {
        match self {
            Self::Use => now + COMES.max(rtt * 3),
            Self::Prove { until } => {
                let next = now + attempt(rtt);
                // No attempt that has hardly any time left.
                if next + attempt(rtt) / 2 > until { until } else { next }
            }
            Self::Return | Self::Smaller => now + (rtt * 3).max(Duration::from_secs(1)),
        }
    }
}

/// The next pause: doubled with each failure.
fn later(first: Duration, fails: &mut u8, most: Duration) -> Duration {
    let pause = first.saturating_mul(1 << u32::from(*fails).min(16)).min(most);
    *fails = fails.saturating_add(1);
    pause
}
