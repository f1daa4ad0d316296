//! The mirrors that are known, in the order in which they became known, and which of them may be used.

use alloc::vec::Vec;

use crate::fetch::UrlId;

/// Known mirrors.
#[derive(Clone, Debug)]
pub(super) struct MirrorList {
    list: Vec<Mirror>,
    /// Index in `list` of the mirror that is in use while mirrors are not combined.
    current: usize,
}

#[derive(Clone, Debug)]
struct Mirror {
    id: UrlId,
    is_excluded: bool,
    /// It was left because it delivered nothing, or nothing more.
    has_failed: bool,
}

impl Mirror {
    fn new(id: UrlId) -> Self {
        Self { id, is_excluded: false, has_failed: false }
    }
}

impl MirrorList {
    /// The first `count` URLs, which the user gave. A resumed download uses its earlier mirror first.
    pub(super) fn new(count: u16, resumed: Option<UrlId>) -> Self {
        let mut list = Self { list: (0..count.max(1)).map(|n| Mirror::new(UrlId(n))).collect(), current: 0 };
        if let Some(id) = resumed {
            list.set_current(id);
        }
        list
    }

    /// Adds a mirror that a server named.
    pub(super) fn add(&mut self, id: UrlId) {
        if self.list.len() < MAX_MIRRORS && self.list.iter().all(|mirror| mirror.id != id) {
            self.list.push(Mirror::new(id));
        }
    }

    /// The mirror in use delivered nothing, or nothing more.
    pub(super) fn fail_current(&mut self) {
        if let Some(mirror) = self.list.get_mut(self.current) {
            mirror.has_failed = true;
        }
    }

    /// The mirror that is in use while mirrors are not combined.
    pub(super) fn current_id(&self) -> UrlId {
        self.list.get(self.current).map_or(UrlId(0), |mirror| mirror.id)
    }

    /// Uses this mirror while mirrors are not combined.
    pub(super) fn set_current(&mut self, id: UrlId) {
        self.current = self.list.iter().position(|mirror| mirror.id == id).unwrap_or(0);
    }

    /// The mirrors that are not excluded.
    pub(super) fn allowed(&self) -> impl Iterator<Item = UrlId> + '_ {
        self.list.iter().filter(|mirror| !mirror.is_excluded).map(|mirror| mirror.id)
    }

    /// Number of mirrors that are not excluded.
    pub(super) fn allowed_count(&self) -> usize {
        self.allowed().count()
    }

    /// The next mirror in the list that is not excluded, cyclically.
    pub(super) fn next_after(&self, id: UrlId) -> UrlId {
        let at = self.list.iter().position(|mirror| mirror.id == id).unwrap_or(0);
        let (before, after) = self.list.split_at((at + 1).min(self.list.len()));
        after.iter().chain(before).find(|mirror| !mirror.is_excluded).map_or(id, |mirror| mirror.id)
    }

    /// A mirror other than `except` that is neither excluded nor has failed.
    pub(super) fn untried_except(&self, except: Option<UrlId>) -> Option<UrlId> {
        let is_fresh = |mirror: &&Mirror| !mirror.is_excluded && !mirror.has_failed && Some(mirror.id) != except;
        self.list.iter().find(is_fresh).map(|mirror| mirror.id)
    }

    /// Excludes a mirror for the rest of the download.
    pub(super) fn exclude(&mut self, id: UrlId) {
        if let Some(mirror) = self.list.iter_mut().find(|mirror| mirror.id == id) {
            mirror.is_excluded = true;
        }
    }
}

/// Maximum number of mirrors; further ones that servers name are ignored.
const MAX_MIRRORS: usize = 32;
