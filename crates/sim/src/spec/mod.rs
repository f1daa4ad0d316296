//! How a link is written: `wifi,rate=80Mbit/s,rtt=20ms,queue=50ms,loss=0.5%`.
//!
//! In: a line of the command line, or a table of a scenario file. Out: a [`LinkSpec`], which cannot be wrong.
//!
//! | field | meaning | when absent |
//! |---|---|---|
//! | (first word) | the link's name: up to 15 letters, digits, `-`, `_` or `.` | required |
//! | `kind=` | wifi, lte, nr, umts, ethernet, satellite, tunnel, other | from the name: wifi* wlan* lte* wwan* eth* |
//! | `rate=` | bits of IP packets per second, towards the client | one of rate, trace, medium is required |
//! | `steps=` | the rate later: `3s:2Mbit/s+8s:40Mbit/s` | constant |
//! | `trace=` | a mahimahi trace, towards the client | |
//! | `medium=` | half-duplex 802.11: 11g-mixed, 11g, 11b, 11b-rts, 11b-paper; `rate=` and `up=` then name the PHY rates | |
//! | `up=` | the rate from the client | as towards the client; with a trace: its mean |
//! | `uptrace=` | a mahimahi trace, from the client | |
//! | `rtt=` | delay of both ways together, half each | 0s |
//! | `jitter=` | each way's delay is off by up to this much, either way; order is kept | 0s |
//! | `reorder` | jitter may change the order | |
//! | `loss=` | each way, after the queue: `0.5%`, or `ge:1%/25%/50%` (see [`Loss`]) | 0% |
//! | `uploss=` | the same from the client | as towards the client |
//! | `queue=` | drop-tail limit: a time (bytes at the first rate) or a size | 50ms on Wi-Fi and Ethernet, else 100ms; with codel 1s |
//! | `codel` | RFC 8289 where packets leave the queue | |
//! | `police=` | a token bucket in front of the queue, one for each direction: `20Mbit/s:64KiB` (see [`Police`]) | |
//! | `mtu=` | the largest IP packet | 1500B |
//!
//! 1. Nothing touches a file here: [`LinkSpec::load`] reads the traces, so that a scenario can be checked, listed and
//!    skipped on a machine that has none of them.
//! 2. What is printed reads back as the same value.
//!
//! The fields are kept as written in one plain structure (`schema`) and judged in one place, so that the command
//! line and the scenario file cannot come to differ.

mod event;
mod format;
mod loss;
mod policer;
mod schema;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use marline_core::link::LinkKind;
use marline_core::units::{Bitrate, DataSize, Duration};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor, value::MapAccessDeserializer};
use serde::ser::{Serialize, Serializer};

pub use event::{LinkEvent, LinkEventKind};
pub use loss::Loss;
pub use policer::PolicerSpec;

use crate::trace::{Trace, TraceError};
use crate::wifi_mac::WifiPreset;
use schema::LinkFields;

/// Why a written link, change or event was refused: the field, its value and what was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: `{value}`: expected {expected}")]
pub struct SpecError {
    /// The field, with the link's name where it is known.
    pub field: String,
    /// What was written.
    pub value: String,
    /// What should have been written.
    pub expected: String,
}

impl SpecError {
    pub(crate) fn new(field: &str, value: &str, expected: &str) -> Self {
        Self { field: field.to_string(), value: value.to_string(), expected: expected.to_string() }
    }
}

/// A trace by its file's name, and its content once it was loaded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TraceFile {
    /// As written; looked for as it stands and in the directories given to [`LinkSpec::load`].
    pub path: PathBuf,
    /// Shared, because a scenario may run the same link many times.
    pub trace: Option<Arc<Trace>>,
}

/// What carries the packets towards the client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Downlink {
    /// A rate, and what it becomes later.
    Rate {
        /// From the start.
        initial: Bitrate,
        /// Times since the start, increasing, and the rate from then on.
        steps: Vec<(Duration, Bitrate)>,
    },
    /// A recorded link.
    Trace(TraceFile),
    /// 802.11, shared with the packets from the client.
    Wifi {
        /// Timing and rates.
        preset: WifiPreset,
        /// PHY rate towards the client; none: the preset's.
        phy: Option<Bitrate>,
    },
}

/// What carries the packets from the client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Uplink {
    /// As towards the client, and it follows when that changes; beside a trace: the trace's mean rate.
    SameAsDownlink,
    /// A rate of its own; on a medium: the client's PHY rate.
    Rate(Bitrate),
    /// A recorded link.
    Trace(TraceFile),
}

/// How much may wait in each direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueLimit {
    /// What the first rate of that direction carries in this time.
    Time(Duration),
    /// Bytes.
    Size(DataSize),
}

/// A link of the emulated world.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkSpec {
    /// Names the link in events and reports, and its interface in the lab.
    pub name: String,
    /// The access technology.
    pub kind: LinkKind,
    /// Towards the client.
    pub downlink: Downlink,
    /// From the client.
    pub uplink: Uplink,
    /// Both ways together.
    pub rtt: Duration,
    /// Each way's delay differs by up to this much.
    pub jitter: Duration,
    /// Whether jitter may change the order.
    pub reorder: bool,
    /// Towards the client, and from it too unless [`Self::up_loss`] says otherwise.
    pub loss: Loss,
    /// From the client; none: as towards the client, and it follows when that changes.
    pub uplink_loss: Option<Loss>,
    /// None: by kind, see [`LinkSpec::queue_limit`].
    pub queue: Option<QueueLimit>,
    /// Whether CoDel keeps the queue short.
    pub codel: bool,
    /// What each direction may carry; none: no limit but the link's own rate.
    pub policer: Option<PolicerSpec>,
    /// The largest IP packet.
    pub mtu: DataSize,
}

impl LinkSpec {
    /// A link of constant rate, the same both ways, without loss; kind by name.
    pub fn constant(name: &str, rate: Bitrate, rtt: Duration) -> Self {
        Self {
            name: name.to_string(),
            kind: kind_from_name(name),
            downlink: Downlink::Rate { initial: rate, steps: Vec::new() },
            uplink: Uplink::SameAsDownlink,
            rtt,
            jitter: Duration::ZERO,
            reorder: false,
            loss: Loss::NONE,
            uplink_loss: None,
            queue: None,
            codel: false,
            policer: None,
            mtu: DataSize::from_bytes(1500),
        }
    }

    /// Reads the traces that the link names, each as it stands or from the first of these directories that has it
    /// (also with `.gz`). Links without traces need no loading.
    ///
    /// # Errors
    /// When a trace is in none of the places, or is no trace.
    pub fn load(&mut self, directories: &[PathBuf]) -> Result<(), TraceError> {
        let down = if let Downlink::Trace(file) = &mut self.downlink { Some(file) } else { None };
        let up = if let Uplink::Trace(file) = &mut self.uplink { Some(file) } else { None };
        for file in [down, up].into_iter().flatten().filter(|wanted| wanted.trace.is_none()) {
            file.trace = Some(Arc::new(Trace::read(&find_trace(&file.path, directories))?));
        }
        Ok(())
    }

    /// Whether every trace that the link names was loaded.
    pub fn is_loaded(&self) -> bool {
        let is_missing = |file: &TraceFile| file.trace.is_none();
        !matches!(&self.downlink, Downlink::Trace(file) if is_missing(file))
            && !matches!(&self.uplink, Uplink::Trace(file) if is_missing(file))
    }

    /// The limit of the queues, the default by kind included: 50 ms on Wi-Fi and Ethernet, where buffers are short,
    /// 100 ms elsewhere; under CoDel 1 s, because there the limit is only a last resort (RFC 8289 §5.1).
    pub fn queue_limit(&self) -> QueueLimit {
        let default_millis = match self.kind {
            _ if self.codel => 1000,
            LinkKind::Wifi | LinkKind::Ethernet => 50,
            _ => 100,
        };
        self.queue.unwrap_or(QueueLimit::Time(Duration::from_millis(default_millis)))
    }
}

/// The kind that a name suggests; used only where no kind is written.
fn kind_from_name(name: &str) -> LinkKind {
    let prefixes = [
        ("wifi", LinkKind::Wifi),
        ("wlan", LinkKind::Wifi),
        ("lte", LinkKind::Lte),
        ("wwan", LinkKind::Lte),
        ("eth", LinkKind::Ethernet),
    ];
    prefixes.iter().find(|(start, _)| name.starts_with(start)).map_or(LinkKind::Other, |(_, kind)| *kind)
}

/// Where the trace is; the name itself if it is nowhere, so that the error shows what was asked for.
fn find_trace(file: &Path, directories: &[PathBuf]) -> PathBuf {
    let gzipped = |path: &Path| {
        let mut name = path.as_os_str().to_os_string();
        name.push(".gz");
        PathBuf::from(name)
    };
    std::iter::once(file.to_path_buf())
        .chain(directories.iter().map(|directory| directory.join(file)))
        .flat_map(|path| [gzipped(&path), path].into_iter().rev())
        .find(|path| path.is_file())
        .unwrap_or_else(|| file.to_path_buf())
}

impl FromStr for LinkSpec {
    type Err = SpecError;

    fn from_str(s: &str) -> Result<Self, SpecError> {
        LinkFields::from_line(s)?.validate()
    }
}

impl fmt::Display for LinkSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&LinkFields::from_spec(self).to_line())
    }
}

impl Serialize for LinkSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        LinkFields::from_spec(self).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for LinkSpec {
    /// From a table of fields or from the line of the command line.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LinkSpecVisitor)
    }
}

struct LinkSpecVisitor;

impl<'de> Visitor<'de> for LinkSpecVisitor {
    type Value = LinkSpec;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a link, as a table or as a line such as `wifi,rate=80Mbit/s,rtt=20ms`")
    }

    fn visit_str<E: Error>(self, line: &str) -> Result<LinkSpec, E> {
        line.parse().map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<LinkSpec, A::Error> {
        LinkFields::deserialize(MapAccessDeserializer::new(map))?.validate().map_err(A::Error::custom)
    }
}

#[cfg(test)]
mod tests;
