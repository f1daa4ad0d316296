//! When edges are matched: requests are collected for a short time, the window ([`SchedulerConfig::window`]), and matched together. All
//! edges are matched at long intervals ([`SchedulerConfig::reallocation_interval`]).

use alloc::collections::{BTreeMap, BTreeSet};

use super::SchedulerConfig;
use crate::fleet::Name;
use crate::units::Instant;

/// The edges that wait to be matched, and the times of the next matchings.
#[derive(Debug)]
pub(super) struct MatchingWindow {
    queue: BTreeSet<Name>,
    /// End of the window; without meaning while the queue is empty.
    ends_at: Instant,
    is_solving: bool,
    next_reallocation: Instant,
    /// The solver's prices of the relays in the last matching of all edges.
    pub(super) prices: BTreeMap<Name, f64>,
}

/// Which edges a matching includes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MatchingScope {
    /// Those in the window.
    Window,
    /// Those in the window, and all others that have been at their relay for [`SchedulerConfig::min_stay`] or want one.
    All,
}

impl MatchingWindow {
    pub(super) fn new(config: &SchedulerConfig, now: Instant) -> Self {
        Self {
            queue: BTreeSet::new(),
            ends_at: now,
            is_solving: false,
            next_reallocation: now + config.reallocation_interval,
            prices: BTreeMap::new(),
        }
    }

    /// Adds an edge to the window; the first edge starts it.
    pub(super) fn enqueue(&mut self, edge: &Name, now: Instant, config: &SchedulerConfig) {
        if self.queue.is_empty() {
            self.ends_at = now + config.window;
        }
        self.queue.insert(edge.clone());
    }

    pub(super) fn remove(&mut self, edge: &Name) {
        self.queue.remove(edge);
    }

    pub(super) fn contains(&self, edge: &Name) -> bool {
        self.queue.contains(edge)
    }

    /// Takes the queue if a matching is due and none is being solved.
    pub(super) fn take_due(
        &mut self,
        now: Instant,
        config: &SchedulerConfig,
    ) -> Option<(MatchingScope, BTreeSet<Name>)> {
        if self.is_solving {
            return None;
        }
        let scope = if now >= self.next_reallocation {
            self.next_reallocation = now + config.reallocation_interval;
            MatchingScope::All
        } else if !self.queue.is_empty() && now >= self.ends_at {
            MatchingScope::Window
        } else {
            return None;
        };
        Some((scope, core::mem::take(&mut self.queue)))
    }

    pub(super) fn set_solving(&mut self, is_solving: bool) {
        self.is_solving = is_solving;
    }

    /// When the window ends; `None`: no edge waits, or a matching is being solved.
    pub(super) fn ends_at(&self) -> Option<Instant> {
        (!self.queue.is_empty() && !self.is_solving).then_some(self.ends_at)
    }
}
