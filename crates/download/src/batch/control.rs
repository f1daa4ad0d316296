//! What a running download and the batch tell each other. Both run on one thread.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use marline_core::fetch::{LinkLoad, LinkShare};
use marline_core::units::DataSize;

use crate::{Progress, Watcher};

/// One download's side of the batch. Links go by their interfaces' names, as each download numbers them for itself.
#[derive(Debug, Default)]
pub(crate) struct Control {
    /// What it may use of each link; what is not in it is free.
    pub(crate) shares: BTreeMap<String, LinkShare>,
    /// Something above has changed since the download last looked.
    pub(crate) changed: bool,
    /// What it last reported.
    pub(crate) report: Option<Stands>,
    /// How it goes, for whoever looks on.
    pub(crate) progress: Progress,
    /// Lines for the user.
    pub(crate) lines: Vec<String>,
    /// What it is called now.
    pub(crate) name: String,
}

/// Where a download stands.
#[derive(Clone, Debug)]
pub(crate) struct Stands {
    pub(crate) left: Option<DataSize>,
    pub(crate) links: Vec<Standing>,
}

/// What it makes of one link.
#[derive(Clone, Debug)]
pub(crate) struct Standing {
    pub(crate) name: String,
    pub(crate) budgeted: bool,
    /// None: it was not told of the link yet.
    pub(crate) load: Option<LinkLoad>,
}

/// A download's watcher: keeps what it shows for the batch.
#[derive(Clone, Default)]
pub(crate) struct Shown(pub(crate) Rc<RefCell<Control>>);

impl Watcher for Shown {
    fn progress(&mut self, progress: &Progress) {
        self.0.borrow_mut().progress = progress.clone();
    }

    fn line(&mut self, text: &str) {
        self.0.borrow_mut().lines.push(text.to_owned());
    }
}

/// Why all downloads are to end early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// The user asked for it.
    Interrupted,
    /// The time limit is over.
    TimeUp,
}

/// Set once, read by every download.
pub(crate) type Stopping = Cell<Option<Stop>>;
