//! A scenario: links, what happens to them, the work, and who does it.
//!
//! In: a TOML file. Out: a [`Scenario`], which cannot be wrong; or the line that is.
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
//! 1. Several cases may share one file: `[[case]]` tables with a `name` and whatever differs; `links`, `events`,
//!    `size`, `threshold`, `baseline` and `sigma` that a case does not name are taken from the top.
//! 2. Unknown fields are refused, and so are events and deviations of links that are not there.
//! 3. Traces are names of files; they are looked for by [`Case::load`], so that a scenario can be listed, and its rows
//!    skipped with the reason, where the traces are absent.
//! 4. The same file runs in virtual time and in real time; nothing in it knows which.
//!
//! A language of steps was not used: what happens over time is what the links do, and that is what events are.

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

/// Why a scenario was refused.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The file cannot be read.
    #[error("scenario {}: {source}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The text is no scenario.
    #[error("{}:{line}: {problem}", file.display())]
    Malformed {
        /// The file, or the scenario's name.
        file: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
}

/// Links and work, and who does it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Scenario {
    /// A short name: letters, digits, `-`, `_` or `.`.
    pub name: String,
    /// One sentence for people.
    pub description: String,
    /// How the file is asked for.
    pub protocol: Protocol,
    /// Repetitions, at least one.
    pub runs: u32,
    /// Who downloads, in the order of the tables; at least one.
    pub clients: Vec<Client>,
    /// At least one.
    pub cases: Vec<Case>,
}

/// How the file is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// HTTP/1.1 in the clear.
    #[default]
    Http,
    /// Over TLS.
    Https,
}

/// One set of links with one piece of work.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Case {
    /// Short; of a file without cases: the scenario's.
    pub name: String,
    /// The links, the first one being the default route in the lab; at least one.
    #[serde(serialize_with = "as_lines")]
    pub links: Vec<LinkSpec>,
    /// What happens to them.
    pub events: Vec<LinkEvent>,
    /// How much there is to download.
    pub size: DataSize,
    /// What is asked of marline here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threshold: Option<Threshold>,
    /// The best other client that was measured on such links.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline: Option<Baseline>,
    /// Standard deviation of each link's rate between runs, for links that have one.
    pub sigma: Vec<(String, Bitrate)>,
}

impl Scenario {
    /// Reads a scenario's text; `file` names it in errors.
    ///
    /// # Errors
    /// The line and what is wrong with it.
    pub fn parse(text: &str, file: &Path) -> Result<Self, ScenarioError> {
        schema::parse(text).map_err(|(line, problem)| ScenarioError::Malformed {
            file: file.to_path_buf(),
            line,
            problem,
        })
    }

    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be read or is no scenario.
    pub fn read(file: &Path) -> Result<Self, ScenarioError> {
        let text = std::fs::read_to_string(file)
            .map_err(|source| ScenarioError::Unreadable { file: file.to_path_buf(), source })?;
        Self::parse(&text, file)
    }

    /// The case of this name.
    pub fn case(&self, name: &str) -> Option<&Case> {
        self.cases.iter().find(|case| case.name == name)
    }
}

impl Case {
    /// Reads the traces that the links name.
    ///
    /// # Errors
    /// When a trace is in none of the directories, or is no trace.
    pub fn load(&mut self, directories: &[PathBuf]) -> Result<(), TraceError> {
        self.links.iter_mut().try_for_each(|link| link.load(directories))
    }

    /// The earliest moment at which all links together could have carried the work; none: never. The traces must have
    /// been loaded.
    pub fn ideal_time(&self) -> Option<Duration> {
        ideal_time(&self.links, &self.events, self.size)
    }

    /// The link that alone would be done first: what a person who knew would have used. Three round trips (name or
    /// handshake, request, first window) stand for the start of a connection, which decides for small files.
    pub fn best_single_link(&self) -> &LinkSpec {
        let alone_time = |link: &LinkSpec| {
            let carried = ideal_time(std::slice::from_ref(link), &self.events, self.size);
            carried.map_or(Duration::MAX, |time| time.saturating_add(link.rtt * 3))
        };
        self.links.iter().min_by_key(|link| alone_time(link)).expect("a case has a link")
    }

    /// The same case with less to do: work, steps and events by this factor, so that what happens half-way still
    /// happens half-way. Sizes round up to a byte.
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
