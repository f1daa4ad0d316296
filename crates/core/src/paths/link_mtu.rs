//! The MTU of a link's new subflows: lowered where full-sized packets are lost, and raised again.
//!
//! Pure bookkeeping: `black_hole` decides that packets are lost, this module which MTU comes next and for how long.
//!
//! 1. A step is on trial until data flow over a subflow that began after it ([`Host::confirm_mtu`]). Only then is it
//!    reported. A trial without a result ends after [`TRIAL`], and the MTU is what it was before the trial.
//! 2. If no step helps, the MTU is what it was before, and none is tried for [`Config::raise_mtu_after`].
//! 3. A confirmed MTU holds for [`Config::raise_mtu_after`], also if a trial of a smaller one fails. Then new subflows begin
//!    with the interface's own MTU. Subflows that run keep their segment size. RFC 1191 (section 6.3), RFC 4821 (section 7.2)
//!    and RFC 8899 (section 5.1.1, PMTU_RAISE_TIMER) name ten minutes.
//!
//! The first step is 1280 bytes, the minimum MTU of IPv6 (RFC 8200, section 5), which passes almost everywhere. Each step
//! costs a second, and a packet of 1280 bytes carries 0.8 % less payload per byte than one of 1500. Therefore the MTUs
//! between (PPPoE 1492, IPv6 in IPv4 1480, WireGuard 1420) are not searched as RFC 4821 does. The steps after it are for
//! IPv4: 1024 bytes is where the search of RFC 4821 (section 7.2) begins, and every host accepts 576 (RFC 791, section 3.2).

use alloc::string::String;

use super::event::Output;
use super::host::Host;
use crate::units::{Duration, Instant};

/// The MTUs that are tried in turn, in bytes.
const STEPS: [u16; 3] = [LEAST_V6, 1024, 576];
/// The least MTU of IPv6. A route of IPv6 with a smaller one has no effect.
const LEAST_V6: u16 = 1280;
/// Assumed where the driver reports nothing: Ethernet.
const USUAL: u16 = 1500;
/// How long a step waits for data. chosen: as long as it takes to see that a step does not help
/// either, at 300 ms of round trip.
const TRIAL: Duration = Duration::from_secs(6);
/// After the first trial of a link without a result, none follows for this long, then twice as long each time. chosen: a
/// lost SYN is rare, and a sender that has nothing to send pauses for longer.
const PAUSE: Duration = Duration::from_secs(10);

/// The MTU of one link.
#[derive(Clone, Debug)]
pub(super) struct LinkMtu {
    /// The interface's MTU, in bytes.
    own: u16,
    /// Whether it has an IPv4 address.
    v4: bool,
    lowered: Option<Lowered>,
    /// What holds if the trial of a smaller one fails: the MTU that was confirmed before.
    held: Option<Lowered>,
    /// Whether the log says that it is lower than the interface's own.
    reported: bool,
    /// Before this no step is tried on weak evidence.
    next_trial: Instant,
    /// Trials without a result since the link came up.
    fails: u8,
    /// Until then all steps are known to be of no use.
    useless: Instant,
}

/// An MTU below the interface's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Lowered {
    pub(super) mtu: u16,
    /// Subflows that came up later use it.
    pub(super) since: Instant,
    /// Whether data have flowed with it.
    pub(super) confirmed: bool,
    /// When the interface's own one is used again.
    until: Instant,
}

/// What came of the request for a lower MTU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// It is this now, or has been since the subflow in question came up.
    Lowered(u16),
    /// No lower one is left, and the one before the trial is used again.
    Exhausted,
    /// That was found before.
    Useless,
}

impl Default for LinkMtu {
    fn default() -> Self {
        Self {
            own: USUAL,
            v4: true,
            lowered: None,
            held: None,
            reported: false,
            next_trial: Instant::ZERO,
            fails: 0,
            useless: Instant::ZERO,
        }
    }
}

impl LinkMtu {
    pub(super) const fn lowered(&self) -> Option<Lowered> {
        self.lowered
    }

    /// Whether a step may be tried on weak evidence.
    pub(super) fn may_try(&self, now: Instant) -> bool {
        now >= self.next_trial && now >= self.useless
    }

    /// The smallest one that is tried.
    pub(super) fn least(&self) -> u16 {
        let steps = STEPS.into_iter().filter(|step| self.v4 || *step >= LEAST_V6);
        steps.fold(self.own, u16::min)
    }

    fn now(&self) -> u16 {
        self.lowered.map_or(self.own, |lowered| lowered.mtu)
    }

    fn next(&self) -> Option<u16> {
        STEPS.into_iter().find(|step| *step < self.now() && (self.v4 || *step >= LEAST_V6))
    }
}

impl Host {
    /// Lowers a link's MTU, unless that has happened since a subflow came up whose packets are lost.
    pub(super) fn lower_mtu(&mut self, at: usize, up: Instant) -> Step {
        let (now, hold) = (self.now, self.config.raise_mtu_after);
        let Some(link) = self.links.get_mut(at) else { return Step::Useless };
        let mtu = &mut link.mtu;
        if let Some(lowered) = mtu.lowered.filter(|lowered| lowered.since > up) {
            return Step::Lowered(lowered.mtu);
        }
        if now < mtu.useless {
            return Step::Useless;
        }
        let Some(next) = mtu.next() else {
            mtu.useless = now + hold;
            self.end_trial(at, "no smaller packets pass either");
            return Step::Exhausted;
        };
        mtu.held = mtu.lowered.filter(|lowered| lowered.confirmed).or(mtu.held);
        mtu.lowered = Some(Lowered { mtu: next, since: now, confirmed: false, until: now + TRIAL });
        let link = link.terms.link;
        self.out.push_back(Output::Mtu { link, mtu: Some(next), reason: None });
        Step::Lowered(next)
    }

    /// Data flow with the step that is on trial: it holds.
    pub(super) fn confirm_mtu(&mut self, at: usize) {
        let (now, hold) = (self.now, self.config.raise_mtu_after);
        let Some(link) = self.links.get_mut(at) else { return };
        let before = link.mtu.held.map_or(link.mtu.own, |held| held.mtu);
        let Some(lowered) = link.mtu.lowered.as_mut().filter(|lowered| !lowered.confirmed) else { return };
        (lowered.confirmed, lowered.until) = (true, now + hold);
        let mtu = lowered.mtu;
        let reason = alloc::format!(
            "{}: MTU of new subflows lowered from {before} to {mtu} bytes for {} s: full-sized packets are lost without an \
             ICMP message, smaller ones pass",
            link.terms.name,
            hold.as_secs()
        );
        (link.mtu.fails, link.mtu.reported, link.mtu.held) = (0, true, None);
        let link = link.terms.link;
        self.out.push_back(Output::Mtu { link, mtu: Some(mtu), reason: Some(reason) });
    }

    /// A step on trial was wrong, or nothing shows that it was right.
    pub(super) fn undo_mtu(&mut self, at: usize) {
        let now = self.now;
        let Some(link) = self.links.get_mut(at) else { return };
        if link.mtu.lowered.is_none_or(|lowered| lowered.confirmed) {
            return;
        }
        let pause = PAUSE.saturating_mul(1 << u32::from(link.mtu.fails).min(16)).min(self.config.raise_mtu_after);
        (link.mtu.fails, link.mtu.next_trial) = (link.mtu.fails.saturating_add(1), now + pause);
        self.end_trial(at, "no data arrived with the smaller MTU");
    }

    /// The connection that tried a smaller MTU cannot show any more whether it helps. Other connections may try it at once.
    pub(super) fn abandon_mtu_trial(&mut self, at: usize) {
        if self.links.get(at).and_then(|link| link.mtu.lowered).is_some_and(|lowered| !lowered.confirmed) {
            self.end_trial(at, "the connection that tried a smaller one is closing");
        }
    }

    /// What was confirmed before a trial holds on; otherwise the interface's own MTU again.
    fn end_trial(&mut self, at: usize, why: &str) {
        let now = self.now;
        let Some(link) = self.links.get_mut(at) else { return };
        let confirmed = link.mtu.lowered.filter(|lowered| lowered.confirmed).or(link.mtu.held.take());
        let Some(held) = confirmed.filter(|held| held.until > now) else {
            self.restore_mtu(at, why);
            return;
        };
        if link.mtu.lowered.replace(held) != Some(held) {
            let link = link.terms.link;
            self.out.push_back(Output::Mtu { link, mtu: Some(held.mtu), reason: None });
        }
    }

    /// The link came up or went down: it may come back over another network.
    pub(super) fn reset_mtu(&mut self, at: usize) {
        self.restore_mtu(at, "the link was down");
        if let Some(link) = self.links.get_mut(at) {
            link.mtu = LinkMtu { own: link.mtu.own, v4: link.mtu.v4, ..LinkMtu::default() };
        }
    }

    /// The driver has read the MTU of the interface and its address families.
    pub(super) fn on_interface(&mut self, at: usize, own: u16, v4: bool) {
        let Some(link) = self.links.get_mut(at) else { return };
        link.mtu.v4 = v4;
        if link.mtu.own != own {
            link.mtu.own = own;
            self.restore_mtu(at, "the MTU of the interface has changed");
        }
    }

    /// Raises the MTUs whose time is over.
    pub(super) fn raise_mtus(&mut self) {
        for at in 0..self.links.len() {
            let over = |lowered: Lowered| lowered.until <= self.now;
            match self.links.get(at).and_then(|link| link.mtu.lowered).filter(|lowered| over(*lowered)) {
                Some(lowered) if lowered.confirmed => {
                    let time = self.now.since(lowered.since).as_secs();
                    self.restore_mtu(at, &alloc::format!("full-sized packets are tried again after {time} s"));
                }
                Some(_) => self.undo_mtu(at),
                None => {}
            }
        }
    }

    pub(super) fn mtu_deadline(&self) -> Option<Instant> {
        self.links.iter().filter_map(|link| link.mtu.lowered).map(|lowered| lowered.until).min()
    }

    /// The interface's own MTU again. Reported if a lower one was.
    fn restore_mtu(&mut self, at: usize, why: &str) {
        let Some(link) = self.links.get_mut(at) else { return };
        link.mtu.held = None;
        let Some(lowered) = link.mtu.lowered.take() else { return };
        let (name, own, was) = (&link.terms.name, link.mtu.own, lowered.mtu);
        let line = || alloc::format!("{name}: MTU of new subflows restored from {was} to {own} bytes: {why}");
        let reason: Option<String> = core::mem::take(&mut link.mtu.reported).then(line);
        let link = link.terms.link;
        self.out.push_back(Output::Mtu { link, mtu: None, reason });
    }
}
