//! Device models as people and programs read them.
//!
//! Numbers in JSON carry their unit in the name; the papers' mW per Mbit/s are nanojoules per bit.

use marline_core::energy::{ModelOrigin, PowerCurve, PowerStage, RadioModel};
use serde::Serialize;

use super::file::{self, ModelFile};
use super::{DEFAULT, json, table};
use crate::Exit;

/// The list of models.
pub(super) fn models(as_json: bool) -> Result<String, Exit> {
    let files: Vec<ModelFile> = file::names().map(file::find).collect::<Result<_, _>>().map_err(Exit::failed)?;
    if as_json {
        return json(&files.iter().map(Shown::new).collect::<Vec<_>>());
    }
    let mut rows = vec![["MODEL", "RADIOS", "SURE", "DEVICE"].map(str::to_owned).to_vec()];
    for file in &files {
        let kinds: Vec<&str> = file.model.radios().map(|(kind, _)| kind.name()).collect();
        let confidence = file.origin.confidence.to_string();
        rows.push(vec![file.model.name().into(), kinds.join(","), confidence, file.origin.device.clone()]);
    }
    let mut text = table(&rows);
    text += &format!("\n{DEFAULT} is the default. Sources:\n");
    for file in &files {
        text += &format!("  {}: {}\n", file.model.name(), file.origin.source);
    }
    Ok(text)
}

/// One model, whole.
pub(super) fn model(file: &ModelFile, as_json: bool) -> Result<String, Exit> {
    if as_json {
        return json(&Shown::new(file));
    }
    let ModelFile { model, origin } = file;
    let mut rows = vec![
        vec![model.name().to_owned(), origin.device.clone()],
        vec!["source".into(), origin.source.clone()],
        vec!["sure".into(), origin.confidence.to_string()],
    ];
    let remarks = [
        ("published", &origin.published),
        ("fitted", &origin.fitted),
        ("memory", &origin.from_memory),
        ("assumed", &origin.assumed),
    ];
    for (word, remark) in remarks {
        rows.extend(remark.as_ref().map(|remark| vec![word.to_owned(), remark.clone()]));
    }
    let together = model.concurrent();
    if !model.platform().is_zero() {
        rows.push(vec!["platform".into(), format!("{} all the time", model.platform())]);
    }
    if !together.shared_base.is_zero() {
        rows.push(vec!["shared".into(), format!("{} less for each further active radio", together.shared_base)]);
    }
    if !together.extra_per_bit.is_zero() {
        rows.push(vec!["extra".into(), format!("{} more while another radio is active", together.extra_per_bit)]);
    }
    let mut text = table(&rows) + "\n";
    let heads = ["RADIO", "DOWN", "UP", "PROMOTION", "TAIL", "IDLE", "ONE PACKET"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for (kind, radio) in model.radios() {
        rows.push(vec![
            kind.name().into(),
            draw(radio.down),
            draw(radio.up),
            stages(&[radio.promotion]),
            stages(radio.tail.stages()),
            radio.idle.to_string(),
            radio.single_packet_energy().to_string(),
        ]);
    }
    text += &table(&rows);
    Ok(text)
}

fn draw(draw: PowerCurve) -> String {
    let line = format!("{} + {}", draw.base, draw.per_bit);
    match draw.second_slope {
        Some(beyond) => format!("{line}, {} from {}", draw.per_bit + beyond.extra_per_bit, beyond.rate),
        None => line,
    }
}

fn stages(stages: &[PowerStage]) -> String {
    let shown: Vec<String> = stages
        .iter()
        .filter(|stage| !stage.time.is_zero())
        .map(|stage| format!("{} × {:.4}s", stage.power, stage.time.as_secs_f64()))
        .collect();
    if shown.is_empty() { "-".into() } else { shown.join(" + ") }
}

/// A model as JSON (`docs/json.md`).
#[derive(Serialize)]
struct Shown<'a> {
    name: &'a str,
    default: bool,
    #[serde(flatten)]
    origin: &'a ModelOrigin,
    platform_w: f64,
    shared_w: f64,
    extra_nj_per_bit: f64,
    radios: Vec<ShownRadio>,
}

#[derive(Serialize)]
struct ShownRadio {
    kind: &'static str,
    down: ShownDraw,
    up: ShownDraw,
    promotion: ShownStage,
    tail: Vec<ShownStage>,
    idle_w: f64,
    gap_s: f64,
    one_packet_j: f64,
}

#[derive(Serialize)]
struct ShownDraw {
    base_w: f64,
    nj_per_bit: f64,
    /// From this rate on each bit costs the other price.
    #[serde(skip_serializing_if = "Option::is_none")]
    beyond_mbps: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    beyond_nj_per_bit: Option<f64>,
}

#[derive(Serialize)]
struct ShownStage {
    power_w: f64,
    time_s: f64,
}

impl<'a> Shown<'a> {
    fn new(file: &'a ModelFile) -> Self {
        let model = &file.model;
        Self {
            name: model.name(),
            default: model.name() == DEFAULT,
            origin: &file.origin,
            platform_w: model.platform().as_watts_f64(),
            shared_w: model.concurrent().shared_base.as_watts_f64(),
            extra_nj_per_bit: model.concurrent().extra_per_bit.picojoules() as f64 / 1e3,
            radios: model.radios().map(|(kind, radio)| ShownRadio::new(kind.name(), radio)).collect(),
        }
    }
}

impl ShownRadio {
    fn new(kind: &'static str, radio: &RadioModel) -> Self {
        let draw = |draw: PowerCurve| ShownDraw {
            base_w: draw.base.as_watts_f64(),
            nj_per_bit: draw.per_bit.picojoules() as f64 / 1e3,
            beyond_mbps: draw.second_slope.map(|beyond| beyond.rate.as_mbps_f64()),
            beyond_nj_per_bit: draw
                .second_slope
                .map(|beyond| (draw.per_bit + beyond.extra_per_bit).picojoules() as f64 / 1e3),
        };
        let stage = |stage: &PowerStage| ShownStage {
            power_w: stage.power.as_watts_f64(),
            time_s: stage.time.as_secs_f64(),
        };
        Self {
            kind,
            down: draw(radio.down),
            up: draw(radio.up),
            promotion: stage(&radio.promotion),
            tail: radio.tail.stages().iter().map(stage).collect(),
            idle_w: radio.idle.as_watts_f64(),
            gap_s: radio.gap.as_secs_f64(),
            one_packet_j: radio.single_packet_energy().as_joules_f64(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_shown_with_its_figures_and_what_is_sure_of_them() {
        let text = model(&file::find("greenbag").unwrap(), false).unwrap();
        for part in
            ["GreenBag, RTSS 2013, Table I", "100%", "2022.2mW + 16.720nJ/bit", "1350.0mW × 11.2000s", "15.120J"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        let text = model(&file::find("emptcp-s3").unwrap(), false).unwrap();
        assert!(text.contains("298.4mW less for each further active radio"), "{text}");
        let text = model(&file::find("thesis-s7").unwrap(), false).unwrap();
        assert!(text.contains("700.0mW all the time") && text.contains("5.960nJ/bit more"), "{text}");
    }

    #[test]
    fn every_model_is_listed_with_its_source() {
        let text = models(false).unwrap();
        for name in file::names() {
            assert_eq!(text.lines().filter(|line| line.trim_start().starts_with(&format!("{name}:"))).count(), 1);
            assert!(text.lines().any(|line| line.starts_with(&format!("{name} "))), "{name}");
        }
        let list: serde_json::Value = serde_json::from_str(&models(true).unwrap()).unwrap();
        assert_eq!(list[0]["default"], true);
        assert_eq!(list[1]["radios"][1]["one_packet_j"], 15.12);
        assert_eq!(list[1]["confidence"], 1.0);
        assert_eq!(list[1]["memory"], serde_json::Value::Null);
    }
}
