//! Path MTU black holes (RFC 2923, section 2.1): links whose full-sized packets vanish while small ones pass.
//!
//! A tunnel or a mobile bearer makes the path's MTU smaller than the interface's, and the ICMP message that would say so is
//! dropped. Handshakes and probes then succeed, so that the path is not silent, and every full-sized segment is lost. MPTCP
//! sends the data again over the other subflows and gives the link new data, which is lost again: several links are slower
//! than one. What tells it apart from a silent or lossy path:
//!
//! 1. *Sent from here:* no byte is acknowledged over [`TIMEOUTS`] retransmission timeouts in a row, and a second subflow
//!    over the same link has been established meanwhile and another timeout followed, or nothing has passed since the subflow's
//!    own handshake. Without that further timeout the link may have been silent until the second subflow was established.
//! 2. *Sent by the other end:* a subflow has carried nothing at all for [`NOTHING`], while the connection received
//!    [`BESIDE`] over others. This is weaker evidence, because the sender may have had its data in other queues, so that
//!    it lowers the MTU once only.
//!
//! The link's MTU is lowered to the next of [`STEPS`] ([`Output::Mtu`]); the subflow is ended and the link joined again,
//! because both ends agree on the segment size in the handshake. Where no step helps, the link is left alone like one that
//! the server refuses.
//!
//! Not chosen: the kernel's own probing (`net.ipv4.tcp_mtu_probing`). It is a setting of the whole host, it does nothing for
//! what the other end sends, and each new subflow begins to search again.

use alloc::vec::Vec;

use super::config::Policy;
use super::conn::{Conn, Dead, Join};
use super::event::{Output, SubflowId};
use super::host::Host;
use super::subflow::Sub;
use crate::energy::Direction;
use crate::units::{DataSize, Duration, Instant};

/// The MTUs that are tried in turn, in bytes. The first is the minimum of IPv6 (RFC 8200, section 5): packets of that size
/// pass almost everywhere, and the larger share of headers costs 0.7 % of the goodput. The others are for IPv4 alone.
const STEPS: [u16; 3] = [1280, 1024, 576];
/// chosen: two retransmissions of the same data, a second after it was sent first.
const TIMEOUTS: u8 = 2;
/// chosen: with the join that follows, a link is of use two seconds after it was first given data.
const NOTHING: Duration = Duration::from_millis(1500);
/// chosen: more than a request, its answer's first window and what one queue holds.
const BESIDE: DataSize = DataSize::from_kib(128);

impl Conn {
    /// Looks for subflows whose full-sized packets vanish. To be called at each whole look.
    pub(super) fn on_black_holes(&mut self, host: &mut Host) {
        if host.config.policy != Policy::Marline || self.closed_to_joins {
            return;
        }
        let found = |sub: &&Sub| self.is_black_hole(host, sub);
        let found: Vec<(usize, Instant)> =
            self.subs.iter().filter(found).filter_map(|sub| Some((sub.link?, sub.up))).collect();
        for (link, up) in found {
            self.on_black_hole(host, link, up);
        }
    }

    fn is_black_hole(&self, host: &Host, sub: &Sub) -> bool {
        let path = sub.link.and_then(|at| Some((self.paths.get(at)?, host.link(at)?)));
        let Some((path, link)) = path.filter(|_| !sub.backup && !sub.leaving) else { return false };
        if !link.up || path.dead.is_some() || path.join != Join::No {
            return false;
        }
        // Its own handshake is such an answer for a subflow on which nothing else has passed.
        let own = path.proved == Some(sub.up) && sub.volume() == 0;
        let later = sub.stuck_at_proof.is_some_and(|timeouts| sub.timeouts > timeouts);
        let sends = sub.timeouts >= TIMEOUTS && sub.stuck.is_some() && (own || later);
        let untried = link.mtu.is_none_or(|(_, since)| sub.up < since);
        sends || untried && self.receives_nothing(host.now, sub)
    }

    /// Whether the other end's data reaches this one over other subflows and not over this one.
    fn receives_nothing(&self, now: Instant, sub: &Sub) -> bool {
        let beside = self.volume.saturating_sub(sub.beside) >= BESIDE.bytes();
        let waited = now.since(sub.active) >= NOTHING.max(sub.handshake() * 6);
        let nothing = sub.volume() == 0 && sub.waits.is_none() && !sub.peer_backup();
        nothing && waited && beside && self.direction() == Direction::Down && !self.adopted
    }

    /// Full-sized packets of a subflow that came up then vanish on this link.
    fn on_black_hole(&mut self, host: &mut Host, at: usize, up: Instant) {
        let now = host.now;
        let lowered = host.lower_mtu(at, up);
        let ends: Vec<SubflowId> =
            self.subs.iter().filter(|sub| sub.link == Some(at) && !sub.leaving).map(|sub| sub.id).collect();
        ends.into_iter().for_each(|id| self.destroy(host, id));
        let last = self.on(at).is_some();
        let Some(path) = self.paths.get_mut(at) else { return };
        path.restart(now);
        if lowered {
            path.not_before = now;
            // The only subflow stays until the new one carries.
            path.dead = last.then_some(Dead::at(now, now));
        } else {
            path.not_before = now + GIVEN_UP;
        }
        let name = host.name(at);
        let reason = match host.link(at).and_then(|link| link.mtu).filter(|_| lowered) {
            Some((mtu, _)) => {
                alloc::format!(
                    "full-sized packets over {name} seem to be lost: join it again with an MTU of {mtu} bytes"
                )
            }
            None => alloc::format!("packets of {} bytes over {name} seem to be lost: it is left out", STEPS[2]),
        };
        host.out.push_back(Output::Note { conn: self.id, reason });
        self.said = None;
    }
}

impl Host {
    /// Lowers a link's MTU, unless that has happened since a subflow came up whose packets were lost. Says whether there
    /// was anything to lower.
    fn lower_mtu(&mut self, at: usize, up: Instant) -> bool {
        let now = self.now;
        let Some(link) = self.links.get_mut(at) else { return false };
        if link.mtu.is_some_and(|(_, since)| since > up) {
            return true;
        }
        let next = STEPS.into_iter().find(|step| link.mtu.is_none_or(|(mtu, _)| *step < mtu));
        let Some(mtu) = next else { return false };
        link.mtu = Some((mtu, now));
        let link = link.terms.link;
        self.out.push_back(Output::Mtu { link, mtu });
        true
    }
}

/// How long a link is left alone on which no step helps. chosen: as after a refusal.
const GIVEN_UP: Duration = Duration::from_secs(60);
