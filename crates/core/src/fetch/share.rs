//! A download beside others of the same batch: how much of each link it may use, and what it makes of that.
//!
//! 1. A link that is taken away finishes what was asked for, and its connections are closed. So a change costs no
//!    bytes, and the connections can serve another download.
//! 2. While all links are taken away nothing is expected to come, so patience does not run out.
//! 3. [`Load`] tells the scheduler what it needs: whether a link is wanted, whether it is in use, and whether it could
//!    carry more.

use alloc::vec::Vec;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use super::links::{LinkState, Standing};
use super::{Fetch, Phase, Share};
use crate::link::LinkId;
use crate::units::{Bitrate, DataSize};

/// What a download makes of one link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Load {
    /// Which link.
    pub link: LinkId,
    /// It would ask for something there, if it may.
    pub wants: bool,
    /// It has connections there.
    pub busy: bool,
    /// What comes over it, over the last second.
    pub rate: Bitrate,
    /// Its connections are past slow start, and nothing waits in the link's queue: it could carry more.
    pub slack: bool,
    /// Body bytes that came over it.
    pub bytes: DataSize,
}

impl LinkState {
    /// Whether nothing comes of what was asked for before the link was taken away.
    pub(super) fn is_stuck(&self) -> bool {
        self.share == Share::Rest && matches!(self.standing, Standing::Silent { .. })
    }
}

impl Fetch {
    /// What the download makes of its links.
    pub fn loads(&self) -> Vec<Load> {
        let left = self.time_left(self.ledger.free_bytes(u64::MAX));
        let load = |(id, link): (&LinkId, &LinkState)| Load {
            link: *id,
            wants: self.wants(*id, link),
            busy: !link.conns.is_empty(),
            rate: self.link_rate(link, Duration::from_secs(1)),
            slack: self.view(*id, left).is_some_and(|view| view.settled && view.is_slack()),
            bytes: link.known.bytes,
        };
        self.links.iter().map(load).collect()
    }

    /// Whether the download would ask for something over this link, if others let it.
    fn wants(&self, id: LinkId, link: &LinkState) -> bool {
        let able = link.hopeful() && !link.spent && self.may_cost(link);
        let work = match self.phase {
            Phase::Unknown => true,
            Phase::Ranges => !self.ledger.free_bytes(u64::MAX).is_zero(),
            Phase::OneAnswer { req: Some(req) } => self.carrier_of(req) == Some(id),
            Phase::OneAnswer { req: None } => true,
            Phase::Over => false,
        };
        able && work
    }

    /// Another download gets more of this link, or less.
    pub(super) fn share(&mut self, id: LinkId, share: Share) {
        let rested = self.rests_everywhere();
        self.shares.insert(id, share);
        let Some(link) = self.links.get_mut(&id) else { return };
        let before = core::mem::replace(&mut link.share, share);
        if share == Share::One && before == Share::Full {
            let extra = link.conns.len().saturating_sub(1);
            link.lanes = super::lanes::Lanes::default();
            self.retire(id, extra);
        } else if share != Share::Rest && before == Share::Rest {
            link.next_try = link.next_try.min(self.now).max(link.paused_until);
        }
        if rested {
            self.last_data = self.now;
        }
    }

    /// Whether every link that could bring something is taken away: nothing can come.
    pub(super) fn rests_everywhere(&self) -> bool {
        let mut able = self.links.values().filter(|link| link.in_play() && !link.spent).peekable();
        able.peek().is_some()
            && able
                .all(|link| link.share == Share::Rest && link.conns.is_empty() && link.standing != Standing::Down)
    }
}
