//! Outages: how a connection reacts when a link goes down, and how it uses the link again after its recovery.
//!
//! 1. Measurements from before and during an outage do not describe the recovered link: a modem registers in
//!    another cell, a cable is replaced, and a path that carried nothing for five seconds was not slow but down.
//!    All measurements of the path are discarded, and so are those of the host for the link ([`Link::on_recovery`])
//!    and trials that compared the link with others.
//! 2. While a link is down or its path is unresponsive, no samples are taken.
//! 3. A recovered path is neither judged nor left out before it has carried data for
//!    [`JUDGE_AFTER`](super::path::JUDGE_AFTER). This time begins with its first sample, because the sender may first
//!    have to deliver data that it has queued for other subflows.
//! 4. When a link goes down, the subflows over it are destroyed if this host sends with short queues
//!    ([`super::send_gate`]), so that their data goes over the other subflows at once. Any other subflow stays until a
//!    new one has carried data or has existed for two seconds. When the link recovers, a new subflow replaces it: the
//!    peer sends nothing over the old one until its retransmission timer expires.
//! 5. A connection all of whose paths fail during a transfer is *stalled*: it becomes idle like any other, but its
//!    paths are still probed. When a link recovers, the peer's retransmission timer may have a minute left; over a
//!    new subflow it sends at once.
//! 6. Only one connection at a time probes an unresponsive link (see [`super::liveness`]). The others join
//!    the link again when that one has received a response.
//!
//! Keeping the measured rates with a shorter memory was rejected: after an outage of two seconds they would all be
//! zero, and a connection would stop using the link before the first byte could arrive.
//!
//! [`Link::on_recovery`]: super::links::Link::on_recovery

use alloc::vec::Vec;

use super::event::SubflowId;
use super::host_state::HostState;
use super::path::{DeadPath, JoinState};
use super::subflow_set::SubflowSet;

/// Processes for one connection that a link came up.
pub(super) fn on_link_up(subflows: &mut SubflowSet, host: &HostState, index: usize, is_awake: bool) {
    let has_subflow = subflows.on_link(index).is_some();
    subflows.reset_measurements(host, index);
    let Some(path) = subflows.reset_back_off(index, host.now) else { return };
    // The sender of data that waits on the old subflow has backed off, so a new subflow is faster. Without a
    // subflow the link is like a new one.
    path.dead = (has_subflow && is_awake).then_some(DeadPath::new(host.now, host.now));
}

/// Processes for one connection that a link went down.
pub(super) fn on_link_down(
    subflows: &mut SubflowSet,
    host: &mut HostState,
    index: usize,
    sends_with_short_queues: bool,
) {
    subflows.reset_measurements(host, index);
    let Some(path) = subflows.reset_back_off(index, host.now) else { return };
    path.join = JoinState::Idle;
    if sends_with_short_queues {
        let lost: Vec<SubflowId> =
            subflows.all.iter().filter(|sub| sub.link == Some(index)).map(|sub| sub.id).collect();
        lost.into_iter().for_each(|id| subflows.destroy(host, id));
    }
}

/// Processes for one connection that a link which is up has got an address of a further family: joins that failed
/// for lack of an address are tried at once.
pub(super) fn on_address_added(subflows: &mut SubflowSet, host: &mut HostState, index: usize) {
    let Some(path) = subflows.reset_back_off(index, host.now) else { return };
    if let Some(dead) = &mut path.dead {
        dead.next_probe = host.now;
    }
    if let Some(link) = host.links.get_mut(index) {
        link.next_probe = host.now;
    }
}
