//! Endpoints and limits of the kernel's own path manager (`--kernel-pm`), and how they are put back.
//!
//! In: what the driver is about to add or to raise, and what is there already. Out: entries of the ledger, and
//! afterwards a path manager as it was.
//!
//! 1. An address is written down once, before its first endpoint, and stays written down until the end: the driver may
//!    take the endpoint away and add it again without another word.
//! 2. An endpoint that was there before is somebody else's. It may be made a backup and none again, and that is put back;
//!    it is never removed.
//! 3. Only an endpoint that looks as the driver makes them is removed: one that somebody has set there since is his.
//! 4. Limits are put back only if they still say what was set, by this run or by the one before it.
//!
//! An endpoint is known by its address: the kernel takes no second one with the same, and its number is the kernel's to
//! give.

use std::io;

use marline_core::wire::netlink::Request;
use marline_core::wire::netlink::mptcp::{Endpoint, Limits};

use super::super::kernel::PathManager;
use super::crash_point;
use super::undo_log::{Changes, EndpointEntry, RaisedLimit, UndoLog};

/// Writes down that these endpoints come; `there` are those that are there already.
///
/// # Errors
/// The ledger cannot be written: then none may be added.
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

/// Writes down that the limits are raised.
///
/// # Errors
/// The ledger cannot be written: then they may not be set.
pub(super) fn record_limits(undo_log: &mut UndoLog, previous: Limits, new: Limits) -> io::Result<()> {
    let (previous, new) = (limit_values(previous), limit_values(new));
    let limits_entry = raised_limits(undo_log.changes().limits, previous, new);
    undo_log.write(Changes { limits: Some(limits_entry), ..undo_log.changes().clone() })
}

/// The entry for limits that are `now` and are going to be `set`.
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
    /// Whether a run of ours may have set them to this.
    fn is_own_value(&self, current: (u32, u32)) -> bool {
        current == self.value || self.crashed_value == Some(current)
    }
}

const fn limit_values(limits: Limits) -> (u32, u32) {
    (limits.subflows, limits.accepted_addresses)
}

/// Puts back what the ledger knows, and strikes it out. Returns a line for each thing, and one for each that cannot be put
/// back; that stays in the ledger.
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
                        errors.push(format!("the endpoint {} cannot be put back: {error}", entry.address));
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
                    Ok(()) => restored
                        .push(format!("limits of MPTCP's path manager: {} subflows again", original.subflows)),
                    Err(error) => {
                        errors.push(format!("limits of MPTCP's path manager cannot be put back: {error}"));
                        remaining.limits = Some(limits_entry);
                    }
                }
            }
        }
        Err(error) => {
            errors.push(format!("endpoints of MPTCP's path manager cannot be put back: {error}"));
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

/// What makes this endpoint what it was, and how that is told; none: it is.
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
    fn limits_that_are_raised_again_are_ours_before_and_after() {
        let first = raised_limits(None, (2, 0), (3, 0));
        assert!(first.is_own_value((3, 0)) && !first.is_own_value((2, 0)));
        let second = raised_limits(Some(first), (3, 0), (5, 0));
        assert_eq!(second.previous, (2, 0));
        // A crash may come before the limits are set, or after it.
        assert!(second.is_own_value((3, 0)) && second.is_own_value((5, 0)) && !second.is_own_value((7, 0)));
        // What somebody else has set since is what they were.
        assert_eq!(
            raised_limits(Some(second), (7, 0), (8, 0)),
            RaisedLimit { previous: (7, 0), value: (8, 0), crashed_value: None }
        );
    }
}
