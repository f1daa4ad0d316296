//! Room for the subflows that the other end of a connection opens.
//!
//! In: this thread's network namespace. Out: how many may join a connection.
//!
//! 1. A kernel lets two subflows join a connection beside its first one (`ip mptcp limits`), also where it only listens. One
//!    more gets as far as its third packet and is reset. Who has three links and loses the first one has no place for it
//!    when it comes back: the two others have taken both, and the first one does not count.
//! 2. The limit is raised to the most that the kernel knows, and left so: it permits, and begins nothing by itself; another
//!    server here may count on it by then.

use marline_core::wire::netlink::mptcp::Limits;

use super::PathsError;
use super::kernel::PathManager;

/// The most that the kernel takes (`MPTCP_PM_ADDR_MAX`, `net/mptcp/protocol.h`).
pub const MAX_SUBFLOWS: u32 = 8;

/// Lets as many subflows join each connection as the kernel can; says how many that are now, which are fewer where this
/// process may not change it (CAP_NET_ADMIN).
///
/// # Errors
/// The kernel has no MPTCP, or does not tell.
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
    fn a_namespace_lets_all_links_join_afterwards() {
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
