//! Capabilities that the accelerator needs.

use crate::AccelError;

/// Whether packets may be received and sent.
///
/// # Errors
/// CAP_NET_ADMIN or CAP_NET_RAW is missing.
pub(super) fn check_privileges() -> Result<(), AccelError> {
    let missing = missing_capabilities();
    if missing.is_empty() {
        Ok(())
    } else {
        Err(AccelError::NotPermitted(format!("{} missing", missing.join(" and "))))
    }
}

/// Names of the capabilities that are missing.
pub(super) fn missing_capabilities() -> Vec<&'static str> {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(0);
    // Numbers of `linux/capability.h`.
    let both = [(12, "CAP_NET_ADMIN"), (13, "CAP_NET_RAW")];
    both.into_iter().filter(|(bit, _)| effective & (1 << bit) == 0).map(|(_, name)| name).collect()
}
