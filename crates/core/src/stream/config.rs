//! Configuration of a stream: everything it is given before it starts.

use alloc::string::ToString;
use alloc::vec::Vec;
use core::str::FromStr;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::energy::{ConcurrentDraw, Model, PowerCurve, PowerStage, RadioModel, Tail};
use crate::fetch;
use crate::link::{LinkId, LinkKind};
use crate::playback::{BufferThresholds, MediaProfile};
use crate::units::{Bitrate, DataSize, EnergyPerBit, Power, Ratio, UnknownName};

/// Everything that determines a stream's behavior, apart from network and player events. A decision log begins with it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The download underneath. Its sizing policy applies only until the resource is known.
    pub fetch: fetch::Config,
    /// Rules by which links get ranges and radios go on standby.
    pub policy: Policy,
    /// The video; `None` if it is not known, in which case no energy is saved.
    pub video: Option<MediaProfile>,
    /// Whether playback may start later when the links cannot sustain the video: one longer start delay replaces
    /// several stalls.
    pub may_delay_start: bool,
    /// Thresholds of the player's buffer.
    pub player: BufferThresholds,
    /// What to minimize.
    pub objective: Objective,
    /// Power that the radio of each kind of link draws. Kinds without an entry cost nothing.
    pub energy: Model,
    /// Prices of the links' bytes, for [`Objective::Cost`]. Links without an entry cost nothing.
    pub prices: Vec<LinkPrice>,
    /// What earlier streams learnt about the links: those for the previous segments or ranges of the video.
    #[serde(default)]
    pub initial_estimates: Vec<InitialEstimate>,
    /// Parameters of the GreenBag policies.
    pub greenbag: GreenBagParams,
}

impl Default for Config {
    /// Policy `marline` with the radios of the GreenBag paper, a reader window of 32 MB, metered links in use, and no
    /// video.
    fn default() -> Self {
        let window = Some(DataSize::from_bytes(32_000_000));
        Self {
            fetch: fetch::Config {
                reader_window: window,
                metered: fetch::MeteredUse::Use,
                ..fetch::Config::default()
            },
            policy: Policy::default(),
            video: None,
            may_delay_start: true,
            player: BufferThresholds::default(),
            objective: Objective::default(),
            energy: GreenBagRadio::greenbag(),
            prices: Vec::new(),
            initial_estimates: Vec::new(),
            greenbag: GreenBagParams::default(),
        }
    }
}

/// Scheduling policy: how a stream divides its requests among the links.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Marline's own policy: it schedules each piece by its deadline, and puts radios on standby by their cost and the
    /// uncertainty of the rate forecasts.
    #[default]
    Marline,
    /// GreenBag without energy saving: all links are used to the end (GB-P of §V).
    GreenbagP,
    /// GreenBag with its link-mode chooser (GB-E of §V).
    GreenbagE,
}

impl FromStr for Policy {
    type Err = UnknownName;
    fn from_str(name: &str) -> Result<Self, UnknownName> {
        match name {
            "marline" => Ok(Self::Marline),
            "greenbag-p" => Ok(Self::GreenbagP),
            "greenbag-e" => Ok(Self::GreenbagE),
            _ => Err(UnknownName {
                name: name.to_string(),
                kind: "policy",
                known: "marline, greenbag-p or greenbag-e",
            }),
        }
    }
}

/// What a stream minimizes once the video arrives in time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Objective {
    /// Energy that the radios use.
    #[default]
    Energy,
    /// Number of bytes over metered links.
    MeteredBytes,
    /// Price of the bytes ([`Config::prices`]).
    Cost,
}

impl FromStr for Objective {
    type Err = UnknownName;
    fn from_str(name: &str) -> Result<Self, UnknownName> {
        match name {
            "energy" => Ok(Self::Energy),
            "cost" => Ok(Self::Cost),
            _ => Err(UnknownName { name: name.to_string(), kind: "goal", known: "energy or cost" }),
        }
    }
}

/// What earlier streams learnt about one link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InitialEstimate {
    /// The link.
    pub link: LinkId,
    /// Mean rate of the link; zero: not known.
    pub rate: Bitrate,
    /// Whether the link was on standby at the end of the last one.
    pub is_standby: bool,
}

/// Price of the bytes of one link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkPrice {
    /// The link.
    pub link: LinkId,
    /// Price of 10^9 bytes in millionths of the currency. All prices must be in the same currency.
    pub micros_per_gb: u64,
}

/// Power model of one radio as GreenBag describes it: while active, and in the tail after the last byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GreenBagRadio {
    /// α: energy for each bit (mW per Mbit/s are nJ per bit).
    pub per_bit: EnergyPerBit,
    /// β: power while the radio is active.
    pub active_power: Power,
    /// Power during the tail.
    pub tail_power: Power,
    /// Duration of the tail.
    pub tail_time: Duration,
}

impl GreenBagRadio {
    /// GreenBag's LTE radio (Table I; §IV-B: 1350 mW for 11.2 s; the paper ignores promotions).
    pub const GREENBAG_LTE: Self = Self {
        per_bit: EnergyPerBit::from_picojoules(16_720),
        active_power: Power::from_microwatts(2_022_200),
        tail_power: Power::from_milliwatts(1350),
        tail_time: Duration::from_millis(11_200),
    };
    /// GreenBag's Wi-Fi radio (Table I).
    pub const GREENBAG_WIFI: Self = Self {
        per_bit: EnergyPerBit::from_picojoules(24_190),
        active_power: Power::from_microwatts(360_900),
        tail_power: Power::ZERO,
        tail_time: Duration::ZERO,
    };

    /// A device with GreenBag's two radios, whose powers add up.
    pub fn greenbag() -> Model {
        let radios = [(LinkKind::Lte, Self::GREENBAG_LTE), (LinkKind::Wifi, Self::GREENBAG_WIFI)];
        let radios = radios.into_iter().map(|(kind, radio)| (kind, radio.model())).collect();
        Model::new("greenbag", radios, ConcurrentDraw::default(), Power::ZERO).expect("radios that share nothing")
    }

    /// The same radio as a [`RadioModel`].
    pub fn model(&self) -> RadioModel {
        let mut model =
            RadioModel::new(PowerCurve { base: self.active_power, per_bit: self.per_bit, ..PowerCurve::default() });
        model.tail = Tail::new(&[PowerStage { power: self.tail_power, time: self.tail_time }]).unwrap_or_default();
        model
    }
}

/// Parameters of the GreenBag policies: those that the paper sets, and those that it leaves open (§IV-B).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GreenBagParams {
    /// The size of a segment: 500 KB of 2^10 bytes (§V-A2).
    pub segment_size: DataSize,
    /// w_r: a bottleneck is recovered if `w_r × T_P ≤ T_R`. The paper gives no value. Our choice: 0.5, so that a
    /// subsegment is taken over while half of the buffer is left to do it in.
    pub recovery_weight: Ratio,
    /// w_e: all links are used again if `w_e × T_P ≤ T_R`. The paper gives no value. Our choice: 0.5, as above.
    pub fall_back_weight: Ratio,
    /// The share of a link's predicted goodput on which the link-mode chooser relies when it stops using the other
    /// links. It does not apply to a link that is already used alone, which stays so while its full predicted goodput
    /// suffices. The paper has no such margin. Our choice: 0.95. With 1, any prediction error ends in a fall-back,
    /// which costs a whole tail (15 J); with 0.9 the radio stays active longer. At 60 %, the energy is 124.5, 116.7,
    /// 127.1 and 137.4 J for 0.9, 0.95, 0.99 and 1.
    pub goodput_margin: Ratio,
    /// α of the goodput's exponential moving average (§IV-B).
    pub alpha: Ratio,
    /// Whether lagging subsegments are taken over at all; figure 12 of the paper compares the two.
    pub recovery_enabled: bool,
    /// Whether subsegment sizes follow the links' goodput. Otherwise they are equal; figure 10 of the paper compares
    /// the two.
    pub adaptive_subsegments: bool,
}

impl Default for GreenBagParams {
    fn default() -> Self {
        Self {
            segment_size: DataSize::from_kib(500),
            recovery_weight: Ratio::from_percent(50),
            fall_back_weight: Ratio::from_percent(50),
            goodput_margin: Ratio::from_percent(95),
            alpha: Ratio::from_percent(30),
            recovery_enabled: true,
            adaptive_subsegments: true,
        }
    }
}
