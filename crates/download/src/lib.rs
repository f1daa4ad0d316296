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
mod body_sink;
mod connect_options;
mod connections;
mod context;
mod digest_verifier;
mod download;
mod driver;
mod energy;
mod html_page;
mod idle_pool;
mod link_stats;
mod log;
mod machine;
mod messages;
pub mod metalink;
mod mptcp;
mod name;
pub mod netrc;
mod range_reader;
mod rate_limit;
mod report;
mod request;
pub mod store;
mod traffic;
mod uplinks;
mod url_table;

pub use batch::run;
pub use connect_options::{ConnectOptions, IpVersion};
pub use context::ClientContext;
pub use context::ClientContextError;
pub use digest_verifier::{PieceDigests, PieceHash};
pub use energy::DownloadEnergy;
pub use log::{FetchRecord, StreamRecord};
pub use marline_net::checksum::{Checksum, ParseChecksumError};
pub use name::{SuggestedName, file_name, sanitize_name, suggest_name};
pub use range_reader::{KnownResource, RangeDownload, ResourceInfo, StreamObserver};
pub use report::{
    BatchProgress, FailureReport, FileProgress, LinkEnergy, LinkProgress, LinkReport, Progress, Report, SCHEMA,
};
pub use request::{
    Batch, BatchObserver, CookieFiles, Credentials, Digests, DownloadError, DownloadErrorKind, DownloadObserver,
    EnergyOptions, FileRequest, FileResult, Logins, MirrorUrl, Settings, Target,
};
pub use traffic::{CountingStream, Flow};
pub use url_table::{is_client_description, same_origin};

/// Which links may be used.
pub type Links = marline_net::links::LinkSelection;
