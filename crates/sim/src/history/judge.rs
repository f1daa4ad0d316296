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

use super::ledger::Ledger;
use super::weather::Manner;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Judge {
    policy: Policy,
    minimise: Objective,
    /// Since when the player waits, and no honest link is asked for anything although something is missing.
    starves: Option<Instant>,
    /// Links that the machine rests because of what they said, and has not asked since.
    banned: BTreeSet<LinkId>,
    /// Everything comes as one answer, over one link.
    one_answer: bool,
}

/// How everything stands after a turn.
pub(super) struct Scene<'a> {
    pub(super) now: Instant,
    pub(super) stream: &'a Stream,
    pub(super) ledger: &'a Ledger,
    pub(super) links: &'a [Manner],
    /// Links that have something to do.
    pub(super) busy: BTreeSet<usize>,
    /// How it ended, if it did.
    pub(super) ended: Option<&'a Result<(), String>>,
}

impl Judge {
    pub(super) fn new(config: &Config) -> Self {
        let (policy, minimise) = (config.policy, config.objective);
        Self { policy, minimise, starves: None, banned: BTreeSet::new(), one_answer: false }
    }

    /// The machine asks this link for something.
    pub(super) fn on_request(&mut self, link: LinkId) {
        self.banned.remove(&link);
    }

    pub(super) fn on_notice(&mut self, notice: &Notice) {
        match notice {
            Notice::SingleResponse { .. } => self.one_answer = true,
            Notice::FileChanged => self.one_answer = false,
            Notice::Banned { link, .. } => drop(self.banned.insert(*link)),
            _ => {}
        }
    }

    /// Looks at the scene.
    pub(super) fn look(&mut self, scene: &Scene<'_>) -> Result<(), String> {
        let ledger = scene.ledger;
        if let Some(ended) = scene.ended {
            let (delivered, frontier) = (ledger.delivered(), ledger.frontier());
            return if ended.is_ok() && delivered < frontier {
                Err(format!("done with {frontier} bytes, of which {delivered} were delivered"))
            } else {
                Ok(())
            };
        }
        let links = || (0..scene.links.len()).zip((0..).map(LinkId));
        let waits = scene.stream.player().is_some_and(|player| self.must_not_wait(player, scene.now));
        if let Some((link, _)) = links().find(|(_, id)| waits && scene.stream.is_standby(*id)) {
            return Err(format!("the player waits and link {link} rests"));
        }
        let idle = |(link, id): (usize, LinkId)| {
            scene.links[link].is_honest() && !self.banned.contains(&id) && !scene.busy.contains(&link)
        };
        let missing = ledger.frontier() < ledger.end().min(ledger.may_ask_upto());
        let ours = self.policy == Policy::Marline;
        let starves = ours && waits && missing && !self.one_answer && links().any(idle);
        self.starves = self.starves.or(Some(scene.now)).filter(|_| starves);
        match self.starves {
            Some(since) if scene.now.since(since) > LONGEST_STARVING => {
                Err(format!("the player waits since {since}, and an honest link has nothing to do"))
            }
            _ => Ok(()),
        }
    }

    /// It waits, and everything must work to end that.
    fn must_not_wait(&self, player: &Player, now: Instant) -> bool {
        let may_wait = self.minimise == Objective::MeteredBytes
            && player.first_frame().is_none()
            && now < Instant::ZERO + PATIENCE;
        player.state() == PlayerState::Buffering && !may_wait
    }
}

/// For so long an honest link may have nothing to do while the player waits for bytes: servers ask for pauses, and liars
/// are found out.
const LONGEST_STARVING: Duration = Duration::from_secs(12);
/// So long the first picture may wait for links that cost nothing: what `--minimise metered-bytes` promises.
const PATIENCE: Duration = Duration::from_secs(2);
