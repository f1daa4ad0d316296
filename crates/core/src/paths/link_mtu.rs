//! MTU of a link's new subflows: lowered where full-sized packets are lost, and raised again later.
//!
//! This is only accounting: [`super::black_hole`] decides that packets are lost, and this module decides which MTU
//! is next and for how long.
//!
//! 1. A step is on trial until data is carried by a subflow that was established after it
//!    ([`LinkMtu::confirm`]). Only then is it reported. A trial without a result ends after [`TRIAL_TIME`],
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

use crate::units::{Duration, Instant};

/// MTUs that are tried one after the other, in bytes.
const MTU_STEPS: [u16; 3] = [MIN_IPV6_MTU, 1024, 576];
/// Minimum MTU of IPv6. A smaller MTU of an IPv6 route has no effect.
const MIN_IPV6_MTU: u16 = 1280;
/// Assumed before the driver reports the MTU: Ethernet.
const DEFAULT_MTU: u16 = 1500;
/// Duration of a trial. Our choice: as long as it takes to detect that the next step does not help either, at an
/// RTT of 300 ms.
const TRIAL_TIME: Duration = Duration::from_secs(6);
/// Interval after the first trial of a link without a result, doubled each time. Our choice: a lost SYN is rare,
/// and a sender that has nothing to send pauses for longer.
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

/// A change of the MTU that the driver has to make.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct MtuChange {
    /// The MTU of new subflows; `None`: that of the interface.
    pub(super) mtu: Option<u16>,
    /// Line for the log; `None`: the change is not reported.
    pub(super) reason: Option<String>,
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

    /// Time at which the lowered MTU ends.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.lowered.map(|lowered| lowered.until)
    }

    /// Lowers the MTU by one step, unless that has already happened since the affected subflow was established.
    pub(super) fn lower(
        &mut self,
        now: Instant,
        established_at: Instant,
        hold_time: Duration,
        name: &str,
    ) -> (MtuStep, Option<MtuChange>) {
        if let Some(lowered) = self.lowered.filter(|lowered| lowered.since > established_at) {
            return (MtuStep::Lowered(lowered.mtu), None);
        }
        if now < self.exhausted_until {
            return (MtuStep::KnownUseless, None);
        }
        let Some(next) = self.next_step() else {
            self.exhausted_until = now + hold_time;
            return (MtuStep::Exhausted, self.end_step(now, name, "no smaller packets pass either"));
        };
        // A confirmed MTU is remembered, because it is still right if the next step turns out to be useless.
        self.fallback = self.lowered.filter(|lowered| lowered.is_confirmed).or(self.fallback);
        self.lowered = Some(LoweredMtu { mtu: next, since: now, is_confirmed: false, until: now + TRIAL_TIME });
        (MtuStep::Lowered(next), Some(MtuChange { mtu: Some(next), reason: None }))
    }

    /// Confirms the step on trial: data was carried with it.
    pub(super) fn confirm(&mut self, now: Instant, hold_time: Duration, name: &str) -> Option<MtuChange> {
        let before = self.fallback.map_or(self.interface_mtu, |fallback| fallback.mtu);
        let lowered = self.lowered.as_mut().filter(|lowered| !lowered.is_confirmed)?;
        (lowered.is_confirmed, lowered.until) = (true, now + hold_time);
        let mtu = lowered.mtu;
        (self.failed_trials, self.reported, self.fallback) = (0, true, None);
        let reason = alloc::format!(
            "{name}: MTU of new subflows lowered from {before} to {mtu} bytes for {} s: full-sized packets are lost without an \
             ICMP message, smaller ones pass",
            hold_time.as_secs()
        );
        Some(MtuChange { mtu: Some(mtu), reason: Some(reason) })
    }

    /// Undoes a step on trial that was wrong, or for which no data was seen. `max_pause`: longest interval until
    /// the next trial.
    pub(super) fn undo(&mut self, now: Instant, max_pause: Duration, name: &str) -> Option<MtuChange> {
        if self.lowered.is_none_or(|lowered| lowered.is_confirmed) {
            return None;
        }
        let pause = TRIAL_PAUSE.saturating_mul(1 << u32::from(self.failed_trials).min(16)).min(max_pause);
        (self.failed_trials, self.next_trial) = (self.failed_trials.saturating_add(1), now + pause);
        self.end_step(now, name, "no data arrived with the smaller MTU")
    }

    /// Ends a trial whose connection can no longer show a result. Other connections may try the step at once.
    pub(super) fn abandon_trial(&mut self, now: Instant, name: &str) -> Option<MtuChange> {
        self.lowered.filter(|lowered| !lowered.is_confirmed)?;
        self.end_step(now, name, "the connection that tried a smaller one is closing")
    }

    /// Ends a step: restores the MTU that was confirmed before the trial, or that of the interface.
    fn end_step(&mut self, now: Instant, name: &str, cause: &str) -> Option<MtuChange> {
        let confirmed = self.lowered.filter(|lowered| lowered.is_confirmed).or(self.fallback.take());
        let Some(held) = confirmed.filter(|held| held.until > now) else {
            return self.restore(name, cause);
        };
        (self.lowered.replace(held) != Some(held)).then_some(MtuChange { mtu: Some(held.mtu), reason: None })
    }

    /// Restores the MTU when the link comes up or goes down: it may come back over another network.
    pub(super) fn reset(&mut self, name: &str) -> Option<MtuChange> {
        let change = self.restore(name, "the link was down");
        *self = Self { interface_mtu: self.interface_mtu, has_ipv4: self.has_ipv4, ..Self::default() };
        change
    }

    /// Records the MTU and the address families of the interface, as read by the driver.
    pub(super) fn on_interface(&mut self, interface_mtu: u16, has_ipv4: bool, name: &str) -> Option<MtuChange> {
        self.has_ipv4 = has_ipv4;
        if self.interface_mtu == interface_mtu {
            return None;
        }
        self.interface_mtu = interface_mtu;
        self.restore(name, "the MTU of the interface has changed")
    }

    /// Raises the MTU if its time is over.
    pub(super) fn raise_if_due(&mut self, now: Instant, max_pause: Duration, name: &str) -> Option<MtuChange> {
        let lowered = self.lowered.filter(|lowered| lowered.until <= now)?;
        if !lowered.is_confirmed {
            return self.undo(now, max_pause, name);
        }
        let seconds = now.since(lowered.since).as_secs();
        self.restore(name, &alloc::format!("full-sized packets are tried again after {seconds} s"))
    }

    /// Restores the interface's MTU, and reports that if the lowered one was reported.
    fn restore(&mut self, name: &str, cause: &str) -> Option<MtuChange> {
        self.fallback = None;
        let (interface_mtu, old) = (self.interface_mtu, self.lowered.take()?.mtu);
        let line =
            || alloc::format!("{name}: MTU of new subflows restored from {old} to {interface_mtu} bytes: {cause}");
        Some(MtuChange { mtu: None, reason: core::mem::take(&mut self.reported).then(line) })
    }
}
