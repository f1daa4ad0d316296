//! Path MTU black holes (RFC 2923, section 2.1): links whose full-sized packets vanish while small ones pass.
//!
//! A tunnel or a mobile bearer makes the path's MTU smaller than the interface's, and the ICMP message that would say so is
//! dropped. Handshakes and probes then succeed, so that the path is not silent, and every full-sized segment is lost. MPTCP
//! sends the data again over the other subflows and gives the link new data, which is lost again: several links are slower
//! than one. What tells it apart from a silent or lossy path, and from a sender that has nothing to send:
//!
//! 1. *Sent from here:* no byte is acknowledged over [`TIMEOUTS`] retransmission timeouts in a row; a second subflow over the
//!    same link has been established meanwhile, so that small packets pass; and a retransmission that was sent after that is
//!    not acknowledged either. Without it an outage that has just ended would look the same.
//! 2. *Sent by the peer:* its data sequence numbers (RFC 8684, section 3.3) show it ([`Conn::on_reached`]). If the other
//!    subflows deliver bytes 1–1000 and 3001–4000 of the connection, the peer has sent 1001–3000 over this one. Nothing of it
//!    arrives for [`GIVEN`]. A sender that has nothing to send over the link skips nothing. If the kernel reports no sequence
//!    numbers, there are too many connections to read them often, or several other subflows carry, whose own gaps may hide
//!    this one's: nothing came for [`NOTHING`] while the connection received [`BESIDE`] over others without pauses.
//! 3. *The step itself.* The link's MTU is lowered (see `link_mtu`) and the link joined again, because both ends agree on the
//!    segment size in the handshake. Data over the new subflow confirm the step. What the peer sends is weaker evidence, so
//!    the old subflow stays meanwhile: the step is confirmed only if the old one still brings nothing, and undone if it
//!    brings something, or if neither does. If the old one had to go, and no sequence numbers have shown that data were lost,
//!    the new one must bring [`BURST`].
//!
//! Where all connections are steered as one (`Config::as_one`), there are no sequence numbers and no second subflow over a
//! link to compare with. There what the peer sends is not examined.
//!
//! If no step helps what is sent from here, the link is left out like one that the server refuses.
//!
//! Not chosen: the kernel's own probing (`net.ipv4.tcp_mtu_probing`). It is a setting of the whole host, it does nothing for
//! what the peer sends, and each new subflow begins to search again.

use alloc::vec::Vec;

use super::config::Policy;
use super::conn::{Conn, Dead, Join, Pulse, Purpose, Reached, Smaller};
use super::event::{Output, Refusal, SubflowId};
use super::host::Host;
use super::link_mtu::Step;
use super::silence::Silence;
use super::subflow::{FULL, Sub};
use crate::energy::Direction;
use crate::units::{DataSize, Duration, Instant};

/// chosen: two retransmissions of the same data, a second after it was sent first.
const TIMEOUTS: u8 = 2;
/// If the link cannot be joined a second time, so many are waited for instead: about two seconds. chosen: one more, because
/// nothing but the handshake shows then that small packets pass.
const ALONE: u8 = 3;
/// How long data that the peer has sent may be on their way. chosen: the first retransmission on a link with 150 ms of round
/// trip and as much queue comes after half of that; with the join, the link is of use within two seconds.
const GIVEN: Duration = Duration::from_millis(1000);
/// The peer's second retransmission comes after six to seven round trips.
const GIVEN_IN_RTTS: u32 = 6;
/// chosen: with the join that follows, a link is of use two seconds after it was first given data.
const NOTHING: Duration = Duration::from_millis(1500);
/// chosen: more than a request, its answer's first window and what one queue holds.
const BESIDE: DataSize = DataSize::from_kib(128);
/// What the peer sends over one subflow at once before it chooses again (Linux: 64 KB). More than that over the new subflow,
/// and nothing over the old one, is no accident.
const BURST: DataSize = DataSize::from_kib(64);
/// On a slow link less counts, after this time.
const BURST_TIME: Duration = Duration::from_secs(2);
/// Sequence numbers are read often enough if no more passes from one look to the next: the peer takes a retransmission
/// timeout, 200 ms at least, to send lost data over another subflow.
const OFTEN: Duration = Duration::from_millis(150);
/// How long a link is left alone on which no step helps. chosen: as after a refusal.
const GIVEN_UP: Duration = Duration::from_secs(60);

impl Conn {
    /// Notes how far the data reach that came, and which subflows have not delivered what they were given. To be called at each
    /// whole look.
    ///
    /// A subflow receives in order, so that data which the others skip were sent over one that has not delivered them. What
    /// is sent again over the others counts as received, not as skipped. Of several others the slower ones have yet to deliver
    /// what a faster one skips: only data before what all of them have reached are certainly not theirs.
    pub(super) fn on_reached(&mut self, now: Instant) {
        let before = self.reached.map(|reached| reached.to);
        let to = self.subs.iter().filter_map(Sub::reached).chain(before).max();
        let reached = to.map(|to| Reached { to, came: self.came });
        self.reached = reached;
        let Some(reached) = reached else { return };
        let passed = |sub: &Sub| match self.bringing(sub.id).count() {
            0 | 1 => reached.to,
            _ => self.bringing(sub.id).filter_map(Sub::reached).min().unwrap_or_default(),
        };
        let passed: Vec<DataSize> = self.subs.iter().map(passed).collect();
        for (sub, to) in self.subs.iter_mut().zip(passed).filter(|(sub, _)| !sub.backup && !sub.leaving) {
            let from = *sub.given_from.get_or_insert(reached);
            let skipped = (to - from.to) - (reached.came - from.came);
            if !sub.has_received_nothing() {
                sub.given = None;
            } else if skipped >= FULL {
                sub.given.get_or_insert(now);
            }
        }
    }

    /// The other subflows that carry and have brought data.
    fn bringing(&self, but: SubflowId) -> impl Iterator<Item = &Sub> {
        let brings = move |sub: &&Sub| sub.id != but && !sub.backup && !sub.leaving && !sub.has_received_nothing();
        self.subs.iter().filter(brings)
    }

    /// From where on data may be given to a subflow that is asked to carry now; none: not known.
    pub(super) fn given_from(&self) -> Option<Reached> {
        self.reached.or_else(|| self.came.is_zero().then(Reached::default))
    }

    /// Looks for subflows whose full-sized packets vanish, and judges the steps that were taken. To be called at each turn.
    pub(super) fn on_black_holes(&mut self, host: &mut Host) {
        if host.config.policy != Policy::Marline || self.closed_to_joins {
            return;
        }
        for at in 0..self.paths.len() {
            self.judge_smaller(host, at);
        }
        let found: Vec<Lost> = self.subs.iter().filter_map(|sub| self.lost(host, sub)).collect();
        for lost in found {
            match lost {
                Lost::Unproved { at, handshake } => {
                    let until = host.now + Silence::Pressing.patience(handshake);
                    self.join(host, at, true, Purpose::Prove { until });
                }
                Lost::Sent { at, up } => self.on_lost_upload(host, at, up),
                Lost::Received { at, up, weak } => self.on_lost_download(host, at, up, weak),
            }
        }
    }

    /// What is to be done for a subflow whose full-sized packets seem to vanish.
    fn lost(&self, host: &Host, sub: &Sub) -> Option<Lost> {
        let at = sub.link.filter(|_| !sub.backup && !sub.leaving)?;
        let (path, link) = (self.paths.get(at)?, host.link(at)?);
        if !link.up || path.dead.is_some() || path.join != Join::No {
            return None;
        }
        let (now, up) = (host.now, sub.up);
        // Nothing has passed since its own handshake, and no other subflow has come up since.
        let own = path.proved == Some(up) && sub.volume() == 0 && sub.stuck_at_proof.is_none();
        if sub.stuck.is_some() {
            let unanswered = sub.sent_again.is_some_and(|since| now.since(since) >= sub.answer_time());
            if unanswered && sub.timeouts >= TIMEOUTS || own && sub.timeouts >= ALONE {
                return Some(Lost::Sent { at, up });
            }
            // Now rather than after the silence that is waited for elsewhere, so that the next retransmission comes after it.
            if own && self.pulse == Pulse::Busy && self.is_joinable(host, at) {
                return Some(Lost::Unproved { at, handshake: sub.handshake() });
            }
        }
        self.receives_nothing(host, at, sub).then_some(Lost::Received { at, up, weak: sub.given.is_none() })
    }

    /// Whether the peer's data reaches this end over other subflows and not over this one.
    fn receives_nothing(&self, host: &Host, at: usize, sub: &Sub) -> bool {
        let (now, handshake) = (host.now, sub.handshake());
        let newest = self.on(at).is_some_and(|newest| newest.id == sub.id);
        let nothing = newest && sub.has_received_nothing() && sub.waits.is_none() && !sub.peer_backup();
        let known = !self.adopted && !host.config.as_one;
        if !nothing || !known || self.direction() != Direction::Down || !self.is_joinable(host, at) {
            return false;
        }
        let lowered = host.link(at).and_then(|link| link.mtu.lowered());
        let after = lowered.is_some_and(|lowered| sub.up > lowered.since);
        if let Some(given) = sub.given {
            return now.since(given) >= GIVEN.max(handshake * GIVEN_IN_RTTS);
        }
        let skips_show =
            self.reached.is_some() && self.interval(host) <= OFTEN && self.bringing(sub.id).count() < 2;
        if after || skips_show {
            return false;
        }
        let beside = self.volume.saturating_sub(sub.beside) >= BESIDE.bytes();
        beside && now.since(sub.active) >= NOTHING.max(handshake * 6) && self.is_steady(now, NOTHING)
    }

    /// Own full-sized packets of a subflow that came up then vanish on this link.
    fn on_lost_upload(&mut self, host: &mut Host, at: usize, up: Instant) {
        let now = host.now;
        let step = host.lower_mtu(at, up);
        let last = self.end_all_on(host, at);
        let Some(path) = self.paths.get_mut(at) else { return };
        path.restart(now);
        if let Step::Lowered(mtu) = step {
            path.smaller = Some(Smaller { since: now, mtu, sends: true, weak: false });
            path.not_before = now;
            // The only subflow stays until the new one carries.
            path.dead = last.then_some(Dead::at(now, now));
            return;
        }
        path.smaller = None;
        path.not_before = now + GIVEN_UP;
        if !core::mem::replace(&mut path.useless, true) {
            let (name, time) = (host.name(at), GIVEN_UP.as_secs());
            let least = host.link(at).map_or(0, |link| link.mtu.least());
            let reason = alloc::format!(
                "data over {name} is lost even in packets of {least} bytes: the link is not used for {time} s"
            );
            self.note(host, reason);
        }
    }

    /// The peer's data do not arrive over a subflow that came up then.
    fn on_lost_download(&mut self, host: &mut Host, at: usize, up: Instant, weak: bool) {
        let now = host.now;
        let Some(link) = host.link(at) else { return };
        match link.mtu.lowered() {
            // Its packets are larger than those that are known to pass.
            Some(lowered) if lowered.since > up && lowered.confirmed => self.begin_smaller(host, at, up, weak),
            // Another connection finds out.
            Some(lowered) if lowered.since > up => {}
            // The step before has not helped.
            Some(lowered)
                if !lowered.confirmed && self.paths.get(at).is_some_and(|path| path.smaller.is_some()) =>
            {
                self.begin_smaller(host, at, up, weak);
            }
            _ if !link.mtu.may_try(now) => {}
            _ => self.begin_smaller(host, at, up, weak),
        }
    }

    /// Joins the link once more, with a smaller MTU. The subflow that is there stays.
    fn begin_smaller(&mut self, host: &mut Host, at: usize, up: Instant, weak: bool) {
        let now = host.now;
        let Step::Lowered(mtu) = host.lower_mtu(at, up) else {
            self.judge_smaller(host, at);
            return;
        };
        let Some(path) = self.paths.get_mut(at) else { return };
        path.smaller = Some(Smaller { since: now, mtu, sends: false, weak });
        self.join(host, at, false, Purpose::Smaller);
    }

    /// The join with a smaller MTU was refused on this side.
    pub(super) fn on_smaller_refused(&mut self, host: &mut Host, at: usize, why: Refusal) {
        match why {
            Refusal::Other(_) => self.on_no_second(host, at, host.now),
            // It has other reasons than the number of subflows, so that the old one could perhaps not be replaced either.
            _ if self.paths.get(at).is_some_and(|path| path.smaller.is_some_and(|smaller| !smaller.sends)) => {
                host.undo_mtu(at);
                self.end_smaller(host, at, false);
            }
            _ => {}
        }
    }

    /// No subflow can be added any more: the trials of this connection have no result.
    pub(super) fn abandon_trials(&mut self, host: &mut Host) {
        for at in 0..self.paths.len() {
            if self.paths.get_mut(at).is_some_and(|path| path.smaller.take().is_some()) {
                host.abandon_mtu_trial(at);
            }
        }
    }

    /// The server, or the kernel, allows no second subflow over the link: the new one takes the place of the old one.
    pub(super) fn on_no_second(&mut self, host: &mut Host, at: usize, up: Instant) {
        let now = host.now;
        let Some(path) = self.paths.get_mut(at) else { return };
        if path.smaller.is_none_or(|smaller| smaller.sends || smaller.since > up) {
            return;
        }
        path.not_before = now;
        path.restart(now);
        if self.end_all_on(host, at) {
            // It cannot be replaced.
            host.undo_mtu(at);
            self.end_smaller(host, at, false);
        }
    }

    /// Ends the subflows over a link. Says whether one stays because it is the only one.
    fn end_all_on(&mut self, host: &mut Host, at: usize) -> bool {
        let ends: Vec<SubflowId> =
            self.subs.iter().filter(|sub| sub.link == Some(at) && !sub.leaving).map(|sub| sub.id).collect();
        ends.into_iter().for_each(|id| self.destroy(host, id));
        self.on(at).is_some()
    }

    /// Whether the smaller MTU that this connection has asked for was right.
    fn judge_smaller(&mut self, host: &mut Host, at: usize) {
        let Some(smaller) = self.paths.get(at).and_then(|path| path.smaller) else { return };
        // A larger one: the trial has failed, and what was confirmed before it holds.
        let lowered =
            host.link(at).and_then(|link| link.mtu.lowered()).filter(|lowered| lowered.mtu <= smaller.mtu);
        let Some(lowered) = lowered else {
            self.end_smaller(host, at, false);
            return;
        };
        if lowered.confirmed {
            self.end_smaller(host, at, true);
            return;
        }
        let on = |sub: &&Sub| sub.link == Some(at) && !sub.leaving;
        let (new, old): (Vec<&Sub>, Vec<&Sub>) =
            self.subs.iter().filter(on).partition(|sub| sub.up > smaller.since);
        let bytes = |sub: &Sub| if smaller.sends { sub.volume() } else { sub.received().bytes() };
        let carried = new.iter().map(|sub| bytes(sub)).max().unwrap_or(0);
        let enough = match old.is_empty() {
            _ if smaller.sends => FULL,
            // Nothing to compare with.
            true if smaller.weak => BURST,
            false if host.now.since(smaller.since) < BURST_TIME => BURST,
            _ => FULL,
        };
        if !smaller.sends && old.iter().any(|sub| !sub.has_received_nothing()) {
            host.undo_mtu(at);
            self.end_smaller(host, at, false);
        } else if carried >= enough.bytes() {
            host.confirm_mtu(at);
            self.end_smaller(host, at, true);
            let name = host.name(at);
            let mtu = lowered.mtu;
            self.note(
                host,
                alloc::format!("full-sized packets over {name} are lost: joined again with an MTU of {mtu} bytes"),
            );
        }
    }

    /// The trial of a smaller MTU is over. The subflows that it was for go, unless nothing else would be left.
    fn end_smaller(&mut self, host: &mut Host, at: usize, right: bool) {
        let Some(smaller) = self.paths.get_mut(at).and_then(|path| path.smaller.take()) else { return };
        let on = |sub: &&Sub| sub.link == Some(at) && !sub.leaving;
        let old = self.subs.iter().filter(on).any(|sub| sub.up <= smaller.since);
        if right || !old {
            return;
        }
        let new = self.subs.iter().filter(on).filter(|sub| sub.up > smaller.since).map(|sub| sub.id);
        let new: Vec<SubflowId> = new.collect();
        new.into_iter().for_each(|id| self.destroy(host, id));
    }

    /// Says what became of a path; then why it is carried as it is once more, so that this is the last word.
    fn note(&mut self, host: &mut Host, reason: alloc::string::String) {
        host.out.push_back(Output::Note { conn: self.id, reason });
        self.said = None;
    }
}

/// A subflow that loses full-sized packets, as it seems.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lost {
    /// Those of this end, and it is not known yet whether small ones pass.
    Unproved { at: usize, handshake: Duration },
    /// Those of this end, of a subflow that came up then.
    Sent { at: usize, up: Instant },
    /// Those of the peer, also if no sequence numbers show it.
    Received { at: usize, up: Instant, weak: bool },
}
