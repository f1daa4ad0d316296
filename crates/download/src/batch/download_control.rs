//! What a running download and the batch tell each other. Both run on one thread.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use marline_core::fetch::{LinkLoad, LinkShare};
use marline_core::units::DataSize;

use crate::{DownloadObserver, Progress};

/// One download's side of the batch. Links go by their interfaces' names, as each download numbers them for itself.
#[derive(Debug, Default)]
pub(crate) struct DownloadControl {
    /// What it may use of each link; what is not in it is free.
    pub(crate) shares: BTreeMap<String, LinkShare>,
    /// Something above has changed since the download last looked.
    pub(crate) shares_changed: bool,
    /// What it last reported.
    pub(crate) report: Option<JobReport>,
    /// How it goes, for whoever looks on.
    pub(crate) progress: Progress,
    /// Lines for the user.
    pub(crate) messages: Vec<String>,
    /// What it is called now.
    pub(crate) file_name: String,
}

/// Where a download stands.
#[derive(Clone, Debug)]
pub(crate) struct JobReport {
    pub(crate) remaining: Option<DataSize>,
    pub(crate) links: Vec<JobLinkReport>,
}

/// What it makes of one link.
#[derive(Clone, Debug)]
pub(crate) struct JobLinkReport {
    pub(crate) link_name: String,
    pub(crate) has_budget: bool,
    /// None: it was not told of the link yet.
    pub(crate) load: Option<LinkLoad>,
}

/// A download's watcher: keeps what it shows for the batch.
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

/// Why all downloads are to end early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StopReason {
    /// The user asked for it.
    Interrupted,
    /// The time limit is over.
    TimeLimit,
}

/// Set once, read by every download.
pub(crate) type StopFlag = Cell<Option<StopReason>>;
