//! Records and restores endpoints and limits of the kernel's own path manager (`--kernel-pm`).
//!
//! 1. An address is recorded once, before its first endpoint, and its entry stays until the end. The driver may
//!    remove and add the endpoint again without another record.
//! 2. An endpoint that existed before belongs to another program. The driver may change its backup flag, which is
//!    restored; it is never removed.
//! 3. Only an endpoint that looks like the driver's own is removed, since another program may have replaced it.
//! 4. Limits are restored only if they still have the values of this run or of the one before it.
//!
//! An endpoint is identified by its address: the kernel accepts only one per address, and it assigns the ids.

use std::io;

use marline_core::wire::netlink::Request;
use marline_core::wire::netlink::mptcp::{Endpoint, Limits};

use super::super::kernel::PathManager;
use super::crash_point;
use super::undo_log::{Changes, EndpointEntry, RaisedLimit, UndoLog};

/// Records endpoints that are about to be added; `existing` lists the present ones.
///
/// # Errors
/// The undo log cannot be written: no endpoint may be added then.
pub(super) fn record_endpoints(
    undo_log: &mut UndoLog,
    added: &[Endpoint],
    existing: &[Endpoint],
) -> io::Result<()> {
    let mut changes = undo_log.changes().clone();
    for Endpoint { address, .. } in added {
        if !changes.endpoints.iter().any(|entry| entry.address == *address) {
            let previous =
                existing.iter().find(|endpoint| endpoint.address == *address).map(|endpoint| endpoint.backup);
            changes.endpoints.push(EndpointEntry { address: *address, previous_backup: previous });
        }
    }
    undo_log.write(changes)
}

/// Records limits that are about to be raised.
///
/// # Errors
/// The undo log cannot be written: the limits must not be changed then.
pub(super) fn record_limits(undo_log: &mut UndoLog, previous: Limits, new: Limits) -> io::Result<()> {
    let (previous, new) = (limit_values(previous), limit_values(new));
    let limits_entry = raised_limits(undo_log.changes().limits, previous, new);
    undo_log.write(Changes { limits: Some(limits_entry), ..undo_log.changes().clone() })
}

/// The entry for limits that are `current` and will become `new`.
fn raised_limits(earlier: Option<RaisedLimit>, current: (u32, u32), new: (u32, u32)) -> RaisedLimit {
    match earlier.filter(|limits_entry| limits_entry.is_own_value(current)) {
        Some(limits_entry) => RaisedLimit {
            value: new,
            crashed_value: (current != limits_entry.previous && current != new).then_some(current),
            ..limits_entry
        },
        None => RaisedLimit { previous: current, value: new, crashed_value: None },
    }
}

impl RaisedLimit {
    /// Whether these limits may come from a run of marline.
    fn is_own_value(&self, current: (u32, u32)) -> bool {
        current == self.value || self.crashed_value == Some(current)
    }
}

const fn limit_values(limits: Limits) -> (u32, u32) {
    (limits.subflows, limits.accepted_addresses)
}

/// Restores the recorded endpoints and limits and removes their entries. Returns lines about restored items, and an
/// error for each that could not be restored and remains in the undo log.
pub(super) fn restore(undo_log: &mut UndoLog) -> (Vec<String>, Vec<String>) {
    let changes = undo_log.changes().clone();
    if changes.endpoints.is_empty() && changes.limits.is_none() {
        return (Vec::new(), Vec::new());
    }
    let (mut restored, mut errors) = (Vec::new(), Vec::new());
    let mut remaining = Changes { endpoints: Vec::new(), limits: None, ..changes.clone() };
    match read_path_manager() {
        Ok((manager, endpoints, limits)) => {
            for entry in changes.endpoints {
                let existing = endpoints.iter().find(|endpoint| endpoint.address == entry.address);
                let Some((request, message)) =
                    existing.and_then(|endpoint| undo_request(&manager, entry, endpoint))
                else {
                    continue;
                };
                match execute(&manager, request) {
                    Ok(()) => restored.push(message),
                    Err(error) => {
                        errors.push(format!("endpoint {}: cannot be restored: {error}", entry.address));
                        remaining.endpoints.push(entry);
                    }
                }
            }
            if let Some(limits_entry) =
                changes.limits.filter(|limits_entry| limits_entry.is_own_value(limit_values(limits)))
            {
                let original =
                    Limits { subflows: limits_entry.previous.0, accepted_addresses: limits_entry.previous.1 };
                match execute(&manager, original.set(manager.family_id())) {
                    Ok(()) => restored.push(format!(
                        "limits of MPTCP's path manager: restored to {} subflows",
                        original.subflows
                    )),
                    Err(error) => {
                        errors.push(format!("limits of MPTCP's path manager: cannot be restored: {error}"));
                        remaining.limits = Some(limits_entry);
                    }
                }
            }
        }
        Err(error) => {
            errors.push(format!("endpoints of MPTCP's path manager: cannot be restored: {error}"));
            remaining = changes;
        }
    }
    if let Err(error) = undo_log.write(remaining) {
        errors.push(error.to_string());
    }
    (restored, errors)
}

/// The path manager, its endpoints and its limits.
fn read_path_manager() -> io::Result<(PathManager, Vec<Endpoint>, Limits)> {
    let manager = PathManager::open().map_err(io::Error::other)?;
    let (endpoints, limits) = (manager.endpoints()?, manager.limits()?);
    Ok((manager, endpoints, limits))
}

/// The request that restores this endpoint, and a line about it; none: nothing to do.
fn undo_request(manager: &PathManager, entry: EndpointEntry, current: &Endpoint) -> Option<(Request, String)> {
    let address = entry.address;
    match entry.previous_backup {
        Some(backup) if backup != current.backup => {
            let original = Endpoint { backup, ..*current };
            let suffix = if backup { "a backup again" } else { "no backup any more" };
            Some((original.set_backup(manager.family_id()), format!("endpoint {address}: {suffix}")))
        }
        None if current.subflow && !current.signal && !current.fullmesh && current.port == 0 => {
            Some((current.delete(manager.family_id()), format!("endpoint {address} removed")))
        }
        _ => None,
    }
}

fn execute(manager: &PathManager, request: Request) -> io::Result<()> {
    crash_point()?;
    let acks = manager.execute(vec![request])?;
    acks.iter().find(|ack| ack.error != 0).map_or(Ok(()), |ack| Err(io::Error::from_raw_os_error(ack.error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_that_are_raised_again_are_recognized_before_and_after() {
        let first = raised_limits(None, (2, 0), (3, 0));
        assert!(first.is_own_value((3, 0)) && !first.is_own_value((2, 0)));
        let second = raised_limits(Some(first), (3, 0), (5, 0));
        assert_eq!(second.previous, (2, 0));
        // A crash may happen before or after the limits are set.
        assert!(second.is_own_value((3, 0)) && second.is_own_value((5, 0)) && !second.is_own_value((7, 0)));
        // Values of another program become the previous ones.
        assert_eq!(
            raised_limits(Some(second), (7, 0), (8, 0)),
            RaisedLimit { previous: (7, 0), value: (8, 0), crashed_value: None }
        );
    }
}
