//! Fields of a link as text, with their validation.
//!
//! 1. A field may be given once. Unknown fields are rejected with the list of known ones.
//! 2. A field with its default value is not printed.
//!
//! The fields are not parsed directly into their types. Whether a field is allowed depends on others (a rate beside
//! a trace), and the fields of a table come in any order.

use std::path::PathBuf;

use marline_core::units::{Bitrate, DataSize, Duration, parse_duration};
use serde::{Deserialize, Serialize};

use super::format::{format_duration, format_rate, format_size};
use super::{Downlink, LinkSpec, Loss, PolicerSpec, QueueLimit, SpecError, TraceFile, Uplink, kind_from_name};

/// Fields of a link as text; `None` if absent.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LinkFields {
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    medium: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rate: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    steps: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    trace: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    up: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    uptrace: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rtt: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    jitter: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    loss: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    uploss: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    queue: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    police: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mtu: Option<String>,
    #[serde(default, skip_serializing_if = "is_false")]
    reorder: bool,
    #[serde(default, skip_serializing_if = "is_false")]
    codel: bool,
}

const FIELDS: &str = "kind=, medium=, rate=, steps=, trace=, up=, uptrace=, rtt=, jitter=, loss=, uploss=, queue=, \
                      police=, mtu=, reorder or codel";

impl LinkFields {
    /// Splits a line into its fields.
    pub(super) fn from_line(line: &str) -> Result<Self, SpecError> {
        let mut parts = line.split(',');
        let mut fields = Self { name: parts.next().unwrap_or("").to_string(), ..Self::default() };
        for part in parts {
            fields.set_field(part)?;
        }
        Ok(fields)
    }

    /// Joins the fields to a line.
    pub(super) fn to_line(&self) -> String {
        let fields = [
            ("kind", &self.kind),
            ("medium", &self.medium),
            ("rate", &self.rate),
            ("steps", &self.steps),
            ("trace", &self.trace),
            ("up", &self.up),
            ("uptrace", &self.uptrace),
            ("rtt", &self.rtt),
            ("jitter", &self.jitter),
            ("loss", &self.loss),
            ("uploss", &self.uploss),
            ("queue", &self.queue),
            ("police", &self.police),
            ("mtu", &self.mtu),
        ];
        let mut line = self.name.clone();
        for (key, value) in fields {
            if let Some(value) = value {
                line.push_str(&format!(",{key}={value}"));
            }
        }
        for (flag, on) in [("reorder", self.reorder), ("codel", self.codel)] {
            if on {
                line.push_str(&format!(",{flag}"));
            }
        }
        line
    }

    /// Fields of a link, without those that have their defaults.
    pub(super) fn from_spec(spec: &LinkSpec) -> Self {
        let path_text = |trace: &TraceFile| Some(trace.path.display().to_string());
        let nonzero_time = |time: Duration| (!time.is_zero()).then(|| format_duration(time));
        let mut fields = Self {
            name: spec.name.clone(),
            kind: (spec.kind != kind_from_name(&spec.name)).then(|| spec.kind.to_string()),
            rtt: nonzero_time(spec.rtt),
            jitter: nonzero_time(spec.jitter),
            loss: (spec.loss != Loss::NONE).then(|| spec.loss.to_string()),
            uploss: spec.uplink_loss.map(|loss| loss.to_string()),
            queue: spec.queue.map(|queue| match queue {
                QueueLimit::Time(time) => format_duration(time),
                QueueLimit::Size(size) => format_size(size),
            }),
            police: spec.policer.map(|police| police.to_string()),
            mtu: (spec.mtu != DEFAULT_MTU).then(|| format_size(spec.mtu)),
            reorder: spec.reorder,
            codel: spec.codel,
            ..Self::default()
        };
        match &spec.downlink {
            Downlink::Rate { initial: first, steps } => {
                fields.rate = Some(format_rate(*first));
                let step =
                    |(at, rate): &(Duration, Bitrate)| format!("{}:{}", format_duration(*at), format_rate(*rate));
                let steps: Vec<String> = steps.iter().map(step).collect();
                fields.steps = (!steps.is_empty()).then(|| steps.join("+"));
            }
            Downlink::Trace(trace) => fields.trace = path_text(trace),
            Downlink::Wifi { preset, phy } => {
                fields.medium = Some(preset.to_string());
                fields.rate = phy.map(format_rate);
            }
        }
        match &spec.uplink {
            Uplink::SameAsDownlink => {}
            Uplink::Rate(rate) => fields.up = Some(format_rate(*rate)),
            Uplink::Trace(trace) => fields.uptrace = path_text(trace),
        }
        fields
    }

    /// Checks all fields and builds the link.
    pub(super) fn validate(&self) -> Result<LinkSpec, SpecError> {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if !(1..=15).contains(&self.name.len()) || !self.name.chars().all(is_allowed) {
            let expected =
                "a name of 1 to 15 letters, digits, `-`, `_` or `.`, as an interface has, before the fields";
            return Err(SpecError::new("link", &self.name, expected));
        }
        let spec = LinkSpec {
            name: self.name.clone(),
            kind: self.field("kind", &self.kind)?.unwrap_or_else(|| kind_from_name(&self.name)),
            downlink: self.downlink()?,
            uplink: self.uplink()?,
            rtt: self.time("rtt", &self.rtt)?.unwrap_or_default(),
            jitter: self.time("jitter", &self.jitter)?.unwrap_or_default(),
            reorder: self.reorder,
            loss: self.field("loss", &self.loss)?.unwrap_or(Loss::NONE),
            uplink_loss: self.field("uploss", &self.uploss)?,
            queue: self.queue()?,
            codel: self.codel,
            policer: self.field("police", &self.police)?,
            mtu: self.field("mtu", &self.mtu)?.unwrap_or(DEFAULT_MTU),
        };
        if !MTU_RANGE.contains(&spec.mtu.bytes()) {
            return Err(self.field_error("mtu", &self.mtu, "a size from 576B to 65535B"));
        }
        if spec.jitter > spec.rtt / 2 {
            return Err(self.field_error(
                "jitter",
                &self.jitter,
                "at most half the rtt, or packets would arrive before they are sent",
            ));
        }
        if spec.reorder && spec.jitter.is_zero() {
            return Err(SpecError::new(&self.field_path("reorder"), "reorder", "reorder only with jitter="));
        }
        Ok(spec)
    }

    fn downlink(&self) -> Result<Downlink, SpecError> {
        let rate = self.rate("rate", &self.rate)?;
        let carrier = match (&self.trace, &self.medium) {
            (Some(_), Some(_)) => return Err(self.field_error("trace", &self.trace, "no medium= beside a trace")),
            (Some(_), None) if rate.is_some() => {
                return Err(self.field_error("rate", &self.rate, "no rate= beside a trace, which sets the rate"));
            }
            (Some(file), None) => Downlink::Trace(self.trace_file("trace", file)?),
            (None, Some(_)) => match self.field("medium", &self.medium)? {
                Some(preset) => Downlink::Wifi { preset, phy: rate },
                None => return Err(self.field_error("medium", &self.medium, "a medium")),
            },
            (None, None) => Downlink::Rate {
                initial: rate.ok_or_else(|| {
                    SpecError::new(&self.field_path("rate"), "", "rate= (such as rate=20Mbit/s), trace= or medium=")
                })?,
                steps: self.steps()?,
            },
        };
        if self.steps.is_some() && !matches!(carrier, Downlink::Rate { .. }) {
            return Err(self.field_error(
                "steps",
                &self.steps,
                "steps= only beside a rate= and without trace or medium",
            ));
        }
        Ok(carrier)
    }

    fn uplink(&self) -> Result<Uplink, SpecError> {
        match (self.rate("up", &self.up)?, &self.uptrace) {
            (None, None) => Ok(Uplink::SameAsDownlink),
            (Some(rate), None) => Ok(Uplink::Rate(rate)),
            (None, Some(file)) if self.medium.is_none() => Ok(Uplink::Trace(self.trace_file("uptrace", file)?)),
            (None, Some(_)) => Err(self.field_error("uptrace", &self.uptrace, "no uptrace= beside a medium")),
            (Some(_), Some(_)) => Err(self.field_error("uptrace", &self.uptrace, "either up= or uptrace=")),
        }
    }

    fn steps(&self) -> Result<Vec<(Duration, Bitrate)>, SpecError> {
        let error =
            || self.field_error("steps", &self.steps, "increasing TIME:RATE joined by +: 3s:2Mbit/s+8s:40Mbit/s");
        let mut steps: Vec<(Duration, Bitrate)> = Vec::new();
        for written in self.steps.iter().flat_map(|steps| steps.split('+')) {
            let (at, rate) = written.split_once(':').ok_or_else(error)?;
            let at = parse_duration(at).map_err(|_| error())?;
            if at.is_zero() || steps.last().is_some_and(|(last, _)| *last >= at) {
                return Err(error());
            }
            steps.push((at, rate.parse().map_err(|_| error())?));
        }
        Ok(steps)
    }

    fn queue(&self) -> Result<Option<QueueLimit>, SpecError> {
        let parse = |written: &String| {
            let time = parse_duration(written).map(QueueLimit::Time);
            time.or_else(|_| written.parse().map(QueueLimit::Size))
                .map_err(|_| self.field_error("queue", &self.queue, "a time such as 50ms or a size such as 64KiB"))
        };
        self.queue.as_ref().map(parse).transpose()
    }

    fn rate(&self, key: &str, value: &Option<String>) -> Result<Option<Bitrate>, SpecError> {
        match self.field::<Bitrate>(key, value)? {
            Some(Bitrate::ZERO) => {
                Err(self.field_error(key, value, "a rate above zero; an event LINK=hold stops a link"))
            }
            rate => Ok(rate),
        }
    }

    fn time(&self, key: &str, value: &Option<String>) -> Result<Option<Duration>, SpecError> {
        let parse = |written: &String| {
            parse_duration(written).map_err(|_| self.field_error(key, value, "a duration such as 50ms or 1.5s"))
        };
        value.as_ref().map(parse).transpose()
    }

    fn trace_file(&self, key: &str, written: &str) -> Result<TraceFile, SpecError> {
        if written.is_empty() {
            return Err(SpecError::new(&self.field_path(key), written, "the name of a mahimahi trace"));
        }
        Ok(TraceFile { path: PathBuf::from(written), trace: None })
    }

    fn field<T: FieldType>(&self, key: &str, value: &Option<String>) -> Result<Option<T>, SpecError> {
        let parse = |written: &String| {
            written.parse().map_err(|_| SpecError::new(&self.field_path(key), written, T::EXPECTED))
        };
        value.as_ref().map(parse).transpose()
    }

    fn field_error(&self, key: &str, value: &Option<String>, expected: &str) -> SpecError {
        SpecError::new(&self.field_path(key), value.as_deref().unwrap_or(""), expected)
    }

    fn field_path(&self, key: &str) -> String {
        format!("link {}: {key}", self.name)
    }

    fn set_field(&mut self, part: &str) -> Result<(), SpecError> {
        let unknown = SpecError::new(&format!("link {}", self.name), part, FIELDS);
        let Some((key, value)) = part.split_once('=') else {
            let flag = match part {
                "reorder" => &mut self.reorder,
                "codel" => &mut self.codel,
                _ => return Err(unknown),
            };
            *flag = true;
            return Ok(());
        };
        let path = self.field_path(key);
        let field = match key {
            "kind" => &mut self.kind,
            "medium" => &mut self.medium,
            "rate" => &mut self.rate,
            "steps" => &mut self.steps,
            "trace" => &mut self.trace,
            "up" => &mut self.up,
            "uptrace" => &mut self.uptrace,
            "rtt" => &mut self.rtt,
            "jitter" => &mut self.jitter,
            "loss" => &mut self.loss,
            "uploss" => &mut self.uploss,
            "queue" => &mut self.queue,
            "police" => &mut self.police,
            "mtu" => &mut self.mtu,
            _ => return Err(unknown),
        };
        match field.replace(value.to_string()) {
            None => Ok(()),
            Some(_) => Err(SpecError::new(&path, value, "this field once")),
        }
    }
}

/// A type that a field may have, with the text that describes it in errors.
trait FieldType: std::str::FromStr {
    const EXPECTED: &'static str;
}

impl FieldType for Bitrate {
    const EXPECTED: &'static str = "a rate such as 20Mbit/s or 800kbit/s";
}

impl FieldType for DataSize {
    const EXPECTED: &'static str = "a size such as 1500B";
}

impl FieldType for Loss {
    const EXPECTED: &'static str =
        "a share such as 0.5% (at most 100%), or ge:ENTER/LEAVE/BAD such as ge:1%/25%/50%";
}

impl FieldType for PolicerSpec {
    const EXPECTED: &'static str = super::policer::EXPECTED_POLICER;
}

impl FieldType for marline_core::link::LinkKind {
    const EXPECTED: &'static str = "ethernet, wifi, lte, nr (5G), umts (3G), satellite, tunnel or other";
}

impl FieldType for crate::wifi_mac::WifiPreset {
    const EXPECTED: &'static str = "11g-mixed, 11g, 11b, 11b-rts or 11b-paper";
}

const DEFAULT_MTU: DataSize = DataSize::from_bytes(1500);
/// From the size that every IPv4 host must accept (RFC 791 §3.1) to the maximum of the length field.
const MTU_RANGE: std::ops::RangeInclusive<u64> = 576..=65_535;

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
fn is_false(flag: &bool) -> bool {
    !flag
}
