//! The links of a download, and which of them may be used now.
//!
//! A link may be used if it is in service, if the user's choice about metered links allows it (`metering`), if its data
//! budget is not exhausted, and if neither the owner of the download nor the batch scheduler has paused it.
//!
//! 1. Shares: a batch of downloads divides the links among its members ([`LinkShare`]). When a link is paused for this
//!    download, requests in flight are completed and then its connections are closed. So a change wastes no bytes, and
//!    other downloads can open connections instead.
//! 2. Standby: an owning machine (`external_control`) lets a link sleep in the same way.
//! 3. While all links are paused nothing is expected to arrive, so the download's timeout does not run.

use alloc::collections::btree_map::{Iter, IterMut, Keys, Values, ValuesMut};
use alloc::collections::{BTreeMap, BTreeSet};

use super::link::{Link, LinkState};
use super::{LinkShare, MeteredUse, UrlId};
use crate::link::{LinkId, LinkProfile};
use crate::units::Instant;

/// Links by number, with the rules for their use.
#[derive(Debug)]
pub(super) struct Links {
    by_id: BTreeMap<LinkId, Link>,
    /// The user's choice about metered links.
    pub(super) metered: MeteredUse,
    /// Shares that a batch of downloads assigned to this one, also for links that do not exist yet. A link without an
    /// entry may be used fully.
    shares: BTreeMap<LinkId, LinkShare>,
    /// Links that the owner has put on standby.
    standby: BTreeSet<LinkId>,
}

impl Links {
    pub(super) fn new(metered: MeteredUse) -> Self {
        Self { by_id: BTreeMap::new(), metered, shares: BTreeMap::new(), standby: BTreeSet::new() }
    }

    /// Adds a link, or updates the properties of a known one. Returns it.
    pub(super) fn add(&mut self, id: LinkId, profile: LinkProfile, mirror: UrlId) -> &mut Link {
        let link = self.by_id.entry(id).or_insert_with(|| Link::new(profile.clone(), mirror));
        link.profile = profile;
        link.share = self.shares.get(&id).copied().unwrap_or_default();
        link
    }

    /// Sets this download's share of a link. Returns the previous one; none if the link does not exist yet.
    pub(super) fn set_share(&mut self, id: LinkId, share: LinkShare) -> Option<LinkShare> {
        self.shares.insert(id, share);
        self.by_id.get_mut(&id).map(|link| core::mem::replace(&mut link.share, share))
    }

    /// Puts a link on standby, or ends its standby. Returns whether that changes anything.
    pub(super) fn set_standby(&mut self, id: LinkId, standby: bool) -> bool {
        if standby { self.standby.insert(id) } else { self.standby.remove(&id) }
    }

    /// Whether the owner has put any link on standby.
    pub(super) fn has_standby(&self) -> bool {
        !self.standby.is_empty()
    }

    /// Ends the standby of all links.
    pub(super) fn end_standby(&mut self) {
        self.standby.clear();
    }

    /// Whether the link is on standby, by the owner's command or because it is paused for this download.
    pub(super) fn is_standby(&self, id: LinkId) -> bool {
        self.by_id.get(&id).is_some_and(|link| link.share == LinkShare::Paused) || self.standby.contains(&id)
    }

    /// Whether budget, standby and cost allow the use of this link now.
    pub(super) fn is_allowed(&self, id: LinkId, now: Instant) -> bool {
        let Some(link) = self.by_id.get(&id) else { return false };
        !link.budget_exhausted && !self.is_standby(id) && self.is_cost_allowed(link, now)
    }

    /// Whether a link may be used now: in service, and allowed by share, cost and budget.
    pub(super) fn is_usable(&self, id: LinkId, now: Instant) -> bool {
        self.by_id.get(&id).is_some_and(Link::is_in_service) && self.is_allowed(id, now)
    }

    /// Whether every link that could deliver is paused and has no connections left: nothing can arrive.
    pub(super) fn is_paused_everywhere(&self) -> bool {
        let mut able = self.values().filter(|link| link.may_deliver() && !link.budget_exhausted).peekable();
        able.peek().is_some()
            && able.all(|link| {
                link.share == LinkShare::Paused && link.conns.is_empty() && link.state != LinkState::Down
            })
    }

    pub(super) fn get(&self, id: &LinkId) -> Option<&Link> {
        self.by_id.get(id)
    }

    pub(super) fn get_mut(&mut self, id: &LinkId) -> Option<&mut Link> {
        self.by_id.get_mut(id)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(super) fn keys(&self) -> Keys<'_, LinkId, Link> {
        self.by_id.keys()
    }

    pub(super) fn values(&self) -> Values<'_, LinkId, Link> {
        self.by_id.values()
    }

    pub(super) fn values_mut(&mut self) -> ValuesMut<'_, LinkId, Link> {
        self.by_id.values_mut()
    }

    pub(super) fn iter(&self) -> Iter<'_, LinkId, Link> {
        self.by_id.iter()
    }

    pub(super) fn iter_mut(&mut self) -> IterMut<'_, LinkId, Link> {
        self.by_id.iter_mut()
    }
}
