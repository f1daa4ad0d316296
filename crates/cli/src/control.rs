//! Requests to running daemons over their control sockets: the exit codes of their errors.

use marline_net::control_socket::ControlError;

use crate::CliError;

/// Maps an error of a control socket to an exit code.
pub(crate) fn query_error(error: &ControlError) -> CliError {
    let code =
        if matches!(error, ControlError::NotPermitted { .. }) { CliError::PRIVILEGE } else { CliError::FAILED };
    CliError::new(code, error.to_string())
}
