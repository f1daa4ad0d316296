//! The loop: everything that happens goes to the machine, everything that it asks for goes to the kernel.
//!
//! In: MPTCP's events, changes of interfaces, time, questions of others. Out: commands and looks, answers.
//!
//! 1. One thread, one task: nothing happens between an input and the outputs that it causes.
//! 2. Commands and looks are carried out after the inputs of a turn, together, and their results are inputs of the next
//!    round; after a few rounds the other sources have their turn.
//! 3. The first dump adopts what ran before; the same dump finds again what was lost with events, and looks every
//!    [`GUARD`] whether anything was lost without a word.
//! 4. Without privilege (`--dry-run`) there are no events: dumps once a second stand for them, and each command is
//!    refused as not permitted.
//! 5. What fails and can heal is tried again, ever more seldom; the run ends with what cannot (`retry`).
//!
//! Files: [`subflow_table`](self) keeps the kernel's names of subflows, `interfaces` those of links, `hotplug` takes up further ones,
//! `events` takes events, `commands` carries out, `resync` dumps, `kernel_pm` speaks for all connections at once where the kernel's own
//! path manager rules.

mod commands;
mod describe;
mod events;
#[cfg(test)]
mod faults;
mod hotplug;
mod interfaces;
mod kernel_pm;
#[cfg(test)]
mod netns_tests;
mod resync;
mod retry;
mod subflow_table;

use std::collections::{BTreeSet, VecDeque};
use std::pin::pin;
use std::time::Duration;

use marline_core::decision_log::Record;
use marline_core::machine::Machine;
use marline_core::paths::{Config, ConnId, Input, Output};
use marline_core::units::Instant;
use marline_core::wire::netlink::{Link, Request, messages};
use marline_net::links::{LinkSelection, Monitor, list_interfaces};
use marline_net::recorded_machine::{LogError, RecordedMachine};
use marline_sys::netlink::RouteSocket;
use tokio::sync::mpsc;

use self::interfaces::{LinkInterfaces, LinkTransition};
use self::kernel_pm::AggregateConn;
use self::retry::{MAX_RETRY_DELAY, MIN_RETRY_DELAY, Retry};
use self::subflow_table::SubflowTable;
use super::kernel::{EventSubscription, FallbackCounters, PathManager, SockDiag, read_fallback_counters};
use super::snapshot::{Management, Snapshot, Totals};
use super::{Budgets, DriverQuery, HostConfigurator, Job, Mode, PathsError};

/// One line of a log.
pub type PathsRecord = Record<Config, Input, Output>;

/// A machine of MPTCP's policy: the real one, and those of tests.
pub trait Policy: Machine<Input = Input, Output = Output> {}
impl<M: Machine<Input = Input, Output = Output>> Policy for M {}

/// Everything that one run holds.
struct Driver<M> {
    log: RecordedMachine<M, Config>,
    started: std::time::Instant,
    mode: Mode,
    /// None in a dry run.
    path_manager: Option<PathManager>,
    sock_diag: SockDiag,
    route_socket: RouteSocket,
    host_config: Box<dyn HostConfigurator>,
    subflow_table: SubflowTable,
    links: LinkInterfaces,
    selection: LinkSelection,
    budgets: Budgets,
    /// When they are kept next.
    next_save: Instant,
    /// Only where the kernel's own path manager rules.
    aggregate: Option<AggregateConn>,
    pending_outputs: VecDeque<Output>,
    pending_polls: BTreeSet<ConnId>,
    totals: Totals,
    fallback_baseline: FallbackCounters,
    next_second: Instant,
    next_full_check: Instant,
    /// Events were lost: when everything is read again.
    next_resync: Option<Instant>,
    /// The kernel has refused to abort a socket, which was logged.
    has_abort_failed: bool,
    /// Before this the driver rests from the last dump.
    resync_not_before: Instant,
    /// Connections became plain TCP since the last dump.
    has_new_fallbacks: bool,
    /// Interfaces are not surveyed again before this.
    survey_not_before: Instant,
    /// Surveys that failed, dumps, and reading events.
    survey_retry: Retry,
    dump_retry: Retry,
    event_retry: Retry,
}

/// Runs the driver with this machine until `stop`, and gives the machine back.
///
/// # Errors
/// See [`PathsError`]; the ground is restored in any case.
pub async fn drive<M: Policy>(machine: M, job: Job, stop: impl Future<Output = ()>) -> Result<M, PathsError> {
    drive_with(machine, job, EVENT_RCVBUF, stop).await
}

/// The same with so many bytes of room for events that wait.
async fn drive_with<M: Policy>(
    machine: M,
    mut job: Job,
    rcvbuf_size: usize,
    stop: impl Future<Output = ()>,
) -> Result<M, PathsError> {
    // A log that cannot be written is found before anything is changed.
    let log = RecordedMachine::new(machine, job.config.clone(), job.decision_log).map_err(log_error)?;
    job.host_config.apply(job.mode)?;
    let mut queries = job.queries;
    let (kernel_sockets, mut events, mut monitor) = match KernelSockets::open(job.mode, rcvbuf_size) {
        Ok(kernel_sockets) => kernel_sockets,
        Err(error) => {
            job.host_config.restore();
            return Err(error);
        }
    };
    let links = LinkInterfaces::new(&job.config.links, job.bypass_vpn);
    let mut driver = Driver::new(log, kernel_sockets, links, job.mode, job.host_config);
    (driver.selection, driver.budgets) = (job.selection, job.budgets);
    let result = driver.run(&mut queries, events.as_mut(), &mut monitor, stop).await;
    driver.host_config.restore();
    driver.save_budgets();
    let finished = driver.log.finish().map_err(log_error);
    result?;
    finished
}

fn log_error((path, error): LogError) -> PathsError {
    PathsError::DecisionLog { path, error }
}

/// What has to be opened before anything is told.
struct KernelSockets {
    path_manager: Option<PathManager>,
    sock_diag: SockDiag,
    route_socket: RouteSocket,
}

impl KernelSockets {
    fn open(mode: Mode, rcvbuf_size: usize) -> Result<(Self, Option<EventSubscription>, Monitor), PathsError> {
        let kernel_error = PathsError::kernel;
        let (mut path_manager, mut events) = (None, None);
        if mode != Mode::DryRun {
            let opened = PathManager::open()?;
            let no_event_group = || PathsError::NoMptcp(std::io::Error::other("it has no group of events"));
            let group = opened.event_group().ok_or_else(no_event_group)?;
            let subscription = EventSubscription::subscribe(opened.family_id(), group, rcvbuf_size);
            events = Some(subscription.map_err(|error| kernel_error("listening to MPTCP's path manager", error))?);
            path_manager = Some(opened);
        }
        let sock_diag = SockDiag::open().map_err(|error| kernel_error("sock_diag", error))?;
        let route_socket = RouteSocket::open().map_err(|error| kernel_error("route netlink", error))?;
        Ok((Self { path_manager, sock_diag, route_socket }, events, Monitor::new()?))
    }
}

/// A part of the beginning, which may be tried again.
type StartStep<M> = fn(&mut Driver<M>) -> Result<(), PathsError>;

impl<M: Policy> Driver<M> {
    fn new(
        log: RecordedMachine<M, Config>,
        kernel_sockets: KernelSockets,
        links: LinkInterfaces,
        mode: Mode,
        host_config: Box<dyn HostConfigurator>,
    ) -> Self {
        let KernelSockets { path_manager, sock_diag, route_socket } = kernel_sockets;
        Self {
            log,
            started: std::time::Instant::now(),
            mode,
            path_manager,
            sock_diag,
            route_socket,
            host_config,
            subflow_table: SubflowTable::default(),
            links,
            // Nothing that comes is used, and nothing is kept.
            selection: LinkSelection::Named(Vec::new()),
            budgets: Budgets::default(),
            next_save: Instant::ZERO + SAVE_INTERVAL,
            aggregate: (mode == Mode::KernelPm).then(AggregateConn::default),
            pending_outputs: VecDeque::new(),
            pending_polls: BTreeSet::new(),
            totals: Totals::default(),
            fallback_baseline: read_fallback_counters(),
            next_second: Instant::ZERO,
            next_full_check: Instant::ZERO + FULL_CHECK_INTERVAL,
            next_resync: None,
            has_abort_failed: false,
            resync_not_before: Instant::ZERO,
            has_new_fallbacks: false,
            survey_not_before: Instant::ZERO,
            survey_retry: Retry::new("interfaces"),
            dump_retry: Retry::new("the list of sockets"),
            event_retry: Retry::new("events"),
        }
    }

    async fn run(
        &mut self,
        queries: &mut mpsc::Receiver<DriverQuery>,
        mut events: Option<&mut EventSubscription>,
        monitor: &mut Monitor,
        stop: impl Future<Output = ()>,
    ) -> Result<(), PathsError> {
        let mut stop = pin!(stop);
        let mut is_control_open = true;
        let steps: [StartStep<M>; 3] = [Self::survey_links, Self::start_aggregate, |driver| driver.resync(true)];
        for step in steps {
            let mut pause = MIN_RETRY_DELAY;
            while let Err(error) = step(self) {
                if !error.is_transient() || pause > MAX_RETRY_DELAY {
                    return Err(error);
                }
                tracing::warn!(%error, "trying again");
                tokio::select! {
                    () = &mut stop => return Ok(()),
                    () = tokio::time::sleep(pause) => pause *= 2,
                }
            }
        }
        self.remove_idle_endpoints();
        loop {
            let now = self.now();
            self.run_due(now)?;
            // Behind the tick, so that a look is made when it is asked for and not at the next deadline.
            let next = if self.execute_outputs() { now } else { self.next_deadline(now) };
            let sleep = tokio::time::sleep_until((self.started + next.since(Instant::ZERO)).into());
            let (can_survey, can_read_events) = (now >= self.survey_not_before, self.event_retry.is_due(now));
            tokio::select! {
                biased;
                () = &mut stop => return Ok(()),
                changed = monitor.changed(), if can_survey => {
                    self.survey_not_before = now + SURVEY_INTERVAL;
                    let outcome = changed.map_err(PathsError::from).and_then(|()| self.survey_links());
                    self.survey_retry.record_result(now, outcome)?;
                }
                batch = events::next_events(&mut events), if can_read_events => {
                    let batch = batch.map_err(|error| PathsError::kernel("MPTCP's events", error));
                    let has_lost_events = batch.as_ref().map_or(true, |batch| batch.has_lost_events);
                    let batch = batch.map(|batch| self.on_events(batch.events));
                    self.event_retry.record_result(now, batch)?;
                    if has_lost_events {
                        // In a storm of events the dumps themselves must not take all the time.
                        self.next_resync = Some(self.next_resync.unwrap_or(self.resync_not_before));
                    }
                }
                query = queries.recv(), if is_control_open => match query {
                    Some(query) => self.answer_query(query),
                    None => is_control_open = false,
                },
                () = sleep => {}
            }
        }
    }

    fn now(&self) -> Instant {
        Instant::ZERO + self.started.elapsed()
    }

    /// Something happened: the machine hears it, and what it asks for is put in the queue.
    fn feed_machine(&mut self, input: Input) {
        self.log.handle(self.now(), input);
        self.drain_outputs();
    }

    fn drain_outputs(&mut self) {
        while let Some(output) = self.log.poll() {
            match output {
                Output::Poll { conn } => {
                    self.pending_polls.insert(conn);
                }
                output => self.pending_outputs.push_back(output),
            }
        }
    }

    /// Does what is due.
    fn run_due(&mut self, now: Instant) -> Result<(), PathsError> {
        if self.log.deadline().is_some_and(|due| due <= now) {
            self.log.tick(now);
            self.drain_outputs();
        }
        if now >= self.next_second {
            self.next_second = now + SECOND;
            self.every_second();
            if self.mode == Mode::DryRun && self.dump_retry.next_attempt().is_none() {
                self.resync_or_retry(now)?;
            }
        }
        if self.survey_retry.next_attempt().is_some_and(|due| due <= now) {
            let outcome = self.survey_links();
            self.survey_retry.record_result(now, outcome)?;
        }
        if self.dump_retry.next_attempt().is_some_and(|due| due <= now) {
            self.resync_or_retry(now)?;
        } else if self.next_resync.is_some_and(|due| due <= now) && self.dump_retry.next_attempt().is_none() {
            self.totals.resyncs += 1;
            tracing::warn!("events of MPTCP were lost; reading everything again");
            self.resync_or_retry(now)?;
        } else if now >= self.next_full_check {
            self.next_full_check = now + FULL_CHECK_INTERVAL;
            // The ground may have left something alone for a while.
            let outcome = self.survey_links();
            self.survey_retry.record_result(now, outcome)?;
            if !self.subflow_table.conns.is_empty()
                || self.has_new_fallbacks
                || read_fallback_counters().established > 0
            {
                self.has_new_fallbacks = false;
                self.resync_or_retry(now)?;
            }
        }
        Ok(())
    }

    /// Reads everything again, now or, if that fails, later.
    fn resync_or_retry(&mut self, now: Instant) -> Result<(), PathsError> {
        let outcome = self.resync(false);
        self.dump_retry.record_result(now, outcome)
    }

    /// When something is due next.
    fn next_deadline(&self, now: Instant) -> Instant {
        let mut next = self.next_second.min(self.next_full_check);
        next = match self.dump_retry.next_attempt() {
            Some(due) => next.min(due),
            None => self.next_resync.map_or(next, |due| next.min(due)),
        };
        // Events are not asked for: once they may be read again, they come by themselves.
        let events_at = self.event_retry.next_attempt().filter(|due| *due > now);
        next = self.survey_retry.next_attempt().into_iter().chain(events_at).fold(next, Instant::min);
        if self.survey_not_before > now {
            next = next.min(self.survey_not_before);
        }
        self.log.deadline().map_or(next, |due| next.min(due))
    }

    /// Once a second: what passed the interfaces and the connections, settings that somebody else changes, joins that nothing
    /// came of, the log.
    fn every_second(&mut self) {
        for index in 0..self.links.all.len() {
            let Some(interface) = self.links.all.get(index).filter(|interface| interface.is_up) else { continue };
            let link = interface.link;
            let Ok(reply) = self.route_socket.request(&Request::link_by_index(interface.index).finish(1)) else {
                continue;
            };
            // One that was renamed is another link's, or nobody's: the survey will tell.
            let has_name = |found_link: &Link| found_link.name == interface.name();
            let Some(found_link) = messages(&reply).find_map(|m| Link::parse(&m)).filter(has_name) else {
                continue;
            };
            self.links.update_counters(link, found_link.received_bytes, found_link.sent_bytes, SECOND);
            let totals = self.links.get(link).map(interfaces::LinkInterface::totals).unwrap_or_default();
            self.feed_machine(Input::InterfaceCounters { link, received: totals.0, sent: totals.1 });
        }
        let fallback = read_fallback_counters().fallen_back.saturating_sub(self.fallback_baseline.fallen_back);
        if fallback > self.totals.fallen_back {
            tracing::warn!(connections = fallback, "connections fell back to plain TCP");
            if self.subflow_table.conns.len() <= MAX_FALLBACK_QUERIES {
                let all: Vec<ConnId> = self.subflow_table.conns.keys().copied().collect();
                self.close_ended(&all);
            }
            // How many of the others are open only a dump can tell.
            self.has_new_fallbacks = true;
            self.next_full_check = self.next_full_check.min(self.resync_not_before + FALLBACK_CHECK_DELAY);
        }
        self.totals.fallen_back = fallback;
        self.links.record_budgets(&mut self.budgets);
        if self.now() >= self.next_save {
            let saved = self.save_budgets();
            self.next_save = self.now() + if saved { SAVE_INTERVAL } else { SAVE_INTERVAL * 360 };
        }
        self.host_config.recheck_sysctls();
        self.destroy_stale_joins();
        self.update_active_totals();
        self.log.flush();
    }

    fn save_budgets(&self) -> bool {
        let saved = self.budgets.save();
        if let Err(error) = &saved {
            tracing::warn!(%error, "what was used of the budgets is not kept");
        }
        saved.is_ok()
    }

    /// Looks at the interfaces.
    fn survey_links(&mut self) -> Result<(), PathsError> {
        let survey = list_interfaces()?;
        self.add_links(&survey);
        self.host_config.update_routing(&survey);
        let transitions = self.links.apply_survey(&survey);
        for (link, mtu, v4) in self.links.changed_interfaces(&survey) {
            self.feed_machine(Input::Interface { link, mtu, has_ipv4: v4 });
        }
        for transition in &transitions {
            match *transition {
                LinkTransition::Up(link) | LinkTransition::NewAddress(link) => {
                    self.feed_machine(Input::LinkUp { link })
                }
                LinkTransition::Down(link) => self.feed_machine(Input::LinkDown { link }),
            }
        }
        self.destroy_stranded();
        self.update_link_endpoints(&transitions);
        if transitions.iter().any(|transition| matches!(transition, LinkTransition::Up(_)))
            && self.now() > Instant::ZERO + SECOND
        {
            // Connections over a link that was none until now are ours from now on.
            self.next_full_check = self.next_full_check.min(self.now());
        }
        Ok(())
    }

    fn answer_query(&mut self, query: DriverQuery) {
        self.update_active_totals();
        match query {
            DriverQuery::Snapshot(reply_tx) => drop(reply_tx.send(self.snapshot())),
            DriverQuery::Explain(conn, reply_tx) => {
                let now = self.now();
                let reply = self
                    .subflow_table
                    .open_or_ended(conn, now)
                    .map(|connection| (connection.snapshot(conn, now), connection.history()));
                drop(reply_tx.send(reply));
            }
        }
    }

    fn snapshot(&self) -> Snapshot {
        let now = self.now();
        let unmanaged = self
            .subflow_table
            .conns
            .values()
            .filter(|connection| connection.management == Management::PredatesSwitch)
            .count();
        Snapshot {
            at: now,
            mode: match self.mode {
                Mode::Userspace => "userspace",
                Mode::KernelPm => "kernel-pm",
                Mode::DryRun => "dry-run",
            }
            .to_owned(),
            links: self
                .links
                .all
                .iter()
                .map(|interface| {
                    interface.snapshot(self.subflow_table.subflows_over(interface.link), &self.budgets)
                })
                .collect(),
            connections: self
                .subflow_table
                .conns
                .iter()
                .map(|(conn, connection)| connection.snapshot(*conn, now))
                .collect(),
            totals: Totals { unmanaged: unmanaged as u64, ..self.totals },
            notes: self.host_config.notes(),
        }
    }
}

const SECOND: Duration = Duration::from_secs(1);
/// chosen: a dump of ten thousand connections takes 0.15 s, so that this costs half a percent of a core there.
const FULL_CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// So many connections are asked one by one which of them fell back. chosen: 4 ms, as for 256 subflows.
const MAX_FALLBACK_QUERIES: usize = 256;
/// chosen: a host whose servers all lack MPTCP falls back all the time.
const FALLBACK_CHECK_DELAY: Duration = Duration::from_secs(3);
/// chosen: a burst of changes (DHCP) is one; a lost carrier waits no longer than this.
const SURVEY_INTERVAL: Duration = Duration::from_millis(50);
/// chosen: what a crash takes from a budget is what passes in this time, and a disk does not notice it.
const SAVE_INTERVAL: Duration = Duration::from_secs(10);
/// Bytes of events that wait. An event takes some 800 of them: enough for 5,000 at once.
const EVENT_RCVBUF: usize = 4 << 20;
