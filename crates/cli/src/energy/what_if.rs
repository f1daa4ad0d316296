//! `marline energy what-if`: computes the energy of a recorded download on other devices, per link and radio state.
//!
//! 1. The log is read once, for any number of models.
//! 2. The energy is counted by the same code and from the same inputs as in `marline get`, so that the result for a log agrees
//!    with the report of its run.
//! 3. Times are those of the log. A device with a longer promotion would have delayed the transfer, but a log does not show
//!    how.

use std::io::BufRead;
use std::path::Path;

use marline_core::decision_log::Record;
use marline_core::energy::Model;
use marline_core::stream;
use marline_core::units::DataSize;
use marline_download::{DownloadEnergy, LinkEnergy};
use marline_terminal::table::Table;
use serde::Serialize;

use crate::CliError;
use crate::args::JsonArgs;
use crate::decision_log::{self, LogReader, MachineConfig, MachineInput, MachineOutput};

/// Computes the energy of the log at `path` with every model, and prints it.
pub(super) fn run(path: &Path, models: Vec<Model>, format: JsonArgs) -> Result<(), CliError> {
    let report = count_log(decision_log::open(path)?, models)
        .map_err(|(line, problem)| CliError::failed(format!("{}:{line}: {problem}", path.display())))?;
    format.print(&report, render)
}

/// Result for all models (`docs/json.md`).
#[derive(Debug, Serialize)]
struct WhatIfReport {
    /// Last time in the log, in seconds since the start of the recorded run.
    seconds: f64,
    /// Number of the incomplete last line, if the run was killed.
    truncated_at: Option<u64>,
    models: Vec<ModelResult>,
}

#[derive(Debug, Serialize)]
struct ModelResult {
    model: String,
    /// Energy of all radios and of the platform. Null if the model has no radio for any of the links.
    energy_j: Option<f64>,
    /// The part that the device uses without its radios, for the whole time of the log.
    platform_j: f64,
    links: Vec<LinkResult>,
}

#[derive(Debug, Serialize)]
struct LinkResult {
    name: String,
    kind: &'static str,
    bytes: u64,
    /// Null if the model has no radio of this kind.
    energy_j: Option<f64>,
    /// The same energy, divided by radio state.
    energy: Option<LinkEnergy>,
}

fn count_log(log: impl BufRead, models: Vec<Model>) -> Result<WhatIfReport, (u64, String)> {
    let mut log = LogReader::new(log);
    let mut meters: Vec<DownloadEnergy> = models.into_iter().map(DownloadEnergy::new).collect();
    while let Some(record) = log.next_record()? {
        for meter in &mut meters {
            match &record {
                Record::Start { config: MachineConfig::Paths(_), .. } => {
                    // The log has bytes only at the times when the policy sampled the counters, which is too coarse. The
                    // daemon reports its energy itself.
                    let problem = "this is a log of `marline paths`, which has no energy data: see `marline paths status` instead";
                    return Err((log.line_number(), problem.to_owned()));
                }
                Record::Start { config: MachineConfig::Accel(_), .. } => {
                    let problem = "this is a log of `marline accel`, which has no energy data";
                    return Err((log.line_number(), problem.to_owned()));
                }
                Record::Start { .. }
                | Record::In { input: MachineInput::Paths(_) | MachineInput::Accel(_), .. } => {}
                Record::In { at, input: MachineInput::Stream(stream::Input::Fetch(input)) } => {
                    meter.on_input(*at, input)
                }
                Record::In { at, input: MachineInput::Stream(stream::Input::Player(_)) } | Record::Tick { at } => {
                    meter.tick(*at);
                }
                Record::Out { output: MachineOutput::Stream(stream::Output::Fetch(output)) } => {
                    meter.on_output(output)
                }
                Record::Out { .. } => {}
            }
        }
    }
    Ok(WhatIfReport {
        seconds: meters.first().map_or(0.0, |meter| meter.now().as_secs_f64()),
        truncated_at: log.truncated_at(),
        models: meters.iter().map(model_result).collect(),
    })
}

fn model_result(joules: &DownloadEnergy) -> ModelResult {
    let breakdown = joules.breakdown();
    let mut links = Vec::new();
    for (link, profile, bytes) in joules.links() {
        let radio_energy = breakdown.radio(link);
        links.push(LinkResult {
            name: profile.name.clone(),
            kind: profile.kind.name(),
            bytes: bytes.bytes(),
            energy_j: radio_energy.map(|energy| energy.total().as_joules_f64()),
            energy: radio_energy.map(Into::into),
        });
    }
    ModelResult {
        model: joules.meter().model().name().to_owned(),
        energy_j: links.iter().any(|link| link.energy_j.is_some()).then(|| breakdown.total().as_joules_f64()),
        platform_j: breakdown.platform.as_joules_f64(),
        links,
    }
}

/// One table per model.
fn render(report: &WhatIfReport) -> String {
    let mut text = String::new();
    for model in &report.models {
        if !text.is_empty() {
            text += "\n";
        }
        let header = ["LINK", "KIND", "CARRIED", "PROMOTION", "ACTIVE", "TAIL", "IDLE", "ALL"];
        let mut table = Table::new(header);
        for link in &model.links {
            let (name, kind) = (link.name.clone(), link.kind.to_owned());
            let carried = DataSize::from_bytes(link.bytes).to_string();
            match (&link.energy, link.energy_j) {
                (Some(parts), Some(total)) => {
                    let parts = [parts.promotion_j, parts.active_j, parts.tail_j, parts.idle_j, total];
                    let [promotion, active, tail, idle, total] = parts.map(|joules| format!("{joules:.2} J"));
                    table.row([name, kind, carried, promotion, active, tail, idle, total]);
                }
                _ => table.row([name, kind, carried, "not in this model".into()]),
            }
        }
        let total = model.energy_j.map_or_else(|| "unknown".into(), |joules| format!("{joules:.2} J"));
        text += &format!("{}: {total} in {:.2} s plus tails", model.model, report.seconds);
        if model.platform_j > 0.0 {
            text += &format!(", of which {:.2} J without radios", model.platform_j);
        }
        text += "\n";
        text += &table.to_string();
    }
    if let Some(line) = report.truncated_at {
        text += &format!("\nThe log is truncated at line {line} (the run was killed).\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::energy::model_file;

    /// A download of 1 MB over LTE in two seconds; there is an Ethernet link as well, which is not used.
    fn log() -> String {
        let mut text = String::new();
        let mut line = |json: String| text += &(json + "\n");
        let config = serde_json::to_string(&marline_core::fetch::Config::default()).unwrap();
        line(format!(r#"{{"log":"start","version":"0","config":{config}}}"#));
        for (link, name, kind) in [(0, "wwan0", "lte"), (1, "eth0", "ethernet")] {
            let profile =
                format!(r#"{{"name":"{name}","kind":"{kind}","metered":false,"budget":null,"rate_limit":null}}"#);
            line(format!(r#"{{"log":"in","at":0,"input":{{"in":"link_up","link":{link},"profile":{profile}}}}}"#));
        }
        line(r#"{"log":"out","output":{"out":"connect","conn":0,"link":0,"url":0}}"#.into());
        line(r#"{"log":"out","output":{"out":"request","req":0,"conn":0,"range":"full","if_range":null}}"#.into());
        for ms in (100..=2000).step_by(100) {
            line(format!(r#"{{"log":"in","at":{ms}000000,"input":{{"in":"data","req":0,"len":50000}}}}"#));
        }
        line(r#"{"log":"tick","at":2500000000}"#.into());
        text
    }

    fn models(names: &[&str]) -> Vec<Model> {
        names.iter().map(|name| model_file::load(name).unwrap().model).collect()
    }

    #[test]
    fn the_energy_of_a_log_is_equal_to_a_calculation_by_hand() {
        let log_counts = count_log(log().as_bytes(), models(&["greenbag", "thesis-s7"])).unwrap();
        assert!((log_counts.seconds - 2.5).abs() < 1e-9);
        let greenbag = &log_counts.models[0];
        let lte = &greenbag.links[0];
        assert_eq!((lte.name.as_str(), lte.kind, lte.bytes), ("wwan0", "lte", 1_000_000));
        // 2 s at 2022.2 mW, 8 Mbit at 16.72 nJ/bit, and the tail.
        let active = 2.0 * 2.0222 + 8e6 * 16.72e-9;
        assert!((lte.energy.unwrap().active_j - active).abs() < 1e-6);
        assert!((lte.energy_j.unwrap() - active - 15.12).abs() < 1e-6);
        assert_eq!(greenbag.links[1].energy_j, None);
        assert_eq!(greenbag.energy_j, lte.energy_j);
        // The whole device: 0.7 W for 2.5 s beside its radio.
        let s7 = &log_counts.models[1];
        assert!((s7.platform_j - 1.75).abs() < 1e-6);
        assert!((s7.energy_j.unwrap() - 1.75 - 2.0 * 0.393 - 8e6 * 13.5e-9).abs() < 1e-6);
    }

    #[test]
    fn the_result_is_one_table_per_model() {
        let text = render(&count_log(log().as_bytes(), models(&["greenbag", "thesis-s7"])).unwrap());
        let expected = "\
greenbag: 19.30 J in 2.50 s plus tails
LINK   KIND      CARRIED  PROMOTION          ACTIVE  TAIL     IDLE    ALL
wwan0  lte       1.0MB    0.00 J             4.18 J  15.12 J  0.00 J  19.30 J
eth0   ethernet  0B       not in this model

thesis-s7: 2.64 J in 2.50 s plus tails, of which 1.75 J without radios
";
        assert!(text.starts_with(expected), "{text}");
    }

    #[test]
    fn a_truncated_log_is_counted_up_to_its_last_complete_line() {
        let full_log = log();
        let text = &full_log[..full_log.len() - 10];
        let log_counts = count_log(text.as_bytes(), models(&["greenbag"])).unwrap();
        assert_eq!(log_counts.truncated_at, Some(full_log.lines().count() as u64));
        assert!(render(&log_counts).ends_with("(the run was killed).\n"));
        let (line, message) = count_log("no log\n".as_bytes(), models(&["greenbag"])).unwrap_err();
        assert!(line == 1 && message.starts_with("not a decision log of marline"), "{message}");
    }
}
