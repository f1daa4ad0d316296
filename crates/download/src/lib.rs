//! Downloads over several links at once: `marline get`, and what the proxy reads its media with.
//!
//! A [`Batch`] of files goes in, the files come out, and a [`BatchWatcher`] sees how they get on. Each download tells the
//! machine `marline_core::fetch` what happens on its connections and does what the machine decides; `marline_core::batch`
//! shares the links among several downloads. All of them run on one task.
//!
//! Main types: [`Batch`] and [`Settings`] describe a run, [`run()`] carries it out, [`Report`] is its result, and
//! [`store::Store`] is the file that a crash leaves whole. [`metalink`] reads lists of files with their digests.
//!
//! 1. Nothing is sent before the links are chosen and the target can be written.
//! 2. Whatever ends a run early (an error, the user, the time limit) leaves files that the next run goes on with.
//! 3. The decision log is opened when the target is locked, and never is the target itself.
//! 4. A URL on this host itself uses no link at all.
//!
//! Where to start reading: `batch` (what a run does), `download` (one file), `pump` (its event loop: from a socket's buffer
//! to the file, and back to the machine), then [`store`].

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
pub mod metalink;
mod mptcp;
mod name;
pub mod netrc;
mod network;
mod origins;
mod page;
mod place;
mod pump;
mod report;
mod sockets;
pub mod store;
mod tally;
mod through;
mod traffic;
mod verify;
mod warm;

pub use batch::run;
pub use feed::{Audience, Feed, Known, Learnt};
pub use job::{
    Accounting, Batch, BatchWatcher, CookieFiles, Credentials, Digests, Ended, File, GetError, Kind, Logins,
    Settings, Source, Target, Watcher,
};
pub use joules::Joules;
pub use log::{FetchRecord, StreamRecord};
pub use marline_net::checksum::{Checksum, ParseChecksumError};
pub use name::{Suggested, file_name, safe_name, suggested};
pub use network::Network;
pub use network::NetworkError;
pub use origins::{describes, same_origin};
pub use report::{Failed, FileProgress, LinkEnergy, LinkProgress, LinkReport, Overview, Progress, Report, SCHEMA};
pub use through::{IpVersion, Route};
pub use traffic::{Counted, Flow};
pub use verify::{PieceHash, Pieces};

/// Which links may be used.
pub type Links = marline_net::links::Choice;
