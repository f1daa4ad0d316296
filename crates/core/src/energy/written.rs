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

use super::{Beyond, Draw, Model, ModelError, RadioModel, Stage, Tail, Together};
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
pub struct Origin {
    /// The device that was measured.
    pub device: String,
    /// Who measured it, and where that is written.
    pub source: String,
    /// How sure its figures are, as a share.
    #[serde(serialize_with = "as_share")]
    pub confidence: Ratio,
    /// Which figures stand in the source.
    pub published: Option<String>,
    /// Which figures were computed from its data.
    pub fitted: Option<String>,
    /// Which figures were written down from memory.
    pub memory: Option<String>,
    /// Which figures are nobody's.
    pub assumed: Option<String>,
}

/// Why what is written describes no device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WrittenError {
    /// No radio stands there.
    #[error("describes no radio: write [radio.wifi] or another kind of link")]
    NoRadio,
    /// The confidence is beyond 100 %.
    #[error("a confidence of {0} is more than certain")]
    TooCertain(Ratio),
    /// More stages than a tail has room for.
    #[error("[radio.{0}]: a tail of more than {max} stages", max = Tail::MAX)]
    LongTail(LinkKind),
    /// The radios do not go together.
    #[error(transparent)]
    Model(#[from] ModelError),
}

/// A device as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Written {
    device: String,
    source: String,
    #[serde(deserialize_with = "word")]
    confidence: Ratio,
    published: Option<String>,
    fitted: Option<String>,
    memory: Option<String>,
    assumed: Option<String>,
    #[serde(default, deserialize_with = "word")]
    platform: Power,
    #[serde(default)]
    together: WrittenTogether,
    #[serde(default)]
    radio: BTreeMap<LinkKind, WrittenRadio>,
}

impl Written {
    /// The device, by this name, and where it comes from.
    ///
    /// # Errors
    /// Its figures cannot be those of a device.
    pub fn read(self, name: &str) -> Result<(Model, Origin), WrittenError> {
        if self.radio.is_empty() {
            return Err(WrittenError::NoRadio);
        }
        if self.confidence > Ratio::ONE {
            return Err(WrittenError::TooCertain(self.confidence));
        }
        let mut radios = BTreeMap::new();
        for (kind, radio) in self.radio {
            radios.insert(kind, radio.model().ok_or(WrittenError::LongTail(kind))?);
        }
        let together = Together { shared: self.together.shared, extra: self.together.extra };
        let model = Model::new(name, radios, together, self.platform)?;
        let origin = Origin {
            device: self.device,
            source: self.source,
            confidence: self.confidence,
            published: self.published,
            fitted: self.fitted,
            memory: self.memory,
            assumed: self.assumed,
        };
        Ok((model, origin))
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenTogether {
    #[serde(default, deserialize_with = "word")]
    shared: Power,
    #[serde(default, deserialize_with = "word")]
    extra: EnergyPerBit,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenRadio {
    down: WrittenDraw,
    up: Option<WrittenDraw>,
    promotion: Option<WrittenStage>,
    #[serde(default)]
    tail: Vec<WrittenStage>,
    #[serde(default, deserialize_with = "word")]
    idle: Power,
    #[serde(default, deserialize_with = "time")]
    gap: Option<Duration>,
}

impl WrittenRadio {
    /// The radio; none: its tail is too long.
    fn model(self) -> Option<RadioModel> {
        let stages: Vec<Stage> = self.tail.iter().map(WrittenStage::stage).collect();
        let down = self.down.draw();
        Some(RadioModel {
            down,
            up: self.up.as_ref().map_or(down, WrittenDraw::draw),
            promotion: self.promotion.as_ref().map(WrittenStage::stage).unwrap_or_default(),
            tail: Tail::new(&stages)?,
            idle: self.idle,
            gap: self.gap.unwrap_or(RadioModel::GAP),
        })
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenDraw {
    #[serde(deserialize_with = "word")]
    base: Power,
    #[serde(deserialize_with = "word")]
    per_bit: EnergyPerBit,
    beyond: Option<WrittenBeyond>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenBeyond {
    #[serde(deserialize_with = "word")]
    rate: Bitrate,
    #[serde(deserialize_with = "word")]
    per_bit: EnergyPerBit,
}

impl WrittenDraw {
    /// What goes on less steeply than it began goes on as it began.
    fn draw(&self) -> Draw {
        let more = |beyond: &WrittenBeyond| Beyond { rate: beyond.rate, more: beyond.per_bit - self.per_bit };
        Draw { base: self.base, per_bit: self.per_bit, beyond: self.beyond.as_ref().map(more) }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenStage {
    #[serde(deserialize_with = "word")]
    power: Power,
    #[serde(deserialize_with = "time")]
    time: Option<Duration>,
}

impl WrittenStage {
    fn stage(&self) -> Stage {
        Stage { power: self.power, time: self.time.unwrap_or_default() }
    }
}

/// A value written with its unit: `"360.9mW"`, `"24.19nJ/bit"`, `"95%"`.
fn word<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr,
    T::Err: Display,
{
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}

fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    parse_duration(&String::deserialize(deserializer)?).map(Some).map_err(serde::de::Error::custom)
}

fn as_share<S: Serializer>(share: &Ratio, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(share.as_f64())
}
