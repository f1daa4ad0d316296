//! What a device's radios draw, as published models say it.
//!
//! In: figures of a model file. Out: a [`Model`] that cannot give a negative energy, and the closed forms of the papers:
//! power at a rate, the cost of a promotion, of a tail, of a whole transfer.
//!
//! One radio is described by [`RadioModel`]; GreenBag, Huang 2012 and SIGCOMM 2021 all fit it. A trait per model was not
//! used: they differ in their figures and in nothing else.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::link::LinkKind;
use crate::units::{Bitrate, DataSize, Duration, Energy, EnergyPerBit, Power};

/// Which way bytes go.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Direction {
    /// Towards this device.
    Down,
    /// Away from it.
    Up,
}

impl Direction {
    pub(super) const fn index(self) -> usize {
        match self {
            Self::Down => 0,
            Self::Up => 1,
        }
    }
}

/// What a radio draws while it carries bytes in one direction: `base + per_bit × rate`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PowerCurve {
    /// At rate zero (β of the papers).
    pub base: Power,
    /// For each bit (α of the papers: mW per Mbit/s are nJ per bit).
    pub per_bit: EnergyPerBit,
    /// Where the line ends that was measured, and how it goes on; none: it never ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second_slope: Option<SecondSlope>,
}

/// How a power goes on above the rates that it was measured at: on another line, which begins where the first one ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecondSlope {
    /// The highest rate of the first line.
    pub rate: Bitrate,
    /// What each bit beyond it costs more than one below.
    pub extra_per_bit: EnergyPerBit,
}

impl PowerCurve {
    /// The power at a steady rate.
    pub fn power_at(self, rate: Bitrate) -> Power {
        let line = self.base + self.per_bit * rate;
        self.second_slope.map_or(line, |beyond| line + beyond.extra_per_bit * (rate - beyond.rate))
    }

    /// A whole transfer at a steady rate, without promotion and tail (GreenBag eq. 5). At rate zero it never ends.
    pub fn transfer_energy(self, size: DataSize, rate: Bitrate) -> Energy {
        let time = size / rate;
        let line = self.base * time + self.per_bit * size;
        self.second_slope.map_or(line, |beyond| line + beyond.extra_per_bit * (size - beyond.rate * time))
    }

    /// Of so many bytes in so much active time: those that lie beyond the first line.
    pub(super) fn excess_bytes(self, size: DataSize, time: Duration) -> DataSize {
        self.second_slope.map_or(DataSize::ZERO, |beyond| size - beyond.rate * time)
    }

    /// The power that another second costs, whatever it makes of bytes that lay beyond the first line.
    fn min_base(self) -> Power {
        self.base - self.second_slope.map_or(Power::ZERO, |beyond| beyond.extra_per_bit * beyond.rate)
    }
}

/// Some power for some time.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PowerStage {
    /// What is drawn.
    pub power: Power,
    /// For how long.
    pub time: Duration,
}

impl PowerStage {
    /// All of it.
    pub fn energy(self) -> Energy {
        self.power * self.time
    }
}

/// What follows the last byte, stage by stage.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(try_from = "Vec<PowerStage>", into = "Vec<PowerStage>")]
pub struct Tail {
    stages: [PowerStage; Tail::MAX_STAGES],
    len: usize,
}

impl Tail {
    /// The most stages. Chosen: the published models have at most two (3G: DCH and FACH; 5G: NR and its LTE leg).
    pub const MAX_STAGES: usize = 4;

    /// A tail of these stages, in their order; none: there are more than [`Tail::MAX_STAGES`].
    pub fn new(stages: &[PowerStage]) -> Option<Self> {
        let mut tail = Self { stages: [PowerStage::default(); Self::MAX_STAGES], len: stages.len() };
        tail.stages.get_mut(..stages.len())?.copy_from_slice(stages);
        Some(tail)
    }

    /// The stages in their order.
    pub fn stages(&self) -> &[PowerStage] {
        self.stages.get(..self.len).unwrap_or_default()
    }

    /// From the last byte to idle.
    pub fn time(&self) -> Duration {
        self.stages().iter().fold(Duration::ZERO, |sum, stage| sum.saturating_add(stage.time))
    }

    /// All stages to their end.
    pub fn energy(&self) -> Energy {
        self.stages().iter().map(|stage| stage.energy()).sum()
    }
}

impl TryFrom<Vec<PowerStage>> for Tail {
    type Error = TooManyStages;
    fn try_from(stages: Vec<PowerStage>) -> Result<Self, TooManyStages> {
        Self::new(&stages).ok_or(TooManyStages)
    }
}

impl From<Tail> for Vec<PowerStage> {
    fn from(tail: Tail) -> Self {
        tail.stages().to_vec()
    }
}

/// A tail of more stages than any radio has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a tail has at most {} stages", Tail::MAX_STAGES)]
pub struct TooManyStages;

/// What one radio draws.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RadioModel {
    /// While bytes come.
    pub down: PowerCurve,
    /// While bytes go.
    pub up: PowerCurve,
    /// From idle to active.
    pub promotion: PowerStage,
    /// From the last byte to idle.
    pub tail: Tail,
    /// While nothing happens.
    pub idle: Power,
    /// Signs of traffic further apart than this do not belong to one transfer.
    pub gap: Duration,
}

impl RadioModel {
    /// The usual [`gap`](Self::gap). Chosen: above an LTE radio's 100 ms of continuous reception (Huang 2012) and above
    /// the time in which packets behind a lost one come and cannot be read yet (a round trip with its queue, or Linux's
    /// 200 ms of retransmission timeout); and so short that a pause taken for activity costs 2 % of a tail.
    pub const GAP: Duration = Duration::from_millis(500);

    /// A radio that draws `draw` both ways, and nothing else.
    pub fn new(curve: PowerCurve) -> Self {
        Self {
            down: curve,
            up: curve,
            promotion: PowerStage::default(),
            tail: Tail::default(),
            idle: Power::ZERO,
            gap: Self::GAP,
        }
    }

    /// What it draws in one direction.
    pub const fn curve(&self, direction: Direction) -> PowerCurve {
        match direction {
            Direction::Down => self.down,
            Direction::Up => self.up,
        }
    }

    /// One packet on an idle radio: promotion and tail.
    pub fn single_packet_energy(&self) -> Energy {
        self.promotion.energy() + self.tail.energy()
    }

    /// A whole transfer at a steady rate on an idle radio: promotion, transfer, tail.
    pub fn transfer_energy(&self, direction: Direction, size: DataSize, rate: Bitrate) -> Energy {
        self.single_packet_energy() + self.curve(direction).transfer_energy(size, rate)
    }
}

/// What changes while several radios of one device are active.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConcurrentDraw {
    /// The part of each radio's base power that all of them share, paid once: with n radios active the device draws
    /// (n − 1) times this less than their sum. Zero: powers add up.
    pub shared_base: Power,
    /// What each bit costs beyond its radio's own price (the processor's share). Zero in most models.
    pub extra_per_bit: EnergyPerBit,
}

/// A device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "ModelRepr", into = "ModelRepr")]
pub struct Model {
    name: String,
    radios: BTreeMap<LinkKind, RadioModel>,
    concurrent: ConcurrentDraw,
    platform: Power,
}

impl Model {
    /// A device of these radios. `platform` is what the rest of it draws all the time; zero where only radios were
    /// measured.
    ///
    /// # Errors
    /// When a radio's base power is less than what it shares: two radios would draw less than one. A line that begins at
    /// [`Beyond::rate`] counts with the base power that it would have.
    pub fn new(
        name: &str,
        radios: BTreeMap<LinkKind, RadioModel>,
        concurrent: ConcurrentDraw,
        platform: Power,
    ) -> Result<Self, ModelError> {
        for (kind, radio) in &radios {
            let base = radio.down.min_base().min(radio.up.min_base());
            if base < concurrent.shared_base {
                return Err(ModelError { kind: *kind, base, shared: concurrent.shared_base });
            }
        }
        Ok(Self { name: name.into(), radios, concurrent, platform })
    }

    /// Its name, as reports print it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The radio of links of this kind; none: the model does not say.
    pub fn radio(&self, kind: LinkKind) -> Option<&RadioModel> {
        self.radios.get(&kind)
    }

    /// Every radio it describes.
    pub fn radios(&self) -> impl Iterator<Item = (LinkKind, &RadioModel)> {
        self.radios.iter().map(|(kind, radio)| (*kind, radio))
    }

    /// What changes while several radios are active.
    pub const fn concurrent(&self) -> ConcurrentDraw {
        self.concurrent
    }

    /// What the rest of the device draws all the time.
    pub const fn platform(&self) -> Power {
        self.platform
    }

    /// What radios draw that are active together at these steady rates, the platform apart (eMPTCP §III: per-bit
    /// efficiency is this over the sum of the rates). Kinds that the model does not describe draw nothing.
    pub fn active_power(&self, loads: &[(LinkKind, Direction, Bitrate)]) -> Power {
        let (mut sum, mut rates, mut active) = (Power::ZERO, Bitrate::ZERO, 0_u64);
        for (kind, direction, rate) in loads {
            let Some(radio) = self.radio(*kind) else { continue };
            sum += radio.curve(*direction).power_at(*rate);
            rates = rates + *rate;
            active += 1;
        }
        match active {
            0 | 1 => sum,
            n => sum - self.concurrent.shared_base * (n - 1) + self.concurrent.extra_per_bit * rates,
        }
    }
}

/// A model as a log has it.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ModelRepr {
    name: String,
    radios: BTreeMap<LinkKind, RadioModel>,
    concurrent: ConcurrentDraw,
    platform: Power,
}

impl TryFrom<ModelRepr> for Model {
    type Error = ModelError;
    fn try_from(repr: ModelRepr) -> Result<Self, ModelError> {
        Self::new(&repr.name, repr.radios, repr.concurrent, repr.platform)
    }
}

impl From<Model> for ModelRepr {
    fn from(model: Model) -> Self {
        let Model { name, radios, concurrent: together, platform } = model;
        Self { name, radios, concurrent: together, platform }
    }
}

/// A model in which two radios would draw less than one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{kind}: its base power of {base} is less than the {shared} that radios share")]
pub struct ModelError {
    kind: LinkKind,
    base: Power,
    shared: Power,
}
