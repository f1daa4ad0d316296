//! Which link a receiver's RTCP leaves by (Super-aggregation §5.1.1, §5.1.2).
//!
//! In: datagrams of RTCP from the player. Out: a route for each.
//!
//! 1. Reports go over the second link. One of [`BOTH`] goes over the first as well: it keeps the first link's NAT open, and a
//!    server that knows a receiver by its address (and not, as RFC 3550 §8 has it, by its SSRC) still hears from it.
//! 2. Feedback and all else that is said once goes over both: hearing it twice does no harm (RFC 4585 §3.4 has receivers
//!    repeat it).
//! 3. Without a second link, or with one that does not take packets, everything goes over the first.

use super::wire::rtcp::Compound;

/// Of so many reports one goes over the first link, too. chosen: with a report each five seconds (RFC 3550 §6.2) the first
/// link brings one in twenty seconds, in time for NAT (30 s, RFC 4787 §4.3 as deployed) and servers (60 s, RFC 2326 §12.37).
const BOTH: u64 = 4;

/// Over which links.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    /// The first link.
    First,
    /// The second link.
    Second,
    /// Both.
    Both,
}

/// Says where each goes, and counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reports {
    /// Reports so far.
    pub reports: u64,
    /// Of these, such that only the second link carried.
    pub offloaded: u64,
    /// Feedback and the like: sent twice.
    pub commands: u64,
    /// Not understood, and sent over the first link as it came.
    pub others: u64,
}

impl Reports {
    /// Where this goes. `second`: there is a second link that takes packets now.
    pub fn route(&mut self, bytes: &[u8], second: bool) -> Route {
        let Some(compound) = Compound::parse(bytes) else {
            self.others += 1;
            return Route::First;
        };
        let is_report = compound.is_report();
        *if is_report { &mut self.reports } else { &mut self.commands } += 1;
        match (second, is_report) {
            (false, _) => Route::First,
            (true, false) => Route::Both,
            // The first of all, too: a server may want to know the address before anything else.
            (true, true) if self.reports % BOTH == 1 => Route::Both,
            (true, true) => {
                self.offloaded += 1;
                Route::Second
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const RR: [u8; 8] = [0x80, 201, 0, 1, 1, 2, 3, 4];
    const BYE: [u8; 8] = [0x81, 203, 0, 1, 1, 2, 3, 4];

    #[test]
    fn reports_leave_over_the_second_link_and_now_and_then_over_both() {
        let mut reports = Reports::default();
        let routes: Vec<Route> = (0..6).map(|_| reports.route(&RR, true)).collect();
        use Route::{Both, Second};
        assert_eq!(routes, [Both, Second, Second, Second, Both, Second]);
        assert_eq!((reports.reports, reports.offloaded), (6, 4));
    }

    #[test]
    fn what_is_said_once_is_sent_twice() {
        let mut reports = Reports::default();
        assert_eq!(reports.route(&BYE, true), Route::Both);
        assert_eq!(reports.commands, 1);
    }

    #[test]
    fn without_a_second_link_everything_goes_over_the_first() {
        let mut reports = Reports::default();
        for bytes in [&RR, &BYE] {
            assert_eq!(reports.route(bytes, false), Route::First);
        }
        assert_eq!((reports.route(&[1, 2, 3], true), reports.others, reports.offloaded), (Route::First, 1, 0));
    }
}
