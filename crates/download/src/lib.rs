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
mod machine;
mod range_reader;
mod request;
mod energy;
mod rate_limit;
mod messages;
mod uplinks;
mod log;
pub mod metalink;
mod mptcp;
mod name;
pub mod netrc;
mod context;
mod url_table;
mod html_page;
mod body_sink;
mod driver;
mod report;
mod connections;
pub mod store;
mod link_stats;
mod connect_options;
mod traffic;
mod digest_verifier;
mod idle_pool;

pub use batch::run;
pub use range_reader::{StreamObserver, RangeDownload, KnownResource, ResourceInfo};
pub use request::{
    EnergyOptions, Batch, BatchObserver, CookieFiles, Credentials, Digests, FileResult, FileRequest, DownloadError, DownloadErrorKind, Logins,
    Settings, MirrorUrl, Target, DownloadObserver,
};
pub use energy::DownloadEnergy;
pub use log::{FetchRecord, StreamRecord};
pub use marline_net::checksum::{Checksum, ParseChecksumError};
pub use name::{SuggestedName, file_name, sanitize_name, suggest_name};
pub use context::ClientContext;
pub use context::ClientContextError;
pub use url_table::{is_client_description, same_origin};
pub use report::{FailureReport, FileProgress, LinkEnergy, LinkProgress, LinkReport, BatchProgress, Progress, Report, SCHEMA};
pub use connect_options::{IpVersion, ConnectOptions};
pub use traffic::{CountingStream, Flow};
pub use digest_verifier::{PieceHash, PieceDigests};

/// Which links may be used.
pub type Links = marline_net::links::LinkSelection;
