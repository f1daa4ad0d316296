//! A batch: several downloads on one task, and the scheduler that shares the links among them.
//!
//! 1. The scheduler is `core::batch`. This driver tells it where each download stands, and passes its decisions on.
//! 2. Names, idle connections, rate limits and budgets are one for the whole batch. So several files of one host reuse
//!    connections, and a limit is a limit whatever number of files there is.
//! 3. A batch of one file is a plain download: nothing is scheduled, and nothing is shared with anything.
//! 4. When the user or the time limit ends the batch, every download that runs makes safe what it has.

mod control;
mod names;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::future::{Future, poll_fn};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use marline_core::batch::{self as scheduler, JobId, Output};
use marline_core::fetch::{MeteredUse, Validator};
use marline_core::link::LinkId;
use marline_core::machine::Machine as _;
use marline_core::units::{DataSize, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};
use url::Url;

pub(super) use control::{Control, Shown, Standing, Stands, Stop};
pub(super) use names::PATIENCE;

use marline_net::checksum::Checksum;
use marline_net::cookies::Jar;
use marline_net::http::Trust;

use super::download::download;
use super::job::{Batch, BatchWatcher, Ended, File, GetError, Settings, Target};
use super::limit::Bounds;
use super::links::Uplinks;
use super::network::Network;
use super::report::{FileProgress, Overview, Report};
use super::sockets::Sockets;
use crate::name::suggested;
use crate::store::{Finished, Record};
use control::Stopping;
use names::{Names, Naming};

/// Downloads all files. Needs a tokio runtime with I/O and time, and does everything on the calling task.
///
/// SIGINT and SIGTERM end it cleanly with [`GetError::Interrupted`].
///
/// # Errors
/// When nothing can be begun: no link can be used, or the authorities cannot be read. How each file ends is told to the
/// watcher.
pub async fn run(batch: Batch, watcher: &mut dyn BatchWatcher) -> Result<(), GetError> {
    let Batch { settings, files, parallel, keep_finished, max_time } = batch;
    let started = std::time::Instant::now();
    let shared = Rc::new(Shared::new(settings, &files, (max_time, keep_finished), watcher)?);
    let mut runner = Runner::new(shared, files, parallel, started, watcher);
    // A limit on time that has passed when nothing has begun yet is kept as well.
    let mut signals: Vec<Signal> = [SignalKind::interrupt(), SignalKind::terminate()]
        .into_iter()
        .filter_map(|kind| signal(kind).ok())
        .collect();
    let mut limit = std::pin::pin!(async {
        match max_time {
            Some(limit) => tokio::time::sleep_until((started + limit).into()).await,
            None => std::future::pending().await,
        }
    });
    let shared = Rc::clone(&runner.shared);
    let mut follow = std::pin::pin!(async {
        match &shared.network {
            Some(network) => network.run().await,
            None => std::future::pending().await,
        }
    });
    poll_fn(|cx| {
        if signals.iter_mut().any(|signal| signal.poll_recv(cx).is_ready()) {
            runner.stop(Stop::Interrupted);
        }
        if limit.as_mut().poll(cx).is_ready() {
            runner.stop(Stop::TimeUp);
        }
        let _ = follow.as_mut().poll(cx);
        runner.poll(cx)
    })
    .await;
    shared.save_cookies()
}

/// What all downloads of a batch share.
pub(super) struct Shared {
    pub(super) settings: Settings,
    /// None: there is one download.
    network: Option<Network>,
    /// The links of the one download.
    links: RefCell<Option<Uplinks>>,
    trust: Trust,
    /// The cookies of all downloads.
    pub(super) jar: Rc<Jar>,
    pub(super) bounds: Bounds,
    pub(super) names: RefCell<Names>,
    pub(super) stopping: Stopping,
    pub(super) max_time: Option<Duration>,
    pub(super) alone: bool,
    /// The files that earlier runs have completed; none: they are not looked for.
    finished: Option<RefCell<Finished>>,
    /// What each download has carried over each link with a budget.
    carried: RefCell<BTreeMap<(usize, String), DataSize>>,
}

impl Shared {
    fn new(
        settings: Settings,
        files: &[File],
        (max_time, keep_finished): (Option<Duration>, bool),
        watcher: &mut dyn BatchWatcher,
    ) -> Result<Self, GetError> {
        let mut trust = Trust::new(settings.ca_file.as_deref());
        let urls = || files.iter().flat_map(|file| &file.sources).map(|source| &source.url);
        // A file that was named is looked at, whether or not it will be needed.
        if settings.ca_file.is_some() || urls().any(|url| url.scheme() == "https") {
            trust.config()?;
        }
        let jar = Jar::default();
        for path in &settings.cookies.load {
            let told = |error| GetError::Cookies { path: path.clone(), error, done: "loaded" };
            let skipped = jar.load(path).map_err(told)?;
            if let Some(first) = skipped.first() {
                let path = path.display();
                watcher.line(
                    None,
                    &format!(
                        "{path}: lines that are no cookie are skipped: {}, the first is line {first}",
                        skipped.len()
                    ),
                );
            }
        }
        let (uplinks, lines) = if urls().all(|url| settings.route.is_local(url)) {
            Uplinks::local(settings.links.clone())?
        } else {
            Uplinks::find(settings.links.clone())?
        };
        lines.iter().for_each(|line| watcher.line(None, line));
        if settings.config.metered == MeteredUse::Never {
            uplinks.refuse_metered()?;
        }
        let alone = files.len() < 2;
        let bounds = Bounds::new(settings.limit);
        let (network, links) = if alone {
            (None, Some(uplinks))
        } else {
            (Some(Network::of(settings.links.clone(), uplinks, trust.clone())), None)
        };
        Ok(Self {
            settings,
            network,
            links: RefCell::new(links),
            trust,
            jar: Rc::new(jar),
            bounds,
            names: RefCell::default(),
            stopping: Cell::new(None),
            max_time,
            alone,
            finished: keep_finished.then(|| RefCell::new(Finished::of_user())),
            carried: RefCell::default(),
        })
    }

    /// The links for a download of this URL.
    pub(super) fn uplinks(&self, url: &Url) -> Result<Uplinks, GetError> {
        match (&self.network, self.links.take()) {
            (Some(network), _) => Ok(network.links_for(self.settings.route.is_local(url))?),
            (None, Some(uplinks)) => Ok(uplinks),
            (None, None) => Ok(Uplinks::local(self.settings.links.clone())?.0),
        }
    }

    /// What is recorded of a file that an earlier run has completed at this place, and that is still as it was.
    pub(super) fn find_finished(&self, file: &File, place: Option<&Path>) -> Option<Record> {
        let finished = self.finished.as_ref()?.borrow();
        finished.find(&file.sources.first()?.url, place?).cloned()
    }

    /// Records a completed file.
    pub(super) fn add_finished(
        &self,
        of: (&Url, &Path),
        path: &Path,
        validator: Option<Validator>,
        digest: Option<&Checksum>,
    ) {
        if let Some(finished) = &self.finished {
            finished.borrow_mut().add(of, path, validator, digest);
        }
    }

    fn save_cookies(&self) -> Result<(), GetError> {
        let Some(path) = &self.settings.cookies.save else { return Ok(()) };
        self.jar.save(path).map_err(|error| GetError::Cookies { path: path.clone(), error, done: "saved" })
    }

    /// Connections for a download.
    pub(super) fn sockets(&self, file: &File) -> Sockets {
        let mut sockets = match &self.network {
            None => Sockets::new(self.trust.clone()),
            Some(network) => {
                let https =
                    file.sources.iter().find(|source| source.url.scheme() == "https").or(file.sources.first());
                let trust = https.map(|source| network.trust_for(&source.url)).unwrap_or_default();
                network.sockets(trust)
            }
        };
        sockets.mptcp = self.settings.mptcp;
        sockets.route = self.settings.route.clone();
        sockets
    }

    /// What a download has carried over a link with a budget.
    pub(super) fn carry(&self, id: usize, link: &str, bytes: DataSize) {
        self.carried.borrow_mut().insert((id, link.to_owned()), bytes);
    }

    /// What the other downloads have carried over it.
    pub(super) fn carried_by_others(&self, id: usize, link: &str) -> DataSize {
        let carried = self.carried.borrow();
        carried.iter().filter(|((other, name), _)| *other != id && name == link).map(|(_, bytes)| *bytes).sum()
    }
}

type Running = Pin<Box<dyn Future<Output = Result<Report, GetError>>>>;

/// A download that runs.
struct Active {
    id: usize,
    running: Running,
    control: Rc<RefCell<Control>>,
}

/// Drives the scheduler and the downloads.
struct Runner<'a> {
    shared: Rc<Shared>,
    /// Those that have not begun.
    files: BTreeMap<usize, File>,
    places: Vec<Option<PathBuf>>,
    urls: Vec<String>,
    machine: scheduler::Batch,
    started: std::time::Instant,
    active: VecDeque<Active>,
    /// Links by the names of their interfaces, as the scheduler numbers them.
    links: Vec<(String, bool)>,
    watcher: &'a mut dyn BatchWatcher,
    overview: Overview,
    /// Of the files that are over.
    over: (u64, u64),
    /// The sizes of running files that are known.
    shown_at: Option<std::time::Instant>,
    /// What was said lately.
    said: VecDeque<(std::time::Instant, String)>,
    /// The scheduler has decided something that the downloads have not heard yet.
    decided: bool,
}

impl<'a> Runner<'a> {
    fn new(
        shared: Rc<Shared>,
        files: Vec<File>,
        parallel: usize,
        started: std::time::Instant,
        watcher: &'a mut dyn BatchWatcher,
    ) -> Self {
        let jobs = u32::try_from(files.len()).unwrap_or(u32::MAX);
        let config = scheduler::Config { jobs, parallel: u32::try_from(parallel).unwrap_or(u32::MAX) };
        let mut places = Vec::new();
        let mut urls = Vec::new();
        for file in &files {
            let (place, note) = begin(&mut shared.names.borrow_mut(), file);
            if let Some(note) = note {
                watcher.line(None, &note);
            }
            places.push(place);
            urls.push(file.sources.first().map(|source| source.url.to_string()).unwrap_or_default());
        }
        let overview = Overview { total: files.len(), ..Overview::default() };
        let mut machine = scheduler::Batch::new(config);
        machine.tick(Instant::ZERO);
        Self {
            shared,
            files: files.into_iter().enumerate().collect(),
            places,
            urls,
            machine,
            started,
            active: VecDeque::new(),
            links: Vec::new(),
            watcher,
            overview,
            over: (0, 0),
            shown_at: None,
            said: VecDeque::new(),
            decided: false,
        }
    }

    fn now(&self) -> Instant {
        Instant::ZERO + self.started.elapsed()
    }

    /// Everything that runs is to end.
    fn stop(&mut self, stop: Stop) {
        if self.shared.stopping.get() != Some(Stop::Interrupted) {
            self.shared.stopping.set(Some(stop));
        }
    }

    /// Ready when every file is over.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            self.take_orders();
            self.decided = false;
            // Each in turn is the first, so that a limit is shared.
            self.active.rotate_left(usize::from(!self.active.is_empty()));
            let mut over = Vec::new();
            for active in &mut self.active {
                if let Poll::Ready(result) = active.running.as_mut().poll(cx) {
                    over.push((active.id, result));
                }
            }
            self.pass_lines();
            let ended = !over.is_empty();
            for (id, result) in over {
                self.end(id, result);
            }
            self.schedule();
            self.show(ended);
            if self.active.is_empty() && (self.machine.is_over() || self.shared.stopping.get().is_some()) {
                self.give_up_rest();
                return Poll::Ready(());
            }
            if !self.decided && !ended {
                return Poll::Pending;
            }
        }
    }

    /// Tells the scheduler what was reported.
    fn schedule(&mut self) {
        if self.shared.alone {
            return;
        }
        let reports: Vec<(usize, Stands)> = self
            .active
            .iter()
            .filter_map(|active| Some((active.id, active.control.borrow_mut().report.take()?)))
            .collect();
        let now = self.now();
        for (id, report) in reports {
            let mut loads = Vec::new();
            for standing in report.links {
                let link = self.link(&standing.name, standing.budgeted, now);
                loads.extend(standing.load.map(|load| marline_core::fetch::LinkLoad { link, ..load }));
            }
            let job = JobId(u32::try_from(id).unwrap_or(u32::MAX));
            self.machine.handle(now, scheduler::Input::Progress { job, remaining: report.left, loads });
            self.take_orders();
        }
    }

    /// The scheduler's number of a link.
    fn link(&mut self, name: &str, budgeted: bool, now: Instant) -> LinkId {
        let known = self.links.iter().position(|(known, _)| known == name);
        let at = known.unwrap_or(self.links.len());
        let link = LinkId(u16::try_from(at).unwrap_or(u16::MAX));
        if known.is_none() || self.links.get(at).is_some_and(|(_, was)| *was != budgeted) {
            match self.links.get_mut(at) {
                Some(known) => known.1 = budgeted,
                None => self.links.push((name.to_owned(), budgeted)),
            }
            self.machine.handle(now, scheduler::Input::Link { link, has_budget: budgeted });
            self.take_orders();
        }
        link
    }

    /// Does what the scheduler wants.
    fn take_orders(&mut self) {
        while let Some(output) = self.machine.poll() {
            self.decided = true;
            match output {
                Output::Start { job } => self.start(job.0 as usize),
                Output::Share { job, link, share } => {
                    let Some((name, _)) = self.links.get(usize::from(link.0)) else { continue };
                    let active = self.active.iter().find(|active| active.id == job.0 as usize);
                    if let Some(active) = active {
                        let mut control = active.control.borrow_mut();
                        control.shares.insert(name.clone(), share);
                        control.changed = true;
                    }
                }
            }
        }
    }

    fn start(&mut self, id: usize) {
        if self.shared.stopping.get().is_some() {
            return;
        }
        let Some(file) = self.files.remove(&id) else { return };
        let place = self.places.get(id).cloned().flatten();
        let control: Rc<RefCell<Control>> = Rc::default();
        control.borrow_mut().name = name_of(place.as_deref());
        let running = download(Rc::clone(&self.shared), id, file, place, Rc::clone(&control));
        self.active.push_back(Active { id, running: Box::pin(running), control });
    }

    /// A file is over.
    fn end(&mut self, id: usize, result: Result<Report, GetError>) {
        self.shared.names.borrow_mut().settle(id);
        let progress = self.active.iter().find(|active| active.id == id).map(|active| {
            let control = active.control.borrow();
            (control.progress.done, control.progress.total.unwrap_or(control.progress.done))
        });
        self.active.retain(|active| active.id != id);
        if let Some((done, size)) = progress {
            self.over.0 += done;
            self.over.1 += size;
        }
        match &result {
            Ok(_) => self.overview.complete += 1,
            Err(_) => self.overview.failed += 1,
        }
        let url = self.urls.get(id).cloned().unwrap_or_default();
        self.watcher.ended(Ended { index: id, url, result });
        let now = self.now();
        self.machine.handle(now, scheduler::Input::Ended { job: JobId(u32::try_from(id).unwrap_or(u32::MAX)) });
        self.take_orders();
    }

    /// Those that have not begun will not.
    fn give_up_rest(&mut self) {
        let Some(stop) = self.shared.stopping.get() else { return };
        for (index, _) in std::mem::take(&mut self.files) {
            let url = self.urls.get(index).cloned().unwrap_or_default();
            let error = match stop {
                Stop::Interrupted => GetError::Interrupted { kept: false },
                Stop::TimeUp => {
                    let limit = self.shared.max_time.unwrap_or_default();
                    GetError::TimeUp { url: url.clone(), limit, kept: false }
                }
            };
            self.overview.failed += 1;
            self.watcher.ended(Ended { index, url, result: Err(error) });
        }
    }

    /// Shows the lines of all downloads. What several of them say of a link is said once.
    fn pass_lines(&mut self) {
        let now = std::time::Instant::now();
        while self.said.front().is_some_and(|(at, _)| now.duration_since(*at) > SAID_LATELY) {
            self.said.pop_front();
        }
        for active in &self.active {
            let (lines, name) = {
                let mut control = active.control.borrow_mut();
                if control.lines.is_empty() {
                    continue;
                }
                (std::mem::take(&mut control.lines), control.name.clone())
            };
            for line in lines {
                let of_link = line.starts_with("link ");
                if self.shared.alone {
                    self.watcher.line(None, &line);
                } else if !of_link {
                    self.watcher.line(Some(&name), &line);
                } else if self.said.iter().all(|(_, said)| *said != line) {
                    self.watcher.line(None, &line);
                    self.said.push_back((now, line));
                }
            }
        }
    }

    fn show(&mut self, at_once: bool) {
        let now = std::time::Instant::now();
        if !at_once && self.shown_at.is_some_and(|at| now.duration_since(at) < SHOW_EVERY) {
            return;
        }
        self.shown_at = Some(now);
        let mut files: Vec<(usize, FileProgress)> = self
            .active
            .iter()
            .map(|active| {
                let control = active.control.borrow();
                (active.id, FileProgress { name: control.name.clone(), progress: control.progress.clone() })
            })
            .collect();
        files.sort_by_key(|(id, _)| *id);
        let files: Vec<FileProgress> = files.into_iter().map(|(_, file)| file).collect();
        let sizes: Option<u64> = files.iter().map(|file| file.progress.total).sum();
        self.overview.done = self.over.0 + files.iter().map(|file| file.progress.done).sum::<u64>();
        self.overview.size = sizes.filter(|_| self.files.is_empty()).map(|sizes| sizes + self.over.1);
        self.overview.rate = files.iter().map(|file| file.progress.rate).sum();
        self.overview.elapsed = self.started.elapsed().as_secs_f64();
        self.overview.files = files;
        self.watcher.progress(&self.overview);
    }
}

/// The path at which a file begins (none: standard output), and why it is not named as its URL ends.
fn begin(names: &mut Names, file: &File) -> (Option<PathBuf>, Option<String>) {
    match &file.target {
        Target::Stdout => {
            names.add_none();
            (None, None)
        }
        // What is no regular file can take several, one after the other.
        Target::File(path) | Target::Listed(path)
            if path.metadata().is_ok_and(|meta| !meta.is_file() && !meta.is_dir()) =>
        {
            names.add_none();
            (Some(path.clone()), None)
        }
        Target::File(path) | Target::Listed(path) => {
            let naming = if matches!(file.target, Target::File(_)) { Naming::User } else { Naming::List };
            let name = path.file_name().map_or_else(|| OsString::from("download"), ToOwned::to_owned);
            let dir = path.parent().unwrap_or(Path::new("."));
            let begun = names.add(dir, &name, naming, None);
            // As the user wrote it, if it is that.
            let same = begun.file_name() == path.file_name();
            (Some(if same { path.clone() } else { begun }), None)
        }
        Target::Directory(dir) => {
            let suggestion = file.sources.first().map(|source| suggested(None, &source.url));
            let (name, note) = suggestion
                .map_or_else(|| ("download".to_owned(), None), |suggested| (suggested.name, suggested.note));
            (Some(names.add(dir, name.as_ref(), Naming::Url, None)), note)
        }
    }
}

/// For people: the file's name without its directory.
fn name_of(place: Option<&Path>) -> String {
    let name = place.and_then(Path::file_name);
    name.map_or_else(|| "standard output".to_owned(), |name| name.to_string_lossy().into_owned())
}

const SHOW_EVERY: Duration = Duration::from_millis(100);
/// A line about a link that another download has said as well is not repeated for so long.
const SAID_LATELY: Duration = Duration::from_secs(10);
