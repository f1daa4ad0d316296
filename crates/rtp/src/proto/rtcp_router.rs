//! RTCP routing: which link each RTCP datagram of the player takes (Super-aggregation sections 5.1.1 and 5.1.2).
//!
//! - Reports take the secondary link, so that they continue during an outage of the primary link and do not compete with its
//!   media. One report in [`BOTH_EVERY`] also takes the primary link: it keeps the NAT mapping of the primary link open, and it
//!   reaches servers that identify a receiver by address rather than by SSRC (RFC 3550 section 8).
//! - Feedback and everything else that is sent once takes both links. Duplicates do no harm, since receivers may repeat feedback
//!   anyway (RFC 4585 section 3.4).
//! - Datagrams that are not RTCP, and all datagrams while no secondary link is available, take the primary link.

use super::wire::rtcp::RtcpKind;

/// One report in this many takes both links. With a report every five seconds (RFC 3550 section 6.2) the primary link carries one
/// every twenty seconds. NAT mappings live 30 s or longer in practice (RFC 4787 section 4.3), and RTSP sessions 60 s (RFC 2326
/// section 12.37).
const BOTH_EVERY: u64 = 4;

/// The links that a datagram takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    /// The primary link alone.
    Primary,
    /// The secondary link alone.
    Secondary,
    /// One copy over each link.
    Both,
}

/// Chooses the route of each RTCP datagram and counts them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RtcpRouter {
    /// Datagrams that contained only reports.
    pub reports: u64,
    /// Of these, the ones that only the secondary link carried.
    pub offloaded: u64,
    /// Datagrams with feedback or other packets that are sent once.
    pub feedback: u64,
    /// Datagrams that are not valid RTCP.
    pub unparsed: u64,
}

impl RtcpRouter {
    /// Returns the route of one datagram. `has_secondary` says whether the secondary link accepts packets now.
    pub fn route(&mut self, bytes: &[u8], has_secondary: bool) -> Route {
        let Some(kind) = RtcpKind::parse(bytes) else {
            self.unparsed += 1;
            return Route::Primary;
        };
        *match kind {
            RtcpKind::Report => &mut self.reports,
            RtcpKind::Feedback => &mut self.feedback,
        } += 1;
        match (has_secondary, kind) {
            (false, _) => Route::Primary,
            (true, RtcpKind::Feedback) => Route::Both,
            // Includes the very first report: some servers learn the receiver's address from it.
            (true, RtcpKind::Report) if self.reports % BOTH_EVERY == 1 => Route::Both,
            (true, RtcpKind::Report) => {
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
    fn reports_take_the_secondary_link_and_one_in_four_takes_both() {
        let mut router = RtcpRouter::default();
        let routes: Vec<Route> = (0..6).map(|_| router.route(&RR, true)).collect();
        use Route::{Both, Secondary};
        assert_eq!(routes, [Both, Secondary, Secondary, Secondary, Both, Secondary]);
        assert_eq!((router.reports, router.offloaded), (6, 4));
    }

    #[test]
    fn feedback_takes_both_links() {
        let mut router = RtcpRouter::default();
        assert_eq!(router.route(&BYE, true), Route::Both);
        assert_eq!(router.feedback, 1);
    }

    #[test]
    fn without_a_secondary_link_everything_takes_the_primary() {
        let mut router = RtcpRouter::default();
        for bytes in [&RR, &BYE] {
            assert_eq!(router.route(bytes, false), Route::Primary);
        }
        assert_eq!((router.route(&[1, 2, 3], true), router.unparsed, router.offloaded), (Route::Primary, 1, 0));
    }
}
