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
//! 5. What fails and can heal is tried again, ever more seldom; the run ends with what cannot (`trouble`).
//!
//! Files: [`table`](self) keeps the kernel's names of subflows, `lines` those of links, `arrivals` takes up further ones,
//! `hear` takes events, `act` carries out, `sync` dumps, `host` speaks for all connections at once where the kernel's own
//! path manager rules.

mod act;
mod arrivals;
#[cfg(test)]
mod faults;
mod hear;
mod host;
mod lines;
#[cfg(test)]
mod live;
mod sync;
mod table;
mod trouble;
mod words;

use std::collections::{BTreeSet, VecDeque};
use std::pin::pin;
use std::time::Duration;

use marline_core::decision_log::Record;
use marline_core::machine::Machine;
use marline_core::paths::{Config, ConnId, Input, Output};
use marline_core::units::Instant;
use marline_core::wire::netlink::{Link, Request, messages};
use marline_net::links::{LinkSelection, Monitor, list_interfaces};
use marline_net::logged::{Failed, Logged};
use marline_sys::netlink::RouteSocket;
use tokio::sync::mpsc;

use self::host::Host;
use self::lines::{Lines, Turn};
use self::table::Table;
use self::trouble::{FIRST, LONGEST, Trouble};
use super::kernel::{Events, Fallback, PathManager, Sockets, fell_back};
use super::snapshot::{Managed, Snapshot, Totals};
use super::{Ask, Budgets, Ground, Job, Mode, PathsError};

/// One line of a log.
pub type PathsRecord = Record<Config, Input, Output>;

/// A machine of MPTCP's policy: the real one, and those of tests.
pub trait Policy: Machine<Input = Input, Output = Output> {}
impl<M: Machine<Input = Input, Output = Output>> Policy for M {}

/// Everything that one run holds.
struct Driver<M> {
    log: Logged<M, Config>,
    started: std::time::Instant,
    mode: Mode,
    /// None in a dry run.
    manager: Option<PathManager>,
    sockets: Sockets,
    routes: RouteSocket,
    ground: Box<dyn Ground>,
    table: Table,
    lines: Lines,
    choice: LinkSelection,
    budgets: Budgets,
    /// When they are kept next.
    next_save: Instant,
    /// Only where the kernel's own path manager rules.
    host: Option<Host>,
    queue: VecDeque<Output>,
    looks: BTreeSet<ConnId>,
    totals: Totals,
    fallback: Fallback,
    next_second: Instant,
    next_guard: Instant,
    /// Events were lost: when everything is read again.
    next_resync: Option<Instant>,
    /// The kernel has refused to abort a socket, which was logged.
    cannot_abort: bool,
    /// Before this the driver rests from the last dump.
    rested: Instant,
    /// Connections became plain TCP since the last dump.
    fell_back_lately: bool,
    /// Interfaces are not surveyed again before this.
    next_survey: Instant,
    /// Surveys that failed, dumps, and reading events.
    surveys: Trouble,
    dumps: Trouble,
    hearing: Trouble,
}

/// Runs the driver with this machine until `stop`, and gives the machine back.
///
/// # Errors
/// See [`PathsError`]; the ground is restored in any case.
pub async fn drive<M: Policy>(machine: M, job: Job, stop: impl Future<Output = ()>) -> Result<M, PathsError> {
    drive_with(machine, job, ROOM, stop).await
}

/// The same with so many bytes of room for events that wait.
async fn drive_with<M: Policy>(
    machine: M,
    mut job: Job,
    room: usize,
    stop: impl Future<Output = ()>,
) -> Result<M, PathsError> {
    // A log that cannot be written is found before anything is changed.
    let log = Logged::new(machine, job.config.clone(), job.trace).map_err(unwritten)?;
    job.ground.lay(job.mode)?;
    let mut control = job.control;
    let (parts, mut events, mut monitor) = match Parts::open(job.mode, room) {
        Ok(parts) => parts,
        Err(error) => {
            job.ground.restore();
            return Err(error);
        }
    };
    let lines = Lines::new(&job.config.links, job.beside_vpn);
    let mut driver = Driver::new(log, parts, lines, job.mode, job.ground);
    (driver.choice, driver.budgets) = (job.choice, job.budgets);
    let result = driver.run(&mut control, events.as_mut(), &mut monitor, stop).await;
    driver.ground.restore();
    driver.save_budgets();
    let ended = driver.log.finish().map_err(unwritten);
    result?;
    ended
}

fn unwritten((path, error): Failed) -> PathsError {
    PathsError::Trace { path, error }
}

/// What has to be opened before anything is told.
struct Parts {
    manager: Option<PathManager>,
    sockets: Sockets,
    routes: RouteSocket,
}

impl Parts {
    fn open(mode: Mode, room: usize) -> Result<(Self, Option<Events>, Monitor), PathsError> {
        let told = PathsError::kernel;
        let (mut manager, mut events) = (None, None);
        if mode != Mode::DryRun {
            let found = PathManager::open()?;
            let missing = || PathsError::NoMptcp(std::io::Error::other("it has no group of events"));
            let group = found.events().ok_or_else(missing)?;
            let joined = Events::join(found.family(), group, room);
            events = Some(joined.map_err(|e| told("listening to MPTCP's path manager", e))?);
            manager = Some(found);
        }
        let sockets = Sockets::open().map_err(|e| told("sock_diag", e))?;
        let routes = RouteSocket::open().map_err(|e| told("route netlink", e))?;
        Ok((Self { manager, sockets, routes }, events, Monitor::new()?))
    }
}

/// A part of the beginning, which may be tried again.
type Step<M> = fn(&mut Driver<M>) -> Result<(), PathsError>;

impl<M: Policy> Driver<M> {
    fn new(log: Logged<M, Config>, parts: Parts, lines: Lines, mode: Mode, ground: Box<dyn Ground>) -> Self {
        let Parts { manager, sockets, routes } = parts;
        Self {
            log,
            started: std::time::Instant::now(),
            mode,
            manager,
            sockets,
            routes,
            ground,
            table: Table::default(),
            lines,
            // Nothing that comes is used, and nothing is kept.
            choice: LinkSelection::Named(Vec::new()),
            budgets: Budgets::default(),
            next_save: Instant::ZERO + BETWEEN_SAVES,
            host: (mode == Mode::KernelPm).then(Host::default),
            queue: VecDeque::new(),
            looks: BTreeSet::new(),
            totals: Totals::default(),
            fallback: fell_back(),
            next_second: Instant::ZERO,
            next_guard: Instant::ZERO + GUARD,
            next_resync: None,
            cannot_abort: false,
            rested: Instant::ZERO,
            fell_back_lately: false,
            next_survey: Instant::ZERO,
            surveys: Trouble::of("interfaces"),
            dumps: Trouble::of("the list of sockets"),
            hearing: Trouble::of("events"),
        }
    }

    async fn run(
        &mut self,
        control: &mut mpsc::Receiver<Ask>,
        mut events: Option<&mut Events>,
        monitor: &mut Monitor,
        stop: impl Future<Output = ()>,
    ) -> Result<(), PathsError> {
        let mut stop = pin!(stop);
        let mut asked_for = true;
        let steps: [Step<M>; 3] = [Self::survey, Self::begin, |driver| driver.resync(true)];
        for step in steps {
            let mut pause = FIRST;
            while let Err(error) = step(self) {
                if !error.heals() || pause > LONGEST {
                    return Err(error);
                }
                tracing::warn!(%error, "trying again");
                tokio::select! {
                    () = &mut stop => return Ok(()),
                    () = tokio::time::sleep(pause) => pause *= 2,
                }
            }
        }
        self.host_rests();
        loop {
            let now = self.now();
            self.wake(now)?;
            // Behind the tick, so that a look is made when it is asked for and not at the next deadline.
            let next = if self.act() { now } else { self.next(now) };
            let sleep = tokio::time::sleep_until((self.started + next.since(Instant::ZERO)).into());
            let (may_survey, may_hear) = (now >= self.next_survey, self.hearing.may(now));
            tokio::select! {
                biased;
                () = &mut stop => return Ok(()),
                changed = monitor.changed(), if may_survey => {
                    self.next_survey = now + BETWEEN_SURVEYS;
                    let surveyed = changed.map_err(PathsError::from).and_then(|()| self.survey());
                    self.surveys.came_to(now, surveyed)?;
                }
                heard = hear::next(&mut events), if may_hear => {
                    let heard = heard.map_err(|e| PathsError::kernel("MPTCP's events", e));
                    let lost = heard.as_ref().map_or(true, |heard| heard.lost);
                    let heard = heard.map(|heard| self.hear(heard.events));
                    self.hearing.came_to(now, heard)?;
                    if lost {
                        // In a storm of events the dumps themselves must not take all the time.
                        self.next_resync = Some(self.next_resync.unwrap_or(self.rested));
                    }
                }
                ask = control.recv(), if asked_for => match ask {
                    Some(ask) => self.answer(ask),
                    None => asked_for = false,
                },
                () = sleep => {}
            }
        }
    }

    fn now(&self) -> Instant {
        Instant::ZERO + self.started.elapsed()
    }

    /// Something happened: the machine hears it, and what it asks for is put in the queue.
    fn tell(&mut self, input: Input) {
        self.log.handle(self.now(), input);
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(output) = self.log.poll() {
            match output {
                Output::Poll { conn } => {
                    self.looks.insert(conn);
                }
                other => self.queue.push_back(other),
            }
        }
    }

    /// Does what is due.
    fn wake(&mut self, now: Instant) -> Result<(), PathsError> {
        if self.log.deadline().is_some_and(|at| at <= now) {
            self.log.tick(now);
            self.drain();
        }
        if now >= self.next_second {
            self.next_second = now + SECOND;
            self.second();
            if self.mode == Mode::DryRun && self.dumps.again().is_none() {
                self.read_again(now)?;
            }
        }
        if self.surveys.again().is_some_and(|at| at <= now) {
            let surveyed = self.survey();
            self.surveys.came_to(now, surveyed)?;
        }
        if self.dumps.again().is_some_and(|at| at <= now) {
            self.read_again(now)?;
        } else if self.next_resync.is_some_and(|at| at <= now) && self.dumps.again().is_none() {
            self.totals.resynchronised += 1;
            tracing::warn!("events of MPTCP were lost; reading everything again");
            self.read_again(now)?;
        } else if now >= self.next_guard {
            self.next_guard = now + GUARD;
            // The ground may have left something alone for a while.
            let surveyed = self.survey();
            self.surveys.came_to(now, surveyed)?;
            if !self.table.conns.is_empty() || self.fell_back_lately || fell_back().established > 0 {
                self.fell_back_lately = false;
                self.read_again(now)?;
            }
        }
        Ok(())
    }

    /// Reads everything again, now or, if that fails, later.
    fn read_again(&mut self, now: Instant) -> Result<(), PathsError> {
        let read = self.resync(false);
        self.dumps.came_to(now, read)
    }

    /// When something is due next.
    fn next(&self, now: Instant) -> Instant {
        let mut next = self.next_second.min(self.next_guard);
        next = match self.dumps.again() {
            Some(at) => next.min(at),
            None => self.next_resync.map_or(next, |at| next.min(at)),
        };
        // Events are not asked for: once they may be read again, they come by themselves.
        let deaf = self.hearing.again().filter(|at| *at > now);
        next = self.surveys.again().into_iter().chain(deaf).fold(next, Instant::min);
        if self.next_survey > now {
            next = next.min(self.next_survey);
        }
        self.log.deadline().map_or(next, |at| next.min(at))
    }

    /// Once a second: what passed the interfaces and the connections, settings that somebody else changes, joins that nothing
    /// came of, the log.
    fn second(&mut self) {
        for line in 0..self.lines.all.len() {
            let Some(line) = self.lines.all.get(line).filter(|line| line.up) else { continue };
            let link = line.link;
            let Ok(reply) = self.routes.request(&Request::link_by_index(line.index).finish(1)) else { continue };
            // One that was renamed is another link's, or nobody's: the survey will tell.
            let is_it = |found: &Link| found.name == line.name();
            let Some(found) = messages(&reply).find_map(|m| Link::parse(&m)).filter(is_it) else { continue };
            self.lines.count(link, found.received, found.sent, SECOND);
            let passed = self.lines.line(link).map(lines::Line::passed).unwrap_or_default();
            self.tell(Input::InterfaceCounters { link, received: passed.0, sent: passed.1 });
        }
        let fallback = fell_back().connections.saturating_sub(self.fallback.connections);
        if fallback > self.totals.fell_back {
            tracing::warn!(connections = fallback, "connections fell back to plain TCP");
            if self.table.conns.len() <= FEW {
                let all: Vec<ConnId> = self.table.conns.keys().copied().collect();
                self.end_over(&all);
            }
            // How many of the others are open only a dump can tell.
            self.fell_back_lately = true;
            self.next_guard = self.next_guard.min(self.rested + SOON);
        }
        self.totals.fell_back = fallback;
        self.lines.note(&mut self.budgets);
        if self.now() >= self.next_save {
            let saved = self.save_budgets();
            self.next_save = self.now() + if saved { BETWEEN_SAVES } else { BETWEEN_SAVES * 360 };
        }
        self.ground.hold();
        self.drop_stale_joins();
        self.count_moved();
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
    fn survey(&mut self) -> Result<(), PathsError> {
        let survey = list_interfaces()?;
        self.take_up(&survey);
        self.ground.follow(&survey);
        let turns = self.lines.follow(&survey);
        for (link, mtu, v4) in self.lines.changed(&survey) {
            self.tell(Input::Interface { link, mtu, has_ipv4: v4 });
        }
        for turn in &turns {
            match *turn {
                Turn::Up(link) | Turn::Address(link) => self.tell(Input::LinkUp { link }),
                Turn::Down(link) => self.tell(Input::LinkDown { link }),
            }
        }
        self.end_stranded();
        self.host_links(&turns);
        if turns.iter().any(|turn| matches!(turn, Turn::Up(_))) && self.now() > Instant::ZERO + SECOND {
            // Connections over a link that was none until now are ours from now on.
            self.next_guard = self.next_guard.min(self.now());
        }
        Ok(())
    }

    fn answer(&mut self, ask: Ask) {
        self.count_moved();
        match ask {
            Ask::Snapshot(to) => drop(to.send(self.snapshot())),
            Ask::Explain(conn, to) => {
                let now = self.now();
                let told = self.table.known(conn, now).map(|of| (of.snapshot(conn, now), of.history()));
                drop(to.send(told));
            }
        }
    }

    fn snapshot(&self) -> Snapshot {
        let now = self.now();
        let unmanaged = self.table.conns.values().filter(|conn| conn.managed == Managed::Older).count();
        Snapshot {
            at: now,
            mode: match self.mode {
                Mode::Userspace => "userspace",
                Mode::KernelPm => "kernel-pm",
                Mode::DryRun => "dry-run",
            }
            .to_owned(),
            links: self
                .lines
                .all
                .iter()
                .map(|line| line.snapshot(self.table.over(line.link), &self.budgets))
                .collect(),
            connections: self.table.conns.iter().map(|(conn, of)| of.snapshot(*conn, now)).collect(),
            totals: Totals { unmanaged: unmanaged as u64, ..self.totals },
            notes: self.ground.notes(),
        }
    }
}

const SECOND: Duration = Duration::from_secs(1);
/// chosen: a dump of ten thousand connections takes 0.15 s, so that this costs half a percent of a core there.
const GUARD: Duration = Duration::from_secs(30);
/// So many connections are asked one by one which of them fell back. chosen: 4 ms, as for 256 subflows.
const FEW: usize = 256;
/// chosen: a host whose servers all lack MPTCP falls back all the time.
const SOON: Duration = Duration::from_secs(3);
/// chosen: a burst of changes (DHCP) is one; a lost carrier waits no longer than this.
const BETWEEN_SURVEYS: Duration = Duration::from_millis(50);
/// chosen: what a crash takes from a budget is what passes in this time, and a disk does not notice it.
const BETWEEN_SAVES: Duration = Duration::from_secs(10);
/// Bytes of events that wait. An event takes some 800 of them: enough for 5,000 at once.
const ROOM: usize = 4 << 20;
