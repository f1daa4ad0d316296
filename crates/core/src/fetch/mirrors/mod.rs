//! Mirrors: the URLs that claim to have the file, which of them may be combined, and which are excluded.
//!
//! One URL is one mirror, whatever addresses and links serve it; its validator shows which of its responses belong
//! together (RFC 9110 section 8.8). Two URLs may have different files although lengths and validators are equal: the
//! parts of a split archive often have both. Therefore:
//!
//! 1. Without a digest, one mirror is in use at a time. When it fails for good, the whole file is fetched from the next
//!    one, and no byte of the first one is kept.
//! 2. With a digest of the whole file or of its pieces ([`DigestScope`]), each link may use another mirror. The driver
//!    verifies the bytes ([`Output::Verify`]) before the download is complete.
//! 3. Bytes that do not match are fetched again. If one mirror delivered all of them, it is excluded. If several did,
//!    only one mirror is used from then on, so that the next mismatch has one culprit. A mirror whose single response
//!    breaks off repeatedly over every link is excluded, too.
//! 4. An in-order reader cannot give back what it has consumed, so mirrors are never combined for it.
//!
//! Comparing samples of two mirrors was rejected: files that differ in one byte would pass.

mod list;
mod mismatch;
mod verification;

use alloc::string::{String, ToString};
use core::time::Duration;

use super::link::{Link, LinkState};
use super::resource::Phase;
use super::transfers::Transfers;
use super::{BanReason, ByteRange, Config, DigestScope, Failure, Notice, TimerReason, UrlId};
use crate::link::LinkId;
use crate::units::{DataSize, Instant};

use list::MirrorList;
use verification::Verification;

/// All mirrors, and which of them is in use.
#[derive(Clone, Debug)]
pub(super) struct Mirrors {
    list: MirrorList,
    /// Combined bytes did not match: only one mirror is used from now on.
    is_single: bool,
    /// Number of mirrors left since bytes last arrived, while mirrors are not combined.
    failed_in_row: usize,
    /// Total number of changes of the mirror in use.
    switches: usize,
    /// The user gave a checksum of the whole file.
    has_checksum: bool,
    verification: Verification,
}

impl Mirrors {
    pub(super) fn new(config: &Config) -> Self {
        let resumed = config.resume.as_ref().and_then(|resume| resume.mirror);
        Self {
            list: MirrorList::new(config.mirrors, resumed),
            is_single: false,
            failed_in_row: 0,
            switches: 0,
            has_checksum: config.has_checksum,
            verification: Verification::new(config.digest.filter(|_| config.reader_window.is_none())),
        }
    }

    /// Whether links may use different mirrors at the same time.
    pub(super) fn can_combine(&self) -> bool {
        self.verification.has_digest() && !self.is_single
    }

    /// The mirror that a link uses first: spread over the links if mirrors are combined.
    pub(super) fn initial_for(&self, link: LinkId) -> UrlId {
        let index = usize::from(link.0) % self.list.allowed_count().max(1);
        let assigned = if self.can_combine() { self.list.allowed().nth(index) } else { None };
        assigned.unwrap_or(self.list.current_id())
    }

    /// Whether responses without a validator may be combined, because the result is verified.
    pub(super) fn is_result_verifiable(&self) -> bool {
        self.has_checksum || self.verification.has_digest()
    }

    /// Whether bytes of this mirror must not be recorded in the driver's journal.
    pub(super) fn is_other_mirror(&self, mirror: UrlId) -> bool {
        self.verification.is_other_mirror(mirror)
    }

    /// Whether the whole file failed its verification before.
    pub(super) fn has_mismatched(&self) -> bool {
        self.verification.has_mismatched()
    }

    /// Whether all bytes of a file of this size are verified, or no digest is known.
    pub(super) fn is_verified(&self, total: Option<DataSize>) -> bool {
        self.verification.is_complete(total)
    }

    /// Whether the driver is reading bytes to verify them.
    pub(super) fn is_verifying(&self) -> bool {
        self.verification.is_running()
    }

    /// Adds a mirror that a server named.
    pub(super) fn add_mirror(&mut self, id: UrlId) {
        self.list.add(id);
    }

    /// A link gets nothing from its mirror. If mirrors are combined, the link switches to the next one that it has not
    /// tried. Otherwise all links switch together, once none of them gets anything. Returns false if the link stays
    /// with its mirror.
    pub(super) fn try_next_mirror(&mut self, transfers: &mut Transfers, id: LinkId, reason: &BanReason) -> bool {
        if !self.can_combine() {
            return self.leave_mirror_if_unanimous(transfers, id, reason);
        }
        let Some(previous) = transfers.links.get(&id).map(|link| link.mirror) else { return false };
        let untried = self.has_untried_mirror(transfers, id);
        if untried {
            self.switch_mirror(transfers, id);
            transfers.notice(Notice::LinkMirrorSwitched { link: id, previous, reason: reason.clone() });
        }
        untried
    }

    /// Whether the link has another mirror that it has not tried since bytes last arrived.
    pub(super) fn has_untried_mirror(&self, transfers: &Transfers, id: LinkId) -> bool {
        let tried = |link: &Link| usize::from(link.mirrors_tried) + 1;
        transfers.links.get(&id).is_some_and(|link| tried(link) < self.list.allowed_count())
    }

    /// Switches a link to the next mirror, even if it has tried that one.
    pub(super) fn switch_mirror(&mut self, transfers: &mut Transfers, id: LinkId) {
        let max = u16::try_from(self.list.allowed_count()).unwrap_or(u16::MAX);
        let Some(next) = transfers.links.get(&id).map(|link| self.list.next_after(link.mirror)) else { return };
        let Some(link) = transfers.links.get_mut(&id) else { return };
        link.mirrors_tried = link.mirrors_tried.saturating_add(1).min(max);
        link.mirror = next;
        link.mirror_since = transfers.now;
        link.omit_range = false;
        link.failures = 0;
        link.next_attempt = transfers.now;
        for conn in link.conns.clone() {
            transfers.remove_conn(conn, true);
        }
    }

    /// Switches all links away from a mirror that has delivered nothing, once every usable link has been refused.
    fn leave_mirror_if_unanimous(&mut self, transfers: &mut Transfers, id: LinkId, reason: &BanReason) -> bool {
        if !self.can_switch_mirror(transfers) || has_delivered(transfers) {
            return false;
        }
        let Some(link) = transfers.links.get_mut(&id) else { return false };
        link.mirror_refused = true;
        let may_respond = |(id, link): (&LinkId, &Link)| !link.mirror_refused && transfers.is_usable(*id);
        if transfers.links.iter().any(may_respond) {
            return false;
        }
        self.switch_all_to_next_mirror(transfers, reason.to_string());
        true
    }

    /// The download would end with this failure: switches to the next mirror instead, if there is one that may help.
    pub(super) fn try_failover(&mut self, transfers: &mut Transfers, failure: &Failure) -> bool {
        let is_permanent = match failure {
            // The budget and the digest are the same for every mirror.
            Failure::BudgetExhausted | Failure::DigestMismatch => true,
            // If nothing was received, the other mirrors were already tried by `leave_stalled_mirror`.
            Failure::NoLink { .. } | Failure::NoResponse => transfers.coverage.received().is_zero(),
            _ => false,
        };
        if is_permanent || transfers.links.is_empty() {
            return false;
        }
        if self.can_combine() {
            return self.failover_single_response(transfers, failure);
        }
        if !self.can_switch_mirror(transfers) {
            return false;
        }
        self.switch_all_to_next_mirror(transfers, failure.to_string());
        transfers.restart_timeout();
        true
    }

    /// If mirrors are combined: the single response cannot be got from its mirror. Excludes the mirror and begins again
    /// with the next one.
    fn failover_single_response(&mut self, transfers: &mut Transfers, failure: &Failure) -> bool {
        let Some(link) =
            transfers.resource.single_response_link.filter(|_| transfers.resource.is_single_response())
        else {
            return false;
        };
        let Some(previous) =
            transfers.links.get(&link).map(|link| link.mirror).filter(|_| self.has_untried_mirror(transfers, link))
        else {
            return false;
        };
        let reason = match failure {
            Failure::RetriesExhausted { error } => BanReason::RepeatedErrors { error: error.clone() },
            _ => BanReason::ProtocolViolation { text: failure.to_string() },
        };
        let next = self.list.next_after(previous);
        self.list.exclude(previous);
        self.list.set_current(next);
        self.restart_from(transfers, next);
        transfers.notice(Notice::LinkMirrorSwitched { link, previous, reason });
        transfers.restart_timeout();
        true
    }

    /// Whether another mirror may help, and no reader has consumed bytes of the present one.
    fn can_switch_mirror(&self, transfers: &Transfers) -> bool {
        let count = self.list.allowed_count();
        !transfers.reader.has_consumed() && self.failed_in_row + 1 < count && self.switches < count * 2
    }

    /// Leaves a mirror from which no link receives anything: each is stalled or was refused.
    pub(super) fn leave_stalled_mirror(&mut self, transfers: &mut Transfers) {
        if transfers.links.is_empty() || self.can_combine() || self.list.allowed_count() < 2 {
            return;
        }
        if has_delivered(transfers) {
            return self.leave_refusing_mirror(transfers);
        }
        let mut since = None;
        for (_, link) in transfers.links.iter().filter(|(id, _)| transfers.is_usable(**id)) {
            match link.state {
                LinkState::Stalled { since: stalled_since } => {
                    since = since.max(Some(stalled_since.max(link.mirror_since)))
                }
                _ if link.mirror_refused => {}
                _ => return,
            }
        }
        let Some(since) = since else { return };
        let can_switch = self.can_switch_mirror(transfers);
        // The links may be at fault: after all mirrors were tried, try them again more slowly.
        let until = since + if can_switch { STALLED_MIRROR_TIMEOUT } else { MIRROR_RETRY_TIMEOUT };
        if transfers.now < until {
            return transfers.set_timer(until, TimerReason::Stall);
        }
        if can_switch {
            self.switch_all_to_next_mirror(transfers, "no data received".to_string());
        } else if transfers.reader.position() == 0 {
            let next = self.list.next_after(self.list.current_id());
            self.list.set_current(next);
            self.restart_from(transfers, next);
        }
    }

    /// The mirror has delivered and now refuses on all links: leaves it after a while.
    fn leave_refusing_mirror(&mut self, transfers: &mut Transfers) {
        if !self.can_switch_mirror(transfers) || transfers.links.iter().any(|(id, _)| transfers.is_usable(*id)) {
            return;
        }
        let refusal = transfers.links.values().find_map(|link| match &link.state {
            LinkState::Banned {
                reason: reason @ (BanReason::BadStatus { .. } | BanReason::ProtocolViolation { .. }),
                ..
            } => Some(reason),
            _ => None,
        });
        let (Some(reason), until) =
            (refusal.map(ToString::to_string), *transfers.last_data + REFUSING_MIRROR_TIMEOUT)
        else {
            return;
        };
        if transfers.now < until {
            return transfers.set_timer(until, TimerReason::Stall);
        }
        self.switch_all_to_next_mirror(transfers, reason);
    }

    /// Switches all links to the next mirror, for the whole file.
    fn switch_all_to_next_mirror(&mut self, transfers: &mut Transfers, reason: String) {
        let failed = self.list.current_id();
        let next = self.list.next_after(failed);
        self.list.fail_current();
        self.list.set_current(next);
        self.failed_in_row += 1;
        self.switches += 1;
        let from_zero = self.restart_from(transfers, next);
        transfers.notice(Notice::MirrorSwitched { failed, next, reason, discards_data: from_zero });
    }

    /// Begins again with this mirror only. Pieces that match their digests are kept. Returns whether bytes were
    /// discarded.
    fn restart_from(&mut self, transfers: &mut Transfers, mirror: UrlId) -> bool {
        let had_data = transfers.resource.phase != Phase::Unknown || !transfers.coverage.received().is_zero();
        transfers.close_all();
        transfers.resource.forget_mirror();
        let verified = self.verification.retain_verified();
        let keeps_data = !verified.is_empty();
        if keeps_data {
            transfers.retain_received(&verified);
            transfers.resource.phase = Phase::Ranges;
        } else {
            self.discard_bytes(transfers);
            transfers.resource.phase = Phase::Unknown;
            transfers.reader.seek(0);
        }
        transfers.rebuild_claims();
        for link in transfers.links.values_mut() {
            link.reset_to_mirror(mirror, transfers.now);
        }
        // Connections may have been opened already in this turn; they are closed now, so open new ones soon.
        transfers.set_timer(transfers.now, TimerReason::Retry);
        if had_data && !keeps_data {
            transfers.restart_storage();
        }
        had_data && !keeps_data
    }

    /// Discards all bytes and what was known of them.
    pub(super) fn discard_bytes(&mut self, transfers: &mut Transfers) {
        transfers.discard_received();
        self.verification.discard();
    }

    /// Sets the digest that a server named. An in-order reader cannot use it.
    pub(super) fn set_digest(&mut self, transfers: &Transfers, scope: DigestScope) {
        if !transfers.reader.is_present() && !self.verification.has_digest() {
            let received = transfers.coverage.received_ranges().clone();
            self.verification.set_digest(scope, self.list.current_id(), received);
        }
    }

    /// Records which mirror delivered these bytes.
    pub(super) fn on_delivered(&mut self, mirror: UrlId, range: ByteRange) {
        self.failed_in_row = 0;
        self.verification.on_delivered(mirror, range);
    }
}

/// Whether bytes were received from the mirror in use, or a response is in progress.
fn has_delivered(transfers: &Transfers) -> bool {
    !transfers.coverage.received().is_zero() || transfers.reqs.values().any(|req| req.is_accepted)
}

impl Link {
    /// Forgets what was known of the link's mirror, and uses this one.
    fn reset_to_mirror(&mut self, mirror: UrlId, now: Instant) {
        self.mirror = mirror;
        self.mirror_since = now;
        self.mirrors_tried = 0;
        self.mirror_refused = false;
        self.omit_range = false;
        self.failures = 0;
        self.next_attempt = now;
        self.forget_redirect_targets();
        self.conn_count = super::parallelism::ConnCountController::default();
        self.stats.is_verified = false;
        self.stats.cdn_node = None;
        self.stats.conflicting_version = None;
        self.stats.contradictions = 0;
        self.stats.best_single_response = (0, 0);
        if self.state != LinkState::Down {
            self.state = LinkState::Up;
        }
    }
}

/// How long a mirror may deliver nothing over any link at first.
const STALLED_MIRROR_TIMEOUT: Duration = Duration::from_secs(3);
/// The same after all mirrors were tried: another change is unlikely to help.
pub(super) const MIRROR_RETRY_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a mirror that has delivered may refuse on all links. Our choice: a link's first ban (5 s), and a probe that is
/// refused after it.
const REFUSING_MIRROR_TIMEOUT: Duration = Duration::from_secs(12);
