//! Event loop of the path manager: passes events to the policy's state machine and executes its outputs in the
//! kernel.
//!
//! Inputs are MPTCP events, changes of interfaces, time, and queries of other tasks. Outputs are commands to the path
//! manager, polls of subflow counters, and replies.
//!
//! 1. One thread and one task: an input and the outputs that it causes are handled without interruption.
//! 2. Commands and polls of one iteration are executed together, after its inputs. Their results are inputs of the
//!    next round. After a few rounds the other event sources are served.
//! 3. The first dump of the kernel's sockets adopts connections that existed before the driver started. Later dumps
//!    find what lost events reported, and one every 30 s (`schedule`) finds what was lost without notice.
//! 4. A dry run (`--dry-run`) has no privilege and therefore no events: a dump per second replaces them, and each
//!    command fails as not permitted.
//! 5. Transient errors are retried with increasing delays; other errors end the run (`retry`).
//!
//! Components: `machine_queue` is the machine with its queued outputs, `sockets` queries the kernel's sockets,
//! `schedule` knows when tasks and retries are due, `subflow_table` maps subflows of the kernel to ids of the policy,
//! and `interfaces` does so for links. `kernel_pm` represents all connections as one where the kernel's own path
//! manager is in charge. The driver itself is in three files: the event loop here, reports of the kernel in `events`,
//! and outputs of the policy in `commands`, which `command_requests` translates for the kernel and `describe` for
//! people. Smaller parts are `address_id` (ids of local addresses), `counters` (a socket's counters in the policy's
//! form), `hotplug` (links for new interfaces), `retry` (transient errors) and `socket_dump` (a dump of all sockets).

mod address_id;
mod command_requests;
mod commands;
mod counters;
mod describe;
mod events;
#[cfg(test)]
mod faults;
mod hotplug;
mod interfaces;
mod kernel_pm;
mod machine_queue;
#[cfg(test)]
mod netns_tests;
mod retry;
mod schedule;
mod socket_dump;
mod sockets;
mod subflow_table;

use std::pin::pin;

use marline_core::decision_log::Record;
use marline_core::machine::Machine;
use marline_core::paths::{Config, ConnId, Input, Output};
use marline_core::units::Instant;
use marline_core::wire::netlink::{Link, Request, messages};
use marline_net::links::{InterfaceList, LinkSelection, Monitor, list_interfaces};
use marline_net::recorded_machine::{LogError, RecordedMachine};
use marline_sys::netlink::RouteSocket;
use tokio::sync::mpsc;

use self::interfaces::{LinkInterfaces, LinkTransition};
use self::kernel_pm::{AggregateConn, KernelPm};
use self::machine_queue::MachineQueue;
use self::retry::{MAX_RETRY_DELAY, MIN_RETRY_DELAY};
use self::schedule::{SECOND, Schedule};
use self::sockets::Sockets;
use self::subflow_table::SubflowTable;
use super::kernel::{EventSubscription, FallbackCounters, PathManager, SockDiag, read_fallback_counters};
use super::snapshot::{Management, Snapshot, Totals};
use super::{Budgets, DriverQuery, HostConfigurator, Job, Mode, PathsError};

/// One line of the decision log.
pub type PathsRecord = Record<Config, Input, Output>;

/// State machine of an MPTCP policy: the real one, or a script in tests.
pub trait Policy: Machine<Input = Input, Output = Output> {}
impl<M: Machine<Input = Input, Output = Output>> Policy for M {}

/// State of one run, from the start of the driver to its end.
struct Driver<M> {
    machine: MachineQueue<M>,
    mode: Mode,
    /// None in a dry run, which lacks the privilege.
    path_manager: Option<PathManager>,
    sockets: Sockets,
    route_socket: RouteSocket,
    host_config: Box<dyn HostConfigurator>,
    subflow_table: SubflowTable,
    links: LinkInterfaces,
    selection: LinkSelection,
    budgets: Budgets,
    /// Only in [`Mode::KernelPm`].
    aggregate: Option<AggregateConn>,
    totals: Totals,
    fallback_baseline: FallbackCounters,
    /// Connections fell back to plain TCP since the last dump.
    has_new_fallbacks: bool,
    schedule: Schedule,
}

/// Runs the driver with this machine until `stop` completes, and returns the machine.
///
/// # Errors
/// See [`PathsError`]; the host configuration is restored in any case.
pub async fn drive<M: Policy>(machine: M, job: Job, stop: impl Future<Output = ()>) -> Result<M, PathsError> {
    drive_with(machine, job, EVENT_RCVBUF, stop).await
}

/// Runs the driver with a given size of the receive buffer for events, in bytes.
async fn drive_with<M: Policy>(
    machine: M,
    mut job: Job,
    rcvbuf_size: usize,
    stop: impl Future<Output = ()>,
) -> Result<M, PathsError> {
    // A log that cannot be written is reported before anything is changed.
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
    let finished = driver.machine.finish().map_err(log_error);
    result?;
    finished
}

fn log_error((path, error): LogError) -> PathsError {
    PathsError::DecisionLog { path, error }
}

/// Netlink sockets that are opened before the first command.
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
            let no_event_group = || {
                PathsError::NoMptcp(std::io::Error::other(
                    "the kernel's MPTCP has no multicast group for events (the kernel is too old)",
                ))
            };
            let group = opened.event_group().ok_or_else(no_event_group)?;
            let subscription = EventSubscription::subscribe(opened.family_id(), group, rcvbuf_size);
            events = Some(subscription.map_err(|error| kernel_error("subscribing to MPTCP events", error))?);
            path_manager = Some(opened);
        }
        let sock_diag = SockDiag::open().map_err(|error| kernel_error("sock_diag", error))?;
        let route_socket = RouteSocket::open().map_err(|error| kernel_error("route netlink", error))?;
        Ok((Self { path_manager, sock_diag, route_socket }, events, Monitor::new()?))
    }
}

/// A step of the start, which may be retried.
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
            machine: MachineQueue::new(log),
            mode,
            path_manager,
            sockets: Sockets::new(sock_diag),
            route_socket,
            host_config,
            subflow_table: SubflowTable::default(),
            links,
            // Defaults: no further links are added, and no budgets are saved.
            selection: LinkSelection::Named(Vec::new()),
            budgets: Budgets::default(),
            aggregate: (mode == Mode::KernelPm).then(AggregateConn::default),
            totals: Totals::default(),
            fallback_baseline: read_fallback_counters(),
            has_new_fallbacks: false,
            schedule: Schedule::default(),
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
        // The order matters: the aggregate needs the links, and the dump needs both to attribute subflows. Transient
        // errors are retried until the delay exceeds its maximum.
        let steps: [StartStep<M>; 3] = [Self::survey_links, Self::start_aggregate, |driver| driver.resync(true)];
        for step in steps {
            let mut pause = MIN_RETRY_DELAY;
            while let Err(error) = step(self) {
                if !error.is_transient() || pause > MAX_RETRY_DELAY {
                    return Err(error);
                }
                tracing::warn!(%error, "start failed; retrying");
                tokio::select! {
                    () = &mut stop => return Ok(()),
                    () = tokio::time::sleep(pause) => pause *= 2,
                }
            }
        }
        if let Some((aggregate, kernel, _)) = self.aggregate() {
            aggregate.remove_idle_endpoints(kernel);
        }
        loop {
            let now = self.now();
            self.run_due(now)?;
            // After the tick, so that a poll is executed when it is requested and not at the next deadline.
            let next = if self.execute_outputs() { now } else { self.next_deadline(now) };
            let sleep = tokio::time::sleep_until(self.machine.system_time(next).into());
            let (can_survey, can_read_events) = (self.schedule.can_survey(now), self.schedule.events.is_due(now));
            tokio::select! {
                // In order of priority: a burst of events must not delay the stop, or the news of an interface to
                // which the events refer.
                biased;
                () = &mut stop => return Ok(()),
                changed = monitor.changed(), if can_survey => {
                    let outcome = changed.map_err(PathsError::from).and_then(|()| self.survey_links());
                    self.schedule.on_change_surveyed(now, outcome)?;
                }
                batch = events::next_events(&mut events), if can_read_events => {
                    let batch = batch.map_err(|error| PathsError::kernel("MPTCP's events", error));
                    let has_lost_events = batch.as_ref().map_or(true, |batch| batch.has_lost_events);
                    let batch = batch.map(|batch| self.on_events(batch.events));
                    self.schedule.events.record_result(now, batch)?;
                    if has_lost_events {
                        // A burst of events must not make the dumps take all the CPU time.
                        self.schedule.on_events_lost();
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
        self.machine.now()
    }

    fn feed_all(&mut self, inputs: Vec<Input>) {
        inputs.into_iter().for_each(|input| self.machine.feed(input));
    }

    /// In [`Mode::KernelPm`]: the aggregate, what it reads and changes, and the table of real subflows.
    fn aggregate(&mut self) -> Option<(&mut AggregateConn, KernelPm<'_>, &SubflowTable)> {
        let Self { aggregate, path_manager, links, host_config, subflow_table, .. } = self;
        let kernel = KernelPm { manager: path_manager.as_ref()?, links, host_config: host_config.as_mut() };
        Some((aggregate.as_mut()?, kernel, subflow_table))
    }

    fn start_aggregate(&mut self) -> Result<(), PathsError> {
        self.aggregate().map_or(Ok(()), |(aggregate, kernel, _)| aggregate.start(kernel))
    }

    fn update_active_totals(&mut self) {
        self.subflow_table.update_active_totals(&self.sockets, MAX_FALLBACK_QUERIES);
    }

    /// Handles everything whose time has come: the machine's deadline, the tasks of each second, retries and full
    /// checks.
    fn run_due(&mut self, now: Instant) -> Result<(), PathsError> {
        self.machine.tick_if_due(now);
        if self.schedule.take_second(now) {
            self.every_second();
            if self.mode == Mode::DryRun && self.schedule.dump.next_attempt().is_none() {
                self.resync_or_retry(now)?;
            }
        }
        if self.schedule.survey.next_attempt().is_some_and(|due| due <= now) {
            let outcome = self.survey_links();
            self.schedule.survey.record_result(now, outcome)?;
        }
        // One dump at most: a retry and lost events both read everything that a full check would read.
        if self.schedule.dump.next_attempt().is_some_and(|due| due <= now) {
            self.resync_or_retry(now)?;
        } else if self.schedule.is_resync_due(now) {
            self.totals.resyncs += 1;
            tracing::warn!("MPTCP events were lost; reading all sockets again");
            self.resync_or_retry(now)?;
        } else if self.schedule.take_full_check(now) {
            // The host configuration may have postponed a repair.
            let outcome = self.survey_links();
            self.schedule.survey.record_result(now, outcome)?;
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

    /// Resynchronizes with the kernel now, or schedules a retry if that fails.
    fn resync_or_retry(&mut self, now: Instant) -> Result<(), PathsError> {
        let outcome = self.resync(false);
        self.schedule.dump.record_result(now, outcome)
    }

    /// The earliest time at which [`run_due`](Self::run_due) has something to do.
    fn next_deadline(&self, now: Instant) -> Instant {
        let next = self.schedule.deadline(now);
        self.machine.deadline().map_or(next, |due| next.min(due))
    }

    /// Tasks of each second: samples interface counters and fallbacks, saves budgets, rechecks sysctls, ends stale
    /// joins, flushes the log.
    fn every_second(&mut self) {
        for index in 0..self.links.all.len() {
            let Some(interface) = self.links.all.get(index).filter(|interface| interface.is_up) else { continue };
            let link = interface.link;
            let Ok(reply) = self.route_socket.request(&Request::link_by_index(interface.index).finish(1)) else {
                continue;
            };
            // A renamed interface belongs to another link or to none. The next survey finds out.
            let has_name = |found_link: &Link| found_link.name == interface.name();
            let Some(found_link) = messages(&reply).find_map(|m| Link::parse(&m)).filter(has_name) else {
                continue;
            };
            self.links.update_counters(link, found_link.received_bytes, found_link.sent_bytes, SECOND);
            let totals = self.links.get(link).map(interfaces::LinkInterface::totals).unwrap_or_default();
            self.machine.feed(Input::InterfaceCounters { link, received: totals.0, sent: totals.1 });
        }
        // The counters cover the whole network namespace, so they only trigger a check of the managed connections.
        let fallback = read_fallback_counters().fallen_back.saturating_sub(self.fallback_baseline.fallen_back);
        if fallback > self.totals.fallen_back {
            tracing::warn!(connections = fallback, "connections fell back to plain TCP");
            if self.subflow_table.conns.len() <= MAX_FALLBACK_QUERIES {
                let all: Vec<ConnId> = self.subflow_table.conns.keys().copied().collect();
                self.close_ended(&all);
            }
            // Only a dump can count how many of the unmanaged connections are still open.
            self.has_new_fallbacks = true;
            self.schedule.check_fully_after_fallback();
        }
        self.totals.fallen_back = fallback;
        self.links.record_budgets(&mut self.budgets);
        if self.schedule.is_save_due(self.now()) {
            let is_saved = self.save_budgets();
            self.schedule.on_saved(self.now(), is_saved);
        }
        self.host_config.recheck_sysctls();
        self.destroy_stale_joins();
        self.update_active_totals();
        self.machine.flush();
    }

    fn save_budgets(&self) -> bool {
        let saved = self.budgets.save();
        if let Err(error) = &saved {
            tracing::warn!(%error, "cannot save the use of data budgets; a restart would forget it");
        }
        saved.is_ok()
    }

    /// Lists the interfaces, adapts routing, and reports transitions of links to the policy.
    fn survey_links(&mut self) -> Result<(), PathsError> {
        let survey = list_interfaces()?;
        self.add_links(&survey);
        self.host_config.update_routing(&survey);
        let transitions = self.links.apply_survey(&survey);
        for (link, mtu, v4) in self.links.changed_interfaces(&survey) {
            self.machine.feed(Input::Interface { link, mtu, has_ipv4: v4 });
        }
        for transition in &transitions {
            match *transition {
                LinkTransition::Up(link) | LinkTransition::NewAddress(link) => {
                    self.machine.feed(Input::LinkUp { link })
                }
                LinkTransition::Down(link) => self.machine.feed(Input::LinkDown { link }),
            }
        }
        // After the policy knows the transitions: it may use the links at once, and stranded subflows end last.
        self.destroy_stranded();
        if let Some((aggregate, mut kernel, _)) = self.aggregate() {
            aggregate.follow_links(&mut kernel, &transitions);
        }
        if transitions.iter().any(|transition| matches!(transition, LinkTransition::Up(_)))
            && self.now() > Instant::ZERO + SECOND
        {
            // Connections over a link that was down until now are managed from now on.
            self.schedule.check_fully_at(self.now());
        }
        Ok(())
    }

    /// Adds links for new interfaces.
    fn add_links(&mut self, survey: &InterfaceList) {
        let new = hotplug::find_new_links(survey, &self.links, &self.selection, &self.budgets);
        if new.is_empty() {
            return;
        }
        for config in new {
            tracing::info!(link = config.name, kind = %config.kind, "adding a link");
            self.links.add(&config);
            self.host_config.add_link(&config);
            self.machine.feed(Input::LinkAdded { config });
        }
        if let Some((_, mut kernel, _)) = self.aggregate()
            && let Err(error) = kernel.raise_limits()
        {
            tracing::warn!(%error, "cannot raise the kernel's subflow limit; the new link may get no subflows");
        }
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
            totals: Totals {
                unmanaged: unmanaged as u64,
                subflow_polls: self.sockets.query_count(),
                ..self.totals
            },
            notes: self.host_config.notes(),
        }
    }
}

/// Up to this number of connections, each is queried for its fallback. Our choice: 4 ms, as for 256 subflows.
const MAX_FALLBACK_QUERIES: usize = 256;
/// Receive buffer for events, in bytes. An event takes about 800 of them: enough for 5,000 at once.
const EVENT_RCVBUF: usize = 4 << 20;
