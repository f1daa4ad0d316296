//! Restores a host after a run that was killed: `marline paths restore`.
//!
//! A run that ends restores everything itself. What a killed run has left belongs either to its links
//! (`host_config`) or to the gateway of a LAN (`gateway`). Each has an undo log and a lock of its own.

use std::path::Path;

use super::host_config::{ensure_run_dir, has_net_admin};
use super::{PathsError, gateway, host_config};

pub use super::host_config::RestoreResult;

/// Restores what killed runs have left behind.
///
/// # Errors
/// A daemon runs, which restores everything itself when it stops; or nothing can be restored.
pub fn restore(run_dir: &Path) -> Result<RestoreResult, PathsError> {
    if !has_net_admin() {
        return Err(PathsError::NotPermitted { operation: "restoring settings and routes".to_owned() });
    }
    let is_created = ensure_run_dir(run_dir)?;
    // The gateway's part comes first, even if a daemon of another role runs: its own lock decides whether it is
    // abandoned.
    let gateway_result = gateway::restore(run_dir);
    let restored = match host_config::restore(run_dir) {
        Ok(mut restored) => {
            restored.restored.splice(..0, gateway_result.restored);
            restored.remaining.extend(gateway_result.remaining);
            Ok(restored)
        }
        Err(error) if gateway_result == RestoreResult::default() => Err(error),
        Err(error) => {
            let remaining = gateway_result.remaining.into_iter().chain([error.to_string()]);
            Ok(RestoreResult { restored: gateway_result.restored, remaining: remaining.collect() })
        }
    };
    if is_created {
        // Fails if the directory is not empty, which means that it is still needed.
        let _ = std::fs::remove_dir(run_dir);
    }
    restored
}

/// Changes of killed runs that are not restored yet, one text each.
pub(super) fn leftovers(run_dir: &Path) -> Vec<String> {
    let mut leftovers = host_config::leftovers(run_dir);
    leftovers.extend(gateway::leftovers(run_dir));
    leftovers
}
