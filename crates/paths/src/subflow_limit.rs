//! Raises the limit of subflows that the peer of a connection may open.
//!
//! 1. By default the kernel lets two subflows join a connection besides its first one (`ip mptcp limits`), also on a
//!    server. A further subflow is reset after its third packet. If a client with three links loses the first one,
//!    the two others occupy the limit, since the first subflow does not count, and a recovered first link cannot join
//!    again.
//! 2. The limit is raised to the kernel's maximum and stays there. It only permits joins and causes none, and other
//!    servers on this host may depend on it by then.

use marline_core::wire::netlink::mptcp::Limits;

use super::PathsError;
use super::kernel::PathManager;

/// Maximum limit of the kernel (`MPTCP_PM_ADDR_MAX`, `net/mptcp/protocol.h`).
pub const MAX_SUBFLOWS: u32 = 8;

/// Raises the limit to the maximum. Returns the present limit, which is lower if this process lacks CAP_NET_ADMIN.
///
/// # Errors
/// The kernel has no MPTCP, or its limits cannot be read.
pub fn raise_subflow_limit() -> Result<u32, PathsError> {
    let netlink_error = |error| PathsError::kernel("limits of MPTCP's path manager", error);
    let manager = PathManager::open()?;
    let limits = manager.limits().map_err(netlink_error)?;
    if limits.subflows >= MAX_SUBFLOWS {
        return Ok(limits.subflows);
    }
    let raised_limits = Limits { subflows: MAX_SUBFLOWS, ..limits };
    let acks = manager.execute(vec![raised_limits.set(manager.family_id())]).map_err(netlink_error)?;
    let is_accepted = acks.iter().all(|ack| ack.error == 0);
    Ok(if is_accepted { MAX_SUBFLOWS } else { limits.subflows })
}

#[cfg(test)]
mod tests {
    use marline_sys::namespace::{NetNs, is_privileged};

    use super::*;

    #[test]
    fn the_subflow_limit_of_a_namespace_is_raised() {
        if !is_privileged() {
            return eprintln!("skipped: needs CAP_SYS_ADMIN");
        }
        let netns = NetNs::new().unwrap();
        let results = netns.run(|| {
            Ok((
                raise_subflow_limit(),
                raise_subflow_limit(),
                PathManager::open()
                    .and_then(|manager| manager.limits().map_err(|error| PathsError::kernel("limits", error))),
            ))
        });
        match results.unwrap() {
            (Err(PathsError::NoMptcp(reason)), ..) => eprintln!("skipped: {reason}"),
            (first, second, limits) => {
                assert_eq!(
                    (first.unwrap(), second.unwrap(), limits.unwrap().subflows),
                    (MAX_SUBFLOWS, MAX_SUBFLOWS, MAX_SUBFLOWS)
                );
            }
        }
    }
}
