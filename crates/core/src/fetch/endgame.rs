//! The last bytes: what lags behind is asked for a second time where it comes sooner.
//!
//! In: everything is on its way, and each connection's owed bytes and pace. Out: requests for the ends of spans that
//! another connection would bring too late.
//!
//! 1. The laggard is the connection that ends last, the helper the one that could bring another byte first.
//! 2. The helper takes as much of the laggard's end as makes both end together; both may bring it, the first counts.
//! 3. The laggard brings its end last, so if both keep their pace nothing comes twice. What has come twice, and half of
//!    what still may, is bounded by [`Fetch::waste_allowed`]; against a laggard that is far behind, by a twentieth.

use core::time::Duration;

use super::conn::INITIAL_RANGE;
use super::scheduler::{MIN_REQUEST, has_request_slot};
use super::water_filling::{ConnForecast, finish_time, quota};
use super::{ByteRange, Conn, ConnId, Fetch, Req, ReqId, RequestRange, TimerReason};
use crate::units::DataSize;

impl Fetch {
    /// Looks at the ends of all connections.
    pub(super) fn endgame(&mut self) {
        for _ in 0..MAX_DUPLICATES {
            let Some((backup, req, range)) = self.next_duplicate() else { break };
            if let Some(req) = self.reqs.get_mut(&req) {
                req.duplicated_from = range.start;
            }
            self.send_request(backup, RequestRange::Bounded(range));
        }
        if self.conns.len() > 1 {
            self.set_timer(self.now + ENDGAME_INTERVAL, TimerReason::Endgame);
        }
    }

    fn next_duplicate(&self) -> Option<(ConnId, ReqId, ByteRange)> {
        let (straggler_id, end) = self.straggler()?;
        let straggler = self.conns.get(&straggler_id)?;
        // A connection of the same link shares its capacity: it helps only one that stands still.
        let is_stalled = self.now.since(straggler.last_activity) >= straggler.rtt();
        let backups = self.conns.iter().filter(|(id, conn)| {
            **id != straggler_id && self.may_duplicate(conn) && (is_stalled || conn.link != straggler.link)
        });
        let forecasts = backups
            .map(|(id, conn)| (*id, self.conn_forecast(conn, Duration::ZERO)))
            .filter(|(_, forecast)| !forecast.rate.is_zero());
        let (backup, forecast) = forecasts.min_by_key(|(_, forecast)| forecast.ready_in)?;
        let gain = end.saturating_sub(forecast.ready_in);
        if gain < MIN_GAIN.max(forecast.ready_in / 4) {
            return None;
        }
        let exclusive = self.exclusive_bytes(straggler);
        let straggler_forecast =
            ConnForecast { rate: straggler.expected_rate(self.now), ready_in: self.stalled_for(straggler) };
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
        if self.coverage.wasted_bytes() + (self.duplicated_bytes() + duplicate) / 2 > allowed {
            return None;
        }
        let (req, range) = self.last_exclusive(straggler, self.conns.get(&backup)?, duplicate)?;
        Some((backup, req, range))
    }

    /// Another link brings the end of the request that owes the byte at `offset`, if the request would not be complete
    /// within `within` and both together end it clearly sooner. What its connection then brings twice stays within the
    /// bound against laggards that are far behind.
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

    /// Whether a connection may get another request, and its link carry its bytes. A request for no bytes would be one
    /// for everything.
    fn may_duplicate(&self, conn: &Conn) -> bool {
        let can_request = self.can_serve_ranges(conn) && has_request_slot(conn) && self.may_pipeline(conn);
        can_request && self.may_send_request(conn.link) && !self.budget_left(conn.link).is_zero()
    }

    /// The most that one request on a connection may bring.
    fn max_duplicate(&self, conn: &Conn) -> DataSize {
        self.budget_left(conn.link).min(self.max_request(conn))
    }

    /// The connection that ends last, and when.
    fn straggler(&self) -> Option<(ConnId, Duration)> {
        let ends = self.conns.iter().filter_map(|(id, conn)| {
            let exclusive = self.exclusive_bytes(conn);
            let delay = || self.stalled_for(conn).saturating_add(conn.server_delay_for(self.unanswered(conn)));
            (!exclusive.is_zero())
                .then(|| (*id, (exclusive / conn.expected_rate(self.now)).saturating_add(delay())))
        });
        ends.max_by_key(|(_, end)| *end)
    }

    /// How long a connection may bring nothing: one that stands still (a loss that is being repaired) will stand still
    /// for as long again, and in slow start the next burst is a round trip away.
    pub(super) fn stalled_for(&self, conn: &Conn) -> Duration {
        let burst = if conn.in_slow_start(self.now) { conn.min_rtt() } else { Duration::ZERO };
        self.now.since(conn.last_activity).max(burst)
    }

    /// Bytes that only this connection is to bring.
    fn exclusive_bytes(&self, conn: &Conn) -> DataSize {
        let reqs = conn.reqs.iter().filter_map(|id| self.reqs.get(id)).filter(|req| !req.is_released);
        reqs.map(|req| self.coverage.missing_bytes(req.exclusive_range())).sum()
    }

    /// The last `part` bytes that a connection owes, as far as they are in one request and not on their way to the
    /// helper already.
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

    /// Bytes that two connections are about to bring.
    fn duplicated_bytes(&self) -> DataSize {
        let duplicated = |req: &Req| ByteRange::new(req.next_offset.max(req.duplicated_from), req.range.end);
        self.reqs.values().map(|req| self.coverage.missing_bytes(duplicated(req))).sum()
    }

    /// How many bytes may have come for nothing before no more is asked for twice: under one percent of a large file,
    /// what the pipes hold of a small one.
    pub(super) fn max_waste(&self) -> DataSize {
        let total = self.coverage.total().unwrap_or_default();
        let pipes: DataSize = self.conns.values().map(|conn| conn.expected_rate(self.now) * conn.min_rtt()).sum();
        (total / 125).max(pipes).max(INITIAL_RANGE)
    }
}

/// Ending this much sooner is worth asking twice.
const MIN_GAIN: Duration = Duration::from_millis(15);
/// This far behind, waiting is worse than waste, unless it costs money; then up to a twentieth may come twice.
const FAR_BEHIND: Duration = Duration::from_millis(700);
const FAR_BEHIND_WASTE_DIVISOR: u64 = 20;
/// Before the end of a file, only this much is worth bytes that come twice.
const MIN_LATE_GAIN: Duration = Duration::from_millis(150);
/// Requests at one look.
const MAX_DUPLICATES: usize = 8;
/// How often the ends are looked at.
const ENDGAME_INTERVAL: Duration = Duration::from_millis(10);
