//! Replication of members to the shared store, so that another process can take over as leader.
//!
//! Each relay and each edge is one row. The leader writes changed rows; a new leader restores them.
//!
//! 1. A row changes with what describes a relay (not with its load), and with the relay or reservation of an edge. Other news of a
//!    running member need not be stored, because it reports to whichever process leads. The amount written therefore depends on the
//!    changes in a fleet and not on its size.
//! 2. Restored members count as seen now, and restored edges as placed. Members that do not report afterwards expire as usual.

use alloc::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::fleet::Name;
use crate::fleet::messages::{AssignmentRequest, CurrentAssignment, Heartbeat};

/// Identifies a row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Member {
    /// A relay.
    Relay(Name),
    /// An edge.
    Edge(Name),
}

/// The stored state of one member; none: the member has been removed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberRow {
    /// A relay: its last heartbeat.
    Relay(Name, Option<Heartbeat>),
    /// An edge.
    Edge(Name, Option<StoredEdge>),
}

impl MemberRow {
    /// The member whose row it is.
    pub fn member(&self) -> Member {
        match self {
            Self::Relay(name, _) => Member::Relay(name.clone()),
            Self::Edge(name, _) => Member::Edge(name.clone()),
        }
    }
}

/// The stored state of an edge.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredEdge {
    /// Its last request when the row was written.
    pub request: AssignmentRequest,
    /// The relay that it has.
    pub assignment: Option<CurrentAssignment>,
}

/// The members whose rows have changed. Initially off: an unshared store keeps no rows.
#[derive(Debug, Default)]
pub(super) struct ChangedNames(Option<BTreeSet<Name>>);

impl ChangedNames {
    /// Switches the collection on or off.
    pub(super) fn enable(&mut self, is_enabled: bool) {
        self.0 = is_enabled.then(BTreeSet::new);
    }

    pub(super) fn is_enabled(&self) -> bool {
        self.0.is_some()
    }

    pub(super) fn mark(&mut self, name: &Name) {
        if let Some(names) = &mut self.0 {
            names.insert(name.clone());
        }
    }

    /// Marks exactly these names: in a new epoch the store may have lost some rows.
    pub(super) fn mark_all<'a>(&mut self, all: impl Iterator<Item = &'a Name>) {
        if let Some(names) = &mut self.0 {
            *names = all.cloned().collect();
        }
    }

    pub(super) fn pop(&mut self) -> Option<Name> {
        self.0.as_mut()?.pop_first()
    }
}
