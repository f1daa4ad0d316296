//! Results of measurements: outcomes of runs, statistics, the machine they were measured on, and rows for tables.
//!
//! An outcome has the same form whether it was simulated or measured ([`Backend`] tells which), so that tables,
//! pages and comparisons exist only once.

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
