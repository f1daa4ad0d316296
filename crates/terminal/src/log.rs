//! The log on standard error, which is off unless the environment requests it.

use tracing_subscriber::EnvFilter;

use crate::CliError;
use crate::output::LogWriter;

/// Starts the log that `MARLINE_LOG` (or `RUST_LOG`) requests. Returns whether it is requested.
///
/// # Errors
/// The variable's value is not a filter.
pub fn start() -> Result<bool, CliError> {
    let Some(filter) = std::env::var_os("MARLINE_LOG").or_else(|| std::env::var_os("RUST_LOG")) else {
        return Ok(false);
    };
    let filter = filter.to_string_lossy();
    let filter = EnvFilter::try_new(&filter)
        .map_err(|e| CliError::usage(format!("MARLINE_LOG={filter}: {e}; write for example MARLINE_LOG=debug")))?;
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(|| LogWriter).init();
    Ok(true)
}
