//! The kernel's MPTCP counters in `/proc/net/netstat`, which cover a whole network namespace.
//!
//! Each protocol has two lines: one with names, and one with as many numbers.

use std::collections::BTreeMap;
use std::fs;

/// Reads the counters of MPTCP, by name; empty where the kernel has none. The network namespace of the thread applies,
/// which may differ from that of the process.
pub(crate) fn read_mptcp_counters() -> BTreeMap<String, u64> {
    mptcp_counters(&fs::read_to_string("/proc/thread-self/net/netstat").unwrap_or_default())
}

pub(super) fn mptcp_counters(text: &str) -> BTreeMap<String, u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("MPTcpExt:"));
    let (names, numbers) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let numbers = numbers.split_whitespace().map(|number| number.parse().unwrap_or(0));
    names.split_whitespace().map(str::to_owned).zip(numbers).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_put_together() {
        let text =
            "TcpExt: A B\nTcpExt: 1 2\nMPTcpExt: MPCapableSYNTX Blackhole\nMPTcpExt: 7 3\nIpExt: X\nIpExt: 9\n";
        let counters = mptcp_counters(text);
        assert_eq!(counters.get("MPCapableSYNTX"), Some(&7));
        assert_eq!(counters.get("Blackhole"), Some(&3));
        assert_eq!(counters.len(), 2);
    }

    #[test]
    fn truncated_or_invalid_input_yields_fewer_counters() {
        for text in ["", "MPTcpExt:", "MPTcpExt: A", "MPTcpExt: A B\nMPTcpExt: 1", "MPTcpExt: A\nMPTcpExt: x"] {
            assert!(mptcp_counters(text).len() <= 1, "{text}");
        }
    }
}
