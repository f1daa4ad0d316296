//! Guarantees of a stream to its player, checked after every step of the driver.
//!
//! 1. When the stream is done, everything up to the last playable byte has been delivered.
//! 2. While the player is buffering, no link is on standby. Exception: if metered bytes are to be saved, the first
//!    frame may wait for [`METERED_START_WAIT`].
//! 3. While the player is buffering and bytes could be requested, no honest link is idle for longer than
//!    [`MAX_STARVATION`]. This holds for the Marline policy only: GreenBag leaves a slow link its subsegment as
//!    long as its rules demand.
//!
//! The reference model cannot check this, because it knows only bytes, neither times nor players.

use std::collections::BTreeSet;

use marline_core::fetch::Notice;
use marline_core::link::LinkId;
use marline_core::playback::{Player, PlayerState};
use marline_core::stream::{Config, Objective, Policy, Stream};
use marline_core::units::{Duration, Instant};

use super::fault_plan::LinkBehavior;
use super::reference::ReferenceModel;

/// Observed state of one stream; see the [module documentation](self).
#[derive(Debug)]
pub(super) struct StreamInvariants {
    policy: Policy,
    objective: Objective,
    /// Since when the player is buffering and an honest link is idle although data is missing.
    starving_since: Option<Instant>,
    /// Links that the machine has banned because of their responses and has not used since.
    banned_links: BTreeSet<LinkId>,
    /// The whole file comes as one response over one link.
    is_single_response: bool,
}

/// State after a step of the driver.
pub(super) struct StreamSnapshot<'a> {
    pub(super) now: Instant,
    pub(super) stream: &'a Stream,
    pub(super) reference: &'a ReferenceModel,
    pub(super) links: &'a [LinkBehavior],
    /// Links with an open connection attempt or response.
    pub(super) busy_links: BTreeSet<usize>,
    /// The result, if the download has ended.
    pub(super) result: Option<&'a Result<(), String>>,
}

impl StreamInvariants {
    pub(super) fn new(config: &Config) -> Self {
        let (policy, objective) = (config.policy, config.objective);
        Self { policy, objective, starving_since: None, banned_links: BTreeSet::new(), is_single_response: false }
    }

    /// Records that the machine has sent a request on this link.
    pub(super) fn on_request(&mut self, link: LinkId) {
        self.banned_links.remove(&link);
    }

    pub(super) fn on_notice(&mut self, notice: &Notice) {
        match notice {
            Notice::SingleResponse { .. } => self.is_single_response = true,
            Notice::FileChanged => self.is_single_response = false,
            Notice::Banned { link, .. } => drop(self.banned_links.insert(*link)),
            _ => {}
        }
    }

    /// Checks all guarantees and returns the first violation.
    pub(super) fn check(&mut self, snapshot: &StreamSnapshot<'_>) -> Result<(), String> {
        let reference = snapshot.reference;
        if let Some(ended) = snapshot.result {
            let (delivered, frontier) = (reference.delivered_end(), reference.in_order_end());
            return if ended.is_ok() && delivered < frontier {
                Err(format!("done with {frontier} bytes, of which {delivered} were delivered"))
            } else {
                Ok(())
            };
        }
        let links = || (0..snapshot.links.len()).zip((0..).map(LinkId));
        let player_waits =
            snapshot.stream.player().is_some_and(|player| self.needs_all_links(player, snapshot.now));
        if let Some((link, _)) = links().find(|(_, id)| player_waits && snapshot.stream.is_standby(*id)) {
            return Err(format!("the player is buffering and link {link} is on standby"));
        }
        let is_idle = |(link, id): (usize, LinkId)| {
            snapshot.links[link].is_honest()
                && !self.banned_links.contains(&id)
                && !snapshot.busy_links.contains(&link)
        };
        let missing = reference.in_order_end() < reference.file_end().min(reference.request_limit());
        let is_marline = self.policy == Policy::Marline;
        let is_starving = is_marline && player_waits && missing && !self.is_single_response && links().any(is_idle);
        self.starving_since = self.starving_since.or(Some(snapshot.now)).filter(|_| is_starving);
        match self.starving_since {
            Some(since) if snapshot.now.since(since) > MAX_STARVATION => {
                Err(format!("the player has been buffering since {since}, and an honest link is idle"))
            }
            _ => Ok(()),
        }
    }

    /// The player is buffering and all links should help to end that.
    fn needs_all_links(&self, player: &Player, now: Instant) -> bool {
        let can_wait = self.objective == Objective::MeteredBytes
            && player.first_frame().is_none()
            && now < Instant::ZERO + METERED_START_WAIT;
        player.state() == PlayerState::Buffering && !can_wait
    }
}

/// How long an honest link may be idle while the player is buffering: servers request pauses, and it takes time to
/// detect broken links.
const MAX_STARVATION: Duration = Duration::from_secs(12);
/// How long the first frame may wait for unmetered links when metered bytes are minimized (`--goal cost`).
const METERED_START_WAIT: Duration = Duration::from_secs(2);
