//! Event loop of the path manager: passes events to the policy's state machine and executes its outputs in the
//! kernel.
//!
//! Inputs are MPTCP events, changes of interfaces, time, and queries of other tasks. Outputs are commands to the path
//! manager, polls of subflow counters, and replies.
//!
//! 1. One thread and one task: an input and the outputs that it causes are handled without interruption.
//! 2. Commands and polls of one iteration are executed together, after its inputs. Their results are inputs of the
//!    next round. After a few rounds the other event sources are served.
//! 3. The first dump adopts connections that are older than the run. The same dump finds what lost events reported,
//!    and every [`FULL_CHECK_INTERVAL`] what was lost without notice.
//! 4. A dry run (`--dry-run`) has no privilege and therefore no events: a dump per second replaces them, and each
//!    command fails as not permitted.
//! 5. Transient errors are retried with increasing delays; other errors end the run (`retry`).
//!
//! Files: `subflow_table` maps subflows of the kernel to ids of the policy, and `interfaces` does so for links.
//! `hotplug` adds links during the run, `events` handles MPTCP events, `commands` executes outputs, and `resync`
//! compares the table with dumps. `kernel_pm` represents all connections as one where the kernel's own path manager
//! is in charge.

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
use marline_net::recorded_machine::{LogError, MachineEvent, RecordedMachine};
use marline_sys::netlink::RouteSocket;
use tokio::sync::mpsc;

use self::interfaces::{LinkInterfaces, LinkTransition};
use self::kernel_pm::AggregateConn;
use self::retry::{MAX_RETRY_DELAY, MIN_RETRY_DELAY, Retry};
use self::subflow_table::SubflowTable;
use super::kernel::{EventSubscription, FallbackCounters, PathManager, SockDiag, read_fallback_counters};
use super::snapshot::{Management, Snapshot, Totals};
use super::{Budgets, DriverQuery, HostConfigurator, Job, Mode, PathsError};

/// One line of the decision log.
pub type PathsRecord = Record<Config, Input, Output>;

/// State machine of an MPTCP policy: the real one, or a script in tests.
pub trait Policy: Machine<Input = Input, Output = Output> {}
impl<M: Machine<Input = Input, Output = Output>> Policy for M {}

/// State of one run.
struct Driver<M> {
    log: RecordedMachine<M, Config>,
    started: std::time::Instant,
    mode: Mode,
    /// None in a dry run, which lacks the privilege.
    path_manager: Option<PathManager>,
    sock_diag: SockDiag,
    route_socket: RouteSocket,
    host_config: Box<dyn HostConfigurator>,
    subflow_table: SubflowTable,
    links: LinkInterfaces,
    selection: LinkSelection,
    budgets: Budgets,
    /// When the budgets are written to disk next.
    next_save: Instant,
    /// Only in [`Mode::KernelPm`].
    aggregate: Option<AggregateConn>,
    pending_outputs: VecDeque<Output>,
    pending_polls: BTreeSet<ConnId>,
    totals: Totals,
    fallback_baseline: FallbackCounters,
    next_second: Instant,
    next_full_check: Instant,
    /// Set after events were lost: when the sockets are dumped again.
    next_resync: Option<Instant>,
    /// The kernel has refused to abort a socket. This is logged once.
    has_abort_failed: bool,
    /// No resynchronization before this time, so that dumps do not take all the CPU time.
    resync_not_before: Instant,
    /// Connections fell back to plain TCP since the last dump.
    has_new_fallbacks: bool,
    /// The interfaces are not listed again before this time.
    survey_not_before: Instant,
    /// Retry state of listing interfaces, of dumps, and of reading events.
    survey_retry: Retry,
    dump_retry: Retry,
    event_retry: Retry,
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
    let finished = driver.log.finish().map_err(log_error);
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
            log,
            started: std::time::Instant::now(),
            mode,
            path_manager,
            sock_diag,
            route_socket,
            host_config,
            subflow_table: SubflowTable::default(),
            links,
            // Defaults: no further links are added, and no budgets are saved.
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
            survey_retry: Retry::new("listing interfaces"),
            dump_retry: Retry::new("dumping sockets"),
            event_retry: Retry::new("reading MPTCP events"),
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
        self.remove_idle_endpoints();
        loop {
            let now = self.now();
            self.run_due(now)?;
            // After the tick, so that a poll is executed when it is requested and not at the next deadline.
            let next = if self.execute_outputs() { now } else { self.next_deadline(now) };
            let sleep = tokio::time::sleep_until((self.started + next.since(Instant::ZERO)).into());
            let (can_survey, can_read_events) = (now >= self.survey_not_before, self.event_retry.is_due(now));
            tokio::select! {
                // In order of priority: a burst of events must not delay the stop, or the news of an interface to
                // which the events refer.
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
                        // A burst of events must not make the dumps take all the CPU time.
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

    /// Passes an input to the machine and queues the outputs that it causes.
    fn feed_machine(&mut self, input: Input) {
        self.step(self.now(), MachineEvent::Input(input));
    }

    /// One step of the machine. Its outputs are queued, because a command or a poll may have results at once.
    fn step(&mut self, now: Instant, event: MachineEvent<Input>) {
        let Self { log, pending_polls, pending_outputs, .. } = self;
        log.step(now, event, |output| match output {
            Output::Poll { conn } => drop(pending_polls.insert(conn)),
            output => pending_outputs.push_back(output),
        });
    }

    /// Handles everything whose time has come: the machine's deadline, the tasks of each second, retries and full
    /// checks.
    fn run_due(&mut self, now: Instant) -> Result<(), PathsError> {
        if self.log.is_due(now) {
            self.step(now, MachineEvent::Tick);
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
            tracing::warn!("MPTCP events were lost; reading all sockets again");
            self.resync_or_retry(now)?;
        } else if now >= self.next_full_check {
            self.next_full_check = now + FULL_CHECK_INTERVAL;
            // The host configuration may have postponed a repair.
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

    /// Resynchronizes with the kernel now, or schedules a retry if that fails.
    fn resync_or_retry(&mut self, now: Instant) -> Result<(), PathsError> {
        let outcome = self.resync(false);
        self.dump_retry.record_result(now, outcome)
    }

    /// The earliest time at which [`run_due`](Self::run_due) has something to do.
    fn next_deadline(&self, now: Instant) -> Instant {
        let mut next = self.next_second.min(self.next_full_check);
        next = match self.dump_retry.next_attempt() {
            Some(due) => next.min(due),
            None => self.next_resync.map_or(next, |due| next.min(due)),
        };
        // Events are not polled: once reading is permitted again, they wake the loop. Therefore only future times
        // count.
        let events_at = self.event_retry.next_attempt().filter(|due| *due > now);
        next = self.survey_retry.next_attempt().into_iter().chain(events_at).fold(next, Instant::min);
        if self.survey_not_before > now {
            next = next.min(self.survey_not_before);
        }
        self.log.deadline().map_or(next, |due| next.min(due))
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
            self.feed_machine(Input::InterfaceCounters { link, received: totals.0, sent: totals.1 });
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
        // After the policy knows the transitions: it may use the links at once, and stranded subflows end last.
        self.destroy_stranded();
        self.update_link_endpoints(&transitions);
        if transitions.iter().any(|transition| matches!(transition, LinkTransition::Up(_)))
            && self.now() > Instant::ZERO + SECOND
        {
            // Connections over a link that was down until now are managed from now on.
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
/// chosen: a dump of ten thousand connections takes 0.15 s, so the checks cost half a percent of a core at that size.
const FULL_CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// Up to this number of connections, each is queried for its fallback. chosen: 4 ms, as for 256 subflows.
const MAX_FALLBACK_QUERIES: usize = 256;
/// Delay of the full check after a fallback. chosen: a host whose servers all lack MPTCP sees fallbacks all the time.
const FALLBACK_CHECK_DELAY: Duration = Duration::from_secs(3);
/// chosen: a burst of changes (DHCP) counts as one, and a lost carrier is noticed after this time at the latest.
const SURVEY_INTERVAL: Duration = Duration::from_millis(50);
/// chosen: a crash loses the budget use of this interval, and the load on the disk is negligible.
const SAVE_INTERVAL: Duration = Duration::from_secs(10);
/// Receive buffer for events, in bytes. An event takes about 800 of them: enough for 5,000 at once.
const EVENT_RCVBUF: usize = 4 << 20;
