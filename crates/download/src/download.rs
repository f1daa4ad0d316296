//! One download of a batch: opens the target, runs the driver, verifies the file and writes the report.

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
use marline_net::battery::BatteryMeter;

use super::DownloadEnergy;
use super::batch_context::{
    BatchContext, DownloadControl, JobLinkReport, JobReport, NAME_TIMEOUT, ObserverBuffer, StopReason,
};
use super::body_sink::BodySink;
use super::digest_verifier::Verifier;
use super::driver::{DownloadDriver, Transfer};
use super::error::DownloadError;
use super::html_page;
use super::link_stats;
use super::log::{self, Logged};
use super::mptcp::MptcpGate;
use super::report::{LinkReport, Report, SCHEMA};
use super::request::{DownloadObserver, FileRequest, Target};
use super::url_table::UrlTable;
use crate::store::{self, CompletedFile, Store};

/// Downloads one file, the `id`th of its batch, to `target_path` (none: standard output). The times in its report count
/// from `started`.
///
/// # Errors
/// See [`DownloadError`]. Received bytes are kept where a later run can resume from them.
pub(super) async fn download(
    shared: Rc<BatchContext>,
    id: usize,
    file: FileRequest,
    target_path: Option<PathBuf>,
    control: Rc<RefCell<DownloadControl>>,
    started: std::time::Instant,
) -> Result<Report, DownloadError> {
    let mut observer = ObserverBuffer(Rc::clone(&control));
    let url = file.mirrors.first().map(|mirror| mirror.url.clone()).ok_or(DownloadError::NoUrl)?;
    let uplinks = shared.uplinks_for(&url)?;
    let conns = shared.connections_for(&file);
    // The file is locked before the log is opened: an older log is kept until this run is certain to write.
    if let Some(path) = file.decision_log.as_deref().filter(|log| is_same_as_target(log, target_path.as_deref())) {
        return Err(DownloadError::DecisionLogIsTarget { path: path.to_owned() });
    }
    let earlier = shared.find_completed(&file, target_path.as_deref());
    let is_proven =
        |record: &&CompletedFile| file.digests.full_file.as_ref().is_some_and(|digest| record.has_digest(digest));
    if let Some(record) = earlier.as_ref().filter(is_proven) {
        shared.file_names.borrow_mut().settle(id);
        observer.on_message(UNCHANGED_MESSAGE);
        let policy = shared.settings.config.policy.name();
        return Ok(unchanged_report(record, target_path.as_deref(), &url, policy, started.elapsed().as_secs_f64()));
    }
    let (store, resume) = open_target(&file, target_path.as_deref(), &mut observer)?;
    let log = match log::create(file.decision_log.as_deref()) {
        Ok(log) => log,
        Err(why) => {
            // Discards what opening has created, and keeps the bytes of an earlier run.
            store.suspend()?;
            return Err(why);
        }
    };

    let mut config = shared.settings.config.clone();
    config.mirrors = u16::try_from(file.mirrors.len()).unwrap_or(u16::MAX);
    config.reader_window = store.window();
    config.expected_size = file.digests.size;
    config.has_checksum = file.digests.full_file.is_some();
    config.digest = file.digests.scope().filter(|_| file.mirrors.len() > 1 || file.digests.pieces.is_some());
    let resumed = resume.as_ref().map_or(0, |resume| resume.ranges.iter().map(|span| span.len().bytes()).sum());
    config.resume = resume;
    let policy = config.policy.name();

    let battery_meter = shared.settings.energy.power_supply_dir.as_deref().and_then(BatteryMeter::start);
    let mut logged: Logged<Fetch> = Logged::new(config, log);
    logged.energy_meter = shared.settings.energy.model.clone().map(DownloadEnergy::new);
    let url_table =
        UrlTable::from_mirrors(&file.mirrors, &shared.settings.credentials).with_jar(Rc::clone(&shared.cookie_jar));
    let mut driver =
        DownloadDriver::new(logged, BodySink::new(store), conns, url_table, uplinks, &mut observer, started);
    driver.limiter = shared.rate_limiter.for_download(started);
    driver.transfer.resumed_bytes = resumed;
    driver.transfer.verifier = Verifier::new(file.digests.clone());
    driver.budget_leases = (!shared.is_single).then(BTreeMap::new);
    driver.transfer.uplinks.use_server_name = matches!(file.target, Target::Directory(_));
    let mut links: Vec<LinkId> = driver.transfer.uplinks.ids().collect();
    links.iter().for_each(|link| driver.add_link_stats(*link));
    // Unmetered links first: the machine decides about a metered link when it knows whether the others suffice.
    links.sort_by_key(|link| driver.transfer.uplinks.profile(*link).is_some_and(|profile| profile.metered));
    if let Some(first) = links.first().filter(|_| shared.settings.mptcp) {
        driver.mptcp_gate = MptcpGate::new(*first);
    }
    let mut member = BatchMember::new(Rc::clone(&shared), id, control);
    member.exchange_with_batch(&mut driver);
    links.into_iter().for_each(|link| driver.link_up(link));
    driver.accepts_encoded = true;
    driver.accepts_mirrors = true;
    let mut seconds = None;
    let ended = run_to_end(&mut driver, &mut member, (&file, earlier.as_ref()), started, &mut seconds).await;
    let seconds = seconds.unwrap_or_else(|| started.elapsed()).as_secs_f64();
    let battery_use = battery_meter.and_then(BatteryMeter::finish);
    let (ended, earlier) = match ended {
        Err(EarlyEnd::Unchanged) => (Ok(()), earlier),
        ended => (ended.map_err(|stop| stop.into_error(&url, &shared, &mut driver)), None),
    };
    let identity = driver.transfer.identity.clone();
    let mut report =
        finish(driver, ended, &mut member, &url, policy, seconds, earlier.as_ref().zip(target_path.as_deref()))
            .await?;
    if let (None, Some(target_path), Some(path)) = (&earlier, &target_path, &report.path) {
        let validator = identity.and_then(|(_, validator)| validator);
        shared.add_completed((&url, target_path), Path::new(path), validator, file.digests.full_file.as_ref());
    }
    report.battery_j = battery_use.map(|battery_use| battery_use.energy.as_joules_f64());
    report.battery_w = battery_use.map(|battery_use| battery_use.power.as_watts_f64());
    Ok(report)
}

/// Whether a log at this path would overwrite the target or its partial file.
fn is_same_as_target(log: &Path, target_path: Option<&Path>) -> bool {
    match target_path {
        Some(path) => store::conflicts_with(log, path),
        None => store::is_stdout_file(log),
    }
}

/// Opens the target and finds what an earlier run has left there.
fn open_target(
    file: &FileRequest,
    target_path: Option<&Path>,
    observer: &mut dyn DownloadObserver,
) -> Result<(Store, Option<Resume>), DownloadError> {
    let (mut store, resume) = match target_path {
        None => (Store::stdout()?, None),
        Some(path) => {
            let key = file.digests.journal_url().filter(|_| file.mirrors.len() > 1);
            let urls = file.mirrors.iter().map(|mirror| &mirror.url).cloned();
            let urls: Vec<_> = key.clone().into_iter().chain(urls).collect();
            let suggested = matches!(file.target, Target::Directory(_));
            let opened = if suggested { Store::open_suggested(path, &urls) } else { Store::open(path, &urls) }?;
            if let Some(why) = &opened.restart_reason {
                observer.on_message(&why.to_string());
            }
            // With a digest, the journal's first URL is the digest's. Its bytes may come from any mirror, so
            // indexes shift by one.
            let with_mirror_index = |resume: Resume| match (resume.mirror, &key) {
                (Some(UrlId(n)), Some(_)) => Resume { mirror: n.checked_sub(1).map(UrlId), ..resume },
                _ => resume,
            };
            (opened.store, opened.resume.map(with_mirror_index))
        }
    };
    if let Some(checksum) = &file.digests.full_file {
        store.expect_checksum(checksum.clone());
    }
    Ok((store, resume))
}

/// Why a download ends before its driver has a result.
enum EarlyEnd {
    Stop(StopReason),
    Error(DownloadError),
    /// An earlier run has completed the file, and it has not changed.
    Unchanged,
}

impl From<DownloadError> for EarlyEnd {
    fn from(error: DownloadError) -> Self {
        Self::Error(error)
    }
}

impl EarlyEnd {
    fn into_error(
        self,
        url: &url::Url,
        shared: &BatchContext,
        driver: &mut DownloadDriver<'_, Fetch>,
    ) -> DownloadError {
        match self {
            Self::Stop(StopReason::Interrupted) => DownloadError::Interrupted { kept: false },
            Self::Stop(StopReason::TimeLimit) => {
                let limit = shared.max_time.unwrap_or_default();
                DownloadError::TimeLimit { url: url.to_string(), limit, kept: false }
            }
            // The verifier knows the expected and the computed digest; the machine does not.
            Self::Error(DownloadError::Failed { failure: Failure::DigestMismatch, url }) => {
                match driver.transfer.verifier.take_mismatch() {
                    Some(mismatch) => mismatch.into(),
                    None => DownloadError::Failed { failure: Failure::DigestMismatch, url },
                }
            }
            Self::Error(error) => error,
            Self::Unchanged => DownloadError::Interrupted { kept: false },
        }
    }
}

/// Runs the driver to its result, waits for the reader of a stream, and reads the file again for its checksum,
/// unless the batch is stopped first. `completed_after` is set to the time until the last byte was stored, or consumed
/// by the reader of a stream.
async fn run_to_end(
    driver: &mut DownloadDriver<'_, Fetch>,
    member: &mut BatchMember,
    (file, earlier): (&FileRequest, Option<&CompletedFile>),
    started: std::time::Instant,
    completed_after: &mut Option<Duration>,
) -> Result<(), EarlyEnd> {
    let shared = Rc::clone(&member.batch);
    let mut run = std::pin::pin!(async {
        poll_fn(|cx| {
            member.exchange_with_batch(driver);
            let polled = driver.poll(cx).map_err(EarlyEnd::Error);
            let is_of = |record: &CompletedFile| {
                let (total, validator) = driver.transfer.identity.as_ref()?;
                Some(record.matches(*total, validator.as_ref()))
            };
            if earlier.and_then(is_of) == Some(true) { Poll::Ready(Err(EarlyEnd::Unchanged)) } else { polled }
        })
        .await?;
        member.report_load(driver);
        let total = total_size(&driver.logged.machine().status());
        wait_for_reader(&mut driver.transfer.body.store, total).await?;
        *completed_after = Some(started.elapsed());
        reject_html_page(driver, file)?;
        Ok(verify_checksum(driver).await?)
    });
    poll_fn(|cx| match shared.stop_flag.get() {
        Some(stop) => Poll::Ready(Err(EarlyEnd::Stop(stop))),
        None => run.as_mut().poll(cx),
    })
    .await
}

/// Rejects an HTML page (an error page, a captive portal) in place of the file. With a digest the check is
/// superfluous.
fn reject_html_page(driver: &mut DownloadDriver<'_, Fetch>, file: &FileRequest) -> Result<(), DownloadError> {
    let has_digest = file.digests.full_file.is_some() || file.digests.pieces.is_some();
    let Some(url) = file.mirrors.first().map(|mirror| &mirror.url).filter(|_| !has_digest) else { return Ok(()) };
    let content_type = driver.response_meta.as_ref().and_then(|(_, _, meta)| meta.content_type.as_deref());
    let target_name = match &file.target {
        Target::File(path) | Target::ListedFile(path) => Some(path.as_path()),
        Target::Directory(_) | Target::Stdout => None,
    };
    let Some(expected_extension) =
        html_page::expected_extension(url, target_name, content_type, &driver.transfer.body.prefix)
    else {
        return Ok(());
    };
    // The next run must not resume from the page. Bytes that a stream's reader has consumed cannot be discarded.
    if driver.transfer.body.store.window().is_none() {
        driver.transfer.body.store.restart()?;
    }
    Err(DownloadError::HtmlPage { url: url.to_string(), wanted: expected_extension })
}

/// Completes or suspends the file and builds the report.
async fn finish(
    driver: DownloadDriver<'_, Fetch>,
    ended: Result<(), DownloadError>,
    member: &mut BatchMember,
    url: &url::Url,
    policy: &'static str,
    seconds: f64,
    earlier: Option<(&CompletedFile, &Path)>,
) -> Result<Report, DownloadError> {
    let status = driver.logged.machine().status();
    let suggested = driver.transfer.suggested_name();
    let modified = driver.response_meta.as_ref().and_then(|(_, _, meta)| meta.last_modified.clone());
    let DownloadDriver { logged, transfer, mptcp_gate, .. } = driver;
    let Transfer { body, link_stats, observer, resumed_bytes: resumed, .. } = transfer;
    let total = total_size(&status);
    let mut progress = link_stats::progress(
        &status,
        &link_stats,
        |_| None,
        resumed,
        Instant::ZERO + Duration::from_secs_f64(seconds),
    );
    progress.eta_s = None;
    observer.on_progress(&progress);
    // The final name is needed before `finish` renames the file. On an error the name is released for later files.
    let mut store = body.store;
    if earlier.is_some() {
        member.batch.file_names.borrow_mut().settle(member.id);
    } else if ended.is_ok() {
        member.wait_for_final_name(&mut store, suggested.as_deref()).await;
    }
    if let Err(error) = ended {
        member.batch.file_names.borrow_mut().settle(member.id);
        let logged = logged.finish();
        let is_resumable = store.suspend()?;
        tracing::debug!(is_resumable, "the run ends early");
        logged?;
        return Err(error.with_resumable(is_resumable));
    }
    if let Some((record, target_path)) = earlier {
        store.restart()?;
        store.suspend()?;
        logged.finish()?;
        observer.on_message(UNCHANGED_MESSAGE);
        return Ok(unchanged_report(record, Some(target_path), url, policy, seconds));
    }
    let path = store.finish()?;
    if let Some(path) = path.as_deref().filter(|_| member.batch.settings.use_remote_time)
        && let Err(why) = set_modified(path, modified.as_deref())
    {
        observer.on_message(&format!("{}: {why}; the file keeps the time of the download", path.display()));
    }
    // The energy of MPTCP connections is unknown: their subflows use several links, and the shares are not known
    // here.
    let energy_meter = logged.energy_meter.as_ref().filter(|_| !mptcp_gate.is_shared());
    let metered =
        energy_meter.map(|energy_meter| (energy_meter.breakdown(), energy_meter.meter().model().name().to_owned()));
    let radio_energy = |link| metered.as_ref().and_then(|(breakdown, _)| breakdown.radio(link));
    let links: Vec<LinkReport> = link_stats
        .iter()
        .enumerate()
        .map(|(n, stats)| {
            let link = LinkId(n as u16);
            stats.report(link_stats::link_state(&status, link), radio_energy(link))
        })
        .collect();
    logged.finish()?;
    Ok(Report {
        schema: SCHEMA,
        url: url.to_string(),
        bytes: total,
        seconds,
        goodput_mbps: link_stats::mbps(total.saturating_sub(resumed), Duration::from_secs_f64(seconds)),
        policy,
        mptcp: mptcp_gate.report_value(),
        energy_j: metered
            .as_ref()
            .filter(|_| links.iter().any(|link| link.energy_j.is_some()))
            .map(|(breakdown, _)| breakdown.total().as_joules_f64()),
        links,
        energy_model: metered.map(|(_, model)| model),
        battery_j: None,
        battery_w: None,
        link_delta_s: link_stats::end_time_spread(&link_stats),
        wasted_bytes: status.wasted.bytes(),
        cpu_s: link_stats::cpu_seconds(),
        peak_rss_bytes: link_stats::peak_rss(),
        resumed_bytes: resumed,
        path: path.map(|path| path.display().to_string()),
    })
}

/// Report of a file that an earlier run has completed. Its path is spelled like that of a new file at
/// `target_path`.
fn unchanged_report(
    record: &CompletedFile,
    target_path: Option<&Path>,
    url: &url::Url,
    policy: &'static str,
    seconds: f64,
) -> Report {
    let written =
        target_path.zip(record.path.file_name()).map(|(target_path, name)| target_path.with_file_name(name));
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
        cpu_s: link_stats::cpu_seconds(),
        peak_rss_bytes: link_stats::peak_rss(),
        resumed_bytes: record.size,
        path: Some(path.display().to_string()),
    }
}

/// Sets the modification time of a file to its Last-Modified field (RFC 9110 §8.8.2).
fn set_modified(path: &Path, last_modified: Option<&str>) -> Result<(), String> {
    let text = last_modified.ok_or("the server sends no Last-Modified")?;
    let time =
        httpdate::parse_http_date(text).map_err(|_| "the server's Last-Modified is not a valid date".to_owned())?;
    // Devices and pipes are skipped: their modification time does not describe the content.
    if !path.symlink_metadata().is_ok_and(|meta| meta.is_file()) {
        return Ok(());
    }
    let file = std::fs::OpenOptions::new().write(true).open(path);
    file.and_then(|file| file.set_modified(time))
        .map_err(|error| format!("cannot set its modification time: {error}"))
}

/// Size of the file; the received bytes while the size is unknown.
fn total_size(status: &Status) -> u64 {
    status.total.unwrap_or(status.received).bytes()
}

/// Reads the complete file again for its checksum, in steps. Gigabytes on a slow disk take minutes, during which
/// the user may want to stop.
pub(super) async fn verify_checksum(driver: &mut DownloadDriver<'_, Fetch>) -> Result<(), DownloadError> {
    while let Some(checked) = driver.transfer.body.store.check_step()? {
        driver.show_checksum_progress(checked);
        tokio::task::yield_now().await;
    }
    Ok(())
}

/// Waits until the reader of a stream has consumed everything.
async fn wait_for_reader(store: &mut Store, total: u64) -> Result<(), DownloadError> {
    let Some(notify) = store.reader_notify() else { return Ok(()) };
    while store.consumed() < total {
        store.tick(Instant::ZERO)?;
        // The timeout covers a notification that arrived between the check and the wait.
        let _ = tokio::time::timeout(Duration::from_millis(100), notify.notified()).await;
    }
    Ok(())
}

/// Connects a download with its batch: link shares, data budgets, load reports and the final file name.
struct BatchMember {
    batch: Rc<BatchContext>,
    id: usize,
    control: Rc<RefCell<DownloadControl>>,
    /// Shares that were last passed to the machine.
    sent_shares: BTreeMap<LinkId, LinkShare>,
    /// Number of links at the last exchange. A new link needs its share.
    link_count: usize,
    next_report_at: std::time::Instant,
    /// Whether the file has its final name.
    has_final_name: bool,
}

impl BatchMember {
    fn new(shared: Rc<BatchContext>, id: usize, control: Rc<RefCell<DownloadControl>>) -> Self {
        let next_report = std::time::Instant::now();
        Self {
            batch: shared,
            id,
            control,
            sent_shares: BTreeMap::new(),
            link_count: 0,
            next_report_at: next_report,
            has_final_name: false,
        }
    }

    /// Passes changed link shares to the driver, and reports the load of this download to the batch every 100 ms.
    fn exchange_with_batch(&mut self, driver: &mut DownloadDriver<'_, Fetch>) {
        if self.batch.is_single {
            return;
        }
        let links = driver.transfer.uplinks.ids().count();
        if std::mem::take(&mut self.control.borrow_mut().shares_changed) || links != self.link_count {
            self.link_count = links;
            self.forward_shares(driver);
        }
        let now = std::time::Instant::now();
        if now >= self.next_report_at {
            self.next_report_at = now + REPORT_INTERVAL;
            self.report_load(driver);
        }
        if driver.transfer.identity.is_some()
            && !self.has_final_name
            && self.batch.file_names.borrow().is_next(self.id)
        {
            let suggested = driver.transfer.suggested_name();
            self.assign_final_name(&mut driver.transfer.body.store, suggested.as_deref());
        }
    }

    fn forward_shares(&mut self, driver: &mut DownloadDriver<'_, Fetch>) {
        let shares = self.control.borrow().shares.clone();
        let links: Vec<LinkId> = driver.transfer.uplinks.ids().collect();
        for link in links {
            let Some(profile) = driver.transfer.uplinks.profile(link).cloned() else { continue };
            let share = shares.get(&profile.name).copied().unwrap_or_default();
            if self.sent_shares.insert(link, share) == Some(share) {
                continue;
            }
            driver.feed_machine(Input::Share { link, share });
            if let Some(budget) = profile.budget.filter(|_| share != LinkShare::Paused) {
                // Subtracts what the other downloads have carried. While this download holds the link, none of them
                // uses it, so the rest is its own.
                let remaining = budget - self.batch.link_bytes_of_others(self.id, &profile.name);
                driver.lease_link(link, remaining);
            }
        }
    }

    fn report_load(&self, driver: &DownloadDriver<'_, Fetch>) {
        if self.batch.is_single {
            return;
        }
        let status = driver.logged.machine().status();
        let loads = driver.logged.machine().link_loads();
        let links = driver.transfer.uplinks.ids().filter_map(|id| {
            let profile = driver.transfer.uplinks.profile(id)?;
            let load = loads.iter().find(|load| load.link == id).copied();
            if profile.budget.is_some() {
                let bytes = driver.transfer.link_stats.get(usize::from(id.0)).map_or(0, |stats| stats.bytes);
                self.batch.set_link_bytes(self.id, &profile.name, DataSize::from_bytes(bytes));
            }
            Some(JobLinkReport { link_name: profile.name.clone(), has_budget: profile.budget.is_some(), load })
        });
        let links = links.collect();
        let remaining = status.total.map(|total| total - status.received);
        self.control.borrow_mut().report = Some(JobReport { remaining, links });
    }

    /// Assigns the final name of a complete file, after the files before it in the list have theirs.
    async fn wait_for_final_name(&mut self, store: &mut Store, suggested: Option<&str>) {
        if self.has_final_name {
            return;
        }
        let deadline = std::time::Instant::now() + NAME_TIMEOUT;
        while !self.batch.file_names.borrow().is_next(self.id) && std::time::Instant::now() < deadline {
            if let Some(StopReason::Interrupted) = self.batch.stop_flag.get() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.assign_final_name(store, suggested);
    }

    fn assign_final_name(&mut self, store: &mut Store, suggested: Option<&str>) {
        self.has_final_name = true;
        let name = self.batch.file_names.borrow_mut().assign_final(self.id, suggested.map(str::as_ref));
        if let Some(name) = name {
            store.set_final_name(&name.name, name.replace_existing);
        }
    }
}

const UNCHANGED_MESSAGE: &str = "already completed by an earlier run, and unchanged";
const REPORT_INTERVAL: Duration = Duration::from_millis(100);
