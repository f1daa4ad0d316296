//! Counts connections that requested MPTCP and fell back to plain TCP: the kernel sends no event for them.
//!
//! The counters cover the whole network namespace.

use std::collections::BTreeMap;

use super::netstat::read_mptcp_counters;

/// Counters since the creation of the network namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FallbackCounters {
    /// Client connections that fell back to plain TCP.
    pub(crate) fallen_back: u64,
    /// Present MPTCP connections, as client or server.
    pub(crate) established: u64,
}

/// Reads the counters; zero if the kernel has none.
pub(crate) fn read_fallback_counters() -> FallbackCounters {
    sum_counters(&read_mptcp_counters())
}

fn sum_counters(counters: &BTreeMap<String, u64>) -> FallbackCounters {
    let counter = |name: &str| counters.get(name).copied().unwrap_or(0);
    FallbackCounters {
        fallen_back: CLIENT_COUNTERS.iter().map(|name| counter(name)).fold(0, u64::saturating_add),
        established: counter("MPCurrEstab"),
    }
}

/// Causes, in this order: no MPTCP in the SYN-ACK; no free token; data without MPTCP options, at the beginning or
/// later; TCP-MD5 signatures; simultaneous connect; wrong checksum of received or sent data.
const CLIENT_COUNTERS: [&str; 8] = [
    "MPCapableFallbackSYNACK",
    "MPFallbackTokenInit",
    "MPCapableDataFallback",
    "DssFallback",
    "MD5SigFallback",
    "SimultConnectFallback",
    "DSSCorruptionFallback",
    "InfiniteMapTx",
];

#[cfg(test)]
mod tests {
    use super::super::netstat::mptcp_counters;
    use super::*;

    #[test]
    fn the_fallbacks_of_all_causes_are_added() {
        let text = "TcpExt: SyncookiesSent\nTcpExt: 7\n\
            MPTcpExt: MPCapableSYNRX MPCapableFallbackSYNACK DssFallback MPCurrEstab\nMPTcpExt: 9 2 3 4\n";
        let sum = |text| sum_counters(&mptcp_counters(text));
        assert_eq!(sum(text), FallbackCounters { fallen_back: 5, established: 4 });
        assert_eq!(sum("TcpExt: a\nTcpExt: 1\n"), FallbackCounters::default());
        assert_eq!(sum("MPTcpExt: MPCurrEstab\nMPTcpExt: x\n"), FallbackCounters::default());
    }
}
