//! The five policies of the multi-link HTTP thesis (its chapter 4), on marline's coverage map and response handling.
//!
//! Choices that the thesis leaves open:
//!
//! 1. The payload's size is known from the initial request, which asks for a small range if a policy needs the size
//!    first (naive, Algorithms 2 and 3).
//! 2. The next request starts on the same connection when the newest one is 60 % complete (§4.2.2). Requests are never
//!    cancelled for another and never duplicated.
//! 3. "Current average throughput" is the mean over the last second. "Bandwidth" is the configured constant (§8.2.2) or
//!    the link's peak rate so far (§4.3.4).
//! 4. The bytes of a failed request are continued at the exact byte by whichever link sends the next request (§8.2.4).

use alloc::vec::Vec;
use core::time::Duration;

use super::conn::INITIAL_RANGE;
use super::links::{Link, LinkState};
use super::thesis_sizing::{bdp_limit, dynamic_limit, proportional_share, should_start_next};
use super::{ByteRange, ConnId, Fetch, Phase, Policy, RequestRange};
use crate::link::LinkId;
use crate::units::{Bitrate, DataSize};

impl Fetch {
    /// Sends the requests that the policy prescribes now.
    pub(super) fn run_thesis_policy(&mut self) {
        self.resolve_pending();
        self.update_peak_rates();
        match self.phase {
            Phase::Unknown if self.config.policy == Policy::Single => self.request_rest(),
            Phase::Unknown => self.schedule_probes(),
            Phase::SingleResponse { req: None } => self.send_single_request(),
            Phase::SingleResponse { .. } | Phase::Finished => {}
            Phase::Ranges => match self.config.policy {
                Policy::Single => self.request_rest(),
                Policy::Naive => self.request_equal_parts(),
                _ => self.request_sized(),
            },
        }
    }

    fn update_peak_rates(&mut self) {
        let rates: Vec<(LinkId, Bitrate)> =
            self.links.iter().map(|(id, link)| (*id, self.mean_throughput(link))).collect();
        for (id, rate) in rates {
            if let Some(link) = self.links.get_mut(&id) {
                link.stats.peak_rate = link.stats.peak_rate.max(rate);
            }
        }
    }

    fn mean_throughput(&self, link: &Link) -> Bitrate {
        self.link_rate(link, AVERAGE_WINDOW)
    }

    /// Single-link (§4.3.1): one request for everything that is missing.
    fn request_rest(&mut self) {
        let idle = self.conns.iter().find(|(_, conn)| conn.accepts_requests() && conn.reqs.is_empty());
        let Some(id) = idle.map(|(id, _)| *id) else { return };
        let Some(gap) = self.coverage.next_free(0, self.window_end()) else { return };
        let to_the_end = self.coverage.total().is_none_or(|total| gap.end == total.bytes());
        self.send_request(id, if to_the_end { RequestRange::From(gap.start) } else { RequestRange::Bounded(gap) });
    }

    /// Naive (§4.3.2): each link fetches its part of the payload. Parts of links that have failed go to the others.
    fn request_equal_parts(&mut self) {
        let total = self.coverage.total().unwrap_or_default().bytes();
        let links: Vec<LinkId> = self.links.keys().copied().filter(|id| self.is_link_allowed(*id)).collect();
        let count = links.len().max(1) as u64;
        let part = |i: usize| {
            ByteRange::new(
                total / count * i as u64,
                if i as u64 + 1 == count { total } else { total / count * (i as u64 + 1) },
            )
        };
        for (i, id) in links.iter().enumerate() {
            let Some(conn) = self.free_conn(*id) else { continue };
            let orphaned = (0..links.len()).filter(|j| {
                let owner = links.get(*j).and_then(|id| self.links.get(id));
                owner.is_none_or(|link| !link.is_in_service())
            });
            let parts: Vec<usize> = core::iter::once(i).chain(orphaned).collect();
            let gap = parts.into_iter().find_map(|j| self.coverage.next_free(part(j).start, part(j).end));
            if let Some(gap) = gap {
                self.send_request(conn, RequestRange::Bounded(gap));
            }
        }
    }

    /// A connection of this link that carries nothing but an initial request.
    fn free_conn(&self, id: LinkId) -> Option<ConnId> {
        let link = self.links.get(&id).filter(|link| link.state == LinkState::Up || link.conns.len() == 1)?;
        let free = |id: &&ConnId| {
            self.conns
                .get(id)
                .filter(|conn| conn.accepts_requests() && self.may_pipeline(conn))
                .is_some_and(|conn| self.in_flight(conn) <= INITIAL_RANGE && conn.reqs.len() <= 1)
        };
        link.conns.iter().find(free).copied()
    }

    /// Algorithms 1 to 3: the next request starts when the newest one is 60 % complete. Its size is computed at that
    /// time.
    fn request_sized(&mut self) {
        let ids: Vec<ConnId> = self.conns.keys().copied().collect();
        for id in ids {
            let Some(conn) = self.conns.get(&id) else { continue };
            if !conn.accepts_requests() || !self.is_link_allowed(conn.link) || !self.may_pipeline(conn) {
                continue;
            }
            let newest = conn.reqs.back().and_then(|id| self.reqs.get(id));
            // The condition of §4.2.2. Until the head has arrived, nothing of the request is complete.
            let ready = newest.is_none_or(|req| {
                let received = DataSize::from_bytes(req.next_offset - req.range.start);
                req.is_accepted && should_start_next(received, req.range.len(), self.config.thesis.overlap)
            });
            if !ready {
                continue;
            }
            let Some(gap) = self.coverage.next_free(0, self.window_end()) else { return };
            let size = self.thesis_size(conn.link).max(DataSize::from_bytes(1));
            self.send_request(id, RequestRange::Bounded(ByteRange::at(gap.start, gap.len().min(size))));
        }
    }

    fn thesis_size(&self, id: LinkId) -> DataSize {
        let Some(link) = self.links.get(&id) else { return DataSize::ZERO };
        let working: Vec<&Link> = self.links.values().filter(|link| link.is_in_service()).collect();
        let count = working.len().max(1) as u64;
        let throughput = self.mean_throughput(link);
        let sum: Bitrate = working.iter().map(|link| self.mean_throughput(link)).sum();
        let thesis = &self.config.thesis;
        if self.config.policy == Policy::StaticLimit {
            return proportional_share(thesis.static_limit, throughput, sum, count);
        }
        let bandwidth = |link: &Link| thesis.bandwidth.unwrap_or(link.stats.peak_rate);
        let total_bandwidth: Bitrate = working.iter().map(|link| bandwidth(link)).sum();
        let payload = self.coverage.total().unwrap_or_default();
        let size = proportional_share(dynamic_limit(payload, count, sum, total_bandwidth), throughput, sum, count);
        if self.config.policy == Policy::DynamicLimit {
            return size;
        }
        let rtt = self.conns_of(link).map(|conn| conn.handshake_rtt).max();
        bdp_limit(size, bandwidth(link), rtt.unwrap_or_default(), thesis.padding)
    }
}

/// Window of the "current average" (§4.4.3.2 measures continuously; §3.2.2 samples once a second).
const AVERAGE_WINDOW: Duration = Duration::from_secs(1);
