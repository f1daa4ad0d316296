//! The subflows and paths of one connection, and the commands that change them.
//!
//! Everything that adds, suspends or closes a subflow passes through this component, because three rules hold for
//! all callers:
//!
//! 1. A link is joined only if it is up, its budget is not spent, the connection can be joined, no other join over
//!    the link is in progress, and its back-off is over.
//! 2. The last subflow that is known to work is never closed.
//! 3. A half-closed connection keeps its subflows, because the kernel adds no new ones to it. Only a spent budget of
//!    the link takes precedence.

use alloc::vec::Vec;

use super::config::Policy;
use super::event::{Command, ConnId, SubflowId};
use super::host_state::HostState;
use super::links::{Link, LinkSet};
use super::path::{JoinPurpose, JoinState, Path, SAMPLE_HOLDOFF};
use super::subflow::{PriorityVerdict, ReceiveProgress, Subflow};
use super::traffic::Traffic;
use crate::energy::Direction;
use crate::units::{DataSize, Duration, Instant};

/// A subflow that is reset within this time without a byte was refused. Measured: servers reset it within 100 ms.
pub(super) const REFUSAL_WINDOW: Duration = Duration::from_secs(2);

/// Subflows and paths of one connection.
#[derive(Clone, Debug)]
pub(super) struct SubflowSet {
    conn: ConnId,
    pub(super) all: Vec<Subflow>,
    /// One for each link of the host.
    pub(super) paths: Vec<Path>,
    /// Whether joins are impossible at present: only announced addresses may be joined, and none was announced.
    pub(super) joins_denied: bool,
    /// One direction is closed. No subflow can be added any more, so none is closed unless its link's budget is
    /// spent.
    pub(super) is_half_closed: bool,
    /// The receive progress of the connection at the last complete poll.
    pub(super) progress: Option<ReceiveProgress>,
}

impl SubflowSet {
    pub(super) fn new(conn: ConnId, links: usize, now: Instant) -> Self {
        let mut subflows = Self {
            conn,
            // Most connections have at most two; a vector's own initial capacity is four, and ten thousand
            // connections must stay small.
            all: Vec::with_capacity(2),
            paths: Vec::new(),
            joins_denied: false,
            is_half_closed: false,
            progress: None,
        };
        subflows.set_link_count(links, now);
        subflows
    }

    /// Adapts the list of paths to the number of links.
    pub(super) fn set_link_count(&mut self, links: usize, now: Instant) {
        self.paths.reserve_exact(links.saturating_sub(self.paths.len()));
        self.paths.resize(links, Path { sample_start: now, ..Path::default() });
    }

    pub(super) fn path(&self, link: usize) -> Option<&Path> {
        self.paths.get(link)
    }

    pub(super) fn get_mut(&mut self, id: SubflowId) -> Option<&mut Subflow> {
        self.all.iter_mut().find(|sub| sub.id == id)
    }

    /// The subflow that represents a link: the newest one that is not being closed.
    pub(super) fn on_link(&self, link: usize) -> Option<&Subflow> {
        self.all.iter().rev().find(|sub| sub.link == Some(link) && !sub.is_closing)
    }

    /// The subflows that are requested to carry data.
    pub(super) fn carrying(&self) -> impl Iterator<Item = &Subflow> {
        self.all.iter().filter(|sub| !sub.backup && !sub.is_closing)
    }

    /// The links with a subflow that is requested to carry data.
    pub(super) fn carrying_links(&self) -> LinkSet {
        self.carrying().filter_map(|sub| sub.link).fold(LinkSet::EMPTY, LinkSet::with)
    }

    /// The links with a subflow.
    pub(super) fn joined_links(&self) -> LinkSet {
        let subs = self.all.iter().filter(|sub| !sub.is_closing);
        subs.filter_map(|sub| sub.link).fold(LinkSet::EMPTY, LinkSet::with)
    }

    /// The shortest RTT, including queueing delay, of the subflows that carry data.
    pub(super) fn min_rtt(&self) -> Duration {
        self.carrying().map(Subflow::rtt).min().unwrap_or(Duration::from_millis(100))
    }

    /// Whether the packets of a subflow that carries data wait in a queue.
    pub(super) fn is_queueing(&self) -> bool {
        self.carrying().any(Subflow::is_queueing)
    }

    /// Whether data sent by this host waits for a response on a subflow that carries data.
    pub(super) fn is_unanswered(&self) -> bool {
        self.carrying().any(|sub| sub.unanswered_since.is_some())
    }

    /// Whether a requested priority has not shown its effect yet.
    pub(super) fn is_priority_pending(&self) -> bool {
        self.all.iter().any(|sub| sub.pending_drain().is_some())
    }

    /// Bytes since the last complete poll, over some of the subflows.
    pub(super) fn new_bytes(&self, filter: impl Fn(&Subflow) -> bool) -> u64 {
        self.all.iter().filter(|sub| filter(sub)).fold(0, |sum, sub| sum.saturating_add(sub.new_bytes))
    }

    /// Position after which the peer may send data over a subflow that is requested to carry now; `None`: unknown.
    /// `received`: what the connection has received so far.
    pub(super) fn start_progress(&self, received: DataSize) -> Option<ReceiveProgress> {
        self.progress.or_else(|| received.is_zero().then(ReceiveProgress::default))
    }

    /// Whether a path's rate has settled, as far as its time shows: slow start is over, and data that the server
    /// had queued for another path before has been delivered.
    pub(super) fn is_settled(&self, link: usize, burst_start: Instant, now: Instant) -> bool {
        let Some(sub) = self.on_link(link) else { return false };
        sub.has_carried && now.since(sub.active_since.max(burst_start)) >= sub.settle_time()
    }

    /// Whether no subflow uses a link that is up and a path that is not dead.
    pub(super) fn has_no_path(&self, host: &HostState) -> bool {
        let is_usable = |sub: &Subflow| {
            let path = sub.link.and_then(|index| Some((self.paths.get(index)?, host.link(index)?)));
            path.is_none_or(|(path, link)| link.up && path.dead.is_none())
        };
        !self.all.iter().any(|sub| !sub.is_closing && is_usable(sub))
    }

    /// Marks a path as dead.
    pub(super) fn mark_dead(&mut self, link: usize, now: Instant) {
        if let Some(path) = self.paths.get_mut(link) {
            path.mark_dead(now);
        }
    }

    /// Whether a liveness probe is in progress.
    pub(super) fn is_probing(&self) -> bool {
        self.paths.iter().any(|path| path.join.is_probe())
    }

    /// Requests a subflow over a link, unless the link cannot be joined or a join is in progress.
    pub(super) fn join(&mut self, host: &mut HostState, link: usize, backup: bool, purpose: JoinPurpose) {
        let is_joinable = self.is_joinable(host, link);
        let (Some(host_link), Some(path)) = (host.link(link), self.paths.get_mut(link)) else { return };
        if !is_joinable || path.join != JoinState::Idle {
            return;
        }
        let id = host_link.config.id;
        let command = host.send_command(self.conn, Command::Join { link: id, backup });
        path.join = JoinState::Requested(command, purpose);
    }

    /// Whether a link may be joined now.
    pub(super) fn is_joinable(&self, host: &HostState, link: usize) -> bool {
        let up = host.link(link).is_some_and(|link| link.up && !link.is_budget_spent());
        let path = self.paths.get(link);
        up && !self.joins_denied && path.is_some_and(|path| host.now >= path.join_not_before)
    }

    /// Requests a subflow to carry data or to be a backup.
    pub(super) fn set_backup(&mut self, host: &mut HostState, traffic: &Traffic, id: SubflowId, backup: bool) {
        let (now, progress) = (host.now, self.start_progress(traffic.received));
        let Some(sub) = self.get_mut(id) else { return };
        sub.request_backup(now, backup);
        // The starting points for detecting lost data and for measuring begin again with the priority.
        sub.volume_at_start = traffic.volume;
        (sub.start_progress, sub.missing_since) = (progress, None);
        let (link, rtt) = (sub.link, sub.rtt());
        host.send_command(self.conn, Command::SetBackup { subflow: id, backup });
        let Some(link) = link else { return };
        if !backup {
            // The resumption makes the radio active.
            if let Some(host_link) = host.link(link) {
                let id = host_link.config.id;
                host.meter.on_bytes(now, id, Direction::Up, DataSize::ZERO);
            }
            if let Some(path) = self.paths.get_mut(link) {
                // The first samples after a resumption show the opening window, not the path's rate.
                path.samples_from = now + SAMPLE_HOLDOFF + rtt;
            }
        }
    }

    /// Whether a subflow may be closed. One of a half-closed connection could not be replaced and stays; a spent
    /// budget takes precedence.
    pub(super) fn may_end(&self, host: &HostState, id: SubflowId) -> bool {
        let link = self.all.iter().find(|sub| sub.id == id).and_then(|sub| sub.link);
        !self.is_half_closed || link.and_then(|link| host.link(link)).is_some_and(Link::is_budget_spent)
    }

    /// Closes a subflow, unless the connection would lose its last reliable one.
    pub(super) fn destroy(&mut self, host: &mut HostState, id: SubflowId) {
        if !self.may_end(host, id) {
            return;
        }
        // The last subflow always stays. A subflow that was just established may still be refused by the server, so
        // it does not count as a replacement, unless the subflow to be closed is no more reliable itself.
        let now = host.now;
        let is_reliable = |sub: &Subflow| {
            sub.initial || sub.has_carried || sub.volume() > 0 || now.since(sub.established_at) > REFUSAL_WINDOW
        };
        let is_unproven = self.all.iter().any(|sub| sub.id == id && !is_reliable(sub));
        if !self.all.iter().any(|sub| sub.id != id && !sub.is_closing && (is_unproven || is_reliable(sub))) {
            return;
        }
        let conn = self.conn;
        if let Some(sub) = self.get_mut(id).filter(|sub| !sub.is_closing) {
            sub.is_closing = true;
            host.send_command(conn, Command::Destroy { subflow: id });
        }
    }

    /// Closes the subflows over a link. Returns whether one stays because it is the connection's only one.
    pub(super) fn destroy_all_on(&mut self, host: &mut HostState, link: usize) -> bool {
        let is_on_link = |sub: &&Subflow| sub.link == Some(link) && !sub.is_closing;
        let closing: Vec<SubflowId> = self.all.iter().filter(is_on_link).map(|sub| sub.id).collect();
        closing.into_iter().for_each(|id| self.destroy(host, id));
        self.on_link(link).is_some()
    }

    /// Closes the older one of two subflows on a link, once the newer one has carried data or has existed for
    /// [`REFUSAL_WINDOW`]. A server that refuses a second subflow resets it at once, and then the older one must
    /// still exist.
    pub(super) fn remove_duplicates(&mut self, host: &mut HostState) {
        let now = host.now;
        let is_superseded = |sub: &&Subflow| {
            let newer = sub.link.and_then(|link| self.on_link(link));
            // The trial of a smaller MTU compares the two, so both stay until it ends.
            let on_trial =
                sub.link.and_then(|index| self.paths.get(index)).is_some_and(|path| path.mtu_trial.is_some());
            newer.is_some_and(|newer| {
                !on_trial
                    && newer.id != sub.id
                    && (newer.has_carried || now.since(newer.established_at) > REFUSAL_WINDOW)
            })
        };
        let closing: Vec<SubflowId> =
            self.all.iter().filter(|sub| !sub.is_closing).filter(is_superseded).map(|sub| sub.id).collect();
        for id in closing {
            self.destroy(host, id);
        }
    }

    /// Repeats priorities that have not taken effect, and destroys subflows whose peer does not follow them.
    pub(super) fn enforce_priorities(&mut self, host: &mut HostState) {
        let (now, conn) = (host.now, self.conn);
        let has_data = |sub: &Subflow| !sub.backup && !sub.is_closing && sub.new_bytes > 0;
        // Something else has changed the priority (an administrator, or an earlier daemon): take over the kernel's
        // value.
        for sub in self.all.iter_mut().filter(|sub| sub.pending_drain().is_none() && !sub.is_closing) {
            sub.backup = sub.kernel_backup().unwrap_or(sub.backup);
        }
        let with_data = self.all.iter().filter(|sub| has_data(sub)).count();
        let may_end = !self.is_half_closed;
        for sub in &mut self.all {
            // Whether another subflow carries data, so that bytes on this one are not fail-over.
            let others = with_data > usize::from(has_data(sub));
            match sub.check_priority(now, others) {
                PriorityVerdict::Pending | PriorityVerdict::Effective => {}
                PriorityVerdict::Repeat => {
                    sub.request_backup(now, sub.backup);
                    host.send_command(conn, Command::SetBackup { subflow: sub.id, backup: sub.backup });
                }
                PriorityVerdict::Unresponsive if !sub.is_closing && with_data > 0 && may_end => {
                    sub.is_closing = true;
                    host.send_command(conn, Command::Destroy { subflow: sub.id });
                }
                PriorityVerdict::Unresponsive => {}
            }
        }
    }

    /// Tries a link again at once, because the reason of earlier failures may be gone.
    pub(super) fn reset_back_off(&mut self, link: usize, now: Instant) -> Option<&mut Path> {
        let path = self.paths.get_mut(link)?;
        (path.join_not_before, path.join_failures) = (now, 0);
        Some(path)
    }

    /// Discards the measurements of a path, if the policy judges paths by them.
    pub(super) fn reset_measurements(&mut self, host: &HostState, link: usize) {
        if host.config.policy == Policy::Marline
            && let Some(path) = self.paths.get_mut(link)
        {
            path.reset_measurements(host.now);
        }
    }
}
