//! `marline energy`: prints device energy models and computes the radio energy of recorded downloads.
//!
//! This module reads model files (`crates/core/models`, or a user's own) and decision logs of `--trace`, and prints tables for
//! people or JSON for programs. It also selects the model with which other commands count energy. The arithmetic is in
//! `core::energy`.

mod model_file;
mod models;
mod what_if;

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use marline_core::energy::Model;
use marline_download::Report;

use crate::args::JsonArgs;
use crate::{CliError, ConfigFile};

/// `marline energy`.
#[derive(Debug, Args)]
pub struct EnergyArgs {
    /// The subcommand.
    #[command(subcommand)]
    pub command: EnergyCommand,
}

/// Subcommands of `marline energy`.
#[derive(Debug, Subcommand)]
pub enum EnergyCommand {
    /// List the device energy models with their sources.
    #[command(mut_arg("json", |arg| arg.help("Print one JSON array")))]
    Models {
        /// Format of the result.
        #[command(flatten)]
        format: JsonArgs,
    },
    /// Show one device energy model: the power of each radio, its confidence, and the energy of a single packet.
    Show {
        /// Model name, or path of a model file.
        #[arg(value_name = "NAME|FILE")]
        model: String,
        /// Format of the result.
        #[command(flatten)]
        format: JsonArgs,
    },
    /// Compute the energy of a recorded download on other devices, per link and per radio state.
    WhatIf {
        /// Log written by `marline get --trace` or `marline proxy --trace`; `-` reads standard input.
        #[arg(value_name = "LOG")]
        log: PathBuf,
        /// Model name, or path of a model file; repeat to compare [default: that of the configuration file, or else typical].
        #[arg(long = "model", value_name = "NAME|FILE")]
        models: Vec<String>,
        /// Format of the result.
        #[command(flatten)]
        format: JsonArgs,
    },
}

pub(crate) const AFTER_HELP: &str = "\
Examples:
  marline energy models
  marline energy show greenbag
  marline get --trace run.ndjson --json https://example.org/big.iso
  marline energy what-if run.ndjson --model greenbag --model narayanan2021-nsa-low

The kind of a link (wifi, lte, nr, umts) selects the radio of the model; set it with --link
NAME,kind=lte or in the configuration file. docs/energy.md explains how to write a model of your
own as a TOML file.";

/// Runs a subcommand of `marline energy`.
pub(crate) fn run(args: &EnergyArgs, config: Option<&Path>) -> Result<(), CliError> {
    match &args.command {
        EnergyCommand::Models { format } => models::print_list(*format),
        EnergyCommand::Show { model, format } => {
            models::print_model(&model_file::load(model).map_err(CliError::usage)?, *format)
        }
        EnergyCommand::WhatIf { log, models, format } => {
            let models = if models.is_empty() {
                let configured = ConfigFile::read(config)?.energy_model;
                let model = select_model(None, configured.as_deref())?;
                vec![model.ok_or_else(|| {
                    CliError::usage("the configuration file disables energy models: name one with --model")
                })?]
            } else {
                let found = models.iter().map(|name| model_file::load(name).map(|file| file.model));
                found.collect::<Result<Vec<_>, _>>().map_err(CliError::usage)?
            };
            what_if::run(log, models, *format)
        }
    }
}

/// Loads the model named on the command line, else in the configuration file, else the default. `None` for the name `none`.
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

/// One line with the energy of a download; `None` if it was not counted.
pub(crate) fn summary_line(report: &Report) -> Option<String> {
    let model = report.energy_model.as_deref()?;
    let mut links = Vec::new();
    for link in &report.links {
        match link.energy_j {
            Some(joules) => links.push(format!("{} {joules:.2} J", link.name)),
            None => links.push(format!("{} unknown: the model has no {} radio", link.name, link.kind)),
        }
    }
    let total = report.energy_j.map_or_else(|| "unknown".into(), |joules| format!("{joules:.2} J"));
    Some(format!("energy with model {model}, including tails: {total} ({})", links.join(", ")))
}

/// The default model. It has a radio of each of the four kinds (wifi, lte, umts, nr); those for Wi-Fi and LTE have the most reliable
/// figures.
const DEFAULT_MODEL: &str = "typical";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_overrides_the_configuration_which_overrides_the_default() {
        let name =
            |option, configured| select_model(option, configured).unwrap().map(|model| model.name().to_owned());
        assert_eq!(name(Some("greenbag"), Some("huang2012")).as_deref(), Some("greenbag"));
        assert_eq!(name(None, Some("huang2012")).as_deref(), Some("huang2012"));
        assert_eq!(name(None, None).as_deref(), Some(DEFAULT_MODEL));
        assert_eq!(model_file::built_in_names().next(), Some(DEFAULT_MODEL));
        assert_eq!(name(Some("none"), Some("huang2012")), None);
        let line = select_model(None, Some("x")).unwrap_err().message.unwrap();
        assert!(line.starts_with("energy-model in the configuration file: unknown energy model `x`"), "{line}");
    }
}
