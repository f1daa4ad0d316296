//! Codecs without state: the formats that marline shares with kernels, files and peers.
//!
//! Each format is one file or folder with `parse` and `emit` functions, or a request builder. None opens a socket or a
//! file.
//!
//! - [`download_journal`]: the file that records which byte ranges of an unfinished download are complete.
//! - [`netlink`]: messages to and from the kernel (links, addresses, routes, sockets, MPTCP, packet filter).
//! - [`packet`]: IP packets with TCP, UDP or ICMP, parsed, rewritten and built.

pub mod download_journal;
pub mod netlink;
pub mod packet;
