//! Log on standard error, off unless `MARLINE_LOG` or `RUST_LOG` requests it.

use tracing_subscriber::EnvFilter;

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
    let filter = EnvFilter::try_new(&filter).map_err(|error| {
        CliError::usage(format!("MARLINE_LOG={filter}: {error}; write for example MARLINE_LOG=debug"))
    })?;
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(|| LogWriter).init();
    Ok(true)
}
