//! The thesis's five approaches (chapter 4) on marline's books.
//!
//! What the text leaves open is decided here and nowhere else:
//!
//! 1. The size of the payload is learnt from the first request, which asks for a probe's worth where an approach needs
//!    the size to begin with (naive, Algorithms 2 and 3).
//! 2. The next request starts on the same connection when the newest one is 60 % complete (§4.2.2); requests are never
//!    taken back and never doubled.
//! 3. "Current average throughput" is the mean over the last second; "bandwidth" is the configured constant (§8.2.2)
//!    or the link's peak so far (§4.3.4).
//! 4. Bytes of a failed request are continued from the exact byte by whichever link asks next (§8.2.4).

use alloc::vec::Vec;
use core::time::Duration;

use super::conn::FIRST_SPAN;
use super::links::{LinkState, Standing};
use super::thesis::{bdp_limit, dynamic_limit, share, starts_next};
use super::{Ask, ConnId, Fetch, Phase, Policy, Span};
use crate::link::LinkId;
use crate::units::{Bitrate, DataSize};

impl Fetch {
    /// Sends what the approach asks for now.
    pub(super) fn rules(&mut self) {
        self.hear_parked();
        self.note_peaks();
        match self.phase {
            Phase::Unknown if self.config.policy == Policy::Single => self.go_on(),
            Phase::Unknown => self.plan_probes(),
            Phase::OneAnswer { req: None } => self.ask_whole(),
            Phase::OneAnswer { .. } | Phase::Over => {}
            Phase::Ranges => match self.config.policy {
                Policy::Single => self.go_on(),
                Policy::Naive => self.equal_parts(),
                _ => self.sized(),
            },
        }
    }

    fn note_peaks(&mut self) {
        let rates: Vec<(LinkId, Bitrate)> =
            self.links.iter().map(|(id, link)| (*id, self.throughput(link))).collect();
        for (id, rate) in rates {
            if let Some(link) = self.links.get_mut(&id) {
                link.known.peak = link.known.peak.max(rate);
            }
        }
    }

    fn throughput(&self, link: &LinkState) -> Bitrate {
        self.link_rate(link, AVERAGE)
    }

    /// Single-link (§4.3.1): one request for everything that is missing.
    fn go_on(&mut self) {
        let idle = self.conns.iter().find(|(_, conn)| conn.takes_requests() && conn.reqs.is_empty());
        let Some(id) = idle.map(|(id, _)| *id) else { return };
        let Some(gap) = self.ledger.free(0, self.limit()) else { return };
        let to_the_end = self.ledger.total().is_none_or(|total| gap.end == total.bytes());
        self.send(id, if to_the_end { Ask::From(gap.start) } else { Ask::Span(gap) });
    }

    /// Naive (§4.3.2): each link fetches its part of the payload; parts of links that are gone go to the others.
    fn equal_parts(&mut self) {
        let total = self.ledger.total().unwrap_or_default().bytes();
        let links: Vec<LinkId> = self.links.keys().copied().filter(|id| self.allowed(*id)).collect();
        let n = links.len().max(1) as u64;
        let part = |i: usize| {
            Span::new(total / n * i as u64, if i as u64 + 1 == n { total } else { total / n * (i as u64 + 1) })
        };
        for (i, id) in links.iter().enumerate() {
            let Some(conn) = self.free_conn(*id) else { continue };
            let orphaned = (0..links.len()).filter(|j| {
                let owner = links.get(*j).and_then(|id| self.links.get(id));
                owner.is_none_or(|link| !link.hopeful())
            });
            let parts: Vec<usize> = core::iter::once(i).chain(orphaned).collect();
            let gap = parts.into_iter().find_map(|j| self.ledger.free(part(j).start, part(j).end));
            if let Some(gap) = gap {
                self.send(conn, Ask::Span(gap));
            }
        }
    }

    /// A connection of this link on which nothing but a probe is on its way.
    fn free_conn(&self, id: LinkId) -> Option<ConnId> {
        let link = self.links.get(&id).filter(|link| link.standing == Standing::Up || link.conns.len() == 1)?;
        let free = |id: &&ConnId| {
            self.conns
                .get(id)
                .filter(|conn| conn.takes_requests() && self.may_pipeline(conn))
                .is_some_and(|conn| self.ahead(conn) <= FIRST_SPAN && conn.reqs.len() <= 1)
        };
        link.conns.iter().find(free).copied()
    }

    /// Algorithms 1 to 3: the next request starts when the present one is 60 % complete, with the size of now.
    fn sized(&mut self) {
        let ids: Vec<ConnId> = self.conns.keys().copied().collect();
        for id in ids {
            let Some(conn) = self.conns.get(&id) else { continue };
            if !conn.takes_requests() || !self.allowed(conn.link) || !self.may_pipeline(conn) {
                continue;
            }
            let newest = conn.reqs.back().and_then(|id| self.reqs.get(id));
            let ready = newest.is_none_or(|req| {
                let got = DataSize::from_bytes(req.cursor - req.span.start);
                req.accepted && starts_next(got, req.span.len(), self.config.thesis.overlap)
            });
            if !ready {
                continue;
            }
            let Some(gap) = self.ledger.free(0, self.limit()) else { return };
            let size = self.thesis_size(conn.link).max(DataSize::from_bytes(1));
            self.send(id, Ask::Span(Span::at(gap.start, gap.len().min(size))));
        }
    }

    fn thesis_size(&self, id: LinkId) -> DataSize {
        let Some(link) = self.links.get(&id) else { return DataSize::ZERO };
        let working: Vec<&LinkState> = self.links.values().filter(|link| link.hopeful()).collect();
        let n = working.len().max(1) as u64;
        let own = self.throughput(link);
        let sum: Bitrate = working.iter().map(|link| self.throughput(link)).sum();
        let thesis = &self.config.thesis;
        if self.config.policy == Policy::StaticLimit {
            return share(thesis.static_limit, own, sum, n);
        }
        let bandwidth = |link: &LinkState| thesis.bandwidth.unwrap_or(link.known.peak);
        let all: Bitrate = working.iter().map(|link| bandwidth(link)).sum();
        let payload = self.ledger.total().unwrap_or_default();
        let size = share(dynamic_limit(payload, n, sum, all), own, sum, n);
        if self.config.policy == Policy::DynamicLimit {
            return size;
        }
        let rtt = self.conns_of(link).map(|conn| conn.handshake).max();
        bdp_limit(size, bandwidth(link), rtt.unwrap_or_default(), thesis.padding)
    }
}

/// The window of the "current average" (§4.4.3.2 measures continuously; §3.2.2 samples once a second).
const AVERAGE: Duration = Duration::from_secs(1);
