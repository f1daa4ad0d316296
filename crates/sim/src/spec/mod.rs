//! Text format of a link: `wifi,rate=80Mbit/s,rtt=20ms,queue=50ms,loss=0.5%`.
//!
//! An argument of the command line or a table of a scenario file becomes a [`LinkSpec`], which is always valid.
//!
//! | field | meaning | default |
//! |---|---|---|
//! | (first word) | name of the link: up to 15 letters, digits, `-`, `_` or `.` | required |
//! | `kind=` | wifi, lte, nr, umts, ethernet, satellite, tunnel, other | from the name: wifi* wlan* lte* wwan* eth* |
//! | `rate=` | downlink rate in bits of IP packets per second | one of rate, trace, medium is required |
//! | `steps=` | later rates: `3s:2Mbit/s+8s:40Mbit/s` | constant |
//! | `trace=` | a mahimahi trace for the downlink | |
//! | `medium=` | half-duplex 802.11: 11g-mixed, 11g, 11b, 11b-rts, 11b-paper; `rate=` and `up=` are then the PHY rates | |
//! | `up=` | uplink rate | as the downlink; with a trace its mean |
//! | `uptrace=` | a mahimahi trace for the uplink | |
//! | `rtt=` | round-trip delay, half in each direction | 0s |
//! | `jitter=` | maximum deviation of each direction's delay; the order is kept | 0s |
//! | `reorder` | jitter may change the order | |
//! | `loss=` | loss in each direction, behind the queue: `0.5%`, or `ge:1%/25%/50%` (see [`Loss`]) | 0% |
//! | `uploss=` | loss on the uplink | as the downlink |
//! | `queue=` | drop-tail limit: a time (at the first rate) or a size | 50ms on Wi-Fi and Ethernet, else 100ms; with codel 1s |
//! | `codel` | CoDel (RFC 8289) at the end of the queue | |
//! | `police=` | a token bucket in front of the queue, one for each direction: `20Mbit/s:64KiB` (see [`PolicerSpec`]) | |
//! | `mtu=` | largest IP packet | 1500B |
//!
//! 1. Parsing does not access files: [`LinkSpec::load`] reads the traces. So a scenario can be checked, listed and
//!    skipped on a machine without the traces.
//! 2. The printed text parses back to the same value.
//!
//! All fields are collected as text in one plain structure (`schema`) and validated in one place. So the command
//! line and the scenario file cannot diverge.

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

/// A rejected link, change or event: the field, its value and what was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: `{value}`: expected {expected}")]
pub struct SpecError {
    /// The field, with the name of the link if it is known.
    pub field: String,
    /// The text found in the field.
    pub value: String,
    /// What was expected instead.
    pub expected: String,
}

impl SpecError {
    pub(crate) fn new(field: &str, value: &str, expected: &str) -> Self {
        Self { field: field.to_string(), value: value.to_string(), expected: expected.to_string() }
    }
}

/// A trace by file name, and its content after loading.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TraceFile {
    /// As written; searched as given and in the directories passed to [`LinkSpec::load`].
    pub path: PathBuf,
    /// The content; `None` before [`LinkSpec::load`]. Shared, because a scenario may run the same link many times.
    pub trace: Option<Arc<Trace>>,
}

/// Capacity from the server to the client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Downlink {
    /// A rate with later changes.
    Rate {
        /// Rate until the first step.
        initial: Bitrate,
        /// Increasing times since the start, each with the rate from then on.
        steps: Vec<(Duration, Bitrate)>,
    },
    /// Delivery opportunities of a recorded link.
    Trace(TraceFile),
    /// An 802.11 channel, shared with the uplink.
    Wifi {
        /// Timing and rates of the standard.
        preset: WifiPreset,
        /// PHY rate of the downlink; `None` for that of the preset.
        phy: Option<Bitrate>,
    },
}

/// Capacity from the client to the server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Uplink {
    /// The same as the downlink, including its changes; if that is a trace, the trace's mean rate.
    SameAsDownlink,
    /// A rate of its own; on an 802.11 channel the client's PHY rate.
    Rate(Bitrate),
    /// Delivery opportunities of a recorded link.
    Trace(TraceFile),
}

/// Queue limit of each direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueLimit {
    /// What the first rate of the direction carries in this time.
    Time(Duration),
    /// A fixed number of bytes.
    Size(DataSize),
}

/// Description of an emulated link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkSpec {
    /// Name of the link in events and reports, and of its interface in the laboratory.
    pub name: String,
    /// Access technology; decides the default queue and the energy model.
    pub kind: LinkKind,
    /// From the server to the client.
    pub downlink: Downlink,
    /// From the client to the server.
    pub uplink: Uplink,
    /// Round-trip delay without queueing; half of it in each direction.
    pub rtt: Duration,
    /// Maximum deviation of each direction's delay.
    pub jitter: Duration,
    /// Whether jitter may change the order of packets.
    pub reorder: bool,
    /// Loss on the downlink, and on the uplink unless [`Self::uplink_loss`] is set.
    pub loss: Loss,
    /// Loss on the uplink; `None` if it follows the downlink.
    pub uplink_loss: Option<Loss>,
    /// Queue limit; `None` for the default of the kind, see [`LinkSpec::queue_limit`].
    pub queue: Option<QueueLimit>,
    /// Whether CoDel manages the queue.
    pub codel: bool,
    /// Policer of each direction; `None` for no limit except the link's rate.
    pub policer: Option<PolicerSpec>,
    /// Largest IP packet; larger ones are dropped.
    pub mtu: DataSize,
}

impl LinkSpec {
    /// A lossless link with the same constant rate in both directions; the kind follows from the name.
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

    /// Reads the traces that the link names. Each is searched as given, then in these directories in order (also
    /// with `.gz`). Links without traces need not be loaded.
    ///
    /// # Errors
    /// If a trace is not found or is invalid.
    pub fn load(&mut self, directories: &[PathBuf]) -> Result<(), TraceError> {
        let down = if let Downlink::Trace(file) = &mut self.downlink { Some(file) } else { None };
        let up = if let Uplink::Trace(file) = &mut self.uplink { Some(file) } else { None };
        for file in [down, up].into_iter().flatten().filter(|wanted| wanted.trace.is_none()) {
            file.trace = Some(Arc::new(Trace::read(&find_trace(&file.path, directories))?));
        }
        Ok(())
    }

    /// Whether all traces that the link names are loaded.
    pub fn is_loaded(&self) -> bool {
        let is_missing = |file: &TraceFile| file.trace.is_none();
        !matches!(&self.downlink, Downlink::Trace(file) if is_missing(file))
            && !matches!(&self.uplink, Uplink::Trace(file) if is_missing(file))
    }

    /// Queue limit, including the default by kind: 50 ms on Wi-Fi and Ethernet, where buffers are short, and 100 ms
    /// elsewhere. With CoDel it is 1 s, because there the limit is only a last resort (RFC 8289 §5.1).
    pub fn queue_limit(&self) -> QueueLimit {
        let default_millis = match self.kind {
            _ if self.codel => 1000,
            LinkKind::Wifi | LinkKind::Ethernet => 50,
            _ => 100,
        };
        self.queue.unwrap_or(QueueLimit::Time(Duration::from_millis(default_millis)))
    }
}

/// The kind that a name suggests, if no kind is given.
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

/// Path of the trace; the name itself if it is not found, so that the error shows what was requested.
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
    /// Accepts a table of fields or the text of the command line.
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
