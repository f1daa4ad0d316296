//! Configuration of the packet thread, and the commands that it takes.

use std::path::PathBuf;

use marline_core::accel::{Config, FetchId};
use tokio::sync::{mpsc::UnboundedSender, oneshot};

use crate::driver::FetchCommand;
use crate::flow_filter::FlowFilter;
use crate::links::AccelLink;
use crate::status::Status;

/// Configuration of an engine.
#[derive(Debug)]
pub struct EngineConfig {
    /// Configuration of the machine.
    pub config: Config,
    /// The links, in the order of their ids.
    pub links: Vec<AccelLink>,
    /// Which flows are accelerated.
    pub flow_filter: FlowFilter,
    /// Where the decision log is written; none: nowhere.
    pub trace: Option<PathBuf>,
    /// Where early ACKs are written down for a crash repair ([`crate::pending_file::pending_path()`]); none: nowhere,
    /// and nothing is repaired after a crash.
    pub pending_file: Option<PathBuf>,
    /// The range client; none: bytes cannot be fetched.
    pub fetch_commands: Option<UnboundedSender<FetchCommand>>,
}

/// A command to the packet thread.
#[derive(Debug)]
pub(super) enum Command {
    Status(oneshot::Sender<Status>),
    Fetched(FetchId, u32, Option<Vec<u8>>),
    Stop,
}
