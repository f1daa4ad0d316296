//! Radios compared with figures computed by hand, and properties that must hold for every history.

mod properties;
mod worked_examples;

use alloc::collections::BTreeMap;

use super::{ConcurrentDraw, Model, PowerCurve, PowerStage, RadioModel, SecondSlope, Tail};
use crate::link::LinkKind;
use crate::units::{Bitrate, Duration, Instant, Power};

pub(crate) fn at(ms: u64) -> Instant {
    Instant::from_millis(ms)
}

fn curve(base: &str, per_bit: &str) -> PowerCurve {
    PowerCurve { base: base.parse().unwrap(), per_bit: per_bit.parse().unwrap(), second_slope: None }
}

/// A promotion, or one stage of a tail, that lasts this number of microseconds.
fn stage(power: &str, micros: u64) -> PowerStage {
    PowerStage { power: power.parse().unwrap(), time: Duration::from_micros(micros) }
}

fn radio(down: PowerCurve, up: PowerCurve, promotion: PowerStage, tail: &[PowerStage]) -> RadioModel {
    RadioModel { up, promotion, tail: Tail::new(tail).unwrap(), ..RadioModel::new(down) }
}

/// GreenBag Table I and §IV-B.
pub(crate) fn greenbag() -> Model {
    let (wifi, lte) = (curve("360.9mW", "24.19nJ/bit"), curve("2022.2mW", "16.72nJ/bit"));
    let lte = radio(lte, lte, PowerStage::default(), &[stage("1350mW", 11_200_000)]);
    let radios = BTreeMap::from([(LinkKind::Wifi, RadioModel::new(wifi)), (LinkKind::Lte, lte)]);
    Model::new("greenbag", radios, ConcurrentDraw::default(), Power::ZERO).unwrap()
}

/// Huang 2012, Tables 3 and 4.
pub(crate) fn huang() -> Model {
    let lte = radio(
        curve("1288.04mW", "51.97nJ/bit"),
        curve("1288.04mW", "438.39nJ/bit"),
        stage("1210.7mW", 260_100),
        &[stage("1060mW", 11_576_000)],
    );
    let umts = radio(
        curve("817.88mW", "122.12nJ/bit"),
        curve("817.88mW", "868.98nJ/bit"),
        stage("659.4mW", 582_100),
        &[stage("803.9mW", 8_088_200), stage("601.3mW", 824_200)],
    );
    let wifi = radio(
        curve("132.86mW", "137.01nJ/bit"),
        curve("132.86mW", "283.17nJ/bit"),
        stage("124.4mW", 79_100),
        &[stage("119.3mW", 238_100)],
    );
    let radios = BTreeMap::from([(LinkKind::Lte, lte), (LinkKind::Umts, umts), (LinkKind::Wifi, wifi)]);
    Model::new("huang2012", radios, ConcurrentDraw::default(), Power::ZERO).unwrap()
}

/// The fit to eMPTCP Table 2: while both radios are active, they draw 298.44 mW less than the sum of their powers.
pub(crate) fn emptcp() -> Model {
    let (wifi, lte) = (curve("469.1mW", "112.6nJ/bit"), curve("1288.04mW", "51.97nJ/bit"));
    let second_slope = SecondSlope { rate: Bitrate::from_mbps(5), extra_per_bit: "60.63nJ/bit".parse().unwrap() };
    let lte = PowerCurve { second_slope: Some(second_slope), ..lte };
    let lte = radio(lte, lte, stage("1210.7mW", 260_100), &[stage("1060mW", 11_576_000)]);
    let radios = BTreeMap::from([(LinkKind::Wifi, RadioModel::new(wifi)), (LinkKind::Lte, lte)]);
    let concurrent = ConcurrentDraw { shared_base: "298.44mW".parse().unwrap(), ..ConcurrentDraw::default() };
    Model::new("emptcp-s3", radios, concurrent, Power::ZERO).unwrap()
}
