//! Log on standard error, off unless `MARLINE_LOG` or `RUST_LOG` requests it.

use tracing_subscriber::filter::{LevelFilter, ParseError, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::CliError;
use crate::output::LogWriter;

/// Starts the log that `MARLINE_LOG`, or else `RUST_LOG`, requests. Returns whether one of them is set.
///
/// # Errors
/// The value of the variable is not a filter of `tracing_subscriber`.
pub fn start_log() -> Result<bool, CliError> {
    let Some(filter) = std::env::var_os("MARLINE_LOG").or_else(|| std::env::var_os("RUST_LOG")) else {
        return Ok(false);
    };
    let filter = filter.to_string_lossy();
    let filter = parse_filter(&filter).map_err(|error| {
        CliError::usage(format!("MARLINE_LOG={filter}: {error}; write for example MARLINE_LOG=debug"))
    })?;
    let format = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(|| LogWriter);
    tracing_subscriber::registry().with(format).with(filter).init();
    Ok(true)
}

/// Reads levels and targets, separated by commas. An empty filter lets errors pass.
///
/// Directives for spans are not read, since marline has no spans. They would need the engine of regular expressions.
///
/// # Errors
/// A directive is neither a level, nor a target, nor `TARGET=LEVEL`.
pub fn parse_filter(text: &str) -> Result<Targets, ParseError> {
    let directives: Vec<&str> = text.split(',').filter(|directive| !directive.is_empty()).collect();
    if directives.is_empty() {
        return Ok(Targets::new().with_default(LevelFilter::ERROR));
    }
    directives.join(",").parse()
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::filter::LevelFilter;

    use super::parse_filter;

    #[test]
    fn filters_are_lists_of_levels_and_targets() {
        for empty in ["", ",", ",,"] {
            assert_eq!(parse_filter(empty).unwrap().default_level(), Some(LevelFilter::ERROR), "{empty:?}");
        }
        let filter = parse_filter("warn,,marline_net=trace,marline_paths").unwrap();
        assert_eq!(filter.default_level(), Some(LevelFilter::WARN));
        let targets: Vec<_> = filter.iter().filter(|(target, _)| !target.is_empty()).collect();
        assert!(targets.contains(&("marline_net", LevelFilter::TRACE)), "{targets:?}");
        assert!(targets.contains(&("marline_paths", LevelFilter::TRACE)), "{targets:?}");
        assert!(parse_filter("marline=loudly").is_err());
    }
}
