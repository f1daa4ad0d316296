//! Structures inside a sock_diag message: `struct tcp_info`, the MPTCP part of a subflow, `struct mptcp_info`.

use core::time::Duration;

use super::super::{Attributes, u8_at, u32_at, u64_at};

/// Counters of one TCP connection (`struct tcp_info`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpInfo {
    /// Consecutive retransmission timeouts.
    pub timeouts: u8,
    /// Smoothed RTT of the data sent by this host; zero if there is no sample yet.
    pub rtt: Duration,
    /// The receiver's own RTT estimate; zero if there is none yet.
    pub receiver_rtt: Duration,
    /// Time since data was last received.
    pub since_last_data: Duration,
    /// Bytes that the peer acknowledged, SYN and FIN included (kernel 4.1).
    pub bytes_acked: u64,
    /// Bytes received in order (kernel 4.1).
    pub bytes_received: u64,
    /// Bytes written by the program but not sent yet (kernel 4.6).
    pub notsent_bytes: u32,
    /// Minimum RTT over a recent window (kernel 4.6); zero if there is no sample yet.
    pub min_rtt: Duration,
}

impl TcpInfo {
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let micros = |at| u32_at(bytes, at).map(|us| Duration::from_micros(us.into()));
        let min_rtt = micros(148).filter(|rtt| *rtt != NO_SAMPLE).unwrap_or_default();
        Some(Self {
            timeouts: u8_at(bytes, 2)?,
            since_last_data: Duration::from_millis(u32_at(bytes, 52)?.into()),
            rtt: micros(68)?,
            receiver_rtt: micros(92)?,
            bytes_acked: u64_at(bytes, 120).unwrap_or(0),
            bytes_received: u64_at(bytes, 128).unwrap_or(0),
            notsent_bytes: u32_at(bytes, 144).unwrap_or(0),
            min_rtt,
        })
    }
}

/// Value of the minimum RTT that means "no sample yet".
const NO_SAMPLE: Duration = Duration::from_micros(u32::MAX as u64);

/// Membership of a subflow in its MPTCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubflowInfo {
    /// The local token of the connection.
    pub token: u32,
    /// Id of the local address; `None` before kernel 5.13, or if not known yet.
    pub local_id: Option<u8>,
    /// Id of the peer's address.
    pub remote_id: Option<u8>,
    /// `MPTCP_SUBFLOW_FLAG_…` flags; see the methods.
    pub flags: u32,
    /// The last data sequence mapping received; `None` if there was none.
    pub mapping: Option<DssMapping>,
}

/// Data sequence mapping: maps bytes of a subflow to the connection's byte stream (RFC 8684, section 3.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DssMapping {
    /// Data sequence number of the first byte.
    pub data_seq: u64,
    /// Relative subflow sequence number of the same byte; the subflow's first byte has number 1.
    pub subflow_seq: u32,
}

impl DssMapping {
    /// The data sequence number that follows the last of `received` bytes, which the subflow received in order.
    ///
    /// The kernel fills `struct tcp_info` and the mapping under two separate locks. A mapping processed in between is
    /// newer than `received`, which then ends before it. The offset is negative in this case, so the result still fits
    /// `received`.
    pub const fn data_seq_after(self, received: u64) -> u64 {
        // Relative sequence numbers wrap around after 4 GiB.
        let offset = (received as u32).wrapping_add(1).wrapping_sub(self.subflow_seq).cast_signed();
        self.data_seq.wrapping_add_signed(offset as i64)
    }
}

impl SubflowInfo {
    pub(super) fn read(attributes: Attributes<'_>) -> Option<Self> {
        let (mut token, mut flags, mut data_seq, mut subflow_seq) = (None, 0, None, None);
        let (mut local_id, mut remote_id) = (None, None);
        for attribute in attributes {
            match attribute.kind {
                TOKEN_LOC => token = attribute.u32(),
                MAP_SEQ => data_seq = u64_at(attribute.value, 0).filter(|data| *data != 0),
                MAP_SFSEQ => subflow_seq = attribute.u32(),
                FLAGS => flags = attribute.u32()?,
                ID_REM => remote_id = attribute.u8(),
                ID_LOC => local_id = attribute.u8(),
                _ => {}
            }
        }
        let mapping =
            data_seq.zip(subflow_seq).map(|(data, subflow)| DssMapping { data_seq: data, subflow_seq: subflow });
        Some(Self { token: token?, local_id, remote_id, flags, mapping })
    }

    /// Whether it is the initial subflow of a connection that this host opened.
    pub const fn is_local_initial(&self) -> bool {
        self.flags & MCAP_LOC != 0
    }

    /// Whether this host joined it to its connection.
    pub const fn is_local_join(&self) -> bool {
        self.flags & JOIN_LOC != 0
    }

    /// Whether the peer set it to backup.
    pub const fn is_peer_backup(&self) -> bool {
        self.flags & BKUP_REM != 0
    }

    /// Whether this host set it to backup.
    pub const fn is_local_backup(&self) -> bool {
        self.flags & BKUP_LOC != 0
    }

    /// Whether the MPTCP handshake is complete.
    pub const fn is_fully_established(&self) -> bool {
        self.flags & FULLY_ESTABLISHED != 0
    }
}

/// Counters of an MPTCP connection (`struct mptcp_info`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MptcpInfo {
    /// Number of subflows in addition to the first.
    pub subflows: u8,
    /// Whether the connection fell back to plain TCP.
    pub is_fallback: bool,
    /// Whether the peer's key has arrived, which proves that it supports MPTCP.
    pub has_remote_key: bool,
    /// The local token of the connection.
    pub token: u32,
    /// Data sequence number of the next byte to be received; 0 if not known yet.
    pub next_data_seq: u64,
    /// Bytes sent by the program, each counted once; `None` before kernel 6.5.
    pub sent_bytes: Option<u64>,
    /// Bytes received for the program, each counted once; `None` before kernel 6.5.
    pub received_bytes: Option<u64>,
}

impl MptcpInfo {
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let flags = u32_at(bytes, 8)?;
        Some(Self {
            subflows: u8_at(bytes, 0)?,
            is_fallback: flags & FALLBACK != 0,
            has_remote_key: flags & REMOTE_KEY_RECEIVED != 0,
            token: u32_at(bytes, 12)?,
            next_data_seq: u64_at(bytes, 32).unwrap_or(0),
            sent_bytes: u64_at(bytes, 56),
            received_bytes: u64_at(bytes, 64),
        })
    }
}

// MPTCP_SUBFLOW_ATTR_…
const TOKEN_LOC: u16 = 2;
const MAP_SEQ: u16 = 4;
const MAP_SFSEQ: u16 = 5;
const FLAGS: u16 = 8;
const ID_REM: u16 = 9;
const ID_LOC: u16 = 10;

// MPTCP_SUBFLOW_FLAG_…
const MCAP_LOC: u32 = 1 << 1;
const JOIN_LOC: u32 = 1 << 3;
const BKUP_REM: u32 = 1 << 4;
const BKUP_LOC: u32 = 1 << 5;
const FULLY_ESTABLISHED: u32 = 1 << 6;

// MPTCP_INFO_FLAG_…
const FALLBACK: u32 = 1;
const REMOTE_KEY_RECEIVED: u32 = 2;
