//! What a measurement leaves behind: outcomes of runs, their statistics, where they were made, and rows for tables.
//!
//! An outcome has the same shape whether virtual or real time made it ([`By`] tells), so that tables, pages and
//! comparisons are written once.

pub(crate) mod energy;
mod host_info;
pub(crate) mod outcome;
mod process;
mod row;
pub mod stats;

pub use host_info::HostInfo;
pub use outcome::{Backend, DownloadOutcome, LinkOutcome, SLOT_S};
pub use process::{ProcessSample, ProcessUsage};
pub use row::ResultRow;
pub(crate) use row::round_to_thousandths;
