//! The origin of range requests, whose responses share the links with all other packets.
//!
//! 1. The server sends a range in pieces of an MTU, at nine tenths of the link's rate, from one and a half RTTs after the fetch on
//!    (handshake and request); all fetches of a link share that rate. A piece that has not arrived is sent again, after growing intervals.
//! 2. Ranges can fail, be short, or be late ([`ServerBehavior`]). A range that is incomplete after half a minute fails.
//! 3. A wrong request (another server, resource or validator, offsets beyond the end) is an error for the caller.

use std::collections::{BTreeMap, BTreeSet};

use marline_core::accel::{Fetch, Input, PacketBytes};
use marline_core::link::LinkId;
use marline_core::units::{Bitrate, DataSize, Duration, Instant};

use crate::accel::byte_stream::{append_bytes, etag, resource_id};
use crate::accel::payload::Piece;
use crate::accel::scenario::{FlowScript, ServerBehavior};
use crate::rng::{Purpose, RandomStream};

/// All pending fetches.
#[derive(Debug)]
pub(super) struct OriginServer {
    behavior: ServerBehavior,
    rng: RandomStream,
    fetches: BTreeMap<u64, PendingFetch>,
    /// When each piece is to be sent unless it has arrived, and how often it was sent.
    due: BTreeMap<(Instant, Piece), u32>,
    /// Ranges that fail, and when.
    failures: BTreeSet<(Instant, u64, u32)>,
    link_free_at: BTreeMap<LinkId, Instant>,
    /// Bytes of ranges that were served.
    pub(super) served: u64,
}

#[derive(Debug)]
struct PendingFetch {
    fetch: Fetch,
    resource: u64,
    since: Instant,
    /// Of each range, the missing pieces; none: it was answered.
    missing: Vec<Option<BTreeSet<Piece>>>,
}

impl OriginServer {
    pub(super) fn new(behavior: ServerBehavior, seed: u64) -> Self {
        Self {
            behavior,
            rng: RandomStream::new(seed, "origin", 0, Purpose::Other),
            fetches: BTreeMap::new(),
            due: BTreeMap::new(),
            failures: BTreeSet::new(),
            link_free_at: BTreeMap::new(),
            served: 0,
        }
    }

    /// A fetch starts. The n-th script has the n-th server. `link_info`: downstream rate and RTT of the fetch's link.
    ///
    /// # Errors
    /// What is wrong with the request.
    pub(super) fn on_fetch(
        &mut self,
        now: Instant,
        fetch: Fetch,
        scripts: &[FlowScript],
        servers: &[std::net::SocketAddr],
        link_info: (Bitrate, Duration),
    ) -> Result<(), String> {
        let (name, length) = find_resource(&fetch, scripts, servers)?;
        if fetch.ranges.is_empty() || fetch.ranges.iter().any(|(from, to)| from >= to || *to > length) {
            return Err(format!("ranges {:?} of {length} bytes", fetch.ranges));
        }
        if self.fetches.contains_key(&fetch.id.0) {
            return Err(format!("fetch {:?} twice", fetch.id));
        }
        let (rate, rtt) = link_info;
        let mut missing = Vec::new();
        for ((from, to), range) in fetch.ranges.iter().zip(0_u32..) {
            let extra_ms = self.rng.below(u64::try_from(self.behavior.max_delay.as_millis()).unwrap_or(0) + 1);
            let start = now + rtt + rtt / 2 + Duration::from_millis(extra_ms);
            if self.rng.bernoulli(self.behavior.failure) {
                self.failures.insert((start, fetch.id.0, range));
            }
            let free = self.link_free_at.entry(fetch.link).or_insert(start);
            *free = (*free).max(start);
            let mut pieces = BTreeSet::new();
            for at in 0..(to - from).div_ceil(PIECE_SIZE) {
                let bytes = PIECE_SIZE.min(to - from - at * PIECE_SIZE);
                let piece = Piece { fetch: fetch.id.0, range, at, bytes };
                self.due.insert((*free, piece), 0);
                *free += DataSize::from_bytes((bytes + 52) * 10 / 9) / rate;
                pieces.insert(piece);
            }
            missing.push(Some(pieces));
        }
        self.fetches.insert(fetch.id.0, PendingFetch { fetch, resource: name, since: now, missing });
        Ok(())
    }

    pub(super) fn on_cancel(&mut self, fetch: u64) {
        self.fetches.remove(&fetch);
    }

    /// The accelerator was killed.
    pub(super) fn clear(&mut self) {
        (self.fetches, self.due, self.failures) = Default::default();
    }

    /// The next piece to be sent now, and its link.
    pub(super) fn next_piece(&mut self, now: Instant, rtt: impl Fn(LinkId) -> Duration) -> Option<(LinkId, Piece)> {
        loop {
            let (&(at, piece), &tries) = self.due.first_key_value()?;
            if at > now {
                return None;
            }
            self.due.pop_first();
            let Some(open) = self.fetches.get(&piece.fetch) else { continue };
            let link = open.fetch.link;
            if self.is_missing(piece) {
                let retry_delay = rtt(link) * 2 + RETRY_AFTER * (1 << tries.min(2));
                self.due.insert((now + retry_delay, piece), tries + 1);
                return Some((link, piece));
            }
        }
    }

    /// A piece has arrived. Returns the response if its range is complete.
    pub(super) fn on_piece(&mut self, piece: Piece) -> Option<Input> {
        let open = self.fetches.get_mut(&piece.fetch)?;
        let missing = open.missing.get_mut(piece.range as usize)?.as_mut()?;
        missing.remove(&piece);
        if !missing.is_empty() {
            return None;
        }
        let (from, to) = *open.fetch.ranges.get(piece.range as usize)?;
        let to = if self.rng.bernoulli(self.behavior.truncation) { from + (to - from) / 2 } else { to };
        let mut bytes = Vec::new();
        append_bytes(&mut bytes, open.resource, from, to);
        self.served += to - from;
        self.respond(piece.fetch, piece.range, Some(PacketBytes(bytes)))
    }

    /// A range that has failed by now.
    pub(super) fn next_failure(&mut self, now: Instant) -> Option<Input> {
        while let Some((at, fetch, range)) = self.failures.first().copied().filter(|(at, ..)| *at <= now) {
            self.failures.remove(&(at, fetch, range));
            if let Some(answer) = self.respond(fetch, range, None) {
                return Some(answer);
            }
        }
        let is_timed_out = |(_, open): &(&u64, &PendingFetch)| now.since(open.since) >= FETCH_TIMEOUT;
        let (&fetch, open) = self.fetches.iter().find(is_timed_out)?;
        let range = open.missing.iter().position(Option::is_some).and_then(|range| u32::try_from(range).ok())?;
        self.respond(fetch, range, None)
    }

    /// When something is due.
    pub(super) fn next(&self) -> Option<Instant> {
        let due = self.due.first_key_value().map(|((at, _), _)| *at);
        let bad = self.failures.first().map(|(at, ..)| *at);
        let timeout_at = self.fetches.values().map(|open| open.since + FETCH_TIMEOUT).min();
        [due, bad, timeout_at].into_iter().flatten().min()
    }

    fn is_missing(&self, piece: Piece) -> bool {
        let open = self.fetches.get(&piece.fetch);
        let range = open.and_then(|open| open.missing.get(piece.range as usize)?.as_ref());
        range.is_some_and(|missing| missing.contains(&piece))
    }

    fn respond(&mut self, fetch: u64, range: u32, bytes: Option<PacketBytes>) -> Option<Input> {
        let open = self.fetches.get_mut(&fetch)?;
        open.missing.get_mut(range as usize)?.take()?;
        let id = open.fetch.id;
        if open.missing.iter().all(Option::is_none) {
            self.fetches.remove(&fetch);
        }
        Some(Input::Fetched { fetch: id, range, bytes })
    }
}

/// The requested resource, and its length.
fn find_resource(
    fetch: &Fetch,
    scripts: &[FlowScript],
    servers: &[std::net::SocketAddr],
) -> Result<(u64, u64), String> {
    let n = servers.iter().position(|server| *server == fetch.server).ok_or("another server")?;
    let path =
        fetch.request.strip_prefix("GET /").and_then(|remaining| remaining.split_once(' ')).map(|(path, _)| path);
    let name: u64 =
        path.and_then(|path| path.parse().ok()).ok_or_else(|| format!("request {:?}", fetch.request))?;
    let exchanges = scripts.get(n).map_or(&[][..], |script| &script.exchanges);
    let exchange = exchanges.iter().zip(0..).find(|(_, k)| resource_id(n as u64, *k) == name);
    let (exchange, _) = exchange.ok_or_else(|| format!("resource {name} of another server"))?;
    if fetch.etag != etag(name) || fetch.length.bytes() != exchange.response {
        return Err(format!("{} and {} of resource {name}", fetch.etag, fetch.length));
    }
    Ok((name, exchange.response))
}

/// Payload of a packet.
const PIECE_SIZE: u64 = 1448;
/// Until a piece is sent again for the first time, in addition to two round trips. Our choice: a queue and a half.
const RETRY_AFTER: Duration = Duration::from_millis(400);
/// Our choice: longer than any outage here.
const FETCH_TIMEOUT: Duration = Duration::from_secs(30);
