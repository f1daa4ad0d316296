//! Device model files: the parsed form of a model, with the source and confidence of its figures.
//!
//! Every figure is parsed together with its unit; the program reads the files as TOML. `docs/energy.md` explains
//! every key. The built-in models are in `models/`, one file each, and are compiled into the program, so that they
//! are available everywhere.
//!
//! 1. The parser rejects unknown keys and values without unit; [`ModelSpec::into_model`] rejects impossible
//!    figures.
//! 2. A model without its source is rejected too: an energy figure that cannot be traced is a guess.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Display;
use core::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{ConcurrentDraw, Model, ModelError, PowerCurve, PowerStage, RadioModel, SecondSlope, Tail};
use crate::link::LinkKind;
use crate::units::{Bitrate, Duration, EnergyPerBit, Power, Ratio, parse_duration};

/// Names and texts of the built-in models: the default first, then by age of the device, the oldest first.
pub const BUILT_IN: [(&str, &str); 9] = [
    ("typical", include_str!("../../models/typical.toml")),
    ("greenbag", include_str!("../../models/greenbag.toml")),
    ("huang2012", include_str!("../../models/huang2012.toml")),
    ("emptcp-s3", include_str!("../../models/emptcp-s3.toml")),
    ("thesis-s6", include_str!("../../models/thesis-s6.toml")),
    ("thesis-s7", include_str!("../../models/thesis-s7.toml")),
    ("narayanan2021-lte", include_str!("../../models/narayanan2021-lte.toml")),
    ("narayanan2021-nsa-low", include_str!("../../models/narayanan2021-nsa-low.toml")),
    ("narayanan2021-mmwave", include_str!("../../models/narayanan2021-mmwave.toml")),
];

/// Origin of a model and of its figures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ModelOrigin {
    /// The device that was measured.
    pub device: String,
    /// Publication of the measurement.
    pub source: String,
    /// Confidence in the figures; in JSON a number from 0 to 1.
    #[serde(serialize_with = "share_as_f64")]
    pub confidence: Ratio,
    /// Which figures are stated in the source.
    pub published: Option<String>,
    /// Which figures were computed from the source's data.
    pub fitted: Option<String>,
    /// Which figures were quoted from memory.
    pub from_memory: Option<String>,
    /// Which figures have no source.
    pub assumed: Option<String>,
}

/// Why a model file describes no device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelSpecError {
    /// The file has no `[radio.…]` section.
    #[error("describes no radio: add [radio.wifi] or another kind of link")]
    NoRadio,
    /// The confidence exceeds 100 %.
    #[error("confidence: {0} is more than 100%")]
    ConfidenceTooHigh(Ratio),
    /// A tail has more than [`Tail::MAX_STAGES`] stages.
    #[error("[radio.{0}]: a tail has at most {max} stages", max = Tail::MAX_STAGES)]
    TailTooLong(LinkKind),
    /// The radios contradict each other.
    #[error(transparent)]
    Model(#[from] ModelError),
}

/// A device model as parsed from a file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelSpec {
    device: String,
    source: String,
    #[serde(deserialize_with = "parse_value")]
    confidence: Ratio,
    published: Option<String>,
    fitted: Option<String>,
    from_memory: Option<String>,
    assumed: Option<String>,
    #[serde(default, deserialize_with = "parse_value")]
    platform: Power,
    #[serde(default)]
    concurrent: ConcurrentSpec,
    #[serde(default)]
    radio: BTreeMap<LinkKind, RadioSpec>,
}

impl ModelSpec {
    /// Converts to a model with this name, and its origin.
    ///
    /// # Errors
    /// If the figures cannot be those of a device.
    pub fn into_model(self, name: &str) -> Result<(Model, ModelOrigin), ModelSpecError> {
        if self.radio.is_empty() {
            return Err(ModelSpecError::NoRadio);
        }
        if self.confidence > Ratio::ONE {
            return Err(ModelSpecError::ConfidenceTooHigh(self.confidence));
        }
        let mut radios = BTreeMap::new();
        for (kind, radio) in self.radio {
            radios.insert(kind, radio.model().ok_or(ModelSpecError::TailTooLong(kind))?);
        }
        let concurrent = ConcurrentDraw {
            shared_base: self.concurrent.shared_base,
            extra_per_bit: self.concurrent.extra_per_bit,
        };
        let model = Model::new(name, radios, concurrent, self.platform)?;
        let origin = ModelOrigin {
            device: self.device,
            source: self.source,
            confidence: self.confidence,
            published: self.published,
            fitted: self.fitted,
            from_memory: self.from_memory,
            assumed: self.assumed,
        };
        Ok((model, origin))
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConcurrentSpec {
    #[serde(default, deserialize_with = "parse_value")]
    shared_base: Power,
    #[serde(default, deserialize_with = "parse_value")]
    extra_per_bit: EnergyPerBit,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RadioSpec {
    down: CurveSpec,
    up: Option<CurveSpec>,
    promotion: Option<StageSpec>,
    #[serde(default)]
    tail: Vec<StageSpec>,
    #[serde(default, deserialize_with = "parse_value")]
    idle: Power,
    #[serde(default, deserialize_with = "parse_time")]
    gap: Option<Duration>,
}

impl RadioSpec {
    /// Converts the section; `None`: its tail is too long.
    fn model(self) -> Option<RadioModel> {
        let stages: Vec<PowerStage> = self.tail.iter().map(StageSpec::stage).collect();
        let down = self.down.curve();
        Some(RadioModel {
            down,
            up: self.up.as_ref().map_or(down, CurveSpec::curve),
            promotion: self.promotion.as_ref().map(StageSpec::stage).unwrap_or_default(),
            tail: Tail::new(&stages)?,
            idle: self.idle,
            gap: self.gap.unwrap_or(RadioModel::GAP),
        })
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CurveSpec {
    #[serde(deserialize_with = "parse_value")]
    base: Power,
    #[serde(deserialize_with = "parse_value")]
    per_bit: EnergyPerBit,
    second_slope: Option<SlopeSpec>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SlopeSpec {
    #[serde(deserialize_with = "parse_value")]
    rate: Bitrate,
    #[serde(deserialize_with = "parse_value")]
    per_bit: EnergyPerBit,
}

impl CurveSpec {
    /// Converts the curve. A second slope that is less steep than the first counts as equally steep (the
    /// subtraction saturates).
    fn curve(&self) -> PowerCurve {
        let slope = |spec: &SlopeSpec| SecondSlope { rate: spec.rate, extra_per_bit: spec.per_bit - self.per_bit };
        PowerCurve { base: self.base, per_bit: self.per_bit, second_slope: self.second_slope.as_ref().map(slope) }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StageSpec {
    #[serde(deserialize_with = "parse_value")]
    power: Power,
    #[serde(deserialize_with = "parse_time")]
    time: Option<Duration>,
}

impl StageSpec {
    fn stage(&self) -> PowerStage {
        PowerStage { power: self.power, time: self.time.unwrap_or_default() }
    }
}

/// Parses a value with its unit: `"360.9mW"`, `"24.19nJ/bit"`, `"95%"`.
fn parse_value<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr,
    T::Err: Display,
{
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}

fn parse_time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    parse_duration(&String::deserialize(deserializer)?).map(Some).map_err(serde::de::Error::custom)
}

fn share_as_f64<S: Serializer>(share: &Ratio, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(share.as_f64())
}
