//! eMPTCP (§3.2 to §3.5), reimplemented in three readings of its text.
//!
//! 1. The rate of a link is the sum of the Holt-Winters forecasts of all active connections that use it; the last
//!    such sum if none does; and 5 Mbit/s if it was never used, which is also the start value of its forecast
//!    (§3.2).
//! 2. Another link is joined when κ bytes have arrived over the first one or τ has passed, the connection is not
//!    idle, and the energy information base does not prefer the first link alone (§3.5).
//! 3. From then on the energy information base decides at every sample when the other link is suspended (MP_PRIO)
//!    and resumed, 10 % beyond its thresholds (§3.4).
//! 4. The text allows several readings, each of which is a [`Policy`]:
//!    - `emptcp`, literally: every sample counts from the first one on, and LTE is never used alone ("eMPTCP does
//!      not
//!      typically switch to using a cellular interface only", §3.4).
//!    - `emptcp-settled`: a path that has just been started counts with its expected rate until its window is open,
//!      and
//!      is judged after φ = 10 samples, which eq. 1 requires only of Wi-Fi; two changes are ten samples apart.
//!    - `emptcp-table`: literally, but with the first column of Table 2, so that LTE carries alone beside very slow
//!      Wi-Fi. The paper does not say when a suspended Wi-Fi is measured again, so its last forecast stays.
//! 5. With more than two links, each one is compared with the first link separately; the paper has two. Links that
//!    the model does not describe cost nothing and are used.
//!
//! Some parts of §3 are impossible for a client of the upstream kernel, in every reading: the queue that goes to
//! the cheapest subflow (§3.4), the window that survives a pause, and the RTT of zero for a resumed subflow (§3.6)
//! belong to the sender. (The second is a sysctl of the server, the third has no effect on upstream's scheduler.)
//! Samples are at least 50 ms apart. A subflow has no sample before its first byte, and a connection without
//! traffic has none at all: it would wake LTE although nothing is requested. A link is suspended only when another
//! one has received bytes.
//!
//! Three departures have no such reason. Samples are spaced by the shortest RTT seen and not by that of the
//! handshake ([`Subflow::handshake_rtt`](crate::paths::subflow::Subflow::handshake_rtt), changed for another
//! purpose): over bad Wi-Fi this makes `emptcp-settled` leave LTE too early. Each connection waits for κ and τ
//! again, although §3.5 requires no delay while a cellular interface is active. The 10 %, κ, τ, 5 Mbit/s and α
//! cannot be set.
//!
//! κ counts bytes over the first link. τ ≥ R (log2(B R / W + 1) + φ) (eq. 1) is [`min_tau`].

use super::input::{Decision, PolicyInput};
use crate::energy::{BestLinks, EnergyInfoBase};
use crate::paths::config::Policy;
use crate::paths::links::LinkSet;
use crate::paths::reason::Reason;
use crate::units::{Bitrate, DataSize, Duration};

pub(super) fn decide(input: &mut PolicyInput<'_>, usable: LinkSet, initial_link: usize) -> Decision {
    let host = input.host;
    let config = &host.config;
    let interval = input.poll_interval(false);
    input.update_eligibility(interval);
    let is_quiet = input.is_quiet(interval);
    let mut links = LinkSet::single(initial_link);
    let kind = |index: usize| host.link(index).map(|link| link.config.kind).unwrap_or_default();
    let rate = |index: usize| host.link(index).map_or(Bitrate::ZERO, |link| link.forecast(config, host.now));
    let first = rate(initial_link);
    let mut reason = Reason::Only { link: initial_link };
    for index in usable.without(LinkSet::single(initial_link)).iter() {
        let second = rate(index);
        let Some(eib) = EnergyInfoBase::new(&config.energy, kind(initial_link), kind(index)) else {
            // Nothing can be compared without a radio model, and the link counts as free.
            links = links.with(index);
            continue;
        };
        let limit = eib.row(second).first_above;
        let is_joined = input.subflows.joined_links().contains(index);
        let current = match (
            input.subflows.carrying_links().contains(initial_link),
            input.subflows.carrying_links().contains(index),
        ) {
            (true, false) => BestLinks::First,
            (false, true) => BestLinks::Second,
            _ => BestLinks::Both,
        };
        // φ of eq. 1: number of samples before a path that was just started or suspended is judged.
        let is_too_early = match current {
            _ if config.policy.trusts_first_sample() => false,
            BestLinks::First => host.now.since(input.active_since) < interval * PHI.into(),
            _ => input.subflows.paths.get(index).is_none_or(|path| path.samples < PHI),
        };
        let best = match is_joined {
            false if !input.traffic.is_eligible || is_quiet => {
                // Not joined and not eligible yet: wait.
                reason = Reason::Waiting { link: initial_link };
                if input.active_links.contains(index) { BestLinks::Both } else { BestLinks::First }
            }
            // Eligible: join it, unless the first link alone is better.
            false if limit.is_none_or(|limit| first <= limit) => BestLinks::Both,
            false => BestLinks::First,
            // Joined: the energy information base decides, with its hysteresis.
            true if is_quiet || is_too_early => current,
            true => eib.next_links(current, first, second, config.safety),
        };
        if best != BestLinks::First {
            links = links.with(index);
        }
        if best == BestLinks::Second && config.policy == Policy::EmptcpTable {
            links = links.without(LinkSet::single(initial_link));
        }
        if is_joined || input.traffic.is_eligible && !is_quiet {
            reason = Reason::Eib { links, first_rate: first, second_rate: second, limit };
        }
    }
    if let Reason::Eib { links: reason_links, .. } = &mut reason {
        *reason_links = links;
    }
    Decision::new(links, reason)
}

/// φ: "ten bandwidth samples" (§4.1).
const PHI: u8 = 10;

/// Equation 1: the shortest time after which slow start is over and `samples` samples were taken.
pub fn min_tau(rate: Bitrate, rtt: Duration, window: DataSize, samples: u32) -> Duration {
    let rounds = (rate * rtt).bytes() as f64 / window.bytes().max(1) as f64;
    Duration::from_secs_f64(rtt.as_secs_f64() * (libm::log2(rounds + 1.0) + f64::from(samples)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_setting_waits_2_67_seconds() {
        // §4.1 states φ = 10 and 2.67 s, but neither rate, window nor RTT. With 10 segments (Linux since 2.6.39)
        // and 10 Mbit/s, 2.67 s corresponds to an RTT of 190 ms.
        let window = DataSize::from_bytes(10 * 1448);
        let wait = min_tau(Bitrate::from_mbps(10), Duration::from_millis(190), window, 10);
        assert!((2.66..2.80).contains(&wait.as_secs_f64()), "{wait:?}");
        assert!(wait < Duration::from_secs(3));
    }
}
