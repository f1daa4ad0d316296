//! The right to build networks: as root directly, as anybody else in a user namespace of one's own.

use std::sync::OnceLock;

use marline_sys::namespace;

use crate::LabError;

/// How this process came to its right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privileges {
    /// It has the capabilities already.
    Root,
    /// It is root in a user namespace.
    UserNamespace,
}

static PRIVILEGES: OnceLock<Privileges> = OnceLock::new();

/// Gets the right to build labs. Call it first thing in `main`: without privilege it enters a user namespace, which
/// the kernel grants only to a process with one thread. A second call gives the same answer.
///
/// # Errors
/// [`LabError::UserNamespace`] where the machine forbids it, or when there is a second thread already.
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
