//! What a stream promises its player, whatever the network does.
//!
//! In: what the machine says and asks, and after each turn how everything stands. Out: the first broken promise.
//!
//! 1. What is done was delivered, up to the last byte that can be played.
//! 2. While the player waits, no link rests. Where metered bytes are to be few, the very first picture may be waited for
//!    [`PATIENCE`] long.
//! 3. While the player waits for bytes that may be asked for, no honest link has nothing to do for longer than
//!    [`LONGEST_STARVING`]. GreenBag's rules leave a lagging link its subsegment for as long as they say, so this is
//!    asked of Marline's alone.
//!
//! The ledger does not judge this: it knows bytes, and neither time nor players.

use std::collections::BTreeSet;

use marline_core::fetch::Notice;
use marline_core::link::LinkId;
use marline_core::playback::{Player, PlayerState};
use marline_core::stream::{Config, Objective, Policy, Stream};
use marline_core::units::{Duration, Instant};

use super::fault_plan::LinkBehavior;
use super::reference::ReferenceModel;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct StreamInvariants {
    policy: Policy,
    objective: Objective,
    /// Since when the player waits, and no honest link is asked for anything although something is missing.
    starving_since: Option<Instant>,
    /// Links that the machine rests because of what they said, and has not asked since.
    banned_links: BTreeSet<LinkId>,
    /// Everything comes as one answer, over one link.
    is_single_response: bool,
}

/// How everything stands after a turn.
pub(super) struct StreamSnapshot<'a> {
    pub(super) now: Instant,
    pub(super) stream: &'a Stream,
    pub(super) reference: &'a ReferenceModel,
    pub(super) links: &'a [LinkBehavior],
    /// Links that have something to do.
    pub(super) busy_links: BTreeSet<usize>,
    /// How it ended, if it did.
    pub(super) result: Option<&'a Result<(), String>>,
}

impl StreamInvariants {
    pub(super) fn new(config: &Config) -> Self {
        let (policy, minimise) = (config.policy, config.objective);
        Self {
            policy,
            objective: minimise,
            starving_since: None,
            banned_links: BTreeSet::new(),
            is_single_response: false,
        }
    }

    /// The machine asks this link for something.
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

    /// Looks at the scene.
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
            snapshot.stream.player().is_some_and(|player| self.must_not_buffer(player, snapshot.now));
        if let Some((link, _)) = links().find(|(_, id)| player_waits && snapshot.stream.is_standby(*id)) {
            return Err(format!("the player waits and link {link} rests"));
        }
        let idle = |(link, id): (usize, LinkId)| {
            snapshot.links[link].is_honest()
                && !self.banned_links.contains(&id)
                && !snapshot.busy_links.contains(&link)
        };
        let missing = reference.in_order_end() < reference.file_end().min(reference.request_limit());
        let is_marline = self.policy == Policy::Marline;
        let is_starving = is_marline && player_waits && missing && !self.is_single_response && links().any(idle);
        self.starving_since = self.starving_since.or(Some(snapshot.now)).filter(|_| is_starving);
        match self.starving_since {
            Some(since) if snapshot.now.since(since) > MAX_STARVATION => {
                Err(format!("the player waits since {since}, and an honest link has nothing to do"))
            }
            _ => Ok(()),
        }
    }

    /// It waits, and everything must work to end that.
    fn must_not_buffer(&self, player: &Player, now: Instant) -> bool {
        let can_wait = self.objective == Objective::MeteredBytes
            && player.first_frame().is_none()
            && now < Instant::ZERO + METERED_START_WAIT;
        player.state() == PlayerState::Buffering && !can_wait
    }
}

/// For so long an honest link may have nothing to do while the player waits for bytes: servers ask for pauses, and liars
/// are found out.
const MAX_STARVATION: Duration = Duration::from_secs(12);
/// So long the first picture may wait for links that cost nothing: what `--goal cost` promises.
const METERED_START_WAIT: Duration = Duration::from_secs(2);
