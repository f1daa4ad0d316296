//! What a stream is told before it starts.

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

/// Everything that shapes a stream, apart from what happens on the network and in the player. A log begins with it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The download underneath. Its sizing policy rules only as long as the resource is not known.
    pub fetch: fetch::Config,
    /// Which link brings what, and which radios sleep.
    pub policy: Policy,
    /// The video; none: nobody knows it, and nothing is saved.
    pub video: Option<MediaProfile>,
    /// Whether the start may wait where the links cannot carry the video: one wait instead of several.
    pub may_delay_start: bool,
    /// The player's buffer.
    pub player: BufferThresholds,
    /// What is to be small.
    pub objective: Objective,
    /// What the radio of each kind of link draws; kinds that it does not describe cost nothing.
    pub energy: Model,
    /// What the bytes of links cost, where that is to be small; links that are not named cost nothing.
    pub prices: Vec<LinkPrice>,
    /// What an earlier run has learnt of the links.
    #[serde(default)]
    pub initial_estimates: Vec<InitialEstimate>,
    /// GreenBag's own figures.
    pub greenbag: GreenBagParams,
}

impl Default for Config {
    /// `marline` with the radios of GreenBag's paper, a window of 32 MB, and no video.
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

/// How a stream spreads itself over its links.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Ours: each piece by its deadline, radios by what they cost and how sure the future is.
    #[default]
    Marline,
    /// GreenBag that never saves: all links to the end (GB-P of §V).
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

/// What a stream makes small, once the video comes in time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Objective {
    /// What the radios draw.
    #[default]
    Energy,
    /// Bytes over metered links.
    MeteredBytes,
    /// What the bytes cost ([`Config::prices`]).
    Cost,
}

impl FromStr for Objective {
    type Err = UnknownName;
    fn from_str(name: &str) -> Result<Self, UnknownName> {
        match name {
            "energy" => Ok(Self::Energy),
            "metered-bytes" => Ok(Self::MeteredBytes),
            "money" => Ok(Self::Cost),
            _ => Err(UnknownName { name: name.to_string(), kind: "aim", known: "energy, metered-bytes or money" }),
        }
    }
}

/// A link as an earlier run left it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InitialEstimate {
    /// The link.
    pub link: LinkId,
    /// What it brought on average.
    pub rate: Bitrate,
    /// It rested.
    pub is_standby: bool,
}

/// What the bytes of one link cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkPrice {
    /// The link.
    pub link: LinkId,
    /// Millionths of the currency for 10^9 bytes. Which currency is all the same, as long as it is one.
    pub micros_per_gb: u64,
}

/// What one radio draws: active, and after its last byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GreenBagRadio {
    /// α: for each bit (mW per Mbit/s are nJ per bit).
    pub per_bit: EnergyPerBit,
    /// β: while it is active.
    pub active_power: Power,
    /// In the tail.
    pub tail_power: Power,
    /// How long the tail is.
    pub tail_time: Duration,
}

impl GreenBagRadio {
    /// GreenBag's LTE (Table I; §IV-B: 1350 mW for 11.2 s; promotions are ignored there).
    pub const GREENBAG_LTE: Self = Self {
        per_bit: EnergyPerBit::from_picojoules(16_720),
        active_power: Power::from_microwatts(2_022_200),
        tail_power: Power::from_milliwatts(1350),
        tail_time: Duration::from_millis(11_200),
    };
    /// GreenBag's Wi-Fi (Table I).
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

    /// As the energy room has it.
    pub fn model(&self) -> RadioModel {
        let mut model =
            RadioModel::new(PowerCurve { base: self.active_power, per_bit: self.per_bit, ..PowerCurve::default() });
        model.tail = Tail::new(&[PowerStage { power: self.tail_power, time: self.tail_time }]).unwrap_or_default();
        model
    }
}

/// What GreenBag sets, and what it leaves open (§IV-B).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GreenBagParams {
    /// The size of a segment: 500 KB of 2^10 bytes (§V-A2).
    pub segment_size: DataSize,
    /// w_r: a bottleneck is recovered if `w_r × T_P ≤ T_R`. The paper gives no value. chosen: 0.5, so that a subsegment
    /// is taken over while half of the buffer is left to do it in.
    pub recovery_weight: Ratio,
    /// w_e: all links are used again if `w_e × T_P ≤ T_R`. The paper gives no value. chosen: 0.5, as above.
    pub fall_back_weight: Ratio,
    /// The share of a link's predicted goodput on which the link-mode chooser relies when it gives up the other links; a
    /// link that is used alone already stays as long as it suffices without. The paper has none. chosen: 0.95;
    /// with everything relied upon, any error of the prediction ends in a fall-back, which costs a whole tail
    /// (15 J), and with 0.9 the radio runs longer: 124.5, 116.7, 127.1 and 137.4 J for 0.9, 0.95, 0.99 and 1 at 60 %.
    pub goodput_margin: Ratio,
    /// α of the goodput's moving average (§IV-B).
    pub alpha: Ratio,
    /// Whether lagging subsegments are taken over at all (figure 12 compares).
    pub recovery_enabled: bool,
    /// Whether subsegments follow the links' goodput; otherwise they are equal (figure 10 compares).
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
