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
use super::{Ask, Fetch, OriginId, Protocol, Req};
use crate::units::DataSize;

/// See the [module](self).
#[derive(Clone, Debug, Default)]
pub(super) struct Manners {
    /// The largest range that was asked for and served.
    served: DataSize,
    /// The smallest that was refused for its size.
    refused: Option<DataSize>,
    /// How often a size was refused.
    refusals: u32,
    /// Targets of redirects have expired.
    pub(super) expires: bool,
    /// Pipelined requests that were answered.
    pipelined: u32,
    /// Pipelined requests that never were, although the link was alive.
    forgotten: u32,
    /// Connections or URLs last for few answers.
    pub(super) brief: bool,
    /// Answers with everything, in a row, to requests for a range.
    pub(super) ignored: u32,
    /// Answers of a few bytes, in a row.
    pub(super) tiny: u32,
    /// Ranges that broke off after a few bytes, in a row.
    stubs: u32,
}

impl Manners {
    /// Whether the server has served a range at all.
    pub(super) fn serves_ranges(&self) -> bool {
        !self.served.is_zero()
    }

    /// A range of this size was asked for, and the answer is good.
    pub(super) fn on_served(&mut self, len: DataSize) {
        self.served = self.served.max(len);
        self.ignored = 0;
        if self.refused.is_some_and(|refused| refused <= len) {
            self.refused = None;
        }
    }

    /// A range of this size was refused. Tells whether its size may be the reason, so that a smaller one is worth asking.
    pub(super) fn on_refused(&mut self, len: DataSize) -> bool {
        if !self.serves_ranges() || len <= self.served || self.refusals >= MOST_REFUSALS {
            return false;
        }
        self.refusals += 1;
        self.refused = Some(self.refused.map_or(len, |refused| refused.min(len)));
        true
    }

    /// A first request of this size was refused, and a small one is served.
    pub(super) fn refuses_from(&mut self, len: DataSize) {
        self.refused = Some(len);
    }

    /// What was refused was not too large: its URL had expired.
    pub(super) fn on_expired(&mut self) {
        self.expires = true;
        self.brief = true;
        self.refused = None;
        self.refusals = 0;
    }

    /// The most that a request should ask for; none: there is no limit.
    pub(super) fn largest(&self) -> Option<DataSize> {
        let refused = self.refused?;
        let twice = self.served * 2;
        Some(if twice < refused { twice } else { self.served })
    }

    /// The server has ended a connection of its own accord after so many answers.
    pub(super) fn on_end(&mut self, answers: u32) {
        self.brief |= answers > 0 && answers <= FEW_ANSWERS;
    }

    /// A request that was sent behind another one has got its head.
    pub(super) fn on_pipelined(&mut self) {
        self.pipelined = self.pipelined.saturating_add(1);
    }

    /// Such a request got none.
    pub(super) fn on_forgotten(&mut self) {
        self.forgotten = self.forgotten.saturating_add(1);
    }

    /// Whether requests are sent one at a time. An outage that falls between two answers looks like a forgotten request,
    /// so a server that has answered many is not blamed for one.
    pub(super) fn takes_one_at_a_time(&self) -> bool {
        self.forgotten > 0 && self.pipelined < self.forgotten * MANY_PIPELINED
    }
}

impl Fetch {
    /// What is known of the server behind a URL.
    pub(super) fn manners(&mut self, root: OriginId) -> &mut Manners {
        self.servers.entry(root).or_default()
    }

    /// Whether a connection may get a request now, as far as those before it are concerned.
    pub(super) fn may_pipeline(&self, conn: &Conn) -> bool {
        conn.reqs.is_empty() || conn.protocol != Some(Protocol::Http1) || !self.is_alone(conn)
    }

    /// Whether a connection carries one request at a time.
    pub(super) fn is_alone(&self, conn: &Conn) -> bool {
        let one = self.servers.get(&conn.root).is_some_and(Manners::takes_one_at_a_time);
        one && conn.protocol == Some(Protocol::Http1)
    }

    /// Whether a connection's server ends connections or URLs after a few answers.
    pub(super) fn is_brief(&self, conn: &Conn) -> bool {
        self.servers.get(&conn.root).is_some_and(|manners| manners.brief)
    }

    /// The most that may be asked for at one time on a connection.
    pub(super) fn largest(&self, conn: &Conn) -> DataSize {
        self.servers.get(&conn.root).and_then(Manners::largest).unwrap_or(DataSize::MAX)
    }

    /// A connection of a link stands still while another one of it lives: was a pipelined request forgotten?
    pub(super) fn note_forgotten(&mut self, id: super::ConnId) {
        let Some(conn) = self.conns.get(&id) else { return };
        let waits = conn.reqs.front().and_then(|req| self.reqs.get(req));
        let forgotten = waits.is_some_and(|req: &Req| !req.accepted && req.piped);
        if conn.answered > 0 && forgotten && conn.protocol == Some(Protocol::Http1) {
            self.manners(conn.root).on_forgotten();
        }
    }
}

impl Fetch {
    /// A connection ends. Where it carried nothing but the first bytes of a range, again and again, ranges cannot be used.
    pub(super) fn note_stub(&mut self, id: super::ConnId) {
        let Some(conn) = self.conns.get(&id) else { return };
        let front = conn.reqs.front().and_then(|req| self.reqs.get(req));
        let ranged = front.is_some_and(|req| req.accepted && req.ask != Ask::Whole && !req.remaining().is_empty());
        if !ranged || conn.meter.total() >= STUB || self.phase != super::Phase::Ranges {
            return;
        }
        let manners = self.manners(conn.root);
        manners.stubs += 1;
        if manners.stubs >= MOST_STUBS {
            manners.stubs = 0;
            self.one_answer(super::OneAnswer::BadRanges, Some(id));
        }
    }

    /// A response is complete.
    pub(super) fn note_full_answer(&mut self, id: super::ReqId) {
        let Some(req) = self.reqs.get(&id) else { return };
        if let Some(conn) = self.conns.get(&req.conn) {
            self.manners(conn.root).stubs = 0;
        }
    }
}

/// How many bytes a request asked for; none: to the end.
pub(super) fn size_of(ask: Ask) -> Option<DataSize> {
    match ask {
        Ask::Span(span) => Some(span.len()),
        Ask::Whole | Ask::From(_) => None,
    }
}

/// A range that breaks off before this has brought nothing worth its request. chosen: less than two packets.
const STUB: DataSize = DataSize::from_bytes(2000);
const MOST_STUBS: u32 = 6;
/// From 1 GiB down to 16 bytes there are fewer halvings.
const MOST_REFUSALS: u32 = 24;
/// A connection that carries more answers is worth its handshake. chosen: nginx allows 1000, Apache 100.
const FEW_ANSWERS: u32 = 16;
/// chosen: one forgotten request in so many may be an outage.
const MANY_PIPELINED: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn kib(n: u64) -> DataSize {
        DataSize::from_kib(n)
    }

    #[test]
    fn the_size_that_is_served_is_found_with_few_refusals() {
        for limit in [4, 5, 63, 64, 100, 128, 129, 1000] {
            let (mut manners, mut refusals, mut largest) = (Manners::default(), 0, DataSize::ZERO);
            manners.on_served(kib(4));
            for _ in 0..40 {
                let wants = kib(1 << 20);
                let asks = manners.largest().map_or(wants, |largest| largest.min(wants));
                if asks <= kib(limit) {
                    manners.on_served(asks);
                    largest = largest.max(asks);
                } else {
                    assert!(manners.on_refused(asks), "{limit} {asks:?}");
                    refusals += 1;
                }
            }
            assert!(largest * 2 > kib(limit) && refusals <= 2, "{limit}: {largest:?} after {refusals}");
        }
    }

    #[test]
    fn what_was_served_is_not_refused_for_its_size() {
        let mut manners = Manners::default();
        assert!(!manners.on_refused(kib(64)), "nothing was served yet");
        manners.on_served(kib(64));
        assert!(!manners.on_refused(kib(64)));
        assert!(manners.on_refused(kib(65)));
        manners.on_expired();
        assert_eq!(manners.largest(), None);
    }

    #[test]
    fn one_forgotten_request_among_many_is_no_habit() {
        let mut manners = Manners::default();
        manners.on_pipelined();
        manners.on_forgotten();
        assert!(manners.takes_one_at_a_time());
        (0..20).for_each(|_| manners.on_pipelined());
        assert!(!manners.takes_one_at_a_time());
        manners.on_forgotten();
        assert!(manners.takes_one_at_a_time());
    }
}
