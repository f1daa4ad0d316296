//! Endgame: when every byte is in flight (requested, not yet received), late ranges are requested a second time over a
//! connection that can deliver them sooner.
//!
//! 1. The straggler is the connection that finishes last; the backup is the one that could deliver another byte first.
//! 2. The backup requests the end of the straggler's range, as much as makes both finish together. The copy that
//!    arrives first counts.
//! 3. The straggler delivers that end last. So if both keep their rates, nothing arrives twice: the download is
//!    complete before the straggler reaches it. Bytes that arrived twice so far, plus half of those that are requested
//!    twice now, are limited by [`Transfers::max_waste`]; if the straggler is far behind and the backup's link is
//!    unmetered, by a twentieth of the file where that is more.

use core::time::Duration;

use super::conn::{Conn, MIN_REQUEST, Req};
use super::transfers::Transfers;
use super::water_filling::{ConnForecast, finish_time, quota};
use super::{ByteRange, ConnId, ReqId, TimerReason, forecast};
use crate::units::DataSize;

/// Sends the duplicate requests that are worthwhile now, and sets the timer for the next review.
pub(super) fn duplicate_stragglers(transfers: &mut Transfers) {
    for _ in 0..MAX_DUPLICATES {
        let Some((backup, req, range)) = next_duplicate(transfers) else { break };
        // The mark shortens the straggler's exclusive range, so that the next pass judges what then remains.
        transfers.duplicate(req, range, backup);
    }
    if transfers.conns.len() > 1 {
        transfers.set_timer(transfers.now + ENDGAME_INTERVAL, TimerReason::Endgame);
    }
}

/// The next duplicate: backup connection, straggling request and range; none: it would gain too little or cost too
/// much.
fn next_duplicate(transfers: &Transfers) -> Option<(ConnId, ReqId, ByteRange)> {
    let (straggler_id, end) = straggler(transfers)?;
    let straggler = transfers.conns.get(&straggler_id)?;
    // A connection of the same link shares its capacity: it helps only if the straggler has stalled (no byte for an RTT).
    let is_stalled = transfers.now.since(straggler.last_activity) >= straggler.rtt();
    let backups = transfers.conns.iter().filter(|(id, conn)| {
        **id != straggler_id && may_duplicate(transfers, conn) && (is_stalled || conn.link != straggler.link)
    });
    let forecasts = backups
        .map(|(id, conn)| (*id, forecast::conn_forecast(transfers, conn, Duration::ZERO)))
        .filter(|(_, forecast)| !forecast.rate.is_zero());
    let (backup, forecast) = forecasts.min_by_key(|(_, forecast)| forecast.ready_in)?;
    // The straggler finishes at `end`, the backup can deliver its first byte at `ready_in`. In between lies the
    // gain.
    let gain = end.saturating_sub(forecast.ready_in);
    if gain < MIN_GAIN.max(forecast.ready_in / 4) {
        return None;
    }
    let exclusive = exclusive_bytes(transfers, straggler);
    let straggler_forecast = ConnForecast {
        rate: straggler.expected_rate(transfers.now),
        ready_in: straggler.expected_pause(transfers.now),
    };
    // Water filling over the two: the moment at which both finish, and the backup's part until then.
    let joint_finish = finish_time(&[straggler_forecast, forecast], exclusive);
    let duplicate = quota(forecast, joint_finish)
        .min(exclusive)
        .max(MIN_REQUEST)
        .min(max_duplicate(transfers, transfers.conns.get(&backup)?));
    let is_metered =
        transfers.links.get(&transfers.conns.get(&backup)?.link).is_some_and(|link| link.profile.metered);
    let late_allowance = if gain < FAR_BEHIND || is_metered {
        DataSize::ZERO
    } else {
        transfers.coverage.total()? / FAR_BEHIND_WASTE_DIVISOR
    };
    let allowed = transfers.max_waste().max(late_allowance);
    // Bytes that are duplicated in flight count half: they arrive twice only if the rates change.
    if transfers.coverage.wasted_bytes() + (duplicated_bytes(transfers) + duplicate) / 2 > allowed {
        return None;
    }
    let (req, range) = last_exclusive(transfers, straggler, transfers.conns.get(&backup)?, duplicate)?;
    Some((backup, req, range))
}

/// Before the endgame: duplicates the end of the request that is to deliver the byte at `offset`, for which a reader waits,
/// over another link. Only if that request would not be complete within `deadline` (from now) and both together finish
/// clearly sooner. Waste is limited to a twentieth of the file, on metered links too. Returns whether a request was sent.
pub(crate) fn duplicate_if_late(transfers: &mut Transfers, offset: u64, deadline: Duration) -> bool {
    let Some((backup, req, range)) = late_duplicate(transfers, offset, deadline) else { return false };
    transfers.duplicate(req, range, backup);
    true
}

fn late_duplicate(transfers: &Transfers, offset: u64, deadline: Duration) -> Option<(ConnId, ReqId, ByteRange)> {
    let (id, req) =
        transfers.reqs.iter().find(|(_, req)| !req.is_released && req.exclusive_range().contains(offset))?;
    let straggler = transfers.conns.get(&req.conn)?;
    // The end of this one request is estimated, not that of the connection: the reader needs only this byte. Requests on
    // one connection are delivered in order, so the earlier ones come first.
    let queue = straggler.reqs.iter().take_while(|other| *other != id).filter_map(|id| transfers.reqs.get(id));
    let before: DataSize = queue.map(|req| req.remaining().len()).sum();
    let rate = straggler.expected_rate(transfers.now);
    let straggler_forecast =
        ConnForecast { rate, ready_in: (before / rate).saturating_add(straggler.expected_pause(transfers.now)) };
    let exclusive = transfers.coverage.missing_bytes(req.exclusive_range());
    let end = straggler_forecast
        .ready_in
        .saturating_add(exclusive / rate)
        .saturating_add(straggler.server_delay_for(transfers.unanswered(straggler)));
    let others =
        transfers.conns.iter().filter(|(_, conn)| conn.link != straggler.link && may_duplicate(transfers, conn));
    let forecasts = others.map(|(id, conn)| (*id, forecast::conn_forecast(transfers, conn, Duration::ZERO)));
    let (backup, forecast) =
        forecasts.filter(|(_, forecast)| !forecast.rate.is_zero()).min_by_key(|(_, forecast)| forecast.ready_in)?;
    let joint_finish = finish_time(&[straggler_forecast, forecast], exclusive);
    // In time anyway, or not much sooner with help.
    if end <= deadline || joint_finish.saturating_add(MIN_LATE_GAIN) > end {
        return None;
    }
    let duplicate = quota(forecast, joint_finish)
        .min(exclusive)
        .max(MIN_REQUEST)
        .min(max_duplicate(transfers, transfers.conns.get(&backup)?));
    if transfers.coverage.wasted_bytes() + duplicate > transfers.coverage.total()? / FAR_BEHIND_WASTE_DIVISOR {
        return None;
    }
    let range = req.exclusive_range();
    Some((backup, *id, ByteRange::new(range.start.max(range.end.saturating_sub(duplicate.bytes())), range.end)))
}

/// Whether a connection may carry a duplicate: it can take a request, and its link has a token (limit on the rate of
/// requests) and data budget left. With a budget of zero the range would be cut to nothing.
fn may_duplicate(transfers: &Transfers, conn: &Conn) -> bool {
    let can_request = forecast::can_serve_ranges(transfers, conn)
        && conn.has_request_slot()
        && transfers.quirks.may_pipeline(conn);
    can_request && transfers.may_send_request(conn.link) && !transfers.budget_left(conn.link).is_zero()
}

/// Maximum size of one duplicate on a connection.
fn max_duplicate(transfers: &Transfers, conn: &Conn) -> DataSize {
    transfers.budget_left(conn.link).min(transfers.quirks.max_request(conn))
}

/// The connection that finishes last, and the time until then.
fn straggler(transfers: &Transfers) -> Option<(ConnId, Duration)> {
    // A connection without exclusive bytes holds nothing up: others deliver the same bytes. One without a rate never
    // ends (a division by zero is the longest duration), so a connection that has delivered nothing is a straggler.
    let ends = transfers.conns.iter().filter_map(|(id, conn)| {
        let exclusive = exclusive_bytes(transfers, conn);
        let delay =
            || conn.expected_pause(transfers.now).saturating_add(conn.server_delay_for(transfers.unanswered(conn)));
        (!exclusive.is_zero())
            .then(|| (*id, (exclusive / conn.expected_rate(transfers.now)).saturating_add(delay())))
    });
    ends.max_by_key(|(_, end)| *end)
}

/// Missing bytes that only this connection will deliver. Requests whose bytes were assigned to other links do not count.
fn exclusive_bytes(transfers: &Transfers, conn: &Conn) -> DataSize {
    let reqs = conn.reqs.iter().filter_map(|id| transfers.reqs.get(id)).filter(|req| !req.is_released);
    reqs.map(|req| transfers.coverage.missing_bytes(req.exclusive_range())).sum()
}

/// The last `duplicate` bytes that only this connection delivers, within one request. A range of which the backup
/// already carries a part is skipped.
fn last_exclusive(
    transfers: &Transfers,
    conn: &Conn,
    backup: &Conn,
    duplicate: DataSize,
) -> Option<(ReqId, ByteRange)> {
    let is_requested = |range: ByteRange| {
        let mut requests = backup.reqs.iter().filter_map(|id| transfers.reqs.get(id));
        requests.any(|req| !req.remaining().intersect(range).is_empty())
    };
    // Backwards, because the straggler delivers its last request last: that is the part which it may never reach.
    let reqs = conn.reqs.iter().rev().filter_map(|id| Some((*id, transfers.reqs.get(id)?)));
    for (id, req) in reqs.filter(|(_, req)| !req.is_released) {
        let exclusive = req.exclusive_range();
        if transfers.coverage.missing_bytes(exclusive).is_zero() {
            continue;
        }
        let start = exclusive.start.max(exclusive.end.saturating_sub(duplicate.bytes()));
        let range = ByteRange::new(start, exclusive.end);
        if !is_requested(range) {
            return Some((id, range));
        }
    }
    None
}

/// Missing bytes that two connections may deliver.
fn duplicated_bytes(transfers: &Transfers) -> DataSize {
    let duplicated = |req: &Req| ByteRange::new(req.next_offset.max(req.duplicated_from), req.range.end);
    transfers.reqs.values().map(|req| transfers.coverage.missing_bytes(duplicated(req))).sum()
}

/// A duplicate is sent only if its first byte could arrive this much before the straggler finishes, and before that by a
/// quarter of the time until this byte.
const MIN_GAIN: Duration = Duration::from_millis(15);
/// Saving this much time is worth more waste, up to a twentieth of the file, unless the backup's link is metered.
const FAR_BEHIND: Duration = Duration::from_millis(700);
const FAR_BEHIND_WASTE_DIVISOR: u64 = 20;
/// A duplicate before the end of the download must save at least this much time.
const MIN_LATE_GAIN: Duration = Duration::from_millis(150);
/// Maximum number of duplicates sent per review.
const MAX_DUPLICATES: usize = 8;
/// Time between reviews in the endgame.
const ENDGAME_INTERVAL: Duration = Duration::from_millis(10);
