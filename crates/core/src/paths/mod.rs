//! Which of a connection's links carry it, and when: the policy that kernel MPTCP lacks.
//!
//! In: what the kernel tells of MPTCP connections and their subflows, counters of those that were asked for, and which
//! links there are. Out: commands to a path manager (join, change priority, destroy) and what to look at next.
//!
//! 1. One machine decides for all connections of a host: they share its radios, so that a radio that one of them keeps
//!    awake is cheap for the others.
//! 2. Addresses, ports and address ids are the driver's; here are links, connections and subflows.
//! 3. Nothing is trusted that was only asked for: a subflow is there when it is told of ([`Input::SubflowUp`]), and
//!    suspended when its bytes stand still.
//! 4. The driver looks only where it is told to look ([`Output::Look`]): ten thousand idle connections cost next to
//!    nothing. Every event costs the logarithm of their number; only a link that comes or goes concerns them all.
//! 5. A turn: the event changes a connection's books; the connection is weighed again (`decide`); commands bring it there
//!    (`carry`); it says when it wants to be woken.

mod black_hole;
mod carry;
mod config;
mod conn;
mod decide;
mod event;
mod host;
mod link_mtu;
mod links;
mod looks;
mod outage;
mod pace;
pub mod queue;
mod reason;
mod round;
mod silence;
mod subflow;
#[cfg(test)]
mod tests;
mod trail;
mod view;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use crate::machine::Machine;
use crate::units::{Duration, Instant};

pub use config::{Config, LinkTerms, Policy, Profile};
pub use decide::least_wait;
pub use event::{Command, CommandId, ConnId, Counters, Input, IpFamily, Output, Refusal, Subflow, SubflowId, Why};
pub use view::{ConnView, LinkView, PathView};

use conn::{Conn, Pulse};
use host::Host;
use links::Links;
use looks::UNANSWERED;
use round::Round;

/// The machine. See the [module](self).
#[derive(Debug)]
pub struct Paths {
    host: Host,
    conns: BTreeMap<ConnId, Conn>,
    wakes: BTreeSet<(Instant, ConnId)>,
    round: Round,
}

/// Why the machine wants to be woken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wake {
    /// A connection is to be looked at, or something was to happen by now.
    Conn(ConnId),
    /// Some idle ones are to be looked at.
    Round,
    /// A link's lowered MTU is to be raised.
    Mtu,
}

impl Paths {
    /// A machine that knows its first links, none of which is up.
    pub fn new(config: Config) -> Self {
        Self { host: Host::new(config), conns: BTreeMap::new(), wakes: BTreeSet::new(), round: Round::default() }
    }

    /// One connection's turn: `what` changes its books, then it is weighed again.
    fn turn(&mut self, id: ConnId, weigh: bool, what: impl FnOnce(&mut Conn, &mut Host)) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        what(conn, &mut self.host);
        if weigh {
            weigh_anew(conn, &mut self.host);
        }
        self.settle(id);
    }

    /// Puts a connection where it belongs in the queues.
    fn settle(&mut self, id: ConnId) {
        let now = self.host.now;
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let wake = conn.deadline(&self.host).map(|at| at.max(now + SOON));
        if wake != conn.wake {
            if let Some(at) = conn.wake {
                self.wakes.remove(&(at, id));
            }
            if let Some(at) = wake {
                self.wakes.insert((at, id));
            }
            conn.wake = wake;
        }
        match (conn.pulse, conn.queued) {
            (Pulse::Idle, None) => conn.queued = Some(self.round.add(now, id)),
            (Pulse::Busy, Some(at)) => {
                self.round.remove(at, id);
                conn.queued = None;
            }
            _ => {}
        }
    }

    fn close(&mut self, id: ConnId) {
        let Some(mut conn) = self.conns.remove(&id) else { return };
        conn.leave(&mut self.host);
        if let Some(at) = conn.wake {
            self.wakes.remove(&(at, id));
        }
        if let Some(at) = conn.queued {
            self.round.remove(at, id);
        }
    }

    /// A link came or went: this concerns all.
    fn on_link(&mut self, at: usize, up: bool) {
        let Some(link) = self.host.links.get_mut(at) else { return };
        let all: Vec<ConnId> = self.conns.keys().copied().collect();
        if link.up == up {
            // It has an address of a family that it had none of.
            for id in all.into_iter().filter(|_| up) {
                self.turn(id, true, |conn, host| conn.on_address(host, at));
            }
            return;
        }
        link.up = up;
        self.host.reset_mtu(at);
        self.host.on_return(at);
        for id in all {
            self.turn(id, true, |conn, host| conn.on_link(host, at, up));
        }
    }
}

impl Machine for Paths {
    type Input = Input;
    type Output = Output;
    type Reason = Wake;

    fn handle(&mut self, now: Instant, input: Input) {
        self.host.now = self.host.now.max(now);
        let now = self.host.now;
        match input {
            Input::LinkUp { link } | Input::LinkDown { link } => {
                let up = matches!(input, Input::LinkUp { .. });
                if let Some(at) = self.host.place(link) {
                    self.on_link(at, up);
                }
            }
            Input::Interface { link, mtu, v4 } => {
                if let Some(at) = self.host.place(link) {
                    self.host.on_interface(at, mtu, v4);
                }
            }
            Input::Link { terms } => {
                if self.host.add(terms) {
                    let links = self.host.links.len();
                    self.conns.values_mut().for_each(|conn| conn.on_links(links, now));
                }
            }
            Input::Traffic { link, received, sent } => {
                let Some(at) = self.host.place(link) else { return };
                let Host { links, meter, .. } = &mut self.host;
                let Some(link) = links.get_mut(at) else { return };
                let unexplained = link.on_traffic(meter, now, [received, sent]);
                self.round.on_unexplained(now, unexplained);
            }
            Input::Opened { conn, adopted, only_announced } => {
                if !self.conns.contains_key(&conn) {
                    let mut new = Conn::new(conn, self.host.links.len(), now);
                    (new.adopted, new.closed_to_joins) = (adopted, only_announced);
                    self.host.busy += 1;
                    self.conns.insert(conn, new);
                    self.settle(conn);
                }
            }
            Input::Announced { conn } => self.turn(conn, true, |conn, host| conn.on_announced(host.now)),
            Input::Closed { conn } => self.close(conn),
            Input::SubflowUp { conn, subflow } => {
                self.turn(conn, true, |conn, host| conn.on_up(host, &subflow));
            }
            Input::SubflowDown { conn, subflow, why } => {
                self.turn(conn, true, |conn, host| conn.on_down(host, subflow, why));
            }
            Input::Seen { conn, subflow, counters } => {
                let mut whole = false;
                self.turn(conn, false, |conn, host| whole = conn.on_seen(host, subflow, counters));
                if whole {
                    self.turn(conn, true, Conn::whole);
                }
            }
            Input::Done { command, refused } => {
                let Some((id, what)) = self.host.answered(command) else { return };
                if refused == Some(Refusal::NoConnection) {
                    self.close(id);
                } else {
                    self.turn(id, refused.is_some(), |conn, host| conn.on_done(host, command, what, refused));
                }
            }
        }
    }

    fn tick(&mut self, now: Instant) {
        self.host.now = self.host.now.max(now);
        let now = self.host.now;
        self.host.raise_mtus();
        while let Some((at, id)) = self.wakes.first().copied() {
            if at > now {
                break;
            }
            self.turn(id, true, Conn::on_time);
            if self.wakes.contains(&(at, id)) {
                // A connection that does not move its own deadline would hold time up.
                self.wakes.remove(&(at, id));
                if let Some(conn) = self.conns.get_mut(&id) {
                    conn.wake = None;
                }
            }
        }
        for _ in 0..self.round.turn(now) {
            let Some((_, id)) = self.round.oldest(now) else { break };
            let Some(conn) = self.conns.get_mut(&id) else { continue };
            conn.queued = Some(now);
            conn.ask(&mut self.host);
        }
    }

    fn poll(&mut self) -> Option<Output> {
        self.host.out.pop_front()
    }

    fn deadline(&self) -> Option<(Instant, Wake)> {
        let conn = self.wakes.first().map(|(at, id)| (*at, Wake::Conn(*id)));
        let round = self.round.deadline().map(|at| (at, Wake::Round));
        let mtu = self.host.mtu_deadline().map(|at| (at, Wake::Mtu));
        conn.into_iter().chain(round).chain(mtu).min_by_key(|(at, _)| *at)
    }
}

impl Conn {
    fn on_time(&mut self, host: &mut Host) {
        let now = host.now;
        self.on_late_joins(host);
        self.revive(host);
        if self.pulse == Pulse::Busy {
            if self.asked.is_some_and(|asked| now.since(asked) >= UNANSWERED) {
                self.asked = None;
            }
            if now >= self.look && self.asked.is_none() {
                self.ask(host);
            }
        }
    }

    /// Asks for a look.
    fn ask(&mut self, host: &mut Host) {
        for sub in &mut self.subs {
            sub.answered = false;
        }
        if self.subs.is_empty() {
            self.look = host.now + UNANSWERED;
            return;
        }
        self.asked = Some(host.now);
        self.look = host.now + self.interval(host);
        host.out.push_back(Output::Look { conn: self.id });
    }

    /// When it wants to be woken.
    fn deadline(&self, host: &Host) -> Option<Instant> {
        let look = match (self.pulse, self.asked) {
            (Pulse::Idle, _) => None,
            (Pulse::Busy, Some(asked)) => Some(asked + UNANSWERED),
            (Pulse::Busy, None) => Some(self.look),
        };
        let wanted = self.active.without(self.joined()).and(host.up());
        let retry = wanted.iter().filter_map(|at| self.paths.get(at)).map(|path| path.not_before);
        let retry = retry.filter(|at| *at > host.now).min();
        look.into_iter().chain(self.path_deadline()).chain(retry).min()
    }
}

/// Chooses and goes there.
fn weigh_anew(conn: &mut Conn, host: &mut Host) {
    // Of one that ran before, all subflows are told one after another: its first look knows them.
    if conn.subs.is_empty() && conn.home.is_none() || conn.adopted && conn.subs.iter().any(|sub| sub.seen.is_none())
    {
        return;
    }
    if conn.adopted && conn.active.is_empty() {
        conn.active = conn.carrying();
    }
    conn.on_black_holes(host);
    conn.on_silence(host);
    let choice = conn.choose(host);
    host.trials.on_turn(host.now, conn.id, &mut conn.trial);
    conn.carry_out(host, choice);
    let carrying = conn.carrying();
    if carrying != Links::NONE {
        conn.share(host, carrying);
    }
}

/// A deadline is never sooner: time must pass between two turns of a connection.
const SOON: Duration = Duration::from_millis(1);
