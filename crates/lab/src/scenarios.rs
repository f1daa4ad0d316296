//! Built-in scenarios: the files of the repository's `scenarios` directory, compiled into the program.
//!
//! A name selects a built-in scenario, a path selects a file. So `marline-lab bench` works without the sources.

use std::path::{Path, PathBuf};

use marline_sim::scenario::Scenario;
use marline_sim::trace::TraceError;

use crate::LabError;

macro_rules! carried {
    ($($name:literal),+ $(,)?) => {
        /// Name and text of each built-in scenario.
        pub(crate) const CARRIED: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../../scenarios/", $name, ".toml")))),+];
    };
}

carried!(
    "demo",
    "floor-a",
    "floor-a-https",
    "floor-b",
    "floor-c",
    "floor-d",
    "floor-e",
    "floor-f",
    "floor-h",
    "floor-i",
    "floor-j",
    "floor-order",
    "floor-rss",
    "floor-rss-https",
    "floor-small",
    "greenbag-pairs",
    "pairs",
    "roam",
    "thesis",
    "thesis-rtt",
);

/// Loads the scenario from this file, or the built-in one of this name.
pub(crate) fn load(name_or_path: &str) -> Result<Scenario, LabError> {
    let refused = |error: marline_sim::scenario::ScenarioError| LabError::Spec(error.to_string());
    if Path::new(name_or_path).is_file() {
        return Scenario::read(Path::new(name_or_path)).map_err(refused);
    }
    match CARRIED.iter().find(|(name, _)| *name == name_or_path) {
        Some((name, text)) => Scenario::parse(text, Path::new(name)).map_err(refused),
        None => {
            let names: Vec<&str> = CARRIED.iter().map(|(name, _)| *name).collect();
            Err(LabError::Spec(format!(
                "`{name_or_path}` is neither a file nor a built-in scenario; the built-in ones are: {}",
                names.join(", ")
            )))
        }
    }
}

/// The directories of `--traces`, otherwise those of the variable `MARLINE_TRACES` (separated by colons).
pub(crate) fn trace_directories(options: &[PathBuf]) -> Vec<PathBuf> {
    match std::env::var_os("MARLINE_TRACES") {
        Some(variable) if options.is_empty() => std::env::split_paths(&variable).collect(),
        _ => options.to_vec(),
    }
}

/// Describes why a trace cannot be loaded; for a missing file also where it was searched.
pub(crate) fn trace_error_text(error: &TraceError, directories: &[PathBuf]) -> String {
    match error {
        TraceError::Unreadable { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            let paths: Vec<String> = directories.iter().map(|dir| dir.display().to_string()).collect();
            let searched_dirs =
                if paths.is_empty() { String::new() } else { format!(" and in {}", paths.join(", ")) };
            format!(
                "{error}; searched as written{searched_dirs}; set its directory with --traces or MARLINE_TRACES"
            )
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_file_is_built_in_under_its_name() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
        let mut files: Vec<String> = std::fs::read_dir(directory)
            .unwrap()
            .filter_map(|entry| entry.unwrap().file_name().to_str()?.strip_suffix(".toml").map(str::to_owned))
            .collect();
        files.sort();
        assert_eq!(files, CARRIED.iter().map(|(name, _)| *name).collect::<Vec<_>>());
        for (name, _) in CARRIED {
            assert_eq!(load(name).unwrap().name, *name);
        }
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let error = load("flor-a").unwrap_err().to_string();
        assert!(error.contains("floor-a, ") && error.contains("thesis"), "{error}");
    }
}
