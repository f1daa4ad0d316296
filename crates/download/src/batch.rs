//! A batch: several downloads in one task, and the scheduler that divides the links among them.
//!
//! 1. The scheduler is the machine `core::batch`. This driver reports the load of each download to it, and passes
//!    its decisions (start a download, change a link share) to the downloads.
//! 2. Resolved names, idle connections, rate limits and data budgets are shared by the whole batch. So files of one
//!    host reuse connections, and a limit does not depend on the number of files.
//! 3. A batch of one file is a plain download: nothing is scheduled, and nothing is shared.
//! 4. If the user or the time limit stops the batch, each active download saves its state, so that a later run
//!    resumes it.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::future::{Future, poll_fn};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use marline_core::batch::{self as scheduler, JobId, Output};
use marline_core::link::LinkId;
use marline_core::units::Instant;
use marline_net::recorded_machine::{MachineEvent, RecordedMachine};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::batch_context::{BatchContext, DownloadControl, FileNames, JobReport, NameSource, StopReason};
use super::download::download;
use super::error::DownloadError;
use super::report::{BatchProgress, FileProgress, Report};
use super::request::{Batch, BatchObserver, FileRequest, FileResult, Target};
use crate::name::suggest_name;

/// Downloads all files. Needs a tokio runtime with I/O and time; all downloads run in the calling task.
///
/// SIGINT and SIGTERM stop the batch cleanly: unfinished files end with [`DownloadError::Interrupted`].
///
/// # Errors
/// Returns an error only if the run cannot begin (no usable link, unreadable certificate authorities or cookies) or
/// the cookies cannot be saved. The result of each file is passed to the observer.
pub async fn run(batch: Batch, observer: &mut dyn BatchObserver) -> Result<(), DownloadError> {
    let Batch { settings, files, parallel, skip_completed, max_time } = batch;
    let started = std::time::Instant::now();
    let shared = Rc::new(BatchContext::new(settings, &files, (max_time, skip_completed), started, observer)?);
    let mut runner = BatchDriver::new(shared, files, parallel, started, observer);
    // The time limit counts from the call, so it can expire even before the first download starts.
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
    let mut follow_links = std::pin::pin!(shared.follow_links());
    poll_fn(|cx| {
        if signals.iter_mut().any(|signal| signal.poll_recv(cx).is_ready()) {
            runner.stop(StopReason::Interrupted);
        }
        if limit.as_mut().poll(cx).is_ready() {
            runner.stop(StopReason::TimeLimit);
        }
        let _ = follow_links.as_mut().poll(cx);
        runner.poll(cx)
    })
    .await;
    shared.save_cookies()
}

type DownloadFuture = Pin<Box<dyn Future<Output = Result<Report, DownloadError>>>>;

struct ActiveDownload {
    id: usize,
    future: DownloadFuture,
    control: Rc<RefCell<DownloadControl>>,
}

/// Runs the scheduler and the downloads.
struct BatchDriver<'a> {
    shared: Rc<BatchContext>,
    /// Files that have not been started, by index.
    pending_files: BTreeMap<usize, FileRequest>,
    target_paths: Vec<Option<PathBuf>>,
    urls: Vec<String>,
    machine: RecordedMachine<scheduler::Batch, scheduler::Config>,
    started_at: std::time::Instant,
    /// Whether the first poll has started its downloads; those that start later have waited in the queue.
    is_begun: bool,
    active: VecDeque<ActiveDownload>,
    /// Names of the interfaces, and whether the link has a data budget. The index is the scheduler's link ID.
    links: Vec<(String, bool)>,
    observer: &'a mut dyn BatchObserver,
    progress: BatchProgress,
    /// Bytes received and total size of the files that have ended.
    finished_bytes: (u64, u64),
    /// Time of the last progress report.
    progress_at: Option<std::time::Instant>,
    /// Messages that were recently shown, to suppress repetitions.
    recent_messages: VecDeque<(std::time::Instant, String)>,
    /// Decisions of the scheduler that were not executed yet.
    decisions: VecDeque<Output>,
    /// Whether the scheduler has made decisions that the downloads have not processed yet.
    has_new_decisions: bool,
}

impl<'a> BatchDriver<'a> {
    fn new(
        shared: Rc<BatchContext>,
        files: Vec<FileRequest>,
        parallel: usize,
        started: std::time::Instant,
        observer: &'a mut dyn BatchObserver,
    ) -> Self {
        let jobs = u32::try_from(files.len()).unwrap_or(u32::MAX);
        let config = scheduler::Config { jobs, parallel: u32::try_from(parallel).unwrap_or(u32::MAX) };
        let mut target_paths = Vec::new();
        let mut urls = Vec::new();
        for file in &files {
            let (target_path, note) = initial_path(&mut shared.file_names.borrow_mut(), file);
            if let Some(note) = note {
                observer.on_message(None, &note);
            }
            target_paths.push(target_path);
            urls.push(file.mirrors.first().map(|mirror| mirror.url.to_string()).unwrap_or_default());
        }
        let progress = BatchProgress { total: files.len(), ..BatchProgress::default() };
        let mut machine = RecordedMachine::with_log(scheduler::Batch::new(config.clone()), config, None);
        // The first decisions need no report. They are executed by the first poll: the batch may be stopped before.
        let mut decisions = VecDeque::new();
        machine.step(Instant::ZERO, MachineEvent::Tick, |decision| decisions.push_back(decision));
        Self {
            shared,
            pending_files: files.into_iter().enumerate().collect(),
            target_paths,
            urls,
            machine,
            started_at: started,
            is_begun: false,
            active: VecDeque::new(),
            links: Vec::new(),
            observer,
            progress,
            finished_bytes: (0, 0),
            progress_at: None,
            recent_messages: VecDeque::new(),
            decisions,
            has_new_decisions: false,
        }
    }

    fn now(&self) -> Instant {
        Instant::ZERO + self.started_at.elapsed()
    }

    /// Stops all downloads. An interrupt by the user takes precedence over the time limit.
    fn stop(&mut self, stop: StopReason) {
        if self.shared.stop_flag.get() != Some(StopReason::Interrupted) {
            self.shared.stop_flag.set(Some(stop));
        }
    }

    /// Polls all downloads and the scheduler. Ready when every file has ended.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            self.apply_decisions();
            (self.is_begun, self.has_new_decisions) = (true, false);
            // Rotated, so that no download is always the first to use up a shared rate limit.
            self.active.rotate_left(usize::from(!self.active.is_empty()));
            let mut ended = Vec::new();
            for active in &mut self.active {
                if let Poll::Ready(result) = active.future.as_mut().poll(cx) {
                    ended.push((active.id, result));
                }
            }
            self.forward_messages();
            let any_finished = !ended.is_empty();
            for (id, result) in ended {
                self.finish_file(id, result);
            }
            // The scheduler runs after the downloads: it needs the loads that they have just reported.
            self.report_loads();
            self.show_progress(any_finished);
            if self.active.is_empty() && (self.machine.machine().is_over() || self.shared.stop_flag.get().is_some())
            {
                self.fail_pending_files();
                return Poll::Ready(());
            }
            // New decisions need another round, because a waiting download would not notice a changed share.
            if !self.has_new_decisions && !any_finished {
                return Poll::Pending;
            }
        }
    }

    /// Passes the load reports of the downloads to the scheduler.
    fn report_loads(&mut self) {
        if self.shared.is_single {
            return;
        }
        let reports: Vec<(usize, JobReport)> = self
            .active
            .iter()
            .filter_map(|active| Some((active.id, active.control.borrow_mut().report.take()?)))
            .collect();
        let now = self.now();
        for (id, report) in reports {
            let mut loads = Vec::new();
            for link_report in report.links {
                let link = self.link_id(&link_report.link_name, link_report.has_budget, now);
                loads.extend(link_report.load.map(|load| marline_core::fetch::LinkLoad { link, ..load }));
            }
            let job = JobId(u32::try_from(id).unwrap_or(u32::MAX));
            self.step(now, scheduler::Input::Progress { job, remaining: report.remaining, loads });
        }
    }

    /// The scheduler's ID of a link. Announces a new link, or one whose budget has changed.
    fn link_id(&mut self, name: &str, budgeted: bool, now: Instant) -> LinkId {
        let known_index = self.links.iter().position(|(known_index, _)| known_index == name);
        let at = known_index.unwrap_or(self.links.len());
        let link = LinkId(u16::try_from(at).unwrap_or(u16::MAX));
        if known_index.is_none() || self.links.get(at).is_some_and(|(_, had_budget)| *had_budget != budgeted) {
            match self.links.get_mut(at) {
                Some(entry) => entry.1 = budgeted,
                None => self.links.push((name.to_owned(), budgeted)),
            }
            self.step(now, scheduler::Input::Link { link, has_budget: budgeted });
        }
        link
    }

    /// Passes an event to the scheduler and executes its decisions.
    fn step(&mut self, now: Instant, input: scheduler::Input) {
        let Self { machine, decisions, .. } = self;
        machine.step(now, MachineEvent::Input(input), |decision| decisions.push_back(decision));
        self.apply_decisions();
    }

    /// Executes the decisions of the scheduler.
    fn apply_decisions(&mut self) {
        while let Some(decision) = self.decisions.pop_front() {
            self.has_new_decisions = true;
            match decision {
                Output::Start { job } => self.start_download(job.0 as usize),
                Output::Share { job, link, share } => {
                    let Some((name, _)) = self.links.get(usize::from(link.0)) else { continue };
                    let active = self.active.iter().find(|active| active.id == job.0 as usize);
                    if let Some(active) = active {
                        let mut control = active.control.borrow_mut();
                        control.shares.insert(name.clone(), share);
                        control.shares_changed = true;
                    }
                }
            }
        }
    }

    fn start_download(&mut self, id: usize) {
        if self.shared.stop_flag.get().is_some() {
            return;
        }
        let Some(file) = self.pending_files.remove(&id) else { return };
        let target_path = self.target_paths.get(id).cloned().flatten();
        let control: Rc<RefCell<DownloadControl>> = Rc::default();
        control.borrow_mut().file_name = display_name(target_path.as_deref());
        // A file that has not waited for others also waited for the links to be found.
        let started = if self.is_begun { std::time::Instant::now() } else { self.started_at };
        let running = download(Rc::clone(&self.shared), id, file, target_path, Rc::clone(&control), started);
        self.active.push_back(ActiveDownload { id, future: Box::pin(running), control });
    }

    /// Processes the end of a download.
    fn finish_file(&mut self, id: usize, result: Result<Report, DownloadError>) {
        self.shared.file_names.borrow_mut().settle(id);
        let progress = self.active.iter().find(|active| active.id == id).map(|active| {
            let control = active.control.borrow();
            (control.progress.received, control.progress.total.unwrap_or(control.progress.received))
        });
        self.active.retain(|active| active.id != id);
        if let Some((done, size)) = progress {
            self.finished_bytes.0 += done;
            self.finished_bytes.1 += size;
        }
        match &result {
            Ok(_) => self.progress.complete += 1,
            Err(_) => self.progress.failed += 1,
        }
        let url = self.urls.get(id).cloned().unwrap_or_default();
        self.observer.on_file_ended(FileResult { index: id, url, result });
        let now = self.now();
        self.step(now, scheduler::Input::Ended { job: JobId(u32::try_from(id).unwrap_or(u32::MAX)) });
    }

    /// Reports the files that were never started as failed, because the batch was stopped.
    fn fail_pending_files(&mut self) {
        let Some(stop) = self.shared.stop_flag.get() else { return };
        for (index, _) in std::mem::take(&mut self.pending_files) {
            let url = self.urls.get(index).cloned().unwrap_or_default();
            let error = match stop {
                StopReason::Interrupted => DownloadError::Interrupted { kept: false },
                StopReason::TimeLimit => {
                    let limit = self.shared.max_time.unwrap_or_default();
                    DownloadError::TimeLimit { url: url.clone(), limit, kept: false }
                }
            };
            self.progress.failed += 1;
            self.observer.on_file_ended(FileResult { index, url, result: Err(error) });
        }
    }

    /// Passes the messages of all downloads to the observer. A message about a link that several downloads emit is
    /// shown once.
    fn forward_messages(&mut self) {
        let now = std::time::Instant::now();
        while self.recent_messages.front().is_some_and(|(at, _)| now.duration_since(*at) > MESSAGE_REPEAT_TIME) {
            self.recent_messages.pop_front();
        }
        for active in &self.active {
            let (lines, name) = {
                let mut control = active.control.borrow_mut();
                if control.messages.is_empty() {
                    continue;
                }
                (std::mem::take(&mut control.messages), control.file_name.clone())
            };
            for line in lines {
                let of_link = line.starts_with("link ");
                if self.shared.is_single {
                    self.observer.on_message(None, &line);
                } else if !of_link {
                    self.observer.on_message(Some(&name), &line);
                } else if self.recent_messages.iter().all(|(_, recent)| *recent != line) {
                    self.observer.on_message(None, &line);
                    self.recent_messages.push_back((now, line));
                }
            }
        }
    }

    fn show_progress(&mut self, at_once: bool) {
        let now = std::time::Instant::now();
        if !at_once && self.progress_at.is_some_and(|at| now.duration_since(at) < PROGRESS_INTERVAL) {
            return;
        }
        self.progress_at = Some(now);
        let mut files: Vec<(usize, FileProgress)> = self
            .active
            .iter()
            .map(|active| {
                let control = active.control.borrow();
                (active.id, FileProgress { name: control.file_name.clone(), progress: control.progress.clone() })
            })
            .collect();
        files.sort_by_key(|(id, _)| *id);
        let files: Vec<FileProgress> = files.into_iter().map(|(_, file)| file).collect();
        let sizes: Option<u64> = files.iter().map(|file| file.progress.total).sum();
        self.progress.received =
            self.finished_bytes.0 + files.iter().map(|file| file.progress.received).sum::<u64>();
        self.progress.size =
            sizes.filter(|_| self.pending_files.is_empty()).map(|sizes| sizes + self.finished_bytes.1);
        self.progress.rate = files.iter().map(|file| file.progress.rate).sum();
        self.progress.elapsed_s = self.started_at.elapsed().as_secs_f64();
        self.progress.files = files;
        self.observer.on_progress(&self.progress);
    }
}

/// The path under which a file is stored first (none: standard output), and a note if the name differs from that in
/// the URL.
fn initial_path(names: &mut FileNames, file: &FileRequest) -> (Option<PathBuf>, Option<String>) {
    match &file.target {
        Target::Stdout => {
            names.add_unnamed();
            (None, None)
        }
        // Devices and pipes can take several files one after the other, so they have no name to reserve.
        Target::File(path) | Target::ListedFile(path)
            if path.metadata().is_ok_and(|meta| !meta.is_file() && !meta.is_dir()) =>
        {
            names.add_unnamed();
            (Some(path.clone()), None)
        }
        Target::File(path) | Target::ListedFile(path) => {
            let naming = if matches!(file.target, Target::File(_)) { NameSource::User } else { NameSource::List };
            let name = path.file_name().map_or_else(|| OsString::from("download"), ToOwned::to_owned);
            let dir = path.parent().unwrap_or(Path::new("."));
            let initial = names.add(dir, &name, naming);
            // If the name is free, the path keeps the user's spelling.
            let keeps_name = initial.file_name() == path.file_name();
            (Some(if keeps_name { path.clone() } else { initial }), None)
        }
        Target::Directory(dir) => {
            let suggestion = file.mirrors.first().map(|mirror| suggest_name(None, &mirror.url));
            let (name, note) = suggestion
                .map_or_else(|| ("download".to_owned(), None), |suggested| (suggested.name, suggested.note));
            (Some(names.add(dir, name.as_ref(), NameSource::Url)), note)
        }
    }
}

/// The file name without directory, for messages.
fn display_name(target_path: Option<&Path>) -> String {
    let name = target_path.and_then(Path::file_name);
    name.map_or_else(|| "standard output".to_owned(), |name| name.to_string_lossy().into_owned())
}

const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);
/// A message about a link is not repeated within this time.
const MESSAGE_REPEAT_TIME: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use marline_core::fetch::Config;

    use super::super::request::{CookieFiles, Credentials, EnergyOptions, MirrorUrl, Settings};
    use super::super::{ConnectOptions, Digests, Links};
    use super::*;

    /// Collects the reports of the files, in the order in which they end.
    #[derive(Default)]
    struct ReportObserver(Vec<Report>);

    impl BatchObserver for ReportObserver {
        fn on_progress(&mut self, _: &BatchProgress) {}
        fn on_message(&mut self, _: Option<&str>, _: &str) {}
        fn on_file_ended(&mut self, ended: FileResult) {
            self.0.push(ended.result.unwrap());
        }
    }

    /// The port of a server that sends the same file in response to each request.
    fn start_server() -> u16 {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                std::thread::spawn(move || {
                    let _ = stream.read(&mut [0; 4096]);
                    let _ =
                        stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello");
                });
            }
        });
        port
    }

    #[test]
    fn times_count_from_the_start_of_the_batch_or_after_the_wait_in_its_queue() {
        let settings = Settings {
            links: Links::Named(Vec::new()),
            config: Config::default(),
            credentials: Credentials::default(),
            ca_file: None,
            rate_limit: None,
            energy: EnergyOptions::default(),
            mptcp: false,
            connect_options: ConnectOptions::default(),
            cookie_files: CookieFiles::default(),
            use_remote_time: false,
        };
        let (dir, port) = (tempfile::tempdir().unwrap(), start_server());
        let file = |name: &str| FileRequest {
            mirrors: vec![MirrorUrl::from_user(format!("http://127.0.0.1:{port}/{name}").parse().unwrap())],
            target: Target::File(dir.path().join(name)),
            digests: Digests::default(),
            decision_log: None,
        };
        let files = vec![file("first"), file("second")];
        let mut observer = ReportObserver::default();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            // As if finding the links had taken this long.
            let started = std::time::Instant::now().checked_sub(FIND_TIME).unwrap();
            let shared = BatchContext::new(settings, &files, (None, false), started, &mut observer).unwrap();
            let mut runner = BatchDriver::new(Rc::new(shared), files, 1, started, &mut observer);
            poll_fn(|cx| runner.poll(cx)).await;
        });
        let includes_find_time = |report: &Report| {
            let of_link = &report.links[0];
            [Some(report.seconds), of_link.first_byte_s, of_link.last_byte_s]
                .map(|time| time.unwrap() >= FIND_TIME.as_secs_f64())
        };
        let included: Vec<_> = observer.0.iter().map(includes_find_time).collect();
        assert_eq!(included, [[true; 3], [false; 3]]);
    }

    const FIND_TIME: Duration = Duration::from_secs(20);
}
