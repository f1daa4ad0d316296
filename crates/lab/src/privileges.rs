//! The privilege to create network namespaces: directly as root, otherwise in a user namespace.

use std::sync::OnceLock;

use marline_sys::namespace;

use crate::LabError;

/// How this process got its privileges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privileges {
    /// It already had the capabilities.
    Root,
    /// It is root in a user namespace that it entered.
    UserNamespace,
}

static PRIVILEGES: OnceLock<Privileges> = OnceLock::new();

/// Acquires the privileges to build labs. Call it first in `main`: without privileges it enters a user namespace,
/// which the kernel grants only to a single-threaded process. Further calls return the first result.
///
/// # Errors
/// [`LabError::UserNamespace`] where the machine forbids it, or when a second thread exists.
pub fn acquire_privileges() -> Result<Privileges, LabError> {
    if let Some(access) = PRIVILEGES.get() {
        return Ok(*access);
    }
    let access = if namespace::is_privileged() {
        Privileges::Root
    } else {
        namespace::enter_user_namespace().map_err(|source| LabError::UserNamespace { source })?;
        Privileges::UserNamespace
    };
    Ok(*PRIVILEGES.get_or_init(|| access))
}
