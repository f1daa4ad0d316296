//! What a stream is told before it starts.

use alloc::string::ToString;
use alloc::vec::Vec;
use core::str::FromStr;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::energy::{Draw, Model, RadioModel, Stage, Tail, Together};
use crate::fetch;
use crate::link::{LinkId, LinkKind};
use crate::playback::{Profile, Thresholds};
use crate::units::{Bitrate, DataSize, EnergyPerBit, Power, Ratio, UnknownWord};

/// Everything that shapes a stream, apart from what happens on the network and in the player. A log begins with it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The download underneath. Its sizing policy rules only as long as the resource is not known.
    pub fetch: fetch::Config,
    /// Which link brings what, and which radios sleep.
    pub policy: Policy,
    /// The video; none: nobody knows it, and nothing is saved.
    pub video: Option<Profile>,
    /// Whether the start may wait where the links cannot carry the video: one wait instead of several.
    pub patient: bool,
    /// The player's buffer.
    pub player: Thresholds,
    /// What is to be small.
    pub minimise: Minimise,
    /// What the radio of each kind of link draws; kinds that it does not describe cost nothing.
    pub energy: Model,
    /// What the bytes of links cost, where that is to be small; links that are not named cost nothing.
    pub prices: Vec<Price>,
    /// What an earlier run has learnt of the links.
    #[serde(default)]
    pub expected: Vec<Expected>,
    /// GreenBag's own figures.
    pub greenbag: GreenBag,
}

impl Default for Config {
    /// `marline` with the radios of GreenBag's paper, a window of 32 MB, and no video.
    fn default() -> Self {
        let window = Some(DataSize::from_bytes(32_000_000));
        Self {
            fetch: fetch::Config { window, metered: fetch::MeteredUse::Use, ..fetch::Config::default() },
            policy: Policy::default(),
            video: None,
            patient: true,
            player: Thresholds::default(),
            minimise: Minimise::default(),
            energy: Radio::greenbag(),
            prices: Vec::new(),
            expected: Vec::new(),
            greenbag: GreenBag::default(),
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
    type Err = UnknownWord;
    fn from_str(word: &str) -> Result<Self, UnknownWord> {
        match word {
            "marline" => Ok(Self::Marline),
            "greenbag-p" => Ok(Self::GreenbagP),
            "greenbag-e" => Ok(Self::GreenbagE),
            _ => Err(UnknownWord {
                word: word.to_string(),
                what: "policy",
                words: "marline, greenbag-p or greenbag-e",
            }),
        }
    }
}

/// What a stream makes small, once the video comes in time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Minimise {
    /// What the radios draw.
    #[default]
    Energy,
    /// Bytes over metered links.
    MeteredBytes,
    /// What the bytes cost ([`Config::prices`]).
    Money,
}

impl FromStr for Minimise {
    type Err = UnknownWord;
    fn from_str(word: &str) -> Result<Self, UnknownWord> {
        match word {
            "energy" => Ok(Self::Energy),
            "metered-bytes" => Ok(Self::MeteredBytes),
            "money" => Ok(Self::Money),
            _ => Err(UnknownWord { word: word.to_string(), what: "aim", words: "energy, metered-bytes or money" }),
        }
    }
}

/// A link as an earlier run left it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expected {
    /// The link.
    pub link: LinkId,
    /// What it brought on average.
    pub rate: Bitrate,
    /// It rested.
    pub rests: bool,
}

/// What the bytes of one link cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// The link.
    pub link: LinkId,
    /// Millionths of the currency for 10^9 bytes. Which currency is all the same, as long as it is one.
    pub micros_per_gb: u64,
}

/// What one radio draws: active, and after its last byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Radio {
    /// α: for each bit (mW per Mbit/s are nJ per bit).
    pub per_bit: EnergyPerBit,
    /// β: while it is active.
    pub power: Power,
    /// In the tail.
    pub tail_power: Power,
    /// How long the tail is.
    pub tail: Duration,
}

impl Radio {
    /// GreenBag's LTE (Table I; §IV-B: 1350 mW for 11.2 s; promotions are ignored there).
    pub const GREENBAG_LTE: Self = Self {
        per_bit: EnergyPerBit::from_picojoules(16_720),
        power: Power::from_microwatts(2_022_200),
        tail_power: Power::from_milliwatts(1350),
        tail: Duration::from_millis(11_200),
    };
    /// GreenBag's Wi-Fi (Table I).
    pub const GREENBAG_WIFI: Self = Self {
        per_bit: EnergyPerBit::from_picojoules(24_190),
        power: Power::from_microwatts(360_900),
        tail_power: Power::ZERO,
        tail: Duration::ZERO,
    };

    /// A device with GreenBag's two radios, whose powers add up.
    pub fn greenbag() -> Model {
        let radios = [(LinkKind::Lte, Self::GREENBAG_LTE), (LinkKind::Wifi, Self::GREENBAG_WIFI)];
        let radios = radios.into_iter().map(|(kind, radio)| (kind, radio.model())).collect();
        Model::new("greenbag", radios, Together::default(), Power::ZERO).expect("radios that share nothing")
    }

    /// As the energy room has it.
    pub fn model(&self) -> RadioModel {
        let mut model = RadioModel::new(Draw { base: self.power, per_bit: self.per_bit, ..Draw::default() });
        model.tail = Tail::new(&[Stage { power: self.tail_power, time: self.tail }]).unwrap_or_default();
        model
    }
}

/// What GreenBag sets, and what it leaves open (§IV-B).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GreenBag {
    /// The size of a segment: 500 KB of 2^10 bytes (§V-A2).
    pub segment: DataSize,
    /// w_r: a bottleneck is recovered if `w_r × T_P ≤ T_R`. The paper gives no value. chosen: 0.5, so that a subsegment
    /// is taken over while half of the buffer is left to do it in.
    pub recovery: Ratio,
    /// w_e: all links are used again if `w_e × T_P ≤ T_R`. The paper gives no value. chosen: 0.5, as above.
    pub fall_back: Ratio,
    /// The share of a link's predicted goodput on which the link-mode chooser relies when it gives up the other links; a
    /// link that is used alone already stays as long as it suffices without. The paper has none. chosen: 0.95;
    /// with everything relied upon, any error of the prediction ends in a fall-back, which costs a whole tail
    /// (15 J), and with 0.9 the radio runs longer: 124.5, 116.7, 127.1 and 137.4 J for 0.9, 0.95, 0.99 and 1 at 60 %.
    pub margin: Ratio,
    /// α of the goodput's moving average (§IV-B).
    pub alpha: Ratio,
    /// Whether lagging subsegments are taken over at all (figure 12 compares).
    pub recovers: bool,
    /// Whether subsegments follow the links' goodput; otherwise they are equal (figure 10 compares).
    pub adapts: bool,
}

impl Default for GreenBag {
    fn default() -> Self {
        Self {
            segment: DataSize::from_kib(500),
            recovery: Ratio::from_percent(50),
            fall_back: Ratio::from_percent(50),
            margin: Ratio::from_percent(95),
            alpha: Ratio::from_percent(30),
            recovers: true,
            adapts: true,
        }
    }
}
