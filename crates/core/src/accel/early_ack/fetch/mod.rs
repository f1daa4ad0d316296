//! Range fetcher: which missing bytes are requested when, and over which link (Super-aggregation §3.3, §4.2, *Fast
//! Fetcher*).
//!
//! 1. Holes of one resource are collected for `gather_time` and requested together, as several ranges: a hole that
//!    was only reordering is gone by then, and a response head costs as much as a third of a segment.
//! 2. Secondary links first, the primary one last; bulk that is too much for a thin link (the loss of an outage) the
//!    other way round. A link that is down is not used, one that has just failed only if there is no other.
//! 3. No link is requested to deliver more than it can in a round trip and `queue_time`, headers included: what waits
//!    here may still arrive by itself, or go over another link.
//! 4. What has not come after `timeout`, two round trips and its turn in the queue is requested again, if possible
//!    over another link. With a single link it is requested later, and not while one range comes after the other. The
//!    first response counts; a fetch whose ranges are all obsolete is cancelled. While a server is late with the same
//!    bytes over every link, no more of its bytes may become missing ([`RangeFetcher::budget`]).
//! 5. It never gives up by itself before [`MAX_TRIES`]: how long a hole may stay open is decided by its flow.

mod in_flight;
mod link;
pub(crate) mod options;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::net::SocketAddr;

use super::http_map::ResourceOffset;
use crate::accel::early_ack::fetch::options::FetchOptions;
use crate::accel::event::{Fetch, FetchId, Output};
use crate::accel::secondary::link::LinkInfo;
use crate::accel::seq_space::PosRange;
use crate::link::LinkId;
use crate::units::{DataSize, Duration, Instant};
use in_flight::{InFlightFetch, InFlightRange};
use link::FetchLink;

/// Bytes that a flow misses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct FetchRequest {
    /// The flow, by the number of the caller.
    pub(crate) flow: u64,
    /// The positions in the flow's sequence space.
    pub(crate) range: PosRange,
    /// Where they lie in their resource.
    pub(crate) source: ResourceOffset,
    /// The server that has them.
    pub(crate) server: SocketAddr,
}

/// Fetched bytes for a hole of a flow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct FetchedRange {
    pub(crate) flow: u64,
    /// Their first position in the flow's sequence space.
    pub(crate) start: u64,
    pub(crate) bytes: Vec<u8>,
    /// Latency of the response; none: from a mirrored connection.
    pub(crate) latency: Option<Duration>,
    /// Whether that was too long, or other requests were late over every link.
    pub(crate) is_overdue: bool,
}

/// A range that waits to be requested.
#[derive(Clone, Debug)]
struct WaitingRange {
    request: FetchRequest,
    /// Earliest time of the request.
    due: Instant,
    /// How often it was requested, and how often that was not answered in time.
    tries: u32,
    timeout_count: u32,
    /// The link over which it failed.
    failed_link: Option<LinkId>,
}

/// All fetches of a host.
#[derive(Clone, Debug, Default)]
pub(crate) struct RangeFetcher {
    options: &'static FetchOptions,
    links: Vec<FetchLink>,
    waiting: Vec<WaitingRange>,
    in_flight: BTreeMap<FetchId, InFlightFetch>,
    last_id: u64,
    outputs: Vec<Output>,
}

impl RangeFetcher {
    /// With these options, and nothing observed yet.
    pub(crate) fn new(options: &'static FetchOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// The links, secondary ones first and the primary one last.
    pub(crate) fn set_links(&mut self, infos: &[LinkInfo]) {
        self.links.retain(|fetch_link| infos.iter().any(|info| info.link == fetch_link.info.link));
        for (at, info) in infos.iter().enumerate() {
            match self.links.iter().position(|fetch_link| fetch_link.info.link == info.link) {
                Some(index) => {
                    let fetch_link = self.links.remove(index);
                    self.links.insert(at.min(self.links.len()), fetch_link.with_info(*info));
                }
                None => self.links.insert(at.min(self.links.len()), FetchLink::new(self.options, *info)),
            }
        }
    }

    /// Queues the bytes that a flow misses, in pieces.
    pub(crate) fn request(&mut self, now: Instant, request: FetchRequest) {
        // In pieces, so that a piece that is lost costs no more than a piece.
        let mut start = request.range.start;
        while start < request.range.end {
            let range = PosRange::new(start, request.range.end.min(start + self.options.max_range_bytes));
            let offset = request.source.offset + (start - request.range.start);
            let source = ResourceOffset { offset, ..request.source.clone() };
            let request = FetchRequest { range, source, ..request.clone() };
            self.waiting.push(WaitingRange {
                request,
                due: now + self.options.gather_time,
                tries: 0,
                timeout_count: 0,
                failed_link: None,
            });
            start = range.end;
        }
    }

    /// The result of one range of a fetch; none if it is obsolete.
    pub(crate) fn fetched(
        &mut self,
        now: Instant,
        id: FetchId,
        range: u32,
        bytes: Option<Vec<u8>>,
    ) -> Option<FetchedRange> {
        let fetch = self.in_flight.get_mut(&id)?;
        let part = fetch.close(range)?;
        let link = fetch.link;
        if let Some(timeout) = fetch.range_timeout.filter(|_| bytes.is_some()) {
            fetch.due = fetch.due.max(now + timeout);
        }
        let is_over = fetch.is_finished();
        // Only the end of a response shows the latency of all of it.
        let ahead = if is_over { fetch.bytes_ahead } else { DataSize::ZERO };
        let latency = now.since(fetch.sent_at);
        let links = self.link_count(part.server);
        if let Some(fetch_link) = self.link_mut(link) {
            fetch_link.on_response(latency, ahead, part.cost(), bytes.is_some());
        }
        if is_over {
            self.in_flight.remove(&id);
        }
        match bytes.filter(|bytes| bytes.len() as u64 == part.range.len()) {
            Some(bytes) => {
                self.on_range_received(part.flow, part.range);
                let is_overdue = part.is_retried || part.timeout_count >= links;
                Some(FetchedRange {
                    flow: part.flow,
                    start: part.range.start,
                    bytes,
                    latency: Some(latency),
                    is_overdue,
                })
            }
            None => {
                if !part.is_retried {
                    self.retry(now, part, link, self.options.retry_delay);
                }
                None
            }
        }
    }

    /// Nothing of this flow is wanted any more.
    pub(crate) fn forget(&mut self, flow: u64) {
        self.waiting.retain(|waiting| waiting.request.flow != flow);
        self.drop_parts(|part| part.flow == flow);
    }

    /// Requests what is due. `missing` returns what of a range its flow still misses.
    pub(crate) fn tick(&mut self, now: Instant, missing: impl Fn(u64, PosRange) -> Vec<PosRange>) {
        self.retry_overdue(now);
        // What has arrived by itself meanwhile is not expected any more.
        self.drop_parts(|part| part.is_retried && missing(part.flow, part.range).is_empty());
        let due = self.waiting.iter().any(|waiting| waiting.due <= now);
        if due {
            self.drop_received(&missing);
            while self.send_one(now) {}
        }
    }

    /// What the driver has to do.
    pub(crate) fn take_outputs(&mut self) -> Vec<Output> {
        core::mem::take(&mut self.outputs)
    }

    /// When to call [`tick`](Self::tick) next.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let waiting = self.waiting.iter().map(|waiting| waiting.due);
        let is_overdue = self.in_flight.values().filter_map(InFlightFetch::deadline);
        waiting.chain(is_overdue).min()
    }

    /// How many more bytes may be missing at the same time, of all flows together: what the usable links deliver in
    /// `budget_time`, minus what is wanted already. Zero for a server that is late over all of them.
    pub(crate) fn budget(&self, server: SocketAddr) -> u64 {
        if self.is_server_overdue(server) {
            return 0;
        }
        let is_up = |fetch_link: &&FetchLink| fetch_link.reaches(server);
        // With a secondary link the primary one is reserved for what that one loses.
        let is_helped = self.links.iter().filter(is_up).any(|fetch_link| !fetch_link.info.is_primary);
        let usable = self.links.iter().filter(is_up).filter(|fetch_link| !is_helped || !fetch_link.info.is_primary);
        let budget_bytes: DataSize = usable.map(|fetch_link| fetch_link.rate() * self.options.budget_time).sum();
        let waiting: u64 = self.waiting.iter().map(|waiting| waiting.request.range.len()).sum();
        let in_flight: u64 = self.in_flight.values().map(InFlightFetch::bytes).sum();
        budget_bytes.bytes().saturating_sub(waiting + in_flight)
    }

    /// Whether this server was late with the same bytes as often as there are links, and still has not delivered them.
    fn is_server_overdue(&self, server: SocketAddr) -> bool {
        let links = self.link_count(server);
        self.in_flight.values().any(|fetch| fetch.is_overdue_for(server, links))
    }

    /// Number of links that reach this server; at least one.
    fn link_count(&self, server: SocketAddr) -> u32 {
        let links = self.links.iter().filter(|fetch_link| fetch_link.reaches(server)).count();
        u32::try_from(links).unwrap_or(u32::MAX).max(1)
    }

    /// Bytes that came over a link, response overhead included.
    pub(crate) fn fetched_over(&self, link: LinkId) -> DataSize {
        self.link(link).map_or(DataSize::ZERO, |fetch_link| fetch_link.total)
    }

    /// The measured rate of a link, if it was not configured.
    pub(crate) fn measured_rate(&self, link: LinkId) -> Option<crate::units::Bitrate> {
        self.link(link).and_then(|fetch_link| fetch_link.measured_rate)
    }

    fn link(&self, link: LinkId) -> Option<&FetchLink> {
        self.links.iter().find(|fetch_link| fetch_link.info.link == link)
    }

    fn link_mut(&mut self, link: LinkId) -> Option<&mut FetchLink> {
        self.links.iter_mut().find(|fetch_link| fetch_link.info.link == link)
    }

    /// Requests again what is overdue.
    fn retry_overdue(&mut self, now: Instant) {
        let timed_out: Vec<FetchId> =
            self.in_flight.iter().filter(|(_, fetch)| fetch.is_overdue(now)).map(|(id, _)| *id).collect();
        for id in timed_out {
            let Some(fetch) = self.in_flight.get_mut(&id) else { continue };
            let (link, parts) = (fetch.link, fetch.take_for_retry());
            if let Some(fetch_link) = self.link_mut(link) {
                fetch_link.on_overdue(now);
            }
            for part in parts {
                self.retry(
                    now,
                    InFlightRange { timeout_count: part.timeout_count + 1, ..part },
                    link,
                    Duration::ZERO,
                );
            }
        }
    }

    fn retry(&mut self, now: Instant, part: InFlightRange, link: LinkId, delay: Duration) {
        if part.tries >= MAX_TRIES {
            return;
        }
        let request = FetchRequest { flow: part.flow, range: part.range, source: part.source, server: part.server };
        self.waiting.push(WaitingRange {
            request,
            due: now + delay,
            tries: part.tries,
            timeout_count: part.timeout_count,
            failed_link: Some(link),
        });
    }

    /// Reduces waiting ranges to what is still missing.
    fn drop_received(&mut self, missing: impl Fn(u64, PosRange) -> Vec<PosRange>) {
        let ranges = core::mem::take(&mut self.waiting);
        for waiting in ranges {
            for range in missing(waiting.request.flow, waiting.request.range) {
                let offset = waiting.request.source.offset + (range.start - waiting.request.range.start);
                let source = ResourceOffset { offset, ..waiting.request.source.clone() };
                self.waiting.push(WaitingRange {
                    request: FetchRequest { range, source, ..waiting.request.clone() },
                    ..waiting.clone()
                });
            }
        }
    }

    /// Sends one more fetch, if something is due and there is a link for it.
    fn send_one(&mut self, now: Instant) -> bool {
        let Some(first) =
            self.waiting.iter().filter(|waiting| waiting.due <= now).min_by_key(|waiting| waiting.due)
        else {
            return false;
        };
        let (flow, failed, server) = (first.request.flow, first.failed_link, first.request.server);
        let resource = first.request.source.resource.clone();
        let is_same_batch = |waiting: &WaitingRange| {
            waiting.request.flow == flow
                && waiting.failed_link == failed
                && waiting.request.source.resource == resource
        };
        let all: u64 = self.waiting.iter().filter(|w| is_same_batch(w)).map(|w| w.request.range.len()).sum();
        let is_bulk = all > self.options.min_bulk;
        let Some(at) = self.choose_link(now, (server, failed), is_bulk) else {
            // Every link is busy, or none is usable: retry later.
            let retry_at = now + self.options.busy_delay;
            self.waiting.iter_mut().filter(|waiting| waiting.due <= now).for_each(|waiting| waiting.due = retry_at);
            return false;
        };
        let is_alone = self.link_count(server) < 2;
        let Some(fetch_link) = self.links.get(at) else { return false };
        let most = fetch_link.max_request(is_bulk);
        let (mut parts, mut bytes) = (Vec::new(), 0);
        self.waiting.retain(|waiting| {
            let fits =
                parts.is_empty() || (parts.len() < MAX_RANGES && bytes + waiting.request.range.len() <= most);
            let is_included = is_same_batch(waiting) && fits;
            if is_included {
                bytes += waiting.request.range.len();
                parts.push(InFlightRange {
                    flow,
                    range: waiting.request.range,
                    source: waiting.request.source.clone(),
                    server,
                    tries: waiting.tries + 1,
                    timeout_count: waiting.timeout_count,
                    is_retried: false,
                    is_closed: false,
                    is_received: false,
                });
            }
            !is_included
        });
        self.last_id += 1;
        let id = FetchId(self.last_id);
        let single_link_timeout = is_alone.then(|| self.options.timeout * self.options.single_link_factor);
        let out = fetch_link.outstanding(self.in_flight.values());
        let due = now + fetch_link.expected_latency(out) + single_link_timeout.unwrap_or(self.options.timeout);
        let ahead = out + parts.iter().map(InFlightRange::cost).sum::<DataSize>();
        let ranges = parts.iter().map(|part| (part.source.offset, part.source.offset + part.range.len())).collect();
        self.outputs.push(Output::Fetch(Fetch {
            id,
            link: fetch_link.info.link,
            server,
            request: resource.request.clone(),
            etag: resource.etag.clone(),
            length: DataSize::from_bytes(resource.length),
            ranges,
        }));
        self.in_flight.insert(
            id,
            InFlightFetch {
                link: fetch_link.info.link,
                due,
                range_timeout: single_link_timeout,
                sent_at: now,
                bytes_ahead: ahead,
                was_rerequested: false,
                parts,
            },
        );
        true
    }

    /// The link for a request to this server.
    fn choose_link(
        &self,
        now: Instant,
        (server, failed): (SocketAddr, Option<LinkId>),
        is_bulk: bool,
    ) -> Option<usize> {
        let has_headroom =
            |fetch_link: &FetchLink| fetch_link.can_request(now, fetch_link.outstanding(self.in_flight.values()));
        let usable = |fetch_link: &FetchLink| fetch_link.reaches(server) && has_headroom(fetch_link);
        let mut candidates: Vec<usize> = (0..self.links.len()).collect();
        if is_bulk {
            candidates.sort_by_key(|at| self.links.get(*at).is_some_and(|fetch_link| !fetch_link.info.is_primary));
        }
        let good = |at: &&usize| self.links.get(**at).is_some_and(usable);
        let other =
            |at: &&usize| self.links.get(**at).is_some_and(|fetch_link| Some(fetch_link.info.link) != failed);
        let is_reliable =
            |at: &&usize| is_bulk || self.links.get(**at).is_some_and(|fetch_link| !fetch_link.is_doubtful(now));
        let (good, others) = (|| candidates.iter().filter(good), || candidates.iter().filter(good).filter(other));
        others().find(is_reliable).or_else(|| others().next()).or_else(|| good().next()).copied()
    }

    /// These bytes have arrived: other requests for them are obsolete.
    fn on_range_received(&mut self, flow: u64, range: PosRange) {
        self.waiting.retain(|waiting| waiting.request.flow != flow || !range.covers(&waiting.request.range));
        self.drop_parts(|part| part.flow == flow && range.covers(&part.range));
    }

    fn drop_parts(&mut self, should_drop: impl Fn(&InFlightRange) -> bool) {
        let mut over = Vec::new();
        for (id, fetch) in &mut self.in_flight {
            if fetch.drop_parts(&should_drop) && fetch.is_finished() {
                over.push(*id);
            }
        }
        for id in over {
            self.in_flight.remove(&id);
            self.outputs.push(Output::Cancel(id));
        }
    }
}

/// Bounds the ranges in one request: more than the holes of 20 ms at 20 Mbit/s and 3 % of loss, and fewer than any
/// server refuses (Apache: 200).
const MAX_RANGES: usize = 32;
/// Bounds the requests for one range: at 600 ms and more each, longer than a hole may stay open.
const MAX_TRIES: u32 = 16;
