//! Who serves ranges, over a connection of their own.
//!
//! In: fetches, the time, pieces that arrived. Out: pieces to be sent, and each range's answer, once.
//!
//! 1. A range comes in pieces of an MTU, at nine tenths of its link's rate, after a round trip and a half; all fetches of
//!    a link share that. A piece that did not come is sent again, after longer and longer times.
//! 2. Ranges can fail, be short, or be late, as the scene's manners say. What was not all there after half a minute fails.
//! 3. What cannot be served because it was asked wrongly is said to the world: another server, another resource, another
//!    validator, numbers beyond the resource's end.

use std::collections::{BTreeMap, BTreeSet};

use marline_core::accel::{Bytes, Fetch, Input};
use marline_core::link::LinkId;
use marline_core::units::{Bitrate, DataSize, Duration, Instant};

use super::carried::Piece;
use super::content::{etag, fill, resource};
use super::scene::{Manners, Plan};
use crate::rng::{Purpose, RandomStream};

/// All fetches that are not answered yet.
#[derive(Debug)]
pub(super) struct Origin {
    manners: Manners,
    chance: RandomStream,
    open: BTreeMap<u64, Open>,
    /// What is to be sent when, if it has not come by then, and how often it was sent.
    due: BTreeMap<(Instant, Piece), u32>,
    /// Ranges that are answered badly, and when.
    bad: BTreeSet<(Instant, u64, u32)>,
    free: BTreeMap<LinkId, Instant>,
    /// Bytes of ranges that were answered.
    pub(super) served: u64,
}

#[derive(Debug)]
struct Open {
    fetch: Fetch,
    name: u64,
    since: Instant,
    /// Of each range, the pieces that are missing; none: it was answered.
    missing: Vec<Option<BTreeSet<Piece>>>,
}

impl Origin {
    pub(super) fn new(manners: Manners, seed: u64) -> Self {
        Self {
            manners,
            chance: RandomStream::new(seed, "origin", 0, Purpose::Other),
            open: BTreeMap::new(),
            due: BTreeMap::new(),
            bad: BTreeSet::new(),
            free: BTreeMap::new(),
            served: 0,
        }
    }

    /// Somebody asks. The n-th plan has the n-th server.
    ///
    /// # Errors
    /// What is wrong with the request.
    pub(super) fn on_fetch(
        &mut self,
        now: Instant,
        fetch: Fetch,
        plans: &[Plan],
        servers: &[std::net::SocketAddr],
        road: (Bitrate, Duration),
    ) -> Result<(), String> {
        let (name, length) = found(&fetch, plans, servers)?;
        if fetch.ranges.is_empty() || fetch.ranges.iter().any(|(from, to)| from >= to || *to > length) {
            return Err(format!("ranges {:?} of {length} bytes", fetch.ranges));
        }
        if self.open.contains_key(&fetch.id.0) {
            return Err(format!("fetch {:?} twice", fetch.id));
        }
        let (rate, rtt) = road;
        let mut missing = Vec::new();
        for ((from, to), range) in fetch.ranges.iter().zip(0_u32..) {
            let late = self.chance.below(u64::try_from(self.manners.late.as_millis()).unwrap_or(0) + 1);
            let start = now + rtt + rtt / 2 + Duration::from_millis(late);
            if self.chance.bernoulli(self.manners.fails) {
                self.bad.insert((start, fetch.id.0, range));
            }
            let free = self.free.entry(fetch.link).or_insert(start);
            *free = (*free).max(start);
            let mut pieces = BTreeSet::new();
            for at in 0..(to - from).div_ceil(PIECE) {
                let bytes = PIECE.min(to - from - at * PIECE);
                let piece = Piece { fetch: fetch.id.0, range, at, bytes };
                self.due.insert((*free, piece), 0);
                *free += DataSize::from_bytes((bytes + 52) * 10 / 9) / rate;
                pieces.insert(piece);
            }
            missing.push(Some(pieces));
        }
        self.open.insert(fetch.id.0, Open { fetch, name, since: now, missing });
        Ok(())
    }

    /// Nobody waits any more.
    pub(super) fn on_cancel(&mut self, fetch: u64) {
        self.open.remove(&fetch);
    }

    /// Nobody is there any more.
    pub(super) fn clear(&mut self) {
        (self.open, self.due, self.bad) = Default::default();
    }

    /// The next piece to be sent now, and over which link.
    pub(super) fn next_piece(&mut self, now: Instant, rtt: impl Fn(LinkId) -> Duration) -> Option<(LinkId, Piece)> {
        loop {
            let (&(at, piece), &tries) = self.due.first_key_value()?;
            if at > now {
                return None;
            }
            self.due.pop_first();
            let Some(open) = self.open.get(&piece.fetch) else { continue };
            let link = open.fetch.link;
            if self.is_missing(piece) {
                let patience = rtt(link) * 2 + PATIENCE * (1 << tries.min(2));
                self.due.insert((now + patience, piece), tries + 1);
                return Some((link, piece));
            }
        }
    }

    /// A piece has come. The answer, if it was the last one of its range.
    pub(super) fn on_piece(&mut self, piece: Piece) -> Option<Input> {
        let open = self.open.get_mut(&piece.fetch)?;
        let missing = open.missing.get_mut(piece.range as usize)?.as_mut()?;
        missing.remove(&piece);
        if !missing.is_empty() {
            return None;
        }
        let (from, to) = *open.fetch.ranges.get(piece.range as usize)?;
        let to = if self.chance.bernoulli(self.manners.short) { from + (to - from) / 2 } else { to };
        let mut bytes = Vec::new();
        fill(&mut bytes, open.name, from, to);
        self.served += to - from;
        self.answer(piece.fetch, piece.range, Some(Bytes(bytes)))
    }

    /// A range that is answered badly by now.
    pub(super) fn next_failure(&mut self, now: Instant) -> Option<Input> {
        while let Some((at, fetch, range)) = self.bad.first().copied().filter(|(at, ..)| *at <= now) {
            self.bad.remove(&(at, fetch, range));
            if let Some(answer) = self.answer(fetch, range, None) {
                return Some(answer);
            }
        }
        let late = |(_, open): &(&u64, &Open)| now.since(open.since) >= LONGEST;
        let (&fetch, open) = self.open.iter().find(late)?;
        let range = open.missing.iter().position(Option::is_some).and_then(|range| u32::try_from(range).ok())?;
        self.answer(fetch, range, None)
    }

    /// When to look again.
    pub(super) fn next(&self) -> Option<Instant> {
        let due = self.due.first_key_value().map(|((at, _), _)| *at);
        let bad = self.bad.first().map(|(at, ..)| *at);
        let late = self.open.values().map(|open| open.since + LONGEST).min();
        [due, bad, late].into_iter().flatten().min()
    }

    fn is_missing(&self, piece: Piece) -> bool {
        let open = self.open.get(&piece.fetch);
        let range = open.and_then(|open| open.missing.get(piece.range as usize)?.as_ref());
        range.is_some_and(|missing| missing.contains(&piece))
    }

    fn answer(&mut self, fetch: u64, range: u32, bytes: Option<Bytes>) -> Option<Input> {
        let open = self.open.get_mut(&fetch)?;
        open.missing.get_mut(range as usize)?.take()?;
        let id = open.fetch.id;
        if open.missing.iter().all(Option::is_none) {
            self.open.remove(&fetch);
        }
        Some(Input::Fetched { fetch: id, range, bytes })
    }
}

/// The resource that is asked for, and its length.
fn found(fetch: &Fetch, plans: &[Plan], servers: &[std::net::SocketAddr]) -> Result<(u64, u64), String> {
    let n = servers.iter().position(|server| *server == fetch.server).ok_or("another server")?;
    let path = fetch.request.strip_prefix("GET /").and_then(|rest| rest.split_once(' ')).map(|(path, _)| path);
    let name: u64 =
        path.and_then(|path| path.parse().ok()).ok_or_else(|| format!("request {:?}", fetch.request))?;
    let exchanges = plans.get(n).map_or(&[][..], |plan| &plan.exchanges);
    let exchange = exchanges.iter().zip(0..).find(|(_, k)| resource(n as u64, *k) == name);
    let (exchange, _) = exchange.ok_or_else(|| format!("resource {name} of another server"))?;
    if fetch.etag != etag(name) || fetch.length.bytes() != exchange.answer {
        return Err(format!("{} and {} of resource {name}", fetch.etag, fetch.length));
    }
    Ok((name, exchange.answer))
}

/// Payload of a packet.
const PIECE: u64 = 1448;
/// How long a piece is waited for at first, beside two round trips. Chosen: a queue and a half.
const PATIENCE: Duration = Duration::from_millis(400);
/// Chosen: longer than any outage here.
const LONGEST: Duration = Duration::from_secs(30);
