//! Output of device energy models as tables or JSON.
//!
//! JSON fields have their unit in the name. The papers' mW per Mbit/s are equal to nanojoules per bit.

use marline_core::energy::{ModelOrigin, PowerCurve, PowerStage, RadioModel};
use marline_terminal::table::Table;
use serde::Serialize;

use super::DEFAULT_MODEL;
use super::model_file::{self, LoadedModel};
use crate::CliError;
use crate::args::JsonArgs;

/// Prints the list of built-in models.
pub(super) fn print_list(format: JsonArgs) -> Result<(), CliError> {
    let models = load_built_in().map_err(CliError::failed)?;
    format.print(&models.iter().map(ModelJson::new).collect::<Vec<_>>(), |_| render_list(&models))
}

fn load_built_in() -> Result<Vec<LoadedModel>, String> {
    model_file::built_in_names().map(model_file::load).collect()
}

fn render_list(models: &[LoadedModel]) -> String {
    let mut table = Table::new(["MODEL", "RADIOS", "CONFIDENCE", "DEVICE"]);
    for file in models {
        let kinds: Vec<&str> = file.model.radios().map(|(kind, _)| kind.name()).collect();
        let confidence = file.origin.confidence.to_string();
        table.row([file.model.name().into(), kinds.join(","), confidence, file.origin.device.clone()]);
    }
    let mut text = format!("{table}\n{DEFAULT_MODEL} is the default. Sources:\n");
    for file in models {
        text += &format!("  {}: {}\n", file.model.name(), file.origin.source);
    }
    text
}

/// Prints one model with all its figures.
pub(super) fn print_model(file: &LoadedModel, format: JsonArgs) -> Result<(), CliError> {
    format.print(&ModelJson::new(file), |_| render_model(file))
}

fn render_model(file: &LoadedModel) -> String {
    let LoadedModel { model, origin } = file;
    let mut facts = Table::without_header();
    facts.row([model.name().to_owned(), origin.device.clone()]);
    facts.row(["source".into(), origin.source.clone()]);
    facts.row(["confidence".into(), origin.confidence.to_string()]);
    let notes = [
        ("published", &origin.published),
        ("fitted", &origin.fitted),
        ("memory", &origin.from_memory),
        ("assumed", &origin.assumed),
    ];
    for (label, remark) in notes {
        if let Some(remark) = remark {
            facts.row([label.to_owned(), remark.clone()]);
        }
    }
    let concurrent = model.concurrent();
    if !model.platform().is_zero() {
        facts.row(["platform".into(), format!("{} continuously", model.platform())]);
    }
    if !concurrent.shared_base.is_zero() {
        facts.row(["shared".into(), format!("{} less for each further active radio", concurrent.shared_base)]);
    }
    if !concurrent.extra_per_bit.is_zero() {
        facts.row(["extra".into(), format!("{} more while another radio is active", concurrent.extra_per_bit)]);
    }
    let mut radios = Table::new(["RADIO", "DOWN", "UP", "PROMOTION", "TAIL", "IDLE", "ONE PACKET"]);
    for (kind, radio) in model.radios() {
        radios.row([
            kind.name().into(),
            draw_text(radio.down),
            draw_text(radio.up),
            stages_text(&[radio.promotion]),
            stages_text(radio.tail.stages()),
            radio.idle.to_string(),
            radio.single_packet_energy().to_string(),
        ]);
    }
    format!("{facts}\n{radios}")
}

fn draw_text(draw: PowerCurve) -> String {
    let line = format!("{} + {}", draw.base, draw.per_bit);
    match draw.second_slope {
        Some(second_slope) => {
            format!("{line}, {} from {}", draw.per_bit + second_slope.extra_per_bit, second_slope.rate)
        }
        None => line,
    }
}

fn stages_text(stages: &[PowerStage]) -> String {
    let parts: Vec<String> = stages
        .iter()
        .filter(|stage| !stage.time.is_zero())
        .map(|stage| format!("{} × {:.4}s", stage.power, stage.time.as_secs_f64()))
        .collect();
    if parts.is_empty() { "-".into() } else { parts.join(" + ") }
}

/// JSON form of a model (`docs/json.md`).
#[derive(Serialize)]
struct ModelJson<'a> {
    name: &'a str,
    default: bool,
    #[serde(flatten)]
    origin: &'a ModelOrigin,
    platform_w: f64,
    shared_w: f64,
    extra_nj_per_bit: f64,
    radios: Vec<RadioJson>,
}

#[derive(Serialize)]
struct RadioJson {
    kind: &'static str,
    down: DrawJson,
    up: DrawJson,
    promotion: StageJson,
    tail: Vec<StageJson>,
    idle_w: f64,
    gap_s: f64,
    one_packet_j: f64,
}

#[derive(Serialize)]
struct DrawJson {
    base_w: f64,
    nj_per_bit: f64,
    /// Rate from which each further bit costs `second_slope_nj_per_bit`.
    #[serde(skip_serializing_if = "Option::is_none")]
    second_slope_from_mbps: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    second_slope_nj_per_bit: Option<f64>,
}

#[derive(Serialize)]
struct StageJson {
    power_w: f64,
    time_s: f64,
}

impl<'a> ModelJson<'a> {
    fn new(file: &'a LoadedModel) -> Self {
        let model = &file.model;
        Self {
            name: model.name(),
            default: model.name() == DEFAULT_MODEL,
            origin: &file.origin,
            platform_w: model.platform().as_watts_f64(),
            shared_w: model.concurrent().shared_base.as_watts_f64(),
            extra_nj_per_bit: model.concurrent().extra_per_bit.picojoules() as f64 / 1e3,
            radios: model.radios().map(|(kind, radio)| RadioJson::new(kind.name(), radio)).collect(),
        }
    }
}

impl RadioJson {
    fn new(kind: &'static str, radio: &RadioModel) -> Self {
        let draw_json = |curve: PowerCurve| DrawJson {
            base_w: curve.base.as_watts_f64(),
            nj_per_bit: curve.per_bit.picojoules() as f64 / 1e3,
            second_slope_from_mbps: curve.second_slope.map(|second_slope| second_slope.rate.as_mbps_f64()),
            second_slope_nj_per_bit: curve
                .second_slope
                .map(|second_slope| (curve.per_bit + second_slope.extra_per_bit).picojoules() as f64 / 1e3),
        };
        let stage = |stage: &PowerStage| StageJson {
            power_w: stage.power.as_watts_f64(),
            time_s: stage.time.as_secs_f64(),
        };
        Self {
            kind,
            down: draw_json(radio.down),
            up: draw_json(radio.up),
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
    fn a_model_is_printed_with_its_figures_and_its_confidence() {
        let text = render_model(&model_file::load("greenbag").unwrap());
        for part in
            ["GreenBag, RTSS 2013, Table I", "100%", "2022.2mW + 16.720nJ/bit", "1350.0mW × 11.2000s", "15.120J"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        let text = render_model(&model_file::load("emptcp-s3").unwrap());
        assert!(text.contains("298.4mW less for each further active radio"), "{text}");
        let text = render_model(&model_file::load("thesis-s7").unwrap());
        assert!(text.contains("700.0mW continuously") && text.contains("5.960nJ/bit more"), "{text}");
    }

    #[test]
    fn every_model_is_listed_with_its_source() {
        let models = load_built_in().unwrap();
        let text = render_list(&models);
        for name in model_file::built_in_names() {
            assert_eq!(text.lines().filter(|line| line.trim_start().starts_with(&format!("{name}:"))).count(), 1);
            assert!(text.lines().any(|line| line.starts_with(&format!("{name} "))), "{name}");
        }
        let list = serde_json::to_value(models.iter().map(ModelJson::new).collect::<Vec<_>>()).unwrap();
        assert_eq!(list[0]["default"], true);
        assert_eq!(list[1]["radios"][1]["one_packet_j"], 15.12);
        assert_eq!(list[1]["confidence"], 1.0);
        assert_eq!(list[1]["from_memory"], serde_json::Value::Null);
    }
}
