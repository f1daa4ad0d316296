//! What is told of a flow.
//!
//! In: the flow as it stands. Out: its [`FlowView`], what plain TCP would bring in its place, and what the machine asks of
//! each flow.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::{Counts, Flow, Path, Way};
use crate::accel::early_ack::flow_state::Hiding;
use crate::accel::observation::tcp_model::plain;
use crate::accel::status::{Excuse, FlowView};
use crate::accel::{Mechanism, Mechanisms, Refusal};
use crate::units::{Bitrate, DataSize, Duration, Instant};
use crate::wire::packet::FourTuple as Key;

impl Flow {
    /// As it stands.
    pub(in crate::accel) fn view(&self, now: Instant, mechanisms: &Mechanisms) -> FlowView {
        let stamps = self.last.is_some_and(|(last, _)| last.timestamps.is_some());
        let (hidden, missing, hidden_holes) = self.hiding.as_ref().map(Hiding::figures).unwrap_or_default();
        let mut in_force = Vec::new();
        let is_mirrored = self.hiding.as_ref().is_some_and(Hiding::is_on) && !self.filling.is_paused(now);
        let is_of_use = |m: &Mechanism| *m != Mechanism::Hide || self.has_window_for_holes(now);
        in_force.extend(MIRRORED.into_iter().filter(|m| is_mirrored && mechanisms.has(*m) && is_of_use(m)));
        if mechanisms.has(Mechanism::Undo) && stamps && !self.sender.is_unmoved() && self.path == Path::Trusted {
            in_force.push(Mechanism::Undo);
        }
        if self.reserve.may_restart() {
            in_force.push(Mechanism::Reserve);
        }
        if mechanisms.has(Mechanism::Revert) && self.handler.is_busy() {
            in_force.push(Mechanism::Revert);
        }
        if self.detour.is_on() {
            in_force.push(Mechanism::Offload);
        } else if self.counts.offloaded > 0 && mechanisms.has(Mechanism::OffloadAsPublished) {
            in_force.push(Mechanism::OffloadAsPublished);
        }
        if self.is_frozen {
            in_force.push(Mechanism::Freeze);
        }
        let is_upload = self.way == Way::Up;
        FlowView {
            flow: if is_upload { self.key.reversed() } else { self.key },
            is_upload,
            opened: self.opened,
            not_in_force: self.not_in_force(now, mechanisms, stamps),
            in_force,
            received: self.pace.total(),
            goodput: self.pace.rate(now),
            plain: self.plain(self.missing.count()),
            holes: self.missing.count(),
            random: self.undo.random() + hidden_holes,
            undone: self.undo.undone(),
            hidden: DataSize::from_bytes(hidden),
            missing: DataSize::from_bytes(missing),
            acks: self.counts.acks,
            offloaded: self.counts.offloaded,
            replaced: self.counts.replaced,
            kicks: self.handler.kicks(),
            replay: None,
            queue: self.gate.queue(now),
            rtt: self.trip.smoothed(),
        }
    }

    /// The shortest round trip, if its acknowledgements may wait for others: where losses come all the time, and are taken back or
    /// hidden. Else a sender that hears of several at once would send in bursts for nothing.
    pub(in crate::accel) fn patience(&self, now: Instant) -> Option<Duration> {
        let may_wait = self.gate.is_lossy(now) && !self.sender.is_unmoved();
        self.trip.shortest().filter(|_| may_wait)
    }

    /// What plain TCP would bring with so many losses as this flow has seen, or its sender has heard of.
    pub(super) fn plain(&self, holes: u64) -> Option<Bitrate> {
        let segments = self.pace.total().bytes() / u64::from(self.segment);
        let segment = DataSize::from_bytes(u64::from(self.segment));
        plain(segment, self.trip.smoothed()?, segments, holes)
    }

    /// What was looked into and is of no use.
    fn not_in_force(&self, now: Instant, mechanisms: &Mechanisms, stamps: bool) -> Vec<Excuse> {
        let mut excuses = Vec::new();
        let mut not = |mechanism, why: String| {
            if mechanisms.has(mechanism) {
                excuses.push(Excuse { mechanism, why });
            }
        };
        if self.sender.is_unmoved() {
            not(Mechanism::Undo, "its sender does not slow down when something is lost".into());
        } else if !stamps && self.last.is_some() {
            not(Mechanism::Undo, "it has no timestamps".into());
        } else if self.path == Path::Refused {
            not(Mechanism::Undo, "losses on its path become more with its rate".into());
        } else if self.path == Path::Marked {
            not(Mechanism::Undo, "its path marks packets because of congestion".into());
        } else if self.path == Path::Unknown && self.missing.count() > 0 {
            not(Mechanism::Undo, "whether losses on its path depend on its rate is not known yet".into());
        }
        if self.is_multipath() {
            mechanisms.iter().for_each(|one| not(one, "a part of an MPTCP connection is left as it is".into()));
        }
        if self.detour.trial().is_in_vain() {
            not(Mechanism::Offload, "it runs no better with its ACKs elsewhere".into());
        } else if self.detour.trial().is_alone() {
            not(Mechanism::Offload, "the second link's gateway does not answer".into());
        }
        let is_news = |refusal: &Refusal| *refusal != Refusal::Over;
        if let Some(refusal) = self.hiding.as_ref().and_then(Hiding::refusal).filter(is_news) {
            let of_bytes = [Mechanism::Hide, Mechanism::FastFetch];
            of_bytes.into_iter().for_each(|one| not(one, refusal.to_string()));
        }
        let can_be_had = self.hiding.as_ref().is_some_and(|hiding| hiding.refusal().is_none());
        if can_be_had && self.filling.is_paused(now) {
            let all = [Mechanism::Hide, Mechanism::FastFetch, Mechanism::FreezeFlight];
            all.into_iter().for_each(|one| not(one, "missing bytes come too late".into()));
        } else if can_be_had && !self.has_window_for_holes(now) {
            let of_holes = [Mechanism::Hide, Mechanism::FastFetch];
            of_holes.into_iter().for_each(|one| not(one, "its window is used up before missing bytes come".into()));
        }
        if !can_be_had {
            not(Mechanism::FreezeFlight, "it is not frozen, as its bytes cannot be had elsewhere".into());
        }
        excuses
    }

    /// Books what became of an ACK that was offered to a helping link.
    pub(in crate::accel) const fn counts_mut(&mut self) -> &mut Counts {
        &mut self.counts
    }

    /// By how many bits its windows are shifted: the most there is, while that is not known.
    pub(in crate::accel) fn scale(&self) -> u8 {
        self.scale.unwrap_or(14)
    }

    /// Where its data goes.
    pub(in crate::accel) const fn way(&self) -> Way {
        self.way
    }

    /// From the one who acknowledges to the sender.
    pub(in crate::accel) const fn key(&self) -> Key {
        self.key
    }

    /// When something of it was heard last.
    pub(in crate::accel) const fn heard(&self) -> Instant {
        self.heard
    }

    /// Until when its packets are worth a look.
    pub(in crate::accel) fn watch_until(&self) -> Option<Instant> {
        self.holes.last_open().map(|last| last + WATCHED)
    }
}

/// What needs bytes that can be had elsewhere.
const MIRRORED: [Mechanism; 2] = [Mechanism::Hide, Mechanism::FreezeFlight];
/// chosen: where one loss was there will be others; a few seconds of looking cost little.
const WATCHED: Duration = Duration::from_secs(10);
