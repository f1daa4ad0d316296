//! Bytes to values and back, without state: the formats that marline shares with kernels, files and peers.
//!
//! Each format is one file or folder with `parse` and `emit` (or a request builder); none opens a socket or a file.

pub mod download_journal;
pub mod netlink;
pub mod packet;
