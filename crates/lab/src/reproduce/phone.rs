//! The thesis's phones: what a download would have drawn from their batteries (chapter 7).
//!
//! In: an outcome: how many bytes came over each link, and when. Out: joules and watts by the models that are fitted to
//! the thesis's tables 7.1 to 7.5 (`thesis-s6`, `thesis-s7` of `marline energy models`).
//!
//! 1. The first scenario was measured with the S6, all others with the S7.
//! 2. Both models are of the whole phone, 0.7 W of it always; they have no tails.
//! 3. Bytes are payload; where a run's timeline was not kept, they are spread over the link's time.
//! 4. The models are fitted to half of what they are compared with here (single links); what the multi-link rows show is
//!    whether time and shares of the links are those of the paper.

use std::collections::BTreeMap;

use marline_core::energy::{Direction, Draw, Meter, Model, RadioModel, Together};
use marline_core::link::{LinkId, LinkKind};
use marline_core::units::{Bitrate, DataSize, Duration, Instant};
use serde::Deserialize;

use crate::LabError;
use crate::evidence::{Outcome, SLOT_S};

/// What the phone drew from the start of the download to its end.
pub(super) fn joules(outcome: &Outcome) -> f64 {
    let mut meter = Meter::new(model(&outcome.case), Instant::ZERO);
    for (id, link) in (0..).map(LinkId).zip(&outcome.links) {
        meter.on_link(Instant::ZERO, id, link.kind);
    }
    let slots: Vec<Vec<u64>> = outcome.links.iter().map(payload).collect();
    for at in 0..slots.iter().map(Vec::len).max().unwrap_or(0) {
        let end = Instant::ZERO + Duration::from_secs_f64(((at + 1) as f64 * SLOT_S).min(outcome.seconds));
        for (id, slots) in (0..).map(LinkId).zip(&slots) {
            if let Some(bytes) = slots.get(at).filter(|bytes| **bytes > 0) {
                meter.on_bytes(end, id, Direction::Down, DataSize::from_bytes(*bytes));
            }
        }
    }
    meter.spent(Instant::ZERO + Duration::from_secs_f64(outcome.seconds)).total().as_joules_f64()
}

/// The phone's power in each slot; nothing where the timeline was not kept.
pub(super) fn watts(outcome: &Outcome) -> Vec<f64> {
    let model = model(&outcome.case);
    let kept = outcome.links.iter().map(|link| link.timeline.len()).max().unwrap_or(0);
    let slot = |at: usize| {
        let loads: Vec<(LinkKind, Direction, Bitrate)> = outcome
            .links
            .iter()
            .filter_map(|link| Some((link.kind, *link.timeline.get(at).filter(|bytes| **bytes > 0)?)))
            .map(|(kind, bytes)| {
                let rate = DataSize::from_bytes(of_packets(bytes)) / Duration::from_secs_f64(SLOT_S);
                (kind, Direction::Down, rate)
            })
            .collect();
        (model.active_power(&loads) + model.platform()).as_watts_f64()
    };
    // The last slot is only partly filled.
    (0..kept.saturating_sub(1)).map(slot).collect()
}

/// Payload in each slot.
fn payload(link: &crate::evidence::LinkOutcome) -> Vec<u64> {
    if !link.timeline.is_empty() {
        return link.timeline.iter().map(|bytes| of_packets(*bytes)).collect();
    }
    let Some((first, last)) = link.span_s else { return Vec::new() };
    let (first, last) = ((first / SLOT_S) as usize, (last / SLOT_S) as usize);
    let each = of_packets(link.bytes) / (last - first.min(last) + 1) as u64;
    (0..=last).map(|slot| if slot < first { 0 } else { each }).collect()
}

/// Of 1500 bytes of a packet 1448 are payload.
const fn of_packets(bytes: u64) -> u64 {
    bytes / 1500 * 1448 + bytes % 1500 * 1448 / 1500
}

fn model(case: &str) -> Model {
    let name = if case == "HS-S6" { "thesis-s6" } else { "thesis-s7" };
    let text = if case == "HS-S6" { S6 } else { S7 };
    parse(name, text).expect("the models that come along are understood")
}

const S6: &str = include_str!("../../../marline/models/thesis-s6.toml");
const S7: &str = include_str!("../../../marline/models/thesis-s7.toml");

/// The part of a model's file that these two use.
#[derive(Deserialize)]
struct File {
    platform: String,
    together: Written,
    radio: BTreeMap<LinkKind, Described>,
}

#[derive(Deserialize)]
struct Written {
    shared: String,
    extra: String,
}

#[derive(Deserialize)]
struct Described {
    down: Priced,
}

#[derive(Deserialize)]
struct Priced {
    base: String,
    per_bit: String,
}

fn parse(name: &str, text: &str) -> Result<Model, LabError> {
    let wrong = |what: &str| LabError::Spec(format!("model {name}: {what}"));
    let file: File = toml::from_str(text).map_err(|error| wrong(&error.to_string()))?;
    let power = |word: &str| word.parse().map_err(|_| wrong(word));
    let price = |word: &str| word.parse().map_err(|_| wrong(word));
    let mut radios = BTreeMap::new();
    for (kind, radio) in &file.radio {
        let draw = Draw { base: power(&radio.down.base)?, per_bit: price(&radio.down.per_bit)? };
        radios.insert(*kind, RadioModel::new(draw));
    }
    let together = Together { shared: power(&file.together.shared)?, extra: price(&file.together.extra)? };
    Model::new(name, radios, together, power(&file.platform)?).map_err(|error| wrong(&error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::outcome::tests::example;

    /// 250 MB over one link at a steady rate, in the time of table 7.10.
    fn alone(case: &str, wifi: bool, seconds: f64) -> Outcome {
        let mut outcome = Outcome { case: case.into(), ..example("single", 0, seconds) };
        for link in &mut outcome.links {
            link.timeline = Vec::new();
            let used = (link.kind == LinkKind::Wifi) == wifi;
            link.bytes = if used { 250_000_000 / 1448 * 1500 } else { 0 };
            link.span_s = used.then_some((0.0, seconds));
        }
        outcome
    }

    #[test]
    fn single_links_draw_what_table_7_10_says() {
        let rows = [("HS-S6", true, 26.06, 58.68), ("HS-S6", false, 52.97, 103.10), ("HS-S7", true, 26.25, 50.20)];
        for (case, wifi, seconds, paper) in rows {
            let ours = joules(&alone(case, wifi, seconds));
            assert!((ours / paper - 1.0).abs() < 0.05, "{case} {wifi}: {ours} J instead of {paper}");
        }
    }

    #[test]
    fn two_links_draw_more_than_one_and_the_phone_always_something() {
        let both = Outcome { case: "HS-S7".into(), ..example("marline", 0, 6.0) };
        let watts = watts(&both);
        assert!(watts.iter().all(|watts| *watts > 0.7) && watts.len() == 59);
        assert!(joules(&both) > 6.0 * 0.7);
        assert!((joules(&both) / 6.0 - watts.iter().sum::<f64>() / 59.0).abs() < 0.1);
        let idle = Outcome { links: Vec::new(), ..both };
        assert!((joules(&idle) - 4.2).abs() < 1e-6);
    }
}
