//! Data exchanged between a download and its batch. Both run on one thread, so a shared cell suffices.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use marline_core::fetch::{LinkLoad, LinkShare};
use marline_core::units::DataSize;

use crate::{DownloadObserver, Progress};

/// Shared by one download and the batch. Links are identified by interface name, because each download has its own
/// link IDs.
#[derive(Debug, Default)]
pub(crate) struct DownloadControl {
    /// Share of each link that the download may use; links that are missing are unrestricted.
    pub(crate) shares: BTreeMap<String, LinkShare>,
    /// Whether `shares` has changed since the download last read it.
    pub(crate) shares_changed: bool,
    /// The latest load report, until the batch takes it.
    pub(crate) report: Option<JobReport>,
    /// The latest progress, for the observer of the batch.
    pub(crate) progress: Progress,
    /// Messages for the user, until the batch takes them.
    pub(crate) messages: Vec<String>,
    /// Present name of the file.
    pub(crate) file_name: String,
}

/// Load report of a download.
#[derive(Clone, Debug)]
pub(crate) struct JobReport {
    pub(crate) remaining: Option<DataSize>,
    pub(crate) links: Vec<JobLinkReport>,
}

/// Load of one link, as the download sees it.
#[derive(Clone, Debug)]
pub(crate) struct JobLinkReport {
    pub(crate) link_name: String,
    pub(crate) has_budget: bool,
    /// None: the machine does not know the link yet.
    pub(crate) load: Option<LinkLoad>,
}

/// Observer of a download: stores progress and messages for the batch.
#[derive(Clone, Default)]
pub(crate) struct ObserverBuffer(pub(crate) Rc<RefCell<DownloadControl>>);

impl DownloadObserver for ObserverBuffer {
    fn on_progress(&mut self, progress: &Progress) {
        self.0.borrow_mut().progress = progress.clone();
    }

    fn on_message(&mut self, text: &str) {
        self.0.borrow_mut().messages.push(text.to_owned());
    }
}

/// Why all downloads are stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StopReason {
    /// The user has interrupted the run.
    Interrupted,
    /// The time limit has expired.
    TimeLimit,
}

/// Set once; polled by every download.
pub(crate) type StopFlag = Cell<Option<StopReason>>;
