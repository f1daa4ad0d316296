//! Explanation of a connection: the reason of its present decision, and which reasons were reported.

use alloc::string::String;

use super::event::{ConnId, Output};
use super::host_state::HostState;
use super::reason::Reason;

/// Why a connection is carried as it is.
#[derive(Clone, Debug)]
pub(super) struct Explanation {
    conn: ConnId,
    pub(super) reason: Reason,
    /// The reason that was reported last; `None`: the present one is to be reported.
    reported: Option<Reason>,
}

impl Explanation {
    pub(super) const fn new(conn: ConnId) -> Self {
        Self { conn, reason: Reason::Undecided, reported: None }
    }

    /// Sets the reason of a decision, and reports it if it is of a new kind.
    pub(super) fn set_reason(&mut self, host: &mut HostState, reason: Reason) {
        self.reason = reason;
        if self.reported.is_some_and(|reported| reported.is_same_kind(&reason)) || reason == Reason::Undecided {
            return;
        }
        self.reported = Some(reason);
        let text = reason.sentence(|index| host.link_name(index));
        host.outputs.push_back(Output::Note { conn: self.conn, reason: text });
    }

    /// Reports an event. The reason of the present decision is then reported again, so that it is the newest note.
    pub(super) fn report_event(&mut self, host: &mut HostState, event: String) {
        host.outputs.push_back(Output::Note { conn: self.conn, reason: event });
        self.reported = None;
    }
}
