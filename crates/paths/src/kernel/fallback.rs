//! How often connections of this host became plain TCP although they had asked for MPTCP: no event tells of it.
//!
//! In: the counters of `/proc/net/netstat`. Out: [`Fallback`]. They are of the whole network namespace.

use std::fs;

/// Counters since the network namespace was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FallbackCounters {
    /// Connections that became plain TCP, as a client.
    pub(crate) fallen_back: u64,
    /// Connections that are MPTCP now, on either side.
    pub(crate) established: u64,
}

/// Reads them; zero where the kernel has none. The thread's own namespace counts, not that of its process.
pub(crate) fn read_fallback_counters() -> FallbackCounters {
    parse_netstat(&fs::read_to_string("/proc/thread-self/net/netstat").unwrap_or_default())
}

/// Two lines for each protocol: names, then numbers.
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

/// No MPTCP in the SYN-ACK; no token; data without MPTCP's options, at the beginning or later; a signature of TCP-MD5; a
/// connection from both ends at once; a checksum that was wrong, of what came or of what went.
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
