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
use super::ledger::{Changes, Ledger, Place, Raised};
use super::step;

/// Writes down that these endpoints come; `there` are those that are there already.
///
/// # Errors
/// The ledger cannot be written: then none may be added.
pub(super) fn note(ledger: &mut Ledger, wanted: &[Endpoint], there: &[Endpoint]) -> io::Result<()> {
    let mut changes = ledger.changes().clone();
    for Endpoint { address, .. } in wanted {
        if !changes.endpoints.iter().any(|place| place.address == *address) {
            let was = there.iter().find(|endpoint| endpoint.address == *address).map(|endpoint| endpoint.backup);
            changes.endpoints.push(Place { address: *address, was });
        }
    }
    ledger.write(changes)
}

/// Writes down that the limits are raised.
///
/// # Errors
/// The ledger cannot be written: then they may not be set.
pub(super) fn note_limits(ledger: &mut Ledger, was: Limits, set: Limits) -> io::Result<()> {
    let (was, set) = (pair(was), pair(set));
    let raised = raise(ledger.changes().limits, was, set);
    ledger.write(Changes { limits: Some(raised), ..ledger.changes().clone() })
}

/// The entry for limits that are `now` and are going to be `set`.
fn raise(earlier: Option<Raised>, now: (u32, u32), set: (u32, u32)) -> Raised {
    match earlier.filter(|raised| raised.is_ours(now)) {
        Some(raised) => Raised { set, before: (now != raised.was && now != set).then_some(now), ..raised },
        None => Raised { was: now, set, before: None },
    }
}

impl Raised {
    /// Whether a run of ours may have set them to this.
    fn is_ours(&self, now: (u32, u32)) -> bool {
        now == self.set || self.before == Some(now)
    }
}

const fn pair(limits: Limits) -> (u32, u32) {
    (limits.subflows, limits.accepted_addresses)
}

/// Puts back what the ledger knows, and strikes it out. Returns a line for each thing, and one for each that cannot be put
/// back; that stays in the ledger.
pub(super) fn restore(ledger: &mut Ledger) -> (Vec<String>, Vec<String>) {
    let changes = ledger.changes().clone();
    if changes.endpoints.is_empty() && changes.limits.is_none() {
        return (Vec::new(), Vec::new());
    }
    let (mut lines, mut troubles) = (Vec::new(), Vec::new());
    let mut left = Changes { endpoints: Vec::new(), limits: None, ..changes.clone() };
    match there() {
        Ok((manager, endpoints, limits)) => {
            for place in changes.endpoints {
                let found = endpoints.iter().find(|endpoint| endpoint.address == place.address);
                let Some((request, line)) = found.and_then(|endpoint| undo(&manager, place, endpoint)) else {
                    continue;
                };
                match carry_out(&manager, request) {
                    Ok(()) => lines.push(line),
                    Err(error) => {
                        troubles.push(format!("the endpoint {} cannot be put back: {error}", place.address));
                        left.endpoints.push(place);
                    }
                }
            }
            if let Some(raised) = changes.limits.filter(|raised| raised.is_ours(pair(limits))) {
                let was = Limits { subflows: raised.was.0, accepted_addresses: raised.was.1 };
                match carry_out(&manager, was.set(manager.family())) {
                    Ok(()) => {
                        lines.push(format!("limits of MPTCP's path manager: {} subflows again", was.subflows))
                    }
                    Err(error) => {
                        troubles.push(format!("limits of MPTCP's path manager cannot be put back: {error}"));
                        left.limits = Some(raised);
                    }
                }
            }
        }
        Err(error) => {
            troubles.push(format!("endpoints of MPTCP's path manager cannot be put back: {error}"));
            left = changes;
        }
    }
    if let Err(error) = ledger.write(left) {
        troubles.push(error.to_string());
    }
    (lines, troubles)
}

/// The path manager, its endpoints and its limits.
fn there() -> io::Result<(PathManager, Vec<Endpoint>, Limits)> {
    let manager = PathManager::open().map_err(io::Error::other)?;
    let (endpoints, limits) = (manager.endpoints()?, manager.limits()?);
    Ok((manager, endpoints, limits))
}

/// What makes this endpoint what it was, and how that is told; none: it is.
fn undo(manager: &PathManager, place: Place, now: &Endpoint) -> Option<(Request, String)> {
    let address = place.address;
    match place.was {
        Some(backup) if backup != now.backup => {
            let was = Endpoint { backup, ..*now };
            let word = if backup { "a backup again" } else { "no backup any more" };
            Some((was.set_backup(manager.family()), format!("endpoint {address}: {word}")))
        }
        None if now.subflow && !now.signal && !now.fullmesh && now.port == 0 => {
            Some((now.delete(manager.family()), format!("endpoint {address} removed")))
        }
        _ => None,
    }
}

fn carry_out(manager: &PathManager, request: Request) -> io::Result<()> {
    step()?;
    let answers = manager.carry_out(vec![request])?;
    answers.iter().find(|ack| ack.error != 0).map_or(Ok(()), |ack| Err(io::Error::from_raw_os_error(ack.error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_that_are_raised_again_are_ours_before_and_after() {
        let first = raise(None, (2, 0), (3, 0));
        assert!(first.is_ours((3, 0)) && !first.is_ours((2, 0)));
        let second = raise(Some(first), (3, 0), (5, 0));
        assert_eq!(second.was, (2, 0));
        // A crash may come before the limits are set, or after it.
        assert!(second.is_ours((3, 0)) && second.is_ours((5, 0)) && !second.is_ours((7, 0)));
        // What somebody else has set since is what they were.
        assert_eq!(raise(Some(second), (7, 0), (8, 0)), Raised { was: (7, 0), set: (8, 0), before: None });
    }
}
