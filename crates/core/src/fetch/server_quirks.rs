//! Quirks of the server behind a mirror, learnt from its responses, so that requests avoid what it does not support.
//!
//! They apply to all links, which use the same service, though perhaps through different CDN nodes.
//!
//! 1. **Size.** If a server refuses a large range, smaller ones are requested. The size doubles from the largest one
//!    served, as long as no range of that size was refused.
//! 2. **Pipelining.** If a server loses a request that arrived in one packet with another, it gets one request at a
//!    time.
//! 3. **Short-lived connections.** If a connection, or the target of a redirect, is good for a few responses only, each
//!    request covers what its link can carry in a longer time.

use alloc::collections::BTreeMap;

use super::conn::Conn;
use super::{Protocol, RequestRange, UrlId};
use crate::units::DataSize;

/// Quirks of one mirror's server; see the [module documentation](self).
#[derive(Clone, Debug, Default)]
pub(super) struct ServerQuirks {
    /// The largest range that was requested and served.
    largest_served: DataSize,
    /// The smallest range that was refused because of its size.
    smallest_refused: Option<DataSize>,
    /// Number of refusals because of size.
    size_refusals: u32,
    /// Targets of redirects have expired.
    pub(super) urls_expire: bool,
    /// Number of pipelined requests that got a response.
    pipelined_answered: u32,
    /// Number of pipelined requests that got none although the link was alive.
    pipelined_lost: u32,
    /// Connections or URLs are good for few responses.
    pub(super) is_short_lived: bool,
    /// 200 responses to range requests, in a row.
    ranges_ignored: u32,
    /// Responses of a few bytes, in a row.
    tiny_ranges: u32,
    /// Ranges that broke off after a few bytes, in a row.
    truncated_ranges: u32,
}

impl ServerQuirks {
    /// Whether the server has served a range before.
    pub(super) fn serves_ranges(&self) -> bool {
        !self.largest_served.is_zero()
    }

    /// A range request of this size got a good response.
    pub(super) fn on_range_served(&mut self, len: DataSize) {
        self.largest_served = self.largest_served.max(len);
        self.ranges_ignored = 0;
        if self.smallest_refused.is_some_and(|refused| refused <= len) {
            self.smallest_refused = None;
        }
    }

    /// A range request of this size was refused. Returns true if its size may be the cause, so that a smaller one is
    /// worth trying.
    pub(super) fn on_size_refused(&mut self, len: DataSize) -> bool {
        if !self.serves_ranges() || len <= self.largest_served || self.size_refusals >= MAX_SIZE_REFUSALS {
            return false;
        }
        self.size_refusals += 1;
        self.smallest_refused = Some(self.smallest_refused.map_or(len, |refused| refused.min(len)));
        true
    }

    /// The initial request of this size was refused, and a small one is served.
    pub(super) fn set_refused_size(&mut self, len: DataSize) {
        self.smallest_refused = Some(len);
    }

    /// The refused requests were not too large: their URL had expired.
    pub(super) fn on_expired(&mut self) {
        self.urls_expire = true;
        self.is_short_lived = true;
        self.smallest_refused = None;
        self.size_refusals = 0;
    }

    /// Maximum size of a request; none: unlimited.
    pub(super) fn max_request(&self) -> Option<DataSize> {
        let refused = self.smallest_refused?;
        let doubled = self.largest_served * 2;
        Some(if doubled < refused { doubled } else { self.largest_served })
    }

    /// The server closed a connection on its own after this number of responses.
    pub(super) fn on_server_close(&mut self, responses: u32) {
        self.is_short_lived |= responses > 0 && responses <= SHORT_LIVED_RESPONSES;
    }

    /// A request that was sent behind another one got its response head.
    pub(super) fn on_pipelined_answered(&mut self) {
        self.pipelined_answered = self.pipelined_answered.saturating_add(1);
    }

    /// A request that was sent behind another one got no response.
    pub(super) fn on_pipelined_lost(&mut self) {
        self.pipelined_lost = self.pipelined_lost.saturating_add(1);
    }

    /// A connection carried only the first bytes of a range, `received` in total. Returns true if that has happened so
    /// often that ranges are of no use.
    pub(super) fn on_range_truncated(&mut self, received: DataSize) -> bool {
        if received >= TRUNCATED_BELOW {
            return false;
        }
        self.truncated_ranges += 1;
        let give_up = self.truncated_ranges >= MAX_TRUNCATED;
        if give_up {
            self.truncated_ranges = 0;
        }
        give_up
    }

    pub(super) fn on_complete_response(&mut self) {
        self.truncated_ranges = 0;
    }

    /// A range response delivered `len` bytes of a request for `requested`, and the file does not end there
    /// (`is_part`). Returns true if tiny responses have come so often in a row that ranges are of no use.
    pub(super) fn on_range_len(&mut self, len: DataSize, requested: DataSize, is_part: bool) -> bool {
        if len < TINY_RANGE && len < requested && is_part {
            self.tiny_ranges += 1;
            return self.tiny_ranges >= MAX_TINY_RANGES;
        }
        if len >= TINY_RANGE {
            self.tiny_ranges = 0;
        }
        false
    }

    /// A request for a range got the whole file. Returns true if the request may be repeated: the server usually serves
    /// ranges.
    pub(super) fn on_range_ignored(&mut self) -> bool {
        if !self.serves_ranges() {
            return false;
        }
        self.ranges_ignored += 1;
        self.ranges_ignored <= MAX_RANGES_IGNORED
    }

    /// Whether requests are sent one at a time. An outage between two responses looks like a lost request, so one lost
    /// request among many answered ones does not count.
    pub(super) fn is_serial(&self) -> bool {
        self.pipelined_lost > 0 && self.pipelined_answered < self.pipelined_lost * ANSWERED_PER_LOST
    }
}

/// Quirks of all mirrors' servers. A mirror whose server has shown none has the default ones.
#[derive(Clone, Debug, Default)]
pub(super) struct QuirksByMirror(BTreeMap<UrlId, ServerQuirks>);

impl QuirksByMirror {
    /// The quirks of a mirror's server, to record more of them.
    pub(super) fn of_mut(&mut self, mirror: UrlId) -> &mut ServerQuirks {
        self.0.entry(mirror).or_default()
    }

    /// Whether the server has served a range before.
    pub(super) fn serves_ranges(&self, mirror: UrlId) -> bool {
        self.0.get(&mirror).is_some_and(ServerQuirks::serves_ranges)
    }

    /// Whether a connection may get another request beside its present ones.
    pub(super) fn may_pipeline(&self, conn: &Conn) -> bool {
        conn.reqs.is_empty() || conn.protocol != Some(Protocol::Http1) || !self.is_serial(conn)
    }

    /// Whether a connection carries one request at a time.
    pub(super) fn is_serial(&self, conn: &Conn) -> bool {
        let one = self.0.get(&conn.mirror).is_some_and(ServerQuirks::is_serial);
        one && conn.protocol == Some(Protocol::Http1)
    }

    /// Whether the server closes connections, or URLs expire, after a few responses.
    pub(super) fn is_short_lived(&self, conn: &Conn) -> bool {
        self.0.get(&conn.mirror).is_some_and(|quirks| quirks.is_short_lived)
    }

    /// Maximum size of a request on a connection.
    pub(super) fn max_request(&self, conn: &Conn) -> DataSize {
        self.0.get(&conn.mirror).and_then(ServerQuirks::max_request).unwrap_or(DataSize::MAX)
    }
}

/// Number of bytes of a range request; none: open-ended, or without a range.
pub(super) fn requested_len(requested: RequestRange) -> Option<DataSize> {
    match requested {
        RequestRange::Bounded(range) => Some(range.len()),
        RequestRange::Full | RequestRange::From(_) => None,
    }
}

/// A range that breaks off with fewer bytes is not worth its request. Our choice: less than two packets.
const TRUNCATED_BELOW: DataSize = DataSize::from_bytes(2000);
/// With so many of them in a row ranges are given up.
const MAX_TRUNCATED: u32 = 6;
/// Ranges smaller than this, although more was requested, are given up after so many in a row.
const TINY_RANGE: DataSize = DataSize::from_kib(4);
const MAX_TINY_RANGES: u32 = 8;
/// Number of 200 responses in a row to range requests, from a server that has served ranges, before ranges are given
/// up.
const MAX_RANGES_IGNORED: u32 = 3;
/// Refusals that are attributed to the size. Our choice: the number of halvings from 1 GiB to 64 bytes.
const MAX_SIZE_REFUSALS: u32 = 24;
/// A connection that carries more responses is worth its handshake. Our choice: nginx allows 1000, Apache 100.
const SHORT_LIVED_RESPONSES: u32 = 16;
/// Our choice: one lost request among this many may be due to an outage.
const ANSWERED_PER_LOST: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn kib(n: u64) -> DataSize {
        DataSize::from_kib(n)
    }

    #[test]
    fn the_largest_served_size_is_found_with_few_refusals() {
        for limit in [4, 5, 63, 64, 100, 128, 129, 1000] {
            let (mut quirks, mut refusals, mut largest) = (ServerQuirks::default(), 0, DataSize::ZERO);
            quirks.on_range_served(kib(4));
            for _ in 0..40 {
                let wanted_size = kib(1 << 20);
                let requested_size = quirks.max_request().map_or(wanted_size, |largest| largest.min(wanted_size));
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
    fn one_lost_request_among_many_does_not_end_pipelining() {
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
