//! Fast fetch: missing bytes from a mirrored connection that is acknowledged ahead (Super-aggregation §3.3, §4.2).

pub(super) mod conn;
pub(super) mod pool;
