//! MTU of a link's new subflows: lowered where full-sized packets are lost, and raised again later.
//!
//! This is only accounting: [`super::black_hole`] decides that packets are lost, and this module decides which MTU
//! is next and for how long.
//!
//! 1. A step is on trial until data is carried by a subflow that was established after it
//!    ([`HostState::confirm_mtu`]). Only then is it reported. A trial without a result ends after [`TRIAL_TIME`],
//!    and the MTU from before the trial is restored.
//! 2. If no step helps, the MTU is restored, and none is tried for
//!    [`Config::raise_mtu_after`](super::Config::raise_mtu_after).
//! 3. A confirmed MTU is valid for the same time, even if a trial of a smaller one fails. Then new subflows start
//!    with the interface's own MTU; existing subflows keep their segment size. RFC 1191 (section 6.3), RFC 4821
//!    (section 7.2) and RFC 8899 (section 5.1.1, PMTU_RAISE_TIMER) recommend ten minutes.
//!
//! The first step is 1280 bytes, the minimum MTU of IPv6 (RFC 8200, section 5), which passes almost everywhere.
//! Each step takes a second, and a packet of 1280 bytes carries only 0.8 % less payload per byte than one of 1500.
//! Therefore the MTUs between (PPPoE 1492, IPv6 in IPv4 1480, WireGuard 1420) are not searched as RFC 4821 does.
//! Further steps are for IPv4: the search of RFC 4821 (section 7.2) begins at 1024 bytes, and every host accepts
//! 576 (RFC 791, section 3.2).

use alloc::string::String;

use super::event::Output;
use super::host_state::HostState;
use crate::units::{Duration, Instant};

/// MTUs that are tried one after the other, in bytes.
const MTU_STEPS: [u16; 3] = [MIN_IPV6_MTU, 1024, 576];
/// Minimum MTU of IPv6. A smaller MTU of an IPv6 route has no effect.
const MIN_IPV6_MTU: u16 = 1280;
/// Assumed before the driver reports the MTU: Ethernet.
const DEFAULT_MTU: u16 = 1500;
/// Duration of a trial. Chosen: as long as it takes to detect that the next step does not help either, at an RTT of
/// 300 ms.
const TRIAL_TIME: Duration = Duration::from_secs(6);
/// Interval after the first trial of a link without a result, doubled each time. Chosen: a lost SYN is rare, and a
/// sender that has nothing to send pauses for longer.
const TRIAL_PAUSE: Duration = Duration::from_secs(10);

/// MTU state of one link.
#[derive(Clone, Debug)]
pub(super) struct LinkMtu {
    /// MTU of the interface, in bytes.
    interface_mtu: u16,
    /// Whether the interface has an IPv4 address.
    has_ipv4: bool,
    lowered: Option<LoweredMtu>,
    /// MTU confirmed earlier, which is restored if the trial of a smaller one fails.
    fallback: Option<LoweredMtu>,
    /// Whether the log has reported that the MTU is lowered.
    reported: bool,
    /// Time before which no step is tried on weak evidence.
    next_trial: Instant,
    /// Number of trials without a result since the link came up.
    failed_trials: u8,
    /// Time until which all steps are known to be useless.
    exhausted_until: Instant,
}

/// An MTU below that of the interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LoweredMtu {
    pub(super) mtu: u16,
    /// Time of the step; subflows established later use the MTU.
    pub(super) since: Instant,
    /// Whether data was carried with it.
    pub(super) is_confirmed: bool,
    /// Time at which the interface's MTU is restored.
    until: Instant,
}

/// Result of a request for a lower MTU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MtuStep {
    /// The MTU is this now, or has been since the subflow in question was established.
    Lowered(u16),
    /// No lower MTU is left, and the one before the trial is restored.
    Exhausted,
    /// All steps were found useless before.
    KnownUseless,
}

impl Default for LinkMtu {
    fn default() -> Self {
        Self {
            interface_mtu: DEFAULT_MTU,
            has_ipv4: true,
            lowered: None,
            fallback: None,
            reported: false,
            next_trial: Instant::ZERO,
            failed_trials: 0,
            exhausted_until: Instant::ZERO,
        }
    }
}

impl LinkMtu {
    pub(super) const fn lowered(&self) -> Option<LoweredMtu> {
        self.lowered
    }

    /// Whether a step may be tried on weak evidence.
    pub(super) fn can_try(&self, now: Instant) -> bool {
        now >= self.next_trial && now >= self.exhausted_until
    }

    /// Smallest MTU that is tried.
    pub(super) fn min_mtu(&self) -> u16 {
        let steps = MTU_STEPS.into_iter().filter(|step| self.has_ipv4 || *step >= MIN_IPV6_MTU);
        steps.fold(self.interface_mtu, u16::min)
    }

    fn current(&self) -> u16 {
        self.lowered.map_or(self.interface_mtu, |lowered| lowered.mtu)
    }

    fn next_step(&self) -> Option<u16> {
        MTU_STEPS.into_iter().find(|step| *step < self.current() && (self.has_ipv4 || *step >= MIN_IPV6_MTU))
    }
}

impl HostState {
    /// Lowers a link's MTU by one step, unless that has already happened since the affected subflow was
    /// established.
    pub(super) fn lower_mtu(&mut self, index: usize, established_at: Instant) -> MtuStep {
        let (now, hold_time) = (self.now, self.config.raise_mtu_after);
        let Some(link) = self.links.get_mut(index) else { return MtuStep::KnownUseless };
        let mtu = &mut link.mtu;
        if let Some(lowered) = mtu.lowered.filter(|lowered| lowered.since > established_at) {
            return MtuStep::Lowered(lowered.mtu);
        }
        if now < mtu.exhausted_until {
            return MtuStep::KnownUseless;
        }
        let Some(next) = mtu.next_step() else {
            mtu.exhausted_until = now + hold_time;
            self.end_mtu_step(index, "no smaller packets pass either");
            return MtuStep::Exhausted;
        };
        mtu.fallback = mtu.lowered.filter(|lowered| lowered.is_confirmed).or(mtu.fallback);
        mtu.lowered = Some(LoweredMtu { mtu: next, since: now, is_confirmed: false, until: now + TRIAL_TIME });
        let link = link.config.id;
        self.outputs.push_back(Output::SetMtu { link, mtu: Some(next), reason: None });
        MtuStep::Lowered(next)
    }

    /// Confirms the step on trial: data was carried with it.
    pub(super) fn confirm_mtu(&mut self, index: usize) {
        let (now, hold_time) = (self.now, self.config.raise_mtu_after);
        let Some(link) = self.links.get_mut(index) else { return };
        let before = link.mtu.fallback.map_or(link.mtu.interface_mtu, |held| held.mtu);
        let Some(lowered) = link.mtu.lowered.as_mut().filter(|lowered| !lowered.is_confirmed) else { return };
        (lowered.is_confirmed, lowered.until) = (true, now + hold_time);
        let mtu = lowered.mtu;
        let reason = alloc::format!(
            "{}: MTU of new subflows lowered from {before} to {mtu} bytes for {} s: full-sized packets are lost without an \
             ICMP message, smaller ones pass",
            link.config.name,
            hold_time.as_secs()
        );
        (link.mtu.failed_trials, link.mtu.reported, link.mtu.fallback) = (0, true, None);
        let link = link.config.id;
        self.outputs.push_back(Output::SetMtu { link, mtu: Some(mtu), reason: Some(reason) });
    }

    /// Undoes a step on trial that was wrong, or for which no data was seen.
    pub(super) fn undo_mtu(&mut self, index: usize) {
        let now = self.now;
        let Some(link) = self.links.get_mut(index) else { return };
        if link.mtu.lowered.is_none_or(|lowered| lowered.is_confirmed) {
            return;
        }
        let pause = TRIAL_PAUSE
            .saturating_mul(1 << u32::from(link.mtu.failed_trials).min(16))
            .min(self.config.raise_mtu_after);
        (link.mtu.failed_trials, link.mtu.next_trial) = (link.mtu.failed_trials.saturating_add(1), now + pause);
        self.end_mtu_step(index, "no data arrived with the smaller MTU");
    }

    /// Ends a trial whose connection can no longer show a result. Other connections may try the step at once.
    pub(super) fn abandon_mtu_trial(&mut self, index: usize) {
        if self.links.get(index).and_then(|link| link.mtu.lowered).is_some_and(|lowered| !lowered.is_confirmed) {
            self.end_mtu_step(index, "the connection that tried a smaller one is closing");
        }
    }

    /// Ends a step: restores the MTU that was confirmed before the trial, or that of the interface.
    fn end_mtu_step(&mut self, index: usize, cause: &str) {
        let now = self.now;
        let Some(link) = self.links.get_mut(index) else { return };
        let confirmed = link.mtu.lowered.filter(|lowered| lowered.is_confirmed).or(link.mtu.fallback.take());
        let Some(held) = confirmed.filter(|held| held.until > now) else {
            self.restore_mtu(index, cause);
            return;
        };
        if link.mtu.lowered.replace(held) != Some(held) {
            let link = link.config.id;
            self.outputs.push_back(Output::SetMtu { link, mtu: Some(held.mtu), reason: None });
        }
    }

    /// Restores the MTU when the link comes up or goes down: it may come back over another network.
    pub(super) fn reset_mtu(&mut self, index: usize) {
        self.restore_mtu(index, "the link was down");
        if let Some(link) = self.links.get_mut(index) {
            link.mtu = LinkMtu {
                interface_mtu: link.mtu.interface_mtu,
                has_ipv4: link.mtu.has_ipv4,
                ..LinkMtu::default()
            };
        }
    }

    /// Records the MTU and the address families of the interface, as read by the driver.
    pub(super) fn on_interface(&mut self, index: usize, interface_mtu: u16, has_ipv4: bool) {
        let Some(link) = self.links.get_mut(index) else { return };
        link.mtu.has_ipv4 = has_ipv4;
        if link.mtu.interface_mtu != interface_mtu {
            link.mtu.interface_mtu = interface_mtu;
            self.restore_mtu(index, "the MTU of the interface has changed");
        }
    }

    /// Raises MTUs whose time is over.
    pub(super) fn raise_mtus(&mut self) {
        for index in 0..self.links.len() {
            let is_over = |lowered: LoweredMtu| lowered.until <= self.now;
            match self.links.get(index).and_then(|link| link.mtu.lowered).filter(|lowered| is_over(*lowered)) {
                Some(lowered) if lowered.is_confirmed => {
                    let seconds = self.now.since(lowered.since).as_secs();
                    self.restore_mtu(
                        index,
                        &alloc::format!("full-sized packets are tried again after {seconds} s"),
                    );
                }
                Some(_) => self.undo_mtu(index),
                None => {}
            }
        }
    }

    pub(super) fn mtu_deadline(&self) -> Option<Instant> {
        self.links.iter().filter_map(|link| link.mtu.lowered).map(|lowered| lowered.until).min()
    }

    /// Restores the interface's MTU, and reports that if the lowered one was reported.
    fn restore_mtu(&mut self, index: usize, cause: &str) {
        let Some(link) = self.links.get_mut(index) else { return };
        link.mtu.fallback = None;
        let Some(lowered) = link.mtu.lowered.take() else { return };
        let (name, interface_mtu, old) = (&link.config.name, link.mtu.interface_mtu, lowered.mtu);
        let line =
            || alloc::format!("{name}: MTU of new subflows restored from {old} to {interface_mtu} bytes: {cause}");
        let reason: Option<String> = core::mem::take(&mut link.mtu.reported).then(line);
        let link = link.config.id;
        self.outputs.push_back(Output::SetMtu { link, mtu: None, reason });
    }
}
