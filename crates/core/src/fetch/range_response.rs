//! Responses to range requests: which bytes they deliver, what they say of the resource, and acceptance of their bytes.
//!
//! A 206 with the requested range identifies the resource, since only its own server can produce one. Servers also send
//! ranges that were not requested. They are used as far as the head is consistent: bytes in front of the requested ones
//! are skipped, and bytes behind them are cut off.

use super::conn::INITIAL_RANGE;
use super::mirrors::Mirrors;
use super::resource::{InitialRequest, Phase};
use super::server_quirks::requested_len;
use super::transfers::Transfers;
use super::{
    ByteRange, ContentRange, Notice, ReqId, RequestRange, ResponseHead, SingleResponseReason, Validator,
    first_request, refusals,
};
use crate::link::LinkId;
use crate::units::DataSize;

/// What a range response delivers, before its size and version are compared with the known ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RangeResponse {
    /// These bytes. The server may not know the size of the file.
    Usable {
        range: ByteRange,
        /// Size of the file; none: neither the server nor the machine knows it.
        total: Option<DataSize>,
    },
    /// Nothing: the file ends before the requested range.
    BehindEnd,
    /// The whole file, although a part was requested.
    WholeFile,
    /// Bytes that cannot be used, and why.
    Unusable(&'static str),
    /// A violation of HTTP.
    Violation(&'static str),
}

/// Judges a range by its head alone.
pub(super) fn classify(transfers: &mut Transfers, id: ReqId, link: LinkId, head: &ResponseHead) -> RangeResponse {
    let is_first = first_request::is_first_request(transfers, id);
    let requested = match transfers.reqs.get(&id) {
        // The first request covers the whole file, whatever provisional end its range has.
        _ if is_first => ByteRange::new(0, u64::MAX),
        Some(req) => req.range,
        None => return RangeResponse::Unusable("a response without a request"),
    };
    let range = match head.range {
        Some(ContentRange { range: Some(range), .. }) => range,
        Some(ContentRange { total: Some(total), .. }) if total.bytes() <= requested.start => {
            return RangeResponse::BehindEnd;
        }
        _ => return RangeResponse::Unusable("206 without a usable Content-Range"),
    };
    let total = head.range.and_then(|range| range.total);
    if head.is_encoded {
        return RangeResponse::Violation("an encoded range although identity was requested");
    }
    if head.length.is_some_and(|length| length != range.len()) {
        return RangeResponse::Unusable("a Content-Length that differs from the range");
    }
    let within = range.start == requested.start && range.end <= requested.end;
    if !within && total.is_some_and(|total| range == ByteRange::at(0, total)) && !is_first {
        return RangeResponse::WholeFile;
    }
    // More than the requested range is usable if the head is consistent. What precedes the range is skipped, up to a
    // limit.
    let skipped = DataSize::from_bytes(requested.start.saturating_sub(range.start));
    let exceeds_request = head.length.is_some() && range.start <= requested.start && requested.start < range.end;
    let is_unknown = transfers.resource.phase == Phase::Unknown;
    if !within && (!exceeds_request || skipped > MAX_SKIPPED) {
        // The range is unusable, but no portal states a total size: remember it.
        if let Some(total) = total.filter(|total| is_unknown && range.end <= total.bytes()) {
            transfers.resource.pending.report(link, Some(total), head.validator.as_ref(), true);
        }
        return RangeResponse::Unusable("a range other than the requested one");
    }
    // If the server does not know the total, the validator will show whether it is the file whose size is known.
    let known = transfers.coverage.total().filter(|_| transfers.resource.phase == Phase::Ranges);
    RangeResponse::Usable { range, total: total.or(known) }
}

/// The first usable response identifies the resource. Returns false if this response cannot be used after all: nothing
/// proves that a second response is of the same file (`is_provable`), and it does not cover the whole file.
pub(super) fn identify(
    transfers: &mut Transfers,
    id: ReqId,
    total: DataSize,
    validator: Option<&Validator>,
    range: ByteRange,
    is_provable: bool,
) -> bool {
    if !is_provable && let Some(link) = transfers.request_link(id) {
        transfers.resource.pending.report(link, Some(total), None, true);
    }
    if is_provable {
        transfers.resource.phase = Phase::Ranges;
    } else if range == ByteRange::at(0, total) {
        // Without a validator, a response that covers the whole file is used alone.
        transfers.resource.phase = Phase::SingleResponse { req: Some(id) };
        if first_request::is_first_request(transfers, id) && total > INITIAL_RANGE {
            transfers.notice(Notice::SingleResponse { reason: SingleResponseReason::NoValidator });
        }
        transfers.resource.single_response_link = transfers.request_link(id);
        transfers.close_other_conns(id);
    } else {
        return false;
    }
    let mirror = transfers.reqs.get(&id).and_then(|req| transfers.conns.get(&req.conn)).map(|conn| conn.mirror);
    if transfers.resource.initial_request == InitialRequest::SmallRange
        && let Some(mirror) = mirror
    {
        let refused = if transfers.config.open_ended_first { total } else { INITIAL_RANGE };
        transfers.quirks.of_mut(mirror).set_refused_size(refused);
    }
    transfers.set_total(total);
    transfers.report_identified(Some(total), validator.cloned());
    refusals::cancel_full_requests(transfers);
    true
}

/// Accepts the bytes of `range` up to the end of the request. Some may be stored already, and some may be missing.
pub(super) fn accept(transfers: &mut Transfers, mirrors: &Mirrors, id: ReqId, range: ByteRange) {
    let is_only_link = transfers.links.values().filter(|link| link.may_deliver()).count() == 1;
    let is_first = transfers.resource.first_request == Some(id)
        && transfers.coverage.total().is_none_or(|total| range.end == total.bytes());
    if transfers.resource.first_request == Some(id) && !is_first {
        // The server limited the response to `bytes=0-`: an ordinary range from now on.
        transfers.resource.first_request = None;
    }
    let Some(req) = transfers.reqs.get(&id) else { return };
    let mut end =
        range.end.min(if req.range_requested == RequestRange::From(0) { u64::MAX } else { req.range.end });
    // The server sends more than requested. If no other link can deliver, accept the free bytes behind the request as
    // well.
    if is_only_link && !transfers.reader.is_present() {
        end = transfers
            .coverage
            .next_free(end, range.end)
            .filter(|free| free.start == end)
            .map_or(end, |free| free.end);
    }
    // The first response delivers up to the end of its range, which others may have moved towards the front since.
    if is_first {
        end = if transfers.resource.phase == Phase::Ranges { req.range.end.min(range.end) } else { range.end };
    }
    let is_changed = range.start < req.range.start || end != req.range.end;
    let is_truncated = end < range.end && !is_first;
    let len = requested_len(req.range_requested).unwrap_or_default();
    let conn = transfers.conns.get(&req.conn).map(|conn| (conn.link, conn.mirror));
    transfers.accept_response(id, ByteRange::new(range.start, end));
    if let Some((link, mirror)) = conn {
        if let Some(link) = transfers.links.get_mut(&link) {
            link.responses_from_target = link.responses_from_target.saturating_add(1);
        }
        let quirks = transfers.quirks.of_mut(mirror);
        quirks.on_range_served(len);
        // The rest of the body is cut off, and with it the HTTP/1.1 connection.
        quirks.is_short_lived |= is_truncated;
    }
    if is_changed {
        transfers.rebuild_claims();
    }
    let end = if is_first { range.end } else { end };
    accept_body(transfers, mirrors, id, range.start, Some(DataSize::from_bytes(end - range.start)));
    if is_first {
        first_request::update_first_response(transfers);
    }
}

/// Makes the driver store the body of a response.
pub(super) fn accept_body(
    transfers: &mut Transfers,
    mirrors: &Mirrors,
    id: ReqId,
    offset: u64,
    len: Option<DataSize>,
) {
    let conn = transfers.reqs.get(&id).and_then(|req| transfers.conns.get(&req.conn));
    let is_other_mirror = conn.is_some_and(|conn| mirrors.is_other_mirror(conn.mirror));
    transfers.accept_body(id, offset, len, is_other_mirror);
}

/// Counts responses of a few bytes where more was requested. Returns true if there were so many in a row that ranges
/// are of no use.
pub(super) fn is_too_tiny(transfers: &mut Transfers, id: ReqId, range: ByteRange) -> bool {
    let total = transfers.coverage.total().unwrap_or_default();
    let Some(req) = transfers.reqs.get(&id) else { return false };
    let requested = requested_len(req.range_requested).unwrap_or(DataSize::MAX);
    let Some(mirror) = transfers.conns.get(&req.conn).map(|conn| conn.mirror) else { return false };
    transfers.quirks.of_mut(mirror).on_range_len(range.len(), requested, range.end < total.bytes())
}

/// Whether the first response states a file size equal to the end of the request. Some servers number the bytes of a
/// part as if it were the whole file.
pub(super) fn is_suspect_length(transfers: &Transfers, id: ReqId, total: DataSize) -> bool {
    let requested = transfers.reqs.get(&id).map(|req| req.range_requested);
    // An open-ended range has no end that a server could repeat, and players send such ranges everywhere.
    let ends_there = matches!(requested, Some(RequestRange::Bounded(range)) if range.end == total.bytes());
    let is_known = transfers.config.expected_size.is_some()
        || transfers.config.resume.is_some()
        || transfers.coverage.total().is_some();
    transfers.resource.phase == Phase::Unknown && ends_there && !is_known
}

/// Maximum number of unneeded bytes in front of the requested range. Our choice: one second of a slow link.
const MAX_SKIPPED: DataSize = DataSize::from_mib(1);
