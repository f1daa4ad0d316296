//! What the policy asks for, carried out.
//!
//! 1. Commands of one turn go to the kernel together, and so do looks.
//! 2. What cannot be asked of the kernel at all (no such subflow, no address of the family) is refused here, in the same
//!    words.
//! 3. A destroyed subflow is gone once the kernel has said so; its event, which comes later, finds nothing any more. Its
//!    socket may remain ([`Driver::end_socket`]).
//! 4. An address whose id another address of the connection has (two of 255 can meet) is tried with the next one.
//! 5. A join that nothing came of is ended after [`STALE`]: the kernel would send SYNs for two minutes, and a subflow
//!    that comes up then would surprise everybody.

use std::collections::BTreeSet;
use std::time::Duration;

use marline_core::link::LinkId;
use marline_core::paths::{
    CloseReason, Command, CommandError, CommandId, ConnId, Counters, Input, IpFamily, Output, SubflowId,
};
use marline_core::units::DataSize;
use marline_core::wire::netlink::diag::{self, state};
use marline_core::wire::netlink::mptcp::{NewSubflow, SubflowTuple};
use marline_core::wire::netlink::{Ack, Request};

use super::super::kernel::{Answer, Asked, is_of_other_family, refusal};
use super::super::snapshot::Managed;
use super::lines::Line;
use super::table::{Conn, Pending, Sub, id_after};
use super::words::{self, Over};
use super::{Driver, Mode, Policy};

/// A command on its way.
#[derive(Clone, Copy)]
struct Order {
    command: CommandId,
    conn: ConnId,
    what: Command,
}

impl<M: Policy> Driver<M> {
    /// Carries out what is in the queue, for a few rounds. True: there is more.
    pub(super) fn act(&mut self) -> bool {
        for _ in 0..ROUNDS {
            if self.queue.is_empty() && self.looks.is_empty() {
                return false;
            }
            let mut orders = Vec::new();
            for output in std::mem::take(&mut self.queue) {
                match output {
                    Output::Command { id: command, conn, command: what } => {
                        orders.push(Order { command, conn, what })
                    }
                    Output::Note { conn, reason } => {
                        let now = self.now();
                        if self.host.is_some() {
                            self.host_note(now, &reason);
                        } else if let Some(of) = self.table.conn(conn) {
                            of.explain(now, reason);
                        }
                    }
                    Output::Poll { conn } => {
                        self.looks.insert(conn);
                    }
                    Output::SetMtu { link, mtu, reason } => self.set_mtu(link, mtu, reason.as_deref()),
                }
            }
            if self.host.is_some() {
                for order in orders {
                    self.host_order(order.command, order.what);
                }
            } else {
                self.carry_out(&orders);
            }
            self.look();
        }
        !self.queue.is_empty() || !self.looks.is_empty()
    }

    /// Subflows that begin over this link from now on send and accept packets of this size at most.
    fn set_mtu(&mut self, link: LinkId, mtu: Option<u16>, reason: Option<&str>) {
        let Some(line) = self.lines.line(link) else { return };
        self.ground.set_mtu(line.name(), mtu, reason);
        if let Err(error) = self.survey() {
            tracing::warn!(%error, "interfaces");
        }
    }

    fn carry_out(&mut self, orders: &[Order]) {
        let mut sent = Vec::new();
        let mut requests = Vec::new();
        let half_closed = self.news_of_half_closed(orders);
        for order in orders {
            if matches!(order.what, Command::Destroy { .. }) && half_closed.contains(&order.conn) {
                self.done(order, Some(CommandError::HalfClosed), None);
                continue;
            }
            match self.request(order) {
                Ok(request) => {
                    sent.push(*order);
                    requests.push(request);
                }
                Err(refused) => self.done(order, Some(refused), None),
            }
        }
        if requests.is_empty() {
            return;
        }
        let answers = self.manager.as_ref().map(|manager| manager.carry_out(requests));
        match answers {
            Some(Ok(answers)) => {
                for (order, ack) in sent.iter().zip(&answers) {
                    self.answered(order, ack);
                }
            }
            Some(Err(error)) => {
                tracing::warn!(%error, "the path manager does not answer");
                let number = error.raw_os_error().unwrap_or(0);
                for order in &sent {
                    self.done(order, Some(CommandError::Other(number)), None);
                }
            }
            None => {}
        }
    }

    /// Connections of which a subflow is to be ended, and of which one direction is closed: the policy decides again when it knows that.
    fn news_of_half_closed(&mut self, orders: &[Order]) -> BTreeSet<ConnId> {
        let ends = orders.iter().filter(|order| matches!(order.what, Command::Destroy { .. }));
        let unknown = |conn: &ConnId| self.table.conns.get(conn).is_some_and(|of| !of.is_half_closed);
        let closed = self.half_closed(ends.map(|order| order.conn).filter(unknown).collect());
        for conn in &closed {
            if let Some(of) = self.table.conn(*conn) {
                of.is_half_closed = true;
            }
        }
        closed
    }

    /// The kernel's words for a command.
    fn request(&self, order: &Order) -> Result<Request, CommandError> {
        let of = self.table.conns.get(&order.conn).ok_or(CommandError::NoConnection)?;
        match of.managed {
            Managed::Yes => {}
            Managed::Older => return Err(CommandError::NoConnection),
            Managed::Together | Managed::No => return Err(CommandError::NotPermitted),
        }
        let family = self.manager.as_ref().ok_or(CommandError::NotPermitted)?.family();
        match order.what {
            Command::Join { link, backup } => Ok(self.new_subflow(order.conn, of, link, backup)?.create(family)),
            Command::SetBackup { subflow, backup } => {
                Ok(tuple(order.conn, of, subflow)?.set_backup(family, backup))
            }
            Command::Destroy { subflow } => Ok(tuple(order.conn, of, subflow)?.destroy(family)),
        }
    }

    fn new_subflow(&self, conn: ConnId, of: &Conn, link: LinkId, backup: bool) -> Result<NewSubflow, CommandError> {
        let line = self.lines.line(link).filter(|line| line.up).ok_or(CommandError::NoAddress)?;
        // The server's own family first; the other one helps where the server has announced such an address.
        let other = of.announced.iter().map(|(_, address, _)| *address);
        let mut ways = std::iter::once(of.server.ip()).chain(other);
        let way = ways.find_map(|server| {
            let local = line.address_for(server).filter(|local| !line.awaits_route(*local))?;
            Some((local, of.target(local)?))
        });
        let (local, remote) = way.ok_or_else(|| match line.family() {
            Some(family) if family != IpFamily::of(of.server.ip()) => CommandError::NotAnnounced(family),
            _ => CommandError::NoAddress,
        })?;
        let id = of.address_id(local);
        Ok(NewSubflow { token: conn.0, local, id, remote, interface: Some(line.index), backup })
    }

    fn answered(&mut self, order: &Order, ack: &Ack) {
        let mut ack = ack.clone();
        if let Command::Join { link, backup } = order.what {
            for _ in 0..IDS_TRIED {
                if !ack.message.contains("match address and id") {
                    break;
                }
                match self.join_again(order.conn, link, backup) {
                    Some(answer) => ack = answer,
                    None => break,
                }
            }
        }
        if let Command::Destroy { subflow } = order.what {
            let of = self.table.conns.get(&order.conn);
            let tuple = of.and_then(|of| tuple(order.conn, of, subflow).ok());
            let again =
                self.manager.as_ref().zip(tuple).and_then(|(manager, tuple)| manager.end_mapped(&tuple, &ack));
            ack = again.unwrap_or(ack);
        }
        let family = match order.what {
            Command::Join { link, .. } => self.lines.line(link).and_then(Line::family),
            Command::SetBackup { .. } | Command::Destroy { .. } => None,
        };
        let refused = refusal(&ack).map(|why| match family {
            Some(family) if is_of_other_family(&ack) => CommandError::SocketFamily(family),
            _ if why == CommandError::NotYet && !self.half_closed(vec![order.conn]).is_empty() => {
                CommandError::HalfClosed
            }
            _ => why,
        });
        self.done(order, refused, Some(&ack));
    }

    /// Joins under the next id.
    fn join_again(&mut self, conn: ConnId, link: LinkId, backup: bool) -> Option<Ack> {
        let of = self.table.conns.get(&conn)?;
        let new = self.new_subflow(conn, of, link, backup).ok().filter(|new| new.id != 0)?;
        let new = NewSubflow { id: id_after(new.id), ..new };
        let manager = self.manager.as_ref()?;
        let ack = manager.carry_out(vec![new.create(manager.family())]).ok()?.pop()?;
        let of = self.table.conn(conn)?;
        of.ids.retain(|(address, _)| *address != new.local);
        of.ids.push((new.local, new.id));
        Some(ack)
    }

    /// Keeps what came of a command, and tells it.
    fn done(&mut self, order: &Order, refused: Option<CommandError>, ack: Option<&Ack>) {
        let now = self.now();
        let words = self.words(order, refused, ack);
        match refused {
            None => {
                self.totals.commands += 1;
                tracing::info!(conn = order.conn.0, "{words}");
            }
            Some(_) if self.mode == Mode::DryRun => tracing::info!(conn = order.conn.0, "{words}"),
            Some(refused) if words::late(refused, ack).is_some() => tracing::debug!(conn = order.conn.0, "{words}"),
            // Nothing is wrong: the connection's reason says it as well.
            Some(CommandError::NotAnnounced(_) | CommandError::SocketFamily(_)) => {
                self.totals.refused += 1;
                tracing::info!(conn = order.conn.0, "{words}");
            }
            Some(_) => {
                self.totals.refused += 1;
                tracing::warn!(conn = order.conn.0, "{words}");
            }
        }
        let local = match order.what {
            Command::Join { link, .. } if refused.is_none() => {
                let of = self.table.conns.get(&order.conn);
                let new = of.and_then(|of| self.new_subflow(order.conn, of, link, false).ok());
                new.and_then(|new| Some((link, new.local, new.interface?)))
            }
            _ => None,
        };
        if let Some(of) = self.table.conn(order.conn) {
            let is_wanted = refused.is_some_and(|refused| refused != CommandError::HalfClosed);
            if is_wanted && self.mode == Mode::DryRun && of.is_news(&words) {
                let why = if of.reason().is_empty() { String::new() } else { format!(": {}", of.reason()) };
                self.ground.would(&format!("{:08x}: {words}{why}", order.conn.0));
            }
            of.remember(now, words);
            if let Some((link, local, index)) = local {
                of.pending.push(Pending { link, local, index, at: now });
            }
        }
        if ack.is_some_and(|ack| ack.message.contains("not selected")) {
            // Opened before the run, or after somebody else has switched the path manager over.
            self.ground.hold();
            self.is_older(order.conn);
        }
        self.tell(Input::CommandDone { command: order.command, error: refused });
        if let (Command::Destroy { subflow }, None) = (order.what, refused)
            && let Some(sub) = self.take(order.conn, subflow)
        {
            self.end_socket(order.conn, &sub);
            self.gone(order.conn, &sub, CloseReason::Closed);
        }
    }

    /// Sees to the socket of a subflow that was just destroyed: it is aborted at once, or when a new subflow is established over the link.
    ///
    /// The kernel closes only its own direction of a connection's first subflow. It acknowledges what the server sends over it
    /// afterwards, and does not deliver it. A server that has sent all its data may then repeat the missing part over this
    /// subflow for ever. A RST ends the subflow on both sides. It also ends a socket that waits for its retransmission timer, and
    /// would send again what other subflows have delivered. While the link is down no RST reaches the server.
    fn end_socket(&mut self, conn: ConnId, sub: &Sub) {
        let up = sub.link.is_some_and(|link| self.lines.line(link).is_some_and(|line| line.up));
        if up && (sub.first || sub.initial || sub.counters.timeouts > 0) {
            self.abort(conn, &[sub.asked()]);
        } else {
            self.abort_later(conn, sub);
        }
    }

    /// The socket of a subflow that was destroyed is aborted when a new one is established over its link.
    fn abort_later(&mut self, conn: ConnId, sub: &Sub) {
        if let (Some(link), Some(of)) = (sub.link, self.table.conn(conn)) {
            of.closing.push((link, sub.asked()));
        }
    }

    /// A new subflow was established over this link: a RST reaches the server now. Sockets of destroyed subflows that are still there
    /// would also count as subflows at the server.
    pub(super) fn abort_closing(&mut self, conn: ConnId, link: LinkId) {
        let Some(of) = self.table.conn(conn).filter(|of| !of.closing.is_empty()) else { return };
        let (ours, others) = std::mem::take(&mut of.closing).into_iter().partition(|(of, _)| *of == link);
        of.closing = others;
        let asked: Vec<Asked> = Vec::into_iter(ours).map(|(_, asked)| asked).collect();
        self.abort(conn, &asked);
    }

    /// Aborts those of these sockets that are still subflows of this connection which this end has closed: another socket may have the
    /// addresses and ports by now.
    fn abort(&mut self, conn: ConnId, sockets: &[Asked]) {
        let found = self.found(sockets);
        let is_closed = |answer: &Answer| {
            let ours =
                answer.there().filter(|socket| socket.subflow.is_some_and(|subflow| subflow.token == conn.0));
            ours.is_some_and(|socket| !socket.can_send())
        };
        let closed = sockets.iter().zip(&found).filter(|(_, answer)| is_closed(answer));
        let closed: Vec<Asked> = closed.map(|(socket, _)| *socket).collect();
        if let Err(error) = self.sockets.abort(&closed)
            && !std::mem::replace(&mut self.cannot_abort, true)
        {
            tracing::warn!(%error, "sockets of destroyed subflows cannot be aborted: downloads may wait for data that such a socket holds");
        }
    }

    /// Its socket was made before the path manager was switched over: the policy hears that it is over.
    fn is_older(&mut self, conn: ConnId) {
        if let Some(of) = self.table.conn(conn).filter(|of| of.managed == Managed::Yes) {
            of.managed = Managed::Older;
            self.looks.remove(&conn);
            self.tell(Input::Closed { conn });
        }
    }

    /// A command and what came of it, for people.
    fn words(&self, order: &Order, refused: Option<CommandError>, ack: Option<&Ack>) -> String {
        let of = self.table.conns.get(&order.conn);
        let subs = || of.map_or(&[][..], |of| &of.subflows).iter();
        let (link, own) = match order.what {
            Command::Join { link, .. } => (Some(link), None),
            Command::SetBackup { subflow, .. } | Command::Destroy { subflow } => {
                (subs().find(|sub| sub.id == subflow).and_then(|sub| sub.link), Some(subflow))
            }
        };
        let beside = || subs().filter(|sub| link.is_some() && sub.link == link && Some(sub.id) != own);
        let older = beside().any(|sub| own.is_some_and(|own| sub.id < own));
        let over = Over { others: beside().count(), older };
        let name = link.and_then(|link| self.lines.line(link)).map_or("another interface", |line| line.name());
        let what = words::asked(order.what, name, over);
        if refused.is_some() && self.mode == Mode::DryRun {
            format!("would {what}")
        } else {
            words::answered(what, refused, ack)
        }
    }

    /// Looks at all subflows of the connections that are waited for.
    fn look(&mut self) {
        let looks = std::mem::take(&mut self.looks);
        if looks.is_empty() {
            return;
        }
        if self.host.is_some() {
            self.host_look();
            return;
        }
        self.find_origins(&looks);
        let mut asked = Vec::new();
        let mut whose = Vec::new();
        for conn in looks {
            let subs = self.table.conns.get(&conn).map_or(&[][..], |of| &of.subflows);
            for sub in subs {
                asked.push(sub.asked());
                whose.push((conn, sub.id));
            }
        }
        let found = self.found(&asked);
        for ((conn, id), answer) in whose.into_iter().zip(found) {
            self.saw(conn, id, &answer);
        }
    }

    /// What the kernel still knows of these subflows, in their order.
    pub(super) fn found(&mut self, asked: &[Asked]) -> Vec<Answer> {
        self.totals.looks += asked.len() as u64;
        let mut found = vec![Answer::Unknown; asked.len()];
        let looked = self.sockets.look(asked, |place, answer| {
            if let Some(slot) = found.get_mut(place) {
                *slot = answer;
            }
        });
        if let Err(error) = looked {
            tracing::warn!(%error, "sock_diag does not answer");
        }
        found
    }

    fn saw(&mut self, conn: ConnId, id: SubflowId, answer: &Answer) {
        let now = self.now();
        let socket = answer.there().filter(|socket| is_of(socket, conn));
        if let Some((socket, counters)) = socket.and_then(|socket| Some((socket, counters(socket)?))) {
            let Some(of) = self.table.conn(conn) else { return };
            let counters = Counters { data_seq: of.reached(socket), ..counters };
            let Some(sub) = of.subflows.iter_mut().find(|sub| sub.id == id) else { return };
            sub.saw(now, counters);
            self.tell(Input::Counters { conn, subflow: id, counters });
        } else if *answer != Answer::Unknown
            && let Some(sub) = self.take(conn, id)
        {
            let up = sub.link.and_then(|link| self.lines.line(link)).is_none_or(|line| line.up);
            self.gone(conn, &sub, if up { CloseReason::Other } else { CloseReason::Unreachable });
        }
    }

    /// Ends subflows from addresses that their link, which works, has no more: nothing will ever come back to them.
    pub(super) fn end_stranded(&mut self) {
        let Some(manager) = self.manager.as_ref().filter(|_| self.host.is_none()) else { return };
        let mut stranded = Vec::new();
        for (conn, of) in self.table.conns.iter().filter(|(_, of)| of.managed == Managed::Yes) {
            for sub in &of.subflows {
                let line = sub.link.and_then(|link| self.lines.line(link));
                if line.is_some_and(|line| line.up && !line.addresses.contains(&sub.local.ip())) {
                    stranded.push((
                        *conn,
                        sub.id,
                        SubflowTuple { token: conn.0, local: sub.local, remote: sub.remote },
                    ));
                }
            }
        }
        if stranded.is_empty() {
            return;
        }
        let tuples: Vec<SubflowTuple> = stranded.iter().map(|(.., tuple)| *tuple).collect();
        if let Err(error) = manager.end(&tuples) {
            tracing::warn!(%error, "subflows from lost addresses could not be ended");
        }
        for (conn, id, _) in stranded {
            if let Some(sub) = self.take(conn, id) {
                // It may be the last one, and its address is gone: no RST could be sent.
                self.abort_later(conn, &sub);
                self.gone(conn, &sub, CloseReason::Unreachable);
            }
        }
    }

    /// Ends joins that nothing came of.
    pub(super) fn drop_stale_joins(&mut self) {
        let now = self.now();
        let mut stale = BTreeSet::new();
        for (conn, of) in &mut self.table.conns {
            of.pending.retain(|pending| {
                let old = now.since(pending.at) > STALE;
                if old {
                    stale.insert((conn.0, pending.local, pending.index));
                }
                !old
            });
        }
        let Some(manager) = self.manager.as_ref().filter(|_| !stale.is_empty()) else { return };
        let mut ends = Vec::new();
        let listed = self.sockets.subflows(1 << state::SYN_SENT, |socket| {
            let token = socket.subflow.map_or(0, |subflow| subflow.token);
            if stale.contains(&(token, socket.local.ip(), socket.interface)) {
                let tuple = SubflowTuple { token, local: socket.local, remote: socket.remote };
                ends.push(tuple);
            }
        });
        let ended = listed.and_then(|_| manager.end(&ends));
        if let Err(error) = ended {
            tracing::warn!(%error, "joins without an answer could not be ended");
        }
    }
}

fn tuple(conn: ConnId, of: &Conn, subflow: SubflowId) -> Result<SubflowTuple, CommandError> {
    let sub = of.subflow(subflow).ok_or(CommandError::NoSubflow)?;
    Ok(SubflowTuple { token: conn.0, local: sub.local, remote: sub.remote })
}

/// Whether the socket is a subflow of this connection that still carries anything: a port can be somebody else's by
/// now.
pub(super) fn is_of(socket: &diag::Socket, conn: ConnId) -> bool {
    socket.subflow.is_some_and(|subflow| subflow.token == conn.0) && socket.is_open()
}

/// The counters in the policy's terms; none: the kernel told none.
pub(super) fn counters(socket: &diag::Socket) -> Option<Counters> {
    let tcp = socket.tcp_info?;
    let measured = |time: Duration| (!time.is_zero()).then_some(time);
    Some(Counters {
        received: DataSize::from_bytes(tcp.bytes_received),
        // The SYN was acknowledged too, and is no payload.
        sent: DataSize::from_bytes(tcp.bytes_acked.saturating_sub(1)),
        outstanding: DataSize::from_bytes(socket.unacknowledged.into()),
        rtt: measured(tcp.rtt),
        receiver_rtt: measured(tcp.receiver_rtt),
        timeouts: tcp.timeouts,
        backup: socket.subflow.is_some_and(|subflow| subflow.is_local_backup()),
        peer_backup: socket.subflow.is_some_and(|subflow| subflow.is_peer_backup()),
        data_seq: None,
    })
}

/// Rounds of commands and looks before the other sources have their turn. chosen: a command, its answer and what the
/// policy makes of that are two.
const ROUNDS: usize = 4;
/// chosen: four addresses of 255 that meet are no accident any more.
const IDS_TRIED: usize = 4;
/// After which a join is given up. chosen: three SYNs, at 0, 1 and 3 seconds.
const STALE: Duration = Duration::from_secs(4);
