//! eMPTCP (§3.2 to §3.5), re-implemented in three readings of its text.
//!
//! 1. Each link's rate is the sum of the Holt-Winters forecasts of all active connections that use it, the last sum if
//!    none does, and 5 Mbit/s if it was never used, which is also what its forecast begins with (§3.2).
//! 2. Another link is joined when κ bytes have come over the first one or τ has passed, the connection is not idle, and
//!    the energy information base does not say that the first alone is better (§3.5).
//! 3. From then on the base says when the other one is suspended (MP_PRIO) and used again, 10 % beyond its thresholds
//!    (§3.4), at every sample.
//! 4. The text can be read in more than one way, and each has a word ([`Policy`]):
//!    - `emptcp`, to the letter: every sample counts from the first one on, and LTE is never used alone ("eMPTCP does not
//!      typically switch to using a cellular interface only", §3.4).
//!    - `emptcp-settled`: a path that was just begun counts with what was expected of it until its window is open, and is
//!      judged after φ = 10 samples, which eq. 1 asks for Wi-Fi alone; between two changes lie ten samples, too.
//!    - `emptcp-table`: to the letter, but Table 2's first column counts, so that LTE carries alone beside very slow
//!      Wi-Fi. Nothing in the paper says when a resting Wi-Fi is measured again: its last forecast stays.
//! 5. With more than two links each is weighed against the first one by itself; the paper has two. Links that the model
//!    does not describe cost nothing, and are used.
//!
//! What of §3 cannot be had from a client of upstream's kernel, in every reading: the queue that goes to the cheapest
//! subflow (§3.4), the window that outlives a pause and the round trip of nothing for a resumed subflow (§3.6) are the
//! sender's (the second is a sysctl of the server's, the third is of no use to upstream's scheduler). Samples are 50 ms
//! apart at least; a subflow has none before its first byte, and a connection on which nothing moves has none at all:
//! it would wake LTE because nobody asks for anything. A link is suspended only when another one has brought bytes.
//! Three departures are ours alone. Since a change for another purpose, samples are spaced by the shortest round trip seen and
//! not by the handshake's (`Sub::handshake`): over bad Wi-Fi `emptcp-settled` leaves LTE too early because of it. κ and τ
//! are waited for again by each connection, although §3.5 asks for no delay while a cellular interface is active. The 10 %, κ,
//! τ, 5 Mbit/s and α cannot be set.
//! κ counts bytes over the first link. τ ≥ R (log2(B R / W + 1) + φ) (eq. 1) is [`least_wait`].

use super::super::config::Policy;
use super::super::conn::Conn;
use super::super::host_state::HostState;
use super::super::links::LinkSet;
use super::super::reason::Reason;
use super::Decision;
use crate::energy::{BestLinks, EnergyInfoBase};
use crate::units::{Bitrate, DataSize, Duration};

impl Conn {
    pub(super) fn decide_emptcp(&mut self, host: &HostState, usable: LinkSet, initial_link: usize) -> Decision {
        let config = &host.config;
        let interval = self.poll_interval(host);
        self.update_eligibility(config, host.now, interval);
        let is_quiet = self.is_quiet(host.now, interval);
        let mut links = LinkSet::single(initial_link);
        let kind = |index: usize| host.link(index).map(|link| link.config.kind).unwrap_or_default();
        let rate = |index: usize| host.link(index).map_or(Bitrate::ZERO, |link| link.forecast(config, host.now));
        let first = rate(initial_link);
        let mut reason = Reason::Only { link: initial_link };
        for index in usable.without(LinkSet::single(initial_link)).iter() {
            let second = rate(index);
            let Some(eib) = EnergyInfoBase::new(&config.energy, kind(initial_link), kind(index)) else {
                links = links.with(index);
                continue;
            };
            let limit = eib.row(second).first_above;
            let is_joined = self.joined_links().contains(index);
            let current =
                match (self.carrying_links().contains(initial_link), self.carrying_links().contains(index)) {
                    (true, false) => BestLinks::First,
                    (false, true) => BestLinks::Second,
                    _ => BestLinks::Both,
                };
            // φ of eq. 1: so many samples before a path is judged that was just begun, or left.
            let is_too_early = match current {
                _ if config.policy.trusts_first_sample() => false,
                BestLinks::First => host.now.since(self.active_since) < interval * PHI.into(),
                _ => self.paths.get(index).is_none_or(|path| path.samples < PHI),
            };
            let best = match is_joined {
                false if !self.is_eligible || is_quiet => {
                    reason = Reason::Waiting { link: initial_link };
                    if self.active_links.contains(index) { BestLinks::Both } else { BestLinks::First }
                }
                false if limit.is_none_or(|limit| first <= limit) => BestLinks::Both,
                false => BestLinks::First,
                true if is_quiet || is_too_early => current,
                true => eib.next_links(current, first, second, config.safety),
            };
            if best != BestLinks::First {
                links = links.with(index);
            }
            if best == BestLinks::Second && config.policy == Policy::EmptcpTable {
                links = links.without(LinkSet::single(initial_link));
            }
            if is_joined || self.is_eligible && !is_quiet {
                reason = Reason::Eib { links, first_rate: first, second_rate: second, limit };
            }
        }
        if let Reason::Eib { links: reason_links, .. } = &mut reason {
            *reason_links = links;
        }
        Decision::new(links, reason)
    }
}

/// φ (§4.1): "ten bandwidth samples".
const PHI: u8 = 10;

/// Equation 1: how long a timer must wait until slow start is over and `samples` were taken.
pub fn min_tau(rate: Bitrate, rtt: Duration, window: DataSize, samples: u32) -> Duration {
    let rounds = (rate * rtt).bytes() as f64 / window.bytes().max(1) as f64;
    Duration::from_secs_f64(rtt.as_secs_f64() * (libm::log2(rounds + 1.0) + f64::from(samples)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_setting_waits_2_67_seconds() {
        // §4.1 gives φ = 10 and 2.67 s, but neither rate, window nor round trip. With 10 segments (Linux since 2.6.39) and
        // 10 Mbit/s, 2.67 s is a round trip of 190 ms.
        let window = DataSize::from_bytes(10 * 1448);
        let wait = min_tau(Bitrate::from_mbps(10), Duration::from_millis(190), window, 10);
        assert!((2.66..2.80).contains(&wait.as_secs_f64()), "{wait:?}");
        assert!(wait < Duration::from_secs(3));
    }
}
