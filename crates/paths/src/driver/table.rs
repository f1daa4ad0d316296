//! Which subflows there are: tokens, addresses, ports and ids on one side, the policy's numbers on the other.
//!
//! In: what events and dumps say. Out: the same in the policy's words, and the addresses for its commands.
//!
//! 1. A subflow is found by its addresses and ports: ids are not unique (two subflows of one link have the same).
//! 2. The numbers of subflows are given out once and never again.
//! 3. An address has one id in a connection for ever, also after its last subflow has gone: 0 for the first subflow's
//!    address, and one that is made from the address for the others, so that another run of the driver comes to the
//!    same.
//! 4. What was decided about a connection is kept, the newest few only.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use marline_core::link::LinkId;
use marline_core::paths::{ConnId, Counters, SubflowId};
use marline_core::units::{Bitrate, DataSize, Instant};
use marline_core::wire::netlink::diag;

use super::super::kernel::Asked;
use super::super::snapshot::{Connection, Decision, Managed, SubflowState};

/// All connections.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) conns: BTreeMap<ConnId, Conn>,
    /// Those that ended lately, oldest first, for whoever asks why they went as they did.
    ended: VecDeque<(Instant, ConnId, Conn)>,
    next: u64,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) adopted: bool,
    pub(super) managed: Managed,
    /// The policy knows that one direction of it is closed ([`Refusal::HalfClosed`](marline_core::paths::Refusal::HalfClosed)).
    pub(super) is_half_closed: bool,
    /// The address of its first subflow, which has id 0.
    pub(super) first: IpAddr,
    pub(super) server: SocketAddr,
    pub(super) only_announced: bool,
    /// What the server announced: id, address, port.
    pub(super) announced: Vec<(u8, IpAddr, Option<u16>)>,
    /// Ids of addresses other than [`id_of`] gives: the kernel said so.
    pub(super) ids: Vec<(IpAddr, u8)>,
    pub(super) subflows: Vec<Sub>,
    /// Joins whose SYN is on its way.
    pub(super) pending: Vec<Pending>,
    /// Subflows that were destroyed and whose sockets may still be there (`Driver::end_socket`).
    pub(super) closing: Vec<(LinkId, Asked)>,
    pub(super) since: Instant,
    /// Received and sent, each byte once, as the kernel said last; none: it has not said it.
    whole: Option<(DataSize, DataSize)>,
    /// The data sequence number of the first byte that it received; inside none: the kernel does not say.
    origin: Option<Option<u64>>,
    /// What had come and gone over all subflows then.
    then: (DataSize, DataSize),
    /// What ended subflows had carried.
    ended: (DataSize, DataSize),
    reason: Box<str>,
    /// What a dry run said last that it would do.
    would: Box<str>,
    history: VecDeque<Decision>,
}

/// A join that the kernel has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pending {
    pub(super) link: LinkId,
    pub(super) local: IpAddr,
    /// The interface that it is bound to. Several links may have the address.
    pub(super) index: u32,
    pub(super) at: Instant,
}

impl Pending {
    /// Whether it is the join from this address over the interface of this number; 0: not known.
    pub(super) fn is_of(&self, local: IpAddr, index: u32) -> bool {
        self.local == local && (index == 0 || self.index == index)
    }
}

/// One subflow.
#[derive(Clone, Debug)]
pub(super) struct Sub {
    pub(super) id: SubflowId,
    pub(super) link: Option<LinkId>,
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    /// The interface that it goes over; 0: not known.
    pub(super) index: u32,
    /// Its address has id 0.
    pub(super) initial: bool,
    /// The connection began with it; one that joined later from the same address is another.
    pub(super) first: bool,
    /// Since when it is known.
    pub(super) since: Instant,
    pub(super) counters: Counters,
    seen: Option<Instant>,
    rate: Option<Bitrate>,
}

impl Table {
    pub(super) fn conn(&mut self, conn: ConnId) -> Option<&mut Conn> {
        self.conns.get_mut(&conn)
    }

    /// Adds a subflow unless it is there already, and gives its number.
    pub(super) fn add(&mut self, conn: ConnId, sub: impl FnOnce(SubflowId) -> Sub) -> Option<SubflowId> {
        let id = SubflowId(self.next);
        let of = self.conns.get_mut(&conn)?;
        let sub = sub(id);
        if of.find(sub.local, sub.remote).is_some() {
            return None;
        }
        self.next += 1;
        of.pending.retain(|pending| !pending.is_of(sub.local.ip(), sub.index));
        of.subflows.push(sub);
        Some(id)
    }

    /// A connection that is over.
    pub(super) fn end(&mut self, now: Instant, conn: ConnId, mut of: Conn) {
        of.remember(now, "it ended".to_owned());
        if self.ended.len() >= ENDED {
            self.ended.pop_front();
        }
        self.ended.push_back((now, conn, of));
    }

    /// A connection that is open, or the newest of this token that ended lately.
    pub(super) fn known(&self, conn: ConnId, now: Instant) -> Option<&Conn> {
        let lately = |at: Instant| now.since(at) < LATELY;
        let ended = || self.ended.iter().rev().find(|(at, of, _)| *of == conn && lately(*at)).map(|(.., of)| of);
        self.conns.get(&conn).or_else(ended)
    }

    /// How many subflows go over a link.
    pub(super) fn over(&self, link: LinkId) -> u32 {
        let subs = self.conns.values().flat_map(|conn| &conn.subflows);
        u32::try_from(subs.filter(|sub| sub.link == Some(link)).count()).unwrap_or(u32::MAX)
    }
}

impl Conn {
    pub(super) fn new(first: IpAddr, server: SocketAddr, since: Instant) -> Self {
        Self {
            adopted: false,
            managed: Managed::Yes,
            is_half_closed: false,
            first,
            server,
            only_announced: false,
            announced: Vec::new(),
            ids: Vec::new(),
            subflows: Vec::new(),
            pending: Vec::new(),
            closing: Vec::new(),
            since,
            whole: None,
            origin: None,
            then: (DataSize::ZERO, DataSize::ZERO),
            ended: (DataSize::ZERO, DataSize::ZERO),
            reason: Box::default(),
            would: Box::default(),
            history: VecDeque::new(),
        }
    }

    pub(super) fn find(&self, local: SocketAddr, remote: SocketAddr) -> Option<&Sub> {
        self.subflows.iter().find(|sub| sub.local == local && sub.remote == remote)
    }

    pub(super) fn subflow(&self, id: SubflowId) -> Option<&Sub> {
        self.subflows.iter().find(|sub| sub.id == id)
    }

    /// Takes a subflow out, by its place on the network.
    pub(super) fn take(&mut self, local: SocketAddr, remote: SocketAddr) -> Option<Sub> {
        self.take_that(|sub| sub.local == local && sub.remote == remote)
    }

    /// The same by any mark. What it had carried counts on.
    pub(super) fn take_that(&mut self, is_it: impl Fn(&Sub) -> bool) -> Option<Sub> {
        let at = self.subflows.iter().position(is_it)?;
        let sub = self.subflows.remove(at);
        self.ended.0 += sub.counters.received;
        self.ended.1 += sub.counters.sent;
        Some(sub)
    }

    /// Takes MPTCP's own counters, which know of each byte once.
    pub(super) fn counted(&mut self, of: &diag::MptcpInfo) {
        if let (Some(received), Some(sent)) = (of.received, of.sent) {
            self.whole = Some((DataSize::from_bytes(received), DataSize::from_bytes(sent)));
            self.then = self.over_links();
        }
        if self.lacks_origin() && of.next_data_seq != 0 {
            self.origin = Some(of.received.map(|received| of.next_data_seq.wrapping_sub(received)));
        }
    }

    /// Whether [`counted`](Self::counted) would say where its data begin.
    pub(super) fn lacks_origin(&self) -> bool {
        self.origin.is_none()
    }

    /// How far its data reach behind the last byte that came over a subflow ([`Counters::reached`]).
    pub(super) fn reached(&self, subflow: &diag::Socket) -> Option<DataSize> {
        let mapping = subflow.subflow?.mapping?;
        self.inside(mapping.data_seq_after(subflow.tcp_info?.bytes_received))
    }

    /// How many bytes lie before this data sequence number; none: it is not known where they begin, or it is before that.
    fn inside(&self, number: u64) -> Option<DataSize> {
        let inside = number.wrapping_sub(self.origin??).cast_signed();
        u64::try_from(inside).ok().map(DataSize::from_bytes)
    }

    /// Whether more has come or gone since then.
    pub(super) fn has_moved(&self) -> bool {
        self.over_links() != self.then
    }

    /// What has come and gone over all subflows, those that ended too; some of it may have come over two.
    fn over_links(&self) -> (DataSize, DataSize) {
        let all = self.subflows.iter().map(|sub| &sub.counters);
        all.fold(self.ended, |sum, sub| (sum.0 + sub.received, sum.1 + sub.sent))
    }

    /// The id under which this address joins.
    pub(super) fn address_id(&self, address: IpAddr) -> u8 {
        if address == self.first {
            return 0;
        }
        self.ids.iter().find(|(of, _)| *of == address).map_or_else(|| id_of(address), |(_, id)| *id)
    }

    /// Where a join from this address goes to; none: the server has no address of its family that may be joined.
    pub(super) fn target(&self, local: IpAddr) -> Option<SocketAddr> {
        if !self.only_announced && self.server.is_ipv4() == local.is_ipv4() {
            return Some(self.server);
        }
        let (_, address, port) = self.announced.iter().find(|(_, to, _)| to.is_ipv4() == local.is_ipv4())?;
        Some(SocketAddr::new(*address, port.unwrap_or(self.server.port())))
    }

    /// Keeps what was decided or done.
    pub(super) fn remember(&mut self, at: Instant, what: String) {
        if self.history.len() >= REMEMBERED {
            self.history.pop_front();
        }
        self.history.push_back(Decision { at, what });
    }

    /// Why it is carried as it is; empty: nothing was said yet.
    pub(super) fn reason(&self) -> &str {
        &self.reason
    }

    /// Whether this is another thing to do than what was said last; it is from now on.
    pub(super) fn is_news(&mut self, would: &str) -> bool {
        let news = *self.would != *would;
        self.would = would.into();
        news
    }

    /// Keeps why it is carried as it is.
    pub(super) fn explain(&mut self, at: Instant, reason: String) {
        self.reason = reason.as_str().into();
        self.remember(at, reason);
    }

    /// The newest decisions, oldest first.
    pub(super) fn history(&self) -> Vec<Decision> {
        self.history.iter().cloned().collect()
    }

    pub(super) fn snapshot(&self, conn: ConnId, now: Instant) -> Connection {
        let carried = self.whole.unwrap_or_else(|| self.over_links());
        Connection {
            conn,
            server: Some(self.server),
            adopted: self.adopted,
            managed: self.managed,
            since: self.since,
            reason: self.reason.to_string(),
            received: carried.0,
            sent: carried.1,
            subflows: self.subflows.iter().map(|sub| sub.snapshot(now)).collect(),
        }
    }
}

impl Sub {
    /// How the kernel is asked for its socket.
    pub(super) fn asked(&self) -> Asked {
        Asked { local: self.local, remote: self.remote, link: self.index }
    }

    pub(super) fn new(id: SubflowId, local: SocketAddr, remote: SocketAddr, index: u32) -> Self {
        Self {
            id,
            link: None,
            local,
            remote,
            index,
            initial: false,
            first: false,
            since: Instant::ZERO,
            counters: Counters::default(),
            seen: None,
            rate: None,
        }
    }

    /// Takes new counters. Two looks right after each other give no rate: the newer one waits for the next.
    pub(super) fn saw(&mut self, now: Instant, counters: Counters) {
        if let Some(seen) = self.seen {
            let time = now.since(seen);
            if time < LEAST_FOR_A_RATE {
                return;
            }
            self.rate = Some((counters.received - self.counters.received) / time);
        }
        self.counters = counters;
        self.seen = Some(now);
    }

    fn snapshot(&self, now: Instant) -> SubflowState {
        let age = self.seen.map(|seen| now.since(seen));
        SubflowState {
            id: self.id,
            link: self.link,
            local: self.local,
            remote: self.remote,
            initial: self.first,
            counters: self.counters,
            rate: self.rate.filter(|_| age.is_some_and(|age| age < FRESH)),
            age,
        }
    }
}

/// The id of an address that is not a connection's first: the same in every run. RFC 8684 §3.4.1 has one byte for it.
pub(super) fn id_of(address: IpAddr) -> u8 {
    let fold = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(FNV_PRIME);
    let hash = match address {
        IpAddr::V4(v4) => v4.octets().into_iter().fold(FNV_BASIS, fold),
        IpAddr::V6(v6) => v6.octets().into_iter().fold(FNV_BASIS, fold),
    };
    1 + (hash % 255) as u8
}

/// The next id to try where another address has this one.
pub(super) fn id_after(id: u8) -> u8 {
    if id == u8::MAX { 1 } else { id + 1 }
}

/// FNV-1a, 32 bits (RFC 9923): spreads addresses that differ in one bit.
const FNV_BASIS: u32 = 0x811c_9dc5;
const FNV_PRIME: u32 = 0x0100_0193;

/// chosen: as long as one needs to see a row of `status` and to type its token.
const LATELY: Duration = Duration::from_secs(60);
/// chosen: a page with all that it brings; some hundred kilobytes at most.
const ENDED: usize = 64;
/// chosen: half an hour of a lively connection, three kilobytes at most.
const REMEMBERED: usize = 32;
/// chosen: below it the rate says more of the moment of the question than of the link.
const LEAST_FOR_A_RATE: Duration = Duration::from_millis(5);
/// chosen: a rate that is older than three samples of an idle connection is history.
const FRESH: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_ended_is_known_for_a_minute() {
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        let mut table = Table::default();
        for number in 0..70 {
            table.end(at(10), ConnId(number), conn());
        }
        let last = ConnId(69);
        let told = table.known(last, at(69)).unwrap().history();
        assert_eq!(told, [Decision { at: at(10), what: "it ended".into() }]);
        assert!(table.known(ConnId(5), at(69)).is_none(), "no more than a few are kept");
        assert!(table.known(last, at(70)).is_none());
        table.conns.insert(last, conn());
        assert_eq!(table.known(last, at(70)).unwrap().history(), [], "one that is open goes first");
    }

    fn conn() -> Conn {
        Conn::new("10.0.0.2".parse().unwrap(), "192.0.2.1:443".parse().unwrap(), Instant::ZERO)
    }

    #[test]
    fn the_first_address_has_id_0_and_all_others_keep_one_that_is_not() {
        let mut conn = conn();
        assert_eq!(conn.address_id("10.0.0.2".parse().unwrap()), 0);
        let other: IpAddr = "10.1.0.2".parse().unwrap();
        let id = conn.address_id(other);
        assert!(id != 0 && id == id_of(other));
        conn.ids.push((other, 7));
        assert_eq!(conn.address_id(other), 7);
        assert_eq!(id_after(255), 1);
    }

    #[test]
    fn a_server_that_denies_its_first_address_is_joined_where_it_announced_another() {
        let mut conn = conn();
        let local: IpAddr = "10.1.0.2".parse().unwrap();
        assert_eq!(conn.target(local), Some(conn.server));
        conn.only_announced = true;
        assert_eq!(conn.target(local), None);
        conn.announced.push((3, "192.0.2.9".parse().unwrap(), None));
        assert_eq!(conn.target(local), Some("192.0.2.9:443".parse().unwrap()));
        assert_eq!(conn.target("fd00::2".parse().unwrap()), None, "no address of that family");
    }

    #[test]
    fn a_subflow_is_added_once() {
        let mut table = Table::default();
        let token = ConnId(5);
        table.conns.insert(token, conn());
        let (local, remote) = ("10.1.0.2:9".parse().unwrap(), "192.0.2.1:443".parse().unwrap());
        assert_eq!(table.add(token, |id| Sub::new(id, local, remote, 0)), Some(SubflowId(0)));
        assert_eq!(table.add(token, |id| Sub::new(id, local, remote, 0)), None);
        assert!(table.conn(token).unwrap().take(local, remote).is_some());
        assert_eq!(table.add(token, |id| Sub::new(id, local, remote, 0)), Some(SubflowId(1)));
        assert_eq!(table.add(ConnId(6), |id| Sub::new(id, local, remote, 0)), None);
    }

    #[test]
    fn a_rate_is_what_came_between_two_looks() {
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        let mut sub = Sub::new(SubflowId(0), nowhere, nowhere, 0);
        let seen = |bytes| Counters { received: DataSize::from_bytes(bytes), ..Counters::default() };
        sub.saw(Instant::ZERO, seen(1000));
        sub.saw(Instant::from_millis(100), seen(126_000));
        let state = sub.snapshot(Instant::from_millis(200));
        assert_eq!(state.rate, Some(Bitrate::from_mbps(10)));
        assert_eq!(sub.snapshot(Instant::from_millis(9000)).rate, None);
    }

    #[test]
    fn what_ended_subflows_had_carried_counts_on_until_the_kernel_knows_better() {
        let size = DataSize::from_bytes;
        let mut conn = conn();
        let (local, remote) = ("10.1.0.2:9".parse().unwrap(), "192.0.2.1:443".parse().unwrap());
        let mut sub = Sub::new(SubflowId(0), local, remote, 0);
        sub.counters = Counters { received: size(700), sent: size(80), ..Counters::default() };
        conn.subflows.push(sub.clone());
        conn.take(local, remote).unwrap();
        sub.counters.received = size(400);
        conn.subflows.push(sub);
        let carried = |conn: &Conn| {
            let told = conn.snapshot(ConnId(1), Instant::ZERO);
            (told.received.bytes(), told.sent.bytes())
        };
        assert_eq!(carried(&conn), (1100, 160));
        // Some of it came twice: over one subflow, and again over the other.
        let kernel = diag::MptcpInfo {
            subflows: 1,
            is_fallback: false,
            has_remote_key: true,
            token: 1,
            next_data_seq: u64::MAX - 9,
            sent: Some(81),
            received: Some(1000),
        };
        assert!(conn.lacks_origin());
        conn.counted(&diag::MptcpInfo { next_data_seq: 0, ..kernel });
        assert!(conn.lacks_origin(), "the key of the peer has not come yet");
        conn.counted(&kernel);
        assert_eq!(carried(&conn), (1000, 81));
        assert_eq!(conn.origin, Some(Some(u64::MAX - 1009)));
        assert_eq!((conn.inside(10), conn.inside(u64::MAX - 1010)), (Some(size(1020)), None));
        conn.counted(&diag::MptcpInfo { sent: None, received: None, ..kernel });
        assert_eq!(carried(&conn), (1000, 81), "an older kernel says nothing");
    }

    #[test]
    fn only_the_newest_decisions_are_kept() {
        let mut conn = conn();
        for at in 0..100 {
            conn.remember(Instant::from_millis(at), format!("{at}"));
        }
        assert_eq!((conn.history().len(), conn.history()[0].what.as_str()), (REMEMBERED, "68"));
    }
}
