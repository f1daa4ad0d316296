//! One download, driven: the pump that tells `core::fetch` what happens on sockets and does what it asks.
//!
//! In: a [`Job`]. Out: the file, a [`Report`], and on the way what a [`Watcher`] wants to see.
//!
//! 1. Nothing is sent before the links are chosen and the target can be written.
//! 2. Whatever ends the run early (an error, the user, the time limit) leaves a file that the next run goes on with.
//! 3. The log of decisions is opened when the target is locked, and never is the target itself.
//! 4. A URL on this very machine goes over no link at all.

mod driven;
mod feed;
mod job;
mod joules;
mod limit;
mod lines;
mod links;
mod log;
mod mptcp;
mod network;
mod origins;
mod place;
mod pump;
mod report;
mod sockets;
mod tally;
mod warm;

use std::future::{Future as _, poll_fn};
use std::path::{Path, PathBuf};
use std::task::Poll;
use std::time::Duration;

use marline_core::fetch::{Fetch, MeteredUse, Resume, Status};
use marline_core::link::LinkId;
use marline_core::units::Instant;
use tokio::signal::unix::{Signal, SignalKind, signal};
use url::Url;

pub use crate::store::{Checksum, ParseChecksumError};
pub(crate) use feed::{Audience, Feed, Known, Learnt};
pub use job::{Accounting, GetError, Job, Target, Watcher};
pub use joules::Joules;
pub(crate) use log::log_file;
pub use log::{FetchRecord, StreamRecord};
pub(crate) use network::Network;
pub use network::NetworkError;
pub(crate) use origins::{host_of, is_local};
pub use report::{LinkEnergy, LinkProgress, LinkReport, Progress, Report};

/// Which links may be used.
pub type Links = crate::links::Choice;

use crate::http::{Trust, file_name, suggested};
use crate::power::Watch;
use crate::store::{self, Store};
use limit::Limits;
use links::Uplinks;
use log::Logged;
use mptcp::Together;
use origins::Origins;
use place::Place;
use pump::Pump;
use sockets::Sockets;

/// Downloads a file. Needs a tokio runtime with I/O and time, and does everything on the calling task.
///
/// SIGINT and SIGTERM end it cleanly with [`GetError::Interrupted`].
///
/// # Errors
/// As [`GetError`] lists them. What has arrived is kept where a next run can go on from it.
pub async fn run(job: Job, watcher: &mut dyn Watcher) -> Result<Report, GetError> {
    let started = std::time::Instant::now();
    let mut trust = Trust::new(job.ca_file.as_deref());
    // A file that was named is looked at, whether or not it will be needed.
    if job.ca_file.is_some() || job.urls.iter().any(|url| url.scheme() == "https") {
        trust.config()?;
    }
    let (uplinks, lines) = if job.urls.iter().all(is_local) {
        Uplinks::local(job.links.clone())?
    } else {
        Uplinks::find(job.links.clone())?
    };
    lines.iter().for_each(|line| watcher.line(line));
    if job.config.metered == MeteredUse::Never {
        uplinks.refuse_metered()?;
    }
    let mut sockets = Sockets::new(trust);
    sockets.mptcp = job.mptcp;
    // The file before the log: an older log stays until this run may write at all.
    let place = place_of(&job);
    if let Some(note) = job.urls.first().filter(|_| matches!(job.target, Target::Directory(_))).and_then(url_note) {
        watcher.line(&note);
    }
    if let Some(path) = job.trace.as_deref().filter(|log| is_target(log, place.as_deref())) {
        return Err(GetError::TraceIsTarget { path: path.to_owned() });
    }
    let (store, resume) = open(&job, place.as_deref(), watcher)?;
    let log = match log::create(job.trace.as_deref()) {
        Ok(log) => log,
        Err(why) => {
            // Nothing of the file is left that was not there before.
            store.suspend()?;
            return Err(why);
        }
    };

    let mut config = job.config.clone();
    config.origins = job.urls.len() as u16;
    config.window = store.window();
    let resumed = resume.as_ref().map_or(0, |resume| resume.have.iter().map(|span| span.len().bytes()).sum());
    config.resume = resume;
    let policy = config.policy.name();

    let watch = job.energy.supplies.as_deref().and_then(Watch::start);
    let mut logged: Logged<Fetch> = Logged::new(config, log);
    logged.joules = job.energy.model.clone().map(Joules::new);
    let origins = Origins::new(&job.urls, &job.headers, job.user.as_ref());
    let mut pump = Pump::new(logged, Place::new(store), sockets, origins, uplinks, watcher, started);
    pump.limits = Limits::new(job.limit);
    pump.resumed = resumed;
    pump.uplinks.free_name = matches!(job.target, Target::Directory(_));
    let mut links: Vec<LinkId> = pump.uplinks.ids().collect();
    links.iter().for_each(|link| pump.introduce(*link));
    // Those that cost nothing first: a metered link is told of when it is clear whether it is needed.
    links.sort_by_key(|link| pump.uplinks.profile(*link).is_some_and(|profile| profile.metered));
    if let Some(first) = links.first().filter(|_| job.mptcp) {
        pump.together = Together::over(*first);
    }
    links.into_iter().for_each(|link| pump.link_up(link));
    pump.takes_encoded = true;
    let mut seconds = None;
    let ended = until_end(&mut pump, &job, started, &mut seconds).await;
    let seconds = seconds.unwrap_or_else(|| started.elapsed()).as_secs_f64();
    let drawn = watch.and_then(Watch::finish);
    let mut report = finish(pump, ended, &job, policy, seconds)?;
    report.battery_j = drawn.map(|drawn| drawn.energy.as_joules_f64());
    report.battery_w = drawn.map(|drawn| drawn.power.as_watts_f64());
    Ok(report)
}

/// The file's path, as far as it is known before the first answer; none: standard output.
fn place_of(job: &Job) -> Option<PathBuf> {
    match &job.target {
        Target::Stdout => None,
        Target::File(path) => Some(path.clone()),
        Target::Directory(dir) => {
            let name = job.urls.first().map_or_else(|| "download".to_owned(), |url| file_name(None, url));
            // Where the user named no directory, the file's name is all that there is to say.
            Some(if dir == Path::new(".") { name.into() } else { dir.join(name) })
        }
    }
}

/// Why the file is not named as the URL ends.
fn url_note(url: &Url) -> Option<String> {
    suggested(None, url).note
}

/// Whether a log at this path would be written into the download.
fn is_target(log: &Path, place: Option<&Path>) -> bool {
    match place {
        Some(path) => store::is_of(log, path),
        None => store::is_stdout(log),
    }
}

/// Opens the target and looks for an earlier run.
fn open(job: &Job, place: Option<&Path>, watcher: &mut dyn Watcher) -> Result<(Store, Option<Resume>), GetError> {
    let (mut store, resume) = match place {
        None => (Store::stdout()?, None),
        Some(path) => {
            let suggested = matches!(job.target, Target::Directory(_));
            open_file(path, &job.urls, suggested, watcher)?
        }
    };
    if let Some(checksum) = &job.checksum {
        store.expect(checksum.clone());
    }
    Ok((store, resume))
}

/// `suggested`: the name is the URL's, not the user's.
fn open_file(
    path: &Path,
    urls: &[Url],
    suggested: bool,
    watcher: &mut dyn Watcher,
) -> Result<(Store, Option<Resume>), GetError> {
    let opened = if suggested { Store::open_suggested(path, urls) } else { Store::open(path, urls) }?;
    if let Some(why) = &opened.start_over {
        watcher.line(&why.to_string());
    }
    Ok((opened.store, opened.resume))
}

/// Runs the pump until it has a verdict, waits for a stream's reader, and reads the file again for its checksum; or
/// until the user stops it, or time is up. `whole_after` becomes the time until the last byte was in its place.
async fn until_end(
    pump: &mut Pump<'_, Fetch>,
    job: &Job,
    started: std::time::Instant,
    whole_after: &mut Option<Duration>,
) -> Result<(), GetError> {
    let mut signals: Vec<Signal> = [SignalKind::interrupt(), SignalKind::terminate()]
        .into_iter()
        .filter_map(|kind| signal(kind).ok())
        .collect();
    let mut whole = std::pin::pin!(async {
        poll_fn(|cx| pump.poll(cx)).await?;
        let total = total_of(&pump.logged.machine.status());
        drain(&mut pump.place.store, total).await?;
        *whole_after = Some(started.elapsed());
        check(pump).await
    });
    let run = poll_fn(|cx| {
        if signals.iter_mut().any(|signal| signal.poll_recv(cx).is_ready()) {
            return Poll::Ready(Err(GetError::Interrupted { kept: false }));
        }
        whole.as_mut().poll(cx)
    });
    match job.max_time {
        None => run.await,
        Some(limit) => {
            let url = job.urls.first().map(ToString::to_string).unwrap_or_default();
            let end = (started + limit).into();
            tokio::time::timeout_at(end, run).await.unwrap_or(Err(GetError::TimeUp { url, limit, kept: false }))
        }
    }
}

/// Settles the file and counts everything up.
fn finish(
    pump: Pump<'_, Fetch>,
    ended: Result<(), GetError>,
    job: &Job,
    policy: &'static str,
    seconds: f64,
) -> Result<Report, GetError> {
    let status = pump.logged.machine.status();
    let Pump { logged, place, tallies, watcher, resumed, together, .. } = pump;
    let total = total_of(&status);
    let mut progress =
        tally::progress(&status, &tallies, |_| None, resumed, Instant::ZERO + Duration::from_secs_f64(seconds));
    progress.eta = None;
    watcher.progress(&progress);
    let store = place.store;
    if let Err(error) = ended {
        let logged = logged.finish();
        let kept = store.suspend()?;
        tracing::debug!(kept, "the run ends early");
        logged?;
        return Err(error.with_kept(kept));
    }
    let path = store.finish()?;
    // Which links the subflows of a connection went over is not known here, so nor are their joules.
    let joules = logged.joules.as_ref().filter(|_| !together.is_shared());
    let metered = joules.map(|joules| (joules.account(), joules.meter().model().name().to_owned()));
    let bill = |link| metered.as_ref().and_then(|(account, _)| account.link(link));
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
        url: job.urls.first().map(ToString::to_string).unwrap_or_default(),
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

/// The size of the file; as long as nobody said it, what has come of it.
fn total_of(status: &Status) -> u64 {
    status.total.unwrap_or(status.done).bytes()
}

/// Reads the complete file again for its checksum. In pieces: gigabytes on a slow disk take minutes, in which the user
/// may want to stop.
async fn check(pump: &mut Pump<'_, Fetch>) -> Result<(), GetError> {
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
