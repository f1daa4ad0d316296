//! Maps ranges of a flow's sequence space to ranges of HTTP resources (Super-aggregation §4.2, *Mirroring Manager*), so
//! that the bytes can be fetched a second time; or says why that is impossible.
//!
//! 1. The paper repeats the whole request on a second connection. Here that connection requests ranges, so nothing
//!    comes over the thin link that is not missing. The flow must be HTTP/1.x in plain text, and [`super::http_head`]
//!    has the other conditions.
//! 2. Requests and responses are matched in order (RFC 9112 section 9.3.2), so keep-alive and pipelining are followed.
//!    When something cannot be followed, earlier bodies stay known and later ones are not.
//! 3. Nothing is trusted unverified: before the first range of a resource is used, bytes of it that came are fetched
//!    and compared ([`HttpMap::take_check`], [`HttpMap::on_check_fetched`]). A resource that differs is never requested
//!    again.
//! 4. It begins with a request, at whose acknowledgement number the response begins, so the handshake need not be
//!    observed.
//! 5. Memory is bounded: one head in each direction, [`MAX_REQUESTS`] requests, [`MAX_BODIES`] bodies.

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::head_reassembler::{Head, HeadReassembler};
use super::http_head::{NotFetchable, RequestHead, ResponseHead};
use crate::accel::CaptureLevel;
use crate::accel::seq_space::{PosRange, nearest_position, position_of};
use crate::wire::packet::Seq;

/// A segment of the flow in either direction, as far as it was captured.
#[derive(Clone, Copy, Debug)]
pub struct ObservedSegment<'a> {
    /// The number of its first byte.
    pub seq: Seq,
    /// What it acknowledges.
    pub ack: Seq,
    /// Bytes of its payload.
    pub length: u32,
    /// The first of these, perhaps all.
    pub payload: &'a [u8],
}

/// What can be fetched a second time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resource {
    /// The request, in the form of [`Fetch`](crate::accel::Fetch).
    pub request: String,
    /// Its strong validator.
    pub etag: String,
    /// Its length.
    pub length: u64,
}

/// Where a range lies in its resource.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ResourceOffset {
    /// The resource.
    pub resource: Arc<Resource>,
    /// The offset of the range's first byte.
    pub offset: u64,
}

/// The HTTP of one flow.
#[derive(Clone, Debug, Default)]
pub struct HttpMap {
    reassemblers: Option<HeadReassemblers>,
    /// Requests without a response, the oldest first.
    pending_requests: VecDeque<RequestHead>,
    bodies: VecDeque<Body>,
    not_fetchable: Option<NotFetchable>,
}

/// Reassembled heads of both directions: requests (`up`) and responses (`down`).
#[derive(Clone, Debug)]
struct HeadReassemblers {
    up: HeadReassembler,
    down: HeadReassembler,
}

/// A response body in sequence space.
#[derive(Clone, Debug)]
struct Body {
    range: PosRange,
    /// Where it begins in the resource.
    offset: u64,
    resource: Result<Arc<Resource>, NotFetchable>,
    verification: Verification,
}

/// Whether a resource is what came.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Verification {
    /// No bytes of it were captured yet.
    NoSample,
    /// Some were, from this position on.
    Sample(u64, Vec<u8>),
    /// The same bytes are being fetched.
    Requested(u64, Vec<u8>),
    /// The fetched bytes were equal to the captured ones.
    Verified,
}

impl HttpMap {
    /// A segment of the client.
    pub fn on_request_segment(&mut self, segment: &ObservedSegment<'_>) {
        if self.not_fetchable.is_some() || segment.length == 0 {
            return;
        }
        let Some(taps) = self.reassemblers_for(segment) else { return };
        let at = nearest_position(taps.up.next(), segment.seq);
        taps.up.on_payload(at, segment.payload, segment.length.into());
        self.read_requests();
    }

    /// A segment of the server.
    pub fn on_response_segment(&mut self, segment: &ObservedSegment<'_>) {
        let Some(taps) = &mut self.reassemblers else { return };
        if segment.length == 0 {
            return;
        }
        // The next head may be gigabytes away, more than half of the sequence space; the highest byte is near.
        let at = nearest_position(taps.down.highest(), segment.seq);
        taps.down.on_payload(at, segment.payload, segment.length.into());
        if self.not_fetchable.is_none() {
            self.read_answers();
        }
        self.keep_sample(at, segment.payload);
    }

    /// Where a range lies, if it is within one verified body.
    pub fn locate(&self, range: PosRange) -> Option<ResourceOffset> {
        let body = self.body_of(range)?;
        let resource = body.resource.as_ref().ok().filter(|_| body.verification == Verification::Verified)?;
        Some(ResourceOffset {
            resource: Arc::clone(resource),
            offset: body.offset + (range.start - body.range.start),
        })
    }

    /// What is to be fetched and compared before anything else; once for each resource.
    pub fn take_check(&mut self) -> Option<(PosRange, ResourceOffset)> {
        for body in &mut self.bodies {
            if let (Ok(resource), Verification::Sample(at, bytes)) = (&body.resource, &body.verification) {
                let range = PosRange::new(*at, at.saturating_add(bytes.len() as u64));
                let offset = body.offset + (at - body.range.start);
                let source = ResourceOffset { resource: Arc::clone(resource), offset };
                body.verification = Verification::Requested(*at, bytes.clone());
                return Some((range, source));
            }
        }
        None
    }

    /// Whether these bytes answer [`take_check`](Self::take_check); if so, they are compared.
    pub fn on_check_fetched(&mut self, start: u64, bytes: &[u8]) -> bool {
        let is_requested =
            |body: &Body| matches!(&body.verification, Verification::Requested(at, _) if *at == start);
        let Some(body) = self.bodies.iter_mut().find(|body| is_requested(body)) else { return false };
        let Ok(resource) = body.resource.clone() else { return false };
        let is_same = matches!(&body.verification, Verification::Requested(_, sample) if sample == bytes);
        for body in self.bodies.iter_mut().filter(|body| body.resource.as_ref() == Ok(&resource)) {
            if is_same {
                body.verification = Verification::Verified;
            } else {
                body.resource = Err(NotFetchable::Differs);
            }
        }
        if !is_same {
            self.set_not_fetchable(NotFetchable::Differs);
        }
        true
    }

    /// No request was observed, and nothing is captured any more: what comes now cannot be followed.
    pub fn give_up(&mut self) {
        if self.has_no_request() {
            self.set_not_fetchable(NotFetchable::NotCaptured);
        }
    }

    /// Whether nothing more is to be observed: the flow cannot be followed, or the client has closed and has its
    /// responses; and everything before `position` has arrived.
    pub fn is_finished(&self, position: u64, has_closed: bool) -> bool {
        let is_last = self.not_fetchable.is_some() || (has_closed && self.pending_requests.is_empty());
        is_last && self.bodies.iter().all(|body| body.resource.is_err() || body.range.end <= position)
    }

    /// Stops following, for this reason unless there was one.
    pub fn close(&mut self, why: NotFetchable) {
        let why = self.not_fetchable.unwrap_or(why);
        *self = Self { not_fetchable: Some(why), ..Self::default() };
    }

    /// Whether no request was observed, and one still may be.
    pub fn has_no_request(&self) -> bool {
        self.reassemblers.is_none() && self.not_fetchable.is_none()
    }

    /// Whether the bytes from here on are being fetched for a comparison.
    pub fn is_check(&self, start: u64) -> bool {
        self.bodies.iter().any(|body| matches!(&body.verification, Verification::Requested(at, _) if *at == start))
    }

    /// The end of the last known body. A FIN cannot lie before it.
    pub fn end(&self) -> Option<u64> {
        self.bodies.back().map(|body| body.range.end)
    }

    /// The position of a number of the server, once one is known.
    pub fn position(&self, seq: Seq) -> Option<u64> {
        self.reassemblers.as_ref().map(|taps| nearest_position(taps.down.highest(), seq))
    }

    /// Everything before this position has arrived; bodies that end before it are forgotten, except for the last one.
    pub fn forget_before(&mut self, position: u64) {
        while self.bodies.len() > 1 && self.bodies.front().is_some_and(|body| body.range.end <= position) {
            self.bodies.pop_front();
        }
    }

    /// How much must be captured: everything while a head or a sample is needed, else nothing.
    pub fn capture_level(&self) -> CaptureLevel {
        let Some(taps) = self.reassemblers.as_ref().filter(|_| self.not_fetchable.is_none()) else {
            return if self.not_fetchable.is_some() { CaptureLevel::None } else { CaptureLevel::Full };
        };
        let is_near = taps.down.highest().saturating_add(NEXT_HEAD_DISTANCE) >= taps.down.next();
        let samples =
            self.bodies.iter().any(|body| body.resource.is_ok() && body.verification == Verification::NoSample);
        if is_near || samples { CaptureLevel::Full } else { CaptureLevel::None }
    }

    /// Why what comes now cannot be fetched; none while it can, or may turn out to be fetchable.
    pub fn not_fetchable(&self) -> Option<NotFetchable> {
        let last = self.bodies.back().filter(|body| {
            self.reassemblers
                .as_ref()
                .is_some_and(|taps| body.range.contains(taps.down.highest().saturating_sub(1)))
        });
        last.and_then(|body| body.resource.as_ref().err().copied()).or(self.not_fetchable)
    }

    /// The two directions; none before the first request.
    fn reassemblers_for(&mut self, segment: &ObservedSegment<'_>) -> Option<&mut HeadReassemblers> {
        if self.reassemblers.is_none() {
            match segment.payload {
                [0x16, 3, ..] => self.set_not_fetchable(NotFetchable::Encrypted),
                [b'A'..=b'Z', ..] => {
                    let (up, down) = (
                        HeadReassembler::new(position_of(segment.seq)),
                        HeadReassembler::new(position_of(segment.ack)),
                    );
                    self.reassemblers = Some(HeadReassemblers { up, down });
                }
                _ => self.set_not_fetchable(NotFetchable::NotHttp),
            }
        }
        self.reassemblers.as_mut()
    }

    fn read_requests(&mut self) {
        while let Some(taps) = &mut self.reassemblers {
            let request = match taps.up.take_head() {
                Head::Complete(head) => RequestHead::parse(&head),
                Head::Partial if could_be_request(taps.up.known_start()) => return,
                Head::Partial => Err(NotFetchable::NotHttp),
                Head::TooLong => Err(NotFetchable::TooLarge),
                Head::Lost => Err(NotFetchable::NotCaptured),
            };
            match request {
                Ok(request) if self.pending_requests.len() < MAX_REQUESTS => {
                    taps.up.skip(request.body);
                    self.pending_requests.push_back(request);
                }
                Ok(_) => return self.set_not_fetchable(NotFetchable::TooLarge),
                Err(refusal) => return self.set_not_fetchable(refusal),
            }
        }
    }

    fn read_answers(&mut self) {
        while let Some(taps) = &mut self.reassemblers {
            let head = match taps.down.take_head() {
                Head::Complete(head) => head,
                Head::Partial => return,
                Head::TooLong => return self.set_not_fetchable(NotFetchable::TooLarge),
                Head::Lost => return self.set_not_fetchable(NotFetchable::NotCaptured),
            };
            let answer = match ResponseHead::parse(&head) {
                Ok(answer) if answer.is_interim => continue,
                Ok(answer) => answer,
                Err(refusal) => return self.set_not_fetchable(refusal),
            };
            let Some(request) = self.pending_requests.pop_front() else {
                return self.set_not_fetchable(NotFetchable::NoRequest);
            };
            let length = if request.is_head { 0 } else { answer.body };
            let start = taps.down.next();
            taps.down.skip(length);
            self.add_body(PosRange::new(start, start.saturating_add(length)), request, answer);
        }
    }

    fn add_body(&mut self, range: PosRange, request: RequestHead, answer: ResponseHead) {
        let resource = match (request.repeated_request, answer.part) {
            (Err(refusal), _) | (_, Err(refusal)) => Err(refusal),
            _ if range.len() < MIN_BODY => Err(NotFetchable::Short),
            (Ok(request), Ok(part)) => {
                Ok((Resource { request, etag: part.etag, length: part.length }, part.offset))
            }
        };
        let offset = resource.as_ref().map_or(0, |(_, offset)| *offset);
        let resource = resource.map(|(resource, _)| Arc::new(resource));
        // Another part of a resource that was verified needs no second check.
        let known = self
            .bodies
            .iter()
            .find(|body| body.resource == resource && body.verification == Verification::Verified);
        let verification = known.map_or(Verification::NoSample, |_| Verification::Verified);
        if self.bodies.len() >= MAX_BODIES {
            self.bodies.pop_front();
        }
        self.bodies.push_back(Body { range, offset, resource, verification });
    }

    /// Keeps bytes of bodies that have no sample yet.
    fn keep_sample(&mut self, at: u64, payload: &[u8]) {
        let captured = PosRange::new(at, at.saturating_add(payload.len() as u64));
        for body in self
            .bodies
            .iter_mut()
            .filter(|body| body.verification == Verification::NoSample && body.resource.is_ok())
        {
            let common = body.range.intersection(&captured);
            let from = usize::try_from(common.start - at).unwrap_or(usize::MAX);
            if let Some(bytes) =
                payload.get(from..).and_then(|tail| tail.get(..SAMPLE)).filter(|_| common.len() >= SAMPLE as u64)
            {
                body.verification = Verification::Sample(common.start, bytes.to_vec());
            }
        }
    }

    fn body_of(&self, range: PosRange) -> Option<&Body> {
        self.bodies.iter().find(|body| !range.is_empty() && body.range.covers(&range))
    }

    fn set_not_fetchable(&mut self, refusal: NotFetchable) {
        self.not_fetchable = Some(refusal);
        self.pending_requests.clear();
    }
}

/// Whether these bytes can begin a request: capital letters, then a blank.
fn could_be_request(bytes: &[u8]) -> bool {
    let method_end = bytes.iter().position(|b| !b.is_ascii_uppercase());
    method_end.is_none_or(|end| (3..=16).contains(&end) && bytes.get(end) == Some(&b' '))
        && (method_end.is_some() || bytes.len() <= 16)
}

/// Our choice: more than clients pipeline.
const MAX_REQUESTS: usize = 64;
/// Our choice: as many bodies may be partly missing at the same time.
const MAX_BODIES: usize = 64;
/// Our choice: a shorter body is complete before a second connection is established.
const MIN_BODY: u64 = 64 * 1024;
/// Our choice: bytes that are compared; fewer than a segment has, so that the first captured one suffices.
const SAMPLE: usize = 512;
/// Our choice: this close to the end of a body everything is captured, for the next head: more than comes between a
/// decision and its effect.
const NEXT_HEAD_DISTANCE: u64 = 1024 * 1024;
