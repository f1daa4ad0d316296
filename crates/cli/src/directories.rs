//! Default directories of marline for the configuration, the state and the control sockets. Options override them.

use std::path::{Path, PathBuf};

#[cfg(feature = "fleet")]
use marline_paths::host_config::RUN_DIR;

/// Configuration directory: `$XDG_CONFIG_HOME/marline`, else `~/.config/marline`.
pub(crate) fn config_dir() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = variable("XDG_CONFIG_HOME").or_else(|| Some(variable("HOME")?.join(".config")))?;
    Some(base.join("marline"))
}

/// State directory that systemd created for the service that this process belongs to (`StateDirectory=` in its unit file).
#[cfg(feature = "fleet")]
pub(crate) fn unit_state_dir() -> Option<PathBuf> {
    std::env::var_os("STATE_DIRECTORY").filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Directory of the control sockets of a user without privileges: `$XDG_RUNTIME_DIR/marline`.
pub(crate) fn user_run_dir() -> Option<PathBuf> {
    let runtime_dir = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty())?;
    Some(Path::new(&runtime_dir).join("marline"))
}

/// Directories where the control socket of a daemon that needs no privilege (edge, relay) may be, in order of preference. A
/// directory given by option is the only one; otherwise the system's directory comes before the user's. The daemon uses the first one in
/// which it can create its socket, and a client searches all of them.
#[cfg(feature = "fleet")]
pub(crate) fn run_dirs(given: Option<&Path>) -> Vec<PathBuf> {
    match given {
        Some(given) => vec![given.to_owned()],
        None => std::iter::once(RUN_DIR.into()).chain(user_run_dir()).collect(),
    }
}
