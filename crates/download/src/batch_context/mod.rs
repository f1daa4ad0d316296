//! State that the downloads of a batch share: links, connections, names, cookies, rate limits and data budgets.
//!
//! Its submodules hold what a download and its batch exchange (`download_control`) and the names of all files
//! (`file_names`).

mod download_control;
mod file_names;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use marline_core::fetch::{MeteredUse, Validator};
use marline_core::units::DataSize;
use marline_net::checksum::Checksum;
use marline_net::cookies::CookieJar;
use marline_net::http::TlsContext;
use url::Url;

use super::connections::ConnTable;
use super::context::ClientContext;
use super::error::DownloadError;
use super::rate_limit::RateLimiter;
use super::request::{BatchObserver, FileRequest, Settings};
use super::uplinks::Uplinks;
use crate::store::{CompletedFile, CompletedFiles};
use download_control::StopFlag;

pub(super) use download_control::{DownloadControl, JobLinkReport, JobReport, ObserverBuffer, StopReason};
pub(super) use file_names::{FileNames, NAME_TIMEOUT, NameSource};

/// State that all downloads of a batch share.
pub(super) struct BatchContext {
    pub(super) settings: Settings,
    /// Shared links, names and connections; none: there is only one download.
    context: Option<ClientContext>,
    /// The links of a single download, until it takes them.
    single_uplinks: RefCell<Option<Uplinks>>,
    trust: TlsContext,
    /// Cookies of all downloads.
    pub(super) cookie_jar: Rc<CookieJar>,
    pub(super) rate_limiter: RateLimiter,
    pub(super) file_names: RefCell<FileNames>,
    pub(super) stop_flag: StopFlag,
    pub(super) max_time: Option<Duration>,
    pub(super) is_single: bool,
    /// Files that earlier runs have completed; none: completed files are downloaded again.
    completed_files: Option<RefCell<CompletedFiles>>,
    /// Bytes that each download has carried over each link with a data budget.
    link_bytes: RefCell<BTreeMap<(usize, String), DataSize>>,
}

impl BatchContext {
    /// `started`: when the batch was started.
    pub(super) fn new(
        settings: Settings,
        files: &[FileRequest],
        (max_time, skip_completed): (Option<Duration>, bool),
        started: std::time::Instant,
        observer: &mut dyn BatchObserver,
    ) -> Result<Self, DownloadError> {
        let mut trust = TlsContext::new(settings.ca_file.as_deref());
        let urls = || files.iter().flat_map(|file| &file.mirrors).map(|source| &source.url);
        // A CA file that the user names is read at once, even if it is never needed: an error should not appear
        // later.
        if settings.ca_file.is_some() || urls().any(|url| url.scheme() == "https") {
            trust.config()?;
        }
        let cookie_jar = CookieJar::default();
        for path in &settings.cookie_files.load {
            let cookie_error = |error| DownloadError::Cookies { path: path.clone(), error, done: "loaded" };
            let skipped = cookie_jar.load(path).map_err(cookie_error)?;
            if let Some(first) = skipped.first() {
                let path = path.display();
                observer.on_message(
                    None,
                    &format!(
                        "{path}: {} lines without a cookie are skipped, the first is line {first}",
                        skipped.len()
                    ),
                );
            }
        }
        let (uplinks, lines) = if urls().all(|url| settings.connect_options.is_local(url)) {
            Uplinks::local(settings.links.clone())?
        } else {
            Uplinks::find(settings.links.clone())?
        };
        lines.iter().for_each(|line| observer.on_message(None, line));
        if settings.config.metered == MeteredUse::Never {
            uplinks.require_unmetered()?;
        }
        let is_single = files.len() < 2;
        let rate_limiter = RateLimiter::new(settings.rate_limit, started);
        let (context, links) = if is_single {
            (None, Some(uplinks))
        } else {
            (Some(ClientContext::from_uplinks(settings.links.clone(), uplinks, trust.clone())), None)
        };
        Ok(Self {
            settings,
            context,
            single_uplinks: RefCell::new(links),
            trust,
            cookie_jar: Rc::new(cookie_jar),
            rate_limiter,
            file_names: RefCell::default(),
            stop_flag: Cell::new(None),
            max_time,
            is_single,
            completed_files: skip_completed.then(|| RefCell::new(CompletedFiles::load())),
            link_bytes: RefCell::default(),
        })
    }

    /// Follows changes of the shared links, names and connections, without an end.
    pub(super) async fn follow_links(&self) {
        match &self.context {
            Some(context) => context.run().await,
            None => std::future::pending().await,
        }
    }

    /// The links for a download of this URL: none but this host for a local URL.
    pub(super) fn uplinks_for(&self, url: &Url) -> Result<Uplinks, DownloadError> {
        match (&self.context, self.single_uplinks.take()) {
            (Some(context), _) => Ok(context.uplinks_for(self.settings.connect_options.is_local(url))?),
            (None, Some(uplinks)) => Ok(uplinks),
            (None, None) => Ok(Uplinks::local(self.settings.links.clone())?.0),
        }
    }

    /// The record of a file that an earlier run has completed at this path, if the file has not changed since.
    pub(super) fn find_completed(&self, file: &FileRequest, target_path: Option<&Path>) -> Option<CompletedFile> {
        let completed = self.completed_files.as_ref()?.borrow();
        completed.find(&file.mirrors.first()?.url, target_path?).cloned()
    }

    /// Records a completed file, so that a later run can skip it.
    pub(super) fn add_completed(
        &self,
        of: (&Url, &Path),
        path: &Path,
        validator: Option<Validator>,
        digest: Option<&Checksum>,
    ) {
        if let Some(completed) = &self.completed_files {
            completed.borrow_mut().add(of, path, validator, digest);
        }
    }

    /// Writes the cookies to the file that the user named.
    pub(super) fn save_cookies(&self) -> Result<(), DownloadError> {
        let Some(path) = &self.settings.cookie_files.save else { return Ok(()) };
        self.cookie_jar.save(path).map_err(|error| DownloadError::Cookies {
            path: path.clone(),
            error,
            done: "saved",
        })
    }

    /// A connection table for a download.
    pub(super) fn connections_for(&self, file: &FileRequest) -> ConnTable {
        let mut conns = match &self.context {
            None => ConnTable::new(self.trust.clone()),
            Some(context) => {
                let https =
                    file.mirrors.iter().find(|mirror| mirror.url.scheme() == "https").or(file.mirrors.first());
                let trust = https.map(|mirror| context.trust_for(&mirror.url)).unwrap_or_default();
                context.connections(trust)
            }
        };
        conns.mptcp = self.settings.mptcp;
        conns.connect_options = self.settings.connect_options.clone();
        conns
    }

    /// Sets how many bytes a download has carried over a link with a data budget.
    pub(super) fn set_link_bytes(&self, id: usize, link: &str, bytes: DataSize) {
        self.link_bytes.borrow_mut().insert((id, link.to_owned()), bytes);
    }

    /// Bytes that the other downloads have carried over the link.
    pub(super) fn link_bytes_of_others(&self, id: usize, link: &str) -> DataSize {
        let carried = self.link_bytes.borrow();
        carried.iter().filter(|((other, name), _)| *other != id && name == link).map(|(_, bytes)| *bytes).sum()
    }
}
