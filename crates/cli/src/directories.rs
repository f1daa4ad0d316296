//! Directories that marline uses unless an option names another one: for the configuration, the state and the control sockets.

use std::path::{Path, PathBuf};

#[cfg(feature = "fleet")]
use marline_paths::host_config::RUN_DIR;

/// Configuration directory: `$XDG_CONFIG_HOME/marline`, else `~/.config/marline`.
pub(crate) fn config_dir() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = variable("XDG_CONFIG_HOME").or_else(|| Some(variable("HOME")?.join(".config")))?;
    Some(base.join("marline"))
}

/// The state directory that systemd has created for this unit (`StateDirectory=`).
#[cfg(feature = "fleet")]
pub(crate) fn unit_state_dir() -> Option<PathBuf> {
    std::env::var_os("STATE_DIRECTORY").filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Run directory of a user without privileges.
pub(crate) fn user_run_dir() -> Option<PathBuf> {
    let runtime_dir = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty())?;
    Some(Path::new(&runtime_dir).join("marline"))
}

/// Run directories of a daemon that needs no privileges: the explicit one, or the default and then that of the user.
#[cfg(feature = "fleet")]
pub(crate) fn run_dirs(given: Option<&Path>) -> Vec<PathBuf> {
    match given {
        Some(named) => vec![named.to_owned()],
        None => std::iter::once(RUN_DIR.into()).chain(user_run_dir()).collect(),
    }
}
