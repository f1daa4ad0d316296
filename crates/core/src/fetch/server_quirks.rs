//! What answers have shown of the server behind a URL, so that it is not asked again for what it does not do.
//!
//! It holds for all links: they ask the same service, be it through different edges.
//!
//! 1. **Size.** A host that refuses a large range is asked for smaller ones; twice the largest that was served is tried
//!    as long as nothing of that size was refused.
//! 2. **Pipelining.** A server that forgets a request which came in one packet with another gets one at a time.
//! 3. **Brief connections.** Where a connection, or the target of a redirect, is good for a few answers only, each
//!    request asks for as much as its link can carry in a while.

use super::conn::Conn;
use super::{Fetch, Protocol, Req, RequestRange, UrlId};
use crate::units::DataSize;

/// See the [module](self).
#[derive(Clone, Debug, Default)]
pub(super) struct ServerQuirks {
    /// The largest range that was asked for and served.
    largest_served: DataSize,
    /// The smallest that was refused for its size.
    smallest_refused: Option<DataSize>,
    /// How often a size was refused.
    size_refusals: u32,
    /// Targets of redirects have expired.
    pub(super) urls_expire: bool,
    /// Pipelined requests that were answered.
    pipelined_answered: u32,
    /// Pipelined requests that never were, although the link was alive.
    pipelined_lost: u32,
    /// Connections or URLs last for few answers.
    pub(super) is_short_lived: bool,
    /// Answers with everything, in a row, to requests for a range.
    pub(super) ranges_ignored: u32,
    /// Answers of a few bytes, in a row.
    pub(super) tiny_ranges: u32,
    /// Ranges that broke off after a few bytes, in a row.
    truncated_ranges: u32,
}

impl ServerQuirks {
    /// Whether the server has served a range at all.
    pub(super) fn serves_ranges(&self) -> bool {
        !self.largest_served.is_zero()
    }

    /// A range of this size was asked for, and the answer is good.
    pub(super) fn on_range_served(&mut self, len: DataSize) {
        self.largest_served = self.largest_served.max(len);
        self.ranges_ignored = 0;
        if self.smallest_refused.is_some_and(|refused| refused <= len) {
            self.smallest_refused = None;
        }
    }

    /// A range of this size was refused. Tells whether its size may be the reason, so that a smaller one is worth asking.
    pub(super) fn on_size_refused(&mut self, len: DataSize) -> bool {
        if !self.serves_ranges() || len <= self.largest_served || self.size_refusals >= MAX_SIZE_REFUSALS {
            return false;
        }
        self.size_refusals += 1;
        self.smallest_refused = Some(self.smallest_refused.map_or(len, |refused| refused.min(len)));
        true
    }

    /// A first request of this size was refused, and a small one is served.
    pub(super) fn set_refused_size(&mut self, len: DataSize) {
        self.smallest_refused = Some(len);
    }

    /// What was refused was not too large: its URL had expired.
    pub(super) fn on_expired(&mut self) {
        self.urls_expire = true;
        self.is_short_lived = true;
        self.smallest_refused = None;
        self.size_refusals = 0;
    }

    /// The most that a request should ask for; none: there is no limit.
    pub(super) fn max_request(&self) -> Option<DataSize> {
        let refused = self.smallest_refused?;
        let doubled = self.largest_served * 2;
        Some(if doubled < refused { doubled } else { self.largest_served })
    }

    /// The server has ended a connection of its own accord after so many answers.
    pub(super) fn on_server_close(&mut self, responses: u32) {
        self.is_short_lived |= responses > 0 && responses <= SHORT_LIVED_RESPONSES;
    }

    /// A request that was sent behind another one has got its head.
    pub(super) fn on_pipelined_answered(&mut self) {
        self.pipelined_answered = self.pipelined_answered.saturating_add(1);
    }

    /// Such a request got none.
    pub(super) fn on_pipelined_lost(&mut self) {
        self.pipelined_lost = self.pipelined_lost.saturating_add(1);
    }

    /// Whether requests are sent one at a time. An outage that falls between two answers looks like a forgotten request,
    /// so a server that has answered many is not blamed for one.
    pub(super) fn is_serial(&self) -> bool {
        self.pipelined_lost > 0 && self.pipelined_answered < self.pipelined_lost * ANSWERED_PER_LOST
    }
}

impl Fetch {
    /// What is known of the server behind a URL.
    pub(super) fn quirks_mut(&mut self, mirror: UrlId) -> &mut ServerQuirks {
        self.server_quirks.entry(mirror).or_default()
    }

    /// Whether a connection may get a request now, as far as those before it are concerned.
    pub(super) fn may_pipeline(&self, conn: &Conn) -> bool {
        conn.reqs.is_empty() || conn.protocol != Some(Protocol::Http1) || !self.is_serial(conn)
    }

    /// Whether a connection carries one request at a time.
    pub(super) fn is_serial(&self, conn: &Conn) -> bool {
        let one = self.server_quirks.get(&conn.mirror).is_some_and(ServerQuirks::is_serial);
        one && conn.protocol == Some(Protocol::Http1)
    }

    /// Whether a connection's server ends connections or URLs after a few answers.
    pub(super) fn is_short_lived(&self, conn: &Conn) -> bool {
        self.server_quirks.get(&conn.mirror).is_some_and(|quirks| quirks.is_short_lived)
    }

    /// The most that may be asked for at one time on a connection.
    pub(super) fn max_request(&self, conn: &Conn) -> DataSize {
        self.server_quirks.get(&conn.mirror).and_then(ServerQuirks::max_request).unwrap_or(DataSize::MAX)
    }

    /// A connection of a link stands still while another one of it lives: was a pipelined request forgotten?
    pub(super) fn note_pipelined_lost(&mut self, id: super::ConnId) {
        let Some(conn) = self.conns.get(&id) else { return };
        let waits = conn.reqs.front().and_then(|req| self.reqs.get(req));
        let forgotten = waits.is_some_and(|req: &Req| !req.is_accepted && req.is_pipelined);
        if conn.responses > 0 && forgotten && conn.protocol == Some(Protocol::Http1) {
            self.quirks_mut(conn.mirror).on_pipelined_lost();
        }
    }
}

impl Fetch {
    /// A connection ends. Where it carried nothing but the first bytes of a range, again and again, ranges cannot be used.
    pub(super) fn note_truncated_range(&mut self, id: super::ConnId) {
        let Some(conn) = self.conns.get(&id) else { return };
        let front = conn.reqs.front().and_then(|req| self.reqs.get(req));
        let ranged = front.is_some_and(|req| {
            req.is_accepted && req.range_requested != RequestRange::Full && !req.remaining().is_empty()
        });
        if !ranged || conn.rate_window.total() >= TRUNCATED_BELOW || self.phase != super::Phase::Ranges {
            return;
        }
        let quirks = self.quirks_mut(conn.mirror);
        quirks.truncated_ranges += 1;
        if quirks.truncated_ranges >= MAX_TRUNCATED {
            quirks.truncated_ranges = 0;
            self.switch_to_single_response(super::SingleResponseReason::UnusableRanges, Some(id));
        }
    }

    /// A response is complete.
    pub(super) fn note_complete_response(&mut self, id: super::ReqId) {
        let Some(req) = self.reqs.get(&id) else { return };
        if let Some(conn) = self.conns.get(&req.conn) {
            self.quirks_mut(conn.mirror).truncated_ranges = 0;
        }
    }
}

/// How many bytes a request asked for; none: to the end.
pub(super) fn requested_len(requested: RequestRange) -> Option<DataSize> {
    match requested {
        RequestRange::Bounded(range) => Some(range.len()),
        RequestRange::Full | RequestRange::From(_) => None,
    }
}

/// A range that breaks off before this has brought nothing worth its request. chosen: less than two packets.
const TRUNCATED_BELOW: DataSize = DataSize::from_bytes(2000);
const MAX_TRUNCATED: u32 = 6;
/// From 1 GiB down to 16 bytes there are fewer halvings.
const MAX_SIZE_REFUSALS: u32 = 24;
/// A connection that carries more answers is worth its handshake. chosen: nginx allows 1000, Apache 100.
const SHORT_LIVED_RESPONSES: u32 = 16;
/// chosen: one forgotten request in so many may be an outage.
const ANSWERED_PER_LOST: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn kib(n: u64) -> DataSize {
        DataSize::from_kib(n)
    }

    #[test]
    fn the_size_that_is_served_is_found_with_few_refusals() {
        for limit in [4, 5, 63, 64, 100, 128, 129, 1000] {
            let (mut quirks, mut refusals, mut largest) = (ServerQuirks::default(), 0, DataSize::ZERO);
            quirks.on_range_served(kib(4));
            for _ in 0..40 {
                let wants = kib(1 << 20);
                let requested_size = quirks.max_request().map_or(wants, |largest| largest.min(wants));
                if requested_size <= kib(limit) {
                    quirks.on_range_served(requested_size);
                    largest = largest.max(requested_size);
                } else {
                    assert!(quirks.on_size_refused(requested_size), "{limit} {requested_size:?}");
                    refusals += 1;
                }
            }
            assert!(largest * 2 > kib(limit) && refusals <= 2, "{limit}: {largest:?} after {refusals}");
        }
    }

    #[test]
    fn what_was_served_is_not_refused_for_its_size() {
        let mut quirks = ServerQuirks::default();
        assert!(!quirks.on_size_refused(kib(64)), "nothing was served yet");
        quirks.on_range_served(kib(64));
        assert!(!quirks.on_size_refused(kib(64)));
        assert!(quirks.on_size_refused(kib(65)));
        quirks.on_expired();
        assert_eq!(quirks.max_request(), None);
    }

    #[test]
    fn one_forgotten_request_among_many_is_no_habit() {
        let mut quirks = ServerQuirks::default();
        quirks.on_pipelined_answered();
        quirks.on_pipelined_lost();
        assert!(quirks.is_serial());
        (0..20).for_each(|_| quirks.on_pipelined_answered());
        assert!(!quirks.is_serial());
        quirks.on_pipelined_lost();
        assert!(quirks.is_serial());
    }
}
