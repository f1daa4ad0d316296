//! Downloads over several links at once, for `marline get` and for the proxy's media segments.
//!
//! A [`Batch`] describes a run, [`run()`] carries it out, and a [`BatchObserver`] receives its progress. Each
//! download is driven by a state machine, `marline_core::fetch`: the driver reports the events of its connections
//! and executes the machine's outputs. `marline_core::batch` divides the links among concurrent downloads. All
//! downloads of a batch run in one task.
//!
//! Main types: [`Batch`] and [`Settings`] describe a run, [`Report`] is its result, and [`store::Store`] is the
//! target file, which survives crashes. [`metalink`] reads lists of files with their mirrors and digests.
//!
//! 1. Nothing is sent before the links are chosen and the target can be written.
//! 2. A run that ends early (an error, the user, the time limit) leaves files that the next run resumes.
//! 3. The decision log is opened after the target is locked, and it is never the target itself.
//! 4. A URL on this host uses no link at all.
//!
//! To read the crate, start with `batch` (one run), then `download` (one file), `driver` (its event loop: from the
//! socket's buffer to the file, and progress to the machine), then [`store`].
//!
//! `machine`, `log` and `energy` wrap the state machine, its decision log and its meter. `connections`, with
//! `connect_options` and `idle_pool`, has the sockets; `uplinks` and `mptcp` decide which links they use, `url_table` with
//! which URL, login and cookies, and `rate_limit` how fast they are read. `context` is what transfers of a program share,
//! and `range_reader` a transfer for the proxy.

mod batch;
mod batch_context;
mod body_sink;
mod connect_options;
mod connections;
mod context;
mod digest_verifier;
mod digests;
mod download;
mod driver;
mod energy;
mod error;
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
pub use digests::{Digests, PieceDigests, PieceHash};
pub use energy::DownloadEnergy;
pub use error::{DownloadError, DownloadErrorKind};
pub use log::{FetchRecord, StreamRecord};
pub use marline_net::checksum::{Checksum, ParseChecksumError};
pub use name::{MAX_NAME_LEN, SuggestedName, file_name, sanitize_name, suggest_name};
pub use range_reader::{KnownResource, RangeDownload, ResourceInfo, StreamObserver};
pub use report::{
    BatchProgress, FailureReport, FileProgress, LinkEnergy, LinkProgress, LinkReport, Progress, Report, SCHEMA,
};
pub use request::{
    Batch, BatchObserver, CookieFiles, Credentials, DownloadObserver, EnergyOptions, FileRequest, FileResult,
    Logins, MirrorUrl, Settings, Target,
};
pub use traffic::{CountingStream, Flow};
pub use url_table::{is_client_description, same_origin};

/// Which links may be used.
pub type Links = marline_net::links::LinkSelection;
