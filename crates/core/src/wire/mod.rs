//! Codecs without state: the formats that marline shares with kernels, files and peers.
//!
//! Each format is one file or folder with `parse` and `emit` functions, or a request builder. None opens a socket or a
//! file.

pub mod download_journal;
pub mod netlink;
pub mod packet;
