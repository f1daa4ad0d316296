//! Device models: the power of a device's radios, as published.
//!
//! A [`Model`] is built from the figures of a model file and cannot give a negative energy. It offers the closed
//! forms of the papers: power at a rate, and the energy of a promotion, a tail and a whole transfer.
//!
//! [`RadioModel`] describes one radio; it fits GreenBag, Huang 2012 and SIGCOMM 2021. A trait per model was
//! rejected, because the models differ only in their figures.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::link::LinkKind;
use crate::units::{Bitrate, DataSize, Duration, Energy, EnergyPerBit, Power};

/// Direction of traffic.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Direction {
    /// Download: toward this device.
    Down,
    /// Upload: from this device.
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

/// Power of a radio while it carries bytes in one direction: `base + per_bit × rate`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PowerCurve {
    /// Power at rate zero (β of the papers).
    pub base: Power,
    /// Energy per bit (α of the papers: mW per Mbit/s are nJ per bit).
    pub per_bit: EnergyPerBit,
    /// Continuation of the line above the rates that were measured; `None`: the same line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second_slope: Option<SecondSlope>,
}

/// Steeper line above the measured rates. It begins where the first line ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecondSlope {
    /// Highest rate of the first line.
    pub rate: Bitrate,
    /// Additional energy for each bit above that rate.
    pub extra_per_bit: EnergyPerBit,
}

impl PowerCurve {
    /// Power at a steady rate.
    pub fn power_at(self, rate: Bitrate) -> Power {
        let line = self.base + self.per_bit * rate;
        self.second_slope.map_or(line, |slope| line + slope.extra_per_bit * (rate - slope.rate))
    }

    /// Energy of a whole transfer at a steady rate, without promotion and tail (GreenBag eq. 5). At rate zero it
    /// never ends.
    pub fn transfer_energy(self, size: DataSize, rate: Bitrate) -> Energy {
        let time = size / rate;
        let line = self.base * time + self.per_bit * size;
        self.second_slope.map_or(line, |slope| line + slope.extra_per_bit * (size - slope.rate * time))
    }

    /// Number of bytes above the rate at which the first line ends, for a transfer of `size` bytes in `time` active
    /// time.
    pub(super) fn excess_bytes(self, size: DataSize, time: Duration) -> DataSize {
        self.second_slope.map_or(DataSize::ZERO, |slope| size - slope.rate * time)
    }

    /// Power that an additional second of active time costs at least: a longer time also lowers the mean rate and
    /// with it the excess bytes.
    fn min_base(self) -> Power {
        self.base - self.second_slope.map_or(Power::ZERO, |slope| slope.extra_per_bit * slope.rate)
    }
}

/// A constant power for a fixed time.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PowerStage {
    /// Power during the stage.
    pub power: Power,
    /// Duration of the stage.
    pub time: Duration,
}

impl PowerStage {
    /// Energy of the whole stage.
    pub fn energy(self) -> Energy {
        self.power * self.time
    }
}

/// The tail of a radio: the stages between the last byte and idle.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(try_from = "Vec<PowerStage>", into = "Vec<PowerStage>")]
pub struct Tail {
    stages: [PowerStage; Tail::MAX_STAGES],
    len: usize,
}

impl Tail {
    /// Most stages. Our choice: the published models have at most two (3G: DCH and FACH; 5G: NR and its LTE leg).
    pub const MAX_STAGES: usize = 4;

    /// A tail of these stages, in their order; `None`: there are more than [`Tail::MAX_STAGES`].
    pub fn new(stages: &[PowerStage]) -> Option<Self> {
        let mut tail = Self { stages: [PowerStage::default(); Self::MAX_STAGES], len: stages.len() };
        tail.stages.get_mut(..stages.len())?.copy_from_slice(stages);
        Some(tail)
    }

    /// The stages in their order.
    pub fn stages(&self) -> &[PowerStage] {
        self.stages.get(..self.len).unwrap_or_default()
    }

    /// Time from the last byte to idle.
    pub fn time(&self) -> Duration {
        self.stages().iter().fold(Duration::ZERO, |sum, stage| sum.saturating_add(stage.time))
    }

    /// Energy of all stages.
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

/// A tail with more than [`Tail::MAX_STAGES`] stages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a tail has at most {} stages", Tail::MAX_STAGES)]
pub struct TooManyStages;

/// Power and timing of one radio.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RadioModel {
    /// Power while receiving.
    pub down: PowerCurve,
    /// Power while sending.
    pub up: PowerCurve,
    /// Stage from idle to active.
    pub promotion: PowerStage,
    /// Stages from the last byte to idle.
    pub tail: Tail,
    /// Power while idle.
    pub idle: Power,
    /// Traffic further apart than this does not belong to one transfer.
    pub gap: Duration,
}

impl RadioModel {
    /// Default [`gap`](Self::gap). Our choice: longer than the 100 ms of continuous reception of an LTE radio
    /// (Huang 2012) and than the time for which a lost packet keeps the application from reading later ones (an RTT
    /// with its queueing delay, or Linux's 200 ms of minimum retransmission timeout); short enough that a pause
    /// counted as activity costs only 2 % of a tail.
    pub const GAP: Duration = Duration::from_millis(500);

    /// A radio that draws `curve` in both directions, without promotion, tail and idle power.
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

    /// Power curve of one direction.
    pub const fn curve(&self, direction: Direction) -> PowerCurve {
        match direction {
            Direction::Down => self.down,
            Direction::Up => self.up,
        }
    }

    /// Energy of one packet on an idle radio: promotion and tail.
    pub fn single_packet_energy(&self) -> Energy {
        self.promotion.energy() + self.tail.energy()
    }

    /// Energy of a whole transfer at a steady rate on an idle radio: promotion, transfer, tail.
    pub fn transfer_energy(&self, direction: Direction, size: DataSize, rate: Bitrate) -> Energy {
        self.single_packet_energy() + self.curve(direction).transfer_energy(size, rate)
    }
}

/// Change of power and energy while several radios of one device are active.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConcurrentDraw {
    /// Part of each radio's base power that all radios share and that is drawn once: with n radios active, the
    /// device draws (n − 1) times this value less than their sum. Zero: powers add up.
    pub shared_base: Power,
    /// Additional energy per bit beyond the radio's own (the processor's share). Zero in most models.
    pub extra_per_bit: EnergyPerBit,
}

/// Energy model of a device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "ModelRepr", into = "ModelRepr")]
pub struct Model {
    name: String,
    radios: BTreeMap<LinkKind, RadioModel>,
    concurrent: ConcurrentDraw,
    platform: Power,
}

impl Model {
    /// A device with these radios. `platform` is the constant power of the rest of the device; zero where only
    /// radios were measured.
    ///
    /// # Errors
    /// If a radio's base power is less than the shared part, because two radios would draw less than one. For a
    /// curve with a [`SecondSlope`], the base power counts that results from extending the steeper line to rate
    /// zero.
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

    /// Name of the model, as printed in reports.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The radio of links of this kind; `None`: the model does not describe it.
    pub fn radio(&self, kind: LinkKind) -> Option<&RadioModel> {
        self.radios.get(&kind)
    }

    /// Every radio that the model describes.
    pub fn radios(&self) -> impl Iterator<Item = (LinkKind, &RadioModel)> {
        self.radios.iter().map(|(kind, radio)| (*kind, radio))
    }

    /// Changes while several radios are active.
    pub const fn concurrent(&self) -> ConcurrentDraw {
        self.concurrent
    }

    /// Constant power of the rest of the device.
    pub const fn platform(&self) -> Power {
        self.platform
    }

    /// Power of radios that are active together at these steady rates, without the platform (eMPTCP §III:
    /// efficiency per bit is this over the sum of the rates). Kinds that the model does not describe count as zero.
    pub fn active_power(&self, loads: &[(LinkKind, Direction, Bitrate)]) -> Power {
        let (mut sum, mut rates, mut active) = (Power::ZERO, Bitrate::ZERO, 0_u64);
        for (kind, direction, rate) in loads {
            let Some(radio) = self.radio(*kind) else { continue };
            sum += radio.curve(*direction).power_at(*rate);
            rates += *rate;
            active += 1;
        }
        match active {
            0 | 1 => sum,
            n => sum - self.concurrent.shared_base * (n - 1) + self.concurrent.extra_per_bit * rates,
        }
    }
}

/// Serialized form of a model in a decision log.
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
        let Model { name, radios, concurrent, platform } = model;
        Self { name, radios, concurrent, platform }
    }
}

/// A radio's base power is less than the part that radios share.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{kind}: base power {base} is less than the shared base power {shared}")]
pub struct ModelError {
    kind: LinkKind,
    base: Power,
    shared: Power,
}
