//! The five policies of the multi-link HTTP thesis (its chapter 4), on marline's coverage map and response handling.
//!
//! Choices that the thesis leaves open:
//!
//! 1. The payload's size is known from the initial request. It is for a small range (64 KiB), except with the policy
//!    `single`.
//! 2. The next request starts on the same connection when the newest one is 60 % complete (§4.2.2). Requests are never
//!    cancelled for another and never duplicated.
//! 3. "Current average throughput" is the mean over the last second. "Bandwidth" is the configured constant (§8.2.2) or
//!    the link's peak rate so far (§4.3.4).
//! 4. The bytes of a failed request are continued at the exact byte by whichever link sends the next request (§8.2.4).

use alloc::vec::Vec;
use core::time::Duration;

use super::conn::INITIAL_RANGE;
use super::link::{Link, LinkState};
use super::resource::Phase;
use super::thesis_sizing::{bdp_limit, dynamic_limit, proportional_share, should_start_next};
use super::transfers::Transfers;
use super::{ByteRange, ConnId, Policy, RequestRange, scheduler};
use crate::link::LinkId;
use crate::units::{Bitrate, DataSize};

/// Sends the requests that the policy prescribes now.
pub(super) fn run_thesis_policy(transfers: &mut Transfers) {
    update_peak_rates(transfers);
    match transfers.resource.phase {
        Phase::Unknown if transfers.config.policy == Policy::Single => request_missing(transfers),
        Phase::Unknown => scheduler::schedule_probes(transfers),
        Phase::SingleResponse { req: None } => scheduler::send_single_request(transfers),
        Phase::SingleResponse { .. } | Phase::Finished => {}
        Phase::Ranges => match transfers.config.policy {
            Policy::Single => request_missing(transfers),
            Policy::Naive => request_equal_parts(transfers),
            _ => request_sized(transfers),
        },
    }
}

fn update_peak_rates(transfers: &mut Transfers) {
    let rates: Vec<(LinkId, Bitrate)> =
        transfers.links.iter().map(|(id, link)| (*id, mean_throughput(transfers, link))).collect();
    for (id, rate) in rates {
        if let Some(link) = transfers.links.get_mut(&id) {
            link.stats.peak_rate = link.stats.peak_rate.max(rate);
        }
    }
}

fn mean_throughput(transfers: &Transfers, link: &Link) -> Bitrate {
    transfers.link_rate(link, AVERAGE_WINDOW)
}

/// Single-link (§4.3.1): one request for everything that is missing.
fn request_missing(transfers: &mut Transfers) {
    let idle = transfers.conns.iter().find(|(_, conn)| conn.accepts_requests() && conn.reqs.is_empty());
    let Some(id) = idle.map(|(id, _)| *id) else { return };
    let Some(gap) = transfers.coverage.next_free(0, transfers.reader.window_end()) else { return };
    let to_the_end = transfers.coverage.total().is_none_or(|total| gap.end == total.bytes());
    transfers.send_request(id, if to_the_end { RequestRange::From(gap.start) } else { RequestRange::Bounded(gap) });
}

/// Naive (§4.3.2): each link fetches its part of the payload. Parts of links that have failed go to the others.
fn request_equal_parts(transfers: &mut Transfers) {
    let total = transfers.coverage.total().unwrap_or_default().bytes();
    let links: Vec<LinkId> = transfers.links.keys().copied().filter(|id| transfers.is_link_allowed(*id)).collect();
    let count = links.len().max(1) as u64;
    let part = |i: usize| {
        ByteRange::new(
            total / count * i as u64,
            if i as u64 + 1 == count { total } else { total / count * (i as u64 + 1) },
        )
    };
    for (i, id) in links.iter().enumerate() {
        let Some(conn) = free_conn(transfers, *id) else { continue };
        let orphaned = (0..links.len()).filter(|j| {
            let owner = links.get(*j).and_then(|id| transfers.links.get(id));
            owner.is_none_or(|link| !link.is_in_service())
        });
        let parts: Vec<usize> = core::iter::once(i).chain(orphaned).collect();
        let gap = parts.into_iter().find_map(|j| transfers.coverage.next_free(part(j).start, part(j).end));
        if let Some(gap) = gap {
            transfers.send_request(conn, RequestRange::Bounded(gap));
        }
    }
}

/// A connection of this link that carries nothing but an initial request.
fn free_conn(transfers: &Transfers, id: LinkId) -> Option<ConnId> {
    let link = transfers.links.get(&id).filter(|link| link.state == LinkState::Up || link.conns.len() == 1)?;
    let free = |id: &&ConnId| {
        transfers
            .conns
            .get(id)
            .filter(|conn| conn.accepts_requests() && transfers.quirks.may_pipeline(conn))
            .is_some_and(|conn| transfers.in_flight(conn) <= INITIAL_RANGE && conn.reqs.len() <= 1)
    };
    link.conns.iter().find(free).copied()
}

/// Algorithms 1 to 3: the next request starts when the newest one is 60 % complete. Its size is computed at that
/// time.
fn request_sized(transfers: &mut Transfers) {
    let ids: Vec<ConnId> = transfers.conns.keys().copied().collect();
    for id in ids {
        let Some(conn) = transfers.conns.get(&id) else { continue };
        if !conn.accepts_requests() || !transfers.is_link_allowed(conn.link) || !transfers.quirks.may_pipeline(conn)
        {
            continue;
        }
        let newest = conn.reqs.back().and_then(|id| transfers.reqs.get(id));
        // The condition of §4.2.2. Until the head has arrived, nothing of the request is complete.
        let ready = newest.is_none_or(|req| {
            let received = DataSize::from_bytes(req.next_offset - req.range.start);
            req.is_accepted && should_start_next(received, req.range.len(), transfers.config.thesis.overlap)
        });
        if !ready {
            continue;
        }
        let Some(gap) = transfers.coverage.next_free(0, transfers.reader.window_end()) else { return };
        let size = thesis_size(transfers, conn.link).max(DataSize::from_bytes(1));
        transfers.send_request(id, RequestRange::Bounded(ByteRange::at(gap.start, gap.len().min(size))));
    }
}

fn thesis_size(transfers: &Transfers, id: LinkId) -> DataSize {
    let Some(link) = transfers.links.get(&id) else { return DataSize::ZERO };
    let working: Vec<&Link> = transfers.links.values().filter(|link| link.is_in_service()).collect();
    let count = working.len().max(1) as u64;
    let throughput = mean_throughput(transfers, link);
    let sum: Bitrate = working.iter().map(|link| mean_throughput(transfers, link)).sum();
    let thesis = &transfers.config.thesis;
    if transfers.config.policy == Policy::StaticLimit {
        return proportional_share(thesis.static_limit, throughput, sum, count);
    }
    let bandwidth = |link: &Link| thesis.bandwidth.unwrap_or(link.stats.peak_rate);
    let total_bandwidth: Bitrate = working.iter().map(|link| bandwidth(link)).sum();
    let payload = transfers.coverage.total().unwrap_or_default();
    let size = proportional_share(dynamic_limit(payload, count, sum, total_bandwidth), throughput, sum, count);
    if transfers.config.policy == Policy::DynamicLimit {
        return size;
    }
    let rtt = transfers.conns_of(link).map(|conn| conn.handshake_rtt).max();
    bdp_limit(size, bandwidth(link), rtt.unwrap_or_default(), thesis.padding)
}

/// Time over which the "current average" is taken (§4.4.3.2 measures continuously; §3.2.2 samples once a second).
const AVERAGE_WINDOW: Duration = Duration::from_secs(1);
