//! The right to build networks: as root directly, as anybody else in a user namespace of one's own.

use std::sync::OnceLock;

use marline_sys::namespace;

use crate::LabError;

/// How this process came to its right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It has the capabilities already.
    Root,
    /// It is root in a user namespace.
    Rootless,
}

static ACCESS: OnceLock<Access> = OnceLock::new();

/// Gets the right to build labs. Call it first thing in `main`: without privilege it enters a user namespace, which
/// the kernel grants only to a process with one thread. A second call gives the same answer.
///
/// # Errors
/// [`LabError::UserNamespace`] where the machine forbids it, or when there is a second thread already.
pub fn prepare() -> Result<Access, LabError> {
    if let Some(access) = ACCESS.get() {
        return Ok(*access);
    }
    let access = if namespace::is_privileged() {
        Access::Root
    } else {
        namespace::enter_user_namespace().map_err(|source| LabError::UserNamespace { source })?;
        Access::Rootless
    };
    Ok(*ACCESS.get_or_init(|| access))
}
