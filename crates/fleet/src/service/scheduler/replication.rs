//! Replication of members to the shared store, so that another process can take over as leader.
//!
//! Each relay and each edge is one row. The leader writes changed rows; a new leader restores them.
//!
//! 1. A heartbeat or report without new content does not change the row: a running member reports to whichever process leads. The amount
//!    written therefore depends on the changes in a fleet and not on its size.
//! 2. Restored members count as seen now, and restored edges as placed. Two heartbeats later, those that have not reported are removed.
//! 2. Restored members count as seen now, and restored edges as placed. Members that do not report afterwards expire as usual.

use std::collections::BTreeSet;

use marline_core::units::Instant;
use serde::{Deserialize, Serialize};

use super::super::api_types::{AssignmentRequest, CurrentAssignment, Heartbeat};
use super::FleetScheduler;
use super::edges::Placement;
use crate::identity::Name;

/// The stored state of one member: a key, and the value as JSON; none: the member has been removed.
pub type Row = (String, Option<String>);

/// The members whose rows have changed.
#[derive(Debug, Default)]
pub(super) struct DirtyRows {
    is_enabled: bool,
    relays: BTreeSet<Name>,
    edges: BTreeSet<Name>,
}

impl DirtyRows {
    pub(super) fn mark_relay(&mut self, name: &Name) {
        if self.is_enabled {
            self.relays.insert(name.clone());
        }
    }

    pub(super) fn mark_edge(&mut self, name: &Name) {
        if self.is_enabled {
            self.edges.insert(name.clone());
        }
    }

    pub(super) fn is_enabled(&self) -> bool {
        self.is_enabled
    }
}

#[derive(Serialize, Deserialize)]
struct StoredEdge {
    request: AssignmentRequest,
    assignment: Option<CurrentAssignment>,
}

const RELAY_PREFIX: &str = "relay/";
const EDGE_PREFIX: &str = "edge/";

impl FleetScheduler {
    /// Switches the collection of changed rows on or off; initially off. Switching it on marks all rows as changed.
    pub fn set_replicated(&mut self, is_replicated: bool) {
        self.dirty = DirtyRows { is_enabled: is_replicated, ..DirtyRows::default() };
        self.mark_all_dirty();
    }

    /// The rows that have changed since the last call, at most `max_rows`.
    pub fn take_dirty_rows(&mut self, max_rows: usize) -> Vec<Row> {
        let mut rows = Vec::new();
        while rows.len() < max_rows
            && let Some(name) = self.dirty.relays.pop_first()
        {
            let text = self.relays.get(&name).and_then(|relay| serde_json::to_string(&relay.heartbeat).ok());
            rows.push((format!("{RELAY_PREFIX}{name}"), text));
        }
        while rows.len() < max_rows
            && let Some(name) = self.dirty.edges.pop_first()
        {
            rows.push((format!("{EDGE_PREFIX}{name}"), self.edge_row(&name)));
        }
        rows
    }

    /// Marks rows as changed again that could not be written.
    pub fn mark_dirty(&mut self, rows: &[Row]) {
        for (key, _) in rows {
            match (name_in_key(key, RELAY_PREFIX), name_in_key(key, EDGE_PREFIX)) {
                (Some(relay), _) => self.dirty.mark_relay(&relay),
                (_, Some(edge)) => self.dirty.mark_edge(&edge),
                _ => {}
            }
        }
    }

    /// Adds the members in these rows (rule 2). Edges that are known already keep their newer state.
    pub fn restore(&mut self, rows: &[(String, String)], now: Instant) {
        self.advance(now);
        for (name, text) in rows.iter().filter_map(|(key, text)| Some((name_in_key(key, RELAY_PREFIX)?, text))) {
            if let Some(heartbeat) =
                serde_json::from_str::<Heartbeat>(text).ok().filter(|beat| beat.validate().is_ok())
            {
                self.restore_relay(name, heartbeat);
            }
        }
        for (name, text) in rows.iter().filter_map(|(key, text)| Some((name_in_key(key, EDGE_PREFIX)?, text))) {
            let row = serde_json::from_str::<StoredEdge>(text).ok().filter(|row| row.request.validate().is_ok());
            let Some(StoredEdge { request, assignment }) = row.filter(|_| !self.edges.contains_key(&name)) else {
                continue;
            };
            self.note_edge(&name, request);
            if let Some(CurrentAssignment { relay, reservation, version }) = assignment {
                let (since, ends) = (self.now, self.now + self.config.lease);
                self.update_edge(&name, |edge| {
                    edge.placement =
                        Some(Placement { relay, reservation, assigned_at: since, lease_ends: ends, version })
                });
            }
        }
        let version = self.version;
        self.claims.values_mut().for_each(|claims| claims.changed_in = version);
        self.mark_all_dirty();
    }

    /// Marks all rows as changed: in a new epoch the store may have lost some of them.
    pub(super) fn mark_all_dirty(&mut self) {
        if self.dirty.is_enabled {
            self.dirty.relays = self.relays.keys().cloned().collect();
            self.dirty.edges = self.edges.keys().cloned().collect();
        }
    }

    fn edge_row(&self, name: &Name) -> Option<String> {
        let edge = self.edges.get(name)?;
        let assignment_of = |placement: &Placement| CurrentAssignment {
            relay: placement.relay.clone(),
            reservation: placement.reservation,
            version: placement.version,
        };
        let row =
            StoredEdge { request: edge.request.clone(), assignment: edge.placement.as_ref().map(assignment_of) };
        serde_json::to_string(&row).ok()
    }
}

fn name_in_key(key: &str, kind: &str) -> Option<Name> {
    key.strip_prefix(kind)?.parse().ok()
}
