//! Which link a receiver's RTCP leaves by (Super-aggregation §5.1.1, §5.1.2).
//!
//! In: datagrams of RTCP from the player. Out: a route for each.
//!
//! 1. Reports go over the second link. One of [`BOTH_EVERY`] goes over the first as well: it keeps the first link's NAT open, and a
//!    server that knows a receiver by its address (and not, as RFC 3550 §8 has it, by its SSRC) still hears from it.
//! 2. Feedback and all else that is said once goes over both: hearing it twice does no harm (RFC 4585 §3.4 has receivers
//!    repeat it).
//! 3. Without a second link, or with one that does not take packets, everything goes over the first.

use super::wire::rtcp::RtcpCompound;

/// Of so many reports one goes over the first link, too. chosen: with a report each five seconds (RFC 3550 §6.2) the first
/// link brings one in twenty seconds, in time for NAT (30 s, RFC 4787 §4.3 as deployed) and servers (60 s, RFC 2326 §12.37).
const BOTH_EVERY: u64 = 4;

/// Over which links.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    /// The first link.
    Primary,
    /// The second link.
    Secondary,
    /// Both.
    Both,
}

/// Says where each goes, and counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RtcpRouter {
    /// Reports so far.
    pub reports: u64,
    /// Of these, such that only the second link carried.
    pub offloaded: u64,
    /// Feedback and the like: sent twice.
    pub feedback: u64,
    /// Not understood, and sent over the first link as it came.
    pub unparsed: u64,
}

impl RtcpRouter {
    /// Where this goes. `second`: there is a second link that takes packets now.
    pub fn route(&mut self, bytes: &[u8], has_secondary: bool) -> Route {
        let Some(compound) = RtcpCompound::parse(bytes) else {
            self.unparsed += 1;
            return Route::Primary;
        };
        let is_report = compound.is_report();
        *if is_report { &mut self.reports } else { &mut self.feedback } += 1;
        match (has_secondary, is_report) {
            (false, _) => Route::Primary,
            (true, false) => Route::Both,
            // The first of all, too: a server may want to know the address before anything else.
            (true, true) if self.reports % BOTH_EVERY == 1 => Route::Both,
            (true, true) => {
                self.offloaded += 1;
                Route::Secondary
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RR: [u8; 8] = [0x80, 201, 0, 1, 1, 2, 3, 4];
    const BYE: [u8; 8] = [0x81, 203, 0, 1, 1, 2, 3, 4];

    #[test]
    fn reports_leave_over_the_second_link_and_now_and_then_over_both() {
        let mut router = RtcpRouter::default();
        let routes: Vec<Route> = (0..6).map(|_| router.route(&RR, true)).collect();
        use Route::{Both, Secondary};
        assert_eq!(routes, [Both, Secondary, Secondary, Secondary, Both, Secondary]);
        assert_eq!((router.reports, router.offloaded), (6, 4));
    }

    #[test]
    fn what_is_said_once_is_sent_twice() {
        let mut router = RtcpRouter::default();
        assert_eq!(router.route(&BYE, true), Route::Both);
        assert_eq!(router.feedback, 1);
    }

    #[test]
    fn without_a_second_link_everything_goes_over_the_first() {
        let mut router = RtcpRouter::default();
        for bytes in [&RR, &BYE] {
            assert_eq!(router.route(bytes, false), Route::Primary);
        }
        assert_eq!((router.route(&[1, 2, 3], true), router.unparsed, router.offloaded), (Route::Primary, 1, 0));
    }
}
