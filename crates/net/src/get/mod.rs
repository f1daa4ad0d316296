//! One download, driven: the pump that tells `core::fetch` what happens on sockets and does what it asks.

mod job;
mod report;

pub use job::{Checksum, GetError, Job, Links, ParseChecksumError, Target, Watcher};
pub use report::{LinkProgress, LinkReport, Progress, Report};
