//! Table of connections and subflows: maps tokens, addresses, ports and ids of the kernel to the subflow ids of the
//! policy.
//!
//! Events and dumps fill the table. Commands of the policy find the addresses of their subflow in it.
//!
//! 1. A subflow is identified by its addresses and ports. Address ids are not unique (two subflows of one link have
//!    the same).
//! 2. Subflow ids are assigned once and never reused.
//! 3. An address keeps one id in a connection, even after its last subflow has ended: 0 for the first subflow's
//!    address, and for others an id derived from the address. A restarted driver therefore arrives at the same ids.
//! 4. The newest decisions about each connection are kept.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use marline_core::link::LinkId;
use marline_core::paths::{ConnId, Counters, SubflowId};
use marline_core::units::{Bitrate, DataSize, Instant};
use marline_core::wire::netlink::diag;

use super::super::kernel::SubflowQuery;
use super::super::snapshot::{Connection, Decision, Management, SubflowState};
use super::address_id::default_address_id;
use super::sockets::Sockets;

/// All connections of the run, and some that ended recently.
#[derive(Debug, Default)]
pub(super) struct SubflowTable {
    pub(super) conns: BTreeMap<ConnId, ConnEntry>,
    /// Recently ended connections, oldest first, so that `explain` can show why they ended.
    recently_ended: VecDeque<(Instant, ConnId, ConnEntry)>,
    next_id: u64,
}

/// State of one MPTCP connection.
#[derive(Debug)]
pub(super) struct ConnEntry {
    pub(super) adopted: bool,
    pub(super) management: Management,
    /// The policy knows that one direction is closed
    /// ([`CommandError::HalfClosed`](marline_core::paths::CommandError::HalfClosed)).
    pub(super) is_half_closed: bool,
    /// The address of its first subflow, which has id 0.
    pub(super) initial_address: IpAddr,
    pub(super) server: SocketAddr,
    pub(super) deny_join_id0: bool,
    /// What the server announced: id, address, port.
    pub(super) announced_addresses: Vec<(u8, IpAddr, Option<u16>)>,
    /// Address ids of the kernel that differ from [`default_address_id`].
    pub(super) address_ids: Vec<(IpAddr, u8)>,
    pub(super) subflows: Vec<Subflow>,
    /// Joins that are not established yet.
    pub(super) pending_joins: Vec<PendingJoin>,
    /// Destroyed subflows whose sockets may still exist (`Driver::close_socket`).
    pub(super) closing_sockets: Vec<(LinkId, SubflowQuery)>,
    pub(super) known_since: Instant,
    /// Received and sent bytes of the connection, each byte counted once, as last reported by the kernel; none: not
    /// reported.
    totals: Option<(DataSize, DataSize)>,
    /// Data sequence number of the first received byte. Outer none: not queried yet. Inner none: the kernel does not
    /// report it.
    initial_data_seq: Option<Option<u64>>,
    /// Received and sent bytes over all subflows when `totals` was reported.
    path_totals_at_update: (DataSize, DataSize),
    /// Received and sent bytes of ended subflows.
    ended_totals: (DataSize, DataSize),
    reason: Box<str>,
    /// Last action that a dry run reported.
    last_dry_run: Box<str>,
    history: VecDeque<Decision>,
}

/// A join that the kernel has started and not completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PendingJoin {
    pub(super) link: LinkId,
    pub(super) local: IpAddr,
    /// Index of the interface to which its socket is bound. Several links may have the same address.
    pub(super) interface: u32,
    pub(super) started_at: Instant,
}

impl PendingJoin {
    /// Whether it is the join from this address over this interface (0: unknown interface).
    pub(super) fn matches(&self, local: IpAddr, interface: u32) -> bool {
        self.local == local && (interface == 0 || self.interface == interface)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Subflow {
    pub(super) id: SubflowId,
    pub(super) link: Option<LinkId>,
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    /// Index of its interface; 0: unknown.
    pub(super) interface: u32,
    /// Whether it is the connection's initial subflow for the policy: the first one, or after its end another one from
    /// the same address (id 0).
    pub(super) initial: bool,
    /// The connection began with it. A subflow that joined later from the same address is not meant.
    pub(super) is_first: bool,
    /// Time at which the driver first saw it.
    pub(super) known_since: Instant,
    pub(super) counters: Counters,
    sampled_at: Option<Instant>,
    /// Rate received between the last two samples.
    rate: Option<Bitrate>,
}

impl SubflowTable {
    pub(super) fn conn_mut(&mut self, conn: ConnId) -> Option<&mut ConnEntry> {
        self.conns.get_mut(&conn)
    }

    /// Adds a subflow unless the table has it, and returns its id.
    pub(super) fn add_subflow(
        &mut self,
        conn: ConnId,
        sub: impl FnOnce(SubflowId) -> Subflow,
    ) -> Option<SubflowId> {
        let id = SubflowId(self.next_id);
        let connection = self.conns.get_mut(&conn)?;
        let sub = sub(id);
        if connection.find_subflow(sub.local, sub.remote).is_some() {
            return None;
        }
        self.next_id += 1;
        connection.pending_joins.retain(|pending| !pending.matches(sub.local.ip(), sub.interface));
        connection.subflows.push(sub);
        Some(id)
    }

    /// Adds a connection to the recently ended ones.
    pub(super) fn add_ended(&mut self, now: Instant, conn: ConnId, mut connection: ConnEntry) {
        connection.record_decision(now, "it ended".to_owned());
        if self.recently_ended.len() >= MAX_ENDED {
            self.recently_ended.pop_front();
        }
        self.recently_ended.push_back((now, conn, connection));
    }

    /// An open connection, or the newest recently ended one with this token.
    pub(super) fn open_or_ended(&self, conn: ConnId, now: Instant) -> Option<&ConnEntry> {
        let is_recent = |ended_at: Instant| now.since(ended_at) < ENDED_MAX_AGE;
        let recently_ended = || {
            self.recently_ended.iter().rev().find(|(at, id, _)| *id == conn && is_recent(*at)).map(|(.., id)| id)
        };
        self.conns.get(&conn).or_else(recently_ended)
    }

    /// Reads the MPTCP byte counters of connections with new traffic, up to a maximum number.
    pub(super) fn update_active_totals(&mut self, sockets: &Sockets, max: usize) {
        let active = self.conns.iter().filter(|(_, connection)| connection.has_new_bytes()).map(|(conn, _)| *conn);
        let active: Vec<ConnId> = active.take(max).collect();
        self.query_totals(sockets, &active);
    }

    /// Reads the initial data sequence number of these connections, once for each.
    pub(super) fn find_initial_data_seqs(&mut self, sockets: &Sockets, conns: &BTreeSet<ConnId>) {
        let needs_query = |conn: &&ConnId| self.conns.get(conn).is_some_and(ConnEntry::needs_initial_data_seq);
        let missing: Vec<ConnId> = conns.iter().filter(needs_query).copied().collect();
        if !missing.is_empty() {
            self.query_totals(sockets, &missing);
        }
    }

    fn query_totals(&mut self, sockets: &Sockets, conns: &[ConnId]) {
        sockets.query_mptcp_info(conns, |conn, info| {
            if let Some(connection) = self.conns.get_mut(&conn) {
                connection.update_totals(info);
            }
        });
    }

    /// Number of subflows over a link.
    pub(super) fn subflows_over(&self, link: LinkId) -> u32 {
        let subflows = self.conns.values().flat_map(|conn| &conn.subflows);
        u32::try_from(subflows.filter(|sub| sub.link == Some(link)).count()).unwrap_or(u32::MAX)
    }
}

impl ConnEntry {
    pub(super) fn new(initial_address: IpAddr, server: SocketAddr, known_since: Instant) -> Self {
        Self {
            adopted: false,
            management: Management::Userspace,
            is_half_closed: false,
            initial_address,
            server,
            deny_join_id0: false,
            announced_addresses: Vec::new(),
            address_ids: Vec::new(),
            subflows: Vec::new(),
            pending_joins: Vec::new(),
            closing_sockets: Vec::new(),
            known_since,
            totals: None,
            initial_data_seq: None,
            path_totals_at_update: (DataSize::ZERO, DataSize::ZERO),
            ended_totals: (DataSize::ZERO, DataSize::ZERO),
            reason: Box::default(),
            last_dry_run: Box::default(),
            history: VecDeque::new(),
        }
    }

    pub(super) fn find_subflow(&self, local: SocketAddr, remote: SocketAddr) -> Option<&Subflow> {
        self.subflows.iter().find(|sub| sub.local == local && sub.remote == remote)
    }

    pub(super) fn subflow(&self, id: SubflowId) -> Option<&Subflow> {
        self.subflows.iter().find(|sub| sub.id == id)
    }

    /// Removes a subflow by its addresses and ports.
    pub(super) fn take_by_addresses(&mut self, local: SocketAddr, remote: SocketAddr) -> Option<Subflow> {
        self.take_where(|sub| sub.local == local && sub.remote == remote)
    }

    /// Removes the first matching subflow. Its bytes remain in the totals.
    pub(super) fn take_where(&mut self, matches: impl Fn(&Subflow) -> bool) -> Option<Subflow> {
        let index = self.subflows.iter().position(matches)?;
        let sub = self.subflows.remove(index);
        self.ended_totals.0 += sub.counters.received;
        self.ended_totals.1 += sub.counters.sent;
        Some(sub)
    }

    /// Updates the totals from MPTCP's own counters, which count each byte once.
    pub(super) fn update_totals(&mut self, info: &diag::MptcpInfo) {
        if let (Some(received), Some(sent)) = (info.received_bytes, info.sent_bytes) {
            self.totals = Some((DataSize::from_bytes(received), DataSize::from_bytes(sent)));
            self.path_totals_at_update = self.path_totals();
        }
        // Zero means that the key of the peer has not arrived yet.
        if self.needs_initial_data_seq() && info.next_data_seq != 0 {
            self.initial_data_seq =
                Some(info.received_bytes.map(|received| info.next_data_seq.wrapping_sub(received)));
        }
    }

    /// Whether the next [`update_totals`](Self::update_totals) would determine the initial data sequence number.
    pub(super) fn needs_initial_data_seq(&self) -> bool {
        self.initial_data_seq.is_none()
    }

    /// Offset in the data stream after the last byte received over a subflow ([`Counters::data_seq`]).
    pub(super) fn data_progress(&self, subflow: &diag::Socket) -> Option<DataSize> {
        let mapping = subflow.subflow?.mapping?;
        self.data_offset(mapping.data_seq_after(subflow.tcp_info?.bytes_received))
    }

    /// Offset of a data sequence number in the stream; none: the start is unknown, or the number lies before it.
    fn data_offset(&self, number: u64) -> Option<DataSize> {
        let offset = number.wrapping_sub(self.initial_data_seq??).cast_signed();
        u64::try_from(offset).ok().map(DataSize::from_bytes)
    }

    /// Whether bytes were received or sent since the last [`update_totals`](Self::update_totals).
    pub(super) fn has_new_bytes(&self) -> bool {
        self.path_totals() != self.path_totals_at_update
    }

    /// Received and sent bytes over all subflows, including ended ones. Retransmissions over a second subflow count
    /// twice.
    fn path_totals(&self) -> (DataSize, DataSize) {
        let all = self.subflows.iter().map(|sub| &sub.counters);
        all.fold(self.ended_totals, |sum, counters| (sum.0 + counters.received, sum.1 + counters.sent))
    }

    /// The address id with which this address joins.
    pub(super) fn address_id(&self, address: IpAddr) -> u8 {
        if address == self.initial_address {
            return 0;
        }
        self.address_ids
            .iter()
            .find(|(known_address, _)| *known_address == address)
            .map_or_else(|| default_address_id(address), |(_, id)| *id)
    }

    /// Destination of a join from this address; none: the server has no joinable address of this family.
    pub(super) fn join_target(&self, local: IpAddr) -> Option<SocketAddr> {
        if !self.deny_join_id0 && self.server.is_ipv4() == local.is_ipv4() {
            return Some(self.server);
        }
        let (_, address, port) =
            self.announced_addresses.iter().find(|(_, announced, _)| announced.is_ipv4() == local.is_ipv4())?;
        Some(SocketAddr::new(*address, port.unwrap_or(self.server.port())))
    }

    /// Appends a decision to the history.
    pub(super) fn record_decision(&mut self, now: Instant, text: String) {
        if self.history.len() >= MAX_HISTORY {
            self.history.pop_front();
        }
        self.history.push_back(Decision { at: now, text });
    }

    /// The policy's reason for the current use of links; empty: none was given yet.
    pub(super) fn reason(&self) -> &str {
        &self.reason
    }

    /// Whether this action differs from the last one that a dry run reported; remembers it.
    pub(super) fn is_new_dry_run(&mut self, action: &str) -> bool {
        let is_new = *self.last_dry_run != *action;
        self.last_dry_run = action.into();
        is_new
    }

    /// Sets the policy's reason and adds it to the history.
    pub(super) fn set_reason(&mut self, now: Instant, reason: String) {
        self.reason = reason.as_str().into();
        self.record_decision(now, reason);
    }

    /// The newest decisions, oldest first.
    pub(super) fn history(&self) -> Vec<Decision> {
        self.history.iter().cloned().collect()
    }

    pub(super) fn snapshot(&self, conn: ConnId, now: Instant) -> Connection {
        let totals = self.totals.unwrap_or_else(|| self.path_totals());
        Connection {
            id: conn,
            server: Some(self.server),
            adopted: self.adopted,
            management: self.management,
            since: self.known_since,
            reason: self.reason.to_string(),
            received: totals.0,
            sent: totals.1,
            subflows: self.subflows.iter().map(|sub| sub.snapshot(now)).collect(),
        }
    }
}

impl Subflow {
    /// Key for queries of its socket.
    pub(super) fn query(&self) -> SubflowQuery {
        SubflowQuery { local: self.local, remote: self.remote, interface: self.interface }
    }

    pub(super) fn new(id: SubflowId, local: SocketAddr, remote: SocketAddr, interface: u32) -> Self {
        Self {
            id,
            link: None,
            local,
            remote,
            interface,
            initial: false,
            is_first: false,
            known_since: Instant::ZERO,
            counters: Counters::default(),
            sampled_at: None,
            rate: None,
        }
    }

    /// Takes new counters. Samples that follow each other too closely give no rate; the newer one is dropped.
    pub(super) fn add_sample(&mut self, now: Instant, counters: Counters) {
        if let Some(sampled_at) = self.sampled_at {
            let time = now.since(sampled_at);
            if time < MIN_SAMPLE_INTERVAL {
                return;
            }
            self.rate = Some((counters.received - self.counters.received) / time);
        }
        self.counters = counters;
        self.sampled_at = Some(now);
    }

    fn snapshot(&self, now: Instant) -> SubflowState {
        let age = self.sampled_at.map(|sampled_at| now.since(sampled_at));
        SubflowState {
            id: self.id,
            link: self.link,
            local: self.local,
            remote: self.remote,
            initial: self.is_first,
            counters: self.counters,
            rate: self.rate.filter(|_| age.is_some_and(|age| age < MAX_RATE_AGE)),
            age,
        }
    }
}

/// Age up to which an ended connection can be explained. Our choice: the time to read a row of `status` and to type its
/// token.
const ENDED_MAX_AGE: Duration = Duration::from_secs(60);
/// Number of ended connections that are kept. Our choice: the connections of a web page; some hundred kilobytes at
/// most.
const MAX_ENDED: usize = 64;
/// Number of decisions kept for each connection. Our choice: half an hour of a busy one, three kilobytes at most.
const MAX_HISTORY: usize = 32;
/// Shortest interval between two samples. Our choice: over a shorter one the rate reflects bursts rather than the link.
const MIN_SAMPLE_INTERVAL: Duration = Duration::from_millis(5);
/// Age after which a rate is not shown any more. Our choice: some polls of an idle connection, which is polled twice a
/// second as long as there are few.
const MAX_RATE_AGE: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::super::address_id::next_address_id;
    use super::*;

    #[test]
    fn ended_connections_are_kept_for_a_minute() {
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        let mut table = SubflowTable::default();
        for number in 0..70 {
            table.add_ended(at(10), ConnId(number), test_conn());
        }
        let last = ConnId(69);
        let history = table.open_or_ended(last, at(69)).unwrap().history();
        assert_eq!(history, [Decision { at: at(10), text: "it ended".into() }]);
        assert!(table.open_or_ended(ConnId(5), at(69)).is_none(), "only the newest are kept");
        assert!(table.open_or_ended(last, at(70)).is_none());
        table.conns.insert(last, test_conn());
        assert_eq!(
            table.open_or_ended(last, at(70)).unwrap().history(),
            [],
            "an open connection precedes an ended one"
        );
    }

    fn test_conn() -> ConnEntry {
        ConnEntry::new("10.0.0.2".parse().unwrap(), "192.0.2.1:443".parse().unwrap(), Instant::ZERO)
    }

    #[test]
    fn the_first_address_has_id_0_and_others_keep_a_nonzero_id() {
        let mut conn = test_conn();
        assert_eq!(conn.address_id("10.0.0.2".parse().unwrap()), 0);
        let other: IpAddr = "10.1.0.2".parse().unwrap();
        let id = conn.address_id(other);
        assert!(id != 0 && id == default_address_id(other));
        conn.address_ids.push((other, 7));
        assert_eq!(conn.address_id(other), 7);
        assert_eq!(next_address_id(255), 1);
    }

    #[test]
    fn a_server_that_denies_its_first_address_is_joined_where_it_announced_another() {
        let mut conn = test_conn();
        let local: IpAddr = "10.1.0.2".parse().unwrap();
        assert_eq!(conn.join_target(local), Some(conn.server));
        conn.deny_join_id0 = true;
        assert_eq!(conn.join_target(local), None);
        conn.announced_addresses.push((3, "192.0.2.9".parse().unwrap(), None));
        assert_eq!(conn.join_target(local), Some("192.0.2.9:443".parse().unwrap()));
        assert_eq!(conn.join_target("fd00::2".parse().unwrap()), None, "no address of that family");
    }

    #[test]
    fn a_subflow_is_added_once() {
        let mut table = SubflowTable::default();
        let token = ConnId(5);
        table.conns.insert(token, test_conn());
        let (local, remote) = ("10.1.0.2:9".parse().unwrap(), "192.0.2.1:443".parse().unwrap());
        assert_eq!(table.add_subflow(token, |id| Subflow::new(id, local, remote, 0)), Some(SubflowId(0)));
        assert_eq!(table.add_subflow(token, |id| Subflow::new(id, local, remote, 0)), None);
        assert!(table.conn_mut(token).unwrap().take_by_addresses(local, remote).is_some());
        assert_eq!(table.add_subflow(token, |id| Subflow::new(id, local, remote, 0)), Some(SubflowId(1)));
        assert_eq!(table.add_subflow(ConnId(6), |id| Subflow::new(id, local, remote, 0)), None);
    }

    #[test]
    fn the_rate_is_computed_between_two_samples() {
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        let mut sub = Subflow::new(SubflowId(0), nowhere, nowhere, 0);
        let counters = |bytes| Counters { received: DataSize::from_bytes(bytes), ..Counters::default() };
        sub.add_sample(Instant::ZERO, counters(1000));
        sub.add_sample(Instant::from_millis(100), counters(126_000));
        let state = sub.snapshot(Instant::from_millis(200));
        assert_eq!(state.rate, Some(Bitrate::from_mbps(10)));
        assert_eq!(sub.snapshot(Instant::from_millis(9000)).rate, None);
    }

    #[test]
    fn bytes_of_ended_subflows_count_until_the_kernel_reports_totals() {
        let size = DataSize::from_bytes;
        let mut conn = test_conn();
        let (local, remote) = ("10.1.0.2:9".parse().unwrap(), "192.0.2.1:443".parse().unwrap());
        let mut sub = Subflow::new(SubflowId(0), local, remote, 0);
        sub.counters = Counters { received: size(700), sent: size(80), ..Counters::default() };
        conn.subflows.push(sub.clone());
        conn.take_by_addresses(local, remote).unwrap();
        sub.counters.received = size(400);
        conn.subflows.push(sub);
        let totals = |connection: &ConnEntry| {
            let status = connection.snapshot(ConnId(1), Instant::ZERO);
            (status.received.bytes(), status.sent.bytes())
        };
        assert_eq!(totals(&conn), (1100, 160));
        // Some bytes arrived over one subflow and again over the other.
        let kernel = diag::MptcpInfo {
            subflows: 1,
            is_fallback: false,
            has_remote_key: true,
            token: 1,
            next_data_seq: u64::MAX - 9,
            sent_bytes: Some(81),
            received_bytes: Some(1000),
        };
        assert!(conn.needs_initial_data_seq());
        conn.update_totals(&diag::MptcpInfo { next_data_seq: 0, ..kernel });
        assert!(conn.needs_initial_data_seq(), "the key of the peer has not come yet");
        conn.update_totals(&kernel);
        assert_eq!(totals(&conn), (1000, 81));
        assert_eq!(conn.initial_data_seq, Some(Some(u64::MAX - 1009)));
        assert_eq!((conn.data_offset(10), conn.data_offset(u64::MAX - 1010)), (Some(size(1020)), None));
        conn.update_totals(&diag::MptcpInfo { sent_bytes: None, received_bytes: None, ..kernel });
        assert_eq!(totals(&conn), (1000, 81), "older kernels do not report totals");
    }

    #[test]
    fn only_the_newest_decisions_are_kept() {
        let mut conn = test_conn();
        for millis in 0..100 {
            conn.record_decision(Instant::from_millis(millis), format!("{millis}"));
        }
        assert_eq!((conn.history().len(), conn.history()[0].text.as_str()), (MAX_HISTORY, "68"));
    }
}
