//! Endgame: when every byte is in flight, late ranges are requested a second time over a faster connection.
//!
//! 1. The straggler is the connection that finishes last; the backup is the one that could deliver another byte first.
//! 2. The backup requests the end of the straggler's range, as much as makes both finish together. The copy that
//!    arrives first counts.
//! 3. The straggler delivers that end last. So if both keep their rates, nothing arrives twice: the download is
//!    complete before the straggler reaches it. Duplicates so far, plus half of the possible ones, are limited by
//!    [`Fetch::max_waste`]; if the straggler is far behind, by a twentieth of the file.

use core::time::Duration;

use super::conn::INITIAL_RANGE;
use super::scheduler::{MIN_REQUEST, has_request_slot};
use super::water_filling::{ConnForecast, finish_time, quota};
use super::{ByteRange, Conn, ConnId, Fetch, Req, ReqId, RequestRange, TimerReason};
use crate::units::DataSize;

impl Fetch {
    /// Sends the duplicate requests that are worthwhile now, and sets the timer for the next review.
    pub(super) fn endgame(&mut self) {
        for _ in 0..MAX_DUPLICATES {
            let Some((backup, req, range)) = self.next_duplicate() else { break };
            // The mark shortens the straggler's exclusive range, so that the next pass judges what then remains.
            if let Some(req) = self.reqs.get_mut(&req) {
                req.duplicated_from = range.start;
            }
            self.send_request(backup, RequestRange::Bounded(range));
        }
        if self.conns.len() > 1 {
            self.set_timer(self.now + ENDGAME_INTERVAL, TimerReason::Endgame);
        }
    }

    /// The next duplicate: backup connection, straggling request and range; none: it would gain too little or cost too
    /// much.
    fn next_duplicate(&self) -> Option<(ConnId, ReqId, ByteRange)> {
        let (straggler_id, end) = self.straggler()?;
        let straggler = self.conns.get(&straggler_id)?;
        // A connection of the same link shares its capacity: it helps only if the straggler has stalled.
        let is_stalled = self.now.since(straggler.last_activity) >= straggler.rtt();
        let backups = self.conns.iter().filter(|(id, conn)| {
            **id != straggler_id && self.may_duplicate(conn) && (is_stalled || conn.link != straggler.link)
        });
        let forecasts = backups
            .map(|(id, conn)| (*id, self.conn_forecast(conn, Duration::ZERO)))
            .filter(|(_, forecast)| !forecast.rate.is_zero());
        let (backup, forecast) = forecasts.min_by_key(|(_, forecast)| forecast.ready_in)?;
        // The straggler finishes at `end`, the backup can deliver its first byte at `ready_in`. In between lies the
        // gain.
        let gain = end.saturating_sub(forecast.ready_in);
        if gain < MIN_GAIN.max(forecast.ready_in / 4) {
            return None;
        }
        let exclusive = self.exclusive_bytes(straggler);
        let straggler_forecast =
            ConnForecast { rate: straggler.expected_rate(self.now), ready_in: self.stalled_for(straggler) };
        // Water filling over the two: the moment at which both finish, and the backup's part until then.
        let joint_finish = finish_time(&[straggler_forecast, forecast], exclusive);
        let duplicate = quota(forecast, joint_finish)
            .min(exclusive)
            .max(MIN_REQUEST)
            .min(self.max_duplicate(self.conns.get(&backup)?));
        let is_metered = self.links.get(&self.conns.get(&backup)?.link).is_some_and(|link| link.profile.metered);
        let late_allowance = if gain < FAR_BEHIND || is_metered {
            DataSize::ZERO
        } else {
            self.coverage.total()? / FAR_BEHIND_WASTE_DIVISOR
        };
        let allowed = self.max_waste().max(late_allowance);
        // Bytes that are duplicated in flight count half: they arrive twice only if the rates change.
        if self.coverage.wasted_bytes() + (self.duplicated_bytes() + duplicate) / 2 > allowed {
            return None;
        }
        let (req, range) = self.last_exclusive(straggler, self.conns.get(&backup)?, duplicate)?;
        Some((backup, req, range))
    }

    /// Duplicates the end of the request that is to deliver the byte at `offset`, over another link. Only if that
    /// request would not be complete within `deadline` and both together finish clearly sooner. The limit on waste is
    /// the one for stragglers that are far behind. Returns whether a request was sent.
    pub(crate) fn duplicate_if_late(&mut self, offset: u64, deadline: Duration) -> bool {
        let Some((backup, req, range)) = self.late_duplicate(offset, deadline) else { return false };
        if let Some(req) = self.reqs.get_mut(&req) {
            req.duplicated_from = range.start;
        }
        self.send_request(backup, RequestRange::Bounded(range));
        true
    }

    fn late_duplicate(&self, offset: u64, deadline: Duration) -> Option<(ConnId, ReqId, ByteRange)> {
        let (id, req) =
            self.reqs.iter().find(|(_, req)| !req.is_released && req.exclusive_range().contains(offset))?;
        let straggler = self.conns.get(&req.conn)?;
        // Requests on one connection are delivered in order: earlier ones come first.
        let queue = straggler.reqs.iter().take_while(|other| *other != id).filter_map(|id| self.reqs.get(id));
        let before: DataSize = queue.map(|req| req.remaining().len()).sum();
        let rate = straggler.expected_rate(self.now);
        let straggler_forecast =
            ConnForecast { rate, ready_in: (before / rate).saturating_add(self.stalled_for(straggler)) };
        let exclusive = self.coverage.missing_bytes(req.exclusive_range());
        let end = straggler_forecast
            .ready_in
            .saturating_add(exclusive / rate)
            .saturating_add(straggler.server_delay_for(self.unanswered(straggler)));
        let others = self.conns.iter().filter(|(_, conn)| conn.link != straggler.link && self.may_duplicate(conn));
        let forecasts = others.map(|(id, conn)| (*id, self.conn_forecast(conn, Duration::ZERO)));
        let (backup, forecast) = forecasts
            .filter(|(_, forecast)| !forecast.rate.is_zero())
            .min_by_key(|(_, forecast)| forecast.ready_in)?;
        let joint_finish = finish_time(&[straggler_forecast, forecast], exclusive);
        if end <= deadline || joint_finish.saturating_add(MIN_LATE_GAIN) > end {
            return None;
        }
        let duplicate = quota(forecast, joint_finish)
            .min(exclusive)
            .max(MIN_REQUEST)
            .min(self.max_duplicate(self.conns.get(&backup)?));
        if self.coverage.wasted_bytes() + duplicate > self.coverage.total()? / FAR_BEHIND_WASTE_DIVISOR {
            return None;
        }
        let range = req.exclusive_range();
        Some((backup, *id, ByteRange::new(range.start.max(range.end.saturating_sub(duplicate.bytes())), range.end)))
    }

    /// Whether a connection may carry a duplicate: it can take a request, its link has a token and budget. With a
    /// budget of zero the range would be cut to nothing.
    fn may_duplicate(&self, conn: &Conn) -> bool {
        let can_request = self.can_serve_ranges(conn) && has_request_slot(conn) && self.may_pipeline(conn);
        can_request && self.may_send_request(conn.link) && !self.budget_left(conn.link).is_zero()
    }

    /// Maximum size of one duplicate on a connection.
    fn max_duplicate(&self, conn: &Conn) -> DataSize {
        self.budget_left(conn.link).min(self.max_request(conn))
    }

    /// The connection that finishes last, and the time until then.
    fn straggler(&self) -> Option<(ConnId, Duration)> {
        let ends = self.conns.iter().filter_map(|(id, conn)| {
            let exclusive = self.exclusive_bytes(conn);
            let delay = || self.stalled_for(conn).saturating_add(conn.server_delay_for(self.unanswered(conn)));
            (!exclusive.is_zero())
                .then(|| (*id, (exclusive / conn.expected_rate(self.now)).saturating_add(delay())))
        });
        ends.max_by_key(|(_, end)| *end)
    }

    /// How long a connection will probably deliver nothing more. A connection that has paused (for example while a loss
    /// is repaired) will pause as long again, and in slow start the next burst comes an RTT later.
    pub(super) fn stalled_for(&self, conn: &Conn) -> Duration {
        let burst = if conn.in_slow_start(self.now) { conn.min_rtt() } else { Duration::ZERO };
        self.now.since(conn.last_activity).max(burst)
    }

    /// Missing bytes that only this connection will deliver.
    fn exclusive_bytes(&self, conn: &Conn) -> DataSize {
        let reqs = conn.reqs.iter().filter_map(|id| self.reqs.get(id)).filter(|req| !req.is_released);
        reqs.map(|req| self.coverage.missing_bytes(req.exclusive_range())).sum()
    }

    /// The last `duplicate` bytes that only this connection delivers, within one request. A range of which the backup
    /// already carries a part is skipped.
    fn last_exclusive(&self, conn: &Conn, backup: &Conn, duplicate: DataSize) -> Option<(ReqId, ByteRange)> {
        let is_requested = |range: ByteRange| {
            let mut requests = backup.reqs.iter().filter_map(|id| self.reqs.get(id));
            requests.any(|req| !req.remaining().intersect(range).is_empty())
        };
        let reqs = conn.reqs.iter().rev().filter_map(|id| Some((*id, self.reqs.get(id)?)));
        for (id, req) in reqs.filter(|(_, req)| !req.is_released) {
            let exclusive = req.exclusive_range();
            if self.coverage.missing_bytes(exclusive).is_zero() {
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
    fn duplicated_bytes(&self) -> DataSize {
        let duplicated = |req: &Req| ByteRange::new(req.next_offset.max(req.duplicated_from), req.range.end);
        self.reqs.values().map(|req| self.coverage.missing_bytes(duplicated(req))).sum()
    }

    /// Limit for bytes that are transferred in vain: under one percent of a large file, one bandwidth-delay product of
    /// all connections for a small one.
    pub(super) fn max_waste(&self) -> DataSize {
        let total = self.coverage.total().unwrap_or_default();
        let pipes: DataSize = self.conns.values().map(|conn| conn.expected_rate(self.now) * conn.min_rtt()).sum();
        (total / 125).max(pipes).max(INITIAL_RANGE)
    }
}

/// A duplicate must save at least this much time.
const MIN_GAIN: Duration = Duration::from_millis(15);
/// Saving this much time is worth more waste, up to a twentieth of the file, except on a metered link.
const FAR_BEHIND: Duration = Duration::from_millis(700);
const FAR_BEHIND_WASTE_DIVISOR: u64 = 20;
/// A duplicate before the end of the download must save at least this much time.
const MIN_LATE_GAIN: Duration = Duration::from_millis(150);
/// Duplicates sent per review.
const MAX_DUPLICATES: usize = 8;
/// Time between reviews in the endgame.
const ENDGAME_INTERVAL: Duration = Duration::from_millis(10);
