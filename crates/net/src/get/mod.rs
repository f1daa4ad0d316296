//! Downloads, driven: a [`Batch`] of files goes in, the files come out, and what a [`BatchWatcher`] wants to see.
//!
//! Each download is a pump that tells `core::fetch` what happens on sockets and does what it asks (`download`). All of
//! them run on one task, and `core::batch` shares the links among them (`batch`).
//!
//! 1. Nothing is sent before the links are chosen and the target can be written.
//! 2. Whatever ends a run early (an error, the user, the time limit) leaves files that the next run goes on with.
//! 3. The log of decisions is opened when the target is locked, and never is the target itself.
//! 4. A URL on this very machine goes over no link at all.

mod batch;
mod download;
mod driven;
mod feed;
mod job;
mod joules;
mod limit;
mod lines;
mod links;
mod log;
mod mptcp;
pub mod netrc;
mod network;
mod origins;
mod page;
mod place;
mod pump;
mod report;
mod sockets;
mod tally;
mod through;
mod traffic;
mod verify;
mod warm;

pub use crate::store::{Checksum, ParseChecksumError};
pub use batch::run;
pub(crate) use feed::{Audience, Feed, Known, Learnt};
pub use job::{
    Accounting, Batch, BatchWatcher, CookieFiles, Credentials, Digests, Ended, File, GetError, Kind, Logins,
    Settings, Source, Target, Watcher,
};
pub use joules::Joules;
pub use log::{FetchRecord, StreamRecord};
pub(crate) use network::Network;
pub use network::NetworkError;
pub(crate) use origins::{describes, same_origin};
pub use report::{Failed, FileProgress, LinkEnergy, LinkProgress, LinkReport, Overview, Progress, Report, SCHEMA};
pub use through::{IpVersion, Route};
pub(crate) use traffic::{Counted, Flow};
pub use verify::{PieceHash, Pieces};

/// Which links may be used.
pub type Links = crate::links::Choice;
