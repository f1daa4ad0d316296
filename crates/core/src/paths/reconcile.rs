//! Reconciliation: makes the subflows of a connection equal to the decision of the policy, by joins, priorities and
//! closes.
//!
//! 1. New before old: a link is released only when a remaining link has carried data. Exceptions are an idle
//!    connection whose new subflow can no longer be refused, and a new subflow that has carried nothing for
//!    [`HANDOVER_GRACE`]. If all subflows were backups, the peer would treat them as if none were.
//! 2. A link that has a subflow is joined again only to probe or to replace that subflow (see [`super::liveness`]).
//! 3. A join that is not established within 3 s or three RTTs, whichever is longer, is given up without a command. It
//!    is repeated later, each time after twice the interval. A subflow that the server resets at once was refused; the
//!    link is then left alone for longer.
//! 4. A connection whose server accepts only announced addresses is not joined before one is announced.

use alloc::vec::Vec;

use super::config::{Goal, Policy};
use super::conn::Conn;
use super::event::{CloseReason, Command, CommandError, CommandId, EstablishedSubflow, SubflowId};
use super::host_state::HostState;
use super::links::{Link, LinkSet};
use super::path::{DeadPath, JOIN_TIMEOUT, JoinPurpose, JoinState, Path, SAMPLE_HOLDOFF};
use super::policy::Decision;
use super::reason::JoinObstacle;
use super::subflow::Subflow;
use super::subflow_set::REFUSAL_WINDOW;
use super::{black_hole, liveness};
use crate::energy::Direction;
use crate::units::{DataSize, Duration, Instant};

/// Time after which other subflows are suspended for a newly active one even if that has carried nothing yet.
/// Our choice: three times the usual duration of the first RTTs of slow start.
const HANDOVER_GRACE: Duration = Duration::from_secs(2);
/// First interval after a join that was not established; doubled each time.
const JOIN_RETRY: Duration = Duration::from_secs(2);
/// Longest of these intervals.
const MAX_JOIN_RETRY: Duration = Duration::from_secs(300);
/// First interval after a refusal; doubled each time, up to an hour. Our choice: a server's limit lasts as long as the
/// connection's other subflows.
const REFUSAL_RETRY: Duration = Duration::from_secs(60);
const MAX_REFUSAL_RETRY: Duration = Duration::from_secs(3600);
/// Interval after a failure that is likely to be short: the connection could not be joined yet, or a link has just
/// come back.
const SHORT_RETRY: Duration = Duration::from_millis(200);
/// Intervals after a join without address, route or permission: the first and the longest.
const NO_ADDRESS_RETRY: Duration = Duration::from_secs(15);
const MAX_NO_ADDRESS_RETRY: Duration = Duration::from_secs(120);

impl Conn {
    /// Issues the commands that bring the connection to the decision.
    ///
    /// It compares the decision with the subflows that exist, not with the commands that were sent: a command can be
    /// lost or refused, and then the next evaluation issues it again. Commands in progress are not repeated, because
    /// a join in progress is recorded in the path, and a requested priority in the subflow.
    pub(super) fn reconcile(&mut self, host: &mut HostState, decision: Decision) {
        let now = host.now;
        if decision.active != self.active_links {
            (self.active_links, self.active_since) = (decision.active, now);
        }
        // First establish what the decision needs: join missing active links, resume active ones on standby. The
        // order matters: suspending first would leave the peer without an active subflow until the resumption of
        // another one arrives.
        for link in decision.active.iter() {
            match self.subflows.on_link(link).map(|sub| (sub.id, sub.backup)) {
                None => self.subflows.join(host, link, false, JoinPurpose::Carry),
                Some((id, true)) => self.subflows.set_backup(host, &self.traffic, id, false),
                Some((_, false)) => {}
            }
        }
        // Standby links are joined as backups.
        for link in decision.standby.without(decision.active).iter() {
            if self.subflows.on_link(link).is_none() {
                self.subflows.join(host, link, true, JoinPurpose::Carry);
            }
        }
        let (can_suspend, can_destroy) = self.can_release(decision.active, now);
        // Then release what it does not need, once the active links can take over.
        if can_suspend {
            // A suspended and drained subflow delays nothing and remains as a standby, unless the decision keeps no
            // standby on its link. A subflow that still holds data must be destroyed, so that the peer sends that
            // data over the others.
            let should_destroy = |link: usize, sub: &Subflow| {
                let holds_data = !sub.backup || sub.pending_drain().is_some();
                decision.destroy.contains(link) && (holds_data || !decision.standby.contains(link))
            };
            let mut releases = Vec::new();
            for sub in self.subflows.all.iter().filter(|sub| !sub.is_closing) {
                match sub.link {
                    // Active links keep their subflows. Those of links that are down are handled by the outage
                    // code.
                    Some(link) if decision.active.contains(link) || !host.up_links().contains(link) => {}
                    Some(link) if can_destroy && should_destroy(link, sub) => releases.push((sub.id, true)),
                    // Not (yet) to be destroyed: suspend it.
                    Some(_) if !sub.backup => releases.push((sub.id, false)),
                    _ => {}
                }
            }
            for (id, destroys) in releases {
                let is_backup = self.subflows.all.iter().any(|sub| sub.id == id && sub.backup);
                match destroys && self.subflows.may_end(host, id) {
                    true => self.subflows.destroy(host, id),
                    false if is_backup => {}
                    false => self.subflows.set_backup(host, &self.traffic, id, true),
                }
            }
        }
        self.explanation.set_reason(host, decision.reason);
    }

    /// Whether other subflows may be suspended, and whether they may be destroyed: one of the active links already
    /// carries data. A subflow that has received nothing may have no working path, and then a suspended subflow
    /// takes over, but a destroyed one cannot.
    fn can_release(&self, active: LinkSet, now: Instant) -> (bool, bool) {
        let idle = !self.polling.is_busy();
        let carries =
            |sub: &&Subflow| sub.link.is_some_and(|link| active.contains(link)) && !sub.backup && !sub.is_closing;
        let has_waited = |sub: &Subflow| {
            now.since(sub.active_since) > HANDOVER_GRACE || idle && now.since(sub.established_at) > REFUSAL_WINDOW
        };
        let can_suspend = self.subflows.all.iter().filter(carries).any(|sub| sub.has_carried || has_waited(sub));
        (can_suspend, self.subflows.all.iter().filter(carries).any(|sub| sub.has_carried))
    }

    /// Processes a new subflow.
    pub(super) fn on_subflow_up(&mut self, host: &mut HostState, subflow: &EstablishedSubflow) {
        let now = host.now;
        let link = subflow.link.and_then(|link| host.link_index(link));
        if self.subflows.all.iter().any(|sub| sub.id == subflow.id) {
            return;
        }
        let has_older = self.subflows.all.iter().any(|sub| sub.link == link && !sub.is_closing);
        let mut sub = Subflow::new(subflow, link, now);
        // Lost data is detected relative to what the connection had carried when the subflow began.
        sub.volume_at_start = self.traffic.volume;
        sub.start_progress = self.subflows.start_progress(self.traffic.received);
        if self.initial_link.is_none() || subflow.initial {
            self.initial_link = link.or(self.initial_link);
        }
        // Adopted subflows are reported one after another; until the first poll they must not be taken for
        // duplicates.
        let is_adopting = self.adopted && self.subflows.all.iter().any(|sub| sub.polled_at.is_none());
        let mut is_superfluous = false;
        if let (Some(index), Some(path)) = (link, link.and_then(|link| self.subflows.paths.get_mut(link))) {
            // Its handshake proves that the path works now, whatever was known before.
            let was_dead = path.dead.take().is_some();
            if was_dead && host.config.policy == Policy::Marline {
                path.reset_measurements(now);
            }
            if host.links.get(index).is_some_and(Link::is_unresponsive) {
                host.on_link_recovered(index);
            }
            if let Some(host_link) = host.links.get_mut(index) {
                host_link.last_received = Some(now);
            }
            // If the first SYN was lost, the subflow is established after the join was given up. It is useful all
            // the same, so its purpose is taken from the trial if there is no join any more.
            let tries_mtu = path.mtu_trial.is_some_and(|smaller| !smaller.is_upload) && !path.join.is_probe();
            let is_mtu_trial = path.join.is_mtu_trial() || tries_mtu;
            (path.join, path.probed_at) = (JoinState::Idle, Some(now));
            // For the goal of throughput, an early measurement of the new path is worth more than an accurate one.
            // The initial subflow has just started, so its samples count at once.
            let holdoff = if host.config.goal == Goal::Speed { Duration::ZERO } else { SAMPLE_HOLDOFF };
            let samples_from = if subflow.initial { now } else { now + holdoff + sub.rtt() };
            (path.sample_bytes, path.sample_start, path.samples_from) = (0, now, samples_from);
            // A second subflow on the same link. On a dead path the old subflow's sender has backed off, so the new
            // one replaces it once it has proved to be stable (`remove_duplicates`). Otherwise the old subflow
            // works and the new one was a liveness probe, even if it is late: it is closed at once. Of adopted
            // duplicates, the newest one is kept.
            is_superfluous = has_older && !was_dead && !is_adopting && !is_mtu_trial;
        }
        for subflow in
            self.subflows.all.iter_mut().filter(|subflow| subflow.link == link && subflow.rto_since.is_some())
        {
            // The new handshake shows that small packets pass: later timeouts of the old subflow indicate lost
            // full-sized packets.
            subflow.timeouts_at_probe.get_or_insert(subflow.timeouts);
        }
        self.subflows.all.push(sub);
        if is_superfluous {
            self.subflows.destroy(host, subflow.id);
            // Even if it may not be closed now, it never represents the link.
            if let Some(sub) = self.subflows.get_mut(subflow.id) {
                sub.is_closing = true;
            }
        }
    }

    /// Processes the end of a subflow.
    pub(super) fn on_subflow_down(&mut self, host: &mut HostState, id: SubflowId, reason: CloseReason) {
        let Some(position) = self.subflows.all.iter().position(|sub| sub.id == id) else { return };
        let sub = self.subflows.all.remove(position);
        let now = host.now;
        let has_others = self.subflows.on_link(sub.link.unwrap_or(usize::MAX)).is_some();
        if let Some(link) = sub.link.filter(|_| reason == CloseReason::Reset && has_others) {
            black_hole::on_second_refused(&mut self.subflows, host, link, sub.established_at);
        }
        let Some(path) = sub.link.and_then(|link| self.subflows.paths.get_mut(link)) else { return };
        if sub.is_closing || has_others {
            return;
        }
        match reason {
            // Reset at once, without data: the server refuses subflows over this link.
            CloseReason::Reset if now.since(sub.established_at) < REFUSAL_WINDOW && sub.volume() == 0 => {
                path.join_obstacle = Some(JoinObstacle::ServerRefused);
                path.back_off(now, REFUSAL_RETRY, MAX_REFUSAL_RETRY);
            }
            // The link may have lost this address and have another one already, so the first retry comes soon. If
            // the subflow was new, the retry comes later, because a link may report this for every subflow.
            CloseReason::Unreachable => {
                let was_established = now.since(sub.established_at) > REFUSAL_WINDOW;
                path.dead = Some(DeadPath::new(now, now + if was_established { SHORT_RETRY } else { JOIN_RETRY }));
            }
            CloseReason::TimedOut => path.dead = Some(DeadPath::new(now, now + DeadPath::FIRST_PROBE)),
            CloseReason::Closed | CloseReason::Reset | CloseReason::Other => {
                let first = if path.is_recovering() { SHORT_RETRY } else { JOIN_RETRY };
                path.back_off(now, first, MAX_JOIN_RETRY);
            }
        }
    }

    /// Processes the result of a command.
    pub(super) fn on_command_done(
        &mut self,
        host: &mut HostState,
        command: CommandId,
        command_kind: Command,
        error: Option<CommandError>,
    ) {
        let now = host.now;
        if error == Some(CommandError::HalfClosed) {
            (self.subflows.is_half_closed, self.subflows.joins_denied) = (true, true);
            black_hole::abandon_trials(&mut self.subflows, host);
        }
        match command_kind {
            Command::Join { link, .. } => {
                let rtt = host
                    .link_index(link)
                    .and_then(|index| self.subflows.on_link(index))
                    .map_or_else(|| self.subflows.min_rtt(), Subflow::handshake_rtt);
                if error.is_none() {
                    // The SYN makes the link's radio active.
                    host.meter.on_bytes(now, link, Direction::Up, DataSize::ZERO);
                }
                let Some(path) = host.link_index(link).and_then(|index| self.subflows.paths.get_mut(index)) else {
                    return;
                };
                let purpose = match path.join {
                    JoinState::Requested(requested, purpose) if requested == command => purpose,
                    _ => return,
                };
                path.join = match error {
                    None => JoinState::SynSent(purpose.join_deadline(now, rtt), purpose),
                    Some(error) => {
                        // When a link comes back, its routes may follow shortly after its address.
                        let short_retry = path.is_recovering().then_some(SHORT_RETRY);
                        path.join_obstacle = match error {
                            CommandError::NotAnnounced(family) => Some(JoinObstacle::NotAnnounced(family)),
                            CommandError::SocketFamily(family) => Some(JoinObstacle::SocketFamily(family)),
                            _ => path.join_obstacle,
                        };
                        match error {
                            CommandError::NotYet => path.join_not_before = now + SHORT_RETRY,
                            // A new announcement or another address of the link ends this interval early; for a
                            // half-closed connection nothing does.
                            CommandError::NotAnnounced(_)
                            | CommandError::SocketFamily(_)
                            | CommandError::HalfClosed => path.join_not_before = now + MAX_REFUSAL_RETRY,
                            CommandError::NoAddress | CommandError::NotPermitted => {
                                path.back_off(now, short_retry.unwrap_or(NO_ADDRESS_RETRY), MAX_NO_ADDRESS_RETRY);
                            }
                            _ => {
                                path.back_off(now, short_retry.unwrap_or(JOIN_RETRY), MAX_JOIN_RETRY);
                            }
                        }
                        JoinState::Idle
                    }
                };
                if let (Some(error), JoinPurpose::MtuTrial, Some(index)) = (error, purpose, host.link_index(link)) {
                    black_hole::on_mtu_join_refused(&mut self.subflows, host, index, error);
                }
            }
            Command::SetBackup { subflow, .. } | Command::Destroy { subflow } => {
                if error == Some(CommandError::HalfClosed) {
                    if let Some(sub) = self.subflows.get_mut(subflow) {
                        sub.is_closing = false;
                    }
                } else if error == Some(CommandError::NoSubflow) {
                    // Its end is reported separately, or shows in the next poll.
                    if let Some(sub) = self.subflows.get_mut(subflow) {
                        sub.priority_check = None;
                    }
                }
            }
        }
    }

    /// The server has announced an address: joins that waited for one are possible now.
    pub(super) fn on_address_announced(&mut self, now: Instant) {
        self.subflows.joins_denied = self.subflows.is_half_closed;
        let is_waiting = |path: &&mut Path| matches!(path.join_obstacle, Some(JoinObstacle::NotAnnounced(_)));
        for path in self.subflows.paths.iter_mut().filter(is_waiting) {
            (path.join_obstacle, path.join_not_before, path.join_failures) = (None, now, 0);
        }
    }

    /// Gives up joins that were not established in time.
    pub(super) fn expire_joins(&mut self, host: &mut HostState) {
        let now = host.now;
        for link in 0..self.subflows.paths.len() {
            let Some(path) = self.subflows.paths.get_mut(link) else { continue };
            let JoinState::SynSent(until, purpose) = path.join else { continue };
            if now < until {
                continue;
            }
            path.join = JoinState::Idle;
            match purpose {
                JoinPurpose::Carry => {
                    // The link was joined successfully before, so it has become unresponsive since. It is probed
                    // like a path that has carried data.
                    let is_unresponsive = host.config.policy == Policy::Marline && path.probed_at.is_some();
                    let pause = if is_unresponsive {
                        path.dead.get_or_insert(DeadPath::new(now, now + DeadPath::FIRST_PROBE));
                        DeadPath::FIRST_PROBE
                    } else {
                        path.back_off(now, JOIN_RETRY, MAX_JOIN_RETRY)
                    };
                    self.note_join_timeout(host, link, pause);
                }
                JoinPurpose::Probe { until } if now < until => self.subflows.join(host, link, true, purpose),
                JoinPurpose::Probe { .. } => liveness::on_probe_failed(&mut self.subflows, host, link),
                JoinPurpose::Recover | JoinPurpose::MtuTrial => {}
            }
        }
    }

    /// Reports that a join was not established. The reason of the present state is then reported again, so that it
    /// is the newest note.
    fn note_join_timeout(&mut self, host: &mut HostState, link: usize, pause: Duration) {
        let (name, waited) = (host.link_name(link), JOIN_TIMEOUT.max(self.subflows.min_rtt() * 3));
        let reason = alloc::format!(
            "join over {name}: no response within {} s; next attempt in {} s",
            waited.as_secs(),
            pause.as_secs()
        );
        self.explanation.report_event(host, reason);
    }
}
