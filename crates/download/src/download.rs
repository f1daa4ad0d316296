//! One download of a batch: from the first look at its target to the finished file.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::{Future as _, poll_fn};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use marline_core::fetch::{Failure, Fetch, Input, LinkShare, Resume, Status, UrlId};
use marline_core::link::LinkId;
use marline_core::units::{DataSize, Instant};
use marline_net::power::Watch;

use super::Joules;
use super::batch::{Control, PATIENCE, Shared, Shown, Standing, Stands, Stop};
use super::job::{File, GetError, Target, Watcher};
use super::log::{self, Logged};
use super::mptcp::Together;
use super::origins::Origins;
use super::page;
use super::place::Place;
use super::pump::Pump;
use super::report::{LinkReport, Report, SCHEMA};
use super::tally;
use super::verify::Verifier;
use crate::store::{self, Record, Store};

/// Downloads one file: the `id`th of its batch, which begins at `place` (none: standard output).
///
/// # Errors
/// As [`GetError`] lists them. What has arrived is kept where a next run can go on from it.
pub(super) async fn download(
    shared: Rc<Shared>,
    id: usize,
    file: File,
    place: Option<PathBuf>,
    control: Rc<RefCell<Control>>,
) -> Result<Report, GetError> {
    let started = std::time::Instant::now();
    let mut watcher = Shown(Rc::clone(&control));
    let url = file.sources.first().map(|source| source.url.clone()).ok_or(GetError::NoSource)?;
    let uplinks = shared.uplinks(&url)?;
    let sockets = shared.sockets(&file);
    // The file before the log: an older log stays until this run may write at all.
    if let Some(path) = file.trace.as_deref().filter(|log| is_target(log, place.as_deref())) {
        return Err(GetError::TraceIsTarget { path: path.to_owned() });
    }
    let earlier = shared.find_finished(&file, place.as_deref());
    let is_proven = |record: &&Record| file.digests.whole.as_ref().is_some_and(|digest| record.has_digest(digest));
    if let Some(record) = earlier.as_ref().filter(is_proven) {
        shared.names.borrow_mut().settle(id);
        watcher.line(UNCHANGED);
        let policy = shared.settings.config.policy.name();
        return Ok(unchanged(record, place.as_deref(), &url, policy, started.elapsed().as_secs_f64()));
    }
    let (store, resume) = open(&file, place.as_deref(), &mut watcher)?;
    let log = match log::create(file.trace.as_deref()) {
        Ok(log) => log,
        Err(why) => {
            // Nothing of the file is left that was not there before.
            store.suspend()?;
            return Err(why);
        }
    };

    let mut config = shared.settings.config.clone();
    config.mirrors = u16::try_from(file.sources.len()).unwrap_or(u16::MAX);
    config.reader_window = store.window();
    config.expected_size = file.digests.size;
    config.has_checksum = file.digests.whole.is_some();
    config.digest = file.digests.proof().filter(|_| file.sources.len() > 1 || file.digests.pieces.is_some());
    let resumed = resume.as_ref().map_or(0, |resume| resume.ranges.iter().map(|span| span.len().bytes()).sum());
    config.resume = resume;
    let policy = config.policy.name();

    let watch = shared.settings.energy.supplies.as_deref().and_then(Watch::start);
    let mut logged: Logged<Fetch> = Logged::new(config, log);
    logged.joules = shared.settings.energy.model.clone().map(Joules::new);
    let origins = Origins::of(&file.sources, &shared.settings.credentials).with_jar(Rc::clone(&shared.jar));
    let mut pump = Pump::new(logged, Place::new(store), sockets, origins, uplinks, &mut watcher, started);
    pump.limits = shared.bounds.for_run(started);
    pump.resumed = resumed;
    pump.verifier = Verifier::new(file.digests.clone());
    pump.leases = (!shared.alone).then(BTreeMap::new);
    pump.uplinks.free_name = matches!(file.target, Target::Directory(_));
    let mut links: Vec<LinkId> = pump.uplinks.ids().collect();
    links.iter().for_each(|link| pump.introduce(*link));
    // Those that cost nothing first: a metered link is told of when it is clear whether it is needed.
    links.sort_by_key(|link| pump.uplinks.profile(*link).is_some_and(|profile| profile.metered));
    if let Some(first) = links.first().filter(|_| shared.settings.mptcp) {
        pump.together = Together::over(*first);
    }
    let mut beside = Beside::new(Rc::clone(&shared), id, control);
    beside.look(&mut pump);
    links.into_iter().for_each(|link| pump.link_up(link));
    pump.takes_encoded = true;
    pump.takes_sources = true;
    let mut seconds = None;
    let ended = until_end(&mut pump, &mut beside, (&file, earlier.as_ref()), started, &mut seconds).await;
    let seconds = seconds.unwrap_or_else(|| started.elapsed()).as_secs_f64();
    let drawn = watch.and_then(Watch::finish);
    let (ended, earlier) = match ended {
        Err(Early::Unchanged) => (Ok(()), earlier),
        ended => (ended.map_err(|stop| stop.into_error(&url, &shared, &mut pump)), None),
    };
    let identity = pump.identity.clone();
    let mut report =
        finish(pump, ended, &mut beside, &url, policy, seconds, earlier.as_ref().zip(place.as_deref())).await?;
    if let (None, Some(place), Some(path)) = (&earlier, &place, &report.path) {
        let validator = identity.and_then(|(_, validator)| validator);
        shared.add_finished((&url, place), Path::new(path), validator, file.digests.whole.as_ref());
    }
    report.battery_j = drawn.map(|drawn| drawn.energy.as_joules_f64());
    report.battery_w = drawn.map(|drawn| drawn.power.as_watts_f64());
    Ok(report)
}

/// Whether a log at this path would be written into the download.
fn is_target(log: &Path, place: Option<&Path>) -> bool {
    match place {
        Some(path) => store::is_of(log, path),
        None => store::is_stdout(log),
    }
}

/// Opens the target and looks for an earlier run.
fn open(file: &File, place: Option<&Path>, watcher: &mut dyn Watcher) -> Result<(Store, Option<Resume>), GetError> {
    let (mut store, resume) = match place {
        None => (Store::stdout()?, None),
        Some(path) => {
            let key = file.digests.key().filter(|_| file.sources.len() > 1);
            let urls = file.sources.iter().map(|source| &source.url).cloned();
            let urls: Vec<_> = key.clone().into_iter().chain(urls).collect();
            let suggested = matches!(file.target, Target::Directory(_));
            let opened = if suggested { Store::open_suggested(path, &urls) } else { Store::open(path, &urls) }?;
            if let Some(why) = &opened.start_over {
                watcher.line(&why.to_string());
            }
            // What is of the digest is of any source.
            let of = |resume: Resume| match (resume.mirror, &key) {
                (Some(UrlId(n)), Some(_)) => Resume { mirror: n.checked_sub(1).map(UrlId), ..resume },
                _ => resume,
            };
            (opened.store, opened.resume.map(of))
        }
    };
    if let Some(checksum) = &file.digests.whole {
        store.expect(checksum.clone());
    }
    Ok((store, resume))
}

/// Why a download ends early.
enum Early {
    Stop(Stop),
    Error(GetError),
    /// An earlier run has completed the file, and it has not changed.
    Unchanged,
}

impl From<GetError> for Early {
    fn from(error: GetError) -> Self {
        Self::Error(error)
    }
}

impl Early {
    fn into_error(self, url: &url::Url, shared: &Shared, pump: &mut Pump<'_, Fetch>) -> GetError {
        match self {
            Self::Stop(Stop::Interrupted) => GetError::Interrupted { kept: false },
            Self::Stop(Stop::TimeUp) => {
                let limit = shared.max_time.unwrap_or_default();
                GetError::TimeUp { url: url.to_string(), limit, kept: false }
            }
            // The store knows what it should be and what it is.
            Self::Error(GetError::Failed { failure: Failure::DigestMismatch, url }) => {
                match pump.verifier.take_mismatch() {
                    Some(mismatch) => mismatch.into(),
                    None => GetError::Failed { failure: Failure::DigestMismatch, url },
                }
            }
            Self::Error(error) => error,
            Self::Unchanged => GetError::Interrupted { kept: false },
        }
    }
}

/// Runs the pump until it has a verdict, waits for a stream's reader, and reads the file again for its checksum; or
/// until everything is to stop. `whole_after` becomes the time until the last byte was in its place.
async fn until_end(
    pump: &mut Pump<'_, Fetch>,
    beside: &mut Beside,
    (file, earlier): (&File, Option<&Record>),
    started: std::time::Instant,
    whole_after: &mut Option<Duration>,
) -> Result<(), Early> {
    let shared = Rc::clone(&beside.shared);
    let mut whole = std::pin::pin!(async {
        poll_fn(|cx| {
            beside.look(pump);
            let polled = pump.poll(cx).map_err(Early::Error);
            let is_of = |record: &Record| {
                let (total, validator) = pump.identity.as_ref()?;
                Some(record.is_of(*total, validator.as_ref()))
            };
            if earlier.and_then(is_of) == Some(true) { Poll::Ready(Err(Early::Unchanged)) } else { polled }
        })
        .await?;
        beside.report(pump);
        let total = total_of(&pump.logged.machine().status());
        drain(&mut pump.place.store, total).await?;
        *whole_after = Some(started.elapsed());
        refuse_page(pump, file)?;
        Ok(check(pump).await?)
    });
    poll_fn(|cx| match shared.stopping.get() {
        Some(stop) => Poll::Ready(Err(Early::Stop(stop))),
        None => whole.as_mut().poll(cx),
    })
    .await
}

/// Keeps an HTML page from being taken for the file. A digest knows better.
fn refuse_page(pump: &mut Pump<'_, Fetch>, file: &File) -> Result<(), GetError> {
    let known = file.digests.whole.is_some() || file.digests.pieces.is_some();
    let Some(url) = file.sources.first().map(|source| &source.url).filter(|_| !known) else { return Ok(()) };
    let content_type = pump.described.as_ref().and_then(|(_, _, described)| described.content_type.as_deref());
    let named = match &file.target {
        Target::File(path) | Target::Listed(path) => Some(path.as_path()),
        Target::Directory(_) | Target::Stdout => None,
    };
    let Some(wanted) = page::instead_of(url, named, content_type, &pump.place.head) else { return Ok(()) };
    // The next run must not go on from it. What a stream's reader has taken cannot be taken back.
    if pump.place.store.window().is_none() {
        pump.place.store.restart()?;
    }
    Err(GetError::Page { url: url.to_string(), wanted })
}

/// Settles the file and counts everything up.
async fn finish(
    pump: Pump<'_, Fetch>,
    ended: Result<(), GetError>,
    beside: &mut Beside,
    url: &url::Url,
    policy: &'static str,
    seconds: f64,
    earlier: Option<(&Record, &Path)>,
) -> Result<Report, GetError> {
    let status = pump.logged.machine().status();
    let suggested = pump.suggested_name();
    let modified = pump.described.as_ref().and_then(|(_, _, described)| described.last_modified.clone());
    let Pump { logged, place, tallies, watcher, resumed, together, .. } = pump;
    let total = total_of(&status);
    let mut progress =
        tally::progress(&status, &tallies, |_| None, resumed, Instant::ZERO + Duration::from_secs_f64(seconds));
    progress.eta = None;
    watcher.progress(&progress);
    let mut store = place.store;
    if earlier.is_some() {
        beside.shared.names.borrow_mut().settle(beside.id);
    } else if ended.is_ok() {
        beside.name(&mut store, suggested.as_deref()).await;
    }
    if let Err(error) = ended {
        beside.shared.names.borrow_mut().settle(beside.id);
        let logged = logged.finish();
        let kept = store.suspend()?;
        tracing::debug!(kept, "the run ends early");
        logged?;
        return Err(error.with_kept(kept));
    }
    if let Some((record, place)) = earlier {
        store.restart()?;
        store.suspend()?;
        logged.finish()?;
        watcher.line(UNCHANGED);
        return Ok(unchanged(record, Some(place), url, policy, seconds));
    }
    let path = store.finish()?;
    if let Some(path) = path.as_deref().filter(|_| beside.shared.settings.remote_time)
        && let Err(why) = set_modified(path, modified.as_deref())
    {
        watcher.line(&format!("{}: {why}; the file keeps the time of the download", path.display()));
    }
    // Which links the subflows of a connection went over is not known here, so nor are their joules.
    let joules = logged.joules.as_ref().filter(|_| !together.is_shared());
    let metered = joules.map(|joules| (joules.account(), joules.meter().model().name().to_owned()));
    let bill = |link| metered.as_ref().and_then(|(account, _)| account.radio(link));
    let links: Vec<LinkReport> = tallies
        .iter()
        .enumerate()
        .map(|(n, tally)| {
            let link = LinkId(n as u16);
            tally.report(tally::state_of(&status, link), bill(link))
        })
        .collect();
    logged.finish()?;
    Ok(Report {
        schema: SCHEMA,
        url: url.to_string(),
        bytes: total,
        seconds,
        goodput_mbps: tally::mbps(total.saturating_sub(resumed), Duration::from_secs_f64(seconds)),
        policy,
        mptcp: together.word(),
        energy_j: metered
            .as_ref()
            .filter(|_| links.iter().any(|link| link.energy_j.is_some()))
            .map(|(account, _)| account.total().as_joules_f64()),
        links,
        energy_model: metered.map(|(_, model)| model),
        battery_j: None,
        battery_w: None,
        link_delta_s: tally::link_delta(&tallies),
        wasted_bytes: status.wasted.bytes(),
        cpu_s: tally::cpu_seconds(),
        peak_rss_bytes: tally::peak_rss(),
        resumed_bytes: resumed,
        path: path.map(|path| path.display().to_string()),
    })
}

/// The report of a file that an earlier run has completed; its path is written as that of a new file at `place` would be.
fn unchanged(record: &Record, place: Option<&Path>, url: &url::Url, policy: &'static str, seconds: f64) -> Report {
    let written = place.zip(record.path.file_name()).map(|(place, name)| place.with_file_name(name));
    let path = written.filter(|path| path.canonicalize().is_ok_and(|path| path == record.path));
    let path = path.unwrap_or_else(|| record.path.clone());
    Report {
        schema: SCHEMA,
        url: url.to_string(),
        bytes: record.size,
        seconds,
        goodput_mbps: 0.0,
        policy,
        mptcp: None,
        energy_j: None,
        links: Vec::new(),
        energy_model: None,
        battery_j: None,
        battery_w: None,
        link_delta_s: None,
        wasted_bytes: 0,
        cpu_s: tally::cpu_seconds(),
        peak_rss_bytes: tally::peak_rss(),
        resumed_bytes: record.size,
        path: Some(path.display().to_string()),
    }
}

/// Gives a file the time of its Last-Modified field (RFC 9110 §8.8.2).
fn set_modified(path: &Path, last_modified: Option<&str>) -> Result<(), String> {
    let text = last_modified.ok_or("the server does not say when it was last modified")?;
    let time =
        httpdate::parse_http_date(text).map_err(|_| "the server's Last-Modified is not a date".to_owned())?;
    // A device or a pipe has a time of its own.
    if !path.symlink_metadata().is_ok_and(|meta| meta.is_file()) {
        return Ok(());
    }
    let file = std::fs::OpenOptions::new().write(true).open(path);
    file.and_then(|file| file.set_modified(time)).map_err(|error| format!("its time cannot be set: {error}"))
}

/// The size of the file; as long as nobody said it, what has come of it.
fn total_of(status: &Status) -> u64 {
    status.total.unwrap_or(status.received).bytes()
}

/// Reads the complete file again for its checksum. In pieces: gigabytes on a slow disk take minutes, in which the user
/// may want to stop.
pub(super) async fn check(pump: &mut Pump<'_, Fetch>) -> Result<(), GetError> {
    while let Some(checked) = pump.place.store.check()? {
        pump.show_checked(checked);
        tokio::task::yield_now().await;
    }
    Ok(())
}

/// Waits until a stream's reader has taken everything.
async fn drain(store: &mut Store, total: u64) -> Result<(), GetError> {
    let Some(wake) = store.wake() else { return Ok(()) };
    while store.consumed() < total {
        store.tick(Instant::ZERO)?;
        // The timeout only covers a wake-up that came between two looks.
        let _ = tokio::time::timeout(Duration::from_millis(100), wake.notified()).await;
    }
    Ok(())
}

/// What a download has to do with the others of its batch.
struct Beside {
    shared: Rc<Shared>,
    id: usize,
    control: Rc<RefCell<Control>>,
    /// What the machine was told.
    told: BTreeMap<LinkId, LinkShare>,
    /// How many links there were at the last look.
    links: usize,
    next_report: std::time::Instant,
    /// The file has its final name.
    named: bool,
}

impl Beside {
    fn new(shared: Rc<Shared>, id: usize, control: Rc<RefCell<Control>>) -> Self {
        let next_report = std::time::Instant::now();
        Self { shared, id, control, told: BTreeMap::new(), links: 0, next_report, named: false }
    }

    /// Passes on what the others leave of the links, and reports.
    fn look(&mut self, pump: &mut Pump<'_, Fetch>) {
        if self.shared.alone {
            return;
        }
        let links = pump.uplinks.ids().count();
        if std::mem::take(&mut self.control.borrow_mut().changed) || links != self.links {
            self.links = links;
            self.pass_shares(pump);
        }
        let now = std::time::Instant::now();
        if now >= self.next_report {
            self.next_report = now + REPORT_EVERY;
            self.report(pump);
        }
        if pump.identity.is_some() && !self.named && self.shared.names.borrow().is_next(self.id) {
            let suggested = pump.suggested_name();
            self.claim(&mut pump.place.store, suggested.as_deref());
        }
    }

    fn pass_shares(&mut self, pump: &mut Pump<'_, Fetch>) {
        let shares = self.control.borrow().shares.clone();
        let links: Vec<LinkId> = pump.uplinks.ids().collect();
        for link in links {
            let Some(profile) = pump.uplinks.profile(link).cloned() else { continue };
            let share = shares.get(&profile.name).copied().unwrap_or_default();
            if self.told.insert(link, share) == Some(share) {
                continue;
            }
            pump.tell(Input::Share { link, share });
            if let Some(budget) = profile.budget.filter(|_| share != LinkShare::Paused) {
                // What the others have carried is spent. Nobody else uses the link while this download has it.
                let left = budget - self.shared.carried_by_others(self.id, &profile.name);
                pump.lease(link, left);
            }
        }
    }

    fn report(&self, pump: &Pump<'_, Fetch>) {
        if self.shared.alone {
            return;
        }
        let status = pump.logged.machine().status();
        let loads = pump.logged.machine().link_loads();
        let links = pump.uplinks.ids().filter_map(|id| {
            let profile = pump.uplinks.profile(id)?;
            let load = loads.iter().find(|load| load.link == id).copied();
            if profile.budget.is_some() {
                let bytes = pump.tallies.get(usize::from(id.0)).map_or(0, |tally| tally.bytes);
                self.shared.carry(self.id, &profile.name, DataSize::from_bytes(bytes));
            }
            Some(Standing { name: profile.name.clone(), budgeted: profile.budget.is_some(), load })
        });
        let links = links.collect();
        let left = status.total.map(|total| total - status.received);
        self.control.borrow_mut().report = Some(Stands { left, links });
    }

    /// Gives a complete file its final name, once those before it in the list have theirs.
    async fn name(&mut self, store: &mut Store, suggested: Option<&str>) {
        if self.named {
            return;
        }
        let until = std::time::Instant::now() + PATIENCE;
        while !self.shared.names.borrow().is_next(self.id) && std::time::Instant::now() < until {
            if let Some(Stop::Interrupted) = self.shared.stopping.get() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.claim(store, suggested);
    }

    fn claim(&mut self, store: &mut Store, suggested: Option<&str>) {
        self.named = true;
        let name = self.shared.names.borrow_mut().claim(self.id, suggested.map(str::as_ref), |_| false);
        if let Some(name) = name {
            store.call(&name.name, name.replaces);
        }
    }
}

const UNCHANGED: &str = "an earlier run has completed it, and it has not changed";
const REPORT_EVERY: Duration = Duration::from_millis(100);
