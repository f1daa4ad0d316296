//! Reconciliation: makes the subflows of a connection equal to the decision of the policy, by joins, priorities and
//! closes.
//!
//! 1. New before old: a link is released only when a remaining link has carried data. Exceptions are an idle
//!    connection whose new subflow can no longer be refused, and a new subflow that has carried nothing for
//!    [`HANDOVER_GRACE`]. If all subflows were backups, the peer would treat them as if none were.
//! 2. A link that has a subflow is joined again only to probe or to replace that subflow (see [`super::liveness`]).
//! 3. A join that is not established within 3 s or three RTTs is given up without a command. It is repeated later,
//!    each time after twice the interval. A subflow that the server resets at once was refused; the link is then
//!    left alone for longer.
//! 4. A connection whose server accepts only announced addresses is not joined before one is announced.

use super::config::{Config, Goal, Policy};
use super::conn::{Activity, Conn, DeadPath, JoinPurpose, JoinState, Path};
use super::event::{CloseReason, Command, CommandError, EstablishedSubflow, Output};
use super::host_state::HostState;
use super::links::{Link, LinkSet};
use super::liveness::attempt_time;
use super::policy::Decision;
use super::reason::{JoinObstacle, Reason};
use super::sampling::SAMPLE_HOLDOFF;
use super::subflow::Subflow;
use crate::energy::Direction;
use crate::units::{DataSize, Duration, Instant, Ratio};

/// Time after which other subflows are suspended for a newly active one even if that has carried nothing yet.
/// Chosen: three times the usual duration of the first RTTs of slow start.
const HANDOVER_GRACE: Duration = Duration::from_secs(2);
/// A join that takes longer than this and than three RTTs has failed: over an unreachable path a SYN gets no
/// response at all.
const JOIN_TIMEOUT: Duration = Duration::from_secs(3);
/// First interval after a join that was not established; doubled each time.
const JOIN_RETRY: Duration = Duration::from_secs(2);
/// Longest of these intervals.
const MAX_JOIN_RETRY: Duration = Duration::from_secs(300);
/// A subflow that is reset within this time without a byte was refused. Measured: servers reset it within 100 ms.
const REFUSAL_WINDOW: Duration = Duration::from_secs(2);
/// First interval after a refusal; doubled each time, up to an hour. Chosen: a server's limit lasts as long as the
/// connection's other subflows.
const REFUSAL_RETRY: Duration = Duration::from_secs(60);
/// Share of polls with new bytes from which on a response counts as steady. Chosen: at 120 kbit/s a packet arrives
/// every 100 ms, as often as the link is polled; small responses over an RTT of 120 ms leave every second poll
/// empty.
const STEADY_POLLS: Ratio = Ratio::from_percent(75);
const MAX_REFUSAL_RETRY: Duration = Duration::from_secs(3600);
/// Interval after a failure that is likely to be short: the connection could not be joined yet, or a link has just
/// come back.
const SHORT_RETRY: Duration = Duration::from_millis(200);
/// Intervals after a join without address, route or permission: the first and the longest.
const NO_ADDRESS_RETRY: Duration = Duration::from_secs(15);
const MAX_NO_ADDRESS_RETRY: Duration = Duration::from_secs(120);

impl Conn {
    /// Issues the commands that bring the connection to the decision.
    pub(super) fn reconcile(&mut self, host: &mut HostState, decision: Decision) {
        let now = host.now;
        if decision.active != self.active_links {
            (self.active_links, self.active_since) = (decision.active, now);
        }
        // First establish what the decision needs: join missing active links, resume active ones on standby.
        for link in decision.active.iter() {
            match self.subflow_on(link).map(|sub| (sub.id, sub.backup)) {
                None => self.join(host, link, false, JoinPurpose::Carry),
                Some((id, true)) => self.set_backup(host, id, false),
                Some((_, false)) => {}
            }
        }
        // Standby links are joined as backups.
        for link in decision.standby.without(decision.active).iter() {
            if self.subflow_on(link).is_none() {
                self.join(host, link, true, JoinPurpose::Carry);
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
            let mut releases = alloc::vec::Vec::new();
            for sub in self.subflows.iter().filter(|sub| !sub.is_closing) {
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
                let is_backup = self.subflows.iter().any(|sub| sub.id == id && sub.backup);
                match destroys && self.may_end(host, id) {
                    true => self.destroy(host, id),
                    false if is_backup => {}
                    false => self.set_backup(host, id, true),
                }
            }
        }
        self.note_reason(host, decision.reason);
    }

    /// Whether other subflows may be suspended, and whether they may be destroyed: one of the active links already
    /// carries data. A subflow that has received nothing may have no working path, and then a suspended subflow
    /// takes over, but a destroyed one cannot.
    fn can_release(&self, active: LinkSet, now: Instant) -> (bool, bool) {
        let idle = self.activity == Activity::Idle;
        let carries =
            |sub: &&Subflow| sub.link.is_some_and(|link| active.contains(link)) && !sub.backup && !sub.is_closing;
        let has_waited = |sub: &Subflow| {
            now.since(sub.active_since) > HANDOVER_GRACE || idle && now.since(sub.established_at) > REFUSAL_WINDOW
        };
        let can_suspend = self.subflows.iter().filter(carries).any(|sub| sub.has_carried || has_waited(sub));
        (can_suspend, self.subflows.iter().filter(carries).any(|sub| sub.has_carried))
    }

    /// Requests a subflow over a link, unless the link cannot be joined or a join is in progress.
    pub(super) fn join(&mut self, host: &mut HostState, link: usize, backup: bool, purpose: JoinPurpose) {
        let is_joinable = self.is_joinable(host, link);
        let (Some(host_link), Some(path)) = (host.link(link), self.paths.get_mut(link)) else { return };
        if !is_joinable || path.join != JoinState::Idle {
            return;
        }
        let id = host_link.config.id;
        let command = host.send_command(self.id, Command::Join { link: id, backup });
        path.join = JoinState::Requested(command, purpose);
    }

    /// Whether a link may be joined now.
    pub(super) fn is_joinable(&self, host: &HostState, link: usize) -> bool {
        let up = host.link(link).is_some_and(|link| link.up && !link.is_budget_spent());
        let path = self.paths.get(link);
        up && !self.joins_denied && path.is_some_and(|path| host.now >= path.join_not_before)
    }

    fn set_backup(&mut self, host: &mut HostState, id: super::SubflowId, backup: bool) {
        let (now, volume, progress) = (host.now, self.volume, self.start_progress());
        let Some(sub) = self.subflow_mut(id) else { return };
        sub.request_backup(now, backup);
        // The starting points for detecting lost data and for measuring begin anew with the priority.
        sub.volume_at_start = volume;
        (sub.start_progress, sub.missing_since) = (progress, None);
        let (link, rtt) = (sub.link, sub.rtt());
        host.send_command(self.id, Command::SetBackup { subflow: id, backup });
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
    fn may_end(&self, host: &HostState, id: super::SubflowId) -> bool {
        let link = self.subflows.iter().find(|sub| sub.id == id).and_then(|sub| sub.link);
        !self.is_half_closed || link.and_then(|link| host.link(link)).is_some_and(Link::is_budget_spent)
    }

    pub(super) fn destroy(&mut self, host: &mut HostState, id: super::SubflowId) {
        if !self.may_end(host, id) {
            return;
        }
        let conn = self.id;
        // The last subflow always stays. A subflow that was just established may still be refused by the server, so
        // it does not count as a replacement, unless the subflow to be closed is no more reliable itself.
        let now = host.now;
        let is_reliable = |sub: &Subflow| {
            sub.initial || sub.has_carried || sub.volume() > 0 || now.since(sub.established_at) > REFUSAL_WINDOW
        };
        let is_unproven = self.subflows.iter().any(|sub| sub.id == id && !is_reliable(sub));
        if !self.subflows.iter().any(|sub| sub.id != id && !sub.is_closing && (is_unproven || is_reliable(sub))) {
            return;
        }
        if let Some(sub) = self.subflow_mut(id).filter(|sub| !sub.is_closing) {
            sub.is_closing = true;
            host.send_command(conn, Command::Destroy { subflow: id });
        }
    }

    /// Processes a new subflow.
    pub(super) fn on_subflow_up(&mut self, host: &mut HostState, subflow: &EstablishedSubflow) {
        let now = host.now;
        let link = subflow.link.and_then(|link| host.link_index(link));
        if self.subflows.iter().any(|sub| sub.id == subflow.id) {
            return;
        }
        let same_link: alloc::vec::Vec<_> =
            self.subflows.iter().filter(|sub| sub.link == link && !sub.is_closing).map(|sub| sub.id).collect();
        let mut sub = Subflow::new(subflow, link, now);
        sub.volume_at_start = self.volume;
        sub.start_progress = self.start_progress();
        if self.initial_link.is_none() || subflow.initial {
            self.initial_link = link.or(self.initial_link);
        }
        let mut closing = alloc::vec::Vec::new();
        // Adopted subflows are reported one after another; until the first poll they must not be taken for
        // duplicates.
        let adopting = self.adopted && self.subflows.iter().any(|sub| sub.polled_at.is_none());
        if let (Some(index), Some(path)) = (link, link.and_then(|link| self.paths.get_mut(link))) {
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
            // the same.
            let tries_mtu = path.mtu_trial.is_some_and(|smaller| !smaller.is_upload) && !path.join.is_probe();
            let is_mtu_trial = path.join.is_mtu_trial() || tries_mtu;
            (path.join, path.probed_at) = (JoinState::Idle, Some(now));
            // For the goal of throughput, an early measurement of the new path is worth more than an accurate one.
            let holdoff = if host.config.goal == Goal::Speed { Duration::ZERO } else { SAMPLE_HOLDOFF };
            (path.sample_bytes, path.sample_start, path.samples_from) = (0, now, now + holdoff + sub.rtt());
            // A second subflow on the same link. On a dead path the old subflow's sender has backed off, so the new
            // one replaces it once it has proved to be stable (`remove_duplicates`). Otherwise the old subflow
            // works and the new one was a liveness probe, even if it is late: it is closed at once. Of adopted
            // duplicates, the newest one is kept.
            if !same_link.is_empty() && !was_dead && !adopting && !is_mtu_trial {
                sub.is_closing = true;
                closing.push(subflow.id);
            }
        }
        if subflow.initial {
            // The initial subflow has just started, so its samples count at once.
            if let Some(path) = link.and_then(|link| self.paths.get_mut(link)) {
                path.samples_from = now;
            }
        }
        // The flag is set again after `destroy`, which ignores subflows that are already closing.
        let is_closing = core::mem::take(&mut sub.is_closing);
        for old in self.subflows.iter_mut().filter(|old| old.link == link && old.rto_since.is_some()) {
            // The new handshake shows that small packets pass: later timeouts of the old subflow indicate lost
            // full-sized packets.
            old.timeouts_at_probe.get_or_insert(old.timeouts);
        }
        self.subflows.push(sub);
        for id in closing {
            self.destroy(host, id);
        }
        if let Some(sub) = self.subflow_mut(subflow.id) {
            sub.is_closing |= is_closing;
        }
    }

    /// Closes the older one of two subflows on a link, once the newer one has carried data or has existed for
    /// [`REFUSAL_WINDOW`]. A server that refuses a second subflow resets it at once, and then the older one must
    /// still exist.
    pub(super) fn remove_duplicates(&mut self, host: &mut HostState) {
        let now = host.now;
        let is_superseded = |sub: &&Subflow| {
            let newer = sub.link.and_then(|link| self.subflow_on(link));
            let on_trial =
                sub.link.and_then(|index| self.paths.get(index)).is_some_and(|path| path.mtu_trial.is_some());
            newer.is_some_and(|newer| {
                !on_trial
                    && newer.id != sub.id
                    && (newer.has_carried || now.since(newer.established_at) > REFUSAL_WINDOW)
            })
        };
        let closing: alloc::vec::Vec<_> =
            self.subflows.iter().filter(|sub| !sub.is_closing).filter(is_superseded).map(|sub| sub.id).collect();
        for id in closing {
            self.destroy(host, id);
        }
    }

    /// Processes the end of a subflow.
    pub(super) fn on_subflow_down(&mut self, host: &mut HostState, id: super::SubflowId, reason: CloseReason) {
        let Some(position) = self.subflows.iter().position(|sub| sub.id == id) else { return };
        let sub = self.subflows.remove(position);
        let now = host.now;
        let has_others = self.subflow_on(sub.link.unwrap_or(usize::MAX)).is_some();
        if let Some(link) = sub.link.filter(|_| reason == CloseReason::Reset && has_others) {
            self.on_second_refused(host, link, sub.established_at);
        }
        let Some(path) = sub.link.and_then(|link| self.paths.get_mut(link)) else { return };
        if sub.is_closing || has_others {
            return;
        }
        match reason {
            // Reset at once, without data: the server refuses subflows over this link.
            CloseReason::Reset if now.since(sub.established_at) < REFUSAL_WINDOW && sub.volume() == 0 => {
                path.join_obstacle = Some(JoinObstacle::ServerRefused);
                path.join_not_before =
                    now + next_backoff(REFUSAL_RETRY, &mut path.join_failures, MAX_REFUSAL_RETRY);
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
                path.join_not_before = now + next_backoff(first, &mut path.join_failures, MAX_JOIN_RETRY);
            }
        }
    }

    /// Processes the result of a command.
    pub(super) fn on_command_done(
        &mut self,
        host: &mut HostState,
        command: super::CommandId,
        command_kind: Command,
        error: Option<CommandError>,
    ) {
        let now = host.now;
        if error == Some(CommandError::HalfClosed) {
            (self.is_half_closed, self.joins_denied) = (true, true);
            self.abandon_trials(host);
        }
        match command_kind {
            Command::Join { link, .. } => {
                let rtt = host
                    .link_index(link)
                    .and_then(|index| self.subflow_on(index))
                    .map_or_else(|| self.min_rtt(), Subflow::handshake_rtt);
                if error.is_none() {
                    // The SYN makes the link's radio active.
                    host.meter.on_bytes(now, link, Direction::Up, DataSize::ZERO);
                }
                let Some(path) = host.link_index(link).and_then(|index| self.paths.get_mut(index)) else { return };
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
                        path.join_not_before = now
                            + match error {
                                CommandError::NotYet => SHORT_RETRY,
                                // A new announcement or another address of the link ends this interval early; for a
                                // half-closed connection nothing does.
                                CommandError::NotAnnounced(_)
                                | CommandError::SocketFamily(_)
                                | CommandError::HalfClosed => MAX_REFUSAL_RETRY,
                                CommandError::NoAddress | CommandError::NotPermitted => next_backoff(
                                    short_retry.unwrap_or(NO_ADDRESS_RETRY),
                                    &mut path.join_failures,
                                    MAX_NO_ADDRESS_RETRY,
                                ),
                                _ => next_backoff(
                                    short_retry.unwrap_or(JOIN_RETRY),
                                    &mut path.join_failures,
                                    MAX_JOIN_RETRY,
                                ),
                            };
                        JoinState::Idle
                    }
                };
                if let (Some(error), JoinPurpose::MtuTrial, Some(index)) = (error, purpose, host.link_index(link)) {
                    self.on_mtu_join_refused(host, index, error);
                }
            }
            Command::SetBackup { subflow, .. } | Command::Destroy { subflow } => {
                if error == Some(CommandError::HalfClosed) {
                    if let Some(sub) = self.subflow_mut(subflow) {
                        sub.is_closing = false;
                    }
                } else if error == Some(CommandError::NoSubflow) {
                    // Its end is reported separately, or shows in the next poll.
                    if let Some(sub) = self.subflow_mut(subflow) {
                        sub.priority_check = None;
                    }
                }
            }
        }
    }

    /// The server has announced an address: joins that waited for one are possible now.
    pub(super) fn on_address_announced(&mut self, now: Instant) {
        self.joins_denied = self.is_half_closed;
        let is_waiting = |path: &&mut Path| matches!(path.join_obstacle, Some(JoinObstacle::NotAnnounced(_)));
        for path in self.paths.iter_mut().filter(is_waiting) {
            (path.join_obstacle, path.join_not_before, path.join_failures) = (None, now, 0);
        }
    }

    /// Gives up joins that were not established in time.
    pub(super) fn expire_joins(&mut self, host: &mut HostState) {
        let now = host.now;
        for link in 0..self.paths.len() {
            let Some(path) = self.paths.get_mut(link) else { continue };
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
                        DeadPath::FIRST_PROBE
                    } else {
                        next_backoff(JOIN_RETRY, &mut path.join_failures, MAX_JOIN_RETRY)
                    };
                    if is_unresponsive {
                        path.dead.get_or_insert(DeadPath::new(now, now + pause));
                    } else {
                        path.join_not_before = now + pause;
                    }
                    self.note_join_timeout(host, link, pause);
                }
                JoinPurpose::Probe { until } if now < until => self.join(host, link, true, purpose),
                JoinPurpose::Probe { .. } => self.on_probe_failed(host, link),
                JoinPurpose::Recover | JoinPurpose::MtuTrial => {}
            }
        }
    }

    /// Reports that a join was not established. The reason of the present state is then reported again, so that it
    /// is the newest note.
    fn note_join_timeout(&mut self, host: &mut HostState, link: usize, pause: Duration) {
        let (name, waited) = (host.link_name(link), JOIN_TIMEOUT.max(self.min_rtt() * 3));
        let reason = alloc::format!(
            "join over {name}: no response within {} s; next attempt in {} s",
            waited.as_secs(),
            pause.as_secs()
        );
        host.outputs.push_back(Output::Note { conn: self.id, reason });
        self.noted_reason = None;
    }

    /// Reports the reason of a decision, if it is of a new kind.
    fn note_reason(&mut self, host: &mut HostState, reason: Reason) {
        self.reason = reason;
        if self.noted_reason.is_some_and(|noted| noted.is_same_kind(&reason)) || reason == Reason::Undecided {
            return;
        }
        self.noted_reason = Some(reason);
        let text = reason.sentence(|index| host.link_name(index));
        host.outputs.push_back(Output::Note { conn: self.id, reason: text });
    }

    /// Sets `is_eligible` when κ bytes or τ seconds have passed (eMPTCP §3.5), so that another link may be joined.
    /// With marline's policy they must belong to one response ([`Conn::response`]): what a connection carried
    /// before a pause says nothing about what follows, and many small responses over a long RTT are no slow link
    /// and end before another radio saves energy.
    pub(super) fn update_eligibility(&mut self, config: &Config, now: Instant, interval: Duration) {
        let (carried_bytes, is_old) = match config.policy {
            Policy::Marline => (self.response.1, self.is_steady(now, config.tau)),
            _ => (self.volume, self.volume > 0 && now.since(self.opened) >= config.tau),
        };
        self.is_eligible |= carried_bytes >= config.kappa.bytes() || is_old && !self.is_quiet(now, interval);
    }
}

impl Conn {
    /// Whether the present response has lasted for this time without interruption: [`STEADY_POLLS`] of the polls
    /// found bytes, or fewer because packets are queued in the network.
    pub(super) fn is_steady(&self, now: Instant, time: Duration) -> bool {
        let (polls, with_data) = self.polls;
        let is_steady = u64::from(with_data) * 1_000_000 >= u64::from(polls) * u64::from(STEADY_POLLS.ppm());
        let is_queueing = |sub: &Subflow| !sub.backup && !sub.is_closing && sub.is_queueing();
        now.since(self.response.0) >= time && (is_steady || self.subflows.iter().any(is_queueing))
    }
}

impl JoinPurpose {
    /// Latest time at which a subflow whose SYN is sent now may be established.
    fn join_deadline(self, now: Instant, rtt: Duration) -> Instant {
        match self {
            Self::Carry => now + JOIN_TIMEOUT.max(rtt * 3),
            Self::Probe { until } => {
                let next = now + attempt_time(rtt);
                // Skip an attempt that would have less than half of its time left.
                if next + attempt_time(rtt) / 2 > until { until } else { next }
            }
            Self::Recover | Self::MtuTrial => now + (rtt * 3).max(Duration::from_secs(1)),
        }
    }
}

/// Returns the next back-off interval, which doubles with each failure up to `max`.
fn next_backoff(first: Duration, failures: &mut u8, max: Duration) -> Duration {
    let pause = first.saturating_mul(1 << u32::from(*failures).min(16)).min(max);
    *failures = failures.saturating_add(1);
    pause
}
