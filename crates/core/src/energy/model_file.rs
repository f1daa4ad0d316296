//! Device models as they are written: what a phone's radios draw, who measured it, and how sure that is.
//!
//! In: whatever serde reads (the program reads TOML), with a unit behind every figure. Out: a [`Model`] and its
//! [`Origin`]. `docs/energy.md` explains every key; the models that come along are in `models/`, one file each, and are
//! part of the program itself, so that it finds them anywhere.
//!
//! 1. An unknown key, or a value without its unit, is refused by the reader; a figure that cannot be, by [`Written::read`].
//! 2. A model without its source is refused as well: a joule nobody can trace is a guess in disguise.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Display;
use core::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{ConcurrentDraw, Model, ModelError, PowerCurve, PowerStage, RadioModel, SecondSlope, Tail};
use crate::link::LinkKind;
use crate::units::{Bitrate, Duration, EnergyPerBit, Power, Ratio, parse_duration};

/// The models that come along, with their files' text: the default first, then by age of the device.
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

/// Where a model comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ModelOrigin {
    /// The device that was measured.
    pub device: String,
    /// Who measured it, and where that is written.
    pub source: String,
    /// How sure its figures are, as a share.
    #[serde(serialize_with = "share_as_f64")]
    pub confidence: Ratio,
    /// Which figures stand in the source.
    pub published: Option<String>,
    /// Which figures were computed from its data.
    pub fitted: Option<String>,
    /// Which figures were written down from memory.
    pub from_memory: Option<String>,
    /// Which figures are nobody's.
    pub assumed: Option<String>,
}

/// Why what is written describes no device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelSpecError {
    /// No radio stands there.
    #[error("describes no radio: write [radio.wifi] or another kind of link")]
    NoRadio,
    /// The confidence is beyond 100 %.
    #[error("a confidence of {0} is more than certain")]
    ConfidenceTooHigh(Ratio),
    /// More stages than a tail has room for.
    #[error("[radio.{0}]: a tail of more than {max} stages", max = Tail::MAX_STAGES)]
    TailTooLong(LinkKind),
    /// The radios do not go together.
    #[error(transparent)]
    Model(#[from] ModelError),
}

/// A device as it is written.
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
    /// The device, by this name, and where it comes from.
    ///
    /// # Errors
    /// Its figures cannot be those of a device.
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
    /// The radio; none: its tail is too long.
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
    /// What goes on less steeply than it began goes on as it began.
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

/// A value written with its unit: `"360.9mW"`, `"24.19nJ/bit"`, `"95%"`.
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
