//! Counts connections that requested MPTCP and fell back to plain TCP: the kernel sends no event for them.
//!
//! The counters are read from `/proc/net/netstat` and cover the whole network namespace.

use std::fs;

/// Counters since the creation of the network namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FallbackCounters {
    /// Client connections that fell back to plain TCP.
    pub(crate) fallen_back: u64,
    /// Present MPTCP connections, as client or server.
    pub(crate) established: u64,
}

/// Reads the counters; zero if the kernel has none. The network namespace of the thread applies, which may differ
/// from that of the process.
pub(crate) fn read_fallback_counters() -> FallbackCounters {
    parse_netstat(&fs::read_to_string("/proc/thread-self/net/netstat").unwrap_or_default())
}

/// Parses the file, which has two lines for each protocol: names, then numbers.
fn parse_netstat(text: &str) -> FallbackCounters {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("MPTcpExt:"));
    let (Some(names), Some(numbers)) = (lines.next(), lines.next()) else { return FallbackCounters::default() };
    let mut counters = FallbackCounters::default();
    for (name, number) in names.split_whitespace().zip(numbers.split_whitespace()) {
        let number: u64 = number.parse().unwrap_or(0);
        if CLIENT_COUNTERS.contains(&name) {
            counters.fallen_back = counters.fallen_back.saturating_add(number);
        } else if name == "MPCurrEstab" {
            counters.established = number;
        }
    }
    counters
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
    use super::*;

    #[test]
    fn counters_are_found_by_their_names() {
        let text = "TcpExt: SyncookiesSent\nTcpExt: 7\n\
            MPTcpExt: MPCapableSYNRX MPCapableFallbackSYNACK DssFallback MPCurrEstab\nMPTcpExt: 9 2 3 4\n";
        assert_eq!(parse_netstat(text), FallbackCounters { fallen_back: 5, established: 4 });
        assert_eq!(parse_netstat("TcpExt: a\nTcpExt: 1\n"), FallbackCounters::default());
        assert_eq!(parse_netstat("MPTcpExt: MPCurrEstab\nMPTcpExt: x\n"), FallbackCounters::default());
    }
}
