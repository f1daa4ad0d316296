//! Fast fetch: holes are filled from a mirrored connection over a secondary link, which is acknowledged ahead of what
//! has arrived (Super-aggregation §3.3, §4.2, first form).
//!
//! `conn` is one mirrored connection, `pool` decides which flows have one. Off by default: it costs the secondary link
//! all of its capacity, where range requests ([`super::early_ack`]) cost only what is missing.

pub(super) mod conn;
pub(super) mod options;
pub(super) mod pool;
