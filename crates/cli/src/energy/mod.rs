//! `marline energy`: what radios draw, and what a recorded download would have cost on any device.
//!
//! In: model files (`models/`, or a user's own) and logs of `--trace`. Out: tables for people or JSON for programs, on
//! standard output; and the model that `marline get` counts joules by.
//!
//! The arithmetic is `core::energy`'s; here models are read and results are shown.

mod model_file;
mod models;
mod what_if;

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use marline_core::energy::Model;
use marline_download::Report;
use marline_net::printable::printable;
use serde::Serialize;

use crate::{CliError, ConfigFile};

/// `marline energy`.
#[derive(Debug, Args)]
pub struct EnergyArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: EnergyCommand,
}

/// The verbs of `marline energy`.
#[derive(Debug, Subcommand)]
pub enum EnergyCommand {
    /// List the device models, with who measured them.
    Models {
        /// Print one JSON array.
        #[arg(long)]
        json: bool,
    },
    /// Show one device model: what each radio draws, what is sure of it, and what one packet costs.
    Show {
        /// The model: a name, or a file with its path.
        #[arg(value_name = "NAME|FILE")]
        model: String,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Count the joules of a recorded download on other devices: per link, and per state of its radio.
    WhatIf {
        /// The log that `marline get --trace` wrote; `-` reads standard input.
        #[arg(value_name = "LOG")]
        log: PathBuf,
        /// The device: a name, or a file with its path; repeat to compare [default: as `marline get`].
        #[arg(long = "model", value_name = "NAME|FILE")]
        models: Vec<String>,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
}

pub(crate) const AFTER_HELP: &str = "\
Examples:
  marline energy models
  marline energy show greenbag
  marline get --trace run.ndjson --json https://example.org/big.iso
  marline energy what-if run.ndjson --model greenbag --model narayanan2021-nsa-low

The links' kinds (wifi, lte, nr, umts) say which radio of the model each one is taken for; --link NAME,kind=lte or the
configuration file sets them. A model of your own is a TOML file: see docs/energy.md.";

/// Shows what was asked for.
pub(crate) fn run(args: &EnergyArgs, config: Option<&Path>) -> Result<(), CliError> {
    let output = match &args.command {
        EnergyCommand::Models { json } => models::render_list(*json)?,
        EnergyCommand::Show { model, json } => {
            models::render_model(&model_file::load(model).map_err(CliError::usage)?, *json)?
        }
        EnergyCommand::WhatIf { log, models, json } => {
            let models = if models.is_empty() {
                let configured = ConfigFile::read(config)?.energy_model;
                let model = select_model(None, configured.as_deref())?;
                vec![model.ok_or_else(|| {
                    CliError::usage("the configuration says no energy model: name one with --model")
                })?]
            } else {
                let found = models.iter().map(|name| model_file::load(name).map(|file| file.model));
                found.collect::<Result<Vec<_>, _>>().map_err(CliError::usage)?
            };
            what_if::run(log, models, *json)?
        }
    };
    crate::output::print_result(&output)
}

/// The model that is named on the command line, else in the configuration, else the default; none: `none` was said.
pub(crate) fn select_model(option: Option<&str>, configured: Option<&str>) -> Result<Option<Model>, CliError> {
    let (name, source) = match (option, configured) {
        (Some(name), _) => (name, "--energy-model: "),
        (None, Some(name)) => (name, "energy-model in the configuration file: "),
        (None, None) => (DEFAULT_MODEL, ""),
    };
    if name == "none" {
        return Ok(None);
    }
    model_file::load(name).map(|file| Some(file.model)).map_err(|error| CliError::usage(format!("{source}{error}")))
}

/// The joules of a download in one line; none: nothing was counted.
pub(crate) fn summary_line(report: &Report) -> Option<String> {
    let model = report.energy_model.as_deref()?;
    let mut links = Vec::new();
    for link in &report.links {
        match link.energy_j {
            Some(joules) => links.push(format!("{} {joules:.2} J", link.name)),
            None => links.push(format!("{} not known: the model has no {}", link.name, link.kind)),
        }
    }
    let total = report.energy_j.map_or_else(|| "nothing known".into(), |joules| format!("{joules:.2} J"));
    Some(format!("energy on {model}, tails included: {total} ({})", links.join(", ")))
}

/// JSON as a text with a line end.
pub(crate) fn to_json(value: &impl Serialize) -> Result<String, CliError> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| CliError::failed(format!("the result cannot be written as JSON: {error}")))?;
    Ok(text + "\n")
}

/// Columns as wide as their widest cell; the last one is not filled up.
pub(crate) fn render_table(rows: &[Vec<String>]) -> String {
    // Escaped here and not only where it is printed: escaping widens cells.
    let escape_cell = |cell: &String| printable(cell).into_owned();
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(escape_cell).collect()).collect();
    let mut widths: Vec<usize> = Vec::new();
    for row in &rows {
        widths.resize(widths.len().max(row.len()), 0);
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line += &format!("{cell:<width$}  ");
        }
        text += line.trim_end();
        text += "\n";
    }
    text
}

/// Has a radio of every kind, and of Wi-Fi and LTE those whose figures are surest.
const DEFAULT_MODEL: &str = "typical";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_wins_over_the_configuration_and_that_over_the_default() {
        let name =
            |option, configured| select_model(option, configured).unwrap().map(|model| model.name().to_owned());
        assert_eq!(name(Some("greenbag"), Some("huang2012")).as_deref(), Some("greenbag"));
        assert_eq!(name(None, Some("huang2012")).as_deref(), Some("huang2012"));
        assert_eq!(name(None, None).as_deref(), Some(DEFAULT_MODEL));
        assert_eq!(model_file::built_in_names().next(), Some(DEFAULT_MODEL));
        assert_eq!(name(Some("none"), Some("huang2012")), None);
        let line = select_model(None, Some("x")).unwrap_err().message.unwrap();
        assert!(line.starts_with("energy-model in the configuration file: `x` is no energy model"), "{line}");
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let row = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        assert_eq!(render_table(&[row(["a", "b"]), row(["ccc", ""])]), "a    b\nccc\n");
    }
}
