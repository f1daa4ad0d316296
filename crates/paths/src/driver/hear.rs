//! Events of the path manager, in the policy's words.
//!
//! 1. What this host serves, and what goes over interfaces that are none of the links, is left alone: it is not
//!    entered into the table, so that whatever follows about it means nothing.
//! 2. A new subflow is looked at once: the event does not say how long its handshake took, nor whether this end wants
//!    it as a backup.
//! 3. What a dump has found before its event came is not told twice; what an event says of the unknown is passed over.

use std::future::pending;
use std::io;
use std::time::Duration;

use marline_core::paths::{CloseReason, ConnId, Counters, EstablishedSubflow, Input, SubflowId};
use marline_core::wire::netlink::mptcp::{Event, SubflowEvent};

use super::super::Mode;
use super::super::kernel::{Answer, Asked, Events, Heard};
use super::super::snapshot::Managed;
use super::table::{Conn, Sub};
use super::{Driver, Policy};

/// The next events; never any without a subscription.
pub(super) async fn next(events: &mut Option<&mut Events>) -> io::Result<Heard> {
    match events {
        Some(events) => events.heard().await,
        None => pending().await,
    }
}

impl<M: Policy> Driver<M> {
    pub(super) fn hear(&mut self, events: Vec<Event>) {
        for event in events {
            match event {
                Event::Established(path) => self.established(&path),
                Event::SubflowEstablished(path) => self.joined(&path),
                Event::SubflowClosed(path) => self.left(&path),
                Event::Closed { token } => self.closed(ConnId(token)),
                Event::AddressAnnounced { token, id, address, port } => {
                    let conn = ConnId(token);
                    if let Some(of) = self.table.conn(conn) {
                        of.announced.retain(|(of, ..)| *of != id);
                        of.announced.push((id, address, port));
                        self.tell(Input::AddressAnnounced { conn });
                    }
                }
                Event::AddressRemoved { token, id } => {
                    if let Some(conn) = self.table.conn(ConnId(token)) {
                        conn.announced.retain(|(of, ..)| *of != id);
                    }
                }
                // What the other end wants is read with the counters.
                Event::SubflowPriority(_) | Event::Created(_) | Event::Listener => {}
            }
        }
    }

    fn established(&mut self, path: &SubflowEvent) {
        let conn = ConnId(path.token);
        if path.server_side {
            return;
        }
        if let Some(known) = self.table.conn(conn) {
            known.only_announced |= path.deny_join_id0;
            return;
        }
        if self.lines.is_unknown(path.local.ip()) {
            // The news of its interface are behind those of the connection.
            if let Err(error) = self.survey() {
                tracing::warn!(%error, "interfaces");
            }
        }
        if self.lines.of(path.local.ip(), path.interface).is_none() {
            return;
        }
        let mut of = Conn::new(path.local.ip(), path.remote, self.now());
        of.only_announced = path.deny_join_id0;
        of.managed = self.managed();
        self.open(conn, of);
        self.subflow(conn, path.local, path.remote, path.interface, Born::First, None);
    }

    fn joined(&mut self, path: &SubflowEvent) {
        let born = if path.local_id == 0 { Born::There } else { Born::Elsewhere };
        self.subflow(ConnId(path.token), path.local, path.remote, path.interface, born, None);
    }

    fn left(&mut self, path: &SubflowEvent) {
        let conn = ConnId(path.token);
        let Some(of) = self.table.conn(conn) else { return };
        match of.take(path.local, path.remote) {
            Some(sub) => {
                // Of a join that the server did not want the kernel tells no error at all.
                let young = !sub.initial && self.now().since(sub.since) < REFUSED_BY;
                let refused = path.reset || (young && path.error == 0 && sub.counters.received.is_zero());
                self.gone(conn, &sub, if refused { CloseReason::Reset } else { why(path.error) });
            }
            // It was never established.
            None => of.pending.retain(|pending| !pending.is_of(path.local.ip(), path.interface)),
        }
    }

    /// A connection is ours from now on.
    pub(super) fn open(&mut self, conn: ConnId, of: Conn) {
        self.totals.opened += 1;
        self.totals.adopted += u64::from(of.adopted);
        let told = Input::Opened { conn, adopted: of.adopted, deny_join_id0: of.only_announced };
        let voice = self.voice(of.managed);
        self.table.conns.insert(conn, of);
        match voice {
            Voice::Own => self.tell(told),
            Voice::Host => self.host_grew(),
            Voice::None => {}
        }
    }

    /// A connection is over.
    pub(super) fn closed(&mut self, conn: ConnId) {
        let Some(mut of) = self.table.conns.remove(&conn) else { return };
        self.totals.closed += 1;
        self.looks.remove(&conn);
        self.count(conn, &mut of);
        match self.voice(of.managed) {
            Voice::Own => self.tell(Input::Closed { conn }),
            Voice::Host => self.host_lost(&of.subflows),
            Voice::None => {}
        }
        self.table.end(self.now(), conn, of);
    }

    /// A subflow is there: looks at it unless its counters are `known`, enters it, and tells of it.
    pub(super) fn subflow(
        &mut self,
        conn: ConnId,
        local: std::net::SocketAddr,
        remote: std::net::SocketAddr,
        index: u32,
        born: Born,
        known: Option<Counters>,
    ) {
        let line = self.lines.of(local.ip(), index).map(|line| (line.link, line.index));
        let (link, via) = line.map_or((None, index), |(link, via)| (Some(link), via));
        let Some(of) = self.table.conn(conn) else { return };
        if of.find(local, remote).is_some() {
            return;
        }
        let adopted = of.adopted;
        let initial = born != Born::Elsewhere && !of.subflows.iter().any(|sub| sub.initial);
        let counters = known.or_else(|| {
            let found = self.found(&[Asked { local, remote, link: via }]);
            found.first().and_then(Answer::there).and_then(super::act::counters)
        });
        let now = self.now();
        let id = self.table.add(conn, |id| {
            let mut sub = Sub::new(id, local, remote, via);
            (sub.link, sub.initial, sub.since) = (link, initial, now);
            sub.first = born == Born::First;
            if let Some(counters) = counters {
                sub.saw(now, counters);
            }
            sub
        });
        let Some(id) = id else { return };
        // Of one that has run for long the kernel knows the round trip of the data, not of the handshake.
        let rtt = counters.and_then(|counters| counters.rtt).filter(|_| !adopted);
        let backup = counters.is_some_and(|counters| counters.backup);
        let subflow = EstablishedSubflow { id, link, initial, backup, rtt };
        if let Some(link) = link {
            self.abort_closing(conn, link);
        }
        match self.voice_of(conn) {
            Voice::Own => self.tell(Input::SubflowUp { conn, subflow }),
            Voice::Host => self.host_grew(),
            Voice::None => {}
        }
    }

    /// A subflow that was taken out of the table.
    pub(super) fn gone(&mut self, conn: ConnId, sub: &Sub, why: CloseReason) {
        match self.voice_of(conn) {
            Voice::Own => self.tell(Input::SubflowDown { conn, subflow: sub.id, reason: why }),
            Voice::Host => self.host_lost(std::slice::from_ref(sub)),
            Voice::None => {}
        }
    }

    /// What can be done with a connection that is found now.
    pub(super) fn managed(&self) -> Managed {
        match self.mode {
            Mode::Userspace => Managed::Yes,
            Mode::KernelPm => Managed::Together,
            Mode::DryRun => Managed::No,
        }
    }

    pub(super) fn voice_of(&mut self, conn: ConnId) -> Voice {
        self.table.conns.get(&conn).map_or(Voice::None, |of| self.voice(of.managed))
    }

    fn voice(&self, managed: Managed) -> Voice {
        match managed {
            Managed::Older => Voice::None,
            _ if self.host.is_some() => Voice::Host,
            _ => Voice::Own,
        }
    }

    /// The same by its number.
    pub(super) fn take(&mut self, conn: ConnId, id: SubflowId) -> Option<Sub> {
        self.table.conn(conn)?.take_that(|sub| sub.id == id)
    }
}

/// How a subflow began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Born {
    /// The connection began with it.
    First,
    /// It joined from the first one's address, which has id 0.
    There,
    /// It joined from another address.
    Elsewhere,
}

/// As what the policy hears of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Voice {
    /// As itself.
    Own,
    /// As a part of the host, which is one connection to it.
    Host,
    /// Not at all: nothing could be done about it.
    None,
}

/// What the number of an error says of the path.
fn why(error: i32) -> CloseReason {
    use rustix::io::Errno;
    const RESET: i32 = Errno::CONNRESET.raw_os_error();
    const REFUSED: i32 = Errno::CONNREFUSED.raw_os_error();
    const BROKEN: i32 = Errno::PIPE.raw_os_error();
    const TIMED_OUT: i32 = Errno::TIMEDOUT.raw_os_error();
    const NO_HOST: i32 = Errno::HOSTUNREACH.raw_os_error();
    const NO_NETWORK: i32 = Errno::NETUNREACH.raw_os_error();
    const DOWN: i32 = Errno::NETDOWN.raw_os_error();
    match error {
        0 => CloseReason::Closed,
        RESET | REFUSED | BROKEN => CloseReason::Reset,
        TIMED_OUT => CloseReason::TimedOut,
        NO_HOST | NO_NETWORK | DOWN => CloseReason::Unreachable,
        _ => CloseReason::Other,
    }
}

/// chosen: a refusal comes with the answer to the join's last packet, one round trip later; the longest of today's are
/// 0.6 s (satellite).
const REFUSED_BY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_what_became_of_the_path() {
        let all = [0, 104, 111, 110, 113, 101, 5].map(why);
        use CloseReason::{Closed, Other, Reset, TimedOut, Unreachable};
        assert_eq!(all, [Closed, Reset, Reset, TimedOut, Unreachable, Unreachable, Other]);
    }
}
