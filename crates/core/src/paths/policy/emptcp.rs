//! eMPTCP (§3.2 to §3.5), re-implemented in three variants, because its text can be interpreted in several ways.
//! `docs/how-it-works/emptcp.md` describes the paper and the differences.
//!
//! 1. The rate of a link (§3.2) is the sum of the Holt-Winters forecasts of all active connections that use it. If no
//!    connection uses the link, its last sum is kept. A link that was never used counts with 5 Mbit/s. In the literal
//!    variants this is also the start value of its forecast, except for the initial link.
//! 2. Another link is joined when the connection has carried κ bytes or τ has passed since it was opened. In addition,
//!    the connection must not be idle, and the energy information base must not prefer the first link alone (§3.5).
//! 3. After the join, the energy information base decides at every sample whether the other link is suspended or
//!    resumed (MP_PRIO). As a hysteresis, it changes the links only when a rate is 10 % beyond the threshold (§3.4).
//! 4. Each variant is a [`Policy`]:
//!    - `emptcp` follows the text literally. Every sample counts, including the first one, and LTE is never used alone
//!      ("eMPTCP does not typically switch to using a cellular interface only", §3.4).
//!    - `emptcp-settled` ignores the slow start of a path. A path that has just started to carry data counts with at
//!      least its previous rate for 2 s or ten RTTs, whichever is longer. The decision changes only after φ = 10
//!      samples; eq. 1 requires this of Wi-Fi only. At least ten samples separate two changes.
//!    - `emptcp-table` is `emptcp` with the first column of Table 2: below that rate of Wi-Fi, LTE carries alone. The
//!      paper does not say when a suspended Wi-Fi is measured again, so its last forecast is kept.
//! 5. The paper has two links. With more, each further link is compared with the first one separately. A link that the
//!    energy model does not describe (such as Ethernet) counts as free and is used.
//!
//! A client of an unmodified kernel cannot implement these parts of §3, because they belong to the sender:
//!
//! - Choosing the subflow with the best energy per byte for queued data (§3.4).
//! - Keeping the congestion window of a subflow over a pause (§3.6). It is a sysctl of the server
//!   (`net.ipv4.tcp_slow_start_after_idle`).
//! - Setting the RTT of a resumed subflow to zero (§3.6). The upstream scheduler does not choose by RTT.
//!
//! Sampling differs from the paper for practical reasons. Samples are at least 50 ms apart, and a subflow has none
//! before its first byte. A connection without traffic has no samples: samples of zero would make Wi-Fi look slow and
//! activate LTE, although no data is requested. A link is suspended only after another link has received bytes.
//!
//! These differences have no such reason, and could be removed:
//!
//! - The interval between samples is the shortest RTT seen, not that of the handshake as in §3.2.
//!   ([`Subflow::handshake_rtt`](crate::paths::subflow::Subflow::handshake_rtt) was changed for stall detection.) Over
//!   bad Wi-Fi, `emptcp-settled` therefore stops using LTE too early.
//! - Each connection waits for κ or τ, although §3.5 requires no delay while a cellular interface is active.
//! - The 10 %, κ, τ, 5 Mbit/s and the parameters of the forecast cannot be set by the user.

use super::input::{Decision, PolicyInput};
use crate::energy::{BestLinks, EnergyInfoBase};
use crate::paths::config::Policy;
use crate::paths::links::LinkSet;
use crate::paths::reason::Reason;
use crate::units::Bitrate;

pub(super) fn decide(input: &mut PolicyInput<'_>, usable: LinkSet, initial_link: usize) -> Decision {
    let host = input.host;
    let config = &host.config;
    let interval = input.poll_interval(false);
    input.update_eligibility(interval);
    let is_quiet = input.is_quiet(interval);
    let mut links = LinkSet::single(initial_link);
    let kind = |index: usize| host.link(index).map(|link| link.config.kind).unwrap_or_default();
    let rate = |index: usize| host.link(index).map_or(Bitrate::ZERO, |link| link.forecast(config, host.now));
    let first_rate = rate(initial_link);
    // What the reason is made of: whether a link is not joined yet, a link without a radio model, and the last
    // comparison of rates.
    let (mut is_waiting, mut unmodelled_link, mut comparison) = (false, None, None);
    for index in usable.without(LinkSet::single(initial_link)).iter() {
        let second_rate = rate(index);
        let Some(eib) = EnergyInfoBase::new(&config.energy, kind(initial_link), kind(index)) else {
            // Without a radio model there is no energy to compare. The link counts as free and is used.
            links = links.with(index);
            unmodelled_link = Some(index);
            continue;
        };
        // Above this rate of the first link, the first link alone needs the least energy; `None`: at no rate.
        let limit = eib.row(second_rate).first_above;
        let is_joined = input.subflows.joined_links().contains(index);
        let current = match (
            input.subflows.carrying_links().contains(initial_link),
            input.subflows.carrying_links().contains(index),
        ) {
            (true, false) => BestLinks::First,
            (false, true) => BestLinks::Second,
            // Also if neither carries data, so that no link counts as suspended on purpose.
            _ => BestLinks::Both,
        };
        // φ of eq. 1: number of samples after a path was started or suspended, before the links change again.
        let is_too_early = match current {
            _ if config.policy.trusts_first_sample() => false,
            BestLinks::First => host.now.since(input.active_since) < interval * PHI.into(),
            _ => input.subflows.paths.get(index).is_none_or(|path| path.samples < PHI),
        };
        let best = match is_joined {
            false if !input.traffic.is_eligible || is_quiet => {
                // Do not join yet: neither κ nor τ is reached, or the connection is idle. A link that an earlier
                // decision has added stays, even if its subflow does not exist yet.
                is_waiting = true;
                if input.active_links.contains(index) { BestLinks::Both } else { BestLinks::First }
            }
            // κ or τ is reached: join the link, unless the first link alone needs less energy.
            false if limit.is_none_or(|limit| first_rate <= limit) => BestLinks::Both,
            false => BestLinks::First,
            // Joined: the energy information base decides, with hysteresis.
            true if is_quiet || is_too_early => current,
            true => eib.next_links(current, first_rate, second_rate, config.safety),
        };
        if best != BestLinks::First {
            links = links.with(index);
        }
        // The other variants never use the second link alone: for them `Second` means both.
        if best == BestLinks::Second && config.policy == Policy::EmptcpTable {
            links = links.without(LinkSet::single(initial_link));
        }
        if is_joined || input.traffic.is_eligible && !is_quiet {
            // With more than two links, the reason shows the rates of the last one compared.
            comparison = Some((second_rate, limit));
        }
    }
    let reason = match (comparison, unmodelled_link) {
        (Some((second_rate, limit)), _) => Reason::Eib { links, first_rate, second_rate, limit },
        _ if is_waiting => Reason::Waiting { links },
        (None, Some(link)) => Reason::NoRadioModel { links, link },
        (None, None) => Reason::Only { link: initial_link },
    };
    Decision::new(links, reason)
}

/// φ of eq. 1, a number of samples: "ten bandwidth samples" (§4.1).
const PHI: u8 = 10;
