//! Scenarios of the laboratory and the simulator: links with their events, a download, and the clients under test.
//!
//! A TOML file is parsed into a [`Scenario`], which is always valid; errors name the line.
//!
//! ```toml
//! name = "floor-a"
//! description = "two good links"
//! size = "100MB"
//! protocol = "http"                       # or https
//! runs = 3
//! clients = ["marline", "aria2-s2", "curl"]
//! links = ["wifi,rate=80Mbit/s,rtt=20ms", "lte,rate=61Mbit/s,rtt=50ms"]
//! events = ["3s:wifi=down", "8s:wifi=up"]
//! threshold = { ideal = 1.045 }
//! baseline = { name = "aria2-s2", ideal = 1.062 }
//! ```
//!
//! 1. Several cases may share one file, as `[[case]]` tables with a `name` and what differs. A case takes `links`,
//!    `events`, `size`, `threshold`, `baseline` and `sigma` from the top level unless it sets them itself.
//! 2. Unknown fields are rejected, and so are events, deviations and clients of unknown links.
//! 3. Traces are given by file name and read by [`Case::load`]. So a scenario can be listed, and its rows skipped
//!    with a reason, on a machine without the traces.
//! 4. The same file is used in virtual time and in real time.
//!
//! There is no language of steps: everything that changes over time is a change of a link, and events describe
//! these.

mod client;
mod sample_rates;
mod schema;
mod threshold;

use std::path::{Path, PathBuf};

use marline_core::units::{Bitrate, DataSize, Duration};
use serde::Serialize;

pub use client::{Client, ClientError};
pub use threshold::{Baseline, Threshold};

use crate::lower_bound::ideal_time;
use crate::spec::{LinkEvent, LinkSpec};
use crate::trace::TraceError;

/// Errors of reading a scenario.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The file cannot be read.
    #[error("scenario {}: {source}", file.display())]
    Unreadable {
        /// The scenario file.
        file: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The text is not a valid scenario.
    #[error("{}:{line}: {problem}", file.display())]
    Malformed {
        /// The scenario file, or the name of the scenario.
        file: PathBuf,
        /// Line number, counted from 1.
        line: usize,
        /// What is wrong in this line.
        problem: String,
    },
}

/// A scenario: one or more cases, and the clients that run them.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Scenario {
    /// A short name: letters, digits, `-`, `_` or `.`.
    pub name: String,
    /// One sentence for people; it introduces the report of the laboratory.
    pub description: String,
    /// Protocol of the download, the same for all cases.
    pub protocol: Protocol,
    /// Number of repetitions, at least one.
    pub runs: u32,
    /// Clients in the order of the tables; at least one.
    pub clients: Vec<Client>,
    /// Cases in the order of the file; at least one.
    pub cases: Vec<Case>,
}

/// Protocol of the download.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// HTTP/1.1 without TLS.
    #[default]
    Http,
    /// HTTP/1.1 over TLS.
    Https,
}

/// One set of links with one download.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Case {
    /// A short name; without `[[case]]` tables that of the scenario.
    pub name: String,
    /// The links, at least one; the first one has the default route in the laboratory.
    #[serde(serialize_with = "as_lines")]
    pub links: Vec<LinkSpec>,
    /// Changes of the links during the run.
    pub events: Vec<LinkEvent>,
    /// Number of bytes to download.
    pub size: DataSize,
    /// The result that marline must reach here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threshold: Option<Threshold>,
    /// The best result of another client on such links.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline: Option<Baseline>,
    /// Standard deviation of each link's rate between runs, for links that have one.
    pub sigma: Vec<(String, Bitrate)>,
}

impl Scenario {
    /// Parses the text of a scenario; `file` names it in errors.
    ///
    /// # Errors
    /// The line and the problem.
    pub fn parse(text: &str, file: &Path) -> Result<Self, ScenarioError> {
        schema::parse(text).map_err(|(line, problem)| ScenarioError::Malformed {
            file: file.to_path_buf(),
            line,
            problem,
        })
    }

    /// Reads and parses a file.
    ///
    /// # Errors
    /// If the file cannot be read or is not a valid scenario.
    pub fn read(file: &Path) -> Result<Self, ScenarioError> {
        let text = std::fs::read_to_string(file)
            .map_err(|source| ScenarioError::Unreadable { file: file.to_path_buf(), source })?;
        Self::parse(&text, file)
    }

    /// The case with this name.
    pub fn case(&self, name: &str) -> Option<&Case> {
        self.cases.iter().find(|case| case.name == name)
    }
}

impl Case {
    /// Reads the traces of all links.
    ///
    /// # Errors
    /// If a trace is in none of the directories or is invalid.
    pub fn load(&mut self, directories: &[PathBuf]) -> Result<(), TraceError> {
        self.links.iter_mut().try_for_each(|link| link.load(directories))
    }

    /// The earliest time at which all links together could have carried the download; `None` if never. Traces must
    /// be loaded before.
    pub fn ideal_time(&self) -> Option<Duration> {
        ideal_time(&self.links, &self.events, self.size)
    }

    /// The link that would finish first if it were used alone, which an informed user would choose. Three RTTs
    /// (name or handshake, request, first window) account for the start of a connection, which matters for small
    /// files.
    pub fn best_single_link(&self) -> &LinkSpec {
        let alone_time = |link: &LinkSpec| {
            let carried = ideal_time(std::slice::from_ref(link), &self.events, self.size);
            carried.map_or(Duration::MAX, |time| time.saturating_add(link.rtt * 3))
        };
        self.links.iter().min_by_key(|link| alone_time(link)).expect("a case has a link")
    }

    /// The same case with size, steps and events scaled by `factor`, so that an event half-way through the download
    /// stays half-way. The size is rounded up to whole bytes.
    #[must_use]
    pub fn scaled(&self, factor: f64) -> Self {
        let mut case = self.clone();
        let size = (self.size.bytes() as f64 * factor).ceil();
        case.size = DataSize::from_bytes(size as u64);
        for event in &mut case.events {
            event.at = event.at.mul_f64(factor);
        }
        for link in &mut case.links {
            if let crate::spec::Downlink::Rate { steps, .. } = &mut link.downlink {
                steps.iter_mut().for_each(|(at, _)| *at = at.mul_f64(factor));
            }
        }
        case
    }
}

fn as_lines<S: serde::Serializer>(links: &[LinkSpec], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(links.iter().map(ToString::to_string))
}

#[cfg(test)]
mod tests;
